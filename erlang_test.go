package swbpf_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/unwind"
)

// TestErlang compares the calls of an Erlang process that runs for ever with what Erlang says of them, at
// moments at which it runs code of Erlang's compiler, and at others at which it is in functions of C.
func TestErlang(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	testenv.EachErlang(t, func(t *testing.T, erl testenv.Erlang) {
		seen := erl.Compile(t, filepath.Join("testdata", "walk", "stuck.erl"))
		for _, mode := range []string{"false", "true"} { // with frame pointers, where perf is supported
			t.Run("perf "+mode, func(t *testing.T) {
				args := erl.Command("+S", "1:1", "+JPperf", mode, "-pa", seen, "-eval", "stuck:main().")
				cmd := exec.Command(args[0], args[1:]...)
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
					for _, left := range []string{"/tmp/perf-%d.map", "/tmp/jit-%d.dump"} {
						_ = os.Remove(erl.Root + fmt.Sprintf(left, cmd.Process.Pid))
					}
				})
				testErlang(t, cmd.Process.Pid, erlangTells(t, out))
			})
		}
	})
}

// erlangTells reads what Erlang says of its calls.
func erlangTells(t *testing.T, out io.Reader) (calls []string) {
	t.Helper()
	for s := bufio.NewScanner(out); s.Scan() && s.Text() != ""; {
		calls = append(calls, s.Text())
	}
	if len(calls) < 5 {
		t.Fatalf("Erlang says %q", calls)
	}
	return calls
}

func testErlang(t *testing.T, pid int, want []string) {
	inErlang, inC, wrong := 0, 0, 0
	for walks := 0; walks < 300 && (inErlang < 3 || inC < 3); walks++ {
		ps, err := swbpf.WalkProcess(pid, swbpf.WalkOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range ps.Stacks {
			switch is, problem := checkErlang(s.Walker, s.Frames, s.Err, want); {
			case problem != "":
				if wrong++; wrong < 3 {
					t.Error(problem)
				}
			case is == erlangRuns:
				inErlang++
			case is == erlangCalls:
				inC++
			}
		}
	}
	if inErlang == 0 || inC == 0 {
		t.Errorf("%d stacks in code of Erlang, and %d in C", inErlang, inC)
	}
	t.Logf("%d stacks in code of Erlang, and %d in C", inErlang, inC)
}

// What a thread does in Erlang.
type erlangDoes int

const (
	erlangIdles erlangDoes = iota // or runs another process
	erlangRuns
	erlangCalls // functions of C
)

// checkErlang compares the calls of a thread with those that Erlang has told of the process that spins.
func checkErlang(w *unwind.Walker, frames []unwind.Frame, err error, want []string) (is erlangDoes, problem string) {
	if len(frames) == 0 {
		return erlangIdles, "" // it was not stopped in time, as on a machine with much else to do
	}
	var got []string
	var native int
	for i := range frames {
		lines := w.Codes().Lines(frames[i].Code)
		if len(lines) == 0 {
			native++ // since the last one of Erlang
			continue
		}
		if native = 0; !strings.HasPrefix(lines[0].Name, "global::") {
			got = append(got, fmt.Sprintf("%s %s:%d", lines[0].Name, lines[0].File, lines[0].Line))
		}
	}
	first := slices.IndexFunc(got, func(c string) bool { return strings.HasPrefix(c, "stuck:inner/2 ") })
	if first < 0 {
		if spins := slices.ContainsFunc(got, func(c string) bool { return strings.HasPrefix(c, "stuck:spin/2 ") }); spins || err != nil {
			problem = fmt.Sprintf("%v, and calls\n%s", err, strings.Join(got, "\n")) // also while garbage is collected
		}
		return erlangIdles, problem // another process, or none
	}
	if is = erlangCalls; frames[0].Code != 0 {
		is = erlangRuns
	}
	if !slices.Equal(got[first:], want) || err != nil || native < 3 {
		problem = fmt.Sprintf("%d functions of C, %v, and calls\n%s\nwant\n%s", native, err, strings.Join(got[first:], "\n"), strings.Join(want, "\n"))
	}
	return is, problem
}
