package steppers

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// runtimeFiles are files of runtimes, as far as they are here.
func runtimeFiles(arch *procstate.Arch) (paths []string) {
	if arch != procstate.AMD64 {
		return nil
	}
	for _, pattern := range []string{"/usr/bin/python3.*[0-9]", "/usr/lib/x86_64-linux-gnu/lib{python3.*,ruby-*,perl,lua5.4,luajit-5.1}.so.*",
		"/usr/bin/node", "/usr/bin/perl", "/usr/bin/php[0-9]*", "/usr/bin/pypy3", "/usr/bin/sbcl", "/usr/lib/R/lib/libR.so", "/usr/lib/jvm/*/lib/server/libjvm.so",
		"/usr/lib/erlang/erts-*/bin/beam.smp", "/usr/lib/x86_64-linux-gnu/libguile-*.so.1"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			if real, err := filepath.EvalSymlinks(path); err == nil && !slices.Contains(paths, real) {
				paths = append(paths, real)
			}
		}
	}
	return paths
}

// walkNonsense has a process whose answers are nonsense walked in all ways, and its frames named, with so many
// seeds. begin makes the process of a seed.
func walkNonsense(t *testing.T, group unwind.StepperGroup, names *symbols.Symbolizer, images []*procstate.Image, seeds uint64, begin func(seed uint64) procstate.ProcessState) {
	t.Helper()
	for seed := range seeds {
		p := &steptest.Nonsense{ProcessState: begin(seed), Rand: rand.New(rand.NewPCG(seed, 8)), Rate: []int{0, 2, 8, 60}[seed%4], Images: images}
		done := time.AfterFunc(time.Minute, func() {
			debug.SetTraceback("all")
			panic(fmt.Sprintf("seed %d does not end", seed))
		})
		func() {
			defer done.Stop()
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("seed %d: %v\n%s", seed, r, debug.Stack())
				}
			}()
			lookup := names.Process(p)
			w := unwind.NewWalker(p, group, lookup)
			w.MaxFrames = 50
			_, _ = w.Threads()
			frames, _ := w.WalkStack(nil, procstate.DefaultThread)
			var regs procstate.Regs
			if p.Registers(1, &regs) == nil {
				_, _ = w.WalkPCs(nil, &regs)
			}
			var in, out unwind.Frame
			if w.InitialFrame(1, &in) == nil {
				_, _ = w.Step(&in, &out)
			}
			for i := range frames {
				_, _ = w.Name(&frames[i])
				_, _, _ = w.Library(&frames[i])
				_ = lookup.Lines(nil, frames[i].LookupPC())
			}
			lookup.Update()
		}()
		if t.Failed() {
			return
		}
	}
}

// A ProcessState may be anybody's: whatever its methods return, walks end, and nothing panics, by all steppers together
// and by each alone.
func TestNonsense(t *testing.T) {
	names := symbols.New(symbols.Options{DebugDirs: []string{}})
	defer names.Close()
	begins := map[string]func(seed uint64) procstate.ProcessState{}
	images := map[string][]*procstate.Image{}
	for _, name := range []string{"depth30", "go", "goarm64", "gocgoarm64"} {
		f, snap := loadStacks(t, name)
		begins[name] = func(seed uint64) procstate.ProcessState {
			s := &f.Stacks[seed%uint64(len(f.Stacks))]
			regs := s.Registers()
			snap.Reset(1, &regs, s.Regions)
			return snap
		}
		for _, l := range snap.Libraries().Libraries() {
			images[name] = append(images[name], l.Image)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if own := steptest.OpenImage(t, exe); own.Arch() == procstate.AMD64 {
		h := newHostileWorld(t, procstate.AMD64, append(runtimeFiles(procstate.AMD64), exe, steptest.FakeJVM(t))...)
		liar := steptest.NewLiar(procstate.AMD64, h.libs, exe)
		liar.Leads = append([]uint64{liarStack, liarStack + 64}, h.codes...)
		begins["runtimes"] = func(seed uint64) procstate.ProcessState {
			liar.Begin(seed, h.codes[int(seed*97)%len(h.codes)], liarStack+seed%512*8)
			return liar
		}
		for _, l := range h.libs.Libraries() {
			images["runtimes"] = append(images["runtimes"], l.Image)
		}
	}
	for name, begin := range begins {
		walkNonsense(t, allSteppers(), names, images[name], 100, begin)
		for _, s := range allSteppers().Steppers() {
			t.Run(name+"/"+s.Name(), func(t *testing.T) {
				group := unwind.NewGroup(s)
				walkNonsense(t, group, names, images[name], 16, begin)
			})
		}
	}
}
