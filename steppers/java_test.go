package steppers

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/unwind"
)

// startJava compiles and starts testdata/walk/Busy.java.
func startJava(t *testing.T, java testenv.Program, flags ...string) (pid int) {
	t.Helper()
	return startJavaClass(t, java, nil, append(flags, "Busy", "600000")...)
}

// startJavaClass compiles and starts a class of testdata/walk, with the flags and
// arguments of java around its name.
func startJavaClass(t *testing.T, java testenv.Program, out io.Writer, args ...string) (pid int) {
	t.Helper()
	i := slices.IndexFunc(args, func(arg string) bool { return arg[0] != '-' })
	classes := testenv.CompileJava(t, java, filepath.Join("..", "testdata", "walk", args[i]+".java"))
	command := java.Command(slices.Insert(args, i, "-cp", classes)...)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// Java that keeps frame pointers tells itself where its frames are: what its
// virtual machine has noted of them says the same. Where a thread was in
// generated code, which may be building a frame, neither is sure at every
// instruction. Where a method has gone before its frame was walked, the walk ends.
func TestJavaFrames(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	testenv.EachJava(t, func(t *testing.T, java testenv.Program) { testJavaFrames(t, java, "Busy") })
}

// While compiled code compares strings, it keeps a word on the stack beyond its frame.
func TestJavaComparesStrings(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	testenv.SomeJava(t, func(t *testing.T, java testenv.Program) {
		t.Parallel()
		testJavaFrames(t, java, "Compares")
	})
}

// Stubs that make digests align SP, and use the frame pointer for other things.
func TestJavaDigests(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	testenv.SomeJava(t, testJavaDigests)
}

func testJavaDigests(t *testing.T, java testenv.Program) {
	t.Parallel()
	pid := startJavaClass(t, java, nil, "Digests", "600000")
	time.Sleep(2 * time.Second) // until all is compiled
	group := Default(unwind.NewTables())
	interrupted, short, captures := 0, 0, 0
	var slowest time.Duration
	blocked := map[string]int{} // threads that could not be stopped
	mapped := spaces(pid)
	// Where the machine is slow, fewer stacks are looked at.
	for deadline := time.Now().Add(time.Minute); interrupted < 200 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		captures++
		begin := time.Now()
		c, err := procstate.CaptureProcess(pid, procstate.CaptureOptions{Space: mapped()})
		if err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(begin))
		for _, th := range c.CapturedThreads() {
			if th.Blocked {
				blocked[th.Name]++
			}
		}
		tids, err := c.Threads()
		if err != nil {
			t.Fatal(err)
		}
		w := unwind.NewWalker(c, group, nil)
		for _, tid := range tids {
			stack, err := w.WalkStack(nil, tid)
			if m := w.MappingAt(stack[0].PC()); m == nil || m.Image != nil {
				continue
			}
			interrupted++
			isMain := func(l unwind.CodeLine) bool { return l.Name == "Digests.main" }
			runsMain := func(f unwind.Frame) bool { return slices.ContainsFunc(w.Codes().Lines(f.Code), isMain) }
			if err != nil || !slices.ContainsFunc(stack, runsMain) {
				short++
			}
		}
	}
	t.Logf("%d of %d stacks are short; %d captures, in %v at most, %v could not be stopped", short, interrupted, captures, slowest, blocked)
	if interrupted < 20 || short*50 > interrupted {
		t.Error("too few, or too many")
	}
}

// spaces returns what tells what a process has mapped, as it was a tenth of a second ago at most: to read that of
// Java takes longer than the rest of a capture.
func spaces(pid int) func() *procstate.AddressSpace {
	var space *procstate.AddressSpace
	var read time.Time
	return func() *procstate.AddressSpace {
		if time.Since(read) > 100*time.Millisecond {
			space, read = procstate.SpaceOfProcess(pid), time.Now()
		}
		return space
	}
}

func testJavaFrames(t *testing.T, java testenv.Program, class string) {
	pid := startJavaClass(t, java, nil, "-XX:+PreserveFramePointer", class, "600000")
	tables := unwind.NewTables()
	noted := unwind.NewGroup(NewBottom(), NewSigHandler(), NewDebug(tables), hotspot.New(NewFrameAnalyzer()), NewFrameFunc(nil), NewAnalysis())
	linked := unwind.NewGroup(NewBottom(), NewSigHandler(), NewDebug(tables), NewFrameFunc(nil), NewAnalysis())
	calls, interrupted, differ, gone, unsure, frames := 0, 0, 0, 0, 0, 0
	mapped := spaces(pid)
	most := 600
	if testenv.Long() {
		most = 1200
	}
	for deadline := time.Now().Add(time.Minute); frames < most && time.Now().Before(deadline); { // fewer where the machine is slow
		c, err := procstate.CaptureProcess(pid, procstate.CaptureOptions{Space: mapped()})
		if err != nil {
			t.Fatal(err)
		}
		tids, err := c.Threads()
		if err != nil {
			t.Fatal(err)
		}
		wn, wl := unwind.NewWalker(c, noted, nil), unwind.NewWalker(c, linked, nil)
		for _, tid := range tids {
			want, err := wl.WalkStack(nil, tid)
			if err != nil {
				continue
			}
			got, err := wn.WalkStack(nil, tid)
			heuristic := slices.ContainsFunc(want, func(f unwind.Frame) bool { return f.Flags&unwind.Heuristic != 0 })
			samePC := func(a, b unwind.Frame) bool { return a.PC() == b.PC() }
			begins := len(got) <= len(want) && slices.EqualFunc(got, want[:len(got)], samePC)
			same := err == nil && begins && len(got) == len(want)
			// Before a function has its frame, frame pointers lead past its caller.
			entered := err == nil && len(got) == len(want)+1 && got[1].SP() == got[0].SP()+8 &&
				slices.EqualFunc(slices.Delete(slices.Clone(got), 1, 2), want, samePC)
			// So do they from a stub without one that calls the virtual machine, as for a barrier.
			const stubFrame = 128
			passed := false
			if err == nil && len(got) == len(want)+1 {
				i := 1
				for i < len(want) && samePC(got[i], want[i]) {
					i++
				}
				stub := wn.MappingAt(got[i-1].PC())
				for i > 1 && samePC(got[i], got[i-1]) { // of a recursion it is the innermost
					i--
					stub = wn.MappingAt(got[i-1].PC())
				}
				passed = stub != nil && stub.Image == nil && got[i].SP()-got[i-1].SP() < stubFrame &&
					slices.EqualFunc(slices.Delete(slices.Clone(got), i, i+1), want, samePC)
			}
			m := wn.MappingAt(want[0].PC())
			switch inCall := m == nil || m.Image != nil; {
			case inCall && begins && err == unwind.NoUnwindInfo:
				gone++
			case inCall && !same && heuristic:
				unsure++
			case inCall && !same && !passed:
				t.Errorf("thread %d: %d frames and %v, want %d", tid, len(got), err, len(want))
			case inCall:
				calls++
			case !same && !entered:
				differ++
				fallthrough
			default:
				interrupted++
			}
			for i := range got {
				if st := wn.Stepper(&got[i]); st != nil && st.Name() == "hotspot" {
					frames++
				}
			}
		}
	}
	if frames < 100 {
		t.Errorf("%d frames of Java", frames)
	}
	if differ*33 > interrupted {
		t.Errorf("%d of %d stacks are others than by frame pointers", differ, interrupted)
	}
	if gone*1000 > calls {
		t.Errorf("%d of %d stacks end in a method that has gone", gone, calls)
	}
	if unsure*500 > calls {
		t.Errorf("%d of %d stacks are others than by frame pointers that are not sure", unsure, calls)
	}
	t.Logf("%d stacks of calls, %d with a method that has gone, %d others by frame pointers that are not sure; %d interrupted in Java, %d of them others; %d frames of Java",
		calls, gone, unsure, interrupted, differ, frames)
}

// A compiled method that has become invalid returns where there is no call: its
// frames are walked all the same.
func TestJavaDeoptimized(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	testenv.SomeJava(t, testJavaDeoptimized)
}

func testJavaDeoptimized(t *testing.T, java testenv.Program) {
	for name, flags := range map[string][]string{"C1": {"-XX:TieredStopAtLevel=1"}, "C2": {"-XX:-TieredCompilation"}} {
		t.Run(name, func(t *testing.T) {
			r, w := io.Pipe()
			pid := startJavaClass(t, java, w, append(flags, "-Xbatch", "-XX:-UseOnStackReplacement", "-XX:CompileCommand=dontinline,Deopt.bottom",
				"-XX:CompileCommand=quiet", "-XX:CompileCommand=inline,Deopt$Base.f", "Deopt")...)
			told := make(chan bool, 1)
			go func() {
				lines := bufio.NewScanner(r)
				told <- lines.Scan()
				_, _ = io.Copy(io.Discard, r)
			}()
			select {
			case <-told:
			case <-time.After(2 * time.Minute):
				t.Fatal("nothing was deoptimized")
			}
			p, err := procstate.Attach(pid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Detach()
			wk := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				handlers, methods := 0, 0
				var last error
				tids, _ := p.Threads()
				for _, tid := range tids {
					stack, err := wk.WalkStack(nil, tid)
					n := 0
					for i := range stack {
						if s := wk.Stepper(&stack[i]); s == nil || s.Name() != "hotspot" {
							continue
						}
						n++
						var code [16]byte
						if k, _ := p.ReadMemory(stack[i].PC(), code[:]); javacode.IsDeoptHandler(procstate.AMD64, code[:k], stack[i].PC()) ||
							bytes.HasPrefix(code[:k], []byte("\xeb\xf9")) { // from JDK 26 on behind a call, to which it jumps
							handlers++
						}
					}
					if n > 0 {
						methods, last = n, err
					}
				}
				if handlers > 10 && last == nil {
					t.Logf("%d of %d frames of methods at deoptimisation", handlers, methods)
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d frames at deoptimisation, of %d; %v", handlers, methods, last)
				}
			}
		})
	}
}

// execAgain is loaded into Java: a signal has it execute its program anew.
const execAgain = `
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
static void again(int sig) {
	static char line[1 << 16], *args[256];
	int fd = open("/proc/self/cmdline", O_RDONLY), n = 0;
	long size = read(fd, line, sizeof line - 1);
	for (char *p = line; p < line + size && n < 255; p += strlen(p) + 1)
		args[n++] = p;
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, 0);
	execve("/proc/self/exe", args, environ);
}
__attribute__((constructor)) static void catch(void) { signal(SIGUSR1, again); }
`

// What is known of a virtual machine goes with it, when its process executes
// another.
func TestJavaExecutesJava(t *testing.T) {
	steptest.NeedPtrace(t)
	lib := steptest.Compile(t, []string{"gcc", "-shared", "-fPIC", "-O1"}, "again.c", execAgain)
	t.Setenv("LD_PRELOAD", lib)
	testenv.NeedsJava(t)
	java, err := exec.LookPath("java")
	if err != nil {
		t.Fatal(err)
	}
	pid := startJava(t, testenv.Program{Path: java})
	os.Unsetenv("LD_PRELOAD")
	p, err := procstate.Attach(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Detach()
	group := Default(unwind.NewTables())
	w := unwind.NewWalker(p, group, nil)
	// javaFrames walks until there are frames of compiled methods.
	javaFrames := func() {
		t.Helper()
		const want = 20
		frames := 0
		for deadline := time.Now().Add(2 * time.Minute); frames < want; {
			if time.Now().After(deadline) {
				t.Fatalf("%d frames of Java", frames)
			}
			tids, err := p.Threads()
			if err != nil {
				t.Fatal(err)
			}
			for _, tid := range tids {
				stack, _ := w.WalkStack(nil, tid)
				for i := range stack {
					if s := w.Stepper(&stack[i]); s != nil && s.Name() == "hotspot" {
						frames++
					}
				}
			}
		}
	}
	javaFrames()
	base := func() uint64 {
		for _, lib := range p.Libraries().Libraries() {
			if filepath.Base(lib.Path) == "libjvm.so" {
				return lib.Bias
			}
		}
		return 0
	}
	before := base()
	if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); base() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it has executed nothing")
		}
		_ = p.Libraries().Update()
	}
	javaFrames()
}

// TestLyingVirtualThreads reads virtual threads of a Java whose memory is not what it should be: there is an end to that,
// and nothing panics.
func TestLyingVirtualThreads(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	found := false
	testenv.SomeJava(t, func(t *testing.T, java testenv.Program) {
		classes := testenv.CompileJava(t, java, filepath.Join("..", "testdata", "walk", "VirtualStacks.java"))
		command := java.Command("-Xint", "-cp", classes, "VirtualStacks", "500")
		cmd := exec.Command(command[0], command[1:]...)
		_, out := testenv.Start(t, cmd)
		pid, lines := cmd.Process.Pid, bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "done" {
		}
		if lines.Text() != "done" {
			t.Skip("no virtual threads here")
		}
		found = true
		p, err := procstate.Attach(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Detach()
		if err := p.Pause(procstate.DefaultThread); err != nil {
			t.Fatal(err)
		}
		liar := &steptest.Lying{ProcessState: p, Rand: rand.New(rand.NewPCG(1, 2))}
		space := procstate.SpaceOfProcess(pid)
		whole, read, walks := 0, 0, 12
		if testenv.Long() {
			walks = 24
		}
		for n := range walks {
			liar.Rate = 0
			h := hotspot.NewHeap(pid, liar, space)
			w := unwind.NewWalker(liar, Default(unwind.NewTables()), nil)
			w.MaxFrames = 10000
			if n > 0 {
				liar.Rate = []int{10, 100, 1000, 10000}[n%4]
			}
			begin := time.Now()
			bytes := 0
			vs := h.At(liar).VirtualThreads(func(_ uint64, n int) { bytes += n })
			for i := range vs.List {
				frames, err := hotspotOf(w).WalkVirtualThread(w, nil, &vs.List[i])
				if n == 0 && err == nil && len(frames) > 5 {
					whole++
				}
				if time.Since(begin) > time.Minute {
					t.Fatalf("%d of %d threads, with a lie in %d reads, took %v", i, len(vs.List), liar.Rate, time.Since(begin))
				}
			}
			read += len(vs.List)
		}
		if whole != 60 || read < 200 {
			t.Errorf("%d stacks are whole without lies, %d in all", whole, read)
		}
		t.Logf("%d threads", read)
	})
	if !found {
		t.Skip("no Java with virtual threads")
	}
}

func hotspotOf(w *unwind.Walker) *hotspot.Stepper {
	for _, s := range w.StepperGroup().Steppers() {
		if s, ok := s.(*hotspot.Stepper); ok {
			return s
		}
	}
	return nil
}
