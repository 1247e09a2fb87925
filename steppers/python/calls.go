package python

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// calls are the functions that run in one call of the interpreter's function, which has
// a place on the C stack at an address: found[first:end], innermost first.
type calls struct {
	at         uint64
	first, end int
}

// frameRef is a frame of a function.
type frameRef struct{ code, instruction uint64 }

// readThread finds out which functions the thread runs whose C stack sp is on.
func (vm *machine) readThread(sp uint64) {
	if !vm.readCalls(sp) && vm.list() {
		vm.readCalls(sp)
	}
}

// readCalls is readThread for the threads that are known.
func (vm *machine) readCalls(sp uint64) bool {
	vm.currents, vm.own = vm.currents[:0], 0
	for _, t := range vm.threads {
		if word, ok := vm.Word(t.addr + vm.fields.current); ok {
			vm.currents = append(vm.currents, current{word, t.id})
		}
	}
	if len(vm.currents) == 0 && vm.ownFrom != 0 {
		vm.takeCurrent()
	}
	vm.lacks, vm.lacksFrame = vm.Captured != nil && len(vm.currents) == 0, false
	if len(vm.currents) == 1 {
		found := vm.callsOf(vm.currents[0].word, sp, true)
		vm.runsOther = vm.Captured != nil && !found
		return found
	}
	best, at, looks := -1, uint64(onStack), maxSearched
	for i, c := range vm.currents {
		if looks <= 0 { // which it is, nobody can tell
			vm.calls = vm.calls[:0]
			return false
		}
		if vm.callsOf(c.word, sp, false) && vm.lowest(sp) < at {
			best, at = i, vm.lowest(sp) // stacks of others are above that
		}
		looks -= 1 + maxFrames - vm.left
	}
	if best < 0 {
		vm.calls = vm.calls[:0]
		return false
	}
	if vm.callsOf(vm.currents[best].word, sp, false); len(vm.calls) == 0 {
		return false // it is read again, and is another
	}
	for vm.addOuter(vm.currents[best].thread) {
	}
	return true
}

// takeCurrent takes what the kernel side has copied of a thread that is not known, as it has begun just before: the last
// word. Those before it are of a runtime of Go.
func (vm *machine) takeCurrent() {
	const word = 8
	sample, ok := vm.Mem.(*procstate.Snapshot)
	if !ok {
		return
	}
	for _, r := range sample.Regions() {
		if len(r.Data) == word {
			vm.currents = append(vm.currents[:0], current{word: binary.LittleEndian.Uint64(r.Data)})
			vm.own = r.Addr - vm.fields.current
		}
	}
}

// current is what leads to the frame that runs, and of which thread: one that runs several interpreters, of which one
// has called the other, has one for each.
type current struct{ word, thread uint64 }

// addOuter adds the calls of the interpreter of a thread that has called what was found. It returns whether there is one.
func (vm *machine) addOuter(thread uint64) bool {
	calls, found := len(vm.calls), len(vm.found)
	above, nearest, at := vm.calls[calls-1].at+1, -1, uint64(onStack)
	for i, c := range vm.currents {
		if c.thread != thread || thread == 0 {
			continue
		}
		if vm.follow(c.word, above, false); len(vm.calls) > calls && vm.calls[calls].at-above < at {
			nearest, at = i, vm.calls[calls].at-above
		}
		vm.calls, vm.found = vm.calls[:calls], vm.found[:found]
	}
	if nearest < 0 {
		return false
	}
	vm.follow(vm.currents[nearest].word, above, false)
	return len(vm.calls) > calls
}

// maxSearched is how many frames are looked at in search of the thread, of all that were copied.
const maxSearched = 1 << 18

// onStack is how far above SP what the interpreter has on the C stack may be: it is in the
// frame of its function, or of one that was called by others that it called.
const onStack = 8 << 20

// beforeFirst is how far below the first frame that is asked for there may be another, of a
// call that begins.
const beforeFirst = 16 << 10

// lowest returns how far above sp the first of the calls is.
func (vm *machine) lowest(sp uint64) uint64 {
	for i := range vm.calls {
		if at := vm.calls[i].at; at >= sp {
			return at - sp
		}
	}
	return onStack
}

// callsOf follows the frames of a thread from the one that runs. It returns whether the thread
// may be the one whose C stack sp is on, as it is when it is alone.
func (vm *machine) callsOf(current, sp uint64, alone bool) bool {
	vm.calls, vm.found, vm.left = vm.calls[:0], vm.found[:0], maxFrames
	vm.follow(current, sp-min(sp, beforeFirst), alone)
	return len(vm.calls) > 0
}

// follow adds the calls that are above an address on the C stack.
func (vm *machine) follow(current, above uint64, alone bool) {
	f := vm.fields
	if !f.hasCFrame {
		for frame := current; frame != 0 && len(vm.calls) < maxCalls; {
			first := len(vm.found)
			at, next, ok := vm.call(frame)
			if !ok && first == 0 && len(vm.found) > 0 && alone && vm.begun != vm.walk {
				at, ok = above+beforeFirst, true // the first frame that is asked for is that of the call
			}
			if !ok || at < above || at-above >= onStack {
				vm.found = vm.found[:first]
				break
			}
			vm.calls = append(vm.calls, calls{at, first, len(vm.found)})
			frame, above = next, at+1
		}
		return
	}
	for at := current; at >= above && at-above < onStack && len(vm.calls) < maxCalls; {
		frame, ok := vm.Word(at + f.cFrame)
		if !ok {
			break
		}
		first := len(vm.found)
		vm.call(frame)
		vm.calls = append(vm.calls, calls{at, first, len(vm.found)})
		above = at + 1
		at, _ = vm.Word(at + f.outerCFrame)
	}
}

// call finds the functions of one call of the interpreter's function, from the frame that
// runs on. at is the address of the frame on the C stack that ends them, where it is one, and
// next the frame that comes then. ok is false when there are others, which were not copied: then
// the last one found stands for these.
func (vm *machine) call(frame uint64) (at, next uint64, ok bool) {
	f, first := vm.fields, len(vm.found)
	var buf [maxFrameBytes]byte
	b := buf[:f.frameBytes()]
	for ; frame != 0 && vm.left > 0; vm.left-- {
		if !vm.Read(frame, b) {
			vm.lacksFrame = vm.Captured != nil
			break
		}
		word := func(off uint64) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
		previous := word(f.previous)
		if f.isEntry == 0 && b[f.owner] == ownedByCStack {
			return frame, previous, true
		}
		vm.found = append(vm.found, frameRef{word(f.code) &^ tagBits, word(f.instruction)})
		if f.isEntry != 0 && b[f.isEntry] != 0 {
			return 0, previous, true
		}
		frame = previous
	}
	if vm.left == 0 {
		vm.found = vm.found[:first] // in a circle
	} else {
		vm.found = append(vm.found, frameRef{notCopied, 0})
	}
	return 0, 0, false
}

// notCopied stands for the code object of frames that cannot be read.
const notCopied = ^uint64(0)
