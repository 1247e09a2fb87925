package swbpf_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestPerl compares what Perl runs with what its own caller says, frame by frame.
func TestPerl(t *testing.T) {
	canTrace(t)
	testenv.EachPerl(t, testPerl)
}

func testPerl(t *testing.T, perl testenv.Program) {
	command := perl.Command(perl.Script(t, filepath.Join("testdata", "walk", "waits.pl")))
	for _, name := range casesOfPerl(t, command...) {
		t.Run(name, func(t *testing.T) {
			cmd, want := startWaiting[[]string](t, 1, append(slices.Clone(command), name)...)
			walkBothWays(t, cmd.Process.Pid, want, checkPerl(t, name, want))
		})
	}
}

// casesOfPerl are those of waits.pl.
func casesOfPerl(t *testing.T, command ...string) []string {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).Output()
	cases := strings.Fields(string(out))
	if err != nil || len(cases) < 10 {
		t.Fatalf("cases %q, %v", cases, err)
	}
	return cases
}

// checkPerl makes what compares the stack of a case of waits.pl with what that has written of it.
func checkPerl(t *testing.T, name string, want map[procstate.ThreadID][]string) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	return func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
		t.Helper()
		got := toldCalls(w, frames)
		calls := want[tid]
		expected := slices.Clone(calls)
		switch name {
		case "dies": // the loops that the exception leaves are still there
			if expected = calls[:4]; len(calls) < 5 {
				t.Errorf("want %q", calls)
			}
		case "result": // the block has returned, but not been left
			expected = slices.Delete(expected, 4, 5)
		}
		if !slices.Equal(got, expected) {
			t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(expected, "\n"))
		}
	}
}
