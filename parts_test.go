package swbpf_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// A panic of the caller's own code comes out where it has called, the process goes on, and can be walked again.
func TestPanicOfParts(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "deep.c", "gcc -O2"))
	const fault = "its own fault"
	failing := false
	fail := func() {
		if failing {
			panic(fault)
		}
	}
	probes := func() map[procstate.ThreadID]procstate.UserProbes { fail(); return nil }
	check := func(t *testing.T, walk func() (int, error)) {
		t.Helper()
		for range 2 {
			failing = true
			func() {
				defer func() {
					if r := recover(); r != fault {
						t.Errorf("it panics with %v", r)
					}
				}()
				_, _ = walk()
			}()
			failing = false
			eventually(t, "the process goes on", func() bool { return !strings.Contains(threadStates(tg.pid), "t") })
			if n, err := walk(); err != nil || n < 50 {
				t.Errorf("afterwards: %d frames, %v", n, err)
			}
		}
	}
	t.Run("WalkStack", func(t *testing.T) {
		w, err := swbpf.ForPID(tg.pid)
		if err != nil {
			t.Fatal(err)
		}
		defer swbpf.Detach(w)
		p, _ := swbpf.Debug(w)
		for name, of := range map[string]*unwind.Walker{
			"a group":     swbpf.With(p, &failingGroup{swbpf.DefaultGroup(), fail}, nil),
			"a process":   swbpf.With(&failingProcess{ProcDebug: p, fail: fail}, nil, nil),
			"a library":   swbpf.With(&failingProcess{ProcDebug: p, fail: func() {}}, nil, nil),
			"SetProbes":   w,
			"what it has": swbpf.With(p, nil, nil),
		} {
			t.Run(name, func(t *testing.T) {
				switch name {
				case "a library":
					of.ProcessState().(*failingProcess).inLibraries = fail
				case "SetProbes":
					p.SetProbes(probes)
					defer p.SetProbes(nil)
				case "what it has":
					_ = of.AddStepper(&failingStepper{fail})
				}
				check(t, func() (int, error) {
					frames, err := of.WalkStack(nil, procstate.DefaultThread)
					return len(frames), err
				})
			})
		}
	})
	goesOn(t, tg.pid)
	count := func(ps *swbpf.ProcessStacks, err error) (int, error) {
		if err != nil {
			return 0, err
		}
		return len(ps.Stacks[0].Frames), ps.Stacks[0].Err
	}
	t.Run("WalkProcess", func(t *testing.T) {
		check(t, func() (int, error) { return count(swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{Probes: probes})) })
	})
	t.Run("WalkStopped", func(t *testing.T) {
		check(t, func() (int, error) {
			return count(swbpf.WalkStopped(tg.pid, swbpf.WalkOptions{}, func(*swbpf.ProcessStacks) { fail() }))
		})
	})
	t.Run("CaptureProcess", func(t *testing.T) {
		check(t, func() (int, error) {
			_, err := procstate.CaptureProcess(tg.pid, procstate.CaptureOptions{
				Collect: func(procstate.Memory, procstate.ThreadID, *procstate.Regs, func(uint64, int)) { fail() }})
			return 50, err
		})
	})
	goesOn(t, tg.pid)
}

// TestPanicOfListener: one that is told of a library before a walk, and panics, does not keep the process.
func TestPanicOfListener(t *testing.T) {
	canTrace(t)
	plugin := build(t, "plugin.c", "gcc -shared -fPIC")
	tg, _ := startLoader(t, build(t, "dlopen.c", "gcc -rdynamic -pthread"), plugin)
	p, err := procstate.Attach(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Detach()
	w := swbpf.With(p, nil, nil) // no trap is set
	if _, err := w.WalkStack(nil, procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	p.OnLibraryChange(func(procstate.Library, bool) { panic("a listener's fault") })
	if got := tg.ask(t, "open "+plugin); got != "42" {
		t.Fatalf("dlopen: %s", got)
	}
	func() {
		defer func() {
			if r := recover(); r != "a listener's fault" {
				t.Errorf("the walk panics with %v", r)
			}
		}()
		_, _ = w.WalkStack(nil, procstate.DefaultThread)
	}()
	eventually(t, "the process goes on", func() bool { return !strings.Contains(threadStates(tg.pid), "t") })
	if _, err := w.WalkStack(nil, procstate.DefaultThread); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if got := tg.ask(t, "close"); got != "0" {
		t.Errorf("dlclose: %s", got)
	}
}

// TestOwnSelf: a ProcessState made of ProcSelf walks from where the Walker was called, and after a panic from there again.
func TestOwnSelf(t *testing.T) {
	self, err := procstate.NewProcSelf()
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	failing := true
	self.SetProbes(func() map[procstate.ThreadID]procstate.UserProbes {
		if failing {
			panic("its own fault")
		}
		return nil
	})
	for name, p := range map[string]procstate.ProcessState{
		"itself": self, "embedded": struct{ *procstate.ProcSelf }{self}, "wrapped": &ownSelf{ProcessState: self},
	} {
		w := swbpf.With(p, nil, nil)
		failing = true
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			_, _ = w.WalkStack(nil, procstate.DefaultThread)
		}()
		failing = false
		frames, err := w.WalkStack(nil, procstate.DefaultThread)
		pc, _, _, _ := runtime.Caller(0)
		if err != nil || len(frames) == 0 {
			t.Fatalf("%s: %d frames, %v", name, len(frames), err)
		}
		if top := runtime.FuncForPC(uintptr(frames[0].PC())); top == nil || top.Entry() != runtime.FuncForPC(pc).Entry() {
			t.Errorf("%s: the top frame is in %v", name, top.Name())
		}
	}
}

// ownSelf calls another ProcessState from two functions of its own.
type ownSelf struct{ procstate.ProcessState }

func (p *ownSelf) BeforeWalk(tid procstate.ThreadID) error { return errors.Join(p.begin(tid)) }

//go:noinline
func (p *ownSelf) begin(tid procstate.ThreadID) error {
	return errors.Join(p.ProcessState.BeforeWalk(tid))
}

func (p *ownSelf) InCall() bool { return true }

// failingGroup panics when it is asked for the fifth frame's stepper or so.
type failingGroup struct {
	unwind.StepperGroup
	fail func()
}

func (g *failingGroup) StepperFor(addr uint64, last unwind.FrameStepper) (unwind.FrameStepper, bool) {
	if last != nil {
		g.fail()
	}
	return g.StepperGroup.StepperFor(addr, last)
}

// failingStepper panics when it is asked.
type failingStepper struct{ fail func() }

func (*failingStepper) Name() string              { return "failing" }
func (*failingStepper) Priority() unwind.Priority { return unwind.PriorityBottom }
func (s *failingStepper) CallerFrame(*unwind.Walker, *unwind.Frame, *unwind.Frame) (unwind.Verdict, error) {
	s.fail()
	return unwind.NotMe, nil
}

// failingProcess panics when its memory is read, or the libraries are looked at.
type failingProcess struct {
	*procstate.ProcDebug
	fail func()

	inLibraries func()
}

func (p *failingProcess) ReadWord(addr uint64) (uint64, bool) {
	p.fail()
	return p.ProcDebug.ReadWord(addr)
}

func (p *failingProcess) Libraries() procstate.LibraryState {
	if p.inLibraries == nil {
		return p.ProcDebug.Libraries()
	}
	return &failingLibraries{p.ProcDebug.Libraries(), p.inLibraries}
}

// failingLibraries panic when a mapping is looked up.
type failingLibraries struct {
	procstate.LibraryState
	fail func()
}

func (l *failingLibraries) MappingAt(addr uint64) *procstate.Mapping {
	l.fail()
	return l.LibraryState.MappingAt(addr)
}
