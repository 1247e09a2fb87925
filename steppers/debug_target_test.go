//go:build linux && amd64

package steppers

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// debugTarget is a ProcessState of the simplest kind: a program that this
// thread traces.
type debugTarget struct {
	t     testing.TB
	pid   int // of the program
	tid   int // of the thread that stopped last
	mem   *os.File
	space *procstate.AddressSpace
	regs  syscall.PtraceRegs
}

// debugBuild compiles testdata/debug/deep.cc.
func debugBuild(t testing.TB, compiler string, args ...string) string {
	t.Helper()
	testenv.Needs(t, compiler)
	out := filepath.Join(t.TempDir(), "deep")
	cmd := exec.Command(compiler, append(args, "-pthread", "testdata/debug/deep.cc", "-o", out, "-lstdc++")...)
	testenv.Run(t, cmd)
	return out
}

// startDebugTarget runs a program up to its first breakpoint instruction.
func startDebugTarget(t testing.TB, path string, args ...string) *debugTarget {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = []string{"LC_ALL=C"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &debugTarget{t: t, pid: cmd.Process.Pid, tid: cmd.Process.Pid}
	t.Cleanup(func() {
		syscall.Kill(p.pid, syscall.SIGKILL)
		var ws syscall.WaitStatus
		for {
			if pid, err := syscall.Wait4(p.pid, &ws, syscall.WALL, nil); err != nil && !errors.Is(err, syscall.EINTR) ||
				pid == p.pid && (ws.Exited() || ws.Signaled()) {
				break
			}
		}
		p.mem.Close()
	})
	if sig := p.wait(); sig != syscall.SIGTRAP {
		t.Fatalf("started with %v", sig)
	}
	const traceClone, exitKill = 0x8, 0x100000
	if err := syscall.PtraceSetOptions(p.pid, traceClone|exitKill); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.mem, err = os.Open(fmt.Sprintf("/proc/%d/mem", p.pid)); err != nil {
		t.Fatal(err)
	}
	p.run()
	p.loadMaps()
	return p
}

// wait waits for a thread to stop and returns the signal.
func (p *debugTarget) wait() syscall.Signal {
	p.t.Helper()
	var ws syscall.WaitStatus
	tid, err := syscall.Wait4(-1, &ws, syscall.WALL|syscall.WNOTHREAD, nil)
	for errors.Is(err, syscall.EINTR) || err == nil && tid != p.pid && !ws.Stopped() { // a thread that ended
		tid, err = syscall.Wait4(-1, &ws, syscall.WALL|syscall.WNOTHREAD, nil)
	}
	if err != nil || !ws.Stopped() {
		p.t.Fatalf("wait: %v, status %#x", err, ws)
	}
	p.tid = tid
	if err := syscall.PtraceGetRegs(tid, &p.regs); err != nil {
		p.t.Fatal(err)
	}
	if ws.TrapCause() > 0 {
		return 0 // a new thread
	}
	return ws.StopSignal()
}

// run goes on up to the next breakpoint instruction, and delivers signals.
func (p *debugTarget) run() {
	p.t.Helper()
	sig := syscall.Signal(0)
	for {
		if err := syscall.PtraceCont(p.tid, int(sig)); err != nil {
			p.t.Fatal(err)
		}
		switch sig = p.wait(); sig {
		case syscall.SIGTRAP:
			return
		case syscall.SIGSTOP: // a new thread begins, before its creator has told or after
			sig = 0
		}
	}
}

// loadMaps reads the executable mappings.
func (p *debugTarget) loadMaps() {
	p.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", p.pid))
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	p.space = &procstate.AddressSpace{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var m procstate.Mapping
		var perms, dev string
		var inode uint64
		if _, err := fmt.Sscanf(sc.Text(), "%x-%x %s %x %s %d %s", &m.Start, &m.End, &perms, &m.Offset, &dev, &inode, &m.Path); err != nil ||
			!strings.Contains(perms, "x") {
			continue // without a name, or without code
		}
		switch {
		case m.Path == "[vdso]":
			b := make([]byte, m.End-m.Start)
			if _, err := p.mem.ReadAt(b, int64(m.Start)); err != nil {
				p.t.Fatal(err)
			}
			m.Image, err = procstate.NewImageBytes(b, m.Path)
			if err != nil {
				p.t.Fatal(err)
			}
		case m.Path[0] == '/':
			file, err := os.Open(m.Path)
			if err != nil {
				p.t.Fatal(err)
			}
			p.t.Cleanup(func() { file.Close() })
			st, err := file.Stat()
			if err != nil {
				p.t.Fatal(err)
			}
			if m.Image, err = procstate.NewImage(file, st.Size(), m.Path); err != nil {
				p.t.Fatal(err)
			}
		}
		p.space.Insert(&m)
	}
}

func (p *debugTarget) Arch() *procstate.Arch               { return procstate.AMD64 }
func (p *debugTarget) PID() int                            { return p.pid }
func (p *debugTarget) ExecutablePath() string              { return "" }
func (p *debugTarget) Libraries() procstate.LibraryState   { return p.space }
func (p *debugTarget) BeforeWalk(procstate.ThreadID) error { return nil }
func (p *debugTarget) AfterWalk(procstate.ThreadID) error  { return nil }
func (p *debugTarget) Threads() ([]procstate.ThreadID, error) {
	return []procstate.ThreadID{procstate.ThreadID(p.tid)}, nil
}

func (p *debugTarget) ReadMemory(addr uint64, b []byte) (int, error) {
	n, err := p.mem.ReadAt(b, int64(addr))
	if n < len(b) {
		return max(n, 0), fmt.Errorf("%w: %v", procstate.ErrUnreadable, err)
	}
	return n, nil
}

func (p *debugTarget) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	if _, err := p.ReadMemory(addr, b[:]); err != nil {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

func (p *debugTarget) Registers(_ procstate.ThreadID, regs *procstate.Regs) error {
	r := &p.regs
	*regs = procstate.Regs{}
	for i, v := range []uint64{r.Rax, r.Rdx, r.Rcx, r.Rbx, r.Rsi, r.Rdi, r.Rbp, r.Rsp,
		r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15, r.Rip} {
		regs.Set(procstate.Reg(i), v)
	}
	return nil
}
