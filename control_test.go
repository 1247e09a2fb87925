package swbpf_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

const lifeBuild = "gcc -O1 -pthread"

// attachLife starts life.c and attaches it.
func attachLife(t testing.TB) (*target, *procstate.ProcDebug) {
	t.Helper()
	canTrace(t)
	tg := start(t, build(t, "life.c", lifeBuild))
	p, err := procstate.Attach(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Detach)
	drainEvents(t)
	return tg, p
}

func drainEvents(t testing.TB) {
	t.Helper()
	if _, err := procstate.HandleDebugEvents(false); err != nil {
		t.Fatal(err)
	}
}

// count asks life.c how often its busy thread has gone round.
func count(t testing.TB, tg *target) int {
	t.Helper()
	n, err := strconv.Atoi(tg.ask(t, "count"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// busyThread finds the thread of that name.
func busyThread(t testing.TB, pid int) procstate.ThreadID {
	t.Helper()
	var busy procstate.ThreadID
	eventually(t, "there is a busy thread", func() bool {
		ts, err := procstate.ProcessThreads(pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, th := range ts {
			if th.Name == "busy" {
				busy = th.TID
			}
		}
		return busy != 0
	})
	return busy
}

func TestPauseThread(t *testing.T) {
	tg, p := attachLife(t)
	busy := busyThread(t, tg.pid)
	if err := p.Resume(busy); err == nil {
		t.Error("a thread that was not paused could be resumed")
	}
	if err := p.Pause(busy); err != nil {
		t.Fatal(err)
	}
	n := count(t, tg)
	w := swbpf.With(p, nil, nil)
	for range 3 { // it stays paused through walks and captures
		if frames, err := w.WalkStack(nil, busy); err != nil || len(frames) < 2 {
			t.Errorf("%d frames, %v", len(frames), err)
		}
		if _, err := p.Capture(procstate.CaptureOptions{}); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if m := count(t, tg); m != n {
		t.Errorf("the paused thread went round %d times", m-n)
	}
	if err := p.Resume(busy); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the thread goes on", func() bool { return count(t, tg) != n })
}

func TestPauseProcess(t *testing.T) {
	tg, p := attachLife(t)
	if err := p.Pause(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	if s := threadStates(tg.pid); strings.Trim(s, "t") != "" {
		t.Errorf("thread states %q, want all traced", s)
	}
	w := swbpf.With(p, nil, nil)
	a, errA := w.WalkStack(nil, procstate.DefaultThread)
	b, errB := w.WalkStack(nil, procstate.DefaultThread)
	if errA != nil || errB != nil || !slices.Equal(a, b) {
		t.Error("two walks of a paused thread differ")
	}
	if err := p.Resume(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	if tg.ask(t, "thread") != "ok" {
		t.Error("the process does not go on")
	}
	if err := p.Pause(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	p.Detach() // lets paused threads go
	goesOn(t, tg.pid)
	if tg.ask(t, "thread") != "ok" {
		t.Error("the process does not go on after Detach")
	}
	if err := p.Pause(procstate.DefaultThread); !errors.Is(err, procstate.ErrDetached) {
		t.Errorf("pausing a detached process: %v", err)
	}
}

// events collects the kinds of events until one of the given kind has come.
func eventsUntil(t testing.TB, kind procstate.EventKind) []procstate.Event {
	t.Helper()
	var all []procstate.Event
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			evs, err := procstate.HandleDebugEvents(true)
			if err != nil {
				t.Error(err)
				return
			}
			all = append(all, evs...)
			for _, ev := range evs {
				if ev.Kind == kind {
					return
				}
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%v does not come", kind)
	}
	return all
}

func kinds(evs []procstate.Event) (ks []procstate.EventKind) {
	for _, ev := range evs {
		ks = append(ks, ev.Kind)
	}
	return ks
}

func TestEvents(t *testing.T) {
	tg, p := attachLife(t)
	fd, err := procstate.NotificationFD()
	if err != nil {
		t.Fatal(err)
	}
	readable := func(ms int) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, ms)
		return err == nil && n == 1
	}
	if readable(0) {
		t.Error("the descriptor is readable before anything happened")
	}
	tg.ask(t, "thread")
	if !readable(int(patience.Milliseconds())) {
		t.Error("the descriptor does not become readable")
	}
	if ks := kinds(eventsUntil(t, procstate.ThreadDied)); !slices.Equal(ks, []procstate.EventKind{procstate.ThreadBorn, procstate.ThreadDied}) {
		t.Errorf("events %v", ks)
	}
	if readable(0) {
		t.Error("the descriptor stays readable")
	}

	child, status, _ := strings.Cut(tg.ask(t, "fork"), " ")
	evs := eventsUntil(t, procstate.Forked)
	if len(evs) != 1 || itoa(evs[0].Child) != child || status != "7" {
		t.Errorf("events %v; the child was %s and ended with %s", evs, child, status)
	}

	tg.ask(t, "thread")
	eventsUntil(t, procstate.ThreadDied)
	fmt.Fprintln(tg.in, "exec")
	tg.in.Flush()
	if line := tg.line(t); line != "ready" {
		t.Fatalf("after exec: %q", line)
	}
	eventsUntil(t, procstate.Execed)
	if tids, err := p.Threads(); err != nil || len(tids) != 2 || int(tids[0]) != tg.pid {
		t.Errorf("after exec: threads %v, %v", tids, err)
	}
	if frames, err := swbpf.With(p, nil, nil).WalkStack(nil, procstate.DefaultThread); err != nil || len(frames) < 5 {
		t.Errorf("after exec: %d frames, %v", len(frames), err)
	}

	if p.IsTerminated() {
		t.Error("terminated before its end")
	}
	fmt.Fprintln(tg.in, "exit 9")
	tg.in.Flush()
	evs = eventsUntil(t, procstate.Terminated)
	if last := evs[len(evs)-1]; last.Process != p || last.Status.ExitStatus() != 9 {
		t.Errorf("last event %+v", last)
	}
	<-p.Done()
	if ws, ok := p.ExitStatus(); !ok || ws.ExitStatus() != 9 || !p.IsTerminated() {
		t.Errorf("status %v, %v", ws, ok)
	}
	if _, err := p.Threads(); !errors.Is(err, procstate.ErrTerminated) {
		t.Errorf("threads of a process that has ended: %v", err)
	}
	if err := tg.cmd.Wait(); tg.cmd.ProcessState.ExitCode() != 9 {
		t.Errorf("the parent sees %v", err)
	}
	if _, err := procstate.HandleDebugEvents(true); !errors.Is(err, procstate.ErrNoTarget) {
		t.Errorf("waiting for events of nobody: %v", err)
	}
}

// TestReapedByParent: the end of a child is told of also where this process
// waits for it, and may take its status away.
func TestReapedByParent(t *testing.T) {
	for range 20 {
		tg, p := attachLife(t)
		reaped := make(chan error, 1)
		go func() { reaped <- tg.cmd.Wait() }()
		tg.say("exit 9")
		evs := eventsUntil(t, procstate.Terminated)
		if last := evs[len(evs)-1]; last.Process != p {
			t.Errorf("last event %+v", last)
		}
		<-p.Done()
		if ws, ok := p.ExitStatus(); !ok || ws.Exited() && ws.ExitStatus() != 9 || ws.Signaled() {
			t.Errorf("status %v, %v", ws, ok)
		}
		if err := <-reaped; tg.cmd.ProcessState.ExitCode() != 9 {
			t.Errorf("the parent sees %v", err)
		}
	}
	if _, err := procstate.HandleDebugEvents(true); !errors.Is(err, procstate.ErrNoTarget) {
		t.Errorf("waiting for events of nobody: %v", err)
	}
}

// TestSignalsPass: signals that queue all come through, while the program is
// traced and stopped again and again.
func TestSignalsPass(t *testing.T) {
	tg, p := attachLife(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := p.Capture(procstate.CaptureOptions{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	const n = 3000
	for range n {
		if err := unix.Kill(tg.pid, 34); err != nil { // SIGRTMIN of libc
			t.Fatal(err)
		}
	}
	defer wg.Wait()
	defer close(stop)
	eventually(t, itoa(n)+" signals have come through", func() bool { return tg.ask(t, "signals") == itoa(n) })
}

// TestJobControl: a process that was stopped by a signal stays stopped through
// walks, and SIGCONT sets it going.
func TestJobControl(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "life.c", lifeBuild))
	stopped := func() {
		t.Helper()
		eventually(t, "all threads are stopped", func() bool { return strings.Trim(threadStates(tg.pid), "T") == "" })
	}
	unix.Kill(tg.pid, unix.SIGSTOP)
	stopped()
	for range 3 {
		if _, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{}); err != nil {
			t.Fatal(err)
		}
		stopped()
	}
	p, err := procstate.Attach(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	w := swbpf.With(p, nil, nil)
	if frames, err := w.WalkStack(nil, procstate.DefaultThread); err != nil || len(frames) < 5 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
	unix.Kill(tg.pid, unix.SIGCONT)
	if tg.ask(t, "thread") != "ok" {
		t.Error("SIGCONT does not set it going")
	}
	unix.Kill(tg.pid, unix.SIGSTOP)
	eventually(t, "a traced process is stopped", func() bool { return !strings.ContainsAny(threadStates(tg.pid), "RS") })
	p.Detach()
	stopped()
	unix.Kill(tg.pid, unix.SIGCONT)
	if tg.ask(t, "thread") != "ok" {
		t.Error("SIGCONT does not set it going after Detach")
	}
}

// TestWalkWhat tells why a process cannot be walked.
func TestWalkWhat(t *testing.T) {
	canTrace(t)
	for _, c := range []struct {
		name  string
		pid   func(t *testing.T) int
		cause error
		text  string
	}{
		{"none", func(*testing.T) int { return 1 << 22 }, procstate.ErrNoProcess, "no such process"},
		{"this one", func(*testing.T) int { return os.Getpid() }, procstate.ErrNotPermitted, "it is this one"},
		{"thread", func(t *testing.T) int {
			return int(busyThread(t, start(t, build(t, "life.c", lifeBuild)).pid))
		}, procstate.ErrNoProcess, "is a thread of process"},
		{"kernel thread", func(t *testing.T) int {
			if b, err := os.ReadFile("/proc/2/comm"); err != nil || string(b) != "kthreadd\n" {
				testenv.Lacks(t, "no kernel threads to be seen")
			}
			return 2
		}, procstate.ErrKernelThread, "thread of the kernel"},
		{"zombie", func(t *testing.T) int {
			cmd := exec.Command("true")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cmd.Wait() })
			eventually(t, "it has ended", func() bool { return threadStates(cmd.Process.Pid) == "Z" })
			return cmd.Process.Pid
		}, procstate.ErrZombie, "zombie"},
		{"traced", func(t *testing.T) int {
			testenv.Needs(t, "gdb")
			tg := start(t, build(t, "life.c", lifeBuild))
			gdb := exec.Command("gdb", "-nx", "-readnever", "-batch", "-p", itoa(tg.pid), "-ex", "shell sleep 1000")
			gdb.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
			if err := gdb.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				unix.Kill(-gdb.Process.Pid, unix.SIGKILL)
				gdb.Wait()
			})
			eventually(t, "gdb traces it", func() bool { return statusValue(tg.pid, "TracerPid") != "0" })
			return tg.pid
		}, procstate.ErrTraced, "(gdb)"},
		{"traced by this one", func(t *testing.T) int {
			tg := start(t, build(t, "life.c", lifeBuild))
			seized, end := make(chan error), make(chan struct{})
			t.Cleanup(func() { close(end) })
			go func() {
				runtime.LockOSThread() // until the thread ends: then the kernel lets the process go
				seized <- unix.PtraceSeize(tg.pid)
				<-end
			}()
			if err := <-seized; err != nil {
				t.Fatal(err)
			}
			return tg.pid
		}, procstate.ErrTraced, "by this process"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := swbpf.WalkProcess(c.pid(t), swbpf.WalkOptions{})
			if !errors.Is(err, c.cause) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestLeaderLeft walks a process whose first thread has ended before the
// others: what /proc says of the process it says of them alone then.
func TestLeaderLeft(t *testing.T) {
	canTrace(t)
	builds := []string{lifeBuild}
	if runtime.GOARCH == "amd64" && testenv.Runs32Bit(t) {
		builds = append(builds, "gcc -m32 -O1 -pthread") // its vdso, in which it waits, is not ours
	}
	for _, command := range builds {
		path := build(t, "life.c", command)
		tg := start(t, path)
		busy := busyThread(t, tg.pid)
		tg.ask(t, "leave")
		eventually(t, "the first thread has ended", func() bool { return strings.Contains(threadStates(tg.pid), "Z") })
		ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(ps.Stacks) != 2 || ps.Stacks[0].State != procstate.StateZombie || ps.Stacks[0].Err == nil {
			t.Errorf("%s: stacks %+v", command, ps.Stacks)
		}
		if s := &ps.Stacks[1]; s.TID != busy || s.Err != nil || !slices.Contains(names(s), "busy") {
			t.Errorf("%s: thread %d: %v, %v", command, s.TID, names(s), s.Err)
		}
		if ps.Executable != path {
			t.Errorf("%s: program %q, want %q", command, ps.Executable, path)
		}
		_, err = swbpf.WalkStopped(tg.pid, swbpf.WalkOptions{}, func(stopped *swbpf.ProcessStacks) {
			if len(stopped.Stacks) != 2 {
				t.Fatalf("%s: stopped, stacks %+v", command, stopped.Stacks)
			}
			if s := &stopped.Stacks[0]; s.Thread != ps.Stacks[0].Thread || s.Err != ps.Stacks[0].Err || s.Frames != nil {
				t.Errorf("%s: stopped, thread %+v, want %+v", command, s, &ps.Stacks[0])
			}
			if s := &stopped.Stacks[1]; s.TID != busy || s.Err != nil || !slices.Contains(names(s), "busy") {
				t.Errorf("%s: stopped, thread %d: %v, %v", command, s.TID, names(s), s.Err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := procstate.Attach(tg.pid)
		if err != nil {
			t.Fatal(err)
		}
		if frames, err := swbpf.With(p, nil, nil).WalkStack(nil, procstate.DefaultThread); err != nil || len(frames) < 3 {
			t.Errorf("%s: %d frames, %v", command, len(frames), err)
		}
		for _, lib := range p.Libraries().Libraries() {
			if lib.Image == nil {
				t.Errorf("%s: %s was not opened", command, lib.Path)
			}
		}
		if got := p.ExecutablePath(); got != path {
			t.Errorf("%s: program %q, want %q", command, got, path)
		}
		p.Detach()
		goesOn(t, tg.pid)
	}
}

// TestUninterruptible: the parent of a vfork waits uninterruptibly. It is
// walked as it waits, and nobody waits for it: the child ends after the walks.
func TestUninterruptible(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "vfork.c", "gcc -O1"))
	eventually(t, "it waits for its child", func() bool { return threadStates(tg.pid) == "D" })
	ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &ps.Stacks[0]
	if !s.Blocked || s.Err != nil || !slices.Contains(names(s), "main") {
		t.Errorf("blocked %v, %v, %v", s.Blocked, names(s), s.Err)
	}
	p, err := procstate.Attach(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	if frames, err := swbpf.With(p, nil, nil).WalkStack(nil, procstate.DefaultThread); err != nil || len(frames) < 3 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
	p.Detach()
	// The child of the vfork ends, and the parent goes on.
	fmt.Fprintln(tg.in)
	tg.in.Flush()
	if line := tg.line(t); line != "done" {
		t.Errorf("the program says %q", line)
	}
	goesOn(t, tg.pid)
}

// TestMergedMappings: a program that has made its code writable has one
// mapping for what were several segments.
func TestMergedMappings(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "merged.c", "gcc -O1"))
	ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &ps.Stacks[0]
	for _, name := range []string{"main", "start"} {
		if !slices.Contains(names(s), name) {
			t.Errorf("%v, %v: without %s", names(s), s.Err, name)
		}
	}
	goesOn(t, tg.pid)
}

// TestAnyGoroutine uses one ProcDebug from many goroutines at once.
func TestAnyGoroutine(t *testing.T) {
	tg, p := attachLife(t)
	busy := busyThread(t, tg.pid)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 30 {
				var err error
				switch i % 4 {
				case 0:
					_, err = p.Capture(procstate.CaptureOptions{})
				case 1:
					var regs procstate.Regs
					err = p.Registers(busy, &regs)
				case 2:
					if err = p.Pause(busy); err == nil {
						p.Resume(busy) // another goroutine may have done so
					}
				default:
					_, err = p.Threads()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	p.Resume(busy)
	n := count(t, tg)
	eventually(t, "the busy thread goes on", func() bool { return count(t, tg) != n })
}

// TestEndsInTheMiddle walks processes that exit or exec just then.
func TestEndsInTheMiddle(t *testing.T) {
	canTrace(t)
	for i := range 60 {
		cmd := exec.Command("sh", "-c", "exec sh -c 'exec sleep 0.01'")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 300 * time.Microsecond)
		_, err := swbpf.WalkProcess(cmd.Process.Pid, swbpf.WalkOptions{})
		if err != nil && !errors.Is(err, procstate.ErrTerminated) && !errors.Is(err, procstate.ErrZombie) && !errors.Is(err, procstate.ErrNoProcess) {
			t.Errorf("after %d: %v", i, err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("after %d: the program ends with %v", i, err)
			}
		case <-time.After(patience):
			t.Fatalf("the program hangs: %s", threadStates(cmd.Process.Pid))
		}
	}
}

// TestForeignProc: in a PID namespace that still sees the /proc of another
// one, a process ID means two processes. The test runs itself there.
func TestForeignProc(t *testing.T) {
	if os.Getpid() == 1 {
		if _, err := procstate.Attach(2); !errors.Is(err, procstate.ErrNotSupported) || !strings.Contains(err.Error(), "another PID namespace") {
			t.Errorf("attach: %v", err)
		}
		return
	}
	testenv.Needs(t, "unshare")
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "needs root to make a PID namespace")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", self, "-test.run=^TestForeignProc$", "-test.v")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}
