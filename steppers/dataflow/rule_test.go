package dataflow

import (
	"debug/elf"
	"encoding/binary"
	"strings"
	"testing"
)

// rules of short functions, by what the ABI says of each instruction.
func TestRules(t *testing.T) {
	type want struct {
		at   int
		reg  uint8
		off  int32
		save string // where rbx is: "same", "cfa-16", ...
	}
	const rsp, rbp, r10 = 7, 6, 10
	for name, c := range map[string]struct {
		code string
		want []want
	}{
		"push, sub, add, pop": {"\x53\x48\x83\xec\x20\x90\x48\x83\xc4\x20\x5b\xc3", []want{
			{0, rsp, 8, "same"}, {1, rsp, 16, "cfa-16"}, {5, rsp, 48, "cfa-16"}, {10, rsp, 16, "cfa-16"}, {11, rsp, 8, "same"}}},
		"a saved register": {"\x53\x31\xdb\x90\x5b\xc3", []want{{1, rsp, 16, "cfa-16"}, {3, rsp, 16, "cfa-16"}, {5, rsp, 8, "same"}}},
		"behind zero bytes, an odd number of them": {"\x53\xff\xd7\x5b\xc3" + strings.Repeat("\x00", 11) + "\x55\x53\x50\xff\xd7\x58\x5b\x5d\xc3", []want{
			{0x10, rsp, 8, "same"}, {0x13, rsp, 32, "?"}, {0x18, rsp, 8, "same"}}},
		"frame pointer and variable frame": {"\x55\x48\x89\xe5\x48\x29\xc4\x90\xc9\xc3", []want{
			{4, rsp, 16, "same"}, {7, rbp, 16, "same"}, {9, rsp, 8, "same"}}},
		"aligned frame": {"\x4c\x8d\x54\x24\x08\x48\x83\xe4\xe0\x41\xff\x72\xf8\x90\x49\x8d\x62\xf8\xc3", []want{
			{5, rsp, 8, "same"}, {9, r10, 0, "same"}, {18, rsp, 8, "same"}}},
		"aligned frame behind parts of functions": {alignedBehindParts(), []want{
			{0x520, rsp, 8, "same"}, {0x525, rsp, 8, "same"}, {0x529, r10, 0, "same"}, {0x52d, r10, 0, "same"}, {0x540, rsp, 8, "same"}}},
		// The case at 18 goes on to another function, the one at 26 to the way out.
		"cases of a switch": {"\x48\x83\xec\x18\x48\x85\xff\x74\x16\x48\x63\x0c\x8a\x48\x01\xd1\xff\xe1\x31\xc0\x48\x83\xc4\x18\xeb\x16" +
			"\x8b\x47\x04\xeb\x00\x48\x83\xc4\x18\xc3" + strings.Repeat("\x90", 12) + "\x53\x89\xfb\x89\xd8\x5b\xc3", []want{
			{16, rsp, 32, "same"}, {18, rsp, 32, "same"}, {24, rsp, 8, "same"}, {26, rsp, 32, "same"}, {31, rsp, 32, "same"}, {49, rsp, 16, "cfa-16"}}},
		// A function that nothing is seen to call, and that does not align the stack for
		// its subroutine, which does not need it.
		"calls of hand-written code": {"\x48\x01\xf7\xc3" + strings.Repeat("\x90", 12) + "\x48\x89\xf8\xe8\xe8\xff\xff\xff\xe8\xe3\xff\xff\xff\x48\x89\xc7\xc3", []want{
			{0, rsp, 8, "same"}, {16, rsp, 8, "same"}, {24, rsp, 8, "same"}, {32, rsp, 8, "same"}}},
		// Words are pushed in a loop, and taken off in another.
		"pop of the frame pointer": {"\x55\x48\x89\xe5\xb9\x05\x00\x00\x00\x50\xff\xc9\x75\xfb\xb1\x05\x58\xff\xc9\x75\xfb\x5d\xc3", []want{
			{9, rbp, 16, "same"}, {10, rbp, 16, "same"}, {17, rbp, 16, "same"}, {21, rbp, 16, "same"}, {22, rsp, 8, "same"}}},
		// What stands behind is another function, which nothing is seen to call.
		"exit_group": {"\x53\xb8\xe7\x00\x00\x00\x31\xff\x0f\x05" + strings.Repeat("\x90", 6) + "\x48\x83\xec\x18\xff\xd7\x48\x83\xc4\x18\xc3", []want{
			{8, rsp, 16, "cfa-16"}, {16, rsp, 8, "same"}, {20, rsp, 32, "same"}, {26, rsp, 8, "same"}}},
		"another system call": {"\x53\xb8\xe8\x00\x00\x00\x31\xff\x0f\x05" + strings.Repeat("\x90", 6) + "\x5b\xc3", []want{
			{16, rsp, 16, "cfa-16"}, {17, rsp, 8, "same"}}},
		"ret takes arguments off": {"\x53\x5b\xc2\x10\x00", []want{{1, rsp, 16, "cfa-16"}, {2, rsp, 8, "same"}}},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := New(codeImage(t, elf.EM_X86_64, []byte(c.code)))
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range c.want {
				r, ok := code.RuleAt(0x1000 + uint64(w.at))
				if !ok {
					t.Errorf("at %d: no rule", w.at)
					continue
				}
				save := "same"
				if p := r.Saved[0]; p.Kind == AtCFA && p.Off == -16 {
					save = "cfa-16"
				} else if p.Kind != Same {
					save = "?"
				}
				if uint8(r.Reg) != w.reg || r.Off != w.off || r.Deref || save != w.save {
					t.Errorf("at %d: CFA = %d%+d, rbx %s, want %d%+d %s", w.at, r.Reg, r.Off, save, w.reg, w.off, w.save)
				}
			}
		})
	}
}

// alignedBehindParts is a program whose functions have the code that they seldom execute in
// one place, from 0x2c0 on. There, at 0x520, is a function too that nothing is seen to call.
func alignedBehindParts() string {
	const n, parts, main = 32, 0x2c0, 0x520
	le := binary.LittleEndian
	pad := func(b []byte, to int) []byte { return append(b, strings.Repeat("\x90", to-len(b))...) }
	var b []byte
	for i := range n + 1 {
		b = le.AppendUint32(append(b, 0xe8), uint32(0xb0+16*i-len(b)-5)) // call a function
	}
	b = pad(append(b, 0xc3), 0xb0)
	for i := range n - 1 {
		b = append(b, "\x53\x85\xff\x0f\x84"...) // push %rbx; test %edi,%edi; je to a part
		b = pad(append(le.AppendUint32(b, uint32(parts+16*i-len(b)-4)), "\x5b\xc3"...), 0xb0+16*i+16)
	}
	b = pad(append(b, "\x53\x5b\xc3"...), parts)
	for i := range n - 1 {
		b = pad(append(b, "\x5b\xc3"...), parts+16*i+16)
	}
	b = pad(b, main)
	// lea 8(%rsp),%r10; and $-32,%rsp; push -8(%r10); push %rbp; mov %rsp,%rbp; push %r10, %rbx and %rcx
	b = append(b, "\x4c\x8d\x54\x24\x08\x48\x83\xe4\xe0\x41\xff\x72\xf8\x55\x48\x89\xe5\x41\x52\x53\x51"...)
	return string(append(b, "\xff\xd7\x59\x5b\x41\x5a\x5d\x49\x8d\x62\xf8\xc3"...))
}

// AArch64: the return address is in x30 until it is stored.
func TestRulesARM64(t *testing.T) {
	code, err := New(codeImage(t, elf.EM_AARCH64, []byte(
		"\x3f\x23\x03\xd5"+ // paciasp
			"\xfd\x7b\xbe\xa9"+ // stp x29, x30, [sp, #-32]!
			"\xfd\x03\x00\x91"+ // mov x29, sp
			"\xf3\x0b\x00\xf9"+ // str x19, [sp, #16]
			"\xf3\x0b\x40\xf9"+ // ldr x19, [sp, #16]
			"\xfd\x7b\xc2\xa8"+ // ldp x29, x30, [sp], #32
			"\xbf\x23\x03\xd5"+ // autiasp
			"\xc0\x03\x5f\xd6"))) // ret
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range []struct {
		off int32
		ra  Place
	}{
		{0, Place{Kind: Same}},
		{0, Place{Kind: Same}},
		{32, Place{Kind: AtCFA, Off: -24}},
		{32, Place{Kind: AtCFA, Off: -24}},
		{32, Place{Kind: AtCFA, Off: -24}},
		{32, Place{Kind: AtCFA, Off: -24}},
		{0, Place{Kind: Same}},
		{0, Place{Kind: Same}},
	} {
		r, ok := code.RuleAt(0x1000 + uint64(4*i))
		if !ok || r.Reg != 31 || r.Off != w.off || r.RA != w.ra {
			t.Errorf("instruction %d: rule %+v %v, want sp%+d, RA %+v", i, r, ok, w.off, w.ra)
		}
	}
}

func TestRuleAtDoesNotAllocate(t *testing.T) {
	code, err := New(codeImage(t, elf.EM_X86_64, []byte("\x53\x48\x83\xec\x20\x90\x48\x83\xc4\x20\x5b\xc3")))
	if err != nil {
		t.Fatal(err)
	}
	code.RuleAt(0x1005)
	at := uint64(0x1000)
	if n := testing.AllocsPerRun(1000, func() {
		at++
		code.RuleAt(0x1000 + at%12)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A frame as big as a register says, whose pages are touched one by one, with
// the SP of the entry at an indexed place of it.
func TestRuleAtIndex(t *testing.T) {
	code, err := New(codeImage(t, elf.EM_X86_64, []byte(
		"\x45\x89\xc9"+ // mov %r9d,%r9d
			"\x48\x89\xe0"+ // mov %rsp,%rax
			"\x53"+ // push %rbx
			"\x4e\x8d\x54\xcc\xf0"+ // lea -0x10(%rsp,%r9,8),%r10
			"\x49\x81\xe2\x00\xfc\xff\xff"+ // and $-0x400,%r10
			"\x49\x89\xe3"+ // mov %rsp,%r11
			"\x4d\x29\xd3"+ // sub %r10,%r11
			"\x49\x81\xe3\x00\xf0\xff\xff"+ // and $-0x1000,%r11
			"\x4b\x8d\x24\x1a"+ // lea (%r10,%r11),%rsp
			"\x48\x8d\xa4\x24\x00\xf0\xff\xff"+ // 24: lea -0x1000(%rsp),%rsp
			"\x4c\x8b\x1c\x24"+ // mov (%rsp),%r11
			"\x4c\x39\xd4"+ // cmp %r10,%rsp
			"\x77\xef"+ // ja 24
			"\x4a\x89\x44\xcc\x08"+ // mov %rax,8(%rsp,%r9,8)
			"\x31\xc0"+ // xor %eax,%eax
			"\x90"+ // 3c: nop
			"\x4a\x8b\x74\xcc\x08"+ // mov 8(%rsp,%r9,8),%rsi
			"\x90"+ // 42: nop
			"\x48\x8b\x5e\xf8"+ // mov -8(%rsi),%rbx
			"\x48\x8d\x26"+ // lea (%rsi),%rsp
			"\xc3"))) // 4a: ret
	if err != nil {
		t.Fatal(err)
	}
	const rax, rsi, rsp, r9 = 0, 4, 7, 9
	for at, want := range map[uint64]Rule{
		0x24: {Reg: rax, Off: 8},
		0x2c: {Reg: rax, Off: 8},
		0x3c: {Reg: rsp, Index: r9, Scale: 8, Off: 8, Deref: true, Add: 8},
		0x42: {Reg: rsi, Off: 8},
		0x4a: {Reg: rsp, Off: 8},
	} {
		r, ok := code.RuleAt(0x1000 + at)
		if !ok {
			t.Errorf("at %#x: no rule", at)
			continue
		}
		got := Rule{Reg: r.Reg, Index: r.Index, Scale: r.Scale, Off: r.Off, Deref: r.Deref, Add: r.Add}
		rbx := Place{Kind: AtCFA, Off: -16}
		if at == 0x4a {
			rbx = Place{Kind: Same}
		}
		if got != want || r.RA != (Place{Kind: AtCFA, Off: -8}) || r.Saved[0] != rbx {
			t.Errorf("at %#x: %+v, want %+v", at, *r, want)
		}
	}
}

// Functions that nothing in the file calls, without a frame: they use what was
// passed to them, and leave with SP as it was.
func TestUncalledLeaves(t *testing.T) {
	pad := func(code string) string { return code + strings.Repeat("\x90", 16-len(code)) }
	for name, c := range map[string]struct {
		code string
		want map[uint64]int32 // CFA, relative to RSP
	}{
		"behind a function with a frame": {
			pad("\x53\x48\x83\xec\x20\xff\xd7\x48\x83\xc4\x20\x5b\xc3") + // push %rbx; sub $32,%rsp; call *%rdi; add $32,%rsp; pop %rbx; ret
				pad("\x48\x8b\x07\xff\x60\x10") + // mov (%rdi),%rax; jmp *16(%rax)
				pad("\xff\x67\x18") + // jmp *24(%rdi)
				pad("\x48\x8b\x05\x40\x00\x00\x00\xff\x60\x38") + // mov 64(%rip),%rax; jmp *56(%rax)
				pad("\x48\x8b\x07\x48\x63\x04\xb0\x48\x01\xc8\xff\xe0"), // mov (%rdi),%rax; movslq (%rax,%rsi,4),%rax; add %rcx,%rax; jmp *%rax
			map[uint64]int32{5: 48, 0x10: 8, 0x13: 8, 0x20: 8, 0x30: 8, 0x37: 8, 0x40: 8, 0x4a: 8}},
		"not the cases of a switch": {
			pad("\x53\x48\x63\x04\xb7\x48\x01\xf8\xff\xe0") + // push %rbx; movslq (%rdi,%rsi,4),%rax; add %rdi,%rax; jmp *%rax
				pad("\x8b\x06\x5b\xc3") + // mov (%rsi),%eax; pop %rbx; ret
				pad("\x48\x8b\x07\x5b\xff\xe0"), // mov (%rdi),%rax; pop %rbx; jmp *%rax
			map[uint64]int32{8: 16, 0x10: 16, 0x13: 8, 0x20: 16, 0x24: 8}},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := New(codeImage(t, elf.EM_X86_64, []byte(c.code)))
			if err != nil {
				t.Fatal(err)
			}
			for at, off := range c.want {
				if r, ok := code.RuleAt(0x1000 + at); !ok || r.Reg != 7 || r.Off != off || r.Deref {
					t.Errorf("at %#x: rule %+v %v, want rsp%+d", at, r, ok, off)
				}
			}
		})
	}
}

// i386: where SP is behind a call that takes something off the stack, and what a thunk that
// returns its return address leaves alone.
func TestRulesI386(t *testing.T) {
	const esp, ebp, ecx = 4, 5, 1
	pad := func(code string) string { return code + strings.Repeat("\x90", 16-len(code)%16) }
	for name, c := range map[string]struct {
		code string
		want map[uint64]Rule // CFA, and where EBX is
	}{
		"pusha, popa": {"\x60\x90\x61\xc3", map[uint64]Rule{
			1: {Reg: esp, Off: 36, Saved: [MaxSaved]Place{{Kind: AtCFA, Off: -20}}}, 3: {Reg: esp, Off: 4, Saved: [MaxSaved]Place{{Kind: Same}}}}},
		"frame pointer before SP": {"\x55\x89\xe5\x53\xff\xd0\x90\x5b\xc9\xc3", map[uint64]Rule{
			6: {Reg: ebp, Off: 8, Saved: [MaxSaved]Place{{Kind: AtCFA, Off: -12}}}, 9: {Reg: esp, Off: 4, Saved: [MaxSaved]Place{{Kind: Same}}}}},
		// sub $12,%esp; call f; nop; add $8,%esp; ret; and f: ret $4
		"a callee of this file": {pad("\x83\xec\x0c\xe8\x08\x00\x00\x00\x90\x83\xc4\x08\xc3") + "\xc2\x04\x00", map[uint64]Rule{
			3: {Reg: esp, Off: 16, Saved: [MaxSaved]Place{{Kind: Same}}}, 8: {Reg: esp, Off: 12, Saved: [MaxSaved]Place{{Kind: Same}}}, 12: {Reg: esp, Off: 4, Saved: [MaxSaved]Place{{Kind: Same}}}}},
		// The same by a register: what follows tells.
		"any callee, up to a return": {"\x83\xec\x0c\xff\xd0\x90\x83\xc4\x08\xc3", map[uint64]Rule{
			5: {Reg: esp, Off: 12, Saved: [MaxSaved]Place{{Kind: Same}}}, 9: {Reg: esp, Off: 4, Saved: [MaxSaved]Place{{Kind: Same}}}}},
		"any callee, up to a call": {"\x83\xec\x0c\xff\xd0\x83\xec\x04\xff\xd2\x83\xc4\x0c\xc3", map[uint64]Rule{
			5: {Reg: esp, Off: 12, Saved: [MaxSaved]Place{{Kind: Same}}}, 8: {Reg: esp, Off: 16, Saved: [MaxSaved]Place{{Kind: Same}}}, 10: {Reg: esp, Off: 16, Saved: [MaxSaved]Place{{Kind: Same}}}}},
		// lea 4(%esp),%ecx; and $-16,%esp; push -4(%ecx); push %ebp; mov %esp,%ebp; push %ebx;
		// call thunk; push %ecx; nop; pop %ecx; pop %ebx; pop %ebp; lea -4(%ecx),%esp; ret
		"main": {pad("\x8d\x4c\x24\x04\x83\xe4\xf0\xff\x71\xfc\x55\x89\xe5\x53\xe8\x0d\x00\x00\x00\x51\x90\x59\x5b\x5d\x8d\x61\xfc\xc3") + "\x8b\x1c\x24\xc3", map[uint64]Rule{
			14: {Reg: ecx, Saved: [MaxSaved]Place{{Kind: AtRegister, Reg: ebp, Off: -4}}}, 20: {Reg: ebp, Deref: true, Off: -8, Saved: [MaxSaved]Place{{Kind: AtRegister, Reg: ebp, Off: -4}}},
			27: {Reg: esp, Off: 4, Saved: [MaxSaved]Place{{Kind: Same}}}}},
		// push %eax; mov %ebx,%edx; xor %ebx,%ebx; call *%gs:0x10; mov %edx,%ebx; pop %ecx; ret
		"into the kernel": {"\x50\x89\xda\x31\xdb\x65\xff\x15\x10\x00\x00\x00\x89\xd3\x59\xc3", map[uint64]Rule{
			12: {Reg: esp, Off: 8, Saved: [MaxSaved]Place{{Kind: InRegister, Reg: 2}}}, 15: {Reg: esp, Off: 4, Saved: [MaxSaved]Place{{Kind: InRegister, Reg: 2}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := New(codeImage(t, elf.EM_386, []byte(c.code)))
			if err != nil {
				t.Fatal(err)
			}
			for at, want := range c.want {
				r, ok := code.RuleAt(0x1000 + at)
				if !ok {
					t.Errorf("at %d: no rule", at)
				} else if r.Reg != want.Reg || r.Off != want.Off || r.Deref != want.Deref || r.Saved[0] != want.Saved[0] || r.RA != (Place{Kind: AtCFA, Off: -4}) {
					t.Errorf("at %d: %+v", at, *r)
				}
			}
		})
	}
}
