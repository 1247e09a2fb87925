package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Where a thread in the trampoline goes, at each of its instructions; nowhere
// when the original return address is in none of the places where it can be.
func TestReturnTrampoline(t *testing.T) {
	const tramp, slot, ra = 0x7fffffffe000, 0x7010, 0x401234
	const top = unwind.Interrupted | unwind.Top
	for _, c := range []struct {
		name           string
		arch           *procstate.Arch
		pc, sp, entry  uint64
		flags          unwind.FrameFlags
		want           unwind.Verdict
		wantSP, wantRA uint64
	}{
		{"return to it", procstate.AMD64, tramp, slot + 8, slot, 0, unwind.Mended, slot + 8, ra},
		{"return of another frame", procstate.AMD64, tramp, slot + 24, slot, 0, unwind.Failed, 0, 0},
		{"return behind its start", procstate.AMD64, tramp + 1, slot + 8, slot, 0, unwind.Failed, 0, 0},
		{"elsewhere", procstate.AMD64, 0x401000, slot + 8, slot, 0, unwind.NotMe, 0, 0},
		{"below it", procstate.AMD64, tramp - 1, slot + 8, slot, top, unwind.NotMe, 0, 0},
		{"at its start", procstate.AMD64, tramp, slot + 8, slot, top, unwind.Success, slot + 8, ra},
		{"breakpoint taken", procstate.AMD64, tramp + 1, slot + 8, slot, top, unwind.Success, slot + 8, ra},
		{"rax pushed", procstate.AMD64, tramp + 1, slot, slot, top, unwind.Success, slot + 8, ra},
		{"rcx pushed", procstate.AMD64, tramp + 2, slot - 8, slot, top, unwind.Success, slot + 8, ra},
		{"r11 pushed", procstate.AMD64, tramp + 4, slot - 16, slot, top, unwind.Success, slot + 8, ra},
		{"at the call", procstate.AMD64, tramp + 11, slot - 16, slot, top, unwind.Success, slot + 8, ra},
		{"in the call", procstate.AMD64, tramp + 13, slot - 16, slot, top, unwind.Success, slot + 8, ra},
		{"behind the call", procstate.AMD64, tramp + 13, slot - 16, 0, top, unwind.Success, slot + 8, 0x402},
		{"still in the call", procstate.AMD64, tramp + 13, slot - 16, 0, top, unwind.Failed, slot + 8, ra},
		{"r11 popped", procstate.AMD64, tramp + 15, slot - 8, 0, top, unwind.Success, slot + 8, 0x402},
		{"at its return", procstate.AMD64, tramp + 16, slot, 0, top, unwind.Success, slot + 8, 0x402},
		{"between instructions", procstate.AMD64, tramp + 3, slot - 8, slot, top, unwind.Failed, 0, 0},
		{"in the next slot", procstate.AMD64, tramp + 128, slot + 8, slot, top, unwind.NotMe, 0, 0},
		{"i386", procstate.I386, 0xffffd000, 0x700c, 0x7008, 0, unwind.Mended, 0x700c, ra},
		{"i386, at its start", procstate.I386, 0xffffd000, 0x700c, 0x7008, top, unwind.Success, 0x700c, ra},
		{"arm64", procstate.ARM64, tramp, slot, slot, 0, unwind.Mended, slot, ra},
		{"arm64, at its start", procstate.ARM64, tramp, slot, slot, top, unwind.Success, slot, ra},
	} {
		snap := steptest.MadeUp(c.arch, steptest.NoMapping, 0x400, 0x401, 0x402, 0x403)
		at := uint64(tramp)
		if c.arch == procstate.I386 {
			at = 0xffffd000
		}
		snap.SetUserProbes(procstate.UserProbes{Trampoline: at, Returns: []procstate.ReplacedReturn{
			{Stack: 0x5000, RA: 0xdead}, {Stack: c.entry, RA: ra}, {Stack: c.entry, RA: 0xdead}, {Stack: c.entry + 8, RA: 0xdead},
		}})
		w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
		in := unwind.NewFrame(c.arch, c.pc, c.sp, 0x7018)
		in.Flags = c.flags
		if c.name == "behind the call" {
			in.Regs.Set(rcx, c.pc)
		}
		var out unwind.Frame
		v, err := NewDynamic(nil).CallerFrame(w, &in, &out)
		if v != c.want || (v == unwind.Failed) != (err == unwind.ReturnReplaced) {
			t.Errorf("%s: %v, %v, want %v", c.name, v, err, c.want)
			continue
		}
		switch v {
		case unwind.NotMe, unwind.Failed:
			if in.PC() != c.pc {
				t.Errorf("%s: PC %#x", c.name, in.PC())
			}
		case unwind.Mended:
			if in.PC() != c.wantRA || in.SP() != c.wantSP || in.Flags != c.flags {
				t.Errorf("%s: %v, PC %#x, SP %#x", c.name, v, in.PC(), in.SP())
			}
		default:
			if out.PC() != c.wantRA || out.SP() != c.wantSP || out.FP() != 0x7018 || in.Flags&unwind.Instrumentation == 0 {
				t.Errorf("%s: %v, caller's PC %#x, SP %#x", c.name, v, out.PC(), out.SP())
			}
		}
	}
}

// A stepper that finds something to mend again and again ends the walk.
func TestEndlessMending(t *testing.T) {
	snap := steptest.MadeUp(procstate.AMD64, steptest.NoMapping)
	w := unwind.NewWalker(snap, unwind.NewGroup(NewDynamic(endless{})), nil)
	in := unwind.NewFrame(procstate.AMD64, 0x1000, 0x7000, 0)
	if v, err := w.Step(&in, new(unwind.Frame)); v != unwind.Failed || err != unwind.StepperFailed {
		t.Errorf("%v, %v", v, err)
	}
}

type endless struct{}

func (endless) IsInstrumentation(_ *unwind.Walker, f *unwind.Frame) (Instrumentation, bool) {
	return Instrumentation{OriginalPC: f.PC() + 1}, true
}

// The PC of a thread that the kernel has stopped at a breakpoint, by what the
// probed instruction has done yet.
func TestProbedPC(t *testing.T) {
	path := steptest.Compile(t, []string{"gcc", "-nostdlib", "-static"}, "probed.s", `
	.globl _start
_start:	push %rbp
	push %r12
	pop %rbx
	sub $8,%rsp
	int3
	ret
`)
	im := steptest.OpenImage(t, path)
	start := im.Entry()
	m := &procstate.Mapping{Start: start &^ 4095, End: start&^4095 + 4096, Image: im}
	for _, c := range []struct {
		name         string
		breakpoint   uint64
		pc           uint64
		rbp, r12, bx uint64
		want         uint64
	}{
		{"push pending", 0, 1, 0x99, 0, 0, 0},
		{"push done", 0, 1, 0x401, 0, 0, 1},
		{"push done, PC not moved", 0, 0, 0x401, 0, 0, 1},
		{"push not done", 0, 0, 0x99, 0, 0, 0},
		{"long push pending", 1, 2, 0, 0x99, 0, 1},
		{"long push done, PC not moved", 1, 1, 0, 0x401, 0, 3},
		{"pop pending", 3, 4, 0, 0, 0x99, 3},
		{"pop done", 3, 4, 0, 0, 0x400, 4},
		{"inside of an instruction", 4, 5, 0, 0, 0, 4},
		{"before an instruction", 4, 4, 0, 0, 0, 4},
		{"the program's own", 8, 9, 0, 0, 0, 9},
		{"in no file", 0x100000, 0x100001, 0, 0, 0, 0x100001},
	} {
		snap := steptest.MadeUp(procstate.AMD64, m, 0x400, 0x401)
		w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
		f := unwind.NewFrame(procstate.AMD64, start+c.pc, 0x7008, c.rbp)
		f.Regs.Set(12, c.r12)
		f.Regs.Set(3, c.bx)
		if got := probedPC(w, &f, &procstate.UserProbes{Breakpoint: start + c.breakpoint}) - start; got != c.want {
			t.Errorf("%s: PC %#x, want %#x", c.name, got, c.want)
		}
	}
}

// A thread that executes a probed instruction elsewhere is where it belongs.
func TestProbedInstructionElsewhere(t *testing.T) {
	const tramp, slot, probed = 0x7fffffffe000, 0x7fffffffe080, 0x401000
	for _, c := range []struct {
		pc, slot uint64
		want     uint64 // 0: the PC is the thread's own
	}{
		{slot, slot, probed}, {slot + 4, slot, probed + 4}, {slot + 15, slot, probed + 15}, {slot + 16, slot, 0},
		{slot - 1, slot, 0}, {slot, 0, 0}, {slot, slot + 128, 0}, {0x402000, slot, 0},
	} {
		snap := steptest.MadeUp(procstate.AMD64, steptest.NoMapping, 0x400)
		snap.SetUserProbes(procstate.UserProbes{Trampoline: tramp, Breakpoint: probed, Slot: c.slot})
		w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
		in := unwind.NewFrame(procstate.AMD64, c.pc, 0x7000, 0)
		in.Flags = unwind.Interrupted | unwind.Top
		v, err := NewDynamic(nil).CallerFrame(w, &in, new(unwind.Frame))
		if c.want == 0 && (v != unwind.NotMe || in.PC() != c.pc) || c.want != 0 && (v != unwind.Mended || in.PC() != c.want) {
			t.Errorf("%+v: %v, %v, PC %#x", c, v, err, in.PC())
		}
	}
}

func TestInstFrame(t *testing.T) {
	for _, c := range []struct {
		name  string
		words []uint64
		fp    uint64
		want  unwind.Verdict
	}{
		{"a frame", []uint64{1, 0x7100, 0x401000, instFrameMark, 0x7080}, 0x7008, unwind.Success},
		{"no mark", []uint64{1, 0x7100, 0x401000, instFrameMark + 1, 0x7080}, 0x7008, unwind.NotMe},
		{"cut", []uint64{1, 0x7100, 0x401000, instFrameMark}, 0x7008, unwind.Failed},
		{"no frame pointer", []uint64{1, 0x7100, 0x401000, instFrameMark, 0x7080}, 0, unwind.NotMe},
		{"askew", []uint64{1, 0x7100, 0x401000, instFrameMark, 0x7080}, 0x700c, unwind.NotMe},
	} {
		w := unwind.NewWalker(steptest.MadeUp(procstate.AMD64, steptest.NoMapping, c.words...), unwind.NewGroup(NewInstFrame()), nil)
		in := unwind.NewFrame(procstate.AMD64, 0x500000, 0x7000, c.fp)
		var out unwind.Frame
		v, _ := NewInstFrame().CallerFrame(w, &in, &out)
		if v != c.want {
			t.Errorf("%s: %v, want %v", c.name, v, c.want)
		}
		if v == unwind.Success && (out.PC() != 0x401000 || out.SP() != 0x7080 || out.FP() != 0x7100) {
			t.Errorf("%s: %#x %#x %#x", c.name, out.PC(), out.SP(), out.FP())
		}
	}
}

func TestDyninstInstr(t *testing.T) {
	path := steptest.Compile(t, []string{"gcc", "-nostdlib", "-static"}, "rewritten.s", `
	.globl _start
_start:	ret
	.section .dyninstInst,"ax"
	.type dyninstBT_1000_16_20,@function
dyninstBT_1000_16_20:
	push %rbp
	mov %rsp,%rbp
	.fill 10,1,0x90
	leave
	nop
	.type dyninstBT_2000_16,@function
dyninstBT_2000_16:
	.fill 16,1,0x90
	.type dyninstBT_3000_16_20,@function
dyninstBT_3000_16_20:
	.fill 16,1,0x90
	.type dyninstBT_4000_16_20,@function
dyninstBT_4000_16_20:
	push %rbp
	mov %rsp,%rbp
	.fill 12,1,0x90
`)
	im := steptest.OpenImage(t, path)
	tramps := findBaseTramps(im)
	if len(tramps) != 1 || tramps[0].end != tramps[0].start+11 || tramps[0].height != 0x20 {
		t.Fatalf("tramps %+v", tramps)
	}
	const bias = 0x10000
	start := tramps[0].start + bias
	m := &procstate.Mapping{Start: start &^ 4095, End: start&^4095 + 4096, Bias: bias, Image: im}
	for _, c := range []struct {
		name string
		pc   uint64
		want unwind.Verdict
	}{
		{"before its frame, not called", start - 1, unwind.Failed},
		{"with its frame", start, unwind.Success},
		{"at the end of it", start + 10, unwind.Success},
		{"behind it", start + 11, unwind.NotMe},
		{"one without a height", start + 12, unwind.NotMe},
		{"one without a frame", start + 28, unwind.NotMe},
		{"one that has no end", start + 48, unwind.NotMe},
		{"no file", 0x100, unwind.NotMe},
	} {
		w := unwind.NewWalker(steptest.MadeUp(procstate.AMD64, m, 1, 0x7100, 0x401000), unwind.NewGroup(), nil)
		in := unwind.NewFrame(procstate.AMD64, c.pc, 0x7000, 0x7008)
		in.Flags = unwind.Interrupted
		var out unwind.Frame
		v, err := NewDyninstInstr().CallerFrame(w, &in, &out)
		if v != c.want || (err != nil) != (v == unwind.Failed) || err != nil && err != unwind.NoUnwindInfo {
			t.Errorf("%s: %v, %v, want %v", c.name, v, err, c.want)
		}
		if v == unwind.Success && (out.PC() != 0x401000+bias || out.SP() != 0x7018+0x20 || out.FP() != 0x7100 || !out.NonCall()) {
			t.Errorf("%s: %#x %#x %#x", c.name, out.PC(), out.SP(), out.FP())
		}
	}
	for _, name := range []string{"", "dyninstBT_", "dyninstBT_1_2", "dyninstBT_1_x_3", "dyninstBT_1_99999999999_3", "dyninstBT_1_2_3_4", "x_1_2_3"} {
		if _, _, ok := parseBaseTramp([]byte(name)); ok {
			t.Errorf("%q is read as a tramp", name)
		}
	}
}
