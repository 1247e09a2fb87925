//go:build linux && amd64

package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// What Wine's dispatchers of calls have: the caller is on another stack, and its registers are where RCX points to, as SP does, which
// the call does not preserve. In the second one RCX is something else behind the call.
const dispatchers = `
	.globl called, lost, back
	.macro saved
	.cfi_escape 0x0f, 4, 0x72, 0x88, 0x01, 0x06 # CFA: *(RCX + 136)
	.cfi_escape 0x10, 7, 3, 0x72, 0x88, 0x01 # RSP: there
	.cfi_escape 0x10, 16, 3, 0x72, 0xf0, 0x00 # RA: at RCX + 112
	.endm
	.type dispatcher, @function
dispatcher:
	.cfi_startproc
	saved
	mov %rcx, %rsp
	call *%rax
called:	mov %rsp, %rcx
	nop
	jmp *112(%rcx)
	.cfi_endproc
	.type other, @function
other:	.cfi_startproc
	saved
	mov %rcx, %rsp
	call *%rax
lost:	mov %rdx, %rcx
	nop
	jmp *112(%rcx)
	.cfi_endproc
	.type caller, @function
caller:	.cfi_startproc
	call dispatcher
back:	ret
	.cfi_endproc
`

func TestDebugOtherStack(t *testing.T) {
	code := steptest.NewCode(t, dispatchers)
	const user, system = 0x200000, 0x700000
	frame := make([]byte, 256)
	binary.LittleEndian.PutUint64(frame[112:], code.At["back"])
	binary.LittleEndian.PutUint64(frame[136:], user)
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", code.Space)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: system, Data: frame}})
	d := NewDebug(nil)
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	in, out := unwind.NewFrame(procstate.AMD64, code.At["called"], system, 0), unwind.Frame{}
	if v, err := d.CallerFrame(w, &in, &out); v != unwind.Success || out.PC() != code.At["back"] || out.SP() != user || out.Flags != unwind.StackSwitched {
		t.Errorf("%v, %v: pc %#x, sp %#x, flags %v", v, err, out.PC(), out.SP(), out.Flags)
	}
	in, out = unwind.NewFrame(procstate.AMD64, code.At["lost"], system, 0), unwind.Frame{}
	if v, err := d.CallerFrame(w, &in, &out); v == unwind.Success || err != unwind.NoRegister {
		t.Errorf("without RCX: %v, %v: pc %#x", v, err, out.PC())
	}
	if _, ruled := d.RuleAt(w, w.MappingAt(code.At["called"]), code.At["called"], false); ruled {
		t.Error("a walk by rules does not know of other stacks")
	}
}
