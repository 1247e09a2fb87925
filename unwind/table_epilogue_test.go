//go:build amd64

package unwind_test

import (
	"debug/elf"
	"fmt"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/unwind"
)

// Functions with the CFI that Mono 6.8 writes: what stands behind .cfi_remember_state is
// of the instructions that set the registers back, at the end. Then what looks like
// it: an epilogue that does follow at once, and one that sets back another register
// than the rows have.
const earlyEpilogues = `
	.cfi_sections .debug_frame
	.globl sp, sp_body, sp_leaves, sp_ret, sp_behind, fp, fp_body, fp_leaves, fp_ret, fp_behind
	.globl large, large_body, large_ret, once, once_ret, once_behind, other, other_early, other_ret
sp:	.cfi_startproc
	sub $0x38, %rsp
	.cfi_def_cfa_offset 64
	mov %rbp, (%rsp)
	.cfi_offset %rbp, -64
	mov %r15, 8(%rsp)
	.cfi_offset %r15, -56
	.cfi_remember_state
	.zero 4, 0x90
	.cfi_same_value %rbp
	.zero 5, 0x90
	.cfi_same_value %r15
	.zero 4, 0x90
	.cfi_def_cfa %rsp, 8
sp_body: nop
	.cfi_restore_state
	mov $0xc338c483, %eax
	.zero 5000, 0x90
	mov (%rsp), %rbp
	mov 8(%rsp), %r15
sp_leaves: add $0x38, %rsp
sp_ret:	ret
sp_behind: ud2
	.cfi_endproc
fp:	.cfi_startproc
	push %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	mov %rsp, %rbp
	.cfi_def_cfa_register %rbp
	sub $0x200, %rsp
	mov %r12, -0x200(%rbp)
	.cfi_offset %r12, -0x210
	.cfi_remember_state
	.zero 7, 0x90
	.cfi_same_value %r12
	nop
	.cfi_same_value %rbp
	.cfi_def_cfa %rsp, 8
fp_body: nop
	.cfi_restore_state
	nop
	mov -0x200(%rbp), %r12
fp_leaves: leave
fp_ret:	ret
fp_behind: ud2
	.cfi_endproc
large:	.cfi_startproc
	sub $0x1000, %rsp
	.cfi_def_cfa_offset 0x1008
	mov %r13, 0x800(%rsp)
	.cfi_offset %r13, -0x808
	.cfi_remember_state
	.zero 8, 0x90
	.cfi_same_value %r13
	.zero 7, 0x90
	.cfi_def_cfa %rsp, 8
large_body: nop
	.cfi_restore_state
	mov 0x800(%rsp), %r13
	add $0x1000, %rsp
large_ret: ret
	.cfi_endproc
once:	.cfi_startproc
	sub $0x38, %rsp
	.cfi_def_cfa_offset 64
	.cfi_remember_state
	add $0x38, %rsp
	.cfi_def_cfa %rsp, 8
once_ret: ret
	.cfi_restore_state
once_behind: nop
	add $0x38, %rsp
	ret
	.cfi_endproc
other:	.cfi_startproc
	sub $0x38, %rsp
	.cfi_def_cfa_offset 64
	mov %r14, (%rsp)
	.cfi_offset %r14, -64
	.cfi_remember_state
	.zero 4, 0x90
	.cfi_same_value %r14
	.zero 4, 0x90
	.cfi_def_cfa %rsp, 8
other_early: nop
	.cfi_restore_state
	mov (%rsp), %r15
	add $0x38, %rsp
other_ret: ret
	.cfi_endproc
`

func TestEpiloguesFurtherOn(t *testing.T) {
	const fp = 6
	path := steptest.Compile(t, []string{"gcc", "-shared", "-nostdlib", "-x", "assembler"}, "early.s", earlyEpilogues)
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]uint64{}
	for _, s := range symbols {
		at[s.Name] = s.Value
	}
	for _, c := range []struct {
		label string
		cfa   string
		saved string // of RBP, R12 to R15: their places, SameValue for 0, Unspecified for -
	}{
		{"sp", "r7+8", "- - - - -"},
		{"sp_body", "r7+64", "-64 - - - -56"},
		{"sp_leaves", "r7+64", "0 - - - 0"},
		{"sp_ret", "r7+8", "0 - - - 0"},
		{"sp_behind", "r7+64", "-64 - - - -56"},
		{"fp", "r7+8", "- - - - -"},
		{"fp_body", "r6+16", "-16 -528 - - -"},
		{"fp_leaves", "r6+16", "-16 0 - - -"},
		{"fp_ret", "r7+8", "0 0 - - -"},
		{"fp_behind", "r6+16", "-16 -528 - - -"},
		{"large", "r7+8", "- - - - -"},
		{"large_body", "r7+4104", "- - -2056 - -"},
		{"large_ret", "r7+8", "- - 0 - -"},
		{"once", "r7+8", "- - - - -"},
		{"once_ret", "r7+8", "- - - - -"},
		{"once_behind", "r7+64", "- - - - -"},
		{"other", "r7+8", "- - - - -"},
		{"other_early", "r7+8", "- - - 0 -"},
		{"other_ret", "r7+64", "- - - -64 -"},
	} {
		table := unwind.NewTable(steptest.OpenImage(t, path))
		row, start, end, err := table.Row(at[c.label])
		if err != nil {
			t.Fatalf("%s: %v", c.label, err)
		}
		saved := ""
		for _, reg := range []int{fp, 12, 13, 14, 15} {
			switch r := row.Regs[reg]; r.Kind {
			case unwind.AtOffset:
				saved += fmt.Sprintf(" %d", r.Offset)
			case unwind.SameValue:
				saved += " 0"
			default:
				saved += " -"
			}
		}
		if cfa := fmt.Sprintf("r%d+%d", row.CFA.Reg, row.CFA.Offset); cfa != c.cfa || saved[1:] != c.saved {
			t.Errorf("%s: CFA %s, saved%s in [%#x, %#x); want %s, %s", c.label, cfa, saved, start, end, c.cfa, c.saved)
		}
		if reg, off, ok := table.Rule(at[c.label]).CFA(); !ok || fmt.Sprintf("r%d+%d", reg, off) != c.cfa {
			t.Errorf("%s: by the compiled rule the CFA is r%d+%d, want %s", c.label, reg, off, c.cfa)
		}
	}
}
