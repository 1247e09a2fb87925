package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// goFrame is one step through a Go frame.
type goFrame struct {
	s    *Go
	w    *unwind.Walker
	arch *procstate.Arch
	mem  procstate.ProcessState
	rt   *procstate.GoRuntime // nil when not known
	m    *procstate.Mapping   // of in's code
	rule *goRule

	in, out *unwind.Frame
}

// plain walks through a frame whose SP and FP are given: those of the frame
// itself, or those that it has on the stack that it switched from.
func (f *goFrame) plain(sp, fp uint64) (unwind.Verdict, error) {
	if f.arch.LR != procstate.NoReg {
		return f.plainLR(sp, fp)
	}
	width := uint64(f.arch.AddressWidth)
	cfa := sp + uint64(int64(f.rule.delta)) + width
	pc, ok := f.mem.ReadWord(cfa - width)
	if !ok {
		return unwind.Failed, unwind.ReadFailure(f.mem, cfa-width)
	}
	f.finish(pc, cfa)
	f.out.PCLocation = unwind.InMemory(cfa - width)
	if f.arch != procstate.I386 { // where Go keeps none
		f.framePointer(fp, cfa-2*width)
	}
	return unwind.Success, nil
}

// framePointer recovers BP. A function with a frame saves it in the word
// below its return address, then points it there; before and after, and in
// assembly, it is the caller's.
func (f *goFrame) framePointer(fp, slot uint64) {
	_, known := f.in.Regs.Value(f.arch.FP)
	switch {
	case f.rule.delta < 8:
		if known {
			f.keepFP(fp)
		}
	case known && fp == slot:
		f.loadFP(slot)
	case f.in.Flags&unwind.Interrupted != 0 && known:
		// In the prologue the register still holds what was just saved.
		if f.rule.kind == goPlain || f.rule.delta == 8 {
			f.keepFP(fp)
		}
	case f.rule.kind != goAsm:
		f.loadFP(slot)
	}
}

// plainLR is plain for machines with a link register: a function without a
// frame has its return address there, all others at SP or, in assembly, above
// it, with the frame pointer one word below. Some in assembly have it there alone.
func (f *goFrame) plainLR(sp, fp uint64) (unwind.Verdict, error) {
	cfa := sp + uint64(int64(f.rule.delta))
	if f.rule.delta == 0 || f.rule.kind == goAsm && f.rule.depth < 0 {
		lr, ok := f.in.Regs.Value(f.arch.LR)
		if !ok {
			return unwind.Failed, unwind.NoRegister
		}
		f.finish(lr, cfa)
		f.out.PCLocation = unwind.InRegister(f.arch.LR)
		if f.rule.delta != 0 && fp == sp-8 {
			f.loadFP(fp)
		} else if _, ok := f.in.Regs.Value(f.arch.FP); ok {
			f.keepFP(fp)
		}
		return unwind.Success, nil
	}
	slot := sp
	if f.rule.kind == goAsm {
		slot += uint64(f.rule.depth)
	}
	pc, ok := f.mem.ReadWord(slot)
	if !ok {
		return unwind.Failed, unwind.ReadFailure(f.mem, slot)
	}
	f.finish(pc, cfa)
	f.out.PCLocation = unwind.InMemory(slot)
	if f.in.Flags&unwind.Interrupted != 0 && fp != slot-8 {
		f.keepFP(fp)
	} else {
		f.loadFP(slot - 8)
	}
	return unwind.Success, nil
}

// finish sets PC and SP of the caller, and what Go code never changes.
func (f *goFrame) finish(pc, sp uint64) {
	f.out.SetPC(f.arch, pc&f.arch.AddrMask)
	f.out.SetSP(f.arch, sp)
	f.out.Regs.ThreadPointer = f.in.Regs.ThreadPointer
	if f.rt != nil && f.rt.GReg != procstate.NoReg {
		if g, ok := f.in.Regs.Value(f.rt.GReg); ok {
			f.out.Regs.Set(f.rt.GReg, g)
		}
	}
}

func (f *goFrame) keepFP(fp uint64) {
	f.out.SetFP(f.arch, fp)
	f.out.FPLocation = f.in.FPLocation
}

func (f *goFrame) loadFP(slot uint64) {
	if fp, ok := f.mem.ReadWord(slot); ok {
		f.out.SetFP(f.arch, fp)
		f.out.FPLocation = unwind.InMemory(slot)
	}
}

// mstart walks from the first function of a thread to what made the thread,
// runtime.clone or C. It is the bottom as well when that is out of sight.
func (f *goFrame) mstart() (unwind.Verdict, error) {
	if v, err := f.plain(f.in.SP(), f.in.FP()); v == unwind.Success {
		return v, err
	}
	return unwind.StackBottom, nil
}

// rt0 walks from the first function of a program to the C code that called
// it, as in programs that are linked with a C library. It is the bottom where
// the kernel, or the dynamic loader, has jumped to the program's entry: then
// argv, which it keeps in the word below its return address, lies right
// above where SP was. The stack is aligned then, so that it was a word higher.
func (f *goFrame) rt0() (unwind.Verdict, error) {
	at := f.in.SP() + uint64(int64(f.rule.delta))
	ra, ok1 := f.mem.ReadWord(at)
	argv, ok2 := f.mem.ReadWord(at - 8)
	if f.in.Flags&unwind.Interrupted != 0 && argv != at+16 {
		argv, _ = f.in.Regs.Value(rbx) // not stored yet
	}
	m := f.w.MappingAt(ra - 1)
	if f.arch != procstate.AMD64 || !ok1 || !ok2 || argv == at+16 || m == nil || m == f.m && f.isGo(ra) {
		return unwind.StackBottom, nil
	}
	return f.plain(f.in.SP(), f.in.FP())
}

// newThread reports whether a thread in runtime.clone, behind the system
// call, is the new one: it gets 0 from it, and calls a function.
func (f *goFrame) newThread() bool {
	if f.in.Flags&unwind.Interrupted == 0 {
		return true
	}
	got := procstate.Reg(0) // RAX, X0
	nr, ok := f.in.Regs.Value(got)
	return ok && nr == 0
}

// savedSP walks through a function that runs C code of the vdso on the
// thread's own stack, and keeps its SP in a register that C preserves.
func (f *goFrame) savedSP() (unwind.Verdict, error) {
	sp, ok := f.in.Regs.Value(f.rule.reg)
	if !ok {
		return unwind.Failed, unwind.NoRegister
	}
	return f.switched(sp)
}

// storedSP is savedSP for a function that keeps its SP where it points now.
func (f *goFrame) storedSP() (unwind.Verdict, error) {
	at := f.in.SP() + uint64(f.rule.depth)
	sp, ok := f.mem.ReadWord(at)
	if !ok {
		return unwind.Failed, unwind.ReadFailure(f.mem, at)
	}
	return f.plain(sp, f.in.FP())
}

// switched walks through a frame that was left at sp on another stack.
func (f *goFrame) switched(sp uint64) (unwind.Verdict, error) {
	v, err := f.plain(sp, f.in.FP())
	if v == unwind.Success {
		f.out.Flags |= unwind.StackSwitched
	}
	return v, err
}

// poppedRA walks through a function that holds its return address in a
// register.
func (f *goFrame) poppedRA() (unwind.Verdict, error) {
	pc, ok := f.in.Regs.Value(f.rule.reg)
	if !ok {
		return unwind.Failed, unwind.NoRegister
	}
	f.finish(pc, f.in.SP()+uint64(int64(f.rule.delta)+int64(f.arch.AddressWidth)))
	f.out.PCLocation = unwind.InRegister(f.rule.reg)
	f.keepFP(f.in.FP())
	if f.out.SP() == f.in.SP() {
		f.out.Flags |= unwind.StackSwitched // popped already: SP is the caller's
	}
	return unwind.Success, nil
}

// injected walks from a function that a signal handler has made the
// interrupted code call, as if by a call at that very instruction: it was
// interrupted, not calling. With a link register the one it had is pushed
// first, in a frame of two words.
func (f *goFrame) injected() (unwind.Verdict, error) {
	v, err := f.plain(f.in.SP(), f.in.FP())
	if v != unwind.Success {
		return v, err
	}
	f.out.Flags |= unwind.Interrupted
	if f.arch.LR != procstate.NoReg {
		sp := f.out.SP()
		lr, ok := f.mem.ReadWord(sp)
		if !ok {
			return unwind.Failed, unwind.ReadFailure(f.mem, sp)
		}
		f.out.Regs.Set(f.arch.LR, lr)
		f.out.SetSP(f.arch, sp+16)
	}
	return v, nil
}

// crosscall2 walks from Go to the C function that called it: the registers
// that C expects to be preserved are in the frame.
func (f *goFrame) crosscall2() (unwind.Verdict, error) {
	if f.arch.LR != procstate.NoReg {
		return f.crosscall2LR()
	}
	v, err := f.plain(f.in.SP(), f.in.FP())
	if v != unwind.Success || f.rule.base == 0 {
		return v, err
	}
	if f.rule.delta+8 < f.rule.base || f.in.Flags&unwind.Interrupted != 0 && f.rule.depth != crosscall2HasSaved {
		for _, r := range [...]procstate.Reg{rbx, 12, 13, 14, 15} {
			if v, ok := f.in.Regs.Value(r); ok {
				f.out.Regs.Set(r, v)
			}
		}
		if _, ok := f.in.Regs.Value(rbp); ok && f.rule.depth == crosscall2SavesAll && f.rule.base == 0x30+8 {
			f.keepFP(f.in.FP())
		}
		return v, err
	}
	base := f.out.SP() - uint64(f.rule.base)
	for i, r := range [...]procstate.Reg{rbx, 12, 13, 14, 15, rbp} {
		slot := base + 8*uint64(i)
		v, ok := f.mem.ReadWord(slot)
		switch {
		case !ok:
		case r != rbp:
			f.out.Regs.Set(r, v)
		case f.rule.base == 0x30+8: // else it was pushed before, as in any frame
			f.loadFP(slot)
		}
	}
	return v, nil
}

// crosscall2LR is crosscall2 for machines with a link register, which is saved
// with the others that C expects to be preserved.
func (f *goFrame) crosscall2LR() (unwind.Verdict, error) {
	const firstSaved, lastSaved = 19, 28
	sp := f.in.SP()
	cfa := sp + uint64(int64(f.rule.delta))
	if f.rule.delta == 0 || f.rule.depth == 0 {
		lr, ok := f.in.Regs.Value(f.arch.LR)
		if !ok {
			return unwind.Failed, unwind.NoRegister
		}
		f.out.Regs.Inherit(&f.in.Regs, f.arch.CalleeSaved)
		f.finish(lr, cfa)
		f.out.PCLocation, f.out.FPLocation = unwind.InRegister(f.arch.LR), f.in.FPLocation
		return unwind.Success, nil
	}
	pair := sp + uint64(f.rule.depth)
	lr, ok := f.mem.ReadWord(pair + 8)
	if !ok {
		return unwind.Failed, unwind.ReadFailure(f.mem, pair+8)
	}
	f.finish(lr, cfa)
	f.out.PCLocation = unwind.InMemory(pair + 8)
	f.loadFP(pair)
	for r := procstate.Reg(firstSaved); r <= lastSaved; r++ {
		f.out.Regs.Forget(r)
		if v, ok := f.mem.ReadWord(sp + uint64(f.rule.base) + 8*uint64(r-firstSaved)); ok {
			f.out.Regs.Set(r, v)
		}
	}
	return unwind.Success, nil
}
