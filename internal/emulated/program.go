package emulated

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// Program is an AArch64 program run by qemu-user, driven by the remote protocol of
// GDB. Its memory is qemu's own, at the same addresses.
type Program struct {
	PID int // of qemu

	// MakesCode tells that the program makes code at run time: then memory of no file is executable as
	// far as some around it has been executed.
	MakesCode bool

	cmd  *exec.Cmd
	dir  string        // of the socket
	done chan struct{} // closed when qemu has ended
	conn net.Conn
	in   *bufio.Reader

	thread string     // the one that stopped last, as qemu names it; "" is the only one
	ran    chan error // what Run has come to
	frozen int        // a thread that is stopped by ptrace, 0 for none
	tls    string     // the number that qemu has for the register TPIDR_EL0, "" when not known yet
}

// ErrEnded says that the program has ended.
var ErrEnded = errors.New("the program has ended")

// processor has all that qemu knows, with the way to sign return addresses that is quick to emulate.
const processor = "max,pauth-impdef=on"

// crossLibraries is where Debian has the libraries of AArch64.
const crossLibraries = "/usr/aarch64-linux-gnu"

// Start starts a program, stopped before its first instruction. Where its libraries are,
// QEMU_LD_PREFIX in the environment tells.
func Start(args, env []string, dir string, out io.Writer) (*Program, error) {
	tmp, err := os.MkdirTemp("", "emulated")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(tmp, "gdb")
	p := &Program{cmd: exec.Command("qemu-aarch64", append([]string{"-cpu", processor, "-g", socket}, args...)...), dir: tmp}
	p.cmd.Env = append(append([]string{"QEMU_LD_PREFIX=" + crossLibraries}, os.Environ()...), env...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		os.RemoveAll(tmp)
		return nil, err
	}
	p.PID, p.done = p.cmd.Process.Pid, make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(time.Millisecond) { // until it listens
		if p.conn, err = net.Dial("unix", socket); err == nil {
			break
		}
		select {
		case <-p.done:
		default:
			if time.Now().Before(deadline) {
				continue
			}
		}
		p.Kill()
		return nil, fmt.Errorf("qemu's GDB server: %w", err)
	}
	p.in = bufio.NewReader(p.conn)
	if _, err := p.ask("qSupported"); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// Kill ends the program and waits for it.
func (p *Program) Kill() {
	if p.conn != nil {
		p.conn.Close()
	}
	_ = p.cmd.Process.Kill()
	if p.frozen != 0 {
		for err := unix.EINTR; err == unix.EINTR; {
			_, werr := unix.Wait4(p.frozen, nil, unix.WALL, nil)
			err, _ = werr.(unix.Errno)
		}
		runtime.UnlockOSThread()
	}
	<-p.done
	os.RemoveAll(p.dir)
}

// ask sends a packet and returns the answer; ErrEnded when the program has
// ended.
func (p *Program) ask(packet string) (string, error) {
	sum := byte(0)
	for i := range len(packet) {
		sum += packet[i]
	}
	if _, err := fmt.Fprintf(p.conn, "+$%s#%02x", packet, sum); err != nil {
		return "", ErrEnded
	}
	if _, err := p.in.ReadString('$'); err != nil { // acknowledgements
		return "", ErrEnded
	}
	answer, err := p.in.ReadString('#')
	if err != nil {
		return "", ErrEnded
	}
	if _, err := p.in.Discard(2); err != nil {
		return "", ErrEnded
	}
	answer = answer[:len(answer)-1]
	if strings.HasPrefix(answer, "W") || strings.HasPrefix(answer, "X") {
		return "", ErrEnded
	}
	return answer, nil
}

// gdbSignals are the numbers that GDB has for signals that are not the same in
// Linux.
var gdbSignals = map[int]unix.Signal{10: unix.SIGBUS, 30: unix.SIGUSR1, 31: unix.SIGUSR2, 20: unix.SIGCHLD, 24: unix.SIGXCPU, 26: unix.SIGVTALRM, 27: unix.SIGPROF}

// gdbSignal is the number that GDB has for a signal.
func gdbSignal(sig unix.Signal) int {
	for gdb, s := range gdbSignals {
		if s == sig {
			return gdb
		}
	}
	return int(sig)
}

// stopped reads why the program stopped: SIGTRAP when by a step or a
// breakpoint.
func stopped(answer string) (unix.Signal, error) {
	if len(answer) < 3 || answer[0] != 'T' && answer[0] != 'S' {
		return 0, fmt.Errorf("answer of qemu's GDB server: %q", answer)
	}
	n, err := strconv.ParseUint(answer[1:3], 16, 8)
	if sig, ok := gdbSignals[int(n)]; ok {
		return sig, err
	}
	return unix.Signal(n), err
}

// Step executes one instruction, after it has delivered a signal if there is
// one, and returns the signal that stopped the program: SIGTRAP when it was
// the step itself.
func (p *Program) Step(sig unix.Signal) (unix.Signal, error) {
	packet := "vCont;s"
	if p.thread != "" {
		packet += ":" + p.thread + ";c"
	}
	if sig != 0 {
		packet = fmt.Sprintf("vCont;S%02x", gdbSignal(sig))
	}
	answer, err := p.ask(packet)
	if err != nil {
		return 0, err
	}
	return stopped(answer)
}

// runTo lets the program run until a thread is about to execute one of the instructions at
// addrs, or it gets the signal last. It gets all others.
func (p *Program) runTo(last unix.Signal, addrs ...uint64) error {
	for _, a := range addrs {
		if _, err := p.ask(fmt.Sprintf("Z0,%x,4", a)); err != nil {
			return err
		}
	}
	for packet := "vCont;c"; ; {
		answer, err := p.ask(packet)
		if err != nil {
			return err
		}
		sig, err := stopped(answer)
		if err != nil {
			return err
		}
		if _, thread, ok := strings.Cut(answer, "thread:"); ok {
			p.thread, _, _ = strings.Cut(thread, ";")
		}
		if sig == unix.SIGTRAP || sig == last {
			break
		}
		packet = fmt.Sprintf("vCont;C%02x", gdbSignal(sig))
		if p.thread != "" {
			packet += ":" + p.thread + ";c"
		}
	}
	for _, a := range addrs {
		if _, err := p.ask(fmt.Sprintf("z0,%x,4", a)); err != nil {
			return err
		}
	}
	return nil
}

// RunTo lets the program run until it is about to execute the instruction at addr.
func (p *Program) RunTo(addr uint64) error { return p.runTo(0, addr) }

// Run lets the program run until Stop. Nothing else may be asked of it until then.
func (p *Program) Run() {
	p.ran = make(chan error, 1)
	go func() { p.ran <- p.runTo(unix.SIGINT) }()
}

// Stop stops a program that runs. Threads in system calls are where they come back to.
func (p *Program) Stop() error {
	if err := unix.Kill(p.PID, unix.SIGINT); err != nil {
		return err
	}
	return <-p.ran
}

// RunToCall lets the program run until it is about to make the system call nr
// by one of the instructions at addrs.
func (p *Program) RunToCall(nr uint64, addrs []uint64) error {
	const x8 = 8 // the number of a system call
	for {
		if err := p.runTo(0, addrs...); err != nil {
			return err
		}
		var regs procstate.Regs
		if err := p.Registers(&regs); err != nil || regs.Raw(x8) == nr {
			return err
		}
		if _, err := p.Step(0); err != nil {
			return err
		}
	}
}

// FreezeSleeper stops the thread that sleeps for short times again and again: the
// monitor of Go's runtime, which preempts goroutines that run for 10 ms. One that
// is executed an instruction at a time would come no further. The goroutine that
// calls it is Kill's, and stays on its thread until then.
func (p *Program) FreezeSleeper() error {
	runtime.LockOSThread()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, _ := strconv.Atoi(t.Name())
			call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", p.PID, tid))
			nr, _, _ := strings.Cut(string(call), " ")
			if nr != strconv.Itoa(unix.SYS_NANOSLEEP) && nr != strconv.Itoa(unix.SYS_CLOCK_NANOSLEEP) {
				continue
			}
			if err := unix.PtraceSeize(tid); err != nil {
				return err
			}
			if err := unix.PtraceInterrupt(tid); err != nil {
				return err
			}
			p.frozen = tid
			_, err := unix.Wait4(tid, nil, unix.WALL, nil)
			return err
		}
	}
	return errors.New("no thread of the program sleeps")
}

// threads returns the threads of the stopped program, as qemu names them, by their IDs.
func (p *Program) threads() (map[procstate.ThreadID]string, error) {
	threads := map[procstate.ThreadID]string{}
	for packet := "qfThreadInfo"; ; packet = "qsThreadInfo" {
		answer, err := p.ask(packet)
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(answer, "m") {
			return threads, nil
		}
		for name := range strings.SplitSeq(answer[1:], ",") {
			number := name[strings.Index(name, ".")+1:] // behind the process, or alone
			tid, err := strconv.ParseUint(number, 16, 31)
			if err != nil {
				return nil, fmt.Errorf("threads by qemu's GDB server: %q", answer)
			}
			threads[procstate.ThreadID(tid)] = name
		}
	}
}

// follow has Registers tell of another thread.
func (p *Program) follow(thread string) error {
	answer, err := p.ask("Hg" + thread)
	if err == nil && answer != "OK" {
		err = fmt.Errorf("thread %s by qemu's GDB server: %q", thread, answer)
	}
	return err
}

// Registers reads the registers of the thread that stopped, or that is followed: X0 to X30, SP and PC.
func (p *Program) Registers(regs *procstate.Regs) error {
	answer, err := p.ask("g")
	if err != nil {
		return err
	}
	b, err := hex.DecodeString(answer[:min(len(answer), 33*16)])
	if err != nil || len(b) < 33*8 {
		return errors.New("registers from qemu's GDB server: too few")
	}
	for r := range procstate.Reg(33) {
		v := uint64(0)
		for i := 7; i >= 0; i-- {
			v = v<<8 | uint64(b[int(r)*8+i])
		}
		regs.Set(r, v)
	}
	return nil
}
