package swbpf_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestR compares what R runs with what it has written of it, with its interpreter of bytecode and without.
func TestR(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	testenv.EachR(t, func(t *testing.T, rscript testenv.Program) {
		for _, jit := range []string{"0", "3"} {
			t.Run("R_ENABLE_JIT="+jit, func(t *testing.T) {
				command := append([]string{"env", "R_ENABLE_JIT=" + jit}, rscript.Command(rscript.Script(t, filepath.Join("testdata", "walk", "waits.R")))...)
				cmd, want := startWaiting[[]string](t, 1, command...)
				walkBothWays(t, cmd.Process.Pid, want, checkR(t, want))
			})
		}
	})
}

// checkR makes what compares a stack of waits.R with what that has written of it.
func checkR(t *testing.T, want map[procstate.ThreadID][]string) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	return func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
		t.Helper()
		var got []string
		for i := range frames {
			for code := frames[i].Code; code != 0; code = w.Codes().Outer(code) {
				got = append(got, w.Codes().Lines(code)[0].Name)
			}
		}
		if !slices.Equal(got, want[tid]) {
			t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want[tid], "\n"))
		}
	}
}
