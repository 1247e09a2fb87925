package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Command is a program started under observation: it exists and its first
// instruction is still to come. Its process ID is fit for Config.PIDs.
type Command struct {
	cmd     *exec.Cmd
	release chan struct{}
	once    sync.Once
	waited  chan struct{} // closed when the process has been waited for
	err     error         // of the release or the wait; valid after waited
}

var errNoCommand = errors.New("no command")

// StartCommand starts a program, looked up in PATH, with our standard files
// and environment, in our process group: the terminal's signals reach it as
// they reach us. It is stopped before the first instruction of its loader
// until Resume.
//
// It is stopped by ptrace at the end of its exec, which means that a program
// with the set-user-ID bit gets its rights only when we have CAP_SYS_PTRACE.
func StartCommand(argv []string) (*Command, error) {
	if len(argv) == 0 {
		return nil, errNoCommand
	}
	c := &Command{
		cmd:     exec.Command(argv[0], argv[1:]...),
		release: make(chan struct{}),
		waited:  make(chan struct{}),
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	started := make(chan error)
	go c.run(started)
	if err := <-started; err != nil {
		var named *exec.Error
		var path *fs.PathError
		if errors.As(err, &named) {
			err = named.Err
		} else if errors.As(err, &path) {
			err = path.Err
		}
		return nil, diagnoseStart(fmt.Errorf("start %s: %w", argv[0], err))
	}
	return c, nil
}

// diagnoseStart explains why a program could not be started, where that is for
// want of ptrace.
func diagnoseStart(err error) error {
	if !isRefusal(err) {
		return err
	}
	if TryPtrace() == nil {
		return err
	}
	return &MissingError{
		What:   "permission for ptrace, which holds a command until it is recorded",
		Remedy: "allow it in the seccomp profile of the container; or start the command, and record it by -p",
		Err:    err,
	}
}

// noSuchPID is beyond the largest process ID (PID_MAX_LIMIT).
const noSuchPID = 1<<22 + 1

// TryPtrace asks to trace a process that cannot be. That it is not there is
// found only where ptrace is allowed; else the refusal is returned.
func TryPtrace() error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, noSuchPID, 0, 0, 0, 0)
	if errno == unix.ESRCH {
		return nil
	}
	return errno
}

// run starts the program, stops it, lets it go and waits for it. The calls of
// ptrace must come from the thread that started it.
func (c *Command) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(c.waited)
	if err := c.cmd.Start(); err != nil {
		started <- err
		return
	}
	pid := c.cmd.Process.Pid
	if err := awaitStop(pid); err != nil {
		c.cmd.Process.Kill()
		c.cmd.Wait()
		started <- err
		return
	}
	// Should we die now, the program must not stay behind half-born.
	_ = unix.PtraceSetOptions(pid, unix.PTRACE_O_EXITKILL)
	started <- nil
	<-c.release
	if err := unix.PtraceDetach(pid); err != nil && !errors.Is(err, unix.ESRCH) {
		c.err = fmt.Errorf("let %s go: %w", c.cmd.Path, err)
		c.cmd.Process.Kill()
	}
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if c.err == nil && !errors.As(err, &exit) {
		c.err = err
	}
}

// awaitStop waits for the stop of a traced child at its exec.
func awaitStop(pid int) error {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("wait for its exec: %w", err)
		case !status.Stopped():
			return errors.New("it ended before its first instruction")
		case status.StopSignal() == unix.SIGTRAP:
			return nil
		}
		// Another signal arrived first; it is delivered later, by the
		// kernel's own order of things.
		if err := unix.PtraceCont(pid, int(status.StopSignal())); err != nil {
			return fmt.Errorf("pass a signal on: %w", err)
		}
	}
}

// PID is the program's process ID.
func (c *Command) PID() int {
	if c.cmd == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

// Resume lets the program run. Calling it again does nothing.
func (c *Command) Resume() {
	if c.cmd != nil {
		c.once.Do(func() { close(c.release) })
	}
}

// Resumed reports whether the program was let run, or killed.
func (c *Command) Resumed() bool {
	select {
	case <-c.release:
		return true
	default:
		return false
	}
}

// Kill ends the program, whether resumed or not.
func (c *Command) Kill() {
	if c.cmd == nil {
		return
	}
	c.cmd.Process.Kill()
	c.Resume()
}

// Done is closed when the program has ended.
func (c *Command) Done() <-chan struct{} {
	if c.cmd == nil {
		c = &Command{waited: make(chan struct{})}
		close(c.waited)
	}
	return c.waited
}

// Wait waits for the program's end and returns how it ended. The program must
// have been resumed.
func (c *Command) Wait() (*os.ProcessState, error) {
	if c.cmd == nil {
		return nil, errNoCommand
	}
	<-c.waited
	return c.cmd.ProcessState, c.err
}

// ExitCode is what a shell reports for a process that ended so: its exit code,
// or 128 plus the number of the signal that killed it.
func ExitCode(p *os.ProcessState) int {
	if ws, ok := p.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.ExitCode()
}
