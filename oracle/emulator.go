package oracle

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

// emulator is an AArch64 program run by qemu-user, driven by the remote
// protocol of GDB. Its memory is qemu's own, at the same addresses.
type emulator struct {
	cmd  *exec.Cmd
	dir  string        // of the socket
	done chan struct{} // closed when qemu has ended
	conn net.Conn
	in   *bufio.Reader
	pid  int

	thread string // the one that is followed, as qemu names it; "" is the only one
	frozen int    // a thread that is stopped by ptrace, 0 for none
}

// crossLibraries is where Debian has the libraries of AArch64.
const crossLibraries = "/usr/aarch64-linux-gnu"

// startEmulator starts a program, stopped before its first instruction. Where
// its libraries are, QEMU_LD_PREFIX in the environment tells.
func startEmulator(args, env []string, dir string, out io.Writer) (*emulator, error) {
	tmp, err := os.MkdirTemp("", "oracle")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(tmp, "gdb")
	e := &emulator{cmd: exec.Command("qemu-aarch64", append([]string{"-g", socket}, args...)...), dir: tmp}
	e.cmd.Env = append(append([]string{"QEMU_LD_PREFIX=" + crossLibraries}, os.Environ()...), env...)
	e.cmd.Dir, e.cmd.Stdout, e.cmd.Stderr = dir, out, out
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := e.cmd.Start(); err != nil {
		os.RemoveAll(tmp)
		return nil, err
	}
	e.pid, e.done = e.cmd.Process.Pid, make(chan struct{})
	go func() {
		_ = e.cmd.Wait()
		close(e.done)
	}()
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(time.Millisecond) { // until it listens
		if e.conn, err = net.Dial("unix", socket); err == nil {
			break
		}
		select {
		case <-e.done:
		default:
			if time.Now().Before(deadline) {
				continue
			}
		}
		e.kill()
		return nil, fmt.Errorf("qemu's GDB server: %w", err)
	}
	e.in = bufio.NewReader(e.conn)
	if _, err := e.ask("qSupported"); err != nil {
		e.kill()
		return nil, err
	}
	return e, nil
}

// kill ends the program and waits for it.
func (e *emulator) kill() {
	if e.conn != nil {
		e.conn.Close()
	}
	_ = e.cmd.Process.Kill()
	if e.frozen != 0 {
		for err := unix.EINTR; err == unix.EINTR; {
			_, werr := unix.Wait4(e.frozen, nil, unix.WALL, nil)
			err, _ = werr.(unix.Errno)
		}
		runtime.UnlockOSThread()
	}
	<-e.done
	os.RemoveAll(e.dir)
}

// ask sends a packet and returns the answer; errExited when the program has
// ended.
func (e *emulator) ask(packet string) (string, error) {
	sum := byte(0)
	for i := range len(packet) {
		sum += packet[i]
	}
	if _, err := fmt.Fprintf(e.conn, "+$%s#%02x", packet, sum); err != nil {
		return "", errExited
	}
	if _, err := e.in.ReadString('$'); err != nil { // acknowledgements
		return "", errExited
	}
	answer, err := e.in.ReadString('#')
	if err != nil {
		return "", errExited
	}
	if _, err := e.in.Discard(2); err != nil {
		return "", errExited
	}
	answer = answer[:len(answer)-1]
	if strings.HasPrefix(answer, "W") || strings.HasPrefix(answer, "X") {
		return "", errExited
	}
	return answer, nil
}

// gdbSignals are the numbers that GDB has for signals that are not the same in
// Linux.
var gdbSignals = map[int]unix.Signal{10: unix.SIGBUS, 30: unix.SIGUSR1, 31: unix.SIGUSR2, 20: unix.SIGCHLD, 24: unix.SIGXCPU, 26: unix.SIGVTALRM, 27: unix.SIGPROF}

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

// step executes one instruction, after it has delivered a signal if there is
// one, and returns the signal that stopped the program: SIGTRAP when it was
// the step itself.
func (e *emulator) step(sig unix.Signal) (unix.Signal, error) {
	packet := "vCont;s"
	if e.thread != "" {
		packet += ":" + e.thread + ";c"
	}
	if sig != 0 {
		n := int(sig)
		for gdb, s := range gdbSignals {
			if s == sig {
				n = gdb
			}
		}
		packet = fmt.Sprintf("vCont;S%02x", n)
	}
	answer, err := e.ask(packet)
	if err != nil {
		return 0, err
	}
	return stopped(answer)
}

// runTo lets the program run until it is about to execute the instruction at
// addr.
func (e *emulator) runTo(addr uint64) error {
	for _, packet := range []string{fmt.Sprintf("Z0,%x,4", addr), "vCont;c", fmt.Sprintf("z0,%x,4", addr)} {
		if _, err := e.ask(packet); err != nil {
			return err
		}
	}
	return nil
}

// runUntil lets the program run until it is about to make the system call nr
// by one of the instructions at addrs.
func (e *emulator) runUntil(nr uint64, addrs []uint64) error {
	const x8 = 8 // the number of a system call
	ask := func(packets ...string) (answer string, err error) {
		for i := 0; i < len(packets) && err == nil; i++ {
			answer, err = e.ask(packets[i])
		}
		return answer, err
	}
	var set, remove []string
	for _, a := range addrs {
		set, remove = append(set, fmt.Sprintf("Z0,%x,4", a)), append(remove, fmt.Sprintf("z0,%x,4", a))
	}
	for {
		answer, err := ask(append(set, "vCont;c")...)
		if err != nil {
			return err
		}
		if _, thread, ok := strings.Cut(answer, "thread:"); ok {
			e.thread, _, _ = strings.Cut(thread, ";")
		}
		if _, err := ask(remove...); err != nil {
			return err
		}
		var regs procstate.Regs
		if err := e.registers(&regs); err != nil || regs.Raw(x8) == nr {
			return err
		}
		if _, err := e.step(0); err != nil {
			return err
		}
	}
}

// freezeSleeper stops the thread that sleeps for short times again and again: the
// monitor of Go's runtime, which preempts goroutines that run for 10 ms. One that
// is executed an instruction at a time would come no further. The goroutine that
// calls it is kill's, and stays on its thread until then.
func (e *emulator) freezeSleeper() error {
	runtime.LockOSThread()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", e.pid))
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, _ := strconv.Atoi(t.Name())
			call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", e.pid, tid))
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
			e.frozen = tid
			_, err := unix.Wait4(tid, nil, unix.WALL, nil)
			return err
		}
	}
	return errors.New("no thread of the program sleeps")
}

// registers reads the registers of the stopped program: X0 to X30, SP and PC.
func (e *emulator) registers(regs *procstate.Regs) error {
	answer, err := e.ask("g")
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
