package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// signalProgram takes signals on the normal stack, on an alternate one, and
// one within another, and stops at a breakpoint in the innermost handler.
const signalProgram = `
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
volatile int depth, nested;
__attribute__((noinline)) void innermost(void) { __asm__ volatile("int3"); depth++; }
static void second(int sig) { (void)sig; innermost(); depth++; }
static void first(int sig, siginfo_t *si, void *uc) {
	(void)sig; (void)si; (void)uc;
	if (nested) raise(SIGUSR2);
	else innermost();
	depth++;
}
__attribute__((noinline)) void victim(int n) {
	volatile char pad[64];
	pad[n & 63] = 1;
	if (n > 0) { victim(n - 1); pad[0]++; return; }
	raise(SIGUSR1);
	pad[1]++;
}
int main(int argc, char **argv) {
	struct sigaction sa;
	memset(&sa, 0, sizeof sa);
	(void)argc;
	for (const char *c = argv[1]; *c; c++) {
		if (*c == 'a') {
			stack_t ss = { .ss_sp = malloc(65536), .ss_size = 65536 };
			sigaltstack(&ss, 0);
			sa.sa_flags |= SA_ONSTACK;
		}
		if (*c == 'n') nested = 1;
		if (*c == 'i') sa.sa_flags |= SA_SIGINFO;
	}
	if (sa.sa_flags & SA_SIGINFO) sa.sa_sigaction = first;
	else sa.sa_handler = (void (*)(int))first;
	sigaction(SIGUSR1, &sa, 0);
	struct sigaction sb = { .sa_handler = second, .sa_flags = strchr(argv[1], 'A') ? SA_ONSTACK : 0 };
	if (strchr(argv[1], 'A')) {
		stack_t ss = { .ss_sp = malloc(65536), .ss_size = 65536 };
		sigaltstack(&ss, 0);
	}
	sigaction(SIGUSR2, &sb, 0);
	victim(5);
	return depth == 0;
}
`

// A handler's stack is walked through the signal frames down to main, with
// and without unwind tables for the trampoline, on every kind of stack.
func TestSignalHandlers(t *testing.T) {
	steptest.NeedPtrace(t)
	for _, cc := range [][]string{
		{"gcc", "-O0"}, {"gcc", "-O2", "-fno-omit-frame-pointer"}, {"gcc", "-O2", "-static"},
		{"musl-gcc", "-O0"}, {"musl-gcc", "-O2", "-static"},
	} {
		path := steptest.Compile(t, append(cc, "-fno-optimize-sibling-calls"), "signals.c", signalProgram)
		for _, tc := range []struct {
			args     string
			signals  int
			switched int
		}{
			{"-", 1, 0},
			{"i", 1, 0},
			{"ai", 1, 1},
			{"n", 2, 0},
			{"ani", 2, 1},
			{"nA", 2, 1},
		} {
			t.Run(path[len(path)-len("gcc-signals"):]+" "+tc.args, func(t *testing.T) {
				p, _ := steptest.StartToTrap(t, path, tc.args)
				w := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
				frames, err := w.WalkStack(nil, procstate.DefaultThread)
				if err != nil {
					t.Fatalf("%v\n%s", err, describe(p, frames))
				}
				signals, switched := 0, 0
				for i := range frames {
					f := &frames[i]
					if f.Flags&unwind.Signal != 0 {
						signals++
						if frames[i+1].Flags&unwind.Interrupted == 0 || w.Stepper(&frames[i+1]).Name() != "signal" {
							t.Errorf("caller of the trampoline: flags %b by %s", frames[i+1].Flags, w.Stepper(&frames[i+1]).Name())
						}
					}
					if f.Flags&unwind.StackSwitched != 0 {
						switched++
					}
				}
				if signals != tc.signals || switched != tc.switched {
					t.Errorf("%d signal frames, %d switches of the stack; want %d, %d\n%s", signals, switched, tc.signals, tc.switched, describe(p, frames))
				}
				// The recursion of victim is all there: its return addresses are
				// equal but for the first.
				again := 0
				for i := 2; i < len(frames); i++ {
					if frames[i].PC() == frames[i-1].PC() {
						again++
					}
				}
				if again != 4 {
					t.Errorf("%d repeated frames, want 4\n%s", again, describe(p, frames))
				}
			})
		}
	}
}

// A frame that the kernel built is read whole: each register has the value
// that it was given.
func TestSignalFrameRegisters(t *testing.T) {
	for _, tc := range []struct {
		arch *procstate.Arch
		code []byte
		uc   uint64 // offset from SP
		l    *ucontextLayout
		in   bool   // in the system call
		cs   uint64 // where the code segment is
		user uint64 // that of user code
	}{
		{procstate.AMD64, []byte{0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05}, 0, &ucontextAMD64, false, 184, 0x33},
		{procstate.AMD64, []byte{0xb8, 15, 0, 0, 0, 0x0f, 0x05}, 0, &ucontextAMD64, false, 184, 0x33},
		{procstate.ARM64, []byte{0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4}, 128, &ucontextARM64, false, 0, 10},
		{procstate.I386, []byte{0xb8, 173, 0, 0, 0, 0xcd, 0x80}, 0x80, &ucontextI386, false, 0x80 + 80, 0x23},
		{procstate.AMD64, []byte{0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05}, 0, &ucontextAMD64, true, 184, 0x33},
		{procstate.ARM64, []byte{0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4}, 128, &ucontextARM64, true, 0, 10},
		{procstate.I386, []byte{0xb8, 173, 0, 0, 0, 0xcd, 0x80}, 0x80, &ucontextI386, true, 0x80 + 80, 0x23},
	} {
		const codeAt, sp = 0x10000, 0x20000
		width := uint64(tc.arch.AddressWidth)
		stack := make([]byte, 1024)
		put := func(off, v uint64) {
			if width == 4 {
				binary.LittleEndian.PutUint32(stack[off:], uint32(v))
			} else {
				binary.LittleEndian.PutUint64(stack[off:], v)
			}
		}
		switch tc.arch {
		case procstate.ARM64:
			put(0, 10) // si_signo
		case procstate.I386:
			put(0, 10)
			put(8, sp+tc.uc)
		}
		for i, r := range tc.l.slots {
			if r != procstate.NoReg {
				put(tc.uc+tc.l.regs+uint64(i)*width, 0x30000+uint64(r)*16)
			}
		}
		put(tc.cs, tc.user)
		libs := &procstate.AddressSpace{}
		libs.Insert(&procstate.Mapping{Start: codeAt, End: codeAt + 4096})
		snap := procstate.NewSnapshot(tc.arch, 1, "", libs)
		var regs procstate.Regs
		regs.Set(tc.arch.PC, codeAt)
		regs.Set(tc.arch.SP, sp)
		code := append(tc.code, 0x90)
		if tc.in {
			regs.Set(tc.arch.PC, codeAt+uint64(len(tc.code)))
			if tc.arch == procstate.ARM64 {
				regs.Set(8, 139)
			}
		}
		regs.ThreadPointer = 0x1234
		snap.Reset(1, &regs, []procstate.Region{{Addr: sp, Data: stack}, {Addr: codeAt, Data: code}})
		w := unwind.NewWalker(snap, unwind.NewGroup(NewSigHandler()), nil)
		var in, out unwind.Frame
		in.Load(tc.arch, &regs)
		if !tc.in {
			in.Flags = 0 // returned to, not interrupted
		}
		v, err := NewSigHandler().CallerFrame(w, &in, &out)
		if v != unwind.Success || err != nil {
			t.Errorf("%s: %v, %v", tc.arch.Name, v, err)
			continue
		}
		for _, r := range tc.l.slots {
			if r == procstate.NoReg {
				continue
			}
			if got, ok := out.Regs.Value(r); !ok || got != 0x30000+uint64(r)*16 {
				t.Errorf("%s: %s = %#x, %v", tc.arch.Name, tc.arch.RegName(r), got, ok)
			}
		}
		if out.PC() != out.Regs.Raw(tc.arch.PC) || out.Flags&unwind.Interrupted == 0 || in.Flags&unwind.Signal == 0 || out.Regs.ThreadPointer != 0x1234 {
			t.Errorf("%s: pc %#x, flags %b and %b", tc.arch.Name, out.PC(), in.Flags, out.Flags)
		}
		if tc.in { // what begins behind a trampoline is none
			in.Load(tc.arch, &regs)
			if put(tc.cs, 0); tc.arch == procstate.ARM64 {
				in.Regs.Set(8, 1)
			}
			if v, _ := NewSigHandler().CallerFrame(w, &in, new(unwind.Frame)); v != unwind.NotMe {
				t.Errorf("%s: %v behind a system call that was not made", tc.arch.Name, v)
			}
		}
	}
}

func TestClassifyTrampoline(t *testing.T) {
	for _, tc := range []struct {
		name string
		arch *procstate.Arch
		code []byte
		pc   int
		want trampoline
	}{
		{"7-byte move", procstate.AMD64, []byte{0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05}, 0, rtSigreturn},
		{"at its syscall", procstate.AMD64, []byte{0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05}, 7, rtSigreturn},
		{"5-byte move, at its syscall", procstate.AMD64, []byte{0xb8, 15, 0, 0, 0, 0x0f, 0x05}, 5, rtSigreturn},
		{"other number", procstate.AMD64, []byte{0xb8, 14, 0, 0, 0, 0x0f, 0x05}, 0, noTrampoline},
		{"no syscall", procstate.AMD64, []byte{0xb8, 15, 0, 0, 0, 0xc3, 0x05}, 0, noTrampoline},
		{"cut short", procstate.AMD64, []byte{0xb8, 15, 0, 0, 0, 0x0f}, 0, noTrampoline},
		{"arm64", procstate.ARM64, []byte{0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4}, 0, rtSigreturn},
		{"arm64 at its svc", procstate.ARM64, []byte{0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4}, 4, rtSigreturn},
		{"i386", procstate.I386, []byte{0x58, 0xb8, 119, 0, 0, 0, 0xcd, 0x80}, 0, sigreturn},
		{"i386, number popped", procstate.I386, []byte{0x58, 0xb8, 119, 0, 0, 0, 0xcd, 0x80}, 1, sigreturnLate},
		{"i386 at its call", procstate.I386, []byte{0x58, 0xb8, 119, 0, 0, 0, 0xcd, 0x80}, 6, sigreturnLate},
		{"in its system call", procstate.AMD64, []byte{0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05, 0x90}, 9, rtSigreturn | inSyscall},
		{"in another system call", procstate.AMD64, []byte{0x48, 0xc7, 0xc0, 14, 0, 0, 0, 0x0f, 0x05, 0x90}, 9, noTrampoline},
		{"arm64 in its system call", procstate.ARM64, []byte{0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4, 0, 0, 0, 0}, 8, rtSigreturn | inSyscall},
		{"i386 in its system call", procstate.I386, []byte{0x58, 0xb8, 119, 0, 0, 0, 0xcd, 0x80, 0x90}, 8, sigreturnLate | inSyscall},
		{"i386 in its system call, with siginfo", procstate.I386, []byte{0xb8, 173, 0, 0, 0, 0xcd, 0x80, 0x90}, 7, rtSigreturn | inSyscall},
		{"i386 with siginfo", procstate.I386, []byte{0xb8, 173, 0, 0, 0, 0xcd, 0x80}, 0, rtSigreturn},
	} {
		if got := classifyTrampoline(tc.arch, tc.code[:tc.pc], tc.code[tc.pc:]); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
