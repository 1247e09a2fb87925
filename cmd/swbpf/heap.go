package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
)

// What a recording of the heap has as its events: what was not given back, what was held when that was most, and all
// that was handed out.
const (
	heldEvent = iota
	peakEvent
	allocatedEvent
	numHeapEvents
)

var heapEvents = [numHeapEvents]string{heldEvent: "held", peakEvent: "peak", allocatedEvent: "allocated"}

// heap follows which blocks of memory are held, of those that were sampled, by processes that run. A nil one follows none.
type heap struct {
	blocks map[loader.BlockID]*heapBlock
	procs  map[*loader.Process]*heapProcess // that have any
	now    int64                            // bytes of blocks
	peak   []*heapBlock                     // blocks when now was largest, or less than a peakStep-th less
	most   int64                            // bytes of peak
	when   uint64                           // peak was, CLOCK_MONOTONIC ns
	sums   [numHeapEvents]struct {          // by event; of allocatedEvent the bytes alone
		bytes   int64
		samples uint64
	}
	past int // blocks of processes that have ended, or run other programs, which the kernel side still has
}

const (
	// peakStep bounds how often a peak is noted: where it is larger by such a part.
	peakStep = 50

	// maxPast is how many blocks of the past the kernel side may have.
	maxPast = 1 << 14
)

// heapBlock is a block of memory of which there is a sample.
type heapBlock struct {
	time   uint64 // CLOCK_MONOTONIC, ns
	weight int64  // bytes that it stands for
	thread profile.Thread
	stack  profile.Stack
	proc   *heapProcess
}

// heapProcess is a process with blocks, until it ends or runs another program.
type heapProcess struct {
	space           *procstate.AddressSpace
	ended, replaced bool
}

func newHeap() *heap {
	return &heap{blocks: map[loader.BlockID]*heapBlock{}, procs: map[*loader.Process]*heapProcess{}}
}

// addBlock counts the sample of a block that is handed out, whose stack is p.stack.
func (p *pipeline) addBlock(s *loader.Sample, thread profile.Thread) {
	h, proc := p.heap, p.procs.Process(s.PID)
	h.sums[allocatedEvent].bytes += int64(s.Weight)
	if proc == nil {
		return
	}
	hp := h.procs[proc]
	if hp == nil || hp.space != proc.Space {
		p.sweepHeap(s.Time)
		hp = &heapProcess{space: proc.Space}
		h.procs[proc] = hp
	}
	h.blocks[loader.BlockID{TID: s.TID, Time: s.Time}] = &heapBlock{s.Time, int64(s.Weight), thread, p.path.Stack(), hp}
	h.now += int64(s.Weight)
}

// freed takes a block that is given back out of those that are held.
func (h *heap) freed(s *loader.Sample) {
	if b := h.blocks[s.Freed]; b != nil {
		h.notePeak(s.Time)
		h.forget(s.Freed, b)
	}
}

func (h *heap) forget(id loader.BlockID, b *heapBlock) {
	h.now -= b.weight
	delete(h.blocks, id)
}

// notePeak keeps what is held if that is more than it was before. It is called when some of it is to go.
func (h *heap) notePeak(ns uint64) {
	if h.now > h.most+h.most/peakStep {
		h.peak = slices.AppendSeq(h.peak[:0], maps.Values(h.blocks))
		h.most, h.when = h.now, ns
	}
}

// sweepHeap takes account of processes that have ended, whose blocks are held to the end, and of those that run
// another program, which hold nothing of what the one before did.
func (p *pipeline) sweepHeap(ns uint64) {
	h := p.heap
	if h == nil {
		return
	}
	gone := false
	for proc, hp := range h.procs {
		hp.replaced = proc.Space != hp.space
		hp.ended = !hp.replaced && proc.Exited && isEmpty(int(proc.PID))
		if hp.replaced || hp.ended {
			gone = true
			delete(h.procs, proc)
		}
	}
	if !gone {
		return
	}
	h.notePeak(ns)
	var held []*heapBlock
	for id, b := range h.blocks {
		if b.proc.ended {
			held = append(held, b)
		}
		if b.proc.ended || b.proc.replaced {
			h.forget(id, b)
			h.past++
		}
	}
	p.addBlocks(heldEvent, held)
}

// isEmpty reports whether a process whose initial thread has ended has no others.
func isEmpty(pid int) bool {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err != nil || len(threads) <= 1
}

// followHeap takes account of what has become of processes, and bounds what the kernel side keeps of those that are gone.
func (r *recorder) followHeap() error {
	h := r.heap
	if h == nil {
		return nil
	}
	now := procstate.Monotonic()
	r.sweepHeap(now)
	if h.past < maxPast {
		return nil
	}
	h.past = 0
	return r.session.ForgetBlocks(func(id loader.BlockID) bool { return h.blocks[id] == nil && id.Time+uint64(keep) < now })
}

// addHeld adds what is held at the end, and what was when that was most, to the profile.
func (r *recorder) addHeld() error {
	h := r.heap
	if h == nil {
		return nil
	}
	held := map[loader.BlockID]bool{}
	if err := r.session.Blocks(func(id loader.BlockID) { held[id] = true }); err != nil {
		return err
	}
	r.sweepHeap(procstate.Monotonic())
	h.notePeak(procstate.Monotonic())
	for id, b := range h.blocks {
		if !held[id] { // nothing told so
			h.forget(id, b)
		}
	}
	r.addBlocks(heldEvent, slices.Collect(maps.Values(h.blocks)))
	r.addBlocks(peakEvent, h.peak)
	h.blocks, h.peak, h.procs = nil, nil, nil
	return nil
}

// addBlocks adds blocks to the profile as those of an event.
func (p *pipeline) addBlocks(event int, blocks []*heapBlock) {
	slices.SortFunc(blocks, func(a, b *heapBlock) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.thread.TID, b.thread.TID))
	})
	sum := &p.heap.sums[event]
	for _, b := range blocks {
		thread := b.thread
		thread.Event = uint8(event)
		p.builder.SetTime(int64(b.time))
		p.builder.AddStack(thread, b.stack, 1, b.weight)
		sum.bytes += b.weight
		sum.samples++
	}
	p.stats.samplesOf[event] = sum.samples
}

// checkHeap checks what is asked for with --heap.
func (o *recordOptions) checkHeap() error {
	switch {
	case len(o.also) > 0:
		return errors.New("--heap goes with no other event")
	case len(o.cpus) > 0:
		return errors.New("-C excludes --heap: memory is given back on any CPU")
	case o.every > 0:
		return errors.New("--every excludes --heap: what is held is known at the end")
	}
	return nil
}

// firstSampling looks up what is asked for of the first event, in the files of some processes or of the command.
func (o *recordOptions) firstSampling(pids []int) (m loader.Sampling, err error) {
	if o.event != loader.Heap.Name {
		return o.sampling(pids)
	}
	var programs []string
	if o.recordsCommand() {
		programs = o.command[:1]
	}
	m.Frequency, m.Period = int(o.frequency), uint64(o.period)
	m.Event, err = loader.HeapOf(pids, programs...)
	return m, err
}

// samplings are what is sampled, by the events of the profile.
func (r *recorder) samplings() []loader.Sampling {
	all := r.session.Samplings()
	if r.heap == nil {
		return all
	}
	of := all[0]
	all = nil
	for _, name := range heapEvents {
		of.Event.Name = name
		all = append(all, of)
	}
	return all
}

// What is shown of the stacks that hold, or have allocated, most memory: how many, and how many functions of each.
const (
	shownStacks    = 5
	shownFunctions = 5
)

// printHeapStacks lists the stacks that come to most of an event of the heap. Where about the most was held at the end,
// the peak's are the same.
func printHeapStacks(w io.Writer, h *heap, event int, p *profile.Profile) {
	if event == peakEvent && float64(p.Value) < 1.1*float64(h.sums[heldEvent].bytes) {
		return
	}
	stacks := p.TopStacks(shownStacks, shownFunctions)
	if len(stacks) == 0 {
		return
	}
	title := heapEvents[event]
	if event == peakEvent {
		title = "held at most"
	}
	fmt.Fprintf(w, "%s by (each function is called by the next):\n", title)
	for _, s := range stacks {
		fmt.Fprintf(w, "  %5.1f %% %10s  %s\n", percent(uint64(s.Value), uint64(p.Value)), amount(s.Value, "bytes"), printable(strings.Join(s.Functions, " < ")))
	}
}

// printHeap says how much memory was handed out from a time on (CLOCK_MONOTONIC, ns), and how much of it was held.
func printHeap(w io.Writer, h *heap, began, period uint64) {
	held, peak, blocks := h.sums[heldEvent], h.sums[peakEvent], ""
	if period == 1 {
		blocks = " in " + plural(held.samples, "block")
	}
	after := ""
	if h.when > 0 {
		after = fmt.Sprintf(", after %.1f s", time.Duration(h.when-began).Seconds())
	}
	fmt.Fprintf(w, "held at the end: %s%s; at most: %s%s; allocated: %s\n",
		amount(held.bytes, "bytes"), blocks, amount(peak.bytes, "bytes"), after, amount(h.sums[allocatedEvent].bytes, "bytes"))
	if held.bytes > peak.bytes {
		fmt.Fprintln(w, "  (of processes that ended meanwhile, what they held then counts as held at the end; at most was held at one time)")
	}
	if period > 1 {
		fmt.Fprintf(w, "  (a sample each %s; -c 1 counts every block)\n", amount(int64(period), "bytes"))
	}
}
