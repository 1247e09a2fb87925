//go:build linux && amd64

package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// The pushes of libclang-cpp 19 whose row comes an instruction late; the same
// code with the row an instruction early; the first instructions of libc's
// __mpn_addmul_1, whose CFI has no row but that of its start; and what GCC makes of
// nested functions with -mfentry, and of calls with -mindirect-branch=thunk-inline; and
// the start of libgcc's __morestack, whose CFI leaves out its caller; and of LuaJIT, whose
// interpreter has one row, where a trace is left.
const laggingCode = `
	.globl late, early, silent, called
	.type late, @function
late:	.cfi_startproc
	nop
	.cfi_def_cfa_offset 48
	push %rbp
	mov 0x38(%rsp), %rbp
	.cfi_def_cfa_offset 56
	push %r15
	.cfi_def_cfa_offset 64
	call late
called:	ud2
	.cfi_endproc
	.type early, @function
early:	.cfi_startproc
	nop
	.cfi_def_cfa_offset 48
	xchg %ax, %ax
	mov 0x38(%rsp), %rbp
	.cfi_def_cfa_offset 56
	push %r15
	ud2
	.cfi_endproc
	.type silent, @function
silent:	.cfi_startproc
	push %rbx
	push %rbp
	lea (%rdx), %rbx
	ud2
	.cfi_endproc
	.globl nested, thunk
	.type nested, @function
nested:	.cfi_startproc
	push %r10
	call late
	pop %r10
	ud2
	push %rbp
	.cfi_def_cfa_offset 16
	ud2
	.cfi_endproc
	.type before_thunk, @function
	.cfi_startproc
	sub $24, %rsp
	.cfi_def_cfa_offset 32
	nop
thunk:	jmp 4f
3:	call 2f
1:	pause
	lfence
	jmp 1b
2:	.cfi_def_cfa_offset 16
	mov %r11, (%rsp)
	ret
4:	call 3b
	nop
	.cfi_endproc
	.globl trace_exit
	.type trace_exit, @function
trace_exit:
	.cfi_startproc
	.cfi_def_cfa_offset 48
	lea 16(%rsp), %rcx
	mov %rcx, %rsp
	jmp *(%rbx,%rax,8)
	mov %rax, %rsp
	jmp *(%rbx,%rax,8)
	.cfi_endproc
	.globl returning
	.type returning, @function
returning:
	.cfi_startproc
	nop
	.cfi_def_cfa_offset 16
	nop
	ret
	ud2
	.cfi_endproc
	.globl skipping, skipped
	.type skipping, @function
skipping:
5:	.cfi_startproc
	.cfi_def_cfa_offset 16
	push %rbp
	.cfi_def_cfa_offset 24
	mov %rsp, %rbp
	ud2
	call 5b
skipped: ret
	.cfi_endproc
`

// A row that another contradicts is left where the stack agrees with the
// other, and only there.
func TestContradictedRows(t *testing.T) {
	const sp = 0x7ffe00001000
	code := steptest.NewCode(t, laggingCode)
	im, space, at := code.Im, code.Space, code.At
	for _, c := range []struct {
		name     string
		function string
		offset   uint64   // of the instruction
		calls    []uint64 // where the stack has a return address, from SP
		size     uint64   // of the frame; 0 where Debug leaves it to others
	}{
		{"before the push", "late", 1, []uint64{40}, 48},
		{"behind it", "late", 2, []uint64{48}, 56},
		{"behind it, another return address below", "late", 2, []uint64{40, 48}, 0},
		{"behind the row", "late", 7, []uint64{48}, 56},
		{"before a row that is early", "early", 3, []uint64{40}, 48},
		{"the same, another return address above", "early", 3, []uint64{40, 48}, 0},
		{"at the start", "silent", 0, []uint64{0}, 8},
		{"behind a push without a row", "silent", 1, []uint64{8}, 16},
		{"behind two", "silent", 2, []uint64{16}, 24},
		{"the same, and no return address there", "silent", 2, []uint64{0}, 0},
		{"where what was pushed is written", "silent", 5, []uint64{16}, 0},
		{"before the chain of a nested function is pushed", "nested", 0, []uint64{0}, 8},
		{"behind that", "nested", 2, []uint64{8}, 16},
		{"where it is off the stack again", "nested", 9, []uint64{0}, 8},
		{"in the call of a thunk", "thunk", 0, []uint64{24}, 32},
		{"in the thunk", "thunk", 2, []uint64{0}, 8},
		{"where it has pushed a word", "thunk", 14, []uint64{8}, 16},
		{"at its return", "thunk", 18, []uint64{8}, 16},
		{"behind the return", "thunk", 19, []uint64{24}, 32},
		{"one row, before SP is moved", "trace_exit", 0, []uint64{56}, 64},
		{"one row, which is right", "trace_exit", 0, []uint64{40}, 48},
		{"one row, and no return address", "trace_exit", 0, []uint64{48}, 0},
		{"one row, when SP has been moved", "trace_exit", 8, []uint64{40}, 48},
		{"one row, before SP is moved to anywhere", "trace_exit", 11, []uint64{48, 56}, 0},
		{"at a return, with the row of a frame", "returning", 2, []uint64{0, 8}, 0},
		{"the same, and no return address there", "returning", 2, []uint64{8}, 16},
		{"with no caller left out", "skipping", 0, []uint64{8}, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			stack := make([]byte, 128)
			for _, off := range c.calls {
				binary.LittleEndian.PutUint64(stack[off:], at["called"])
			}
			snap := procstate.NewSnapshot(im.Arch(), 1, "", space)
			snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: sp, Data: stack}})
			d := NewDebug(unwind.NewTablesWithBudget(1)) // each table is forgotten at once
			pc, w := at[c.function]+c.offset, unwind.NewWalker(snap, unwind.NewGroup(d), nil)
			for _, when := range []string{"", "again: "} {
				var in, out unwind.Frame
				in.Flags = unwind.Interrupted | unwind.Top
				in.SetPC(im.Arch(), pc)
				in.SetSP(im.Arch(), sp)
				v, err := d.CallerFrame(w, &in, &out)
				switch {
				case c.size == 0 && v != unwind.NotMe:
					t.Errorf("%s%v, %v", when, v, err)
				case c.size != 0 && (v != unwind.Success || out.PC() != at["called"] || out.SP() != sp+c.size):
					t.Errorf("%s%v, %v, to %#x with SP+%d, want SP+%d", when, v, err, out.PC(), out.SP()-sp, c.size)
				}
			}
			if _, ok := d.RuleAt(w, space.MappingAt(pc), pc, true); ok && (c.size == 0 || c.name == "behind it") {
				t.Error("a rule, which does not depend on the stack")
			}
		})
	}
	// The caller that is left out, and not what is above it.
	for offset, size := range []uint64{8, 16} {
		stack := make([]byte, 64)
		binary.LittleEndian.PutUint64(stack[size-8:], at["skipped"])
		binary.LittleEndian.PutUint64(stack[size:], at["called"])
		snap := procstate.NewSnapshot(im.Arch(), 1, "", space)
		snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: sp, Data: stack}})
		d := NewDebug(nil)
		in, out := unwind.NewFrame(im.Arch(), at["skipping"]+uint64(offset), sp, 0), unwind.Frame{}
		in.Flags = unwind.Interrupted
		if v, err := d.CallerFrame(unwind.NewWalker(snap, nil, nil), &in, &out); v != unwind.Success || out.PC() != at["skipped"] || out.SP() != sp+size {
			t.Errorf("%d bytes into it: %v, %v, to %#x with SP+%d", offset, v, err, out.PC(), out.SP()-sp)
		}
	}
}
