package oracle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// errExited is returned when the target has ended.
var errExited = errors.New("the target has ended")

// tracee is a program under ptrace, driven from one OS thread.
type tracee struct {
	cmd    *exec.Cmd
	pid    int
	tid    int // the thread that is stepped
	child  int // a child process that is stepped, 0 when it is the program itself
	event  int // PTRACE_EVENT_* of the last stop, 0 when it was none
	mem    *os.File
	regbuf [1024]byte
}

// startTracee starts a program, stopped before its first instruction.
func startTracee(args, env []string, dir string, out io.Writer) (*tracee, error) {
	if procstate.HostArch() != procstate.AMD64 {
		return nil, fmt.Errorf("the oracle knows x86-64 only: %w", procstate.ErrNotSupported)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &tracee{cmd: cmd, pid: cmd.Process.Pid, tid: cmd.Process.Pid}
	if _, err := t.wait(); err != nil {
		return nil, err
	}
	if err := unix.PtraceSetOptions(t.pid, unix.PTRACE_O_EXITKILL); err != nil {
		t.kill()
		return nil, fmt.Errorf("options of the trace: %w", err)
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", t.pid), os.O_RDWR, 0)
	if err != nil {
		t.kill()
		return nil, err
	}
	t.mem = mem
	return t, nil
}

// kill ends the target and waits for it.
func (t *tracee) kill() {
	if t.child != 0 {
		_ = unix.Kill(t.child, unix.SIGKILL)
		_, _ = unix.Wait4(t.child, nil, unix.WALL, nil)
	}
	_ = unix.Kill(t.cmd.Process.Pid, unix.SIGKILL)
	_ = t.cmd.Wait()
	if t.mem != nil {
		t.mem.Close()
	}
}

// wait waits for the thread to stop and returns the signal that stopped it.
func (t *tracee) wait() (unix.Signal, error) {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(t.tid, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, fmt.Errorf("wait for thread %d: %w", t.tid, err)
		case ws.Exited() || ws.Signaled():
			return 0, errExited
		case ws.Stopped():
			t.event = max(ws.TrapCause(), 0)
			return ws.StopSignal(), nil
		}
	}
}

func (t *tracee) ptrace(request int, addr, data uintptr) error {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(t.tid), addr, data, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// step executes one instruction, or delivers a signal, and returns the signal
// that stopped the thread: SIGTRAP when it was the step itself.
func (t *tracee) step(sig unix.Signal) (unix.Signal, error) {
	if err := t.ptrace(unix.PTRACE_SINGLESTEP, 0, uintptr(sig)); err != nil {
		return 0, errExited
	}
	return t.wait()
}

// cont lets the thread run until a signal stops it.
func (t *tracee) cont(sig unix.Signal) (unix.Signal, error) {
	if err := t.ptrace(unix.PTRACE_CONT, 0, uintptr(sig)); err != nil {
		return 0, errExited
	}
	return t.wait()
}

// registers reads the registers of the stopped thread.
func (t *tracee) registers(arch *procstate.Arch, regs *procstate.Regs) error {
	n, err := t.regset(unix.PTRACE_GETREGSET, t.regbuf[:])
	if err != nil {
		return fmt.Errorf("registers of thread %d: %w", t.tid, err)
	}
	return procstate.DecodeRegset(arch, t.regbuf[:n], regs)
}

// runTo lets the program run until it is about to execute the instruction at
// addr, by a breakpoint that is then taken away.
func (t *tracee) runTo(addr uint64, arch *procstate.Arch) error {
	var old [1]byte
	if _, err := t.mem.ReadAt(old[:], int64(addr)); err != nil {
		return fmt.Errorf("breakpoint at %#x: %w", addr, err)
	}
	if _, err := t.mem.WriteAt([]byte{0xcc}, int64(addr)); err != nil {
		return fmt.Errorf("breakpoint at %#x: %w", addr, err)
	}
	sig := unix.Signal(0)
	for {
		var err error
		if sig, err = t.cont(sig); err != nil {
			return err
		}
		var regs procstate.Regs
		if err := t.registers(arch, &regs); err != nil {
			return err
		}
		if sig == unix.SIGTRAP && regs.Raw(arch.PC) == addr+1 {
			break
		}
	}
	if _, err := t.mem.WriteAt(old[:], int64(addr)); err != nil {
		return err
	}
	return t.setPC(addr)
}

// runPast lets the program run until it has made a system call of that number.
func (t *tracee) runPast(number uint64) error {
	const options, stop = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESYSGOOD, unix.SIGTRAP | 0x80
	if err := unix.PtraceSetOptions(t.tid, options); err != nil {
		return fmt.Errorf("options of the trace: %w", err)
	}
	sig, made := unix.Signal(0), false
	for {
		if err := t.ptrace(unix.PTRACE_SYSCALL, 0, uintptr(sig)); err != nil {
			return errExited
		}
		var err error
		if sig, err = t.wait(); err != nil {
			return err
		}
		switch sig {
		case stop:
			if made {
				return nil // on the way back from the call
			}
			if _, err := t.regset(unix.PTRACE_GETREGSET, t.regbuf[:]); err != nil {
				return fmt.Errorf("registers of thread %d: %w", t.tid, err)
			}
			made = binary.LittleEndian.Uint64(t.regbuf[regsetOrigRAX*8:]) == number
			sig = 0
		case unix.SIGTRAP:
			sig = 0
		}
	}
}

// runToThread lets the program run until it starts a thread, and changes over
// to that thread, which has not executed anything yet. The others run on.
func (t *tracee) runToThread() error {
	if err := unix.PtraceSetOptions(t.tid, unix.PTRACE_O_EXITKILL|unix.PTRACE_O_TRACECLONE); err != nil {
		return fmt.Errorf("options of the trace: %w", err)
	}
	sig := unix.Signal(0)
	for {
		var err error
		if sig, err = t.cont(sig); err != nil {
			return err
		}
		if sig == unix.SIGTRAP {
			sig = 0
			if id, err := unix.PtraceGetEventMsg(t.tid); err == nil && id > 0 {
				parent := t.tid
				t.tid = int(id)
				if _, err := t.wait(); err != nil {
					return err
				}
				if err := unix.PtraceDetach(parent); err != nil {
					return fmt.Errorf("let thread %d go: %w", parent, err)
				}
				return nil
			}
		}
	}
}

// watchChildren has the program stop where it makes a child process.
func (t *tracee) watchChildren() error {
	const options = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE
	if err := unix.PtraceSetOptions(t.tid, options); err != nil {
		return fmt.Errorf("options of the trace: %w", err)
	}
	return nil
}

// madeChild reports whether the last stop was where a child process is made.
func (t *tracee) madeChild() bool {
	switch t.event {
	case unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK, unix.PTRACE_EVENT_CLONE:
		return true
	}
	return false
}

// toChild changes over to the child process that was just made, and lets its
// parent go.
func (t *tracee) toChild() error {
	id, err := unix.PtraceGetEventMsg(t.tid)
	if err != nil {
		return fmt.Errorf("child of %d: %w", t.tid, err)
	}
	parent := t.tid
	t.pid, t.tid, t.child = int(id), int(id), int(id)
	if _, err := t.wait(); err != nil {
		return err
	}
	if err := unix.PtraceDetach(parent); err != nil {
		return fmt.Errorf("let %d go: %w", parent, err)
	}
	return nil
}

// entry returns the address of the program's first own instruction, after
// those of the dynamic loader.
func (t *tracee) entry() (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", t.pid))
	if err != nil {
		return 0, err
	}
	const atEntry = 9
	for ; len(b) >= 16; b = b[16:] {
		if binary.LittleEndian.Uint64(b) == atEntry {
			return binary.LittleEndian.Uint64(b[8:]), nil
		}
	}
	return 0, errors.New("the auxiliary vector has no entry point")
}
