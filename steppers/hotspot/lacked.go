package hotspot

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// The kernel side copies StackChunks with the samples of a thread when it knows where its JavaThread refers to them, and how
// they are laid out. Both are learned when a walk has lacked them.

// lackedChunks is what a walk has lacked of the heap.
type lackedChunks struct {
	walk  uint64
	entry uint64 // address of the ContinuationEntry
}

// javaThreadAt is the JavaThread of the thread that a walk is of, where it was interrupted in Java: a register has it.
type javaThreadAt struct {
	walk uint64
	addr uint64
}

// Lacked returns where the virtual machine has the frames of a thread that are in the heap, if the last walk has lacked
// them.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.fields == nil || vm.lacked.walk != w.Walks() || vm.live == nil {
		return frames, false
	}
	if vm.layOut(); vm.layout.marked {
		return frames, false // nothing could be done with them
	}
	if vm.thread.walk != w.Walks() || !vm.entryField.find(vm) {
		return frames, true
	}
	if vm.chunkFrames.Chunk == 0 && !vm.layOutChunks() {
		return frames, true
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	frames = vm.chunkFrames
	frames.Current = vm.thread.addr + vm.entryField.offset
	return frames, true
}

// Knows reports whether walks of a Walker have met a virtual machine.
func (s *Stepper) Knows(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*machine)
	return vm != nil && vm.fields != nil
}

// layOutChunks finds out how StackChunks are to be copied, from the Continuation that was lacked, as it is now.
func (vm *machine) layOutChunks() bool {
	o := vm.objectsNow()
	address, _ := o.read.Word(vm.lacked.entry + entryContinuation)
	continuation, ok := o.object(address)
	if !ok || !continuation.class.extends(continuationClass) {
		return false
	}
	chunk, ok := o.follow(&continuation, "tail")
	tail, ok1 := continuation.class.field("tail")
	low, ok2 := chunk.class.field("sp")
	words, ok3 := chunk.class.field("size")
	outer, ok4 := chunk.class.field("parent")
	if !ok || !ok1 || !ok2 || !ok3 || !ok4 || chunk.class.name != chunkClass {
		return false
	}
	frames := procstate.ThreadFrames{First: entryContinuation, Head: len(continuation.data), Chunk: int(tail.offset)}
	frames.Chunks = procstate.FrameChunks{Wide: !o.narrowOops, Head: len(chunk.data), Low: int(low.offset), Words: int(words.offset), Outer: int(outer.offset)}
	if o.narrowOops {
		frames.Chunks.Base, frames.Chunks.Shift = o.oopBase, int(o.oopShift)
	}
	if z := o.z; z != nil {
		frames.Chunks.Beside = z.badAt
		if z.f.generational {
			frames.Chunks.Mark = zFirstRemapped
		}
	}
	const most = 1 << 10
	if max(tail.offset, low.offset, words.offset, outer.offset) > most || frames.Head > most || frames.Chunks.Head > most {
		return false
	}
	vm.chunkFrames = frames
	return true
}

// entryField is where in a JavaThread the address of its ContinuationEntry is. JDK 21 does not tell: it is a word with the
// address of what refers to a Continuation, on the thread's stack.
type entryField struct {
	offset uint64         // 0: not known
	hits   map[uint64]int // times that a word was that, by offset
	asked  time.Time
}

const (
	maxJavaThread = 4 << 10   // bytes
	entriesReach  = 256 << 10 // bytes around a ContinuationEntry in which others of the thread are
	entryHits     = 2         // for certainty, and as many more than of any other word
	entryInterval = 10 * time.Millisecond
)

// find looks for the field in the JavaThread of the last walk, which has lacked frames, and reports whether it is known.
func (e *entryField) find(vm *machine) bool {
	if f := vm.fields.object; e.offset == 0 && f != nil && f.virtual != nil {
		e.offset = f.virtual.continuationEntry
	}
	now := time.Now()
	if e.offset != 0 || now.Sub(e.asked) < entryInterval {
		return e.offset != 0
	}
	words := make([]byte, maxJavaThread)
	if e.asked = now; !vm.read(vm.thread.addr, words) {
		return false
	}
	if e.hits == nil {
		e.hits = map[uint64]int{}
	}
	o := vm.objectsNow()
	for at := 0; at < len(words); at += 8 {
		entry := binary.LittleEndian.Uint64(words[at:])
		if entry%8 != 0 || entry-vm.lacked.entry+entriesReach >= 2*entriesReach {
			continue
		}
		address, _ := o.read.Word(entry + entryContinuation)
		if c, ok := o.object(address); ok && c.class.extends(continuationClass) {
			e.hits[uint64(at)]++
		}
	}
	best, second := uint64(0), 0
	for at, n := range e.hits {
		if n > e.hits[best] {
			best, second = at, e.hits[best]
		} else if at != best {
			second = max(second, n)
		}
	}
	if e.hits[best] >= second+entryHits {
		e.offset = best
	}
	return e.offset != 0
}

// objectsNow returns what reads objects as they are now.
func (vm *machine) objectsNow() *javaObjects {
	if z := vm.layout.z; z != nil {
		z.refresh(vm)
	}
	return &javaObjects{vm: vm, javaLayout: vm.layout, read: vm.read, now: vm.read, end: time.Now().Add(maxObjectTime)}
}
