package profile

import "slices"

// Thread is where a sample was taken. Comm is the thread's name as the kernel
// keeps it, ended by a NUL when shorter.
type Thread struct {
	PID, TID int32
	Comm     [16]byte
	Labels   uint32 // what Builder.Labels returned, or 0 for none
	Event    uint8  // which of the recording's events it is about: see Meta.Also
}

// Comm returns name as a Thread holds it, cut to 15 bytes, as the kernel does: in
// the middle of a character, too.
func Comm(name string) (c [16]byte) {
	copy(c[:len(c)-1], name)
	return c
}

// same reports whether two differ in their labels at most.
func (t *Thread) same(o *Thread) bool { return t.PID == o.PID && t.TID == o.TID && t.Comm == o.Comm }

// CommString returns the thread's name.
func (t *Thread) CommString() string {
	for i, b := range t.Comm {
		if b == 0 {
			return string(t.Comm[:i])
		}
	}
	return string(t.Comm[:])
}

// tally is what was counted of one stack in one thread.
type tally struct {
	node, thread uint32
	count, value int64
}

// sample is a tally, and the sum of the squares of the values in it, which tells
// how uncertain the sum of them is.
type sample struct {
	tally
	squares float64
}

// stackCount is how often a stack was counted in one thread.
type stackCount struct {
	node, thread uint32
	count        int64
}

// stackWeight is the sum of the values of a stack in one thread, and of their squares.
type stackWeight struct {
	value   int64
	squares float64
}

// place is a frame as a file told it.
type place struct {
	addr  uint64
	lines []Line // innermost first, at least one
}

// Builder aggregates samples. It allocates only for what it has not seen
// before: a stack, a thread, a stack in another thread, a module.
type Builder struct {
	modules   []Module
	moduleIDs map[Module]uint32
	free      []uint32 // numbers of modules that were forgotten

	threads threadTable

	labels   [][]Label         // sets of labels; 0 is the empty one
	labelIDs map[string]uint32 // by their text

	markers   []string          // texts of markers
	markerIDs map[string]uint64 // indices of them
	truncated map[string]uint32 // nodes of the markers for truncated stacks, by reason

	// places are set by the readers of profiles, for which a Loc's Addr is an
	// index of it: two frames at one address need not be the same there.
	places []place

	keepTimes bool
	now       int64
	times     list[moment] // when samples were added, if keepTimes

	squaresGuessed bool // whether squares of samples are not those of the values that were added

	stacks   stacks
	path     Path  // of the stack that Add had last
	reversed []Loc // that stack, callers first
	samples  list[stackCount]
	each     int64             // value of one, while that is the same for all that was added
	weights  list[stackWeight] // of the samples, from when it was not
	index    []uint32          // hash table of those that are not noted of their node, by it and thread; 0 is free, else index + 1
	indexed  int               // in it
}

// NewBuilder returns an empty Builder, as the zero value is one.
func NewBuilder() *Builder {
	b := new(Builder)
	b.init()
	return b
}

// init makes what the zero value lacks.
func (b *Builder) init() {
	if b.moduleIDs != nil {
		return
	}
	b.modules = []Module{{}}
	b.moduleIDs = map[Module]uint32{}
	b.labels = [][]Label{nil}
	b.labelIDs = map[string]uint32{"": 0}
	b.markerIDs = map[string]uint64{}
	b.truncated = map[string]uint32{}
	b.stacks = newStacks()
	b.index = make([]uint32, minTable)
}

// Reset forgets the samples that were added, and their times and threads: what is
// added from now on makes a profile of its own. Sets of labels are forgotten, too;
// numbers of modules, and markers, stay what they are.
func (b *Builder) Reset() {
	if b.moduleIDs == nil {
		return
	}
	b.stacks, b.threads = newStacks(), threadTable{}
	b.samples, b.each, b.weights = list[stackCount]{}, 0, list[stackWeight]{}
	b.index, b.indexed = make([]uint32, minTable), 0
	b.times, b.squaresGuessed = list[moment]{}, false
	b.labels, b.labelIDs = [][]Label{nil}, map[string]uint32{"": 0}
	b.truncated = map[string]uint32{}
}

// RenumberEvents gives the events of all that was added other numbers: that of event i is numbers[i],
// another for each.
func (b *Builder) RenumberEvents(numbers []uint8) {
	for i := range b.threads.all {
		if t := &b.threads.all[i]; int(t.Event) < len(numbers) {
			t.Event = numbers[t.Event]
		}
	}
	b.threads.rehash(len(b.threads.index))
}

// Module returns the number of m for use in a Loc. It is the same number for
// the same m, and never 0.
func (b *Builder) Module(m Module) uint32 {
	b.init()
	id, ok := b.moduleIDs[m]
	if ok {
		return id
	}
	if n := len(b.free); n > 0 {
		id, b.free = b.free[n-1], b.free[:n-1]
		b.modules[id] = m
	} else {
		id = uint32(len(b.modules))
		b.modules = append(b.modules, m)
	}
	b.moduleIDs[m] = id
	return id
}

// ForgetModule forgets a module, none of whose frames were added since Reset: another
// gets its number.
func (b *Builder) ForgetModule(id uint32) {
	if id == 0 || id >= uint32(len(b.modules)) || b.modules[id] == (Module{}) {
		return
	}
	delete(b.moduleIDs, b.modules[id])
	b.modules[id] = Module{}
	b.free = append(b.free, id)
}

// Add counts a stack in thread t. The stack is leaf first: kernel frames, if
// any, and then those of user space; it is copied. truncated names the reason
// for which frames at the root are missing, and is empty for a complete
// stack. count is the number of samples that this stands for, value the same
// in units of Meta.Value.
func (b *Builder) Add(t Thread, stack []Loc, truncated string, count, value int64) {
	b.AddAlong(&b.path, t, b.callersFirst(stack), 0, truncated, count, value)
}

// add is Add for values of which the sum of squares is known.
func (b *Builder) add(t Thread, stack []Loc, truncated string, count, value int64, squares float64) {
	b.addAlong(&b.path, t, b.callersFirst(stack), 0, truncated, count, value, squares)
}

// callersFirst returns a stack in the other order, until the next call.
func (b *Builder) callersFirst(stack []Loc) []Loc {
	b.reversed = append(b.reversed[:0], stack...)
	slices.Reverse(b.reversed)
	return b.reversed
}

// AddAlong is Add for a stack of which the callers come first. The first same
// frames are those of the stack that was added with this path last, and that
// ended with the same reason: there is no need to look for them.
func (b *Builder) AddAlong(p *Path, t Thread, stack []Loc, same int, truncated string, count, value int64) {
	if count > 1 { // their values are taken for equal
		b.squaresGuessed = true
	}
	b.addAlong(p, t, stack, same, truncated, count, value, evenSquares(count, value))
}

// AddStack is Add for a stack that was added before, since Reset.
func (b *Builder) AddStack(t Thread, s Stack, count, value int64) {
	b.init()
	if int(s.leaf) < b.stacks.count {
		b.addNode(b.threads.number(&t), s.leaf, count, value, evenSquares(count, value))
	}
}

func (b *Builder) addAlong(p *Path, t Thread, stack []Loc, same int, truncated string, count, value int64, squares float64) {
	b.init()
	b.addNode(b.threads.number(&t), b.stacks.leafOf(p, stack, same, b.root(truncated)), count, value, squares)
}

// root returns the node below which the stacks are that end for a reason, "" for none.
func (b *Builder) root(truncated string) uint32 {
	if truncated == "" {
		return 0
	}
	root, ok := b.truncated[truncated]
	if !ok {
		root = b.truncatedRoot(truncated)
	}
	return root
}

// addNode counts a stack by its leaf, in a thread by its number.
func (b *Builder) addNode(thread, node uint32, count, value int64, squares float64) {
	i := b.sample(node, thread)
	b.weigh(i, count, value, squares)
	b.samples.at(i).count += count
	if b.keepTimes {
		*b.times.add() = moment{b.now, tally{node, thread, count, value}}
	}
}

// weigh adds what was counted so often to the weight of a sample.
func (b *Builder) weigh(i uint32, count, value int64, squares float64) {
	if b.weights.count == 0 {
		if b.samples.count == 1 && b.samples.at(0).count == 0 {
			b.each = value / max(count, 1)
		}
		if value == count*b.each && squares == evenSquares(count, value) {
			return
		}
	}
	for n := b.weights.count; n < b.samples.count; n++ {
		*b.weights.add() = b.evenWeight(uint32(n))
	}
	w := b.weights.at(i)
	w.value += value
	w.squares += squares
}

// evenWeight is the weight of a sample while all values are the same.
func (b *Builder) evenWeight(i uint32) stackWeight {
	count := b.samples.at(i).count
	return stackWeight{count * b.each, evenSquares(count, count*b.each)}
}

// evenSquares is the sum of the squares of so many equal values with this sum.
func evenSquares(count, value int64) float64 {
	return float64(value) * float64(value) / float64(max(count, 1))
}

// sampleAt returns what was counted of a stack in one thread.
func (b *Builder) sampleAt(i uint32) sample {
	s, w := b.samples.at(i), stackWeight{}
	if b.weights.count > 0 {
		w = *b.weights.at(i)
	} else {
		w = b.evenWeight(i)
	}
	return sample{tally{s.node, s.thread, s.count, w.value}, w.squares}
}

// Marker returns a frame that is no code, but a remark about the stacks that it
// is in: "[lock]". It is the same frame for the same text.
func (b *Builder) Marker(text string) Loc {
	b.init()
	i, ok := b.markerIDs[text]
	if !ok {
		i = uint64(len(b.markers))
		b.markers = append(b.markers, text)
		b.markerIDs[text] = i
	}
	return Loc{markerModule, i}
}

// MarkerText returns the text of a marker.
func (b *Builder) MarkerText(loc Loc) (text string, ok bool) {
	if loc.Module != markerModule || loc.Addr >= uint64(len(b.markers)) {
		return "", false
	}
	return b.markers[loc.Addr], true
}

// truncatedRoot makes the marker under which stacks are put that were
// truncated for a reason that is new.
func (b *Builder) truncatedRoot(reason string) uint32 {
	root := b.stacks.child(0, b.Marker("[truncated: "+reason+"]"))
	b.truncated[reason] = root
	return root
}

// sample returns the index of the sample of a stack in a thread, made when there is none. Most
// stacks are of one thread alone, and new: their sample is noted of their leaf.
func (b *Builder) sample(node, thread uint32) uint32 {
	if i, ok := b.stacks.noted(node); ok && b.samples.at(i).thread == thread {
		return i
	}
	if b.stacks.note(node, uint32(b.samples.count)) {
		return b.newSample(node, thread)
	}
	mask := uint32(len(b.index) - 1)
	i := hashSample(node, thread) & mask
	for ; b.index[i] != 0; i = (i + 1) & mask {
		s := b.samples.at(b.index[i] - 1)
		if s.node == node && s.thread == thread {
			return b.index[i] - 1
		}
	}
	n := b.newSample(node, thread)
	b.index[i] = n + 1
	if b.indexed++; b.indexed > len(b.index)/2 {
		b.growIndex()
	}
	return n
}

// newSample makes a sample and returns its index.
func (b *Builder) newSample(node, thread uint32) uint32 {
	*b.samples.add() = stackCount{node: node, thread: thread}
	return uint32(b.samples.count) - 1
}

func hashSample(node, thread uint32) uint32 { return uint32(mix(uint64(node), uint64(thread))) }

func (b *Builder) growIndex() {
	numbers := b.index
	b.index = make([]uint32, 2*len(numbers))
	mask := uint32(len(b.index) - 1)
	for _, n := range numbers {
		if n == 0 {
			continue
		}
		s := b.samples.at(n - 1)
		i := hashSample(s.node, s.thread) & mask
		for b.index[i] != 0 {
			i = (i + 1) & mask
		}
		b.index[i] = n
	}
}
