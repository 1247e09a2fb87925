package loader

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// checkKnownRegs wants the values that testdata/registers_amd64.S sets, but for some by
// name.
func checkKnownRegs(t *testing.T, p *Sample, except map[string]uint64) {
	t.Helper()
	if p.User != UserNative || p.Arch != procstate.AMD64 {
		t.Fatalf("user state %v, architecture %v", p.User, p.Arch)
	}
	for reg := procstate.Reg(0); reg < 16; reg++ {
		name := procstate.AMD64.RegName(reg)
		want := 0x1111111111111101 + uint64(reg)
		if v, ok := except[name]; ok {
			want = v
		}
		if got, known := p.Regs.Value(reg); name != "rsp" && (got != want || !known) {
			t.Errorf("%s = %#x (known: %v), want %#x", name, got, known, want)
		}
	}
}

// ptraceRegs stops a process and reads its registers.
func ptraceRegs(t *testing.T, pid int) (regs unix.PtraceRegs) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceAttach(pid); err != nil {
		t.Fatal(err)
	}
	defer unix.PtraceDetach(pid)
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	if err := unix.PtraceGetRegs(pid, &regs); err != nil {
		t.Fatal(err)
	}
	return regs
}

func testOldAndNew(t *testing.T, f func(t *testing.T)) {
	t.Run("helpers", f)
	t.Run("Linux 5.8", func(t *testing.T) {
		assumedRelease = "5.8.0"
		defer func() { assumedRelease = "" }()
		f(t)
	})
}

func TestRegistersInUserCode(t *testing.T) {
	testOldAndNew(t, func(t *testing.T) {
		prog := build(t, "registers_amd64.S", "-nostdlib", "-static")
		p := startTarget(t, prog)
		s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
		spin := symbolValue(t, prog, "spin")
		stat := readMainStack(t, p.pid)
		readUntil(t, s, func(p *Sample) bool {
			if p.Regs.Raw(procstate.AMD64.PC) != spin {
				return false // still on its way there
			}
			checkKnownRegs(t, p, nil)
			if sp := p.Regs.Raw(procstate.AMD64.SP); sp != stat {
				t.Errorf("rsp = %#x, the stack starts at %#x", sp, stat)
			}
			return true
		})
	})
}

// A sample that falls in the kernel has the registers with which it was
// entered.
func TestRegistersInSystemCall(t *testing.T) {
	testOldAndNew(t, func(t *testing.T) {
		prog := build(t, "registers_amd64.S", "-nostdlib", "-static")
		event, err := ParseEvent("syscalls:sys_enter_sched_yield")
		if err != nil {
			t.Fatal(err)
		}
		p := startTarget(t, prog, "yield")
		s := startSession(t, Config{Event: event, PIDs: []int{p.pid}, Kernel: true})
		// The system call instruction itself sets rcx and r11 (flags: IF and
		// those of the last comparison); the kernel shows rax as -ENOSYS.
		yielded := symbolValue(t, prog, "yielded")
		readUntil(t, s, func(p *Sample) bool {
			enosys := ^uint64(37)
			checkKnownRegs(t, p, map[string]uint64{
				"rax": enosys, "rcx": yielded, "r11": p.Regs.Raw(11),
			})
			if pc := p.Regs.Raw(procstate.AMD64.PC); pc != yielded {
				t.Errorf("rip = %#x, want %#x", pc, yielded)
			}
			if len(p.Kernel) == 0 || p.Kernel[0]>>63 != 1 {
				t.Errorf("kernel stack %#x", p.Kernel)
			}
			return true
		})
	})
}

// Timer samples of a thread that is mostly in the kernel: the user registers
// are right in those too that hit kernel code.
func TestRegistersUnderTimer(t *testing.T) {
	testOldAndNew(t, func(t *testing.T) {
		prog := build(t, "registers_amd64.S", "-nostdlib", "-static")
		p := startTarget(t, prog, "yield")
		s := startSession(t, Config{Event: cpuClock, Frequency: 997, PIDs: []int{p.pid}, Kernel: true})
		yielded := symbolValue(t, prog, "yielded")
		kernel, begun := 0, false
		readUntil(t, s, func(p *Sample) bool {
			// Before it, it may be in the call that said that it is about to begin.
			begun = begun || p.Regs.Raw(procstate.AMD64.PC) == yielded
			if len(p.Kernel) == 0 || !begun {
				return false
			}
			checkKnownRegs(t, p, map[string]uint64{
				"rax": p.Regs.Raw(0), "rcx": p.Regs.Raw(2), "r11": p.Regs.Raw(11),
			})
			kernel++
			return kernel == 50 || t.Failed()
		})
	})
}

func TestRegistersOf32BitCode(t *testing.T) {
	testenv.Needs32Bit(t)
	prog := build(t, "registers_386.S", "-m32", "-nostdlib", "-static")
	p := startTarget(t, prog)
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	spin := symbolValue(t, prog, "spin")
	readUntil(t, s, func(p *Sample) bool {
		if p.User != UserCompat32 || p.Arch != procstate.I386 {
			t.Fatalf("user state %v, architecture %v", p.User, p.Arch)
		}
		if p.Regs.Raw(procstate.I386.PC) != spin {
			return false
		}
		for reg := procstate.Reg(0); reg < 8; reg++ {
			want := 0x11111101 + uint64(reg)
			if got := p.Regs.Raw(reg); reg != procstate.I386.SP && got != want {
				t.Errorf("%s = %#x, want %#x", procstate.I386.RegName(reg), got, want)
			}
		}
		if p.StackEnd != StackEndBottom || len(fromSP(t, p)) == 0 {
			t.Errorf("stack at %#x ends by %v", p.Regions[0].Addr, p.StackEnd)
		}
		return true
	})
}

func TestThreadPointer(t *testing.T) {
	p := startTarget(t, stackTarget(t), "fill", "64")
	want := ptraceRegs(t, p.pid).Fs_base
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	readUntil(t, s, func(p *Sample) bool {
		if p.Regs.ThreadPointer != want {
			t.Errorf("thread pointer %#x, ptrace says %#x", p.Regs.ThreadPointer, want)
		}
		return true
	})
}
