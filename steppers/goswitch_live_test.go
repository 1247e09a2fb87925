package steppers

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// startGo builds a Go program of testdata and starts it. It has written its
// first byte.
func startGo(t *testing.T, name string) (path string, pid int) {
	t.Helper()
	return startGoBuilt(t, name, "CGO_ENABLED=0")
}

// startGoBuilt is startGo with a setting of the environment and flags for the build.
func startGoBuilt(t *testing.T, name, env string, flags ...string) (path string, pid int) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	build := exec.Command("go", append(append([]string{"build", "-o", path}, flags...), "./testdata/"+name)...)
	build.Env = append(build.Environ(), env)
	testenv.Run(t, build)
	cmd := exec.Command(path)
	_, out := testenv.Start(t, cmd)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return path, cmd.Process.Pid
}

// recordGoAt takes samples of a running Go program at an instruction, given as
// an offset in its file, and returns the functions of n stacks, leaf first, with
// how their walks ended.
func recordGoAt(t *testing.T, path string, pid int, at uint64, n int) (stacks [][]string, ends []error) {
	t.Helper()
	im := steptest.OpenImage(t, path)
	rt, err := procstate.GoRuntimeOf(im)
	if err != nil {
		t.Fatal(err)
	}
	table, err := procstate.Pclntab(im)
	if err != nil {
		t.Fatal(err)
	}
	event, err := loader.ParseEvent(fmt.Sprintf("uprobe:%s:%#x", path, at))
	if err != nil {
		t.Fatal(err)
	}
	s, err := loader.Open(loader.Config{Event: event, PIDs: []int{pid}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.SetGoProcess(pid, loader.GoOffsetsOf(rt, 0))
	if err != nil {
		t.Fatal(err)
	}
	images := procstate.NewImages(0)
	defer images.Close()
	procs := loader.NewProcesses(loader.ProcessesConfig{Images: images, PIDs: []int32{int32(pid)}})
	if err := procs.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	proc := procs.Process(int32(pid))
	if proc == nil {
		t.Fatal("the process is not known")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	group := Default(unwind.NewTables())
	snap := procstate.NewSnapshot(im.Arch(), pid, proc.Exe, proc.Space)
	walker := unwind.NewWalker(snap, group, nil)
	for deadline := time.Now().Add(4 * time.Minute); len(stacks) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d samples at %#x", len(stacks), at)
		}
		err := s.ReadSamples(^uint64(0), func(p *loader.Sample) error {
			if len(stacks) == n || !p.HasUser() {
				return nil
			}
			snap.Reset(procstate.ThreadID(p.TID), &p.Regs, p.Regions)
			pcs, err := walker.WalkPCs(nil, &p.Regs)
			var names []string
			for _, pc := range pcs {
				name := fmt.Sprintf("%#x", pc.Addr)
				if m := proc.Space.MappingAt(pc.Addr); m != nil && m.Path == path {
					if f, ok := table.Func(pc.Addr - m.Bias); ok {
						name = f.Name()
					}
				}
				names = append(names, name)
			}
			stacks, ends = append(stacks, names), append(ends, err)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return stacks, ends
}

// A sample at any of the instructions that change from one stack to another
// holds all that the walk needs, down to where the goroutine began.
func TestGoSwitchesRecorded(t *testing.T) {
	steptest.NeedPtrace(t)
	path, pid := startGo(t, "goswitches")
	im := steptest.OpenImage(t, path)
	table, err := procstate.Pclntab(im)
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]procstate.GoFunc{}
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		name := strings.TrimSuffix(string(s.Name), ".abi0")
		switch name {
		case "gogo", "runtime.mcall", "runtime.morestack":
			if f, ok := table.Func(s.Value); ok && f.Entry == s.Value {
				functions[name] = f
			}
		}
		return true
	})
	for _, c := range []struct {
		function string
		inst     []byte
		behind   bool // at the instruction behind it
	}{
		{"runtime.mcall", loadsG0SP[goMcall], false},
		{"runtime.mcall", loadsG0SP[goMcall], true},
		{"runtime.morestack", loadsG0SP[goMorestack], false},
		{"gogo", []byte{0x48, 0x8b, 0x23}, true}, // mov (%rbx),%rsp
		{"gogo", []byte{0xff, 0xe3}, false},      // jmp *%rbx
	} {
		f, ok := functions[c.function]
		if !ok {
			t.Fatalf("no %s", c.function)
		}
		at := bytes.Index(funcCode(im, &f), c.inst)
		if at < 0 {
			t.Fatalf("%s has no % x", c.function, c.inst)
		}
		if c.behind {
			at += len(c.inst)
		}
		off, ok := im.OffsetOfVaddr(f.Entry+uint64(at), 1)
		if !ok {
			t.Fatalf("%s is not in the file", c.function)
		}
		stacks, ends := recordGoAt(t, path, pid, off, 20)
		for i, names := range stacks {
			top, bottom := strings.TrimSuffix(names[0], ".abi0"), names[len(names)-1]
			if ends[i] != nil || top != c.function || !strings.HasPrefix(bottom, "runtime.goexit") {
				t.Errorf("%s+%d: %v, ended by %v", c.function, at, names, ends[i])
			}
		}
		t.Logf("%s+%d: %v", c.function, at, stacks[0])
	}
}

// When a goroutine has changed over to another as a coroutine, or goes on elsewhere after a panic, what the m
// and the g say of it is true already, while it is still on g0 where it has called mcall: a walk ends there.
func TestGoLeavesRecorded(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("mcall of another machine does not keep the goroutine")
	}
	path, pid := startGo(t, "goleaves")
	im := steptest.OpenImage(t, path)
	off := uint64(0)
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		if string(s.Name) == "gogo" {
			off, _ = im.OffsetOfVaddr(s.Value, 1)
		}
		return off == 0
	})
	if off == 0 {
		t.Fatal("no gogo")
	}
	stacks, ends := recordGoAt(t, path, pid, off, 300)
	met := map[string]int{}
	for i, names := range stacks {
		by := names[min(1, len(names)-1)]
		met[by]++
		switch by {
		case "runtime.coroswitch_m", "runtime.recovery": // else the scheduler
			if ends[i] != nil || !slices.Equal(names[2:], []string{"runtime.mcall"}) {
				t.Errorf("%v, ended by %v", names, ends[i])
			}
		}
	}
	if met["runtime.coroswitch_m"] < 50 || met["runtime.recovery"] < 50 {
		t.Errorf("samples by what they were called by: %v", met)
	}
}

// While cgocallback is on g0's stack, and that knows of it already, a walk has each call back once.
func TestGoCallbacksRecorded(t *testing.T) {
	t.Parallel()
	testenv.Needs(t, "gcc")
	steptest.NeedPtrace(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the instruction is one of amd64")
	}
	path, pid := startGoBuilt(t, "gocgo", "CGO_ENABLED=1")
	im := steptest.OpenImage(t, path)
	table, err := procstate.Pclntab(im)
	if err != nil {
		t.Fatal(err)
	}
	off := uint64(0)
	for i := range table.Len() {
		if f, ok := table.At(i); ok && strings.TrimSuffix(f.Name(), ".abi0") == "runtime.cgocallback" {
			stored := []byte{0x48, 0x89, 0x66, 0x38} // mov %rsp,0x38(%rsi)
			if at := bytes.LastIndex(funcCode(im, &f), stored); at >= 0 {
				off, _ = im.OffsetOfVaddr(f.Entry+uint64(at+len(stored)), 1)
			}
		}
	}
	if off == 0 {
		t.Fatal("cgocallback does not store its SP")
	}
	stacks, ends := recordGoAt(t, path, pid, off, 120)
	within := map[int]int{}
	for i, names := range stacks {
		n := 0
		for _, name := range names {
			if name == "main.goCallback" {
				n++
			}
		}
		if within[n]++; ends[i] != nil || n > 2 {
			t.Errorf("%v, ended by %v", names, ends[i])
		}
	}
	if within[0] < 20 || within[1] < 20 || within[2] < 20 {
		t.Errorf("samples by how many calls back they are within: %v", within)
	}
}

// A sample in the race detector holds the stack of the goroutine from where it has called
// it on, which nothing but a register tells, or where C has saved that. Stripped or not, C
// code that Go's linker has put in tells where.
func TestGoRaceDetectorRecorded(t *testing.T) {
	t.Parallel()
	testenv.Needs(t, "gcc")
	steptest.NeedPtrace(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the race detector of another machine keeps its return address elsewhere")
	}
	for _, stripped := range []bool{false, true} {
		flags := []string{"-race"}
		if stripped {
			flags = append(flags, "-ldflags=-s")
		}
		path, pid := startGoBuilt(t, "gorace", "CGO_ENABLED=1", flags...)
		im := steptest.OpenImage(t, path)
		table, err := procstate.Pclntab(im)
		if err != nil {
			t.Fatal(err)
		}
		// The latter is called by C that has saved the register.
		for _, function := range []string{"__tsan_write", "runtime.racecallbackthunk"} {
			off := uint64(0)
			for i := range table.Len() {
				if f, ok := table.At(i); ok && strings.TrimSuffix(f.Name(), ".abi0") == function {
					off, _ = im.OffsetOfVaddr(f.Entry, 1)
				}
			}
			if off == 0 {
				t.Fatalf("no %s", function)
			}
			stacks, ends := recordGoAt(t, path, pid, off, 200)
			deep := 0
			for i, names := range stacks {
				bottom := names[len(names)-1]
				// The scheduler, which has left its goroutine for good, sweeps as well.
				whole := strings.HasPrefix(bottom, "runtime.goexit") || bottom == "runtime.mcall" && slices.Contains(names, "runtime.schedule")
				if ends[i] != nil || strings.TrimSuffix(names[0], ".abi0") != function || !whole {
					t.Fatalf("%s, stripped %v: %v, ended by %v", function, stripped, names, ends[i])
				}
				if len(names) > 60 {
					deep++
				}
			}
			if deep == 0 && function == "__tsan_write" {
				t.Errorf("%s, stripped %v: no deep stack", function, stripped)
			}
			t.Logf("%s, stripped %v: %d deep, %v", function, stripped, deep, stacks[0])
		}
	}
}
