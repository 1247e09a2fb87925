package swbpf_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// TestStepperOutside builds the example of a stepper as a module of its own
// and walks a program with it that cannot be walked without.
func TestStepperOutside(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	dir := t.TempDir()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	own := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(mod), "module example.com/jitstepper")
	own += fmt.Sprintf("\nrequire github.com/swbpf/swbpf v0.0.0\n\nreplace github.com/swbpf/swbpf => %s\n", root)
	for name, b := range map[string]string{"go.mod": own, "go.sum": string(read(t, "go.sum")),
		"main.go": string(read(t, "testdata", "walk", "jitstepper", "main.go"))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "jitstepper")
	build2 := exec.Command("go", "build", "-mod=mod", "-o", bin, ".")
	build2.Dir = dir
	build2.Env = append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "CGO_ENABLED=0")
	testenv.Run(t, build2)
	tg := start(t, build(t, "jit.c", "gcc -O1"), "table")
	tg.settle(t)
	out, err := exec.Command(bin, itoa(tg.pid)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `"leaf"`) })
	if i < 0 || len(lines) < i+5 || !strings.HasSuffix(lines[i+1], `"" debug`) || !strings.HasSuffix(lines[i+2], `"enter" jit`) ||
		!strings.Contains(lines[i+3], `"main"`) || lines[len(lines)-1] != "complete" {
		t.Errorf("output:\n%s", out)
	}
	goesOn(t, tg.pid)
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestWalkerSet walks a group of processes as one, and merges what it finds.
func TestWalkerSet(t *testing.T) {
	canTrace(t)
	program := build(t, "threads.c", "gcc -O2 -pthread -fno-optimize-sibling-calls")
	a, b := start(t, program, "30", "5", "quiet"), start(t, program, "20", "9", "quiet")
	a.settle(t)
	b.settle(t)
	if _, err := swbpf.ForPIDs(a.pid, 1<<22); err == nil {
		t.Error("a group with a process that does not exist")
	}
	goesOn(t, a.pid)
	set, err := swbpf.ForPIDs(a.pid, b.pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range set.Walkers() {
		defer swbpf.Detach(w)
	}
	walks, err := set.WalkStacks()
	if err != nil || len(walks) != 52 {
		t.Fatalf("%d walks, %v", len(walks), err)
	}
	byFunction, byAddress, byLine := unwind.NewCallTree(unwind.ByFunction), unwind.NewCallTree(unwind.ByAddress), unwind.NewCallTree(unwind.ByLine)
	byLibrary := unwind.NewCallTree(unwind.ByLibraryAddress)
	for _, walk := range walks {
		if walk.Err != nil {
			t.Errorf("thread %d: %v", walk.Thread, walk.Err)
		}
		byFunction.Add(walk)
		byAddress.Add(walk)
		byLine.Add(walk)
		byLibrary.Add(walk)
	}
	// clone, start_thread, work: then the threads of a end six calls of step
	// deep, those of b go on to ten.
	var steps []int
	byFunction.Visit(func(n *unwind.CallNode, depth int) {
		if sym, _ := n.Walker.Name(&n.Frame); sym.Name == "step" {
			steps = append(steps, n.Count)
		}
	})
	if want := append(slices.Repeat([]int{50}, 6), 20, 20, 20, 20); !slices.Equal(steps, want) {
		t.Errorf("frames of step in the tree have counts %v, want %v", steps, want)
	}
	if n := byFunction.Root().Count; n != 52 {
		t.Errorf("%d walks in the tree", n)
	}
	// Both have the program where they like; the calls of step are at one address in it.
	deepest := 0
	byLibrary.Visit(func(n *unwind.CallNode, depth int) {
		if lib, _, ok := n.Walker.Library(&n.Frame); ok && lib.Path == program && n.Count == 50 {
			deepest = max(deepest, depth)
		}
	})
	if top := byLibrary.Root().Children()[0]; top.Count != 50 || deepest != 7 { // clone, start_thread, work, five of step
		t.Errorf("the tree by link-time addresses has %d threads in one, %d frames deep", top.Count, deepest+1)
	}
	leaves := 0
	byAddress.Visit(func(n *unwind.CallNode, depth int) { leaves += len(n.Walks) })
	if leaves != 52 {
		t.Errorf("%d walks end in the tree by address", leaves)
	}
	first := byFunction.Root().Children()[0]
	if first.Count != 50 || first.Parent() != byFunction.Root() {
		t.Errorf("the first child has %d walks", first.Count)
	}
	set.Remove(set.Walkers()[0])
	if walks, _ := set.WalkStacks(); len(walks) != 21 {
		t.Errorf("%d walks of the rest", len(walks))
	}
}

// TestReplaceParts: a Walker takes its caller's own ProcessState, group and
// lookup.
func TestReplaceParts(t *testing.T) {
	// A stack of three frames in made-up memory, walked by a made-up rule.
	arch := procstate.AMD64
	snap := procstate.NewSnapshot(arch, 1, "made-up", &procstate.AddressSpace{})
	var regs procstate.Regs
	regs.Set(arch.PC, 0x1000)
	regs.Set(arch.SP, 0x8000)
	stack := make([]byte, 32)
	stack[0], stack[1] = 0x00, 0x20 // 0x2000
	stack[8], stack[9] = 0x00, 0x30
	snap.Reset(7, &regs, []procstate.Region{{Addr: 0x8000, Data: stack}})
	group := unwind.NewGroup(popStepper{})
	w := swbpf.With(snap, group, names3{})
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil || len(frames) != 3 || frames[2].PC() != 0x3000 || !frames[2].IsBottom() {
		t.Fatalf("%+v, %v", frames, err)
	}
	if sym, _ := w.Name(&frames[1]); sym.Name != "at 0x1fff" || sym.Object != "mine" {
		t.Errorf("name %+v", sym)
	}
	if w.Stepper(&frames[1]) != group.Steppers()[0] || w.ProcessState() != snap || w.StepperGroup() != group {
		t.Error("the parts are not the caller's")
	}

	swbpf.SetSymbolReader(func(procstate.ProcessState) unwind.SymbolLookup { return names3{} })
	defer swbpf.SetSymbolReader(nil)
	if _, ok := swbpf.With(snap, group, nil).SymbolLookup().(names3); !ok {
		t.Error("the symbol reader was not replaced")
	}
	if major, minor, maintenance := swbpf.Version(); major+minor+maintenance == 0 {
		t.Error("no version")
	}
}

// TestDetachOwn: Detach lets go of a process behind a ProcessState of the
// caller's own, too.
func TestDetachOwn(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "deep.c", "gcc -O2"))
	p, err := procstate.Attach(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Detach()
	w := swbpf.With(struct{ *procstate.ProcDebug }{p}, nil, nil)
	if frames, err := w.WalkStack(nil, procstate.DefaultThread); err != nil || len(frames) < 50 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
	if err := swbpf.Detach(w); err != nil {
		t.Error(err)
	}
	if _, err := w.WalkStack(nil, procstate.DefaultThread); !errors.Is(err, procstate.ErrDetached) {
		t.Errorf("after Detach: %v", err)
	}
}

// TestNothingLoaded: a process of whose loaded code nothing is known has no
// names, and a reason why its walk ends.
func TestNothingLoaded(t *testing.T) {
	arch := procstate.AMD64
	snap := procstate.NewSnapshot(arch, 1, "", nil)
	snap.SetLiveCode(procstate.NewLiveCode(os.Getpid(), ""))
	var regs procstate.Regs
	regs.Set(arch.PC, 0x1000)
	regs.Set(arch.SP, 0x8000)
	snap.Reset(7, &regs, []procstate.Region{{Addr: 0x8000, Data: make([]byte, 64)}})
	w := swbpf.With(snap, nil, nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if len(frames) != 1 || err != unwind.NoMapping {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	if sym, ok := w.Name(&frames[0]); ok {
		t.Errorf("name %+v", sym)
	}
	if lib, _, ok := w.Library(&frames[0]); ok {
		t.Errorf("library %+v", lib)
	}
	if _, err := swbpf.Variables(w).Functions(&frames[0]); !errors.Is(err, symbols.ErrNoDebugInfo) {
		t.Errorf("functions: %v", err)
	}
	if n, err := snap.ReadMemory(0x1000, make([]byte, 8)); n != 0 || !errors.Is(err, procstate.ErrUnreadable) {
		t.Errorf("%d bytes of code, %v", n, err)
	}
}

// TestPanicInWalk: a process whose walk panics goes on, and can be walked again.
func TestPanicInWalk(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "deep.c", "gcc -O2"))
	w, err := swbpf.ForPID(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	defer swbpf.Detach(w)
	s := panicStepper{new(bool)}
	if err := w.AddStepper(s); err != nil {
		t.Fatal(err)
	}
	var top, caller unwind.Frame
	if err := w.InitialFrame(procstate.DefaultThread, &top); err != nil {
		t.Fatal(err)
	}
	for what, walk := range map[string]func(){
		"WalkStack":    func() { w.WalkStack(nil, procstate.DefaultThread) },
		"WalkFrom":     func() { w.WalkFrom(nil, &top) },
		"Step":         func() { w.Step(&top, &caller) },
		"InitialFrame": func() { w.InitialFrame(procstate.DefaultThread, nil) },
	} {
		*s.on = true
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			walk()
		}()
		*s.on = false
		eventually(t, "the process goes on after "+what, func() bool { return !strings.Contains(threadStates(tg.pid), "t") })
		if frames, err := w.WalkStack(nil, procstate.DefaultThread); err != nil || len(frames) < 50 {
			t.Errorf("after %s: %d frames, %v", what, len(frames), err)
		}
	}
}

// panicStepper panics while it is on.
type panicStepper struct{ on *bool }

func (panicStepper) Name() string              { return "panic" }
func (panicStepper) Priority() unwind.Priority { return unwind.PriorityBottom - 1 }
func (s panicStepper) CallerFrame(*unwind.Walker, *unwind.Frame, *unwind.Frame) (unwind.Verdict, error) {
	if *s.on {
		panic("a stepper's fault")
	}
	return unwind.NotMe, nil
}

// popStepper pops a return address, until it is zero.
type popStepper struct{}

func (popStepper) Name() string              { return "pop" }
func (popStepper) Priority() unwind.Priority { return unwind.PriorityFrame }
func (popStepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	ra, ok := w.ProcessState().ReadWord(in.SP())
	switch {
	case !ok:
		return unwind.Failed, unwind.MemoryUnreadable
	case ra == 0:
		return unwind.StackBottom, nil
	}
	out.SetPC(w.Arch(), ra)
	out.SetSP(w.Arch(), in.SP()+8)
	return unwind.Success, nil
}

// names3 names every address by itself.
type names3 struct{}

func (names3) SymbolAt(addr uint64) (unwind.Symbol, bool) {
	return unwind.Symbol{Name: fmt.Sprintf("at %#x", addr), Object: "mine"}, true
}
