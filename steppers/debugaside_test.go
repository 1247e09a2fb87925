//go:build linux && amd64

package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// What OCaml makes of
//
//	try f a.(i) (x, y) with E -> ...
//
// a call of the garbage collector and one for the index behind the function, both with the
// row of its end; and what raises the exception, there and in the runtime. A call that is jumped
// to with two sizes of the frame; and one that others go straight on to.
const asideCode = `
	.globl called, collects, bounds, after, both, goes_on, raises, handler, runtime_raise, for_c
	.type aside, @function
aside:	.cfi_startproc
	sub $8, %rsp
	.cfi_adjust_cfa_offset 8
	lea handler(%rip), %r11
	push %r11
	.cfi_adjust_cfa_offset 8
	push 16(%r14)
	.cfi_adjust_cfa_offset 8
	mov %rsp, 16(%r14)
	cmp %rax, %rbx
	jb collects
	jbe bounds
back:	call *%rdi
called:
	mov 16(%r14), %rsp
raises:	pop 16(%r14)
	pop %r11
	jmp *%r11
handler:
	.cfi_adjust_cfa_offset -16
	add $8, %rsp
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_adjust_cfa_offset 8
collects:
	call runtime
	jmp back
bounds:	call runtime
after:	.cfi_endproc
	.type both_in, @function
both_in:
	.cfi_startproc
	push %rbx
	.cfi_adjust_cfa_offset 8
	jb both
	push %rbx
	.cfi_adjust_cfa_offset 8
	jb both
	pop %rbx
	.cfi_adjust_cfa_offset -8
	pop %rbx
	.cfi_adjust_cfa_offset -8
	ret
both:	call runtime
	.cfi_endproc
	.type straight, @function
straight:
	.cfi_startproc
	push %rbx
	.cfi_adjust_cfa_offset 8
	jb goes_on
	push %rbx
	.cfi_adjust_cfa_offset 8
	call runtime
goes_on:
	call runtime
	nop
	pop %rbx
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_endproc
	.type runtime, @function
runtime:
	.cfi_startproc
	mov 16(%r14), %rsp
runtime_raise:
	pop 16(%r14)
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_adjust_cfa_offset 8
	mov 16(%r14), %rsp
for_c:	pop 16(%r14)
	.cfi_adjust_cfa_offset -8
	mov 8(%r14), %r15
	ret
	.cfi_endproc
`

const asideSP = 0x7ffe00001000

// Frames of OCaml's functions that have called what is behind them, or are about to, and
// of those that raise an exception.
func TestOCamlsRows(t *testing.T) {
	f := steptest.NewCode(t, asideCode)
	for _, c := range []struct {
		name        string
		at          string
		offset      uint64
		interrupted bool
		stack       []string // the words that are addresses of code
		to          string   // "": the frame is left to others
		size        uint64   // of the frame
	}{
		{"in a call of the collector", "collects", 5, false, []string{"", "handler", "", "called"}, "called", 32},
		{"before it", "collects", 0, true, []string{"", "handler", "", "called"}, "called", 32},
		{"behind it", "collects", 5, true, []string{"", "handler", "", "called"}, "called", 32},
		{"the same, where the row is right", "collects", 5, false, []string{"", "called"}, "called", 16},
		{"the same, where both may be", "collects", 5, false, []string{"", "called", "", "called"}, "", 0},
		{"the same, where none is", "collects", 5, false, []string{"", "handler"}, "", 0},
		{"an index out of bounds", "after", 0, false, []string{"", "handler", "", "called"}, "called", 32},
		{"before that", "bounds", 0, true, []string{"", "handler", "", "called"}, "called", 32},
		{"jumped to from two places, by the first", "both", 5, false, []string{"", "called"}, "called", 16},
		{"by the second", "both", 5, false, []string{"", "", "called"}, "called", 24},
		{"straight on", "goes_on", 5, false, []string{"", "", "called"}, "called", 24},
		{"an exception is raised", "raises", 0, true, []string{"", "handler", "", "called"}, "called", 32},
		{"the next handler is known", "raises", 4, true, []string{"handler", "", "called"}, "called", 24},
		{"the handler is", "raises", 6, true, []string{"", "called"}, "called", 16},
		{"the same, of another function", "raises", 6, true, nil, "both", 0},
		{"the runtime raises one", "runtime_raise", 0, true, []string{"", "handler", "", "called"}, "handler", 16},
		{"and goes to the handler", "runtime_raise", 4, true, []string{"handler", "", "called"}, "handler", 8},
		{"for C, the next handler is known", "for_c", 4, true, []string{"handler", "", "called"}, "handler", 8},
		{"for C, to the handler", "for_c", 8, true, []string{"handler", "", "called"}, "handler", 8},
		{"to no code", "runtime_raise", 4, true, []string{"", "called"}, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			stack := make([]byte, 128)
			for i, name := range c.stack {
				binary.LittleEndian.PutUint64(stack[8*i:], f.At[name])
			}
			snap := procstate.NewSnapshot(f.Im.Arch(), 1, "", f.Space)
			snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: asideSP, Data: stack}})
			d := NewDebug(nil)
			w := unwind.NewWalker(snap, unwind.NewGroup(d), nil)
			pc := f.At[c.at] + c.offset
			in := unwind.NewFrame(f.Im.Arch(), pc, asideSP, 0)
			in.Flags = 0
			if c.interrupted {
				in.Flags = unwind.Interrupted
			}
			in.Regs.Set(regR11, f.At["handler"])
			if c.to == "both" {
				in.Regs.Set(regR11, f.At["both"])
			}
			var out unwind.Frame
			v, err := d.CallerFrame(w, &in, &out)
			switch {
			case c.to == "" && v != unwind.NotMe:
				t.Errorf("%v, %v, to %#x", v, err, out.PC())
			case c.to != "" && (v != unwind.Success || out.PC() != f.At[c.to] || out.SP() != asideSP+c.size):
				t.Errorf("%v, %v, to %#x with SP+%d, want %s with SP+%d", v, err, out.PC(), out.SP()-asideSP, c.to, c.size)
			}
			if inRegister := out.PCLocation.Kind == unwind.LocationRegister; v == unwind.Success && inRegister != (c.size == 0) {
				t.Errorf("the address is in %v", out.PCLocation)
			}
			if resumes := out.Flags&unwind.Interrupted != 0; resumes != (c.to == "handler" || c.to == "both") {
				t.Errorf("the caller is interrupted: %v", resumes)
			}
			if _, ok := d.RuleAt(w, f.Space.MappingAt(pc), pc, c.interrupted); ok != (c.at == "goes_on") {
				t.Errorf("one rule is enough: %v", ok)
			}
		})
	}
}
