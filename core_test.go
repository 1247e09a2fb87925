package swbpf_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// gcore writes a core of a running process.
func gcore(t testing.TB, tg *target) string {
	t.Helper()
	testenv.Needs(t, "gdb")
	core := filepath.Join(t.TempDir(), "core")
	b, err := exec.Command("gdb", "-nx", "-batch", "-readnever", "-iex", "set debuginfod enabled off", "-p", itoa(tg.pid), "-ex", "generate-core-file "+core).CombinedOutput()
	if _, serr := os.Stat(core); err != nil || serr != nil {
		t.Fatalf("gcore: %v\n%s", err, b)
	}
	return core
}

// kernelCore has the kernel dump a core of a process, which ends it.
func kernelCore(t testing.TB, tg *target) string {
	t.Helper()
	const patternFile = "/proc/sys/kernel/core_pattern"
	before, err := os.ReadFile(patternFile)
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(patternFile, []byte(dir+"/core.%p"), 0); err != nil {
		testenv.Lacks(t, "the pattern of core files cannot be set: %v", err)
	}
	defer os.WriteFile(patternFile, before, 0)
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(tg.pid, unix.RLIMIT_CORE, &unlimited, nil); err != nil {
		testenv.Lacks(t, "the limit of core files cannot be raised: %v", err)
	}
	unix.Kill(tg.pid, unix.SIGABRT)
	tg.cmd.Wait()
	core := fmt.Sprintf("%s/core.%d", dir, tg.pid)
	if _, err := os.Stat(core); err != nil {
		testenv.Lacks(t, "the kernel has written no core: %v", err)
	}
	return core
}

// coreStacks walks all threads of a core.
func coreStacks(t testing.TB, core, exe string) (*unwind.Walker, map[procstate.ThreadID][]unwind.Frame) {
	t.Helper()
	w, err := swbpf.ForCore(core, exe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { swbpf.Detach(w) })
	tids, err := w.Threads()
	if err != nil {
		t.Fatal(err)
	}
	stacks := make(map[procstate.ThreadID][]unwind.Frame)
	for _, tid := range tids {
		frames, err := w.WalkStack(nil, tid)
		if err != nil {
			t.Errorf("thread %d of the core: after %d frames: %v", tid, len(frames), err)
		}
		stacks[tid] = frames
	}
	return w, stacks
}

// keepUnmoved leaves the threads of ps that still are where they were later.
// That of the goroutine of main is one.
func keepUnmoved(t *testing.T, ps, later *swbpf.ProcessStacks) {
	t.Helper()
	ps.Stacks = slices.DeleteFunc(ps.Stacks, func(s swbpf.ThreadStack) bool {
		return !slices.ContainsFunc(later.Stacks, func(l swbpf.ThreadStack) bool {
			return l.TID == s.TID && slices.Equal(pcsOf(l.Frames), pcsOf(s.Frames))
		})
	})
	if !slices.ContainsFunc(ps.Stacks, func(s swbpf.ThreadStack) bool { return slices.Contains(names(&s), "main.step") }) {
		t.Fatal("the goroutine of main has moved")
	}
}

// TestCoreIsLive: the core of a process has the stacks that the process had: the same
// frames with the same registers and locations.
func TestCoreIsLive(t *testing.T) {
	canTrace(t)
	for _, c := range []struct {
		name, source, command string
		args                  []string
		writer                func(testing.TB, *target) string
	}{
		{"C++, gcore", "deep.cc", "g++ -O2 -g", nil, gcore},
		{"C++, kernel", "deep.cc", "g++ -O2 -g", nil, kernelCore},
		{"signal on an alternate stack, gcore", "signals.c", "gcc -O1 -pthread", []string{"above"}, gcore},
		{"signal on an alternate stack, kernel", "signals.c", "gcc -O1 -pthread", []string{"alt"}, kernelCore},
		{"threads, kernel", "threads.c", "gcc -O2 -pthread -fno-optimize-sibling-calls", []string{"20", "10", "quiet"}, kernelCore},
		{"static-pie, kernel", "deep.c", "gcc -O1 -static-pie", nil, kernelCore},
		{"i386, gcore", "deep.c", "gcc -m32 -O1", nil, gcore},
		{"i386, kernel", "deep.c", "gcc -m32 -O1", nil, kernelCore},
		{"Go, gcore", "deep.go", "go build", nil, gcore},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.command, "-m32") {
				amd64Only(t)
				testenv.Needs32Bit(t)
			}
			tg := start(t, build(t, c.source, c.command), c.args...)
			var ps *swbpf.ProcessStacks
			if c.source == "deep.go" {
				ps = walkGo(t, tg.pid)
			} else {
				tg.settle(t)
				ps = walkAll(t, tg.pid)
				tg.settle(t) // in their calls once more, not on the way back to them
			}
			core := c.writer(t, tg)
			if c.source == "deep.go" { // its runtime's threads never rest for long
				keepUnmoved(t, ps, walkAll(t, tg.pid))
			}
			w, stacks := coreStacks(t, core, "")
			if w.ProcessState().PID() != tg.pid || w.Arch() != ps.Arch || w.ProcessState().ExecutablePath() != ps.Executable {
				t.Errorf("core of process %d, %s, %s", w.ProcessState().PID(), w.Arch().Name, w.ProcessState().ExecutablePath())
			}
			if args := strings.Join(tg.cmd.Args, " "); strings.HasSuffix(c.name, "kernel") { // gdb writes the program's name alone
				if got := w.ProcessState().(*procstate.Core).CommandLine; got != args[:min(len(args), 79)] {
					t.Errorf("its command line is %q, want %q", got, args)
				}
			}
			if len(stacks) != len(ps.Stacks) && c.source != "deep.go" {
				t.Errorf("%d threads, the process had %d", len(stacks), len(ps.Stacks))
			}
			for i := range ps.Stacks {
				s := &ps.Stacks[i]
				got := stacks[s.TID]
				if !slices.EqualFunc(got, s.Frames, func(a, b unwind.Frame) bool {
					return a.PC() == b.PC() && a.SP() == b.SP() && a.FP() == b.FP() && a.Flags == b.Flags &&
						a.PCLocation == b.PCLocation && a.FPLocation == b.FPLocation
				}) {
					t.Errorf("thread %d: live\n%v\ncore\n%v", s.TID, pcsOf(s.Frames), pcsOf(got))
					continue
				}
				for j := range got {
					a, _ := w.Name(&got[j])
					b, _ := s.Walker.Name(&s.Frames[j])
					if a.Name != b.Name || a.Offset != b.Offset {
						t.Errorf("thread %d frame %d is %s+%#x, in the process it was %s+%#x", s.TID, j, a.Name, a.Offset, b.Name, b.Offset)
					}
				}
			}
		})
	}
}

func pcsOf(frames []unwind.Frame) []string {
	var s []string
	for i := range frames {
		s = append(s, fmt.Sprintf("%#x/%#x", frames[i].PC(), frames[i].SP()))
	}
	return s
}

// TestCoreProgram: the program file can be given, another one is refused.
func TestCoreProgram(t *testing.T) {
	canTrace(t)
	program := build(t, "deep.c", "gcc -O1 -g0")
	other := build(t, "alloca.c", "gcc -O1 -w")
	moved := filepath.Join(t.TempDir(), "moved")
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(moved, b, 0o755); err != nil {
		t.Fatal(err)
	}
	tg := start(t, moved)
	tg.settle(t)
	core := gcore(t, tg)
	_, want := coreStacks(t, core, "")
	if err := os.Remove(moved); err != nil {
		t.Fatal(err)
	}
	_, got := coreStacks(t, core, program)
	if !slices.Equal(got[procstate.ThreadID(tg.pid)], want[procstate.ThreadID(tg.pid)]) || len(want) == 0 {
		t.Errorf("with the program's copy: %v, want %v", got, want)
	}
	if w, err := swbpf.ForCore(core, other); err == nil {
		swbpf.Detach(w)
		t.Error("another program is accepted")
	}
	if _, err := swbpf.ForCore(program, ""); err == nil {
		t.Error("a program is accepted as a core")
	}
}
