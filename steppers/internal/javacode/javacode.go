package javacode

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// HotSpot's interpreter is made of code templates. It enters a method with a
// jump, behind a return address that it has pushed itself: no call stands
// before such an address. What stands there is as good: the code takes its
// stack pointer from the frame that the frame pointer points to.
//
// The frame of an interpreted method (frame_x86.hpp) begins above the saved
// frame pointer with the return address. From JDK 21 on what is in the frame is told in words
// from the frame pointer. But that is not where the caller's
// stack goes on: the arguments of compiled code are pushed in between, and so
// are the method's own variables. The word below the saved frame pointer tells
// what SP the caller had.

// returnEntries are the ways in which the code begins that methods return to;
// the displacement, at returnDisp, may be any that is negative.
var returnEntries = [][]byte{
	{0x48, 0x8b, 0x65, 0},                               // mov -n(%rbp),%rsp
	{0x48, 0x8b, 0x4d, 0, 0x48, 0x8d, 0x64, 0xcd, 0x00}, // mov -n(%rbp),%rcx; lea (%rbp,%rcx,8),%rsp
	{0x4c, 0x8b, 0x55, 0, 0x4a, 0x8d, 0x64, 0xd5, 0x00}, // the same by %r10
	{0x48, 0xc7, 0x45, 0, 0x00, 0x00, 0x00, 0x00},       // movq $0,-n(%rbp)
}

const returnDisp = 3

// IsReturnEntry reports whether the code at pc, which is in no file, can only
// be returned to with the frame pointer set. buf is for the code.
func IsReturnEntry(w *unwind.Walker, m *procstate.Mapping, pc uint64, buf []byte) bool {
	if m == nil || m.Image != nil || w.Arch() != procstate.AMD64 || !m.Contains(pc) {
		return false
	}
	code := mcode.Read(w, m, pc, buf)
	if len(code) <= returnDisp || code[returnDisp] < 0x80 {
		return false
	}
	for _, e := range returnEntries {
		if len(code) >= len(e) && bytes.Equal(code[:returnDisp], e[:returnDisp]) &&
			bytes.Equal(code[returnDisp+1:len(e)], e[returnDisp+1:]) {
			return true
		}
	}
	return false
}

// goesOn reports whether code at pc, which is in no file, is where a method of
// HotSpot's goes on that has not called: where it polls for a safepoint, and where
// it is deoptimised. buf is for the code.
func goesOn(w *unwind.Walker, m *procstate.Mapping, pc uint64, buf []byte) bool {
	if m.Image != nil || w.Arch() != procstate.AMD64 || !m.Contains(pc) {
		return false
	}
	code := mcode.Read(w, m, pc, buf)
	return isPoll(code) || IsDeoptHandler(code, pc)
}

// isPoll reports whether code begins with test %eax, (register).
func isPoll(code []byte) bool {
	if len(code) > 0 && code[0]&0xf0 == 0x40 {
		code = code[1:]
	}
	return len(code) > 1 && code[0] == 0x85 && code[1] < 0xc0
}

// DeoptHandlerLen is how much is looked at of the start of a deoptimisation handler.
const DeoptHandlerLen = 12

// IsDeoptHandler reports whether code at pc is what a method goes on with when it
// was deoptimised while it called (emit_deopt_handler): it pushes its own address.
func IsDeoptHandler(code []byte, pc uint64) bool {
	var own [DeoptHandlerLen]byte // mov $pc,%r10; push %r10
	copy(own[:], "\x49\xba")
	binary.LittleEndian.PutUint64(own[2:], pc)
	copy(own[10:], "\x41\x52")
	return bytes.HasPrefix(code, own[:]) ||
		bytes.HasPrefix(code, []byte("\xe8\x00\x00\x00\x00\x48\x83\x2c\x24\x05")) || // call 1f; 1: subq $5,(%rsp)
		bytes.HasPrefix(code, []byte("\x4c\x8d\x15\xf9\xff\xff\xff\x41\x52")) // lea 0(%rip)-7,%r10; push %r10
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

var (
	Frame9 = Frame{Locals: 56, Bytecode: 64, InitialSP: 72} // JDK 9 and later
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
	if w.Arch() != procstate.AMD64 || fp < sp || fp-sp < Frame8.InitialSP {
		return 0, nil, false
	}
	above := fp + 16
	sender, ok = w.ProcessState().ReadWord(fp - SenderWord)
	sender = InFrame(fp, sender)
	if !ok || sender < above || sender-above > MaxLocals || sender%8 != 0 {
		return 0, nil, false
	}
	for _, words = range [...]*Frame{&Frame9, &Frame8} {
		if words.fits(w.ProcessState(), sp, fp) {
			return sender, words, true
		}
	}
	return 0, nil, false
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
