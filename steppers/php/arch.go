package php

import (
	"bytes"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// arch is what PHP's Zend/zend_execute.c has of its own on an architecture.
type arch struct {
	*procstate.Arch
	frame, op procstate.Reg // of the frame, and of the instruction that runs
	// find finds out where execute_ex has its frame in the register, by its code at a link-time address.
	find func(code []byte, start uint64) (entry, bool)
}

// entry is how execute_ex takes the register, and gives it back.
type entry struct {
	entered uint64        // where in it the register has the frame that it is called for
	leaves  []mcode.Range // and where it has its caller's again
	kept    kept          // where that is until then
}

// kept is where execute_ex keeps its caller's register: in another, or on the stack behind another.
// NoReg is where CFI tells enough, as functions that are called by it save the register.
type kept struct {
	reg     procstate.Reg
	off     uint64
	inStack bool
}

// architectures are those on which the interpreter is known.
var architectures = []*arch{
	{procstate.AMD64, 14, 15, findAMD64},
	{procstate.ARM64, 27, 28, findARM64},
}

// archOf returns what is known of an architecture, nil where the interpreter is not known on it.
func archOf(a *procstate.Arch) *arch {
	for _, is := range architectures {
		if is.Arch == a {
			return is
		}
	}
	return nil
}

const (
	entryBytes = 128 // the most that the beginning of execute_ex has,
	epilogue   = 32  // and instructions from where it gives the register back to its end
)

// findAMD64 is arch.find: the beginning keeps what its caller has there on the stack, and takes its
// argument. ok is false where it does not, as with other compilers.
func findAMD64(code []byte, start uint64) (e entry, ok bool) {
	e.kept.reg = procstate.NoReg
	var in isa.Inst
	var restore []byte // the instruction that gives it back
	for n := 0; n < min(entryBytes, len(code)) && e.entered == 0; n += int(in.Len) {
		if !mcode.Decode(procstate.AMD64, code[n:], start+uint64(n), &in) || in.Ends() {
			return e, false
		}
		const rexWR, store, load = 0x4c, 0x89, 0x8b
		switch inst := code[n : n+int(in.Len)]; {
		case len(inst) > 3 && inst[0] == rexWR && inst[1] == store && inst[2]>>3&7 == 6 && inst[2]>>6 != 3: // mov %r14, its place
			restore = append([]byte{rexWR, load}, inst[2:]...)
		case restore != nil && bytes.Equal(inst, []byte{0x49, 0x89, 0xfe}): // mov %rdi, %r14
			e.entered = start + uint64(n) + uint64(in.Len)
		}
	}
	if e.entered == 0 {
		return e, false
	}
	for from := 0; ; {
		i := bytes.Index(code[from:], restore)
		if i < 0 {
			return e, len(e.leaves) > 0
		}
		from += i
		e.leave(procstate.AMD64, code, start, from)
		from += len(restore)
	}
}

// findARM64 is arch.find: the beginning keeps what its caller has there in another register or behind
// the frame pointer, and takes its argument.
func findARM64(code []byte, start uint64) (e entry, ok bool) {
	const frame, fp, sp, argument, size = 27, 29, 31, 0, 4
	e.kept.reg = procstate.NoReg
	var in isa.Inst
	var keeps isa.Op   // keeps the register
	behind := int64(0) // SP, the frame pointer
	for n := 0; n < min(entryBytes, len(code)) && e.entered == 0; n += size {
		if !mcode.Decode(procstate.ARM64, code[n:], start+uint64(n), &in) || in.Ends() {
			return e, false
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Set && op.Dst == fp && op.Src == sp:
				behind = op.Imm
			case op.Kind == isa.Store && op.Src == frame && (op.Dst == sp || op.Dst == fp):
				e.kept, keeps = kept{fp, uint64(op.Imm), true}, op
				if op.Dst == sp {
					e.kept.off -= uint64(behind)
				}
			case op.Kind == isa.Set && op.Src == frame && op.Imm == 0:
				e.kept, keeps = kept{reg: op.Dst}, op
			case op.Kind == isa.Set && op.Dst == frame && op.Src == argument && op.Imm == 0 && e.kept.reg != procstate.NoReg:
				e.entered = start + uint64(n) + size
			}
		}
	}
	if e.entered == 0 {
		return e, false
	}
	back := isa.Op{Kind: isa.Set, Dst: frame, Src: keeps.Dst}
	if e.kept.inStack {
		back.Kind, back.Imm = isa.Load, keeps.Imm
	}
	for n := 0; n+size <= len(code); n += size {
		if mcode.Decode(procstate.ARM64, code[n:], start+uint64(n), &in) && slices.Contains(in.Ops[:in.NumOps], back) {
			e.leave(procstate.ARM64, code, start, n)
		}
	}
	return e, len(e.leaves) > 0
}

// leave notes that execute_ex gives the register back with an instruction of its code.
func (e *entry) leave(a *procstate.Arch, code []byte, start uint64, from int) {
	var in isa.Inst
	at := from
	for range epilogue {
		if !mcode.Decode(a, code[at:], start+uint64(at), &in) || in.Len == 0 {
			break
		}
		at += int(in.Len)
		if in.Ends() {
			break
		}
	}
	e.leaves = append(e.leaves, mcode.Range{Start: start + uint64(from), End: start + uint64(at)})
}
