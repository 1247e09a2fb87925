package steppers

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// buildGo builds a program of testdata.
func buildGo(t *testing.T, dir string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), dir)
	args := append(append([]string{"build"}, flags...), "-o", out, "./testdata/"+dir)
	build := exec.Command("go", args...)
	build.Env = append(build.Environ(), "CGO_ENABLED=1")
	testenv.Run(t, build)
	return out
}

// goName returns the name of the Go function at a run-time address, "C" for
// other code, without the suffix of its ABI.
func goName(p procstate.ProcessState, pc uint64) (name string, entry uint64) {
	m := p.Libraries().MappingAt(pc)
	if m == nil || m.Image == nil {
		return "C", 0
	}
	t, err := procstate.Pclntab(m.Image)
	if err != nil {
		return "C", 0
	}
	f, ok := t.Func(pc - m.Bias)
	if !ok {
		return "C", 0
	}
	return strings.TrimSuffix(f.Name(), ".abi0"), f.Entry + m.Bias
}

// checkLinks checks each pair of frames by the code: a caller's PC is behind
// a call, and a direct one leads to the function of its callee, or to one
// that is known to jump on.
func checkLinks(p procstate.ProcessState, frames []unwind.Frame) error {
	for i := 1; i < len(frames); i++ {
		callee, _ := goName(p, frames[i-1].LookupPC())
		f := &frames[i]
		if f.Flags&(unwind.Interrupted|unwind.Signal) != 0 || callee == "C" {
			continue
		}
		caller, _ := goName(p, f.LookupPC())
		if caller == "runtime.goexit" {
			continue // pushed, not called
		}
		ra := f.PC()
		var buf [mcode.MaxCallLen]byte
		if m := p.Libraries().MappingAt(ra - 1); m == nil || m.Image == nil {
			return fmt.Errorf("return address %#x is in no file", ra)
		} else if err := m.Image.ReadVaddr(buf[:], ra-mcode.MaxCallLen-m.Bias); err != nil {
			return err
		}
		target, direct, ok := mcode.CallBefore(p.Arch(), buf[:], ra)
		if !ok {
			return fmt.Errorf("no call before %#x in %s", ra, caller)
		}
		if !direct {
			continue
		}
		switch called, _ := goName(p, target); {
		case called == callee:
		case called == "runtime.systemstack": // jumps when on g0 already
		case called == "runtime.morestack_noctxt", strings.HasPrefix(called, "runtime.gcWriteBarrier"):
		case called == "gogo" || called == "C" || called == "runtime.gogo" && callee == "gogo": // which it jumps to
		case strings.Contains(called, "/atomic.") && strings.Contains(callee, "/atomic."): // on i386 one jumps to another
		case strings.HasSuffix(callee, "body"): // of assembly: bytealg's functions jump to what they share
		default:
			return fmt.Errorf("%s at %#x calls %s, but its callee is %s", caller, ra, called, callee)
		}
	}
	return nil
}

func describe(p procstate.ProcessState, frames []unwind.Frame) string {
	var b strings.Builder
	for i := range frames {
		f := &frames[i]
		name, entry := goName(p, f.LookupPC())
		fmt.Fprintf(&b, "  %#x sp %#x fp %#x %s+%#x %08b\n", f.PC(), f.SP(), f.FP(), name, f.PC()-entry, f.Flags)
	}
	return b.String()
}

func randomSleep(most time.Duration) func() {
	return func() { time.Sleep(time.Duration(rand.Int64N(int64(most)))) }
}

// Threads of a Go program that collects garbage, stopped anywhere, have
// whole stacks, each frame of which was called by the next.
func TestGoStacksAreComplete(t *testing.T) {
	steptest.NeedPtrace(t)
	for _, flags := range [][]string{{}, {"-ldflags=-s -w"}, {"-buildmode=pie"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			p := steptest.Start(t, buildGo(t, "go", flags...))
			w := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
			crossed := 0
			for i := 0; i < 60 || i < 5000 && crossed == 0; i++ {
				if err := p.Run(randomSleep(4 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				tids, _ := p.Threads()
				for _, tid := range tids {
					frames, err := w.WalkStack(nil, tid)
					if err == nil {
						err = checkLinks(p, frames)
					}
					if err != nil {
						t.Errorf("thread %d: %v\n%s", tid, err, describe(p, frames))
					}
					for i := range frames {
						if frames[i].Flags&unwind.StackSwitched != 0 {
							crossed++
							break
						}
					}
				}
			}
			if crossed == 0 {
				t.Error("no stack crosses from one to another")
			}
		})
	}
}

// A callback from C is found through all of its calls on both stacks.
func TestGoCallbacks(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.Needs(t, "gcc")
	t.Setenv("CGO_ENABLED", "1")
	p := steptest.Start(t, buildGo(t, "gocgo"))
	w := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
	// From the first function to the innermost. C has callGo in a wrapper that
	// cgo makes.
	stack := regexp.MustCompile(`^runtime\.goexit runtime\.main main\.main ` +
		`(main\._Cfunc_callGo runtime\.cgocall runtime\.asmcgocall C (C )*` +
		`(crosscall2 runtime\.cgocallback runtime\.cgocallbackg runtime\.cgocallbackg runtime\.cgocallbackg1 ` +
		`_cgoexp_\w+_goCallback main\.goCallback (main\.spin )?)?)*`)
	depths := map[int]int{}
	for i := 0; i < 400 || i < 5000 && len(depths) < 4; i++ {
		if err := p.Run(randomSleep(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		frames, err := w.WalkStack(nil, procstate.ThreadID(p.PID()))
		if err != nil {
			t.Errorf("%v\n%s", err, describe(p, frames))
			continue
		}
		names := ""
		for i := len(frames) - 1; i >= 0 && frames[i].Flags&unwind.Signal == 0; i-- {
			name, _ := goName(p, frames[i].LookupPC())
			names += name + " "
		}
		if !strings.HasPrefix(names, "runtime.goexit runtime.main main.main main._Cfunc_callGo") {
			continue // the thread runs another goroutine now
		}
		// Only the runtime's own work, between two levels, may end a match.
		match := stack.FindString(names)
		if match == names {
			depths[strings.Count(names, "crosscall2")]++
		} else if next := names[len(match):]; !strings.HasPrefix(next, "runtime.") && !strings.HasPrefix(next, "crosscall2 ") &&
			!strings.HasPrefix(next, "main._Cfunc_callGo ") && !strings.HasPrefix(next, "_cgo") {
			t.Errorf("stack %s\n%s", names, describe(p, frames))
		}
	}
	if depths[0] == 0 || depths[1] == 0 || depths[2] == 0 || depths[3] == 0 || len(depths) != 4 {
		t.Errorf("stacks seen by depth of callbacks: %v", depths)
	}
}

// windowEnds are functions that end a window of single steps: behind them
// another chain of calls is the truth than the processor tells, or the thread
// sleeps.
var windowEnds = map[string]bool{
	"runtime.mcall": true, "gogo": true, "runtime.morestack": true, "runtime.asyncPreempt": true,
	"runtime.sigreturn__sigaction": true, "runtime.futex": true, "runtime.usleep": true,
}

// In windows of a program's execution, each instruction is walked right.
func TestGoEveryInstruction(t *testing.T) {
	steptest.NeedPtrace(t)
	p := steptest.Start(t, buildGo(t, "go"))
	w := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
	var n [steptest.NumResults]int
	switched, shown := 0, 0
	for windows := 0; windows < 5000 && n[steptest.Exact] < 8000; windows++ {
		if err := p.Run(randomSleep(8 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		tid, frames := busiest(t, p, w)
		if tid == 0 {
			continue
		}
		if err := p.RunOthers(tid); err != nil {
			t.Fatal(err)
		}
		s := steptest.NewSeededShadow(p, tid, frames)
		var regs procstate.Regs
		if err := p.Registers(tid, &regs); err != nil {
			t.Fatal(err)
		}
		for range 1500 {
			signals := p.Signals
			if err := s.Step(p, &regs); err != nil {
				t.Fatal(err)
			}
			if name, _ := goName(p, regs.Raw(p.Arch().PC)); p.Signals != signals || windowEnds[name] {
				break
			}
			var top unwind.Frame
			top.Load(p.Arch(), &regs)
			var err error
			frames, err = w.WalkFrom(frames[:0], &top)
			r := s.Compare(frames, err)
			n[r]++
			for i := range frames {
				if frames[i].Flags&unwind.StackSwitched != 0 {
					switched++
					break
				}
			}
			if r != steptest.Exact && shown < 5 {
				shown++
				t.Logf("%s\n%s%s", r, s.Describe(w, frames, err), describe(p, frames))
			}
		}
	}
	total := n[steptest.Exact] + n[steptest.Short] + n[steptest.Wrong]
	t.Logf("%d instructions, %d of them on another stack: %d exact, %d short, %d wrong", total, switched, n[0], n[1], n[2])
	if n[steptest.Exact] != total || total < 8000 || switched == 0 {
		t.Error("not all exact")
	}
}

// Of a goroutine whose stack was not copied, what is read later is that of another call from
// the same place: it is left out.
func TestGoNotReadLater(t *testing.T) {
	steptest.NeedPtrace(t)
	p := steptest.Start(t, buildGo(t, "go"))
	w := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
	group := Default(unwind.NewTables())
	for n := range 2000 {
		if err := p.Run(randomSleep(8 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		tid, frames := busiest(t, p, w)
		at := slices.IndexFunc(frames, func(f unwind.Frame) bool { return f.Flags&unwind.StackSwitched != 0 }) - 1
		if tid == 0 || at < 0 || frames[at].SP() < frames[0].SP() {
			continue
		}
		if name, _ := goName(p, frames[at].LookupPC()); name != "runtime.systemstack" {
			continue
		}
		from := frames[0].SP() - uint64(p.Arch().RedZone)
		stack := make([]byte, frames[at].SP()+64-from)
		if n, err := p.ReadMemory(from, stack); n < len(stack) {
			t.Fatal(err)
		}
		snap := procstate.NewSnapshot(p.Arch(), p.PID(), p.ExecutablePath(), p.Libraries())
		snap.SetLiveCode(procstate.NewLiveCode(p.PID(), p.ExecutablePath()))
		snap.Reset(tid, &frames[0].Regs, []procstate.Region{{Addr: from, Data: stack}})
		short, err := unwind.NewWalker(snap, group, nil).WalkStack(nil, tid)
		if err != unwind.StackCut || len(short) != at+1 {
			t.Errorf("%v, %d frames, not %d\n%s", err, len(short), at+1, describe(p, short))
		}
		t.Logf("after %d stops:\n%s", n, describe(p, frames))
		return
	}
	t.Error("no goroutine asked for anything on its thread's stack")
}

// busiest returns a thread that runs, and its stack.
func busiest(t *testing.T, p *steptest.Process, w *unwind.Walker) (procstate.ThreadID, []unwind.Frame) {
	t.Helper()
	tids, _ := p.Threads()
	rand.Shuffle(len(tids), func(i, j int) { tids[i], tids[j] = tids[j], tids[i] })
	for _, tid := range tids {
		frames, err := w.WalkStack(nil, tid)
		if err != nil {
			t.Errorf("%v\n%s", err, describe(p, frames))
			continue
		}
		top, _ := goName(p, frames[0].PC())
		sleeps := strings.HasPrefix(top, "internal/runtime/syscall") || strings.HasPrefix(top, "_rt0")
		for i := range frames {
			if name, _ := goName(p, frames[i].LookupPC()); frames[i].Flags&unwind.Signal != 0 || windowEnds[name] {
				sleeps = true
			}
		}
		if !sleeps {
			return tid, frames
		}
	}
	return 0, nil
}
