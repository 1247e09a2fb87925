package pypy

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// A frame of compiled code is always as large (rpython/jit/backend/x86/arch.py): what the code works with is in an object
// of the garbage collector's. From its lower end, where SP is:
//
//	0x60  RBP, RBX, R12, R13, R14, R15 of the caller
//	0x98  a node of the list of what runs: the next one, the address of the frame, and that it is one of compiled code
//	0xb8  the return address
//
// Code is called by C and by other such code. What several pieces of code need, as to allocate memory, they call; such
// helpers have no frame of this kind, but one that ends where that of their caller begins.
const (
	frameSaved  = 0x60
	frameNode   = 0x98
	frameReturn = 0xb8
	frameBytes  = 0xc0
	frameAlign  = 16

	isCompiled = 3

	helperBytes = 0x200 // at most, of helpers that call each other
)

// savedRegs are those at frameSaved.
var savedRegs = [...]procstate.Reg{6, 3, 12, 13, 14, 15}

// How code begins that is called: sub $0xb8, %rsp, unless a jump to newer code was put there; mov %rbp, 0x60(%rsp);
// mov %rsi, 0xb0(%rsp); lea 0x98(%rsp), %rax; the node; mov %rdi, %rbp; the other registers.
const (
	beginsBy     = "\x48\x81\xec\xb8\x00\x00\x00\x48\x89\x6c\x24\x60\x48\x89\xb4\x24\xb0\x00\x00\x00"
	beginNode    = "\x48\x8d\x84\x24\x98\x00\x00\x00"
	beginNodeAt  = len(beginsBy)
	beginFrameAt = 7  // from there on the frame is there,
	beginSavedAt = 12 // and from there on RBP is in it
	beginBytes   = 0x55
)

// The end of such code: add $0xb8, %rsp; ret.
const (
	ends   = "\x48\x81\xc4\xb8\x00\x00\x00"
	endRet = "\xc3"
)

// place is where a frame of compiled code is.
type place struct {
	at       uint64 // SP in its code
	isHelper bool   // it has called a helper, which runs
	isOver   bool   // it is not there yet, or no more: SP is at the return address
	isBegun  bool   // registers but SP, and RBP from isSaved on, are still the caller's
	isSaved  bool
}

// place finds the frame of compiled code around SP of a frame that runs in a mapping.
func (vm *machine) place(w *unwind.Walker, m *procstate.Mapping, in *unwind.Frame) (p place, ok bool) {
	pc, sp := in.PC(), in.SP()
	b := vm.block(in.LookupPC())
	if in.NonCall() {
		var buf [2 * beginBytes]byte
		from := max(pc-min(pc, beginBytes), m.Start)
		code := mcode.Read(w, m, from, buf[:])
		at := int(pc - from)
		if i := bytes.Index(code, []byte(beginNode)); i >= beginNodeAt && i-beginNodeAt <= at && at < i-beginNodeAt+beginBytes {
			start := i - beginNodeAt
			isJump := !bytes.HasPrefix(code[start:], []byte(beginsBy))
			switch rel := at - start; {
			case rel == 0 || isJump && rel < beginSavedAt+1:
				return place{at: sp, isOver: true}, true
			case isJump || rel < beginFrameAt:
				return p, false
			default:
				return place{at: sp, isBegun: true, isSaved: rel >= beginSavedAt}, true
			}
		}
		if at >= len(ends) && len(code) > at && bytes.HasPrefix(code[at-len(ends):], []byte(ends+endRet)) {
			return place{at: sp, isOver: true}, true
		}
	}
	for at := (sp + frameAlign - 1) &^ (frameAlign - 1); at-sp <= helperBytes; at += frameAlign {
		if is, _ := vm.Word(at + frameNode + nodeNumber); is != at {
			continue
		}
		if kind, _ := vm.Word(at + frameNode + nodeKind); kind != isCompiled {
			continue
		}
		if b != nil || at == sp {
			return place{at: at}, true
		}
		// Where code is left by a jump there are other words: the frame is still that of the code.
		ra, ok := vm.Word(at - word)
		return place{at: at, isHelper: vm.isBehindCall(w, ra)}, ok
	}
	return p, false
}

// isBehindCall reports whether a word is a return address to compiled code.
func (vm *machine) isBehindCall(w *unwind.Walker, ra uint64) bool {
	m := w.MappingAt(ra - 1)
	if !isGenerated(m) || ra-m.Start < mcode.MaxCallLen {
		return false
	}
	var buf [mcode.MaxCallLen]byte
	code := mcode.Read(w, m, ra-mcode.MaxCallLen, buf[:])
	_, _, ok := mcode.CallBefore(w.Arch(), code, ra)
	return ok && len(code) == len(buf)
}

// isGenerated reports whether a mapping may have compiled code.
func isGenerated(m *procstate.Mapping) bool {
	return m != nil && m.Image == nil && !procstate.HasFile(m.Path)
}

// leave finds the caller of a frame of compiled code.
func (vm *machine) leave(p place, in, out *unwind.Frame) unwind.Verdict {
	a := procstate.AMD64
	at := p.at
	switch {
	case p.isHelper:
		ra, _ := vm.Word(at - word)
		out.SetPC(a, ra)
		out.SetSP(a, at)
		out.PCLocation = unwind.InMemory(at - word)
		out.Regs.ThreadPointer = in.Regs.ThreadPointer
		return unwind.Success
	case p.isOver:
		at -= frameReturn
	}
	var b [frameBytes]byte
	le := binary.LittleEndian
	if p.isOver {
		if !vm.Read(at+frameReturn, b[frameReturn:]) {
			return unwind.NotMe
		}
	} else if !vm.Read(at, b[:]) {
		return unwind.NotMe
	}
	out.SetPC(a, le.Uint64(b[frameReturn:]))
	out.SetSP(a, at+frameBytes)
	out.PCLocation = unwind.InMemory(at + frameReturn)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	for i, reg := range savedRegs {
		value, known := le.Uint64(b[frameSaved+i*word:]), true
		if p.isOver || p.isBegun && (reg != a.FP || !p.isSaved) {
			value, known = in.Regs.Value(reg)
		}
		switch {
		case !known:
		case reg == a.FP:
			out.SetFP(a, value)
			if out.FPLocation = in.FPLocation; !p.isOver && (!p.isBegun || p.isSaved) {
				out.FPLocation = unwind.InMemory(at + frameSaved)
			}
		default:
			out.Regs.Set(reg, value)
		}
	}
	return unwind.Success
}
