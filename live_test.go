package swbpf_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// names returns the functions of a stack, top first, "?" where there is none.
func names(s *swbpf.ThreadStack) []string {
	var out []string
	for i := range s.Frames {
		sym, ok := s.Walker.Name(&s.Frames[i])
		if !ok {
			sym.Name = "?"
		}
		out = append(out, plainName(sym.Name))
	}
	return out
}

// walkAll walks a process and checks that all went well, and that it goes on.
func walkAll(t *testing.T, pid int) *swbpf.ProcessStacks {
	t.Helper()
	ps, err := swbpf.WalkProcess(pid, swbpf.WalkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	goesOn(t, pid)
	return ps
}

// sameAs compares stacks with those of another tool: PC, and SP and name where
// the tool has them. The tool's stacks may be cut: then short says how many
// frames are to be compared.
func sameAs(t *testing.T, tool string, ps *swbpf.ProcessStacks, ref map[int][]refFrame) {
	t.Helper()
	for i := range ps.Stacks {
		s := &ps.Stacks[i]
		if s.Err != nil {
			t.Errorf("thread %d: after %d frames: %v: %v", s.TID, len(s.Frames), s.Err, names(s))
		}
		want := ref[int(s.TID)]
		if len(want) != len(s.Frames) {
			t.Errorf("thread %d has %d frames %v, %s has %d: %v", s.TID, len(s.Frames), names(s), tool, len(want), want)
			continue
		}
		for j := range s.Frames {
			f, w := &s.Frames[j], want[j]
			sym, _ := s.Walker.Name(f)
			if f.PC() != w.pc && !(j == 0 && restarts(ps.PID, f.PC(), w.pc)) || (w.sp != 0 && f.SP() != w.sp) {
				t.Errorf("thread %d frame %d %s: pc %#x sp %#x, %s has pc %#x sp %#x", s.TID, j, sym.Name, f.PC(), f.SP(), tool, w.pc, w.sp)
				break
			}
			if a, b := plainName(sym.Name), plainName(w.name); a != b && w.name != "" && w.name != "None" && b != "??" {
				t.Errorf("thread %d frame %d at %#x is %s, %s says %s", s.TID, j, f.PC(), sym.Name, tool, w.name)
			}
		}
	}
}

// restarts reports whether pc is that of a system call behind which the other tool saw
// the thread wait. A walk that had to look twice has interrupted the call: when it looked
// again, the thread had not made it anew yet.
func restarts(pid int, pc, behind uint64) bool {
	call := map[string][]byte{"amd64": {0x0f, 0x05}, "arm64": {0x01, 0, 0, 0xd4}}[runtime.GOARCH]
	code := make([]byte, len(call))
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return false
	}
	defer mem.Close()
	_, err = mem.ReadAt(code, int64(pc))
	return err == nil && bytes.Equal(code, call) && pc+uint64(len(code)) == behind
}

// chain checks that the first thread's functions are want, from the one below
// the wait on; a "*N name" stands for N times name.
func chain(t *testing.T, s *swbpf.ThreadStack, want ...string) {
	t.Helper()
	got := names(s)
	if s.Err != nil {
		t.Errorf("incomplete: %v", s.Err)
	}
	i := slices.Index(got, want[0])
	if i < 0 || len(got)-i < len(want) || !slices.Equal(got[i:i+len(want)], want) {
		t.Errorf("got  %v\nwant %v somewhere in it", got, want)
	}
}

func times(n int, name string) []string { return slices.Repeat([]string{name}, n) }

// deepChain is the chain of deep.c from leaf to main.
func deepChain(n int) []string {
	return append(append([]string{"leaf"}, times(n, "step")...), "main")
}

// TestTargets walks programs of many kinds. Each is compared with its source,
// and with gdb and eu-stack where these are right.
func TestTargets(t *testing.T) {
	canTrace(t)
	const gdb, eu = 1, 2
	for _, c := range []struct {
		name    string
		source  string
		command string
		args    []string
		chain   []string
		right   int // tools that walk it right
	}{
		{"C -O0", "deep.c", "gcc -O0 -g", nil, deepChain(50), gdb | eu},
		{"C -O2", "deep.c", "gcc -O2 -fno-optimize-sibling-calls", nil, deepChain(50), gdb | eu},
		{"2,005 deep", "deep.c", "gcc -O2 -fomit-frame-pointer -fno-optimize-sibling-calls -DDEPTH=2001", nil, deepChain(2001), eu},
		{"C++ -O2", "deep.cc", "g++ -O2 -g", nil, nil, gdb | eu},
		{"variable alloca, dirty stack", "alloca.c", "gcc -O2 -w -fno-optimize-sibling-calls", nil, deepChain(50), gdb | eu},
		{"signal, same stack", "signals.c", "gcc -O1 -pthread", []string{"plain"}, nil, gdb | eu},
		{"signal, alternate stack", "signals.c", "gcc -O1 -pthread", []string{"alt"}, nil, gdb | eu},
		{"SEGV, alternate stack", "signals.c", "gcc -O1 -pthread", []string{"segv"}, nil, gdb | eu},
		{"alternate stack above", "signals.c", "gcc -O1 -pthread", []string{"above"}, nil, gdb | eu},
		{"64 threads", "threads.c", "gcc -O2 -pthread -fno-optimize-sibling-calls", []string{"64", "12", "quiet"}, nil, gdb | eu},
		{"frame pointers without tables, stripped", "deep.c", "gcc -O1 -s -fno-omit-frame-pointer -fno-asynchronous-unwind-tables", nil, nil, 0},
		{"no frame pointers, no tables, symbols", "deep.c", "gcc -O1 -fomit-frame-pointer -fno-asynchronous-unwind-tables", nil, deepChain(50), 0},
		{"no frame pointers, no tables, stripped", "deep.c", "gcc -O1 -s -fomit-frame-pointer -fno-asynchronous-unwind-tables", nil, nil, 0},
		{"static", "deep.c", "gcc -O1 -static", nil, deepChain(50), gdb},
		{"static-pie", "deep.c", "gcc -O1 -static-pie", nil, deepChain(50), gdb},
		{"musl", "deep.c", "musl-gcc -O1", nil, deepChain(50), 0},
		{"musl static", "deep.c", "musl-gcc -O1 -static", nil, deepChain(50), 0},
		{"i386", "deep.c", "gcc -m32 -O1", nil, deepChain(50), gdb},
		{"clang", "deep.c", "clang-19 -O2 -fno-optimize-sibling-calls", nil, deepChain(50), gdb | eu},
		{"JIT with a frame pointer", "jit.c", "gcc -O1", []string{"fp"}, nil, 0},
		{"Go", "deep.go", "go build", nil, append(times(71, "main.step"), "main.main"), 0},
		{"Go, stripped", "deep.go", "go build -ldflags=-s", nil, append(times(71, "main.step"), "main.main"), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.command, "-m32") || c.source == "jit.c" {
				amd64Only(t)
			}
			if strings.Contains(c.command, "-m32") {
				testenv.Needs32Bit(t)
			}
			tg := start(t, build(t, c.source, c.command), c.args...)
			var ps *swbpf.ProcessStacks
			if c.source == "deep.go" {
				ps = walkGo(t, tg.pid)
			} else {
				tg.settle(t)
				ps = walkAll(t, tg.pid)
			}
			if c.chain != nil {
				if c.source == "deep.go" {
					goChain(t, ps, c.chain)
				} else {
					chain(t, &ps.Stacks[0], c.chain...)
				}
			}
			for i := range ps.Stacks {
				if s := &ps.Stacks[i]; s.Err != nil {
					t.Errorf("thread %d: %d frames, then %v: %v", s.TID, len(s.Frames), s.Err, names(s))
				}
			}
			if c.right&gdb != 0 {
				sameAs(t, "gdb", ps, gdbStacks(t, "-p", itoa(tg.pid)))
			}
			if c.right&eu != 0 {
				sameAs(t, "eu-stack", ps, euStacks(t, "-p", itoa(tg.pid)))
			}
			if strings.HasSuffix(c.name, "stripped") && c.source == "deep.c" {
				if n := len(ps.Stacks[0].Frames); n != 56 {
					t.Errorf("%d frames, want 56: pause, leaf, 50 times step, main, three of libc and _start", n)
				}
			}
		})
	}
}

// TestBadCall: a call through a pointer to no code does not lose the stack.
func TestBadCall(t *testing.T) {
	canTrace(t)
	for _, command := range []string{
		"gcc -O0", "gcc -O2", "gcc -O2 -fomit-frame-pointer -fno-asynchronous-unwind-tables", "gcc -O1 -m32",
	} {
		for _, pointer := range []string{"null", "garbage", "data"} {
			t.Run(command+" "+pointer, func(t *testing.T) {
				if strings.Contains(command, "-m32") {
					amd64Only(t)
					testenv.Needs32Bit(t)
				}
				prog := build(t, "badcall.c", command)
				tg := start(t, prog, pointer)
				tg.settle(t)
				chain(t, &walkAll(t, tg.pid).Stacks[0], "call", "middle", "main")
				tg = start(t, prog, pointer, "tail")
				tg.settle(t)
				want := []string{"middle", "main"}
				if command == "gcc -O0" { // it does not jump
					want = []string{"jump", "middle", "main"}
				}
				chain(t, &walkAll(t, tg.pid).Stacks[0], want...)
			})
		}
	}
}

// goChain finds the goroutine of main on one of the threads.
func goChain(t *testing.T, ps *swbpf.ProcessStacks, want []string) {
	t.Helper()
	for i := range ps.Stacks {
		got := names(&ps.Stacks[i])
		if j := slices.Index(got, want[0]); j >= 0 {
			if len(got)-j < len(want) || !slices.Equal(got[j:j+len(want)], want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			return
		}
	}
	t.Error("no thread runs the goroutine of main")
}

// walkGo walks deep.go when the goroutine of main has come to its read; until
// then the scheduler may have it on no thread.
func walkGo(t *testing.T, pid int) *swbpf.ProcessStacks {
	t.Helper()
	var ps *swbpf.ProcessStacks
	eventually(t, "a thread runs the goroutine of main", func() bool {
		ps = walkAll(t, pid)
		return slices.ContainsFunc(ps.Stacks, func(s swbpf.ThreadStack) bool {
			got := names(&s)
			return slices.Contains(got, "syscall.read") && slices.Contains(got, "main.step")
		})
	})
	return ps
}

// TestFrameSurvives: a frame is a snapshot, and has what it needs after the
// process has gone.
func TestFrameSurvives(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "deep.c", "gcc -O0 -g"))
	w, err := swbpf.ForPID(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Fatal(err)
	}
	before := slices.Clone(frames)
	if err := swbpf.Detach(w); err != nil {
		t.Fatal(err)
	}
	tg.cmd.Process.Kill()
	tg.cmd.Wait()
	if !slices.Equal(before, frames) {
		t.Error("frames have changed")
	}
	for i := range frames {
		if sym, ok := w.Name(&frames[i]); !ok || sym.Name == "" {
			t.Errorf("frame %d has lost its name", i)
		}
		if lib, _, ok := w.Library(&frames[i]); !ok || lib.Path == "" {
			t.Errorf("frame %d has lost its library", i)
		}
	}
	if _, err := w.WalkStack(nil, procstate.DefaultThread); err == nil {
		t.Error("a detached process can be walked")
	}
	if f := unwind.NewFrame(w.Arch(), 1, 2, 3); f.PCLocation.Kind != unwind.LocationUnknown || f == frames[0] {
		t.Error("a frame that was made has a location")
	}
}

// TestRecordedStack: a stack that is recorded as the example does it is walked as it was when
// the process was there.
func TestRecordedStack(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "deep.c", "gcc -O0 -g"))
	w, err := swbpf.ForPID(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	defer swbpf.Detach(w)
	p, _ := swbpf.Debug(w)
	if err := p.Pause(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	want, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Capture(procstate.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := record(c, &file); err != nil {
		t.Fatal(err)
	}
	if err := swbpf.Detach(w); err != nil {
		t.Fatal(err)
	}
	tg.cmd.Process.Kill()
	tg.cmd.Wait()
	later, got, err := replay(&file)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d frames, want %d; %v", len(got), len(want), err)
	}
	for i := range got {
		sym, _ := later.Name(&got[i])
		if was, _ := w.Name(&want[i]); got[i].PC() != want[i].PC() || got[i].SP() != want[i].SP() || sym.Name == "" || sym.Name != was.Name {
			t.Errorf("frame %d is %#x %s, want %#x %s", i, got[i].PC(), sym.Name, want[i].PC(), was.Name)
		}
	}
	if r := c.Regions(1); r != nil {
		t.Errorf("%d regions of a thread that is not there", len(r))
	}
}

// A register that a program has for its own is known over calls of a C library without unwind
// tables, which saves it.
func TestKeptRegister(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	for _, cc := range []string{"musl-gcc -O2", "musl-gcc -O2 -static"} {
		t.Run(cc, func(t *testing.T) {
			cmd, told := startWaiting[uint64](t, 1, build(t, "keeps.c", cc))
			ps, err := swbpf.WalkProcess(cmd.Process.Pid, swbpf.WalkOptions{})
			if err != nil {
				t.Fatal(err)
			}
			const r14 = procstate.Reg(14)
			s, found := &ps.Stacks[0], false
			for i := range s.Frames {
				f := &s.Frames[i]
				if sym, _ := s.Walker.Name(f); sym.Name != "keeps" {
					continue
				}
				found = true
				want := told[procstate.ThreadID(cmd.Process.Pid)]
				if got, known := f.Regs.Value(r14); !known || got != want {
					t.Errorf("r14 is %#x, known: %v, want %#x", got, known, want)
				}
			}
			if !found || s.Err != nil {
				t.Errorf("the function is in the stack: %v; %v", found, s.Err)
			}
		})
	}
}
