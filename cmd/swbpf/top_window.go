package main

import (
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/symbols"
)

// topWindow keeps the samples of the last seconds, in slots from one refresh
// of the screen to the next. The recorder's goroutine adds to the newest slot,
// anyone may roll it over; slots that were rolled over do not change any more.
type topWindow struct {
	length time.Duration
	values bool     // stacks count by their values, not their samples
	mods   *modules // of the recorder's goroutine, as is all that is not guarded

	mu     sync.Mutex
	slots  []*topSlot // oldest first; the last is being filled
	places *topPlaces // of the newest slot
	named  []topNamed // generated code that got a name since the last roll
}

// topSlot counts the samples of a span of time.
type topSlot struct {
	begin, end time.Time
	samples    int64
	complete   int64
	weight     int64      // of all stacks
	places     *topPlaces // what frames refers to
	frames     []uint32   // of all stacks, leaf first
	stacks     []topStack
	index      map[uint64]uint32 // of stacks, by hash
}

// topStack is a stack of a thread, and how often it was sampled, or its value.
type topStack struct {
	thread profile.Thread
	first  uint32 // in frames
	n      uint32
	count  int64
}

// topPlaces numbers places in code. Entries never change.
type topPlaces struct {
	list []topPlace
	ids  map[topPlaceKey]uint32

	unnamed []topUnnamed // generated code without a name yet
}

type topPlaceKey struct {
	loc    profile.Loc
	marker string
}

// topPlace is a place and where its name comes from: nowhere when no source is
// set.
type topPlace struct {
	module string // file name; "" for code in no module
	kind   profile.Kind
	addr   uint64 // link-time; run-time in the kernel and in generated code
	image  *procstate.Image
	jit    *symbols.Lookup
	kernel bool   // kallsyms have it
	name   string // of BPF code, as it was when it was sampled
	marker string // a remark in place of code
}

type topUnnamed struct {
	place uint32
	tries int
}

// topNamed are the functions at a place.
type topNamed struct {
	places *topPlaces
	place  uint32
	lines  []profile.Line
}

// maxTopPlaces is the number of places at which numbering starts afresh:
// those that left the window are forgotten with the old numbers.
const maxTopPlaces = 1 << 18

func newTopWindow(length time.Duration, mods *modules) *topWindow {
	w := &topWindow{length: length, mods: mods, places: newTopPlaces()}
	w.slots = []*topSlot{newTopSlot(w.places, time.Now())}
	return w
}

func newTopPlaces() *topPlaces { return &topPlaces{ids: map[topPlaceKey]uint32{}} }

func newTopSlot(p *topPlaces, begin time.Time) *topSlot {
	return &topSlot{begin: begin, places: p, index: map[uint64]uint32{}}
}

// AddAlong implements sampleSink.
func (w *topWindow) AddAlong(_ *profile.Path, t profile.Thread, stack []profile.Loc, _ int, truncated string, count, value int64) {
	t.Labels = 0 // which are not shown
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slots[len(w.slots)-1]
	first := uint32(len(s.frames))
	for _, loc := range slices.Backward(stack) {
		s.frames = append(s.frames, w.place(topPlaceKey{loc: loc}))
	}
	s.samples += count
	if truncated == "" {
		s.complete += count
	} else {
		s.frames = append(s.frames, w.place(topPlaceKey{marker: truncated}))
	}
	weight := count
	if w.values {
		weight = value
	}
	s.weight += weight
	s.count(t, first, weight)
}

// count counts the stack at the end of frames, from first on, and takes it
// back when it is known.
func (s *topSlot) count(t profile.Thread, first uint32, count int64) {
	stack := s.frames[first:]
	h := hashTopStack(&t, stack)
	if i, ok := s.index[h]; ok {
		k := &s.stacks[i]
		if k.thread == t && slices.Equal(s.frames[k.first:k.first+k.n], stack) {
			k.count += count
			s.frames = s.frames[:first]
			return
		}
	}
	s.index[h] = uint32(len(s.stacks))
	s.stacks = append(s.stacks, topStack{thread: t, first: first, n: uint32(len(stack)), count: count})
}

// hashTopStack is FNV-1a, by words.
func hashTopStack(t *profile.Thread, stack []uint32) uint64 {
	const prime = 1099511628211
	h := (14695981039346656037 ^ uint64(uint32(t.TID))) * prime
	for _, f := range stack {
		h = (h ^ uint64(f)) * prime
	}
	return h
}

// place numbers a place.
func (w *topWindow) place(key topPlaceKey) uint32 {
	p := w.places
	if id, ok := p.ids[key]; ok {
		return id
	}
	id := uint32(len(p.list))
	place := topPlace{addr: key.loc.Addr, marker: key.marker}
	if mod, ok := w.mods.info[key.loc.Module]; ok {
		place.module, place.kind = printable(filepath.Base(mod.Path)), mod.Kind
		place.image, place.jit = w.mods.image[key.loc.Module], w.mods.jit[key.loc.Module]
		place.kernel = key.loc.Module == w.mods.kernel
	}
	if key.loc.Module == w.mods.bpf {
		s, _ := w.mods.bpfCode.Name(key.loc.Addr)
		place.name = s.Name
	}
	if number, ok := w.mods.toldCode(key.loc); ok {
		w.named = append(w.named, topNamed{p, id, appendTold(nil, w.mods.codes.Lines(number), w.mods.symbolizer.Demangling())})
		place.jit = nil
	}
	if text, ok := w.mods.builder.MarkerText(key.loc); ok {
		place.marker = text
	}
	if place.jit != nil {
		p.unnamed = append(p.unnamed, topUnnamed{place: id})
	}
	p.list = append(p.list, place)
	p.ids[key] = id
	return id
}

// topSnapshot is the window at a moment.
type topSnapshot struct {
	slots []*topSlot
	lists map[*topPlaces][]topPlace // the places that there were
	named []topNamed
}

// span is the time that the snapshot covers.
func (s *topSnapshot) span() time.Duration {
	if len(s.slots) == 0 {
		return 0
	}
	return s.slots[len(s.slots)-1].end.Sub(s.slots[0].begin)
}

// roll ends the newest slot and returns those of the window.
func (w *topWindow) roll(now time.Time) topSnapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slots[len(w.slots)-1].end = now
	for len(w.slots) > 1 && w.slots[0].end.Before(now.Add(-w.length)) {
		w.slots = w.slots[1:]
	}
	s := topSnapshot{slots: append([]*topSlot(nil), w.slots...), lists: map[*topPlaces][]topPlace{}, named: w.named}
	for _, slot := range w.slots {
		s.lists[slot.places] = slot.places.list
	}
	w.named = nil
	if len(w.places.list) >= maxTopPlaces {
		w.places = newTopPlaces()
	}
	w.slots = append(w.slots, newTopSlot(w.places, now))
	return s
}

// jitTries is how often a name for generated code is looked for: it comes a
// little later than the code.
const jitTries = 10

// nameGenerated looks for names of generated code. The recorder's goroutine
// calls it, now and then: what it asks belongs to that.
func (w *topWindow) nameGenerated() {
	w.mu.Lock()
	places := w.places
	unnamed := places.unnamed
	list := places.list
	places.unnamed = nil
	w.mu.Unlock()

	var named []topNamed
	rest := unnamed[:0]
	for _, u := range unnamed {
		p := &list[u.place]
		var buf [1]symbols.Line
		if lines := p.jit.Lines(buf[:0], p.addr); len(lines) > 0 {
			named = append(named, topNamed{places, u.place, appendLines(nil, lines)})
		} else if u.tries++; u.tries < jitTries {
			rest = append(rest, u)
		}
	}
	w.mu.Lock()
	places.unnamed = append(places.unnamed, rest...)
	w.named = append(w.named, named...)
	w.mu.Unlock()
}
