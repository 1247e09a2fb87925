package swbpf_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestInterpreter walks through code of no file that calls by jumps, behind
// return addresses that it has pushed.
func TestInterpreter(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	tg := start(t, build(t, "jit.c", "gcc -O1"), "interpreter")
	ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &ps.Stacks[0]
	if s.Err != nil {
		t.Errorf("the stack ends early: %v", s.Err)
	}
	var methods []uint64 // addresses within the page that was made
	for i := range s.Frames {
		f := &s.Frames[i]
		if f.Flags&unwind.Heuristic != 0 {
			t.Errorf("frame %d is heuristic", i)
		}
		if _, _, ok := s.Walker.Library(f); !ok {
			t.Errorf("frame %d is in no mapping", i)
		}
		if _, named := s.Walker.Name(f); !named {
			methods = append(methods, f.PC()%4096)
		}
	}
	if want := append([]uint64{64 + 44}, slices.Repeat([]uint64{64}, 9)...); !slices.Equal(methods, want) {
		t.Errorf("frames of methods at %v, want %v", methods, want)
	}
	if fn := names(s); !slices.Contains(fn, "leaf") || !slices.Contains(fn, "enter") || !slices.Contains(fn, "main") {
		t.Errorf("functions %v", fn)
	}
}

var (
	dumpedThread = regexp.MustCompile(`^".*nid=(0x[0-9a-f]+|\d+)`) // from JDK 19 on decimal
	dumpedFrame  = regexp.MustCompile(`^\tat ([^(/]+)(?:/(?:0x)?[0-9a-f]+(\.[^(]+))?\((?:.*/)?(?:(\w+\.java):(\d+)|.*)\)`)
)

// javaCalls are the calls of a Java thread as jstack writes them: without stubs, and
// without frames of C++.
func javaCalls(s *swbpf.ThreadStack) (calls []string) {
	for i := range s.Frames {
		for _, l := range s.Walker.Codes().Lines(s.Frames[i].Code) {
			if call := l.Name; l.Parameters != "" {
				if l.Line > 0 {
					call += " " + path.Base(l.File) + ":" + strconv.Itoa(l.Line)
				}
				calls = append(calls, call)
			}
		}
	}
	return calls
}

// TestJava compares a Java program, interpreted and compiled, with what it says itself
// of threads that wait.
func TestJava(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	testenv.EachJava(t, func(t *testing.T, java testenv.Program) { testJava(t, java, "mixed", "compiled") })
	testenv.SomeJava(t, func(t *testing.T, java testenv.Program) {
		ways := []string{"interpreted", "inlined"}
		if testenv.Long() {
			ways = append(ways, "inlined, with all the rest")
		}
		testJava(t, java, ways...)
	})
}

// threadDump has Java tell the calls of its threads.
func threadDump(t *testing.T, tg *target) map[procstate.ThreadID][]string {
	if err := syscall.Kill(tg.pid, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	calls := make(map[procstate.ThreadID][]string)
	var tid procstate.ThreadID
	for {
		line := tg.line(t)
		if m := dumpedThread.FindStringSubmatch(line); m != nil {
			n, _ := strconv.ParseInt(m[1], 0, 32)
			tid = procstate.ThreadID(n)
		} else if m := dumpedFrame.FindStringSubmatch(line); m != nil {
			call := m[1] + m[2]
			if m[3] != "" {
				call += " " + m[3] + ":" + m[4]
			}
			calls[tid] = append(calls[tid], call)
		} else if strings.HasPrefix(line, "JNI global ref") {
			return calls
		}
	}
}

// mainOf returns the thread that is in Waits.main.
func mainOf(calls map[procstate.ThreadID][]string) procstate.ThreadID {
	for tid, calls := range calls {
		if len(calls) > 0 && strings.HasPrefix(calls[len(calls)-1], "Waits.main ") {
			return tid
		}
	}
	return 0
}

// awaitDump has Java tell the calls of its threads when the first one sleeps.
func awaitDump(t *testing.T, tg *target) (want map[procstate.ThreadID][]string) {
	t.Helper()
	eventually(t, "the first thread sleeps", func() bool {
		before := want
		want = threadDump(t, tg)
		sleeps := slices.ContainsFunc(want[mainOf(want)], func(call string) bool { return strings.HasPrefix(call, "java.lang.Thread.sleep") })
		return sleeps && slices.Equal(before[mainOf(before)], want[mainOf(want)]) // and not on its way there
	})
	return want
}

// waysOfJava are flags by how Java runs methods then.
var waysOfJava = map[string][]string{
	"interpreted": {"-Xint"},
	"mixed":       {"-Xmixed"},
	"compiled":    {"-Xcomp", "-XX:-Inline", "-XX:CompileCommand=quiet", "-XX:CompileCommand=compileonly,Waits.*"},
	"inlined": {"-Xcomp", "-XX:CompileCommand=quiet", "-XX:CompileCommand=compileonly,Waits::*", "-XX:CompileCommand=compileonly,java.lang.Object::*",
		"-XX:CompileCommand=compileonly,java.lang.Thread*::*", "-XX:CompileCommand=compileonly,java.lang.invoke.*::*"},
	"inlined, with all the rest": {"-Xcomp"},
}

func testJava(t *testing.T, java testenv.Program, ways ...string) {
	classes := testenv.CompileJava(t, java, filepath.Join("testdata", "walk", "Waits.java"))
	for _, name := range ways {
		t.Run(name, func(t *testing.T) {
			command := java.Command(append(slices.Clone(waysOfJava[name]), "-cp", classes, "Waits")...)
			tg := start(t, command[0], command[1:]...)
			want := awaitDump(t, tg)
			ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{})
			if err != nil {
				t.Fatal(err)
			}
			seen := 0
			for i := range ps.Stacks {
				s := &ps.Stacks[i]
				n := 0
				for j := range s.Frames {
					if lib, _, ok := s.Walker.Library(&s.Frames[j]); ok && lib.Path == "" {
						n++
					}
				}
				if got := javaCalls(s); !slices.Equal(got, want[s.TID]) {
					t.Errorf("%s: calls\n%s, by its dump\n%s", s.Name, strings.Join(got, "\n"), strings.Join(want[s.TID], "\n"))
				}
				if !strings.HasPrefix(s.Name, "waits") {
					continue
				}
				seen++
				// The outermost is the way from C++ to Java.
				if s.Err != nil || !strings.HasPrefix(name, "inlined") && n != len(want[s.TID])+1 {
					t.Errorf("%s: %d frames outside of files for %d of Java, %v", s.Name, n, len(want[s.TID]), s.Err)
				}
			}
			if seen != 4 {
				t.Errorf("%d threads that wait", seen)
			}
		})
	}
}

// TestPython compares what threads of Python run with what they have written of it.
func TestPython(t *testing.T) {
	canTrace(t)
	testenv.EachPython(t, testPython)
}

// startWaiting starts a program so many threads of which each write a line with their calls, and
// waits until all of them sleep.
func startWaiting[Calls any](t *testing.T, threads int, command ...string) (*exec.Cmd, map[procstate.ThreadID]Calls) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, awaitCalls[Calls](t, cmd.Process.Pid, threads, out)
}

// awaitCalls reads the calls that threads of a process write, and waits until all of them sleep.
func awaitCalls[Calls any](t *testing.T, pid, threads int, out io.Reader) map[procstate.ThreadID]Calls {
	t.Helper()
	calls := map[procstate.ThreadID]Calls{}
	for lines := json.NewDecoder(out); len(calls) < threads; {
		var told struct {
			TID   procstate.ThreadID
			Calls Calls
		}
		if err := lines.Decode(&told); err != nil {
			t.Fatal(err)
		}
		calls[told.TID] = told.Calls
	}
	eventually(t, "threads wait", func() bool {
		infos, err := procstate.ProcessThreads(pid)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, th := range infos {
			if _, is := calls[th.TID]; is && th.State == procstate.StateSleeping {
				n++
			}
		}
		return n == threads
	})
	return calls
}

func testPython(t *testing.T, python testenv.Program) {
	command := python.Command(python.Script(t, filepath.Join("testdata", "walk", "waits.py")))
	cmd, want := startWaiting[[]string](t, threadsOfPython, command...)
	walkBothWays(t, cmd.Process.Pid, want, checkPython(t, want))
}

// threadsOfPython are those of waits.py.
const threadsOfPython = 7

// checkPython makes what compares a stack of waits.py with what that has written of it.
func checkPython(t *testing.T, want map[procstate.ThreadID][]string) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	module := regexp.MustCompile(`^<module> (.*/)?([^/:]+):`)
	return func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
		t.Helper()
		got := toldCalls(w, frames)
		expected := slices.Clone(want[tid])
		for i, call := range expected {
			if m := module.FindStringSubmatch(call); m != nil {
				expected[i] = strings.Replace(call, "<module>", "<module "+m[2]+">", 1)
			}
		}
		if !slices.Equal(got, expected) {
			t.Errorf("thread %d: calls\n%s\nwant\n%s", tid, strings.Join(got, "\n"), strings.Join(expected, "\n"))
		}
	}
}

// toldCalls are the calls of frames of which a runtime tells what they run, with their lines.
func toldCalls(w *unwind.Walker, frames []unwind.Frame) (calls []string) {
	for i := range frames {
		if frames[i].Code == 0 {
			continue
		}
		for _, l := range swbpf.Lines(w, nil, &frames[i]) {
			calls = append(calls, fmt.Sprintf("%s %s:%d", l.Function, l.File, l.Line))
		}
	}
	return calls
}

// walkBothWays checks the stacks of all threads in a copy of a process, and of those that have told
// what to expect in the process itself, which is stopped, and whose memory is as it is.
func walkBothWays(t *testing.T, pid int, want map[procstate.ThreadID][]string, check func(*unwind.Walker, procstate.ThreadID, []unwind.Frame)) {
	t.Helper()
	walk := func(opts swbpf.WalkOptions) (half int) {
		t.Helper()
		ps, err := swbpf.WalkProcess(pid, opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range ps.Stacks {
			if s.Err != nil {
				t.Errorf("%d bytes of stacks: thread %d: %v", opts.StackBytes, s.TID, s.Err)
			}
			check(s.Walker, s.TID, s.Frames)
			if n := len(s.Frames); n > 0 {
				if bytes := s.Frames[n-1].SP() - s.Frames[0].SP(); bytes < procstate.DefaultStackBytes { // it is one stack
					half = max(half, int(bytes/2))
				}
			}
		}
		return half
	}
	if half := walk(swbpf.WalkOptions{}); half > 0 {
		walk(swbpf.WalkOptions{StackBytes: half}) // the rest of the stacks is copied when they were walked
	}
	w, err := swbpf.ForPID(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer swbpf.Detach(w)
	for tid := range want {
		frames, err := w.WalkStack(nil, tid)
		if err != nil {
			t.Errorf("thread %d: %v", tid, err)
		}
		check(w, tid, frames)
	}
}

// TestJavaScript compares what threads of Node run with what they have written of it, by the
// interpreter, the baseline compiler and the optimising ones.
func TestJavaScript(t *testing.T) {
	canTrace(t)
	script, err := filepath.Abs(filepath.Join("testdata", "walk", "waits.js"))
	if err != nil {
		t.Fatal(err)
	}
	testenv.EachNode(t, func(t *testing.T, node string) { testJavaScript(t, "mixed", []string{node}, script) })
	testenv.SomeNode(t, func(t *testing.T, node string) {
		for name, flags := range waysOfNode(node) {
			if name != "mixed" {
				t.Run(name, func(t *testing.T) { testJavaScript(t, name, append([]string{node}, flags...), script) })
			}
		}
	})
}

// V8's own code is found where Node has no symbols of it.
func TestStrippedJavaScript(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	script, err := filepath.Abs(filepath.Join("testdata", "walk", "waits.js"))
	if err != nil {
		t.Fatal(err)
	}
	testenv.SomeNode(t, func(t *testing.T, node string) {
		node = testenv.StrippedNode(t, node)
		ways := map[string][]string{"mixed": nil}
		if testenv.Long() {
			ways = waysOfNode(node)
		}
		for name, flags := range ways {
			t.Run(name, func(t *testing.T) { testJavaScript(t, name, append([]string{node}, flags...), script) })
		}
	})
}

// waysOfNode are flags that have Node run JavaScript in one way, or as it comes; command runs it.
func waysOfNode(command ...string) map[string][]string {
	withoutMaglev := []string{"--no-opt"}
	if exec.Command(command[0], append(command[1:], "--no-maglev", "--version")...).Run() == nil {
		withoutMaglev = append(withoutMaglev, "--no-maglev")
	}
	return map[string][]string{
		"interpreted": append([]string{"--no-sparkplug"}, withoutMaglev...),
		"baseline":    append([]string{"--always-sparkplug"}, withoutMaglev...),
		"mixed":       nil,
	}
}

// TestDeno does the same with Deno, whose V8 has no symbols.
func TestDeno(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	script := scriptOfDeno(t)
	testenv.EachDeno(t, func(t *testing.T, deno string) {
		for name, flags := range waysOfDeno {
			t.Run(name, func(t *testing.T) {
				testJavaScript(t, name, []string{deno, "run", "-A", "--v8-flags=" + flags}, script)
			})
		}
	})
}

// waysOfDeno are flags of V8 that have Deno run JavaScript in one way, or as it comes.
var waysOfDeno = map[string]string{
	"interpreted": "--no-sparkplug,--no-opt,--no-maglev",
	"baseline":    "--always-sparkplug,--no-opt,--no-maglev",
	"mixed":       "--no-enable-lazy-source-positions,--detailed-line-info", // else nothing tells what was inlined where
}

// scriptOfDeno makes waits.js a file whose name says that it is no module.
func scriptOfDeno(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", "walk", "waits.js"))
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "waits.cjs")
	if err := os.WriteFile(script, source, 0o644); err != nil {
		t.Fatal(err)
	}
	return script
}

// jsCall is a call as waits.js tells it.
type jsCall struct {
	Name, File string
	Line       int
}

func testJavaScript(t *testing.T, name string, command []string, script string) {
	const threads = 2
	cmd, want := startWaiting[[]jsCall](t, threads, append(command, script, "20000")...)
	ps, err := swbpf.WalkProcess(cmd.Process.Pid, swbpf.WalkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for i := range ps.Stacks {
		s := &ps.Stacks[i]
		calls, told := want[s.TID]
		if !told {
			continue
		}
		seen++
		checkJavaScript(t, name, s, calls)
	}
	if seen != threads {
		t.Errorf("%d threads that wait", seen)
	}
}

// checkJavaScript compares the stack of a thread with what it has told of its calls.
func checkJavaScript(t *testing.T, name string, s *swbpf.ThreadStack, calls []jsCall) {
	t.Helper()
	got, compiled, inlined := jsCalls(s)
	if s.Err != nil || len(got) != len(calls) {
		t.Errorf("thread %d: %v, calls\n%v\nwant\n%v", s.TID, s.Err, got, calls)
		return
	}
	for i := range got {
		if !got[i].is(calls[i]) {
			t.Errorf("thread %d: call %d: %v, want %v", s.TID, i, got[i], calls[i])
		}
	}
	if wantCompiled := name != "interpreted"; compiled > 0 != wantCompiled {
		t.Errorf("%d frames of compiled code", compiled)
	}
	if name == "mixed" && inlined == 0 {
		t.Error("nothing was inlined")
	}
}

// jsCalls returns the calls of JavaScript in a stack, how many frames are of compiled code, and
// how many calls were inlined.
func jsCalls(s *swbpf.ThreadStack) (calls []jsCall, compiled, inlined int) {
	for i := range s.Frames {
		lines := s.Walker.Codes().Lines(s.Frames[i].Code)
		if len(lines) == 0 || strings.HasPrefix(lines[0].Name, "Builtins_") { // V8's own
			continue
		}
		if lib, _, ok := s.Walker.Library(&s.Frames[i]); ok && !procstate.HasFile(lib.Path) { // it may be next to what the kernel calls [heap]
			compiled++
		}
		inlined += len(lines) - 1
		for _, l := range lines {
			calls = append(calls, jsCall{l.Name, l.File, l.Line})
		}
	}
	return calls, compiled, inlined
}

// is reports whether a call that was found is one that was told: which has no name where that is
// inferred or made up, or one that was given to the function later, and is in line 1 where Deno keeps no source.
func (c jsCall) is(told jsCall) bool {
	return (told.Name == "" || strings.HasPrefix(told.Name, "[nodejs.") || told.Name == c.Name) && c.File == told.File && (c.Line == told.Line || c.Line == 0 && told.Line == 1)
}

// TestWebAssembly compares functions of WebAssembly with what V8 says of them.
func TestWebAssembly(t *testing.T) {
	canTrace(t)
	script, err := filepath.Abs(filepath.Join("testdata", "walk", "wasm.js"))
	if err != nil {
		t.Fatal(err)
	}
	testenv.EachNode(t, func(t *testing.T, node string) {
		for name, flags := range map[string][]string{"baseline": {"--liftoff-only"}, "optimized": {"--no-liftoff"}, "mixed": nil} {
			if name == "mixed" && !testenv.Long() {
				continue // one of both
			}
			t.Run(name, func(t *testing.T) {
				cmd, want := startWaiting[[]string](t, 1, append(append([]string{node}, flags...), script, "2000000")...)
				walkBothWays(t, cmd.Process.Pid, want, checkWebAssembly(t, want))
			})
		}
	})
}

// checkWebAssembly returns a check of the frames of a thread by what threads have told: functions by their names, "" where
// those are given by others, and "-" for what is none of WebAssembly.
func checkWebAssembly(t *testing.T, want map[procstate.ThreadID][]string) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	others := []string{"exported", "wasm-function[3]"}
	return func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
		t.Helper()
		var got []string
		for i := range frames {
			for _, l := range w.Codes().Lines(frames[i].Code) {
				switch {
				case strings.HasPrefix(l.Name, "Builtins_"):
				case l.File != "":
					got = append(got, "-")
				case slices.Contains(others, l.Name):
					got = append(got, "")
				default:
					got = append(got, l.Name)
				}
			}
		}
		if !slices.Equal(got, want[tid]) {
			t.Errorf("thread %d: calls\n%q\nwant\n%q", tid, got, want[tid])
		}
	}
}

// TestRuby compares methods of Ruby with what it says itself of threads that wait.
func TestRuby(t *testing.T) {
	canTrace(t)
	testenv.EachRuby(t, testRuby)
}

// threadsOfRuby are how many threads waits.rb has.
const threadsOfRuby = 20

func testRuby(t *testing.T, ruby testenv.Program, flags ...string) {
	command := ruby.Command(append(flags, ruby.Script(t, filepath.Join("testdata", "walk", "waits.rb")))...)
	cmd, want := startWaiting[[]string](t, threadsOfRuby, command...)
	walkBothWays(t, cmd.Process.Pid, want, checkRuby(t, want))
}

// checkRuby returns a check of the frames of a thread by what threads have told.
func checkRuby(t *testing.T, want map[procstate.ThreadID][]string) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	return func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
		t.Helper()
		var got []string
		for i := range frames {
			for code := frames[i].Code; code != 0; code = w.Codes().Outer(code) {
				for _, l := range w.Codes().Lines(code) {
					got = append(got, fmt.Sprintf("%s %s:%d", l.Name, l.File, l.Line))
					lib, _, ok := w.Library(&frames[i])
					if isCompiled := l.File == "" || !ok || lib.Image == nil; l.IsCompiled != isCompiled {
						t.Errorf("thread %d: %s is compiled: %v", tid, l.Name, l.IsCompiled)
					}
				}
			}
		}
		var expected []string
		if calls := want[tid]; calls != nil {
			expected = append([]string{""}, calls...) // it sleeps
		}
		if n := len(got); n > 1 && n < len(expected) && strings.HasSuffix(expected[n], " :0") {
			expected = expected[:n] // a fiber begins with methods of C, which no interpreter calls
		}
		wrong := len(got) != len(expected)
		for i := 1; i < len(got) && !wrong; i++ {
			label := expected[i][:strings.LastIndexByte(expected[i], ' ')]
			isOfC := strings.HasSuffix(got[i], " :0") || strings.Contains(got[i], " <internal:") // Ruby has its caller's line
			wrong = got[i] != expected[i] && !(isOfC && strings.HasPrefix(got[i], label+" "))
		}
		if wrong || len(got) > 0 && !strings.Contains(got[0], "sleep :0") {
			t.Errorf("thread %d: calls\n%s\nwant\n%s", tid, strings.Join(got, "\n"), strings.Join(expected, "\n"))
		}
	}
}
