package unwind

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// snapshot makes a Snapshot of a thread with the given PC, SP and FP.
func snapshot(pc, sp, fp uint64, regions ...procstate.Region) *procstate.Snapshot {
	var regs procstate.Regs
	regs.Set(procstate.AMD64.PC, pc)
	regs.Set(procstate.AMD64.SP, sp)
	regs.Set(procstate.AMD64.FP, fp)
	s := procstate.NewSnapshot(procstate.AMD64, 1, "", &procstate.AddressSpace{})
	s.Reset(7, &regs, regions)
	return s
}

// countdown walks n frames of 16 bytes each and then reports what end says.
func countdown(n int, end Verdict, err error) *fakeStepper {
	s := &fakeStepper{name: "countdown", verdict: Success}
	s.step = func(in, out *Frame) {
		if n == 0 {
			s.verdict, s.err = end, err
			return
		}
		n--
		out.SetPC(procstate.AMD64, in.PC()+0x100)
		out.SetSP(procstate.AMD64, in.SP()+16)
		out.SetFP(procstate.AMD64, 0)
	}
	return s
}

func TestWalkStack(t *testing.T) {
	own := errors.New("own error")
	for _, tc := range []struct {
		end    Verdict
		err    error
		want   error
		reason Reason
	}{
		{StackBottom, nil, nil, ReasonNone},
		{Failed, MemoryUnreadable, MemoryUnreadable, MemoryUnreadable},
		{Failed, fmt.Errorf("at 5: %w", StackCut), StackCut, StackCut},
		{Failed, own, own, StepperFailed},
		{Failed, nil, StepperFailed, StepperFailed},
		{NotMe, nil, NoMapping, NoMapping},
	} {
		other := &fakeStepper{name: "other", priority: 0}
		w := NewWalker(snapshot(0x1000, 0x8000, 1), NewGroup(other, countdown(3, tc.end, tc.err)), nil)
		frames, err := w.WalkStack(nil, procstate.DefaultThread)
		if !errors.Is(err, tc.want) || ReasonOf(err) != tc.reason {
			t.Errorf("%v, %v: walk ended with %v (%v)", tc.end, tc.err, err, ReasonOf(err))
		}
		if len(frames) != 4 {
			t.Fatalf("%v: %d frames, want 4", tc.end, len(frames))
		}
		for i, f := range frames {
			if f.PC() != 0x1000+0x100*uint64(i) || f.SP() != 0x8000+16*uint64(i) {
				t.Errorf("frame %d: pc %#x sp %#x", i, f.PC(), f.SP())
			}
			if f.IsTop() != (i == 0) || f.IsBottom() != (i == 3 && tc.end == StackBottom) {
				t.Errorf("frame %d: flags %b", i, f.Flags)
			}
			if made := w.Stepper(&f); (made == nil) != (i == 0) || i > 0 && made.Name() != "countdown" {
				t.Errorf("frame %d: stepper %v", i, made)
			}
		}
	}
}

// stubborn is a group that names one stepper whatever was tried before.
type stubborn struct {
	*AddressRangeGroup
	s *fakeStepper
}

func (g stubborn) StepperFor(uint64, FrameStepper) (FrameStepper, bool) { return g.s, true }

// TestGroupNamesTheSame: a group that does not look at what was tried ends the walk.
func TestGroupNamesTheSame(t *testing.T) {
	s := &fakeStepper{name: "other"}
	w := NewWalker(snapshot(0x1000, 0x8000, 1), stubborn{NewGroup(s), s}, nil)
	if frames, err := w.WalkStack(nil, procstate.DefaultThread); len(frames) != 1 || err != NoMapping {
		t.Errorf("%d frames, %v", len(frames), err)
	}
}

func TestWalkPCsAgreesWithWalkStack(t *testing.T) {
	ps := snapshot(0x1000, 0x8000, 1)
	frames, err := NewWalker(ps, NewGroup(countdown(5, Failed, StackCut)), nil).WalkStack(nil, 0)
	var regs procstate.Regs
	if err := ps.Registers(0, &regs); err != nil {
		t.Fatal(err)
	}
	pcs, perr := NewWalker(ps, NewGroup(countdown(5, Failed, StackCut)), nil).WalkPCs(nil, &regs)
	if err != StackCut || perr != StackCut || len(pcs) != len(frames) {
		t.Fatalf("%d frames (%v), %d PCs (%v)", len(frames), err, len(pcs), perr)
	}
	for i := range pcs {
		if pcs[i].Addr != frames[i].LookupPC() || pcs[i].Flags != frames[i].Flags {
			t.Errorf("frame %d: PC %+v, frame %#x %b", i, pcs[i], frames[i].LookupPC(), frames[i].Flags)
		}
	}
}

// patched is a Snapshot of which a word reads otherwise, as where a debugger
// hides what it has put there.
type patched struct {
	*procstate.Snapshot
	at, word uint64
}

func (p *patched) ReadWord(addr uint64) (uint64, bool) {
	if addr == p.at {
		return p.word, true
	}
	return p.Snapshot.ReadWord(addr)
}

// ruled walks by the rule that frames have 16 bytes.
type ruled struct{ rule *Rule }

func (r ruled) Name() string       { return "ruled" }
func (r ruled) Priority() Priority { return PriorityDebug }
func (r ruled) CallerFrame(w *Walker, in, out *Frame) (Verdict, error) {
	return r.rule.CallerFrame(w, in, out)
}

func (r ruled) RuleAt(*Walker, *procstate.Mapping, uint64, bool) (*Rule, bool) { return r.rule, true }

// Rules read what the ProcessState says, not what it was made of.
func TestWalkPCsOfWrappedSnapshot(t *testing.T) {
	stack := procstate.Region{Addr: 0x8000, Data: make([]byte, 8*16)}
	for i := range 8 {
		stack.Data[16*i+9] = 0x11 // 0x1100
	}
	var regs procstate.Regs
	for r, v := range map[procstate.Reg]uint64{procstate.AMD64.PC: 0x1000, procstate.AMD64.SP: 0x8000, procstate.AMD64.FP: 1} {
		regs.Set(r, v)
	}
	code := new(procstate.AddressSpace)
	code.Insert(&procstate.Mapping{Start: 0x1000, End: 0x3000, Image: testImage(t, procstate.AMD64, nil, 0, 0)})
	ps := &patched{procstate.NewSnapshot(procstate.AMD64, 1, "", code), 0x8038, 0x2200}
	ps.Reset(7, &regs, []procstate.Region{stack})
	w := NewWalker(ps, NewGroup(ruled{PlainRule(procstate.AMD64, 16, 0, false)}), nil)
	frames, err := w.WalkStack(nil, 0)
	if len(frames) != 9 || ReasonOf(err) != MemoryUnreadable || frames[4].PC() != 0x2200 {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	for range 2 { // the second time by rules that are known
		pcs, perr := w.WalkPCs(nil, &regs)
		if len(pcs) != len(frames) || perr != err {
			t.Fatalf("%d PCs, %v", len(pcs), perr)
		}
		for i := range pcs {
			if pcs[i].Addr != frames[i].LookupPC() {
				t.Errorf("frame %d: %#x, want %#x", i, pcs[i].Addr, frames[i].LookupPC())
			}
		}
	}
}

func TestWalkPCsDoesNotAllocate(t *testing.T) {
	s := &fakeStepper{name: "s"}
	s.step = func(in, out *Frame) {
		s.verdict = StackBottom
		if in.SP() < 0x8000+30*16 {
			s.verdict = Success
			out.SetPC(procstate.AMD64, in.PC())
			out.SetSP(procstate.AMD64, in.SP()+16)
		}
	}
	ps := snapshot(0x1000, 0x8000, 1)
	w := NewWalker(ps, NewGroup(s), nil)
	var regs procstate.Regs
	ps.Registers(0, &regs)
	pcs := make([]PC, 0, 64)
	var err error
	if n := testing.AllocsPerRun(100, func() { pcs, err = w.WalkPCs(pcs[:0], &regs) }); n != 0 {
		t.Errorf("%v allocations a walk", n)
	}
	if len(pcs) != 31 || err != nil {
		t.Errorf("%d PCs, %v", len(pcs), err)
	}
}

// TestWalkerRefuses pins what a stepper may not claim.
func TestWalkerRefuses(t *testing.T) {
	for _, tc := range []struct {
		name     string
		inFlags  FrameFlags
		pc, sp   uint64
		outFlags FrameFlags
		pcIn     Location
		want     Reason
	}{
		{"null return address", 0, 0, 0x8800, 0, InMemory(8), BadPC},
		{"null return address, too far from the end of a page", 0, 0, 0x8fc0, 0, InMemory(8), BadPC},
		{"same SP", Interrupted, 0x2000, 0x8000, 0, InMemory(0x7ff0), NoProgress},
		{"same SP, return address popped", Interrupted, 0x2000, 0x8000, 0, InMemory(0x7ff8), ReasonNone},
		{"same SP, return address below it, in a call", 0, 0x2000, 0x8000, 0, InMemory(0x7ff8), NoProgress},
		{"same SP, return address in the frame", 0, 0x2000, 0x8000, 0, InMemory(0x8008), NoProgress},
		{"same SP, return address elsewhere in memory", 0, 0x2000, 0x8000, 0, InMemory(8), ReasonNone},
		{"same SP in a call", 0, 0x2000, 0x8000, 0, InRegister(5), NoProgress},
		{"same SP, return address in a register", Interrupted, 0x2000, 0x8000, 0, InRegister(5), ReasonNone},
		{"the same place, return address in a register", Interrupted, 0x1000, 0x8000, Interrupted, InRegister(5), NoProgress},
		{"no SP and no PC", Interrupted, 0, 0, 0, Location{}, BadPC},
		{"lower SP", Interrupted, 0x2000, 0x7ff8, 0, InRegister(5), NoProgress},
		{"lower SP on another stack", 0, 0x2000, 0x1000, StackSwitched, InMemory(8), ReasonNone},
		{"higher SP", 0, 0x2000, 0x8008, 0, InMemory(8), ReasonNone},
	} {
		s := &fakeStepper{name: "s", verdict: Success}
		s.step = func(in, out *Frame) {
			out.SetPC(procstate.AMD64, tc.pc)
			out.SetSP(procstate.AMD64, tc.sp)
			out.Flags |= tc.outFlags
			out.PCLocation = tc.pcIn
		}
		w := NewWalker(snapshot(0x1000, 0x8000, 0), NewGroup(s), nil)
		var in, out Frame
		if err := w.InitialFrame(0, &in); err != nil {
			t.Fatal(err)
		}
		in.Flags = tc.inFlags
		v, err := w.Step(&in, &out)
		if ReasonOf(err) != tc.want || (v == Success) != (tc.want == ReasonNone) {
			t.Errorf("%s: %v, %v, want reason %v", tc.name, v, err, tc.want)
		}
	}
}

// A return address that no instruction of the architecture can have is none, unless a signal
// may tell of it.
func TestUnalignedPC(t *testing.T) {
	a := procstate.ARM64
	for flags, want := range map[FrameFlags]Reason{0: BadPC, Interrupted: ReasonNone} {
		s := &fakeStepper{name: "s", verdict: Success}
		s.step = func(in, out *Frame) {
			out.SetPC(a, 0x2002)
			out.SetSP(a, 0x8010)
			out.Flags |= flags
		}
		var regs procstate.Regs
		regs.Set(a.PC, 0x1000)
		regs.Set(a.SP, 0x8000)
		snap := procstate.NewSnapshot(a, 1, "", &procstate.AddressSpace{})
		snap.Reset(1, &regs, nil)
		var in, out Frame
		in.Load(a, &regs)
		if _, err := NewWalker(snap, NewGroup(s), nil).Step(&in, &out); ReasonOf(err) != want {
			t.Errorf("flags %v: %v, want %v", flags, err, want)
		}
	}
}

// A stepper that says nothing that a Walker knows has not walked the frame.
// What could not be read of a file is told from what is no program.
func TestReasonByFile(t *testing.T) {
	_, script := procstate.NewImageBytes([]byte("SBCL"+strings.Repeat("\x00", 60)), "core")
	_, broken := procstate.NewImageBytes([]byte(elf.ELFMAG+strings.Repeat("\x00", 60)), "broken")
	for _, tc := range []struct {
		err  error // of the file that is mapped
		want Reason
	}{
		{nil, NoUnwindInfo},
		{script, NoUnwindInfo},
		{broken, NoFile},
		{fs.ErrPermission, NoFile},
	} {
		var space procstate.AddressSpace
		space.Insert(&procstate.Mapping{Start: 0x1000, End: 0x2000, Path: "/core", ImageErr: tc.err})
		snap := procstate.NewSnapshot(procstate.AMD64, 1, "", &space)
		regs := new(procstate.Regs)
		regs.Set(procstate.AMD64.PC, 0x1100)
		snap.Reset(1, regs, nil)
		if _, err := NewWalker(snap, NewGroup(), nil).WalkStack(nil, procstate.DefaultThread); err != tc.want {
			t.Errorf("%v: %v, want %v", tc.err, err, tc.want)
		}
	}
}

func TestUnknownVerdict(t *testing.T) {
	frames, err := NewWalker(snapshot(0x1000, 0x8000, 1), NewGroup(countdown(0, 77, nil)), nil).WalkStack(nil, 0)
	if err != StepperFailed || len(frames) != 1 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
}

// stopping counts how often each thread is stopped and set going.
type stopping struct {
	*procstate.Snapshot
	stops map[procstate.ThreadID]int
}

func (s *stopping) BeforeWalk(tid procstate.ThreadID) error { s.stops[tid]++; return nil }
func (s *stopping) AfterWalk(tid procstate.ThreadID) error  { s.stops[tid]--; return nil }

// TestWalkFromOwnFrames walks from a frame into the slice that it is in.
func TestWalkFromOwnFrames(t *testing.T) {
	s := &stopping{snapshot(0x1000, 0x8000, 0), make(map[procstate.ThreadID]int)}
	const n = 5 // the walk from the middle clears the frame that it began with
	walk := func(w *Walker, in, out *Frame) (Verdict, error) {
		if in.SP() >= 0x8000+n*16 {
			return Failed, NoRegister
		}
		out.SetPC(w.Arch(), in.PC()+0x100)
		out.SetSP(w.Arch(), in.SP()+16)
		return Success, nil
	}
	w := NewWalker(s, NewGroup(stepperFunc{&walk}), nil)
	frames, err := w.WalkStack(nil, 7)
	if len(frames) != n+1 || err != NoRegister {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	for i := 1; i <= n; i++ {
		want, err := w.WalkFrom(nil, &frames[i])
		if len(want) != n+1-i || err != NoRegister {
			t.Fatalf("from frame %d: %d frames, %v", i, len(want), err)
		}
		own := slices.Clone(frames)
		if got, err := w.WalkFrom(own[:0], &own[i]); !slices.Equal(got, want) || err != NoRegister {
			t.Errorf("from frame %d: %d frames, %v", i, len(got), err)
		}
	}
	for tid, n := range s.stops {
		if n != 0 {
			t.Errorf("thread %d was stopped %d times more than it was set going", tid, n)
		}
	}
}

// stepperFunc is a stepper by a function.
type stepperFunc struct {
	f *func(w *Walker, in, out *Frame) (Verdict, error)
}

func (s stepperFunc) Name() string       { return "func" }
func (s stepperFunc) Priority() Priority { return PriorityFrame }
func (s stepperFunc) CallerFrame(w *Walker, in, out *Frame) (Verdict, error) {
	return (*s.f)(w, in, out)
}

// TestStepToTheBottom walks frame by frame, as far as the stack goes.
func TestStepToTheBottom(t *testing.T) {
	w := NewWalker(snapshot(0x1000, 0x8000, 0), NewGroup(countdown(4, StackBottom, nil)), nil)
	var in, out Frame
	if err := w.InitialFrame(0, &in); err != nil {
		t.Fatal(err)
	}
	all, err := w.WalkStack(nil, 0)
	if err != nil || len(all) < 2 {
		t.Fatal(len(all), err)
	}
	w = NewWalker(snapshot(0x1000, 0x8000, 0), NewGroup(countdown(4, StackBottom, nil)), nil)
	for i := range all {
		v, err := w.Step(&in, &out)
		if want := i == len(all)-1; err != nil || (v == StackBottom) != want || in.IsBottom() != want || in != all[i] {
			t.Errorf("frame %d: %v, %v\n%+v, the walk has\n%+v", i, v, err, in, all[i])
		}
		in = out
	}
}

// A stack that was made by hand ends with a null return address and a page. One
// that goes on has no such end.
func TestWalkerNullReturnAddress(t *testing.T) {
	for _, c := range []struct {
		sp, word uint64 // CFA, and where there is something
		err      error
	}{
		{0x9000, 0, nil}, {0x8ff8, 0, nil}, {0x8fc8, 0, nil},
		{0x8fc0, 0, BadPC}, {0x9000, 0x9000, BadPC}, {0x8fc8, 0x9000, BadPC}, {0x8fc8, 0x8ff8, BadPC}, {0x8fc8, 0x8fc8, BadPC},
	} {
		s := &fakeStepper{name: "s", verdict: Success}
		s.step = func(in, out *Frame) { out.SetSP(procstate.AMD64, c.sp) }
		stack := procstate.Region{Addr: 0x8f00, Data: make([]byte, 0x100)}
		if c.word != 0 {
			stack.Data = append(stack.Data, make([]byte, 8)...)
			stack.Data[c.word-stack.Addr] = 1
		}
		frames, err := NewWalker(snapshot(0x1000, 0x8000, 0, stack), NewGroup(s), nil).WalkStack(nil, 0)
		if !errors.Is(err, c.err) || len(frames) != 1 || frames[0].IsBottom() != (c.err == nil) {
			t.Errorf("SP %#x, something at %#x: %d frames, %v", c.sp, c.word, len(frames), err)
		}
	}
	// A stack that was captured up to the middle of a page does not end there.
	s := &fakeStepper{name: "s", verdict: Success}
	s.step = func(in, out *Frame) { out.SetSP(procstate.AMD64, 0x8fc8) }
	cut := procstate.Region{Addr: 0x8f00, Data: make([]byte, 0xe0)}
	if _, err := NewWalker(snapshot(0x1000, 0x8000, 0, cut), NewGroup(s), nil).WalkStack(nil, 0); !errors.Is(err, BadPC) {
		t.Errorf("cut: %v", err)
	}
}

// ownGroup is a group of a caller's own kind.
type ownGroup struct{ StepperGroup }

// TestStepperAfterFailure: after which failures of a stepper the next one is
// asked, and why a walk ends that it does not know either.
func TestStepperAfterFailure(t *testing.T) {
	for _, c := range []struct {
		err  error // nil: the first stepper's caller has the same SP
		next bool
	}{
		{nil, true}, {NoRegister, true}, {NoProgress, true},
		{fmt.Errorf("r12: %w", NoRegister), false}, {MemoryUnreadable, false}, {errors.New("own"), false},
	} {
		for _, knows := range []Verdict{NotMe, Success} {
			first := &fakeStepper{name: "first", verdict: Failed, err: c.err}
			if c.err == nil {
				first.verdict = Success
				first.step = func(in, out *Frame) { *out = *in }
			}
			asked := false
			second := &fakeStepper{name: "second", verdict: knows}
			second.step = func(in, out *Frame) {
				if asked = true; knows != Success {
					return
				}
				if *out != (Frame{}) {
					t.Errorf("%v: the next stepper gets %+v", c.err, *out)
				}
				out.SetPC(procstate.AMD64, 0x2000)
				out.SetSP(procstate.AMD64, in.SP()+16)
			}
			group := NewGroup(first, second)
			for _, g := range []StepperGroup{group, ownGroup{group}} {
				asked = false
				w := NewWalker(snapshot(0x1000, 0x8000, 0), g, nil)
				var in, out Frame
				if err := w.InitialFrame(0, &in); err != nil {
					t.Fatal(err)
				}
				v, err := w.Step(&in, &out)
				want := c.err
				if want == nil {
					want = NoProgress
				}
				if c.next && knows == Success {
					want = nil
				}
				if asked != c.next || !errors.Is(err, want) || (v == Success) != (want == nil) {
					t.Errorf("%v, then %v in a %T: %v, %v; the next was asked: %v", c.err, knows, g, v, err, asked)
				}
			}
		}
	}
}

func TestMaxFrames(t *testing.T) {
	w := NewWalker(snapshot(0x1000, 0x8000, 0), NewGroup(countdown(100, StackBottom, nil)), nil)
	w.MaxFrames = 10
	frames, err := w.WalkStack(nil, 0)
	if len(frames) != 10 || err != TooManyFrames {
		t.Errorf("%d frames, %v", len(frames), err)
	}
}

func TestReasonOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Reason
	}{
		{nil, ReasonNone}, {StackCut, StackCut}, {fmt.Errorf("x: %w", BadPC), BadPC}, {errors.New("x"), StepperFailed},
		{fmt.Errorf("thread 7: %w", procstate.ErrNoThread), ThreadEnded}, {procstate.ErrTerminated, ThreadEnded},
	} {
		if got := ReasonOf(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

func TestReasonsHaveNamesAndHelp(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumReasons {
		if r.String() == "" || r.Help() == "" || seen[r.String()] {
			t.Errorf("reason %d: name %q, help %q", r, r.String(), r.Help())
		}
		seen[r.String()] = true
	}
}

// What is kept is the stepper's that has kept it, in the Walker alone.
func TestKeep(t *testing.T) {
	a, b := &fakeStepper{name: "a"}, &fakeStepper{name: "b"}
	w, other := NewWalker(snapshot(0x1000, 0x8000, 1), NewGroup(a, b), nil), NewWalker(snapshot(0x1000, 0x8000, 1), NewGroup(a, b), nil)
	if w.Kept(a) != nil {
		t.Errorf("kept before: %v", w.Kept(a))
	}
	w.Keep(a, 1)
	w.Keep(b, 2)
	w.Keep(a, 3)
	if w.Kept(a) != 3 || w.Kept(b) != 2 || other.Kept(a) != nil {
		t.Errorf("kept %v and %v, by another Walker %v", w.Kept(a), w.Kept(b), other.Kept(a))
	}
}

// The library is that of the call, which may be the last instruction of it; the address is PC's.
func TestWalkerLibrary(t *testing.T) {
	image := testImage(t, procstate.AMD64, nil, 0, 0)
	code := new(procstate.AddressSpace)
	code.Insert(&procstate.Mapping{Start: 0x1000, End: 0x3000, Path: "/lib/a.so", Image: image})
	w := NewWalker(procstate.NewSnapshot(procstate.AMD64, 1, "", code), nil, nil)
	start := uint64(0x1000)
	want := procstate.Library{Path: "/lib/a.so", Bias: start - imageBase, Image: image}
	for _, test := range []struct {
		pc    uint64
		flags FrameFlags
		ok    bool
	}{
		{0xfff, Interrupted, false}, {0x1000, Interrupted, true}, {0x2fff, Interrupted, true}, {0x3000, Interrupted, false},
		{0x1000, 0, false}, {0x1001, 0, true}, {0x3000, 0, true}, {0x3001, 0, false},
	} {
		f := Frame{Flags: test.flags}
		f.SetPC(procstate.AMD64, test.pc)
		lib, vaddr, ok := w.Library(&f)
		if ok != test.ok || ok && (lib != want || vaddr != test.pc-want.Bias) {
			t.Errorf("%#x with flags %d: %+v, %#x, %v", test.pc, test.flags, lib, vaddr, ok)
		}
	}
	if _, _, ok := NewWalker(procstate.NewSnapshot(procstate.AMD64, 1, "", nil), nil, nil).Library(&Frame{}); ok {
		t.Error("a library where none is mapped")
	}
}
