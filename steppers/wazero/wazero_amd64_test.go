package wazero_test

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/unwind"
)

// names returns what frames are called, outermost first, without the path of packages.
func names(p procstate.ProcessState, w *unwind.Walker, frames []unwind.Frame) (names []string) {
	for i := range slices.Backward(frames) {
		f := &frames[i]
		var inner []string
		for n := f.Code; n != 0; n = w.Codes().Outer(n) {
			for _, line := range w.Codes().Lines(n) {
				inner = append(inner, line.Name)
			}
		}
		slices.Reverse(inner)
		if names = append(names, inner...); len(inner) == 0 {
			name := goName(p, f.LookupPC())
			names = append(names, name[strings.LastIndexByte(name, '/')+1:])
		}
	}
	return names
}

// goName returns the name of the function of Go at an address, "-" for other code.
func goName(p procstate.ProcessState, pc uint64) string {
	if m := p.Libraries().MappingAt(pc); m != nil && m.Image != nil {
		if t, err := procstate.Pclntab(m.Image); err == nil {
			if f, ok := t.Func(pc - m.Bias); ok {
				return strings.TrimSuffix(f.Name(), ".abi0")
			}
		}
	}
	return "-"
}

// stacks of the program's functions, outermost first.
var stacks = map[string]*regexp.Regexp{
	"compiled": regexp.MustCompile(`^runtime\.goexit main\.main\.func1 main\.run main\.call wazevo\.\(\*callEngine\)\.Call ` +
		`(calls viahost host wazevo\.\S* api\.\S* main\.host main\.call wazevo\.\(\*callEngine\)\.Call )?` +
		`wazevo\.\(\*callEngine\)\.callWithStack amd64\.(entrypoint|afterGoFunctionCallEntrypoint) - ` +
		`(fib( fib)*( mix)?|deep( deep)*( mix| fib( fib)*( mix)?)?|calls( viahost( mix| host)?| mix)?)$`),
	"called": regexp.MustCompile(`^runtime\.goexit main\.main\.func1 main\.run main\.call wazevo\.\(\*callEngine\)\.Call ` +
		`indirect viahost host wazevo\.\S*callWithStack\S* api\.GoModuleFunc\.Call main\.host `),
	"interpreted": regexp.MustCompile(`^runtime\.goexit main\.main\.func1 main\.run main\.call interpreter\.\(\*callEngine\)\.Call ` +
		`(interpreter\.\S+ )*(fib|deep|calls)( interpreter\.\S+| fib| mix| deep| viahost)* (fib|mix|viahost)( |$)`),
}

var inCompiled = regexp.MustCompile(`amd64\.\S+ - (.* )?(fib|deep|mix|calls|viahost)$`)

// In programs without symbols, stopped anywhere, stacks are whole, and have the functions of WebAssembly.
func TestStacks(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.EachWazero(t, []string{"-ldflags=-s -w"}, func(t *testing.T, program string) {
		for kind, args := range map[string][]string{
			"compiled": {"fib", "deep", "calls"}, "called": {"waits"}, "interpreted": {"-interpret", "fib", "deep", "calls"},
		} {
			t.Run(kind, func(t *testing.T) {
				p := steptest.Start(t, program, args...)
				w := unwind.NewWalker(p, steppers.Default(unwind.NewTables()), nil)
				seen, other := 0, 0
				for i := 0; i < 400 && seen < 40; i++ {
					if err := p.Run(func() { time.Sleep(time.Duration(rand.Int64N(int64(4 * time.Millisecond)))) }); err != nil {
						t.Fatal(err)
					}
					stopped := stacksOf(t, p, w, kind == "called")
					for _, all := range stopped {
						switch {
						case stacks[kind].MatchString(all):
							seen++
						case kind == "compiled" && inCompiled.MatchString(all):
							t.Errorf("%s", all)
						default:
							other++
						}
					}
					if kind == "called" && seen > 0 {
						break
					}
				}
				if t.Logf("%d stacks, and %d of other kinds", seen, other); seen == 0 || kind != "called" && seen < 40 {
					t.Error("too few")
				}
			})
		}
	})
}

// stacksOf walks the threads of a process, or its goroutines that wait, and returns what the frames are called.
func stacksOf(t *testing.T, p *steptest.Process, w *unwind.Walker, waiting bool) (all []string) {
	t.Helper()
	if waiting {
		gs, err := procstate.ReadGoroutines(p)
		if err != nil {
			return nil // it has not begun
		}
		for i := range gs.List {
			if g := &gs.List[i]; g.Thread == 0 && g.Status == procstate.GoWaiting {
				frames, err := swbpf.WalkGoroutine(w, nil, g)
				if err != nil {
					t.Errorf("%v: %v", names(p, w, frames), err)
				}
				all = append(all, strings.Join(names(p, w, frames), " "))
			}
		}
		return all
	}
	tids, _ := p.Threads()
	for _, tid := range tids {
		frames, err := w.WalkStack(nil, tid)
		if err != nil && (len(frames) != 1 || !isAnonymous(p, frames[0].PC())) {
			t.Errorf("%v: %v", names(p, w, frames), err)
		}
		all = append(all, strings.Join(names(p, w, frames), " "))
	}
	return all
}

// Whatever memory says, a walk comes to an end.
func TestLies(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.EachWazero(t, nil, func(t *testing.T, program string) {
		for _, args := range [][]string{{"fib", "calls", "deep"}, {"-interpret", "calls"}} {
			p := steptest.Start(t, program, args...)
			lying := &steptest.Lying{ProcessState: p, Rand: rand.New(rand.NewPCG(1, 2))}
			for range 60 {
				if err := p.Run(func() { time.Sleep(time.Millisecond) }); err != nil {
					t.Fatal(err)
				}
				w := unwind.NewWalker(lying, steppers.Default(unwind.NewTables()), nil)
				w.MaxFrames = 1000
				tids, _ := p.Threads()
				for _, tid := range tids {
					for _, lying.Rate = range []int{0, 200, 20, 3} {
						testenv.NoPanic(t, "a walk", func() { w.WalkStack(nil, tid) })
					}
				}
			}
		}
	})
}

func isAnonymous(p procstate.ProcessState, pc uint64) bool {
	m := p.Libraries().MappingAt(pc)
	return m != nil && m.Image == nil && !procstate.HasFile(m.Path)
}

// windowEnds are functions that end a window of single steps: behind them another chain of calls is the truth than the
// processor tells, or the thread sleeps.
var windowEnds = map[string]bool{
	"runtime.mcall": true, "gogo": true, "runtime.morestack": true, "runtime.asyncPreempt": true,
	"runtime.sigreturn__sigaction": true, "runtime.futex": true, "runtime.usleep": true, "runtime.sigtramp": true,
}

// shadow is the stack of a thread as its instructions tell it, also when it leaves compiled code and comes back.
type shadow struct {
	*steptest.Shadow
	p      *steptest.Process
	parked []parked // by compiled code that has called Go
	native uint64   // SP of compiled code, when it was there last
}

type parked struct {
	calls []steptest.Call
	sp    uint64
}

const resume = "github.com/tetratelabs/wazero/internal/engine/wazevo/backend/isa/amd64.afterGoFunctionCallEntrypoint"

// step executes an instruction. It returns false where what is the truth is not known any more.
func (s *shadow) step(t *testing.T, regs *procstate.Regs) bool {
	t.Helper()
	a := s.p.Arch()
	pc, sp := regs.Raw(a.PC), regs.Raw(a.SP)
	before := slices.Clone(s.Calls)
	was := isAnonymous(s.p, pc)
	onGo := slices.IndexFunc(before, func(c steptest.Call) bool { return c.SP == sp+8 && goName(s.p, c.RA) != "-" })
	if was && onGo < 0 {
		s.native = sp
	}
	if err := s.Step(s.p, regs); err != nil {
		t.Fatal(err)
	}
	next := regs.Raw(a.PC)
	switch is := isAnonymous(s.p, next); {
	case was && !is && len(s.Calls) < len(before): // compiled code has called Go, or returned to it
		s.parked = append(s.parked, parked{before[len(s.Calls)+1:], s.native})
	case !was && is && goName(s.p, pc) == resume: // and goes on, on a stack that may have grown
		n := len(s.parked)
		if n == 0 {
			return false
		}
		last := s.parked[n-1]
		s.parked = s.parked[:n-1]
		for _, c := range last.calls {
			s.Calls = append(s.Calls, steptest.Call{RA: c.RA, SP: c.SP + regs.Raw(a.SP) - last.sp})
		}
	}
	return !windowEnds[goName(s.p, next)]
}

// truth makes the shadow that of a walk from registers: compiled code that has the stack of Go already has left its own.
func (s *shadow) truth(regs *procstate.Regs) *steptest.Shadow {
	is := *s.Shadow
	a := s.p.Arch()
	if isAnonymous(s.p, regs.Raw(a.PC)) {
		for i, c := range is.Calls {
			if c.SP == regs.Raw(a.SP)+8 && goName(s.p, c.RA) != "-" {
				is.Calls = is.Calls[:i+1]
				break
			}
		}
	}
	return &is
}

// In windows of the execution of compiled code, into it and out of it, each instruction is walked right.
func TestEveryInstruction(t *testing.T) {
	t.Setenv("GOGC", "off") // which would stop it for most of the time
	t.Setenv("GODEBUG", "asyncpreemptoff=1")
	steptest.NeedPtrace(t)
	testenv.EachWazero(t, nil, func(t *testing.T, program string) {
		stepThrough(t, program, 8000, 0, "fib", "deep", "indirect", "many")
		stepThrough(t, program, 4000, 12, "calls")
	})
}

func stepThrough(t *testing.T, program string, want, wantCrossed int, kinds ...string) {
	t.Helper()
	p := steptest.Start(t, program, kinds...)
	w := unwind.NewWalker(p, steppers.Default(unwind.NewTables()), nil)
	var n [steptest.NumResults]int
	compiled, crossed, leaves, shown := 0, 0, 0, 0
	a := p.Arch()
	for windows := 0; windows < 150 && (compiled < want || crossed < wantCrossed); windows++ {
		if err := p.Run(func() { time.Sleep(time.Duration(rand.Int64N(int64(8 * time.Millisecond)))) }); err != nil {
			t.Fatal(err)
		}
		tids, _ := p.Threads()
		rand.Shuffle(len(tids), func(i, j int) { tids[i], tids[j] = tids[j], tids[i] })
		for _, tid := range tids {
			frames, err := w.WalkStack(nil, tid)
			if all := strings.Join(names(p, w, frames), " "); err != nil || !strings.Contains(all, "main.run") || wantCrossed == 0 && !isAnonymous(p, frames[0].PC()) ||
				slices.ContainsFunc(frames, func(f unwind.Frame) bool {
					return f.Flags&unwind.Signal != 0 || windowEnds[goName(p, f.LookupPC())]
				}) {
				continue
			}
			if err := p.RunOthers(tid); err != nil {
				t.Fatal(err)
			}
			s := &shadow{Shadow: steptest.NewSeededShadow(p, tid, frames), p: p}
			var regs procstate.Regs
			if err := p.Registers(tid, &regs); err != nil {
				t.Fatal(err)
			}
			for range 1000 {
				signals, was := p.Signals, isAnonymous(p, regs.Raw(a.PC))
				if !s.step(t, &regs) || p.Signals != signals {
					break
				}
				is := isAnonymous(p, regs.Raw(a.PC))
				if is {
					compiled++
				}
				if is != was {
					crossed++
				}
				var top unwind.Frame
				top.Load(a, &regs)
				frames, err = w.WalkFrom(frames[:0], &top)
				if onItsWay(s, &regs, frames, err) {
					leaves++
					continue
				}
				truth := s.truth(&regs)
				r := truth.Compare(frames, err)
				if n[r]++; r != steptest.Exact && shown < 5 {
					shown++
					t.Logf("%s at %s %v\n%s", r, goName(p, regs.Raw(a.PC)), names(p, w, frames), truth.Describe(w, frames, err))
				}
			}
			break
		}
	}
	t.Logf("%d instructions of compiled code, %d ways into it and out of it: %d exact, %d short, %d wrong, %d leave it", compiled, crossed, n[0], n[1], n[2], leaves)
	if n[steptest.Short]+n[steptest.Wrong] != 0 || compiled < want || crossed < wantCrossed {
		t.Error("not all exact, or too few")
	}
}

// onItsWay reports whether the thread is at one of the two instructions between compiled code and Go that are no part of
// the chain of calls: where RBP is Go's, and SP is not yet, a walk has to end; and where SP is that of compiled code, and the
// jump there is to come, that code is what comes next.
func onItsWay(s *shadow, regs *procstate.Regs, frames []unwind.Frame, err error) bool {
	a := s.p.Arch()
	var code [4]byte
	pc := regs.Raw(a.PC)
	s.p.ReadMemory(pc, code[:])
	if goName(s.p, pc) == resume && code[0] == 0xff {
		return err == nil && len(frames) > 2 && isAnonymous(s.p, frames[1].PC()) && frames[1].SP() == regs.Raw(a.SP)
	}
	return isAnonymous(s.p, pc) && code[1] == 0x8b && code[3] == 0x18 && err != nil && len(frames) == 1
}
