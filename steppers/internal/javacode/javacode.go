package javacode

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// HotSpot's interpreter is made of code templates. It enters a method with a
// jump, behind a return address that it has set itself: no call stands
// before such an address. What stands there is as good: the code takes its
// stack pointer from the frame that the frame pointer points to.
//
// The frame of an interpreted method (frame_x86.hpp, frame_aarch64.hpp) begins above the saved
// frame pointer with the return address. From JDK 21 on what is in the frame is told in words
// from the frame pointer. But that is not where the caller's
// stack goes on: the arguments of compiled code are pushed in between, and so
// are the method's own variables. The word below the saved frame pointer tells
// what SP the caller had. On AArch64 an interpreted caller had room beneath its operands
// then, where the frame is now.

// IsReturnEntry reports whether the code at pc, which is in no file, can only
// be returned to with the frame pointer set. buf is for the code.
func IsReturnEntry(w *unwind.Walker, m *procstate.Mapping, pc uint64, buf []byte) bool {
	l := looksOf(w.Arch())
	if m == nil || m.Image != nil || l == nil || !m.Contains(pc) {
		return false
	}
	return l.isReturnEntry(mcode.Read(w, m, pc, buf))
}

// goesOn reports whether code at pc, which is in no file, is where a method of
// HotSpot's goes on that has not called: where it polls for a safepoint, and where
// it is deoptimised. buf is for the code.
func goesOn(w *unwind.Walker, m *procstate.Mapping, pc uint64, buf []byte) bool {
	l := looksOf(w.Arch())
	if m.Image != nil || l == nil || !m.Contains(pc) {
		return false
	}
	code := mcode.Read(w, m, pc, buf)
	return l.isPoll(code) || l.isDeoptHandler(code, pc)
}

// DeoptHandlerLen is how much is looked at of the start of a deoptimisation handler.
const DeoptHandlerLen = 12

// IsDeoptHandler reports whether code at pc is what a method goes on with when it
// was deoptimised while it called (emit_deopt_handler): it passes on its own address.
func IsDeoptHandler(a *procstate.Arch, code []byte, pc uint64) bool {
	l := looksOf(a)
	return l != nil && l.isDeoptHandler(code, pc)
}

// Words of an interpreted frame, in bytes below the saved frame pointer.
const (
	SenderWord = 8  // the caller's SP
	MethodWord = 24 // the Method

	MaxLocals = 8 * (1<<16 + 2)
)

// Frame is where words of it are that were elsewhere in other releases.
type Frame struct {
	Locals    uint64 // address of the first local variable
	Bytecode  uint64 // that of the bytecode, while the method calls
	InitialSP uint64 // address of the last monitor, or of this word: the last of them
}

// Frame9 returns where words are in JDK 9 and later.
func Frame9(a *procstate.Arch) *Frame {
	if a == procstate.ARM64 {
		return &frame9ARM64
	}
	return &frame9AMD64
}

var (
	frame9AMD64 = Frame{Locals: 56, Bytecode: 64, InitialSP: 72}
	frame9ARM64 = Frame{Locals: 64, Bytecode: 72, InitialSP: 80}

	// Frame8 is where words are in JDK 8.
	Frame8 = Frame{Locals: 48, Bytecode: 56, InitialSP: 64}
)

// InFrame returns the address that a word of an interpreted frame tells, by itself or in words
// from the frame pointer.
func InFrame(fp, word uint64) uint64 {
	const most = 1 << 12
	if word+most < 2*most {
		return fp + 8*word
	}
	return word
}

// SenderSP returns the caller's SP of the interpreted method whose frame fp
// points to, and where its words are; ok is false when it does not look like one.
func SenderSP(w *unwind.Walker, sp, fp uint64) (sender uint64, words *Frame, ok bool) {
	if looksOf(w.Arch()) == nil || fp < sp || fp-sp < Frame8.InitialSP {
		return 0, nil, false
	}
	noted, read := w.ProcessState().ReadWord(fp - SenderWord)
	if sender, ok = CallersSP(w.Arch(), fp, InFrame(fp, noted)); !ok || !read {
		return 0, nil, false
	}
	for _, words = range [...]*Frame{Frame9(w.Arch()), &Frame8} {
		if words.fits(w.ProcessState(), sp, fp) {
			return sender, words, true
		}
	}
	return 0, nil, false
}

// CallersSP returns the SP that a frame is walked to with from an interpreted one, by what its caller had noted for
// SP; ok is false where that cannot be. MethodHandle.linkToStatic and its like take their last argument from beneath the
// return address when that has been noted, which is then a word below where the caller's stack ends.
func CallersSP(a *procstate.Arch, fp, noted uint64) (sp uint64, ok bool) {
	const argument = 8
	above := fp + 16
	if a == procstate.AMD64 && noted == above-argument {
		return above, true
	}
	if a == procstate.ARM64 && above-noted <= MaxLocals && noted%16 == 0 {
		return above, true // from the interpreter
	}
	return noted, noted >= above && noted-above <= MaxLocals && noted%8 == 0
}

// fits reports whether these may be the words of the frame that fp points to.
func (f *Frame) fits(mem procstate.Memory, sp, fp uint64) bool {
	if fp-sp < f.InitialSP {
		return false
	}
	locals, ok1 := mem.ReadWord(fp - f.Locals)
	initial, ok2 := mem.ReadWord(fp - f.InitialSP)
	locals, initial = InFrame(fp, locals), InFrame(fp, initial)
	return ok1 && ok2 && locals >= fp+8 && locals-fp-8 <= MaxLocals &&
		initial >= sp && initial <= fp-f.InitialSP && (locals|initial)%8 == 0
}

// MayReturnTo reports whether pc lies in code, behind a call as far as can be
// read, or where HotSpot goes on without. buf is for the code.
func MayReturnTo(w *unwind.Walker, pc uint64, buf []byte) bool {
	m := w.MappingAt(pc - 1)
	if m == nil {
		return mcode.IsReturnTrampoline(w, pc)
	}
	n := min(mcode.MaxCallLen, pc-m.Start)
	code := mcode.Read(w, m, pc-n, buf[:n])
	if uint64(len(code)) < n {
		return true
	}
	if _, _, ok := mcode.CallBefore(w.Arch(), code, pc); ok {
		return true
	}
	return IsReturnEntry(w, m, pc, buf) || goesOn(w, m, pc, buf)
}
