package steppers

import (
	"io"
	"os/exec"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// restingProgram calls down a chain, says so, and rests at its end.
const restingProgram = `
#include <unistd.h>
volatile long sink;
#define F __attribute__((noinline))
F void leaf(void) { sink += write(1, "x", 1); for (;;) pause(); }
F void tail(void) { leaf(); sink++; }
F void jumper(void) { sink++; tail(); }
F void rec(int n) { volatile char pad[40]; pad[n] = n; if (n) rec(n - 1); else jumper(); sink += pad[n]; }
F void f2(void) { rec(9); sink++; }
F void f1(void) { f2(); sink++; }
int main(void) { f1(); return 0; }
`

// callersOfLeaf starts the program and captures it at rest. It returns what is
// found below leaf.
func callersOfLeaf(t *testing.T, path string, probed bool) []uint64 {
	t.Helper()
	cmd := exec.Command(path)
	_, out := testenv.Start(t, cmd)
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var opts procstate.CaptureOptions
	if probed {
		r, err := loader.OpenProbeReader(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		opts.Probes = func() map[procstate.ThreadID]procstate.UserProbes {
			probes, err := r.Read()
			if err != nil {
				t.Error(err)
			}
			return probes
		}
	}
	c, err := procstate.CaptureProcess(cmd.Process.Pid, opts)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := unwind.NewWalker(c, Default(unwind.NewTables()), nil).WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Fatalf("%v after %d frames", err, len(frames))
	}
	var leaf functionRange
	steptest.OpenImage(t, path).EachSymbol(func(s *procstate.ELFSymbol) bool {
		if string(s.Name) == "leaf" {
			leaf = functionRange{s.Value, s.Value + s.Size, "leaf"}
		}
		return leaf.name == ""
	})
	i := slices.IndexFunc(frames, func(f unwind.Frame) bool { return f.LookupPC()-leaf.start < leaf.end-leaf.start })
	if i < 0 {
		t.Fatalf("leaf is not among %d frames", len(frames))
	}
	var pcs []uint64
	for _, f := range frames[i+1:] {
		pcs = append(pcs, f.PC())
	}
	return pcs
}

// A process that is walked on demand has the same stack under nested
// uretprobes as without: the kernel is asked for what it has replaced.
func TestReturnProbesOnDemand(t *testing.T) {
	steptest.NeedPtrace(t)
	path := steptest.Compile(t, []string{"gcc", "-O2", "-no-pie", "-static"}, "resting.c", restingProgram)
	want := callersOfLeaf(t, path, false)
	im := steptest.OpenImage(t, path)
	for _, name := range []string{"f1", "f2", "rec", "jumper", "tail", "leaf"} {
		uretprobe(t, im, path, name, -1)
	}
	if got := callersOfLeaf(t, path, true); !slices.Equal(got, want) || len(want) < 14 {
		t.Errorf("callers %x, without probes %x", got, want)
	}
}
