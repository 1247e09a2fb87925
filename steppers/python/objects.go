package python

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// To CPython 3.10 each function runs in a frame of the interpreter's function of its own, and in
// a PyFrameObject. The PyThreadState leads to the innermost of these, and each to the one before.
// Which belongs to which frame on the C stack is told by its address, which the interpreter
// keeps in a register, or on the stack.

const (
	// maxObjectsAhead is how many PyFrameObjects further on one may be that is found.
	maxObjectsAhead = 4
	// belowEval is how far below a frame of the interpreter's function what it calls has saved
	// its registers, in bytes; and maxEvalFrame how large it may be.
	belowEval    = 2 << 10
	maxEvalFrame = 2 << 10
)

// objectCode is codeOf where frames are objects.
func (vm *machine) objectCode(w *unwind.Walker, in *unwind.Frame, cfa uint64) uint32 {
	if vm.walk != w.Walks() {
		vm.walk = w.Walks()
		vm.readObjects(w, in.Thread)
	}
	if cfa-in.SP() > maxEvalFrame {
		return 0
	}
	var buf [belowEval + maxEvalFrame]byte
	from := (in.SP() - min(in.SP(), belowEval)) &^ 7
	if vm.above <= in.SP() {
		from = max(from, vm.above&^7)
	}
	words := buf[:(cfa-from)&^7]
	if !vm.Read(from, words) {
		from = in.SP() &^ 7 // below it is the end of what was copied
		if words = words[:(cfa-from)&^7]; !vm.Read(from, words) {
			return 0
		}
	}
	for i := vm.next; i < min(len(vm.objects), vm.next+maxObjectsAhead); i++ {
		if inRegisters(w.Arch(), in, vm.objects[i]) || hasWord(words, vm.objects[i]) {
			vm.next, vm.above = i+1, cfa
			return vm.number(w.Codes(), i, i+1)
		}
	}
	return 0
}

// inRegisters reports whether a register has a value in a frame.
func inRegisters(a *procstate.Arch, in *unwind.Frame, value uint64) bool {
	for r := range procstate.Reg(a.NumRegs) {
		if v, known := in.Regs.Value(r); known && v == value && r != a.SP && r != a.PC {
			return true
		}
	}
	return false
}

// hasWord reports whether one of some words has a value.
func hasWord(words []byte, value uint64) bool {
	for ; len(words) >= 8; words = words[8:] {
		if binary.LittleEndian.Uint64(words) == value {
			return true
		}
	}
	return false
}

// isPthread reports whether a number that CPython has for a thread is that of the one with a thread pointer:
// pthread_self, where the thread's struct pthread is. On AArch64 this ends below what the thread pointer
// points at: of 200 bytes with musl, and some 2 KB with glibc; those of two threads are further apart.
func isPthread(a *procstate.Arch, id, pointer uint64) bool {
	const most = 4 << 10
	if a == procstate.ARM64 {
		return id < pointer && pointer-id <= most
	}
	return id == pointer
}

// readObjects follows the PyFrameObjects of the thread that is walked.
func (vm *machine) readObjects(w *unwind.Walker, tid procstate.ThreadID) {
	var regs procstate.Regs
	vm.objects, vm.found, vm.next, vm.above = vm.objects[:0], vm.found[:0], 0, 0
	vm.lacks, vm.lacksFrame = false, false
	if w.ProcessState().Registers(tid, &regs) != nil || regs.ThreadPointer == 0 {
		return
	}
	vm.threadPointer = regs.ThreadPointer
	for {
		for _, t := range vm.threads {
			if isPthread(w.Arch(), t.id, vm.threadPointer) {
				vm.followObjects(t.addr)
				return
			}
		}
		if !vm.list() {
			vm.lacks = vm.Captured != nil
			return
		}
	}
}

// followObjects follows the PyFrameObjects of a thread.
func (vm *machine) followObjects(thread uint64) {
	f := vm.fields
	object, ok := vm.Word(thread + f.current)
	vm.lacks = vm.Captured != nil && !ok
	var b [objectBytes]byte
	for left := maxFrames; object != 0 && left > 0 && vm.Read(object, b[:]); left-- {
		le := binary.LittleEndian
		code, last := le.Uint64(b[f.code:]), le.Uint32(b[f.instruction:])
		vm.objects = append(vm.objects, object)
		vm.found = append(vm.found, frameRef{code, code + uint64(int64(int32(last)))})
		object = le.Uint64(b[f.previous:])
	}
}
