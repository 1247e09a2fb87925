package swbpf_test

import (
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// tracedGoroutine is a goroutine as Go's own traceback prints it.
type tracedGoroutine struct {
	id, parent uint64
	addr       uint64 // of its g; 0 is not told, before Go 1.22
	state      string
	locked     bool
	created    string // function
	createdOff uint64
	frames     []tracedFrame
	elided     int // how many of frames come before those that were left out, in Go 1.20 all that are printed; 0 is none
}

// tracedFrame is a frame that is no inlined call.
type tracedFrame struct {
	function string
	pc, sp   uint64
}

var (
	tracedHead    = regexp.MustCompile(`^goroutine (\d+)(?: gp=0x([0-9a-f]+) m=\S+(?: mp=\S+)?)? \[([^\]]*)\]:$`)
	tracedPlace   = regexp.MustCompile(`^\t\S+:\d+(?: \+0x([0-9a-f]+))?(?: fp=0x[0-9a-f]+ sp=0x([0-9a-f]+) pc=0x([0-9a-f]+))?$`)
	tracedCreated = regexp.MustCompile(`^created by (.*?)(?: in goroutine (\d+))?$`)
)

// parseTraceback reads what a program prints of its goroutines with
// GOTRACEBACK=system.
func parseTraceback(t *testing.T, text string) map[uint64]*tracedGoroutine {
	t.Helper()
	all := make(map[uint64]*tracedGoroutine)
	var g *tracedGoroutine
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if m := tracedHead.FindStringSubmatch(line); m != nil {
			g = &tracedGoroutine{id: number(t, m[1], 10)}
			if m[2] != "" {
				g.addr = number(t, m[2], 16)
			}
			g.state, g.locked = strings.CutSuffix(m[3], ", locked to thread")
			if all[g.id] == nil { // the one that got the signal is printed twice
				all[g.id] = g
			}
			continue
		}
		if line == "" {
			g = nil
		}
		if g == nil || i+1 == len(lines) {
			continue
		}
		if strings.Contains(line, "frames elided...") {
			g.elided = len(g.frames)
			continue
		}
		place := tracedPlace.FindStringSubmatch(lines[i+1])
		if place == nil {
			continue
		}
		i++
		if m := tracedCreated.FindStringSubmatch(line); m != nil {
			g.created, g.createdOff = m[1], number(t, place[1], 16)
			if m[2] != "" {
				g.parent = number(t, m[2], 10)
			}
			continue
		}
		if place[3] != "" {
			name, _, _ := strings.Cut(line, "({")
			if j := strings.LastIndexByte(name, '('); j > 0 {
				name = name[:j]
			}
			g.frames = append(g.frames, tracedFrame{name, number(t, place[3], 16), number(t, place[2], 16)})
		}
	}
	return all
}

func number(t *testing.T, s string, base int) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, base, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// walkedGoroutine is a goroutine that was walked.
type walkedGoroutine struct {
	procstate.Goroutine
	frames  []unwind.Frame
	err     error
	created unwind.Symbol
}

// walkGoroutines walks all goroutines of a Walker's process.
func walkGoroutines(t *testing.T, w *unwind.Walker, gs *procstate.Goroutines) map[uint64]*walkedGoroutine {
	t.Helper()
	if gs.Unread != 0 {
		t.Errorf("%d goroutines could not be read", gs.Unread)
	}
	all := make(map[uint64]*walkedGoroutine)
	for _, g := range gs.List {
		f, err := swbpf.WalkGoroutine(w, nil, &g)
		wg := &walkedGoroutine{Goroutine: g, frames: f, err: err}
		if g.CreatedPC != 0 {
			wg.created, _ = w.SymbolLookup().SymbolAt(g.CreatedPC - 1)
		}
		if all[g.ID] != nil {
			t.Errorf("goroutine %d is there twice", g.ID)
		}
		all[g.ID] = wg
	}
	return all
}

// quit has a Go program print all its goroutines, which ends it.
func quit(t *testing.T, tg *target, stderr *os.File) map[uint64]*tracedGoroutine {
	t.Helper()
	if err := unix.Kill(tg.pid, unix.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = tg.cmd.Wait()
	b, err := os.ReadFile(stderr.Name())
	if err != nil {
		t.Fatal(err)
	}
	all := parseTraceback(t, string(b))
	delete(all, 0) // g0 of the thread that got the signal
	if len(all) == 0 {
		t.Fatalf("no traceback:\n%s", b)
	}
	return all
}

// startTraced is start for a Go program that will print all of its goroutines
// when it ends, and reads its input until then.
func startTraced(t *testing.T, path string, args ...string) (*target, *os.File) {
	t.Helper()
	stderr, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stderr.Close() })
	t.Setenv("GOTRACEBACK", "system")
	tg := startWith(t, path, stderr, args...)
	awaitReading(t, tg)
	return tg, stderr
}

// awaitReading waits until a program reads its input.
func awaitReading(t *testing.T, tg *target) {
	t.Helper()
	reads := fmt.Sprintf("%d 0x0 ", unix.SYS_READ)
	eventually(t, "it waits for its input", func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", tg.pid))
		return slices.ContainsFunc(tasks, func(task string) bool {
			b, _ := os.ReadFile(task)
			return strings.HasPrefix(string(b), reads)
		})
	})
}

// agrees compares a goroutine with the traceback's, which leaves out frames of C,
// and those that a thread has above the goroutine's.
func agrees(t *testing.T, w *walkedGoroutine, g *tracedGoroutine) {
	t.Helper()
	state := w.State()
	// One that spins waits for a thread where it has just been preempted.
	preempted := g.state == "running" && w.Status == procstate.GoRunnable
	if g.addr != 0 && w.Addr != g.addr || state != g.state && w.Thread == 0 && !preempted || w.Locked != g.locked || w.Parent != g.parent && g.created != "" {
		t.Errorf("goroutine %d: g at %#x, parent %d, [%s], locked %v; the traceback has %#x, %d, [%s], %v",
			w.ID, w.Addr, w.Parent, state, w.Locked, g.addr, g.parent, g.state, g.locked)
	}
	if g.created != "" && (w.created.Name != g.created || w.created.Offset+1 != g.createdOff) {
		t.Errorf("goroutine %d: created by %s+%#x; the traceback has %s+%#x", w.ID, w.created.Name, w.created.Offset+1, g.created, g.createdOff)
	}
	if w.err != nil {
		t.Errorf("goroutine %d [%s]: after %d frames: %v", w.ID, state, len(w.frames), w.err)
		return
	}
	head, tail := g.frames, []tracedFrame(nil)
	switch {
	case len(head) == 0 && w.Status == procstate.GoRunning: // on a thread that the traceback did not stop
		return
	case g.elided > 0:
		head, tail = g.frames[:g.elided], g.frames[g.elided:]
	case w.Status == procstate.GoRunning || preempted: // it was somewhere else then
		head = head[len(head)-1:]
	case w.Status == procstate.GoSyscall && len(head) > 0: // told as it was before the system call
		head = head[1:]
	}
	same := func(f *unwind.Frame, g tracedFrame) bool { return f.PC() == g.pc && f.SP() == g.sp }
	const loop = 64 // more bytes of code than that of the goroutine that spins has
	at := 0
	for i, want := range head {
		if want.function == "runtime.systemstack_switch" { // stands for what is on the other stack
			continue
		}
		for (w.Thread != 0 || preempted) && at < len(w.frames) && !same(&w.frames[at], want) || at < len(w.frames) && foreign(g, &w.frames[at]) {
			at++
		}
		if i > 0 && head[i-1].function == "runtime.asyncPreempt" && at < len(w.frames) &&
			w.frames[at].SP() == want.sp && w.frames[at].PC()-want.pc+loop < 2*loop { // it has gone on since, in its loop
			want.pc = w.frames[at].PC()
		}
		if at == len(w.frames) || !same(&w.frames[at], want) {
			t.Errorf("goroutine %d [%s]: frame %d: pc %#x sp %#x is missing, of %s", w.ID, state, i, want.pc, want.sp, want.function)
			return
		}
		at++
	}
	if g.elided == 0 && at != len(w.frames) {
		t.Errorf("goroutine %d [%s]: %d frames, the traceback has %d", w.ID, state, len(w.frames), len(head))
	}
	for i, want := range tail {
		if at := len(w.frames) - len(tail) + i; at < 0 || !same(&w.frames[at], want) {
			t.Errorf("goroutine %d [%s]: frame %d from the end: pc %#x sp %#x is missing", w.ID, state, len(tail)-i, want.pc, want.sp)
			return
		}
	}
}

// foreign reports whether a frame is of the C that lies between Go frames: on
// another stack than those of the traceback.
func foreign(g *tracedGoroutine, f *unwind.Frame) bool {
	const most = 1 << 30
	return len(g.frames) > 0 && f.SP()-g.frames[0].sp > most
}

// TestGoroutines compares the goroutines of running programs with what their own
// runtime prints of them: copied while the program stood, read from it while it
// stands, and from a core, which gdb writes more than 1 GB of: of all programs where
// tests are long. The installed toolchain is tested, and those that
// SWBPF_GO_VERSIONS names, separated by blanks: "go1.20.14 go1.21.13". CI takes
// two, and leaves out their subtests with flags, each a standard library to build.
func TestGoroutines(t *testing.T) {
	type testCase struct {
		name, source, command string
		args                  []string
		states                string // of which there must be one at least, or nothing was tested
	}
	cases := []testCase{
		{"plain", "goroutines", "go build", []string{"3"}, "coroutine,chan receive (nil chan),sync.Mutex.Lock,sync.RWMutex.RLock,IO wait,sleep,select,select (no cases),syscall,running,sync.Cond.Wait,sync.WaitGroup.Wait,chan send"},
		{"stripped", "goroutines", "go build -ldflags=-s", []string{"3"}, "coroutine,select,sync.Mutex.Lock"},
		{"PIE", "goroutines", "go build -buildmode=pie", []string{"3"}, "coroutine,select,sync.Mutex.Lock"},
		{"PIE, stripped", "goroutines", "go build -buildmode=pie -ldflags=-s", []string{"3"}, "coroutine,select,sync.Mutex.Lock"},
		{"many", "goroutines", "go build", []string{"10000"}, "sync.Mutex.Lock"},
		{"cgo", "gocalls.txt", "env CGO_ENABLED=1 go build", nil, "chan receive,syscall"},
	}
	if !testenv.Long() {
		cases[4].args = []string{"1000"}
		cases = slices.Delete(cases, 1, 3)
	}
	for _, version := range strings.Fields(os.Getenv("SWBPF_GO_VERSIONS")) {
		goBuild := goBuildWith(t, version)
		for _, flags := range testenv.Some([]string{" -ldflags=-s", " -buildmode=pie", " -buildmode=pie -ldflags=-s", ""}) {
			cases = append(cases, testCase{version + flags, cases[0].source, goBuild + flags, cases[0].args, "chan receive (nil chan),sync.Mutex.Lock,sync.RWMutex.RLock,IO wait,sleep,select,select (no cases),syscall,running,sync.Cond.Wait,chan send"})
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := build(t, c.source, c.command)
			if info, err := buildinfo.ReadFile(path); err != nil || strings.HasPrefix(c.name, "go1.") && !strings.HasPrefix(c.name+" ", info.GoVersion+" ") {
				t.Fatalf("built with %+v, %v", info, err)
			}
			tg, stderr := startTraced(t, path, c.args...)
			begin := monotonic(t)
			ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{Goroutines: true})
			if err != nil {
				t.Fatal(err)
			}
			if ps.GoroutinesErr != nil {
				t.Fatal(ps.GoroutinesErr)
			}
			walks := map[string]map[uint64]*walkedGoroutine{"copied": walkGoroutines(t, ps.GoroutineWalker, &ps.Goroutines)}
			_, err = swbpf.WalkStopped(tg.pid, swbpf.WalkOptions{Goroutines: true}, func(ps *swbpf.ProcessStacks) {
				if ps.GoroutinesErr != nil {
					t.Fatal(ps.GoroutinesErr)
				}
				walks["stopped"] = walkGoroutines(t, ps.GoroutineWalker, &ps.Goroutines)
			})
			if err != nil {
				t.Fatal(err)
			}
			if c.name == "plain" || testenv.Long() && c.name != "many" {
				w, err := swbpf.ForCore(gcore(t, tg), "")
				if err != nil {
					t.Fatal(err)
				}
				defer swbpf.Detach(w)
				gs, err := procstate.ReadGoroutines(w.ProcessState())
				if err != nil {
					t.Fatal(err)
				}
				walks["core"] = walkGoroutines(t, w, gs)
			}
			traced := quit(t, tg, stderr)
			states := make(map[string]bool) // the one that spins is runnable where it has just been preempted
			lost := 0
			for how, walked := range walks {
				t.Log(how, len(walked))
				for id, g := range traced {
					w := walked[id]
					if w == nil {
						t.Errorf("%s: goroutine %d [%s] is missing", how, id, g.state)
						continue
					}
					if w.System != systemStart(g) {
						t.Errorf("%s: goroutine %d, created by %s: system %v", how, id, g.created, w.System)
					}
					if w.System { // they come and go
						continue
					}
					states[w.State()] = true
					if w.Status == procstate.GoRunning && errors.Is(w.err, swbpf.ErrNoThread) && (g.state == "running" || g.state == "runnable") && lost == 0 {
						// One that spins was seen so in one of some hundred walks: between two threads.
						t.Logf("%s: goroutine %d [%s]: %v", how, id, w.State(), w.err)
						lost++
						continue
					}
					agrees(t, w, g)
				}
				for id, w := range walked {
					if traced[id] == nil {
						t.Errorf("%s: goroutine %d [%s] is not in the traceback", how, id, w.State())
					}
				}
			}
			for _, s := range strings.Split(c.states, ",") {
				if !states[s] {
					t.Errorf("no goroutine [%s]", s)
				}
			}
			if c.source == "goroutines" { // it has collected garbage when all were waiting
				since := 0
				for id, w := range walks["copied"] {
					if w.WaitSince < 0 || w.WaitSince > begin {
						t.Errorf("goroutine %d waits since %d, it was %d", id, w.WaitSince, begin)
					}
					if w.WaitSince != 0 && w.Status == procstate.GoWaiting {
						since++
					}
				}
				if since < 15 {
					t.Errorf("of %d goroutines it is known since when they wait", since)
				}
			}
			if t.Failed() {
				b, _ := os.ReadFile(stderr.Name())
				t.Logf("%s", b[:min(len(b), 100000)])
			}
		})
	}
}

// goBuildWith returns the command that builds a program of the standard library
// alone with a version of Go, whatever this module's go.mod asks for. By
// GOTOOLCHAIN itself that cannot be said: outside of modules it is not heeded.
func goBuildWith(t *testing.T, version string) string {
	t.Helper()
	cmd := exec.Command("go", "env", "GOROOT")
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+version)
	b, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(b))
	return "env GO111MODULE=off CGO_ENABLED=0 GOROOT=" + root + " " + root + "/bin/go build"
}

// systemStart reports whether the function that a goroutine began with is the
// runtime's own.
func systemStart(g *tracedGoroutine) bool {
	i := len(g.frames) - 1
	if i < 0 {
		return false
	}
	for i > 0 && strings.HasPrefix(g.frames[i].function, "runtime.goexit") {
		i--
	}
	switch name := g.frames[i].function; name {
	case "runtime.main", "runtime.corostart":
		return false
	case "runtime.runfinq", "runtime.runFinalizers":
		return g.state == "finalizer wait"
	default:
		return strings.HasPrefix(name, "runtime.")
	}
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano()
}

// TestGoroutineWithoutStack tells why a goroutine cannot be walked, and walks
// those that can.
func TestGoroutineWithoutStack(t *testing.T) {
	a := procstate.AMD64
	state := procstate.NewSnapshot(a, 1, "", nil)
	state.Reset(7, &procstate.Regs{}, []procstate.Region{{Addr: 0xc000001000, Data: make([]byte, 64)}})
	w := swbpf.With(state, nil, nil)
	waits := procstate.Goroutine{Status: procstate.GoWaiting, PC: 0x401000, SP: 0xc000001000, StackLo: 0xc000000000, StackHi: 0xc000002000}
	for _, c := range []struct {
		name   string
		change func(g *procstate.Goroutine)
		want   error
		frames int
	}{
		{"waits", func(*procstate.Goroutine) {}, unwind.NoMapping, 1},
		{"on a thread", func(g *procstate.Goroutine) { g.Status, g.Thread = procstate.GoRunning, 7 }, unwind.NoMapping, 1},
		{"on a thread that is not there", func(g *procstate.Goroutine) { g.Status, g.Thread = procstate.GoRunning, 8 }, procstate.ErrNoThread, 0},
		{"runs nowhere", func(g *procstate.Goroutine) { g.Status = procstate.GoRunning }, swbpf.ErrNoThread, 0},
		{"in a system call nowhere", func(g *procstate.Goroutine) { g.Status = procstate.GoSyscall }, swbpf.ErrNoThread, 0},
		{"moves", func(g *procstate.Goroutine) { g.Status = procstate.GoCopystack }, swbpf.ErrStackMoving, 0},
		{"below its stack", func(g *procstate.Goroutine) { g.SP = g.StackLo - 8 }, swbpf.ErrBadContext, 0},
		{"above its stack", func(g *procstate.Goroutine) { g.SP = g.StackHi }, swbpf.ErrBadContext, 0},
		{"at no word", func(g *procstate.Goroutine) { g.SP++ }, swbpf.ErrBadContext, 0},
		{"not copied", func(g *procstate.Goroutine) { g.SP = g.StackLo }, swbpf.ErrStackLost, 0},
	} {
		g := waits
		c.change(&g)
		frames, err := swbpf.WalkGoroutine(w, nil, &g)
		if !errors.Is(err, c.want) || len(frames) != c.frames {
			t.Errorf("%s: %d frames, %v; want %v", c.name, len(frames), err, c.want)
		}
		if c.name == "waits" && (frames[0].PC() != g.PC || frames[0].SP() != g.SP || frames[0].NonCall()) {
			t.Errorf("%s: %+v", c.name, frames[0])
		}
	}
}

// A program in another language has no goroutines, and says so.
func TestGoroutinesOfC(t *testing.T) {
	tg := start(t, build(t, "threads.c", "gcc -O1 -pthread"), "1", "1", "quiet")
	ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{Goroutines: true})
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(ps.GoroutinesErr, procstate.ErrNoPclntab) || len(ps.Goroutines.List) != 0 {
		t.Errorf("%d goroutines, %v", len(ps.Goroutines.List), ps.GoroutinesErr)
	}
}

// coreOf is a core whose mappings are told by the test: those that the emulator
// writes name no files.
type coreOf struct {
	*procstate.Core
	libs procstate.AddressSpace
}

func (c *coreOf) Libraries() procstate.LibraryState { return &c.libs }

// The goroutines of an arm64 program are walked in its core as its own runtime
// has printed them.
func TestGoroutinesARM64(t *testing.T) {
	testenv.Needs(t, "qemu-aarch64")
	path := build(t, "goroutines", "env CGO_ENABLED=0 GOARCH=arm64 go build")
	t.Chdir(t.TempDir())
	stderr, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	t.Setenv("GOTRACEBACK", "crash")
	tg := startWith(t, "sh", stderr, "-c", `ulimit -c unlimited; exec qemu-aarch64 "$@"`, "sh", path, "3")
	awaitReading(t, tg)
	traced := quit(t, tg, stderr)
	cores, _ := filepath.Glob("qemu_*.core")
	if len(cores) != 1 {
		t.Fatalf("cores %v", cores)
	}
	core, err := procstate.OpenCore(cores[0], path)
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	img := steptest.OpenImage(t, path)
	c := &coreOf{Core: core}
	for _, s := range img.Segments() {
		if s.Flags&elf.PF_X != 0 {
			c.libs.Insert(&procstate.Mapping{Start: s.Vaddr &^ 4095, End: (s.Vaddr + s.Memsz + 4095) &^ 4095, Offset: s.Off &^ 4095, Image: img})
		}
	}
	gs, err := procstate.ReadGoroutines(c)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for id, w := range walkGoroutines(t, swbpf.With(c, nil, nil), gs) {
		if w.Thread != 0 || w.Status == procstate.GoRunning || w.Status == procstate.GoSyscall {
			continue // the traceback has changed where it is
		}
		if g := traced[id]; g == nil {
			t.Errorf("goroutine %d [%s] is not in the traceback", id, w.State())
		} else if agrees(t, w, g); !w.System {
			compared++
		}
	}
	if compared < 25 {
		t.Errorf("%d goroutines compared", compared)
	}
}

// TestGoroutinesOfBusyProgram looks at goroutines that are always somewhere on
// the way from one state to another: each has its whole stack, or a reason.
func TestGoroutinesOfBusyProgram(t *testing.T) {
	tg := start(t, build(t, "gobusy/main.go", "go build"))
	ends, states := make(map[string]int), make(map[string]int)
	all := 0
	walks := 100
	if testenv.Long() {
		walks = 200
	}
	for range walks {
		ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{Goroutines: true})
		if err != nil {
			t.Fatal(err)
		}
		if ps.GoroutinesErr != nil {
			t.Fatal(ps.GoroutinesErr)
		}
		for id, g := range walkGoroutines(t, ps.GoroutineWalker, &ps.Goroutines) {
			all++
			states[g.Status.String()]++
			if g.err != nil {
				ends[g.State()+": "+g.err.Error()]++
				continue
			}
			last := &g.frames[len(g.frames)-1]
			sym, _ := ps.GoroutineWalker.Name(last)
			if !last.IsBottom() || g.Thread == 0 && sym.Name != "runtime.goexit" {
				t.Errorf("goroutine %d [%s] ends in %s", id, g.State(), sym.Name)
			}
		}
	}
	t.Log(all, states, ends)
	short := 0
	for _, n := range ends {
		short += n
	}
	if short*100 > all || states["runnable"] == 0 || states["waiting"] == 0 || states["running"] == 0 {
		t.Errorf("%d of %d walks are short: %v; states %v", short, all, ends, states)
	}
}
