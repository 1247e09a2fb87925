package swbpf_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestPerl compares what Perl runs with what its own caller says, frame by frame.
func TestPerl(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	testenv.EachPerl(t, testPerl)
}

func testPerl(t *testing.T, perl testenv.Program) {
	command := perl.Command(perl.Script(t, filepath.Join("testdata", "walk", "waits.pl")))
	out, err := exec.Command(command[0], command[1:]...).Output()
	cases := strings.Fields(string(out))
	if err != nil || len(cases) < 10 {
		t.Fatalf("cases %q, %v", cases, err)
	}
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			cmd, want := startWaiting[[]string](t, 1, append(slices.Clone(command), name)...)
			calls := want[procstate.ThreadID(cmd.Process.Pid)]
			check := func(w *unwind.Walker, frames []unwind.Frame) {
				t.Helper()
				got := toldCalls(w, frames)
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
			ps, err := swbpf.WalkProcess(cmd.Process.Pid, swbpf.WalkOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if s := &ps.Stacks[0]; s.Err != nil {
				t.Error(s.Err)
			} else {
				check(s.Walker, s.Frames)
			}
			// The same of a process that is stopped, whose memory is as it is.
			w, err := swbpf.ForPID(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer swbpf.Detach(w)
			frames, err := w.WalkStack(nil, procstate.ThreadID(cmd.Process.Pid))
			if err != nil {
				t.Error(err)
			}
			check(w, frames)
		})
	}
}
