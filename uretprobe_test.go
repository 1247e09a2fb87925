package swbpf_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
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
			testenv.Lacks(t, "%v", err)
		}
		probe, err := loader.PutProbe(event, -1)
		if err != nil {
			testenv.Lacks(t, "%v", err)
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

// asks is a source of what uretprobes have replaced in a process.
func asks(t *testing.T, pid int) func() map[procstate.ThreadID]procstate.UserProbes {
	t.Helper()
	r, err := loader.OpenProbeReader(pid)
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	t.Cleanup(func() { r.Close() })
	return func() map[procstate.ThreadID]procstate.UserProbes {
		probes, err := r.Read()
		if err != nil {
			t.Error(err)
		}
		return probes
	}
}

// A Walker of a live process, and a walk of one that stands still, are whole
// under nested uretprobes when the kernel is asked, and else say why not.
func TestWalkersUnderReturnProbes(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	program := build(t, "deep.c", "gcc -O1")
	putProbes(t, program, "leaf", "step")
	tg := start(t, program)
	tg.settle(t)
	want := append([]string{"leaf"}, append(times(50, "step"), "main")...)
	ask := asks(t, tg.pid)

	w, err := swbpf.ForPID(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if !errors.Is(err, unwind.ReturnReplaced) || len(frames) < 2 {
		t.Errorf("not asked: %v after %d frames", err, len(frames))
	}
	w.ProcessState().(*procstate.ProcDebug).SetProbes(ask)
	for range 2 {
		frames, err = w.WalkStack(nil, procstate.DefaultThread)
		chain(t, &swbpf.ThreadStack{Frames: frames, Err: err, Walker: w}, want...)
	}
	swbpf.Detach(w)

	_, err = swbpf.WalkStopped(tg.pid, swbpf.WalkOptions{Probes: ask}, func(ps *swbpf.ProcessStacks) {
		chain(t, &ps.Stacks[0], want...)
	})
	if err != nil {
		t.Error(err)
	}
	goesOn(t, tg.pid)
}

// A process that walks itself through C code finds all of it. Under
// uretprobes it has to ask the kernel, and else says why it ends.
func TestFirstPartyThroughC(t *testing.T) {
	amd64Only(t)
	testenv.Needs(t, "gcc")
	program := filepath.Join(t.TempDir(), "selfprobed")
	cmd := exec.Command("go", "build", "-o", program, "./testdata/walk/selfprobed")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	testenv.Run(t, cmd)
	inC := []string{"goWalk", "innermost", "inner", "inner", "inner", "inner", "outer"}
	check := func(how string, n int, args ...string) {
		t.Helper()
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		end, names, _ := strings.Cut(lines[len(lines)-1], ": ")
		got := strings.Fields(names)
		i := slices.Index(got, "crosscall2")
		if end != how || i < 0 || !slices.Equal(got[i+1:min(len(got), i+1+n)], inC[:n]) {
			t.Errorf("want %s and %v in\n%s", how, inC[:n], out)
		}
		if strings.HasSuffix(names, " runtime.goexit") != (how == "<nil>") {
			t.Errorf("%s, but the stack is %s", how, names)
		}
	}
	check("<nil>", len(inC))
	putProbes(t, program, "innermost", "inner", "outer")
	check("return-replaced", 2)
	check("<nil>", len(inC), "ask")
}
