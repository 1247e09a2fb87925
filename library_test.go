package swbpf_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/unwind"
)

// listener is a stepper that hears of libraries and walks nothing.
type listener struct {
	mu     sync.Mutex
	events []libraryEvent
	onLoad func(lib procstate.Library) uint64
	loads  []uint64 // what onLoad returned
}

type libraryEvent struct {
	path   string
	change unwind.LibraryChange
}

func (l *listener) Name() string              { return "listener" }
func (l *listener) Priority() unwind.Priority { return unwind.PriorityWanderer + 1 }
func (l *listener) CallerFrame(*unwind.Walker, *unwind.Frame, *unwind.Frame) (unwind.Verdict, error) {
	return unwind.NotMe, nil
}

func (l *listener) LibraryChanged(_ *unwind.Walker, lib procstate.Library, change unwind.LibraryChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, libraryEvent{lib.Path, change})
	if l.onLoad != nil && change == unwind.LibraryLoaded {
		l.loads = append(l.loads, l.onLoad(lib))
	}
}

// marks returns what onLoad has returned.
func (l *listener) marks() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.loads)
}

// take returns what was heard since the last call.
func (l *listener) take() []libraryEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.events
	l.events = nil
	return e
}

// startLoader starts dlopen.c and returns where its variable loaded is.
func startLoader(t testing.TB, program string, args ...string) (*target, uint64) {
	t.Helper()
	tg := start(t, program, args...)
	addr, err := strconv.ParseUint(strings.TrimPrefix(tg.line(t), "0x"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return tg, addr
}

// markAt reads what a library's constructor leaves in the variable loaded.
func markAt(p *procstate.ProcDebug, loaded uint64) uint64 {
	var b [8]byte
	p.ReadMemory(loaded, b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// trapWorks ends a test where the library trap cannot be set.
func trapWorks(t testing.TB, p *procstate.ProcDebug) {
	t.Helper()
	if err := p.LibraryTrap(); err != nil {
		testenv.Lacks(t, "no library trap: %v", err)
	}
}

func TestLibraryTrap(t *testing.T) {
	canTrace(t)
	for _, c := range []struct{ name, cc string }{{"glibc", "gcc"}, {"musl", "musl-gcc"}} {
		t.Run(c.name, func(t *testing.T) {
			plugin := build(t, "plugin.c", c.cc+" -shared -fPIC")
			tg, loaded := startLoader(t, build(t, "dlopen.c", c.cc+" -rdynamic -pthread"), plugin)
			p, err := procstate.Attach(tg.pid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Detach()
			if err := p.Libraries().Update(); err != nil {
				t.Fatal(err)
			}
			site := p.Libraries().TrapAddress()
			if site == 0 || p.Libraries().MappingAt(site) == nil {
				t.Errorf("trap address %#x is in no library", site)
			}
			code := func() (b [4]byte) {
				if n := procstate.ReadProcess(tg.pid, site, b[:]); n != len(b) {
					t.Errorf("%d bytes of the code at the trap", n)
				}
				return b
			}
			untouched := code()
			if err := p.TrapLibraries(); err != nil {
				trapWorks(t, p)
			}
			if code() == untouched {
				t.Error("there is no trap in the program's code")
			}
			l := &listener{}
			l.onLoad = func(procstate.Library) uint64 { return markAt(p, loaded) }
			group := steppers.Default(unwind.NewTables())
			if err := group.AddStepper(l); err != nil {
				t.Fatal(err)
			}
			defer runtime.KeepAlive(swbpf.With(p, group, nil))

			if got := tg.ask(t, "open "+plugin); got != "42" {
				t.Fatalf("dlopen: %s", got)
			}
			if want := []libraryEvent{{plugin, unwind.LibraryLoaded}}; !slices.Equal(l.take(), want) {
				t.Errorf("the stepper did not hear of the library just once")
			}
			if before := l.marks(); !slices.Equal(before, []uint64{0}) {
				t.Errorf("when the steppers were told, the library's constructor had left %v; want [0]", before)
			}
			if !slices.ContainsFunc(p.Libraries().Libraries(), func(l procstate.Library) bool { return l.Path == plugin }) {
				t.Error("the library is not in LibraryState")
			}
			if got := tg.ask(t, "close"); got != "0" {
				t.Fatalf("dlclose: %s", got)
			}
			if c.name == "glibc" { // musl keeps libraries
				if want := []libraryEvent{{plugin, unwind.LibraryUnloaded}}; !slices.Equal(l.take(), want) {
					t.Errorf("the stepper did not hear of the end of the library just once")
				}
				if slices.ContainsFunc(p.Libraries().Libraries(), func(l procstate.Library) bool { return l.Path == plugin }) {
					t.Error("the library is still in LibraryState")
				}
			}
			if got := tg.ask(t, "spin 20"); got != "20" {
				t.Errorf("%s of 20 times", got)
			}
			if n := len(l.take()); c.name == "glibc" && n != 40 {
				t.Errorf("%d notifications of 20 times loading and unloading", n)
			}
			if got := tg.ask(t, "signals"); got != "0" {
				t.Errorf("the program has had %s signals", got)
			}
			// Its own signals do reach it.
			unix.Kill(tg.pid, unix.SIGWINCH)
			unix.Kill(tg.pid, unix.SIGURG)
			eventually(t, "the program has had its own two signals", func() bool { return tg.ask(t, "signals") == "2" })
			p.Detach()
			if now := code(); now != untouched {
				t.Errorf("after detaching: code at the trap is %x, was %x", now, untouched)
			}
			goesOn(t, tg.pid)
			if got := tg.ask(t, "spin 5"); got != "5" {
				t.Errorf("after detaching: %s of 5 times", got)
			}
			if got := tg.ask(t, "signals"); got != "2" {
				t.Errorf("after detaching: %s signals, want those two", got)
			}
		})
	}
}

// TestLibrariesWithoutTrap: without a trap, steppers are told of libraries when
// the next walk begins, and there is an event.
func TestLibrariesWithoutTrap(t *testing.T) {
	canTrace(t)
	plugin := build(t, "plugin.c", "gcc -shared -fPIC")
	tg, _ := startLoader(t, build(t, "dlopen.c", "gcc -rdynamic -pthread"), plugin)
	p, err := procstate.Attach(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Detach()
	l := &listener{}
	group := steppers.Default(unwind.NewTables())
	if err := group.AddStepper(l); err != nil {
		t.Fatal(err)
	}
	w := swbpf.With(p, group, nil)
	walk := func(want ...libraryEvent) {
		t.Helper()
		drainEvents(t)
		if _, err := w.WalkStack(nil, procstate.DefaultThread); err != nil {
			t.Fatal(err)
		}
		if got := l.take(); !slices.Equal(got, want) {
			t.Errorf("the stepper heard %v, want %v", got, want)
		}
		evs, err := procstate.HandleDebugEvents(false)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(kinds(evs), procstate.LibrariesChanged); got != (len(want) > 0) {
			t.Errorf("events %v", evs)
		}
	}
	walk() // what is there already is no change
	walk()
	tg.ask(t, "open "+plugin)
	walk(libraryEvent{plugin, unwind.LibraryLoaded})
	walk()
	tg.ask(t, "close")
	if err := p.Libraries().Update(); err != nil { // by which nobody is told
		t.Fatal(err)
	}
	walk(libraryEvent{plugin, unwind.LibraryUnloaded})
	walk()
	tg.ask(t, "spin 1") // between two walks
	walk()
}

// TestWalksOfPaused: while all threads stand the mappings are read by the first
// walk alone, and again as soon as a thread has run.
func TestWalksOfPaused(t *testing.T) {
	canTrace(t)
	plugin := build(t, "plugin.c", "gcc -shared -fPIC")
	tg, _ := startLoader(t, build(t, "dlopen.c", "gcc -rdynamic -pthread"), plugin)
	p, err := procstate.Attach(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Detach()
	w := swbpf.With(p, nil, nil)
	walk := func(plugged bool) {
		t.Helper()
		if _, err := w.WalkStack(nil, procstate.DefaultThread); err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(p.Libraries().Libraries(), func(l procstate.Library) bool { return l.Path == plugin }); got != plugged {
			t.Errorf("the library is there: %v, want %v", got, plugged)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	readBytes := func() (n int) {
		b, err := os.ReadFile("/proc/self/io")
		must(err)
		if _, err := fmt.Sscanf(string(b), "rchar: %d", &n); err != nil {
			t.Fatalf("%v of %q", err, b)
		}
		return n
	}
	must(p.Pause(procstate.DefaultThread))
	walk(false)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", tg.pid))
	must(err)
	const walks = 100
	before := readBytes()
	for range walks {
		walk(false)
	}
	if n := readBytes() - before; n > len(maps)*walks/10 {
		t.Errorf("%d walks have read %d bytes of files; the mappings are %d", walks, n, len(maps))
	}
	must(p.Resume(procstate.DefaultThread))
	tg.ask(t, "open "+plugin)
	must(p.Pause(procstate.DefaultThread))
	walk(true)
	must(p.Resume(procstate.ThreadID(tg.pid)))
	tg.ask(t, "close")
	must(p.Pause(procstate.ThreadID(tg.pid)))
	walk(false)
}

// TestLibraryTrapBlocked: a thread that blocks all signals, in a process of
// several threads, is stopped at the trap all the same.
func TestLibraryTrapBlocked(t *testing.T) {
	canTrace(t)
	for _, cc := range []string{"gcc", "musl-gcc"} {
		t.Run(cc, func(t *testing.T) {
			plugin := build(t, "plugin.c", cc+" -shared -fPIC")
			tg, loaded := startLoader(t, build(t, "dlopen.c", cc+" -rdynamic -pthread"), plugin)
			p, err := procstate.Attach(tg.pid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Detach()
			if err := p.TrapLibraries(); err != nil {
				trapWorks(t, p)
			}
			l := &listener{}
			l.onLoad = func(procstate.Library) uint64 { return markAt(p, loaded) }
			group := steppers.Default(unwind.NewTables())
			if err := group.AddStepper(l); err != nil {
				t.Fatal(err)
			}
			defer runtime.KeepAlive(swbpf.With(p, group, nil))

			if got := tg.ask(t, "blocked"); got != "0" {
				t.Fatalf("starting a thread: %s", got)
			}
			if got := tg.ask(t, "open "+plugin); got != "42" {
				t.Fatalf("dlopen: %s", got)
			}
			if before := l.marks(); !slices.Equal(before, []uint64{0}) {
				t.Errorf("when the steppers were told, the library's constructor had left %v; want [0]", before)
			}
			if got := tg.ask(t, "close"); got != "0" {
				t.Fatalf("dlclose: %s", got)
			}
			l.take()
			if got := tg.ask(t, "spin 20"); got != "20" {
				t.Errorf("%s of 20 times", got)
			}
			if n := len(l.take()); cc == "gcc" && n != 40 { // musl keeps libraries
				t.Errorf("%d notifications of 20 times loading and unloading", n)
			}
			if got := tg.ask(t, "signals"); got != "0" {
				t.Errorf("the program has had %s signals", got)
			}
			p.Detach()
			goesOn(t, tg.pid)
			if got := tg.ask(t, "spin 5"); got != "5" {
				t.Errorf("after detaching: %s of 5 times", got)
			}
		})
	}
}

// TestNoLoader: programs without a dynamic loader have no trap and are walked
// all the same.
func TestNoLoader(t *testing.T) {
	canTrace(t)
	for _, cc := range []string{"gcc -static -O1", "gcc -static-pie -O1", "musl-gcc -static -O1"} {
		tg := start(t, build(t, "deep.c", cc))
		w, err := swbpf.ForPID(tg.pid)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := swbpf.Debug(w)
		if err := p.LibraryTrap(); err != nil && !errors.Is(err, procstate.ErrNoLibraryTrap) {
			t.Errorf("%s: %v", cc, err)
		}
		if frames, err := w.WalkStack(nil, procstate.DefaultThread); err != nil || len(frames) < 53 {
			t.Errorf("%s: %d frames, %v", cc, len(frames), err)
		}
		swbpf.Detach(w)
		goesOn(t, tg.pid)
	}
}

// tracerEnv has the ID of the process that this test binary is to trace, where
// TestTracerKilled runs it as a tracer that it can kill.
const tracerEnv = "SWBPF_TEST_TRACE_PID"

func TestTracerProcess(t *testing.T) {
	pid, err := strconv.Atoi(os.Getenv(tracerEnv))
	if err != nil {
		return // not asked for
	}
	w, err := swbpf.ForPID(pid)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := swbpf.Debug(w)
	if err := p.LibraryTrap(); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("tracing\n")
	for { // stop and go until killed
		if _, err := w.WalkStack(nil, procstate.DefaultThread); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Capture(procstate.CaptureOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// startTracer runs this test binary as a tracer and returns what it says:
// "tracing", or why it is not.
func startTracer(t *testing.T, pid int) (tracer *exec.Cmd, line string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tracer = exec.Command(self, "-test.run=^TestTracerProcess$")
	tracer.Env = append(os.Environ(), tracerEnv+"="+itoa(pid))
	out, err := tracer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tracer.Process.Kill()
		tracer.Wait()
	})
	lines := bufio.NewReader(out)
	if line, _ = lines.ReadString('\n'); line != "tracing\n" {
		rest, _ := io.ReadAll(lines)
		line += string(rest)
	}
	return tracer, strings.TrimSuffix(line, "\n")
}

// TestTracerKilled kills a tracer with SIGKILL, again and again, while the
// target loads and unloads libraries. The target must go on, its dlopen must
// work, and no signal of ours may come through to it.
func TestTracerKilled(t *testing.T) {
	canTrace(t)
	for _, thread := range []string{"signals", "blocked"} {
		t.Run(thread, func(t *testing.T) { killTracers(t, thread == "blocked") })
	}
}

func killTracers(t *testing.T, blocked bool) {
	rounds := 10
	if n, err := strconv.Atoi(os.Getenv("SWBPF_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	plugin := build(t, "plugin.c", "gcc -shared -fPIC")
	tg, _ := startLoader(t, build(t, "dlopen.c", "gcc -rdynamic -pthread"), plugin)
	if blocked {
		tg.ask(t, "blocked")
	}
	for i := range rounds {
		tracer, line := startTracer(t, tg.pid)
		if line != "tracing" {
			testenv.Lacks(t, "tracer: %s", line)
		}
		tg.say("spin 300")
		time.Sleep(time.Duration(i%20) * 3 * time.Millisecond)
		tracer.Process.Kill()
		tracer.Wait()
		if got := tg.line(t); got != "300" {
			t.Fatalf("round %d: dlopen worked %s times of 300", i, got)
		}
		goesOn(t, tg.pid)
		if got := tg.ask(t, "spin 3"); got != "3" {
			t.Fatalf("round %d: the next dlopen: %s", i, got)
		}
	}
	// A signal can come through when the tracer dies between its sending and
	// the stop.
	if n, err := strconv.Atoi(tg.ask(t, "signals")); err != nil || n > rounds {
		t.Errorf("%d signals have come through in %d rounds", n, rounds)
	}
}

// TestLaunch traces a program from its first instruction on, so that its own
// libraries are heard of too.
func TestLaunch(t *testing.T) {
	canTrace(t)
	program := build(t, "deep.c", "gcc -O0 -g")
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := procstate.Launch(program, []string{"deep"}, &procstate.LaunchOptions{Files: []*os.File{nil, in, nil}})
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		unix.Kill(p.PID(), unix.SIGKILL)
		<-p.Done()
	}()
	if got := filepath.Clean(p.ExecutablePath()); got != program {
		t.Errorf("executable %s", got)
	}
	if err := p.TrapLibraries(); err != nil {
		trapWorks(t, p)
	}
	l := &listener{}
	group := steppers.Default(unwind.NewTables())
	group.AddStepper(l)
	w := swbpf.With(p, group, nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if len(frames) != 1 || err != nil {
		t.Errorf("at its first instruction the program has %d frames, %v", len(frames), err)
	}
	if err := p.Resume(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16)
	if n, _ := out.Read(b); string(b[:n]) != "ready\n" {
		t.Fatalf("the program says %q", b[:n])
	}
	events := l.take()
	if !slices.ContainsFunc(events, func(e libraryEvent) bool {
		return strings.Contains(e.path, "libc.so") && e.change == unwind.LibraryLoaded
	}) {
		t.Errorf("libc was not heard of: %v", events)
	}
	settle(t, p.PID())
	frames, err = w.WalkStack(nil, procstate.DefaultThread)
	if err != nil || len(frames) < 52 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
}

// TestLaunchToEnd has a program wait until it is let go, and learns how it ends.
func TestLaunchToEnd(t *testing.T) {
	canTrace(t)
	w, err := swbpf.Launch("/bin/sh", []string{"sh", "-c", "exit 7"})
	if err != nil {
		t.Fatal(err)
	}
	p, ok := swbpf.Debug(w)
	if !ok || p.IsTerminated() {
		t.Fatalf("%v, terminated: %v", ok, p.IsTerminated())
	}
	if frames, err := w.WalkStack(nil, procstate.DefaultThread); len(frames) != 1 || err != nil {
		t.Errorf("at its first instruction the program has %d frames, %v", len(frames), err)
	}
	if err := p.Resume(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if ws, ok := p.ExitStatus(); !ok || !ws.Exited() || ws.ExitStatus() != 7 {
		t.Errorf("it ended with %#x, %v", ws, ok)
	}
}

// A Walker of no process says so.
func TestWithNothing(t *testing.T) {
	w := swbpf.With(nil, nil, nil)
	if _, err := w.WalkStack(nil, procstate.DefaultThread); !errors.Is(err, unwind.ErrNoProcess) {
		t.Errorf("WalkStack: %v", err)
	}
	if sym, ok := w.Name(&unwind.Frame{}); ok {
		t.Errorf("named %+v", sym)
	}
	if err := swbpf.Detach(w); err != nil {
		t.Errorf("Detach: %v", err)
	}
}

// TestLibraryNotTold: when a program starts, code of its libraries runs before the loader
// tells of them, and a walk meets it nevertheless.
func TestLibraryNotTold(t *testing.T) {
	canTrace(t)
	plugin := build(t, "resolver.c", "gcc -shared -fPIC -O1")
	program := build(t, "dlopen.c", "gcc -rdynamic -pthread")
	out, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := procstate.Launch(program, nil, &procstate.LaunchOptions{Env: []string{"LD_BIND_NOW=1", "LD_PRELOAD=" + plugin}, Files: []*os.File{nil, theirs, os.Stderr}})
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Detach()
	defer unix.Kill(p.PID(), unix.SIGKILL)
	w := swbpf.ForProcess(p)
	trapWorks(t, p)
	if err := p.Resume(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "choosing\n" {
		t.Fatalf("the program says %q (%v)", line, err)
	}
	settle(t, p.PID())
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil || len(frames) < 4 {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	if lib, _, _ := w.Library(&frames[0]); lib.Path != plugin {
		t.Errorf("the top frame is in %s", lib.Path)
	}
	if sym, _ := w.Name(&frames[len(frames)-1]); sym.Name != "_start" {
		t.Errorf("the bottom is %s", sym.Name)
	}
}
