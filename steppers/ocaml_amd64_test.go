package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Which calls leave OCaml's stack for that of C: the same code as in cmd/swbpf/testdata/targets/ocamlstack.c.
func TestOCamlLeavesStack(t *testing.T) {
	path := steptest.Compile(t, []string{"gcc", "-nostdlib", "-static"}, "switches.s", `
	.globl _start
_start:	mov 0x40(%r14),%rsp
	call _start
	mov 0x40(%r13),%rsp
	call _start
	call _start
	mov 0x10(%r14),%rsp
	call _start
	mov 0x28(%r14),%r10
	mov %rsp,(%r10)
	mov 0x40(%r14),%r11
	mov %rsp,8(%r11)
	mov %r10,(%r11)
	mov %r11,%rsp
	call *%rax
	nop
`)
	im := steptest.OpenImage(t, path)
	start := im.Entry()
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: start &^ 4095, End: start&^4095 + 4096, Offset: start &^ 4095 & 0xffff, Path: path, Image: im})
	w := unwind.NewWalker(procstate.NewSnapshot(procstate.AMD64, 1, path, &space), unwind.NewGroup(), nil)
	for _, test := range []struct {
		name      string
		ra        uint64 // from start on
		hasDomain bool
		want      bool
	}{
		{"directly", 9, true, true},
		{"directly, in what domain is not known", 9, false, false},
		{"by another register", 18, true, false},
		{"on the same stack", 23, true, false},
		{"no domain's state", 32, true, false},
		{"by the runtime", 55, true, true},
	} {
		in := unwind.NewFrame(procstate.AMD64, start+test.ra, 0x7000, 0)
		if test.hasDomain {
			in.Regs.Set(ocamlState, 0x5000)
		}
		if got := NewOCaml().LeavesStack(w, &in); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
