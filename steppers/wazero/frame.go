package wazero

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// What is looked at of the code around an instruction, in bytes.
const (
	lookBefore = 4
	lookBehind = 8
)

// frame is one step through a frame of compiled code.
type frame struct {
	w       *unwind.Walker
	vm      *machine
	e       *entry
	in, out *unwind.Frame
}

// place is how much of its frame code has where it was interrupted.
type place int

const (
	inBody  place = iota
	atEntry       // the return address is at SP, and RBP is the caller's: it has no frame yet, or none any more
	pushed        // RBP was pushed, and is still the caller's
)

// placeOf tells by the code around an instruction where it is. Functions begin with push %rbp and mov %rsp,%rbp, and
// have neither elsewhere; they end with mov %rbp,%rsp, pop %rbp and a return or a jump to another function.
func placeOf(before, code []byte) place {
	const push, ret = 0x55, 0xc3
	isMove := func(b []byte) bool { // mov %rsp,%rbp, in both ways to encode it
		return len(b) >= 3 && b[0] == 0x48 && (b[1] == 0x89 && b[2] == 0xe5 || b[1] == 0x8b && b[2] == 0xec)
	}
	n := len(before)
	switch {
	case len(code) > 0 && code[0] == ret:
		return atEntry
	case len(code) > 0 && code[0] == push && isMove(code[1:]):
		return atEntry
	case n >= 1 && before[n-1] == push && isMove(code):
		return pushed
	case n >= 4 && endsFrame(before[n-4:]):
		return atEntry
	}
	return inBody
}

// endsFrame reports whether code is mov %rbp,%rsp and pop %rbp.
func endsFrame(b []byte) bool {
	return b[0] == 0x48 && (b[1] == 0x89 && b[2] == 0xec || b[1] == 0x8b && b[2] == 0xe5) && b[3] == 0x5d
}

// leaves reports whether code is what leaves a function for Go, by mov 24(context),%rsp: RDX has the context where that is all
// that is left to leave.
func leaves(code []byte) bool {
	const rsp, rdx, sib = 4, 2, 4
	if len(code) < 5 || code[0]&^1 != 0x48 || code[1] != 0x8b || code[2]>>6 != 1 || code[2]>>3&7 != rsp {
		return false
	}
	base := code[2] & 7
	displacement := code[3]
	if base == sib {
		displacement = code[4]
	}
	return displacement == contextGoSP && (base != rdx || code[0]&1 != 0)
}

// caller walks from a frame of compiled code.
func (f *frame) caller(m *procstate.Mapping, buf []byte) (unwind.Verdict, error) {
	in, sp := f.in, f.in.SP()
	if sp == f.e.sp {
		// On the goroutine's stack: nothing has been changed yet, or nothing is left to change.
		return f.toGo()
	}
	is, isLeaving := inBody, false
	if in.Flags&unwind.Interrupted != 0 {
		before := min(lookBefore, in.PC()-m.Start)
		code := mcode.Read(f.w, m, in.PC()-before, buf)
		if uint64(len(code)) <= before {
			return unwind.Failed, unwind.MemoryUnreadable
		}
		is = placeOf(code[:before], code[before:])
		isLeaving = leaves(code[before:])
	}
	fp, ok := in.Regs.Value(f.w.Arch().FP)
	if !ok {
		return unwind.Failed, unwind.NoRegister
	}
	switch is {
	case atEntry:
		return f.to(sp, fp, in.FPLocation)
	case pushed:
		return f.toPushed(sp)
	}
	switch {
	case isLeaving && f.vm.goroutine.Holds(fp):
		return unwind.Failed, unwind.NoRegister // RBP is Go's, and SP is about to be: where its frame is is not known any more
	case fp == 0 || f.vm.goroutine.Holds(fp): // what Go has called first: RBP is 0, before and after that Go's
		return f.toGo()
	case fp < sp || fp%8 != 0:
		return unwind.Failed, unwind.BadPC
	}
	return f.toPushed(fp)
}

// toPushed is to where RBP was pushed last, at an address.
func (f *frame) toPushed(at uint64) (unwind.Verdict, error) {
	fp, ok := f.w.ProcessState().ReadWord(at)
	if !ok {
		return unwind.Failed, unwind.ReadFailure(f.w.ProcessState(), at)
	}
	return f.to(at+8, fp, unwind.InMemory(at))
}

// to walks to the caller whose address is on the stack of compiled code. RBP is that of its frame, or 0 in what was
// called from Go.
func (f *frame) to(at, fp uint64, where unwind.Location) (unwind.Verdict, error) {
	mem := f.w.ProcessState()
	pc, ok := mem.ReadWord(at)
	if !ok {
		return unwind.Failed, unwind.ReadFailure(mem, at)
	}
	m := f.w.MappingAt(pc - 1)
	if m == nil || m.Image != nil || fp != 0 && (fp <= at || f.vm.goroutine.Holds(fp)) {
		return unwind.Failed, unwind.BadPC
	}
	f.out.SetPC(f.w.Arch(), pc)
	f.out.SetSP(f.w.Arch(), at+8)
	f.out.PCLocation = unwind.InMemory(at)
	f.out.SetFP(f.w.Arch(), fp)
	f.out.FPLocation = where
	f.out.Regs.ThreadPointer = f.in.Regs.ThreadPointer
	return unwind.Success, nil
}

// toGo walks to the wrapper that has called the assembly which goes over to compiled code.
func (f *frame) toGo() (unwind.Verdict, error) {
	if f.e.sp == 0 {
		if f.e = f.vm.byTop(f.in.SP()); f.e == nil {
			return unwind.Failed, unwind.MemoryUnreadable
		}
	}
	arch, sp := f.w.Arch(), f.e.sp+8
	f.out.SetPC(arch, f.vm.bias+f.e.way.ret)
	f.out.SetSP(arch, sp)
	f.out.PCLocation = unwind.InMemory(f.e.sp)
	f.out.SetFP(arch, sp+f.e.way.bytes-8) // the wrapper has pushed it below its return address
	f.out.Regs.ThreadPointer = f.in.Regs.ThreadPointer
	if f.in.SP() != f.e.sp {
		f.out.Flags |= unwind.StackSwitched
	}
	return unwind.Success, nil
}

// resumed walks from the assembly that goes back to compiled code, when it has its stack, to that: RCX is where it goes on.
func (f *frame) resumed() (unwind.Verdict, error) {
	const rcx = procstate.Reg(2) // DWARF's number
	pc, ok := f.in.Regs.Value(rcx)
	if !ok {
		return unwind.Failed, unwind.NoRegister
	}
	m := f.w.MappingAt(pc)
	if m == nil || m.Image != nil {
		return unwind.Failed, unwind.BadPC
	}
	f.out.Regs.Inherit(&f.in.Regs, ^uint64(0))
	f.out.SetPC(f.w.Arch(), pc)
	f.out.SetSP(f.w.Arch(), f.in.SP())
	f.out.SetFP(f.w.Arch(), f.in.FP())
	f.out.PCLocation = unwind.InRegister(rcx)
	f.out.FPLocation = f.in.FPLocation
	f.out.Regs.ThreadPointer = f.in.Regs.ThreadPointer
	f.out.Flags |= unwind.Interrupted | unwind.StackSwitched
	return unwind.Success, nil
}
