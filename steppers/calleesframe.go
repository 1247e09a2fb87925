package steppers

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Compiled Lisp, that of SBCL and CMUCL, sets up the frame of the function that it
// calls: it leaves room for the return address, stores the frame pointer below it, and
//
//	mov  %rsp,%rbp    or another register, where arguments are on the stack
//	call f
//
// f begins with pop 8(%rbp), which puts the return address into its place, and
// returns with the frame pointer of its caller.

// popsReturn is the first instruction of such a function.
var popsReturn = []byte{0x8f, 0x45, 0x08}

// Bytes of mov to the frame pointer, and of that with mov $f,%eax behind it, where the
// call is call *%rax.
const movesToFP, givesTarget = 3, 3 + 5

// callsWithFrame reports whether code is on the way to a call, from an offset on, behind
// what may have set up the frame of the function that is called.
func callsWithFrame(a *procstate.Arch, code []byte, at int) bool {
	const movEAX = 0xb8
	if a != procstate.AMD64 || at > len(code) {
		return false
	}
	var in isa.Inst
	next := at
	if len(code) > at && code[at] == movEAX {
		next += givesTarget - movesToFP
	}
	if next > len(code) || !isa.DecodeAMD64(code[next:], 0, &in) || in.Flow != isa.Call && in.Flow != isa.IndirectCall {
		return false
	}
	return setsFP(code[:at]) || at >= givesTarget && code[at-givesTarget+movesToFP] == movEAX && setsFP(code[:at-givesTarget+movesToFP])
}

// setsFP reports whether code ends with a move to the frame pointer.
func setsFP(code []byte) bool {
	n := len(code) - movesToFP
	var in isa.Inst
	if n < 0 || !isa.DecodeAMD64(code[n:], 0, &in) || in.Len != movesToFP || in.NumOps != 1 {
		return false
	}
	op := &in.Ops[0]
	return op.Kind == isa.Set && op.Dst == procstate.AMD64.FP && op.Src != op.Dst && op.Imm == 0
}

// lentFrame finds where the frame pointer and the return address of an interrupted
// frame are saved whose code is in no file, if the frame pointer fp is that of a
// function that is being called. begun tells that it is at its first instruction.
func lentFrame(w *unwind.Walker, m *procstate.Mapping, in *unwind.Frame, fp uint64) (saved, ra uint64, begun, ok bool) {
	const longest = 16 // bytes of an instruction
	if w.Arch() != procstate.AMD64 || m.Image != nil || in.Flags&unwind.Interrupted == 0 {
		return 0, 0, false, false
	}
	var buf [givesTarget + longest]byte
	before := min(givesTarget, in.PC()-m.Start)
	code := mcode.Read(w, m, in.PC()-before, buf[:])
	switch {
	case uint64(len(code)) <= before:
	case bytes.HasPrefix(code[before:], popsReturn), jumpsToPop(w, code[before:], in.PC()):
		return fp, in.SP(), true, true
	case callsWithFrame(w.Arch(), code, int(before)):
		own, ok := w.ProcessState().ReadWord(fp)
		return own, own + 8, false, ok && own > fp
	}
	return 0, 0, false, false
}

// jumpsToPop reports whether code at pc is a jump to where a function pops its return
// address into its frame: by it goes a call of one that may be defined anew. It may be
// through a word beside it.
func jumpsToPop(w *unwind.Walker, code []byte, pc uint64) bool {
	var in isa.Inst
	if !isa.DecodeAMD64(code, pc, &in) || in.Flow != isa.Jump && in.Flow != isa.IndirectJump || in.Target == 0 {
		return false
	}
	var buf [8]byte
	to := in.Target
	if in.Flow == isa.IndirectJump {
		if m := w.MappingAt(to); m == nil || m.Image != nil || len(mcode.Read(w, m, to, buf[:])) < len(buf) {
			return false
		}
		to = binary.LittleEndian.Uint64(buf[:])
	}
	m := w.MappingAt(to)
	return m != nil && m.Image == nil && bytes.Equal(mcode.Read(w, m, to, buf[:len(popsReturn)]), popsReturn)
}
