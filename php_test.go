package swbpf_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestPHP compares what PHP runs, interpreted and compiled, with what it has written of it.
func TestPHP(t *testing.T) {
	canTrace(t)
	testenv.EachPHP(t, func(t *testing.T, php testenv.PHP) {
		script := php.Script(t, filepath.Join("testdata", "walk", "waits.php"))
		for name, flags := range php.Modes() {
			if name == "function" && runtime.GOARCH == "arm64" && php.Version >= 80300 {
				continue // not all frames of its code are walked through
			}
			isCompiled := name == "tracing" || name == "function"
			t.Run(name, func(t *testing.T) { testPHP(t, isCompiled, php.Command(append(flags, script)...)) })
			if php.Version >= 80100 {
				t.Run(name+" in a fiber", func(t *testing.T) { testPHP(t, false, php.Command(append(flags, script, "fiber")...)) })
			}
		}
	})
}

func testPHP(t *testing.T, isCompiled bool, command []string) {
	cmd, want := startWaiting[[]string](t, 1, command...)
	tid := procstate.ThreadID(cmd.Process.Pid)
	check := checkPHP(t, want[tid])
	ps, err := swbpf.WalkProcess(cmd.Process.Pid, swbpf.WalkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &ps.Stacks[0]
	if s.Err != nil {
		t.Error(s.Err)
	}
	if compiled := check(s.Walker, s.Frames); isCompiled && compiled == 0 {
		t.Error("no frame of compiled code")
	}
	// The same of a process that is stopped, whose memory is as it is.
	w, err := swbpf.ForPID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer swbpf.Detach(w)
	frames, err := w.WalkStack(nil, tid)
	if err != nil {
		t.Error(err)
	}
	check(w, frames)
}

// checkPHP returns a check of frames by the calls that PHP has told, which returns how many of these are
// of compiled code.
func checkPHP(t *testing.T, calls []string) func(w *unwind.Walker, frames []unwind.Frame) (compiled int) {
	if i := slices.Index(calls, "Fiber::resume :0"); i >= 0 {
		calls = calls[:i] // the stack of the fiber ends there
	}
	return func(w *unwind.Walker, frames []unwind.Frame) (compiled int) {
		t.Helper()
		var got []string
		for i := range frames {
			for code := frames[i].Code; code != 0; code = w.Codes().Outer(code) {
				for _, l := range w.Codes().Lines(code) {
					got = append(got, fmt.Sprintf("%s %s:%d", l.Name, l.File, l.Line))
					if lib, _, ok := w.Library(&frames[i]); ok && lib.Image == nil && l.IsCompiled {
						compiled++
					}
				}
			}
		}
		if !slices.Equal(got, calls) {
			t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(calls, "\n"))
		}
		return compiled
	}
}

// A program that has PHP in a library may have the library's variables itself.
func TestPHPEmbedded(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	libraries, _ := filepath.Glob("/usr/lib/libphp*.so")
	includes, err := exec.Command("php-config", "--includes").Output()
	if err != nil || len(libraries) == 0 {
		t.Skip("no PHP to be embedded here")
	}
	program := filepath.Join(t.TempDir(), "embeds")
	args := append(strings.Fields(string(includes)), "-w", "-o", program, filepath.Join("testdata", "walk", "embeds.c"), libraries[0])
	testenv.Run(t, exec.Command("gcc", args...))
	testPHP(t, false, []string{program, testenv.Program{}.Script(t, filepath.Join("testdata", "walk", "waits.php"))})
}
