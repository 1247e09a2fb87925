//go:build linux && amd64

package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// StgRun of GHC 9.0 with its CFI, a function of the runtime that calls it, one that calls
// something else, and code by GHC, once with what its -g tells: the return address is on
// the stack in RBP.
const haskellCode = `
	.globl run, runs, other, evaluates, c_call, debugged
	.type run, @function
run:	.cfi_startproc
	sub $48, %rsp
	mov %rsp, %rax
	sub $16384, %rsp
	mov %rbx, (%rax)
	mov %rbp, 8(%rax)
	mov %r12, 16(%rax)
	mov %r13, 24(%rax)
	mov %r14, 32(%rax)
	mov %r15, 40(%rax)
	.cfi_def_cfa rsp, 0
	.cfi_offset rip, 16432
	.cfi_escape 0x16, 0x07, 0x04, 0x77, 0xb8, 0x80, 0x01
	mov %rsi, %r13
	mov %rdi, %rax
	jmp *%rax
	.cfi_endproc
	.type schedule, @function
schedule:
	.cfi_startproc
	push %rbx
	.cfi_adjust_cfa_offset 8
	call run
runs:	call schedule
other:	nop
	pop %rbx
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_endproc
	.type evaluates, @function
evaluates:
	add $16, %r12
	sub $8, %rsp
	call schedule
c_call:	add $8, %rsp
	jmp *(%rbp)
	.type debugged, @function
debugged:
	.cfi_startproc
	.cfi_def_cfa rbp, 0
	.cfi_offset rip, 0
	.cfi_same_value rsp
	.cfi_escape 0x14, 0x06, 0x00
	add $16, %r12
	sub $8, %rsp
	.cfi_escape 0x16, 0x07, 0x02, 0x77, 0x08
	call schedule
	add $8, %rsp
	.cfi_same_value rsp
	jmp *(%rbp)
	.cfi_endproc
`

// Code by GHC is left to what has called StgRun, and nothing else is.
func TestHaskell(t *testing.T) {
	const sp = 0x7ffe00001000
	code := steptest.NewCode(t, haskellCode)
	im, space, at := code.Im, code.Space, code.At
	const haskellStack = 0x4200105000 // not in the copy
	const saved, ra = 16384, 16384 + 48
	for _, c := range []struct {
		name   string
		pc     uint64
		called bool
		stack  map[int]string // addresses in it, from SP
		size   uint64         // of the frame; 0 where there is no caller
	}{
		{"at its start", at["evaluates"], false, map[int]string{ra: "runs"}, ra + 8},
		{"about to call C", at["evaluates"] + 8, false, map[int]string{ra + 8: "runs"}, ra + 16},
		{"in C", at["c_call"], true, map[int]string{ra + 8: "runs"}, ra + 16},
		{"behind it", at["c_call"] + 4, false, map[int]string{ra: "runs"}, ra + 8},
		{"behind another call", at["evaluates"], false, map[int]string{ra: "other"}, 0},
		{"elsewhere", at["evaluates"], false, map[int]string{ra - 8: "runs", ra + 16: "runs"}, 0},
		{"at two places", at["evaluates"], false, map[int]string{ra: "runs", ra + 8: "runs"}, 0},
		{"with CFI", at["debugged"], false, map[int]string{ra: "runs"}, ra + 8},
		{"with CFI, about to call C", at["debugged"] + 8, false, map[int]string{ra + 8: "runs"}, ra + 16},
		{"with CFI, in C", at["debugged"] + 13, true, map[int]string{ra + 8: "runs"}, ra + 16},
		{"in StgRun", at["run"] + 4, false, map[int]string{48: "runs"}, 56},
		{"where the next row is another's", at["run"] + 14, false, map[int]string{ra: "runs"}, ra + 8},
		{"about to jump", at["run"] + 43, false, map[int]string{ra: "runs"}, ra + 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			stack := make([]byte, 20000)
			for off, name := range c.stack {
				binary.LittleEndian.PutUint64(stack[off:], at[name])
			}
			inStgRun := c.pc < at["evaluates"]
			if !inStgRun {
				for i := range uint64(6) {
					off := c.size - 56 + 8*i
					if c.size == 0 {
						off = saved + 8*i
					}
					if binary.LittleEndian.Uint64(stack[off:]) == 0 {
						binary.LittleEndian.PutUint64(stack[off:], 100+i)
					}
				}
			}
			snap := procstate.NewSnapshot(im.Arch(), 1, "", space)
			var regs procstate.Regs
			regs.Set(im.Arch().PC, c.pc)
			regs.Set(im.Arch().SP, sp)
			regs.Set(im.Arch().FP, haskellStack)
			snap.Reset(1, &regs, []procstate.Region{{Addr: sp, Data: stack}})
			w := unwind.NewWalker(snap, Default(nil), nil)
			in, out := unwind.NewFrame(im.Arch(), c.pc, sp, haskellStack), unwind.Frame{}
			in.Flags = unwind.Interrupted
			if c.called {
				in.Flags = 0
			}
			v, err := w.Step(&in, &out)
			if c.size == 0 {
				if v == unwind.Success {
					t.Errorf("a caller: %#x with SP+%d", out.PC(), out.SP()-sp)
				}
				return
			}
			if v != unwind.Success || out.PC() != at["runs"] || out.SP() != sp+c.size {
				t.Fatalf("%v, %v, to %#x with SP+%d, want SP+%d", v, err, out.PC(), out.SP()-sp, c.size)
			}
			for i, reg := range []procstate.Reg{3, 6, 12, 13, 14, 15} {
				if v, ok := out.Regs.Value(reg); !inStgRun && (!ok || v != 100+uint64(i)) {
					t.Errorf("register %d: %d, %v", reg, v, ok)
				}
			}
		})
	}
}

// That what Haskell looks for is not in a copy is no miss: who learns from those where stacks end
// would learn from all code without unwind tables.
func TestHaskellMissesNothing(t *testing.T) {
	code := steptest.NewCode(t, haskellCode)
	arch := code.Im.Arch()
	const sp = 0x7ffe00001000
	snap := procstate.NewSnapshot(arch, 1, "", code.Space)
	var regs procstate.Regs
	snap.Reset(1, &regs, []procstate.Region{{Addr: sp, Data: make([]byte, 4096)}})
	w := unwind.NewWalker(snap, unwind.NewGroup(NewHaskell()), nil)
	in, out := unwind.NewFrame(arch, code.At["evaluates"], sp, 0), unwind.Frame{}
	if v, err := w.Step(&in, &out); v == unwind.Success {
		t.Fatalf("a caller: %v", err)
	}
	if addr, missed := snap.Missed(); missed {
		t.Errorf("missed %#x", addr)
	}
}
