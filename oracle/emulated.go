package oracle

import (
	"debug/elf"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/emulated"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// isARM64 reports whether a file is an AArch64 program.
func isARM64(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return f.Machine == elf.EM_AARCH64
}

// runEmulated is Run for an AArch64 program, under qemu-user, from its entry
// point on.
func runEmulated(opt *Options) (*Report, error) {
	if opt.Windows > 0 || opt.Thread || opt.Child {
		return nil, fmt.Errorf("windows, threads and children of AArch64 programs: %w", procstate.ErrNotSupported)
	}
	began := time.Now()
	e, err := emulated.Start(opt.Args, opt.Env, opt.Dir, opt.Output)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", opt.Args[0], err)
	}
	defer e.Kill()
	r := newRunner(opt, procstate.ARM64, e.PID, e.PID)
	r.emulated = e
	defer r.images.Close()
	if err := r.remap(); err != nil {
		return nil, err
	}
	for _, m := range r.target.space.Mappings() {
		if m.Path == opt.Args[0] && m.Image != nil {
			if err := e.RunTo(m.Bias + m.Image.Entry()); err != nil {
				return nil, err
			}
			break
		}
	}
	err = r.remap()
	if err == nil && opt.Marked {
		err = r.toMark(e)
	}
	if err == nil {
		err = r.stepsEmulated(e, opt.Steps)
	}
	if err != nil && err != emulated.ErrEnded {
		return nil, err
	}
	return r.finish(began), nil
}

// toMark lets a program run until it asks who its parent is, in the C library or in code of
// Go's, and seeds the shadow stack there. Other threads go on running meanwhile, and must get no
// signals, which qemu would tell of as well.
func (r *runner) toMark(e *emulated.Program) error {
	const getppid = 173
	at := r.asksForParent()
	if at == nil {
		var err error
		if at, err = r.goSyscalls(); err != nil {
			return err
		}
	}
	if err := e.RunToCall(getppid, at); err != nil {
		return err
	}
	if r.opt.Unmonitored {
		if err := e.FreezeSleeper(); err != nil {
			return err
		}
	}
	if err := r.remap(); err != nil {
		return err
	}
	if err := e.Registers(&r.target.regs); err != nil {
		return err
	}
	r.captureAt(r.target.regs.Raw(procstate.ARM64.SP), r.target.regs.Raw(procstate.ARM64.PC))
	r.report.Windows++
	if !r.seed() {
		r.report.BadSeeds++
	}
	return nil
}

// asksForParent returns where the C library makes the system call getppid, nil where there is none.
func (r *runner) asksForParent() (at []uint64) {
	const longest = 64 // bytes of the function
	var in isa.Inst
	var code [4]byte
	for _, m := range r.target.space.Mappings() {
		if m.Image == nil || at != nil {
			continue
		}
		sym, ok := m.Image.ExportedSymbol("getppid")
		for a := sym.Value + m.Bias; ok && a < sym.Value+m.Bias+longest; a += 4 {
			if r.target.read(a, code[:]) == 4 && isa.DecodeARM64(code[:], a, &in) && in.Flow == isa.Syscall {
				at = append(at, a)
			}
		}
	}
	return at
}

// goSyscalls returns where a Go program that is not stripped makes system calls
// for its own code, not for the runtime.
func (r *runner) goSyscalls() (at []uint64, err error) {
	f, err := elf.Open(r.opt.Args[0])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.opt.Args[0], err)
	}
	bias := uint64(0)
	for _, m := range r.target.space.Mappings() {
		if m.Path == r.opt.Args[0] {
			bias = m.Bias
		}
	}
	var in isa.Inst
	var code [4]byte
	for _, s := range symbols {
		if !strings.HasPrefix(s.Name, "syscall.") || elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		for a := s.Value + bias; a < s.Value+bias+s.Size; a += 4 {
			if r.target.read(a, code[:]) == 4 && isa.DecodeARM64(code[:], a, &in) && in.Flow == isa.Syscall {
				at = append(at, a)
			}
		}
	}
	if len(at) == 0 {
		return nil, fmt.Errorf("%s, no Go program, from the middle on: %w", r.opt.Args[0], procstate.ErrNotSupported)
	}
	return at, nil
}

// stepsEmulated executes up to n instructions (0: all) and judges at each.
func (r *runner) stepsEmulated(e *emulated.Program, n int) error {
	const x8 = 8 // the number of a system call
	arch := procstate.ARM64
	var in isa.Inst
	sig := unix.Signal(0)
	for i := 0; n == 0 || i < n; i++ {
		if err := e.Registers(&r.target.regs); err != nil {
			return err
		}
		if r.target.space.MappingAt(r.target.regs.Raw(arch.PC)) == nil {
			e.MakesCode = true
			if err := r.remap(); err != nil {
				return err
			}
		}
		code := r.captureAt(r.target.regs.Raw(arch.SP), r.target.regs.Raw(arch.PC))
		from, before := r.moment(), r.target.regs
		known := isa.DecodeARM64(code, from.pc, &in)
		r.judgeAll(!r.shadow.intactARM64(&r.target.regs, r.target.ReadWord))
		delivered := sig
		var err error
		if sig, err = e.Step(sig); err != nil {
			return err
		}
		if err := e.Registers(&r.target.regs); err != nil {
			return err
		}
		r.captureAt(r.target.regs.Raw(arch.SP), r.target.regs.Raw(arch.PC))
		to := r.moment()
		nr := before.Raw(x8)
		switch {
		case delivered != 0 && r.signalledARM64(from, to):
		case !known:
			r.shadow.lost = true
		case in.Flow == isa.Syscall && nr == arm64Sigreturn:
			pc, _ := r.target.ReadWord(from.sp + sigframePCARM64)
			sp, _ := r.target.ReadWord(from.sp + sigframeSPARM64)
			r.shadow.sigreturn(moment{pc, sp}, r.target.ReadWord)
			r.afterSyscall(moment{pc, sp}, to, &before)
		case in.Flow == isa.Syscall:
			r.afterSyscall(moment{from.pc + 4, from.sp}, to, &before)
		case sig != unix.SIGTRAP && to == from:
			// stopped before the instruction was executed
		default:
			r.shadow.stepARM64(&in, from, to, &before, r.target.ReadWord)
		}
		if in.Flow == isa.Syscall && changesMappingsARM64(nr) {
			if err := r.remap(); err != nil {
				return err
			}
		}
		if sig == unix.SIGTRAP {
			sig = 0
		}
	}
	return nil
}

// afterSyscall follows the instruction behind a system call, which qemu executes
// in the same step unless a signal is there. before are the registers before
// it, but for those that the kernel has changed.
func (r *runner) afterSyscall(from, to moment, before *procstate.Regs) {
	var in isa.Inst
	var code [4]byte
	if to.pc == from.pc {
		return
	}
	if r.target.read(from.pc, code[:]) < 4 || !isa.DecodeARM64(code[:], from.pc, &in) {
		r.shadow.lost = true
		return
	}
	r.shadow.stepARM64(&in, from, to, before, r.target.ReadWord)
}

// System calls of AArch64, from the kernel's asm-generic/unistd.h.
const arm64Sigreturn = 139

func changesMappingsARM64(nr uint64) bool {
	switch nr {
	case 214, 215, 216, 221, 222, 226: // brk, munmap, mremap, execve, mmap, mprotect
		return true
	}
	return false
}

// Offsets in the kernel's struct rt_sigframe of AArch64: struct siginfo, then
// struct ucontext with the registers at 176 in it, behind a fault address.
const (
	sigframeSPARM64 = 128 + 176 + 8 + 31*8
	sigframePCARM64 = sigframeSPARM64 + 8
)

// signalledARM64 is signalled for AArch64. The first instruction of the handler
// has been executed already: the frame that the kernel built is a little above
// SP.
func (r *runner) signalledARM64(from, to moment) bool {
	for at := to.sp; at < to.sp+1024; at += 16 {
		sp, ok1 := r.target.ReadWord(at + sigframeSPARM64)
		pc, ok2 := r.target.ReadWord(at + sigframePCARM64)
		if ok1 && ok2 && sp == from.sp && pc == from.pc {
			r.shadow.signal(from, moment{to.pc, at}, r.target.regs.Raw(procstate.ARM64.LR), 0)
			return true
		}
	}
	return false
}
