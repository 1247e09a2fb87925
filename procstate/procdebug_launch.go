package procstate

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// LaunchOptions are those of Launch; nil stands for the zero value.
type LaunchOptions struct {
	Dir   string     // working directory; "" for the caller's
	Env   []string   // environment; nil for the caller's
	Files []*os.File // from descriptor 0 on; nil for the caller's first three
}

// Launch starts a program and traces it from its first instruction, before
// which it is paused: Resume sets it going. path is looked up in PATH when it
// has no slash; argv[0] is the name that the program sees. A launched program
// outlives its tracer, like one that was attached.
func Launch(path string, argv []string, opts *LaunchOptions) (*ProcDebug, error) {
	if HostArch() == nil {
		return nil, fmt.Errorf("tracing on this machine: %w", ErrNotSupported)
	}
	if opts == nil {
		opts = &LaunchOptions{}
	}
	file, err := exec.LookPath(path)
	if err != nil {
		return nil, err
	}
	if len(argv) == 0 {
		argv = []string{path}
	}
	attr := &os.ProcAttr{Dir: opts.Dir, Env: opts.Env, Files: opts.Files, Sys: &syscall.SysProcAttr{Ptrace: true}}
	if attr.Files == nil {
		attr.Files = []*os.File{os.Stdin, os.Stdout, os.Stderr}
	}
	p := newDebug(0)
	p.launched = true
	p.e.do(func() { err = p.e.launch(p, file, argv, attr) })
	if err != nil {
		p.e.do(p.drop)
		return nil, fmt.Errorf("launching %s: %w", path, err)
	}
	p.learnExe()
	if err := p.learnArch(); err != nil {
		p.Detach()
		return nil, fmt.Errorf("launching %s: %w", path, err)
	}
	return p, nil
}

// launch starts the program and turns the old form of tracing, which is all
// that a child can ask for by itself, into PTRACE_SEIZE: the child is let go
// with a SIGSTOP, before its first instruction, and seized where it stands.
// The SIGCONT that ends this stop is kept from the program.
func (e *engine) launch(p *ProcDebug, file string, argv []string, attr *os.ProcAttr) error {
	child, err := os.StartProcess(file, argv, attr)
	if err != nil {
		return err
	}
	p.pid, p.mem.source, p.libs.pid = child.Pid, liveProcess(child.Pid), child.Pid
	tid := ThreadID(child.Pid)
	child.Release()
	step := func(what string, errno unix.Errno) error {
		if errno == 0 {
			return nil
		}
		unix.Kill(p.pid, unix.SIGKILL)
		var ws unix.WaitStatus
		unix.Wait4(p.pid, &ws, unix.WALL, nil)
		return fmt.Errorf("%s: %w", what, errno)
	}
	if err := step("wait for exec", waitStopped(p.pid)); err != nil {
		return err
	}
	if err := step("PTRACE_DETACH", ptraceDetach(tid, unix.SIGSTOP)); err != nil {
		return err
	}
	if err := step("wait for stop", waitStopped(p.pid)); err != nil {
		return err
	}
	if err := step("PTRACE_SEIZE", ptraceSeize(tid)); err != nil {
		return err
	}
	if err := step("wait for the tracer's stop", waitStopped(p.pid)); err != nil {
		return err
	}
	e.targets[p.pid] = p
	p.pausedAll = true
	t := e.enlist(p, tid)
	t.state = traceeStopped
	p.dropCont = true
	unix.Kill(p.pid, unix.SIGCONT)
	theEvents.targetsChanged(1)
	theWatcher.tell()
	return nil
}

// waitStopped waits for a child to stop, in whatever way.
func waitStopped(pid int) unix.Errno {
	for {
		var ws unix.WaitStatus
		switch _, err := unix.Wait4(pid, &ws, unix.WALL|unix.WUNTRACED, nil); {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err.(unix.Errno)
		case ws.Stopped():
			return 0
		default:
			return unix.ESRCH
		}
	}
}

// reap waits for the end of a launched program that was detached: it is a
// child of this process and would stay a zombie.
func reap(pid int) {
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != unix.EINTR {
			return
		}
	}
}
