package swbpf_test

import (
	"errors"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// putProbes puts uretprobes on functions of a file until the test is over.
func putProbes(t *testing.T, file string, functions ...string) {
	t.Helper()
	for _, f := range functions {
		event, err := loader.ParseEvent("uretprobe:" + file + ":" + f)
		if err != nil {
			missing(t, "%v", err)
		}
		probe, err := loader.PutProbe(event, -1)
		if err != nil {
			missing(t, "%v", err)
		}
		t.Cleanup(func() { probe.Close() })
	}
}

// A core that the kernel writes of a process under uretprobes does not have the
// return addresses that it has replaced. The walk says so. (One by gdb lacks
// the page that tells it, too.)
func TestCoreUnderReturnProbes(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	program := build(t, "deep.c", "gcc -O1")
	putProbes(t, program, "leaf", "step")
	tg := start(t, program)
	tg.settle(t)
	w, err := swbpf.ForCore(kernelCore(t, tg), "")
	if err != nil {
		t.Fatal(err)
	}
	defer swbpf.Detach(w)
	frames, err := w.WalkStack(nil, procstate.ThreadID(tg.pid))
	if !errors.Is(err, unwind.ReturnReplaced) || len(frames) < 2 {
		t.Errorf("%v after %d frames", err, len(frames))
	}
}
