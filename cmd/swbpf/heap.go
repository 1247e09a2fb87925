package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
)

// What a recording of the heap has as its events: what was not given back, and all that was handed out.
const (
	heldEvent = iota
	allocatedEvent
)

var heapEvents = []string{heldEvent: "held", allocatedEvent: "allocated"}

// heap keeps what blocks of memory were sampled, as what is still held is known at the end. A nil one keeps nothing.
type heap struct {
	blocks []heapBlock
	prune  int // size of blocks at which those that were given back are forgotten

	held      uint64 // bytes that are, by the samples...
	heldCount uint64 // ...and about how many blocks these are
	allocated uint64 // bytes
}

// heapBlock is a block of memory of which there is a sample.
type heapBlock struct {
	time   uint64 // CLOCK_MONOTONIC, ns
	weight uint64 // bytes that it stands for
	thread profile.Thread
	stack  profile.Stack
	proc   *loader.Process
	space  *procstate.AddressSpace // of proc at that time
}

// minPrune is the least heap.prune: 8 MB of blocks.
const minPrune = 1 << 16

// addBlock counts the sample of a block that is handed out, whose stack is p.stack.
func (p *pipeline) addBlock(s *loader.Sample, thread profile.Thread) {
	proc := p.procs.Process(s.PID)
	if proc == nil {
		return
	}
	p.heap.allocated += s.Weight
	thread.Event = heldEvent
	p.heap.blocks = append(p.heap.blocks, heapBlock{s.Time, s.Weight, thread, p.path.Stack(), proc, proc.Space})
}

// blockKey is what tells a block's sample from others.
type blockKey struct {
	pid, tid int32
	time     uint64
}

// keepHeld forgets the blocks that were given back, or whose process runs another program now. It returns how
// large those are that are left.
func (h *heap) keepHeld(s *loader.Session) ([]uint64, error) {
	bytes := map[blockKey]uint64{}
	if err := s.Blocks(func(b *loader.Block) { bytes[blockKey{b.PID, b.TID, b.Time}] = b.Bytes }); err != nil {
		return nil, err
	}
	var sizes []uint64
	kept := h.blocks[:0]
	for _, b := range h.blocks {
		size, ok := bytes[blockKey{b.thread.PID, b.thread.TID, b.time}]
		if ok && b.proc.Space == b.space {
			kept, sizes = append(kept, b), append(sizes, size)
		}
	}
	clear(h.blocks[len(kept):])
	h.blocks = kept
	h.prune = max(minPrune, 2*len(kept))
	return sizes, nil
}

// pruneHeap bounds what is kept of blocks by how many are held.
func (r *recorder) pruneHeap() error {
	if r.heap == nil || len(r.heap.blocks) < max(minPrune, r.heap.prune) {
		return nil
	}
	_, err := r.heap.keepHeld(r.session)
	return err
}

// addHeld adds what is held at the end to the profile.
func (r *recorder) addHeld() error {
	if r.heap == nil {
		return nil
	}
	sizes, err := r.heap.keepHeld(r.session)
	for i, b := range r.heap.blocks {
		r.builder.SetTime(int64(b.time))
		r.builder.AddStack(b.thread, b.stack, 1, int64(b.weight))
		r.heap.held += b.weight
		r.heap.heldCount += max(1, b.weight/max(1, sizes[i]))
	}
	r.stats.samplesOf[heldEvent] = uint64(len(r.heap.blocks))
	r.heap.blocks = nil
	return err
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
	m.Period = uint64(o.period)
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

// printHeapStacks lists the stacks that come to most of an event of the heap.
func printHeapStacks(w io.Writer, event string, p *profile.Profile) {
	stacks := p.TopStacks(shownStacks, shownFunctions)
	if len(stacks) == 0 {
		return
	}
	fmt.Fprintf(w, "%s by (each function is called by the next):\n", event)
	for _, s := range stacks {
		fmt.Fprintf(w, "  %5.1f %% %10s  %s\n", percent(uint64(s.Value), uint64(p.Value)), amount(s.Value, "bytes"), printable(strings.Join(s.Functions, " < ")))
	}
}

// printHeap says how much memory was handed out, and how much of it is still held.
func printHeap(w io.Writer, h *heap, period uint64) {
	fmt.Fprintf(w, "held at the end: %s in about %s, of %s that were allocated\n",
		amount(int64(h.held), "bytes"), plural(int(h.heldCount), "block"), amount(int64(h.allocated), "bytes"))
	if period > 1 {
		fmt.Fprintf(w, "  (a sample each %s; -c 1 counts every block)\n", amount(int64(period), "bytes"))
	}
}
