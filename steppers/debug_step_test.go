//go:build linux && amd64

package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
	"golang.org/x/arch/x86/x86asm"
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
	t.Parallel()
	const limit = 1_000_000
	path := debugBuild(t, "g++", "-O2", "-fomit-frame-pointer", "-Wl,-z,lazy")
	p, tid := steptest.StartToTrap(t, path, "step")
	snap := procstate.NewSnapshot(p.Arch(), p.PID(), "", p.Libraries())
	stack := make([]byte, 128<<10)
	var pc, sp uint64
	capture := func() {
		var regs procstate.Regs
		if err := p.Registers(tid, &regs); err != nil {
			t.Fatal(err)
		}
		pc, sp = regs.Raw(p.Arch().PC), regs.Raw(p.Arch().SP)
		n, _ := p.ReadMemory(sp, stack)
		snap.Reset(tid, &regs, []procstate.Region{{Addr: sp, Data: stack[:n]}})
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
	for steps := 0; steps < limit; steps++ {
		n, _ := p.ReadMemory(pc, insn[:])
		inst, err := x86asm.Decode(insn[:n], 64)
		interrupted := shadowEntry{pc, sp, true}
		if err := p.Step(int(tid)); err != nil {
			t.Fatal(err)
		}
		if insn[0] == 0xcc {
			break // the second breakpoint of the program
		}
		capture()
		left := len(shadow)
		for len(shadow) > 0 && sp > shadow[len(shadow)-1].cfa-8 {
			shadow = shadow[:len(shadow)-1]
		}
		ra, _ := p.ReadWord(sp)
		switch {
		case p.Signals > signals:
			// In place of the instruction the kernel has called the handler, which returns to
			// the trampoline, which returns to where the signal came.
			shadow = append(shadow, interrupted, shadowEntry{ra: ra, cfa: sp + 8})
			signals = p.Signals
		case err == nil && inst.Op == x86asm.CALL:
			shadow = append(shadow, shadowEntry{ra: ra, cfa: sp + 8})
			calls++
		}
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

func describeChain(t *testing.T, p *steptest.Process, frames []unwind.Frame, shadow []shadowEntry, err error) {
	t.Helper()
	var b [16]byte
	pc := frames[0].PC()
	p.ReadMemory(pc, b[:])
	inst, _ := x86asm.Decode(b[:], 64)
	path, vaddr := "", uint64(0)
	if m := p.Libraries().MappingAt(pc); m != nil {
		path, vaddr = m.Path, pc-m.Bias
	}
	t.Errorf("at %s %#x (%s): %d frames, expected %d: %v", path, vaddr, x86asm.GNUSyntax(inst, pc, nil), len(frames), len(shadow)+1, err)
	for i := 1; i < min(len(frames), len(shadow)+1); i++ {
		f, s := &frames[i], shadow[len(shadow)-i]
		if f.PC() != s.ra || f.SP() != s.cfa {
			t.Errorf("\tframe %d is at %#x, SP %#x; expected %#x, SP %#x", i, f.PC(), f.SP(), s.ra, s.cfa)
			return
		}
	}
}
