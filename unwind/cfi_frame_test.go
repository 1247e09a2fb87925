package unwind

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// frameCase is one step through code with given CFI.
type frameCase struct {
	arch  *procstate.Arch
	cie   func(c *cfiBuilder) uint64 // nil: zR
	code  []byte                     // of the FDE
	flags FrameFlags
	regs  map[procstate.Reg]uint64
	// The stack is stackWords words at stackBase, each with its own index plus
	// 0x100, in a Snapshot.
	extra []procstate.Region
}

const (
	stackBase  = 0x10000
	stackWords = 64
)

// word is what the stack of a frameCase holds at an address.
func word(addr uint64) uint64 { return (addr-stackBase)/8 + 0x100 }

func (fc *frameCase) run(t *testing.T) (in, out Frame, v Verdict, err error) {
	t.Helper()
	arch := fc.arch
	if arch == nil {
		arch = procstate.AMD64
	}
	var c cfiBuilder
	cie := fc.cie
	if cie == nil {
		cie = (*cfiBuilder).zR
	}
	c.fde(cie(&c), codeBase, 0x10, fc.code...)
	tab := NewTable(c.image(t, arch, nil))
	stack := make([]byte, 8*stackWords)
	for i := range stackWords {
		binary.LittleEndian.PutUint64(stack[8*i:], uint64(i)+0x100)
	}
	var regs procstate.Regs
	for r, v := range fc.regs {
		regs.Set(r, v)
	}
	regs.Set(arch.PC, codeBase+8)
	regs.ThreadPointer = 77
	snap := procstate.NewSnapshot(arch, 1, "", &procstate.AddressSpace{})
	snap.Reset(1, &regs, append([]procstate.Region{{Addr: stackBase, Data: stack}}, fc.extra...))
	w := NewWalker(snap, NewGroup(), nil)
	in.Load(arch, &regs)
	in.Flags = fc.flags
	v, err = tab.Rule(codeBase+8).CallerFrame(w, &in, &out)
	return in, out, v, err
}

// expect compares all registers of a frame: those not named must be unknown.
func expect(t *testing.T, name string, f *Frame, want map[procstate.Reg]uint64) {
	t.Helper()
	for r := range procstate.Reg(procstate.MaxRegs) {
		got, known := f.Regs.Value(r)
		v, ok := want[r]
		if known != ok || got != v {
			t.Errorf("%s: register %d is %#x (known: %v), want %#x (%v)", name, r, got, known, v, ok)
		}
	}
	if f.Regs.ThreadPointer != 77 {
		t.Errorf("%s: thread pointer %d", name, f.Regs.ThreadPointer)
	}
}

type regs = map[procstate.Reg]uint64

const top = Top | Interrupted

func TestCallerFrame(t *testing.T) {
	const sp = stackBase + 0x40
	arm := func(c *cfiBuilder) uint64 {
		return c.cie("zR", []byte{pePcrel | peSdata4}, 30, cfaDefCFA, 31, 0)
	}
	signal := func(c *cfiBuilder) uint64 {
		return c.cie("zRS", []byte{pePcrel | peSdata4}, 16, cfaDefCFA, 7, 8, cfaOffset|16, 1)
	}
	for _, tc := range []struct {
		name string
		frameCase
		want    regs // nil when there is no caller
		verdict Verdict
		why     Reason
		in, out FrameFlags // that were added
	}{
		{
			name: "callee-saved unchanged, caller-saved lost",
			frameCase: frameCase{flags: top,
				regs: regs{0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: sp, 8: 8, 11: 9, 12: 10, 13: 11, 14: 12, 15: 13}},
			want: regs{3: 4, 6: 7, 7: sp + 8, 12: 10, 13: 11, 14: 12, 15: 13, 16: word(sp)},
		},
		{
			name: "saved on the stack",
			frameCase: frameCase{flags: 0, regs: regs{3: 4, 6: 7, 7: sp, 12: 10},
				code: []byte{cfaDefCFAOffset, 48, cfaOffset | 3, 3, cfaOffset | 6, 2, cfaOffset | 15, 6}},
			want: regs{3: word(sp + 24), 6: word(sp + 32), 7: sp + 48, 12: 10, 15: word(sp), 16: word(sp + 40)},
		},
		{
			name:      "saved at the end of the red zone",
			frameCase: frameCase{flags: top, regs: regs{3: 4, 6: 7, 7: sp + 0x80}, code: []byte{cfaOffset | 6, 17}},
			want:      regs{3: 4, 6: word(sp), 7: sp + 0x88, 16: word(sp + 0x80)},
		},
		{
			name:      "saved below the red zone: popped since",
			frameCase: frameCase{flags: top, regs: regs{3: 4, 6: 7, 7: sp + 0x80}, code: []byte{cfaOffset | 6, 18}},
			want:      regs{3: 4, 6: 7, 7: sp + 0x88, 16: word(sp + 0x80)},
		},
		{
			name: "whole row: saved where it points to, above the frame, and restored",
			frameCase: frameCase{flags: top, regs: regs{2: 9, 6: sp + 0x40, 7: sp},
				code: []byte{cfaRegister, 16, 2, cfaExpression, 6, 2, opBreg0 + 6, 0}},
			want: regs{6: sp + 0x40, 7: sp + 8, 16: 9},
		},
		{
			name: "whole row: saved there by a function that is in a call",
			frameCase: frameCase{regs: regs{2: 9, 6: sp + 0x40, 7: sp},
				code: []byte{cfaRegister, 16, 2, cfaExpression, 6, 2, opBreg0 + 6, 0}},
			want: regs{6: word(sp + 0x40), 7: sp + 8, 16: 9},
		},
		{
			name: "CFA on a caller-saved register of the top frame",
			frameCase: frameCase{flags: top, regs: regs{0: sp + 0x10, 7: sp},
				code: []byte{cfaDefCFA, 0, 16}},
			want: regs{7: sp + 0x20, 16: word(sp + 0x18)},
		},
		{
			name:      "CFA on an unknown register",
			frameCase: frameCase{regs: regs{7: sp}, code: []byte{cfaDefCFA, 0, 16}},
			verdict:   Failed, why: NoRegister,
		},
		{
			name: "CFA on an untracked register",
			frameCase: frameCase{regs: regs{7: sp},
				code: []byte{cfaDefCFA, 17, 16}},
			verdict: Failed, why: NoRegister,
		},
		{
			name: "CFA in memory, registers by the frame pointer",
			frameCase: frameCase{regs: regs{3: 4, 6: 0x8010, 7: sp, 12: 5},
				extra: []procstate.Region{{Addr: 0x8000, Data: binary.LittleEndian.AppendUint64(
					[]byte{0, 1, 1, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0}, 6)}},
				code: []byte{cfaDefCFAExpression, 5, opBreg0 + 6, 0x70, opDeref, opPlusUconst, 8,
					cfaExpression, 6, 2, opBreg0 + 6, 0, cfaExpression, 3, 2, opBreg0 + 6, 0x78}},
			want: regs{3: 0x303, 6: 6, 7: stackBase + 0x108, 12: 5, 16: word(stackBase + 0x100)},
		},
		{
			name: "register rules of all kinds",
			frameCase: frameCase{flags: top, regs: regs{0: 21, 1: 22, 3: 4, 6: sp + 0x20, 7: sp, 8: 23, 12: 10, 13: 11, 14: 12, 15: 13},
				code: []byte{
					cfaDefCFAOffset, 64,
					cfaRegister, 3, 8, // rbx in r8
					cfaUndefined, 12,
					cfaValOffset, 13, 2, // r13 is CFA-16
					cfaValExpression, 14, 3, opPlusUconst, 4, opNop, // r14 is CFA+4
					cfaExpression, 15, 3, opBreg0 + 6, 8, opNop, // r15 at rbp+8
					cfaSameValue, 0, // rax unchanged
					cfaOffset | 1, 4, // rdx at CFA-32
				}},
			want: regs{0: 21, 1: word(sp + 32), 3: 23, 6: sp + 0x20, 7: sp + 64, 13: sp + 48, 14: sp + 68,
				15: word(sp + 0x28), 16: word(sp + 56)},
		},
		{
			name: "SP by its own rule",
			frameCase: frameCase{regs: regs{7: sp},
				code: []byte{cfaOffset | 7, 0x7e}}, // far below
			verdict: Failed, why: MemoryUnreadable,
		},
		{
			name: "return address in a register",
			frameCase: frameCase{flags: top, regs: regs{2: 0x1234, 7: sp},
				code: []byte{cfaDefCFAOffset, 0, cfaRegister, 16, 2}},
			want: regs{7: sp, 16: 0x1234},
		},
		{
			name:      "undefined return address",
			frameCase: frameCase{flags: top, code: []byte{cfaUndefined, 16}},
			verdict:   StackBottom,
		},
		{
			name: "past the captured stack",
			frameCase: frameCase{flags: top, regs: regs{7: stackBase + 8*stackWords},
				code: []byte{cfaDefCFAOffset, 8}},
			verdict: Failed, why: StackCut,
		},
		{
			name: "below the captured stack",
			frameCase: frameCase{flags: top, regs: regs{7: stackBase - 64},
				code: []byte{cfaDefCFAOffset, 8}},
			verdict: Failed, why: MemoryUnreadable,
		},
		{
			name: "an unreadable register is unknown",
			frameCase: frameCase{flags: 0, regs: regs{3: 4, 6: 5, 7: stackBase},
				code: []byte{cfaDefCFAOffset, 16, cfaOffset | 3, 5}},
			want: regs{6: 5, 7: stackBase + 16, 16: word(stackBase + 8)},
		},
		{
			name: "popped by the epilogue: the red zone still has it",
			frameCase: frameCase{flags: top, regs: regs{3: 4, 7: sp},
				code: []byte{cfaOffset | 3, 3}},
			want: regs{3: word(sp - 16), 7: sp + 8, 16: word(sp)},
		},
		{
			name: "popped by the epilogue: not captured",
			frameCase: frameCase{flags: top, regs: regs{3: 4, 6: 9, 7: stackBase},
				code: []byte{cfaOffset | 3, 3, cfaOffset | 6, 2}},
			want: regs{3: 4, 6: 9, 7: stackBase + 8, 16: word(stackBase)},
		},
		{
			name: "saved in the red zone, below what was captured",
			frameCase: frameCase{flags: top, regs: regs{3: 4, 6: 9, 7: stackBase},
				code: []byte{cfaOffset | 3, 8, cfaOffset | 6, 7}},
			want: regs{6: 9, 7: stackBase + 8, 16: word(stackBase)},
		},
		{
			name: "signal trampoline",
			frameCase: frameCase{cie: signal, regs: regs{3: 4, 7: sp}, code: []byte{cfaDefCFAOffset, 64, cfaOffset | 8, 2,
				cfaExpression, 7, 2, opBreg0 + 7, 16}},
			want: regs{3: 4, 7: word(sp + 16), 8: word(sp + 48), 16: word(sp + 56)},
			in:   Signal, out: Interrupted | StackSwitched,
		},
		{
			name:      "signal trampoline on the same stack",
			frameCase: frameCase{cie: signal, regs: regs{7: sp}, code: []byte{cfaDefCFAOffset, 64}},
			want:      regs{7: sp + 64, 16: word(sp + 56)},
			in:        Signal, out: Interrupted,
		},
		{
			name: "i386: addresses wrap",
			frameCase: frameCase{arch: procstate.I386, flags: top, regs: regs{0: 1, 3: 4, 4: 0x8000, 5: 0xfffffff0, 6: 7},
				extra: []procstate.Region{{Addr: 0xfff0, Data: []byte{0xef, 0x0d, 0, 0, 1, 1, 1, 1, 0xbc, 0x0a, 0, 0, 1, 1, 1, 1}}},
				cie: func(c *cfiBuilder) uint64 {
					return c.cie("zR", []byte{pePcrel | peSdata4}, 8, cfaDefCFA, 5, 0x90, 0x80, 4, cfaOffset|8, 1)
				},
				code: []byte{cfaOffset | 6, 2}}, // CFA is ebp + 0x10010
			want: regs{3: 4, 4: 0x10000, 5: 0xfffffff0, 6: 0xdef, 8: 0xabc},
		},
		{
			name: "AArch64 leaf",
			frameCase: frameCase{arch: procstate.ARM64, cie: arm, flags: top,
				regs: regs{0: 1, 18: 2, 19: 3, 28: 4, 29: 5, 30: 0x5550, 31: sp}},
			want: regs{19: 3, 28: 4, 29: 5, 31: sp, 32: 0x5550},
		},
		{
			name: "AArch64 leaf that was called",
			frameCase: frameCase{arch: procstate.ARM64, cie: arm, flags: 0,
				regs: regs{29: 5, 31: sp}},
			verdict: Failed, why: NoRegister,
		},
		{
			name: "AArch64, signed and saved",
			frameCase: frameCase{arch: procstate.ARM64, cie: arm, regs: regs{19: 3, 31: sp},
				code: []byte{cfaNegateRAState, cfaDefCFAOffset, 32, cfaOffset | 29, 4, cfaOffset | 30, 3}},
			want: regs{19: 3, 29: word(sp), 31: sp + 32, 32: word(sp + 8)},
		},
		{
			name: "AArch64, signed leaf",
			frameCase: frameCase{arch: procstate.ARM64, cie: arm, flags: top, regs: regs{30: 0x003d_7fff_1234_5678, 31: sp},
				code: []byte{cfaNegateRAState}},
			want: regs{31: sp, 32: 0x7fff_1234_5678},
		},
		{
			name: "AArch64, signed and authenticated",
			frameCase: frameCase{arch: procstate.ARM64, cie: arm, flags: top, regs: regs{30: 0x003d_7fff_1234_5678, 31: sp},
				code: []byte{cfaNegateRAState, cfaNegateRAStateWithPC}},
			want: regs{31: sp, 32: 0x003d_7fff_1234_5678},
		},
		{
			name: "AArch64, signed by the state register",
			frameCase: frameCase{arch: procstate.ARM64, cie: arm, flags: top, regs: regs{30: 0x003d_7fff_1234_5678, 31: sp},
				code: []byte{cfaValExpression, arm64RASignState, 1, opLit0 + 1}},
			want: regs{31: sp, 32: 0x7fff_1234_5678},
		},
		{
			name: "AArch64, signed and authenticated by the state register",
			frameCase: frameCase{arch: procstate.ARM64, cie: arm, flags: top, regs: regs{30: 0x003d_7fff_1234_5678, 31: sp},
				code: []byte{cfaValExpression, arm64RASignState, 1, opLit0 + 1, cfaValExpression, arm64RASignState, 1, opLit0}},
			want: regs{31: sp, 32: 0x003d_7fff_1234_5678},
		},
		{
			name: "AArch64, signed by B, whole row",
			frameCase: frameCase{arch: procstate.ARM64, flags: top,
				cie: func(c *cfiBuilder) uint64 {
					return c.cie("zRB", []byte{pePcrel | peSdata4}, 30, cfaDefCFA, 31, 0)
				},
				regs: regs{9: 0x003d_7fff_1234_5678, 31: sp},
				code: []byte{cfaNegateRAState, cfaRegister, 30, 9}},
			want: regs{31: sp, 32: 0x7fff_1234_5678},
		},
	} {
		in, out, v, err := tc.run(t)
		want := tc.verdict
		if tc.want != nil {
			want = Success
		}
		if v != want || ReasonOf(err) != tc.why {
			t.Errorf("%s: %v, %v; want %v, %v", tc.name, v, err, want, tc.why)
			continue
		}
		if tc.want == nil {
			continue
		}
		expect(t, tc.name, &out, tc.want)
		if in.Flags != tc.flags|tc.in || out.Flags != tc.out {
			t.Errorf("%s: flags %v and %v, want %v and %v", tc.name, in.Flags, out.Flags, tc.flags|tc.in, tc.out)
		}
		arch := procstate.AMD64
		if tc.arch != nil {
			arch = tc.arch
		}
		if out.PC() != tc.want[arch.PC] || out.SP() != tc.want[arch.SP] || out.FP() != tc.want[arch.FP] {
			t.Errorf("%s: PC %#x, SP %#x, FP %#x", tc.name, out.PC(), out.SP(), out.FP())
		}
	}
}

func TestLocations(t *testing.T) {
	const sp = stackBase + 0x40
	amd := procstate.AMD64
	for _, tc := range []struct {
		name string
		frameCase
		pc, sp, fp Location
	}{
		{"FP in its register", frameCase{flags: top, regs: regs{6: 1, 7: sp}},
			InMemory(sp), Location{}, InRegister(amd.FP)},
		{"FP saved", frameCase{flags: top, regs: regs{6: 1, 7: sp}, code: []byte{cfaDefCFAOffset, 16, cfaOffset | 6, 2}},
			InMemory(sp + 8), Location{}, InMemory(sp)},
		{"FP popped", frameCase{flags: top, regs: regs{6: 1, 7: stackBase}, code: []byte{cfaOffset | 6, 2}},
			InMemory(stackBase), Location{}, InRegister(amd.FP)},
		{"whole row", frameCase{flags: top, regs: regs{2: 9, 6: 1, 7: sp},
			code: []byte{cfaRegister, 16, 2, cfaExpression, 7, 2, opBreg0 + 7, 8}},
			InRegister(2), InMemory(sp + 8), InRegister(amd.FP)},
		{"whole row of a frame in a call, whose registers are nowhere", frameCase{regs: regs{6: 1, 7: sp, 12: 9}, code: []byte{cfaRegister, 16, 12}},
			Location{}, Location{}, InRegister(amd.FP)},
	} {
		_, out, v, err := tc.run(t)
		if v != Success {
			t.Errorf("%s: %v, %v", tc.name, v, err)
		}
		if out.PCLocation != tc.pc || out.SPLocation != tc.sp || out.FPLocation != tc.fp {
			t.Errorf("%s: %v, %v, %v; want %v, %v, %v", tc.name, out.PCLocation, out.SPLocation, out.FPLocation, tc.pc, tc.sp, tc.fp)
		}
	}
}

// What a signal has interrupted is on another stack where it is farther than the frame of the
// signal is large, or below.
func TestCrossSignal(t *testing.T) {
	const at = 1 << 20
	for sp, switched := range map[uint64]bool{
		at - 8: true, at: true, at + 8: false, at + sameStack: false, at + sameStack + 8: true,
	} {
		in, out := Frame{sp: at}, Frame{sp: sp}
		crossSignal(&in, &out)
		want := Interrupted
		if switched {
			want |= StackSwitched
		}
		if in.Flags != Signal || out.Flags != want {
			t.Errorf("SP from %#x to %#x: flags %v and %v, want %v", uint64(at), sp, in.Flags, out.Flags, want)
		}
	}
}
