package swbpf_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// say sends the program a line that it does not answer.
func (tg *target) say(line string) {
	fmt.Fprintln(tg.in, line)
	tg.in.Flush()
}

// TestThreadExecs: a thread that is not the first one runs another program. It
// takes the ID of the first, which is gone, and the target is followed.
func TestThreadExecs(t *testing.T) {
	tg, p := attachLife(t)
	w := swbpf.With(p, nil, nil)
	deep := build(t, "deep.c", "gcc -O0 -g")
	for _, program := range []string{"", " " + deep} { // itself, then another
		tg.say("texec" + program)
		if line := tg.line(t); line != "ready" {
			t.Fatalf("after exec: %q", line)
		}
		for _, ev := range eventsUntil(t, procstate.Execed) {
			if ev.Kind == procstate.Execed && (int(ev.Thread) != tg.pid || ev.Process != p) {
				t.Errorf("the program is run by thread %d of %d", ev.Thread, tg.pid)
			}
		}
	}
	if got := p.ExecutablePath(); got != deep {
		t.Errorf("executable %s", got)
	}
	if tids, err := p.Threads(); err != nil || !slices.Equal(tids, []procstate.ThreadID{procstate.ThreadID(tg.pid)}) {
		t.Errorf("threads %v, %v", tids, err)
	}
	tg.settle(t)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil || len(frames) < 52 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
	if sym, _ := w.Name(&frames[len(frames)-4]); sym.Name != "main" {
		t.Errorf("the fourth frame from the bottom is %q", sym.Name)
	}
	p.Detach()
	goesOn(t, tg.pid)
}

// TestLeaderLeftExecs: the same when the first thread has ended before.
func TestLeaderLeftExecs(t *testing.T) {
	tg, p := attachLife(t)
	tg.say("lexec")
	if line := tg.line(t); line != "ready" {
		t.Fatalf("after exec: %q", line)
	}
	for _, ev := range eventsUntil(t, procstate.Execed) {
		if ev.Kind == procstate.Execed && int(ev.Thread) != tg.pid {
			t.Errorf("the program is run by thread %d of %d", ev.Thread, tg.pid)
		}
	}
	if err := p.Pause(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	if err := p.Resume(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	if tg.ask(t, "thread") != "ok" {
		t.Error("the process does not go on")
	}
	if frames, err := swbpf.With(p, nil, nil).WalkStack(nil, procstate.DefaultThread); err != nil || len(frames) < 5 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
	p.Detach()
	goesOn(t, tg.pid)
}

// TestExecChain: children that fork and run programs in turn are told of, and
// go on untraced.
func TestExecChain(t *testing.T) {
	tg, p := attachLife(t)
	for range 5 {
		child, status, _ := strings.Cut(tg.ask(t, "chain 6"), " ")
		if status != "6" {
			t.Errorf("a chain of 6 ends with %s", status)
		}
		evs := eventsUntil(t, procstate.Forked)
		if len(evs) != 1 || itoa(evs[0].Child) != child || evs[0].Process != p {
			t.Errorf("events %v, child %s", evs, child)
		}
	}
	p.Detach()
	goesOn(t, tg.pid)
}

// TestExecWhileWalked: a program runs itself again and again while its stacks
// are walked and captured in each way that there is. With one CPU for goroutines,
// too, it is told soon that it may go on, in spite of all the walks.
func TestExecWhileWalked(t *testing.T) {
	t.Run("all CPUs", execWhileWalked)
	t.Run("one CPU", func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		execWhileWalked(t)
	})
}

func execWhileWalked(t *testing.T) {
	tg, p := attachLife(t)
	w := swbpf.With(p, nil, nil)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	gone := func(err error) bool { // a thread that an exec has ended
		return err == nil || unwind.ReasonOf(err) != unwind.StepperFailed || errors.Is(err, procstate.ErrNoThread)
	}
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			tids, err := p.Threads()
			if err != nil {
				t.Errorf("threads: %v", err)
				return
			}
			for _, tid := range tids {
				if _, err := w.WalkStack(nil, tid); !gone(err) {
					t.Errorf("thread %d: %v", tid, err)
				}
			}
			if _, err := p.Capture(procstate.CaptureOptions{}); err != nil && !errors.Is(err, procstate.ErrNoThread) {
				t.Errorf("capture: %v", err)
			}
		}
	})
	for i := range 30 {
		tg.say([]string{"exec", "texec"}[i%2])
		if line := tg.line(t); line != "ready" {
			t.Fatalf("after exec %d: %q", i, line)
		}
	}
	close(stop)
	wg.Wait()
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil || len(frames) < 5 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
	p.Detach()
	goesOn(t, tg.pid)
	if tg.ask(t, "thread") != "ok" {
		t.Error("the process does not go on")
	}
}

// TestOtherArchitecture: a target that goes over to a program of another
// architecture cannot be walked by those who attached it, and can be by others.
func TestOtherArchitecture(t *testing.T) {
	amd64Only(t)
	testenv.Needs32Bit(t)
	tg, p := attachLife(t)
	w := swbpf.With(p, nil, nil)
	tg.say("exec " + build(t, "deep.c", "gcc -m32 -O1"))
	if line := tg.line(t); line != "ready" {
		t.Fatalf("after exec: %q", line)
	}
	eventsUntil(t, procstate.Execed)
	if _, err := w.WalkStack(nil, procstate.DefaultThread); !errors.Is(err, procstate.ErrNotSupported) {
		t.Errorf("walk: %v", err)
	}
	p.Detach()
	goesOn(t, tg.pid)
	ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{})
	if err != nil || ps.Arch != procstate.I386 || len(ps.Stacks[0].Frames) < 52 {
		t.Errorf("%v, %v", ps, err)
	}
	goesOn(t, tg.pid)
}

const (
	unreachableEnv = "SWBPF_TEST_UNREACHABLE_PID"
	copyEnv        = "SWBPF_TEST_COPY"
)

// TestUnreachableProgram: a copy stands in for a program that cannot be read.
// The tracer is this test in a process that may trace, but not read the files
// of others.
func TestUnreachableProgram(t *testing.T) {
	if pid := os.Getenv(unreachableEnv); pid != "" {
		var n int
		fmt.Sscan(pid, &n)
		walkUnreachable(t, n, os.Getenv(copyEnv))
		return
	}
	canTrace(t)
	testenv.Needs(t, "setpriv")
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "needs root to be another user")
	}
	const nobody = 65534
	program := build(t, "deep.c", "gcc -O1")
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	for d := dir; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(secret, b, 0o100); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(secret, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	tg := start(t, "setpriv", "--reuid", itoa(nobody), "--clear-groups", secret)
	tg.settle(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tracer := exec.Command("setpriv", "--bounding-set", "-dac_override,-dac_read_search",
		self, "-test.run=^TestUnreachableProgram$", "-test.v")
	tracer.Env = append(os.Environ(), unreachableEnv+"="+itoa(tg.pid), copyEnv+"="+program)
	if out, err := tracer.CombinedOutput(); err != nil {
		t.Errorf("the tracer: %v\n%s", err, out)
	}
	goesOn(t, tg.pid)
}

func walkUnreachable(t *testing.T, pid int, program string) {
	w, err := swbpf.ForPID(pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WalkStack(nil, procstate.DefaultThread); unwind.ReasonOf(err) != unwind.NoFile {
		t.Errorf("without the program: %v; want %v", err, unwind.NoFile)
	}
	swbpf.Detach(w)
	if _, err := swbpf.ForPIDWithExecutable(pid, "/proc/self/cmdline"); err == nil {
		t.Error("what is no program stands in for one")
	}
	set, err := swbpf.ForPIDsWithExecutable(program, pid)
	if err != nil {
		t.Fatal(err)
	}
	w = set.Walkers()[0]
	defer swbpf.Detach(w)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Errorf("with a copy of the program: %v", err)
	}
	steps := 0
	for i := range frames {
		if sym, _ := w.Name(&frames[i]); sym.Name == "step" {
			steps++
		}
	}
	if steps != 50 {
		t.Errorf("%d frames of step, want 50", steps)
	}
}

// TestTracerStopped: a tracer that is stopped itself holds its target up at
// the most until it goes on; when it is killed, the target goes on at once.
func TestTracerStopped(t *testing.T) {
	canTrace(t)
	plugin := build(t, "plugin.c", "gcc -shared -fPIC")
	tg, _ := startLoader(t, build(t, "dlopen.c", "gcc -rdynamic -pthread"), plugin)
	tg.ask(t, "blocked")
	tracer, line := startTracer(t, tg.pid)
	if line != "tracing" {
		testenv.Lacks(t, "tracer: %s", line)
	}
	tracer.Process.Signal(unix.SIGSTOP)
	eventually(t, "the tracer is stopped", func() bool {
		states := threadStates(tracer.Process.Pid)
		return states != "" && strings.Trim(states, "T") == ""
	})
	tg.say("spin 3")
	time.Sleep(20 * time.Millisecond)
	tracer.Process.Kill()
	tracer.Wait()
	if got := tg.line(t); got != "3" {
		t.Errorf("dlopen worked %s times of 3", got)
	}
	goesOn(t, tg.pid)
}

// TestAttachWhileExecs: a program that does nothing but run itself again is attached at any
// moment of that, and walked by what it has mapped then.
func TestAttachWhileExecs(t *testing.T) {
	canTrace(t)
	script := filepath.Join(t.TempDir(), "again")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec \"$0\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for i := range 120 {
		p, err := procstate.Attach(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		walks := 1
		if i%6 == 0 {
			walks = 10
			_ = p.TrapLibraries() // of a program that another is in place of by now
		}
		w := swbpf.With(p, nil, nil)
		for range walks {
			frames, err := w.WalkStack(nil, procstate.DefaultThread)
			if err == unwind.NoMapping || err != nil && unwind.ReasonOf(err) == unwind.StepperFailed && !errors.Is(err, procstate.ErrNoThread) {
				t.Errorf("%d frames: %v", len(frames), err)
			}
		}
		if p.Arch() != procstate.HostArch() {
			t.Errorf("the program is of %s", p.Arch().Name)
		}
		p.Detach()
	}
}
