package swbpf_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestPyPy compares what threads of PyPy's interpreter run with what Python says of it.
func TestPyPy(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	testenv.EachPyPy(t, func(t *testing.T, pypy testenv.Program) {
		command := pypy.Command(pypy.Script(t, filepath.Join("testdata", "walk", "waits.py")))
		cmd, want := startWaiting[[]string](t, threadsOfPython, command...)
		walkBothWays(t, cmd.Process.Pid, want, checkPyPy(t, want))
	})
}

// checkPyPy compares functions and their files with those that are told, which are without those that PyPy itself has
// written in Python, and hides.
func checkPyPy(t *testing.T, want map[procstate.ThreadID][]string) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	return func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
		t.Helper()
		var expected []string
		for _, call := range want[tid] {
			call = call[:strings.LastIndexByte(call, ':')]
			name, file, _ := strings.Cut(call, " ")
			if name == "<module>" {
				name = "<module " + filepath.Base(file) + ">"
			}
			expected = append(expected, name+" "+file)
		}
		if got := calledInPyPy(w, frames); !slices.Equal(got, expected) {
			t.Errorf("thread %d: calls\n%s\nwant\n%s", tid, strings.Join(got, "\n"), strings.Join(expected, "\n"))
		}
	}
}

// calledInPyPy are the functions of frames with their files, but for those of PyPy's own.
func calledInPyPy(w *unwind.Walker, frames []unwind.Frame) (calls []string) {
	for i := range frames {
		if frames[i].Code == 0 {
			continue
		}
		for _, l := range swbpf.Lines(w, nil, &frames[i]) {
			if !strings.HasPrefix(l.File, "<builtin>/") && l.Function != "Context.run" {
				calls = append(calls, l.Function+" "+l.File)
			}
		}
	}
	return calls
}

// TestPyPyCompiled compares what runs in compiled code with what is known of the program. All that a frame is said to run it
// does, in that order; where code was made for what a guard of other code does not let pass some may be part of their
// callers.
func TestPyPyCompiled(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	lacks := map[string]int{"otherwise": 1, "recursion": 3} // functions, at most
	testenv.EachPyPy(t, func(t *testing.T, pypy testenv.Program) {
		script := pypy.Script(t, filepath.Join("testdata", "walk", "waitsinpypy.py"))
		for _, way := range []string{"inlined", "otherwise", "recursion", "generator", "loops", "called"} {
			t.Run(way, func(t *testing.T) {
				cmd, want := startWaiting[[]string](t, 1, pypy.Command(script, way)...)
				walkBothWays(t, cmd.Process.Pid, want, checkCompiled(t, want, lacks[way]))
			})
		}
	})
}

func checkCompiled(t *testing.T, want map[procstate.ThreadID][]string, lacks int) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	return func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
		if want[tid] == nil {
			return
		}
		var got []string
		isCompiled := false
		for i := range frames {
			for _, l := range w.Codes().Lines(frames[i].Code) {
				isCompiled = isCompiled || l.IsCompiled
			}
		}
		for _, call := range calledInPyPy(w, frames) {
			name, _, _ := strings.Cut(call, " /")
			got = append(got, name)
		}
		rest := got
		for _, call := range want[tid] {
			if len(rest) > 0 && rest[0] == call {
				rest = rest[1:]
			}
		}
		if len(rest) > 0 || len(want[tid])-len(got) > lacks || !isCompiled || got[0] != want[tid][0] {
			t.Errorf("compiled: %t, calls\n%s\nwant\n%s", isCompiled, strings.Join(got, "\n"), strings.Join(want[tid], "\n"))
		}
	}
}
