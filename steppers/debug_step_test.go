//go:build linux && amd64

package steppers

import (
	"syscall"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// shadowEntry is what a call pushed: the return address, and the SP after the
// return.
type shadowEntry struct {
	ra, cfa uint64
	signal  bool // not a call: the kernel keeps them elsewhere
}

// TestDebugEveryInstruction executes a program one instruction at a time and
// keeps a shadow stack of its calls and signals, which is the truth that the
// walk is compared with at every instruction: formatting, the dynamic linker's
// lazy binding, the vdso, callbacks from libc, a signal handler, an exception.
func TestDebugEveryInstruction(t *testing.T) {
	const limit = 1_000_000
	path := debugBuild(t, "g++", "-O2", "-fomit-frame-pointer", "-Wl,-z,lazy")
	p := startDebugTarget(t, path, "step")
	snap := procstate.NewSnapshot(p.Arch(), p.pid, "", p.space)
	stack := make([]byte, 128<<10)
	capture := func() {
		var regs procstate.Regs
		p.Registers(0, &regs)
		n, _ := p.ReadMemory(p.regs.Rsp, stack)
		snap.Reset(procstate.ThreadID(p.tid), &regs, []procstate.Region{{Addr: p.regs.Rsp, Data: stack[:n]}})
	}
	w := unwind.NewWalker(snap, unwind.NewGroup(NewDebug(unwind.NewTables())), nil)
	capture()
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Fatal(err)
	}
	var shadow []shadowEntry // bottom first
	for i := len(frames) - 1; i > 0; i-- {
		shadow = append(shadow, shadowEntry{ra: frames[i].PC(), cfa: frames[i].SP()})
	}
	bad, calls, signals, walked, rewritten := 0, 0, 0, 0, 0
	var insn [16]byte
	sig := syscall.Signal(0)
	for steps := 0; steps < limit; steps++ {
		n, _ := p.ReadMemory(p.regs.Rip, insn[:])
		inst, err := x86asm.Decode(insn[:n], 64)
		call := err == nil && inst.Op == x86asm.CALL
		before := p.regs
		if _, _, e := syscall.Syscall6(syscall.SYS_PTRACE, syscall.PTRACE_SINGLESTEP, uintptr(p.tid), 0, uintptr(sig), 0, 0); e != 0 {
			t.Fatal(e)
		}
		stopped := p.wait()
		left := len(shadow)
		for len(shadow) > 0 && p.regs.Rsp > shadow[len(shadow)-1].cfa-8 {
			shadow = shadow[:len(shadow)-1]
		}
		if insn[0] == 0xcc {
			break // the second breakpoint of the program
		}
		switch {
		case sig != 0 && p.regs.Rip != before.Rip:
			// The kernel has called the handler, which returns to the
			// trampoline, which returns to where the signal came.
			ra, _ := p.ReadWord(p.regs.Rsp)
			shadow = append(shadow, shadowEntry{before.Rip, before.Rsp, true}, shadowEntry{ra: ra, cfa: p.regs.Rsp + 8})
			signals++
		case call && stopped == syscall.SIGTRAP:
			ra, _ := p.ReadWord(p.regs.Rsp)
			shadow = append(shadow, shadowEntry{ra: ra, cfa: p.regs.Rsp + 8})
			calls++
		}
		sig = 0
		if stopped != syscall.SIGTRAP {
			sig = stopped
		}
		capture()
		if returnsRewritten(snap, shadow) || len(shadow) < left && inst.Op != x86asm.RET {
			rewritten++ // or SP is that of the handler already, PC not yet
			continue
		}
		frames, err = w.WalkStack(frames[:0], procstate.DefaultThread)
		if err != nil || !sameChain(frames, shadow) {
			if bad++; bad <= 20 {
				describeChain(t, p, frames, shadow, err)
			}
		}
		walked++
	}
	if bad > 0 {
		t.Errorf("%d of %d walks are wrong", bad, walked)
	}
	if walked < 20000 || walked == limit || calls < 100 || signals != 1 || rewritten > 200 {
		t.Errorf("not what the program does: %d walks, %d calls, %d signals, %d rewritten", walked, calls, signals, rewritten)
	}
	t.Logf("%d walks, %d calls, %d signals, %d rewritten", walked, calls, signals, rewritten)
}

// returnsRewritten reports whether a return address on the stack is no longer
// the one that its call pushed. Just before it jumps to a handler, libgcc's
// _Unwind_RaiseException overwrites what its frame saved: for some fifty
// instructions no table can tell the caller.
func returnsRewritten(mem procstate.Memory, shadow []shadowEntry) bool {
	for _, s := range shadow {
		if v, ok := mem.ReadWord(s.cfa - 8); ok && v != s.ra && !s.signal {
			return true
		}
	}
	return false
}

func sameChain(frames []unwind.Frame, shadow []shadowEntry) bool {
	if len(frames) != len(shadow)+1 {
		return false
	}
	for i, s := range shadow {
		f := &frames[len(frames)-1-i]
		if f.PC() != s.ra || f.SP() != s.cfa {
			return false
		}
	}
	return true
}

func describeChain(t *testing.T, p *debugTarget, frames []unwind.Frame, shadow []shadowEntry, err error) {
	t.Helper()
	var b [16]byte
	p.ReadMemory(p.regs.Rip, b[:])
	inst, _ := x86asm.Decode(b[:], 64)
	path, vaddr := "", uint64(0)
	if m := p.space.MappingAt(p.regs.Rip); m != nil {
		path, vaddr = m.Path, p.regs.Rip-m.Bias
	}
	t.Errorf("at %s %#x (%s): %d frames, expected %d: %v", path, vaddr, x86asm.GNUSyntax(inst, p.regs.Rip, nil), len(frames), len(shadow)+1, err)
	for i := 1; i < min(len(frames), len(shadow)+1); i++ {
		f, s := &frames[i], shadow[len(shadow)-i]
		if f.PC() != s.ra || f.SP() != s.cfa {
			t.Errorf("\tframe %d is at %#x, SP %#x; expected %#x, SP %#x", i, f.PC(), f.SP(), s.ra, s.cfa)
			return
		}
	}
}
