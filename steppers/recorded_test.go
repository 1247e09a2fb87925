package steppers

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/recorded"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
	"golang.org/x/sys/unix"
)

// recordedStacks are files of testdata/stacks: stacks of real programs, with
// what they were made by internal/recorded/record from.
//
//	depth30    g++ 12 -O2 -fomit-frame-pointer cmd/swbpf/testdata/targets/depth30.cc
//	cc1plus    that of g++ 12.2, compiling with -O2
//	clang      clang 19.1 with libLLVM, compiling with -O2
//	recursion  gcc 12 -O2 -fomit-frame-pointer bench/testdata/deep.c; 156 levels
//	go         cmd/swbpf/testdata/targets/gogc
var recordedStacks = []string{"depth30", "cc1plus", "clang", "recursion", "go"}

func loadStacks(t testing.TB, name string) (*recorded.File, *procstate.Snapshot) {
	t.Helper()
	f, err := recorded.Load("testdata/stacks/" + name + ".zst")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return f, snap
}

// bystander is a stepper that knows no frame, and is no RuleStepper: behind it
// there are no rules.
type bystander struct{ asked int }

func (s *bystander) Name() string              { return "bystander" }
func (s *bystander) Priority() unwind.Priority { return unwind.PriorityBottom - 1 }
func (s *bystander) CallerFrame(*unwind.Walker, *unwind.Frame, *unwind.Frame) (unwind.Verdict, error) {
	s.asked++
	return unwind.NotMe, nil
}

// otherGroup is a StepperGroup that the Walker knows nothing of.
type otherGroup struct{ unwind.StepperGroup }

// sameWalk walks the stack that the Walkers have by WalkStack and by WalkPCs of others,
// and wants the same frames and the same end.
func sameWalk(t *testing.T, regs *procstate.Regs, asking *unwind.Walker, others ...*unwind.Walker) {
	t.Helper()
	frames, err := asking.WalkStack(nil, 1)
	for i := range 2 * len(others) {
		n := i / 2
		w := others[n]
		room := i % 2 * len(frames) // none, and as much as it takes
		pcs, ruledErr := w.WalkPCs(make([]unwind.PC, 0, room), regs)
		if ruledErr != err {
			t.Errorf("walker %d: it ended with %v, by rules with %v", n, err, ruledErr)
		}
		if len(pcs) != len(frames) {
			t.Errorf("walker %d: %d frames, by rules %d", n, len(frames), len(pcs))
			continue
		}
		for i, f := range frames {
			if want := (unwind.PC{Addr: f.LookupPC(), Flags: f.Flags}); pcs[i] != want {
				t.Errorf("walker %d, frame %d: %x, by rules %x", n, i, want, pcs[i])
				break
			}
		}
		if sp := frames[len(frames)-1].SP(); w.LastSP() != sp {
			t.Errorf("walker %d: the last SP is %#x, by rules %#x", n, sp, w.LastSP())
		}
	}
}

// TestRecordedWalks walks recorded stacks, whole and damaged, in all the ways
// that there are: by asking the steppers frame by frame, by the rules that they
// give, behind a stepper that gives none, and in a group of another kind.
func TestRecordedWalks(t *testing.T) {
	for _, name := range recordedStacks {
		t.Run(name, func(t *testing.T) {
			f, snap := loadStacks(t, name)
			tables := unwind.NewTables()
			by := &bystander{}
			stood := Default(tables)
			if err := stood.AddStepper(by); err != nil {
				t.Fatal(err)
			}
			asking := unwind.NewWalker(snap, Default(tables), nil)
			others := []*unwind.Walker{
				unwind.NewWalker(snap, Default(tables), nil),
				unwind.NewWalker(snap, stood, nil),
				unwind.NewWalker(snap, otherGroup{Default(tables)}, nil),
			}
			frames := 0
			for range 2 { // the second time by rules that are known
				for i := range f.Stacks {
					regs := f.Stacks[i].Registers()
					snap.Reset(1, &regs, f.Stacks[i].Regions)
					sameWalk(t, &regs, asking, others...)
					pcs, err := others[0].WalkPCs(nil, &regs)
					if err != nil {
						t.Errorf("stack %d: %v after %d frames", i, err, len(pcs))
					}
					frames += len(pcs)
				}
			}
			if by.asked < frames {
				t.Errorf("the stepper in front was asked about %d frames of %d", by.asked, frames)
			}

			rng := rand.New(rand.NewPCG(1, 2))
			for range 1000 {
				s := &f.Stacks[rng.IntN(len(f.Stacks))]
				regs := s.Registers()
				snap.Reset(1, &regs, damage(rng, s.Regions))
				sameWalk(t, &regs, asking, others[0])
			}

			for i := range f.Stacks { // cut off at some frame
				s := &f.Stacks[i]
				regs := s.Registers()
				snap.Reset(1, &regs, s.Regions)
				asking.MaxFrames = 1 + i%20
				others[0].MaxFrames = asking.MaxFrames
				sameWalk(t, &regs, asking, others[0])
			}
		})
	}
}

// TestMemo walks stacks with a memo of the walk before: the same stack with one
// byte changed, which may be one that the walk reads, and other stacks of the
// same thread. It is told how much of the stack is as it was.
func TestMemo(t *testing.T) {
	for _, name := range recordedStacks {
		t.Run(name, func(t *testing.T) {
			f, snap := loadStacks(t, name)
			group := Default(unwind.NewTables())
			plain := unwind.NewWalker(snap, group, nil)
			again := unwind.NewWalker(snap, group, nil)
			memo := new(unwind.Memo)
			var before []unwind.PC
			var stackBefore []procstate.Region
			spared, frames := 0, 0
			walk := func(regs *procstate.Regs, regions []procstate.Region) {
				t.Helper()
				snap.Reset(1, regs, regions)
				want, wantErr := plain.WalkPCs(nil, regs)
				got, same, err := again.WalkPCsAgain(nil, regs, memo, sameFrom(stackBefore, regions))
				stackBefore = []procstate.Region{{Addr: regions[0].Addr, Data: slices.Clone(regions[0].Data)}}
				if len(regions) > 1 {
					stackBefore = nil
				}
				if err != wantErr || !slices.Equal(got, want) || plain.LastSP() != again.LastSP() {
					t.Fatalf("%d frames to %#x, %v; with a memo %d to %#x, %v",
						len(want), plain.LastSP(), wantErr, len(got), again.LastSP(), err)
				}
				if same > len(got) || same > len(before) || !slices.Equal(got[len(got)-same:], before[len(before)-same:]) {
					t.Fatalf("the last %d frames of %d are said to be those of before", same, len(got))
				}
				before, spared, frames = got, spared+same, frames+len(got)
			}
			rng := rand.New(rand.NewPCG(3, 4))
			for range 3000 {
				s := &f.Stacks[rng.IntN(len(f.Stacks))]
				regs := s.Registers()
				walk(&regs, s.Regions)
				if rng.IntN(4) == 0 {
					walk(&regs, damage(rng, s.Regions))
				}
				stack := slices.Clone(s.Regions[0].Data)
				for range 4 {
					stack[rng.IntN(len(stack))] ^= byte(1 + rng.IntN(255))
					walk(&regs, []procstate.Region{{Addr: s.Regions[0].Addr, Data: stack}})
				}
			}
			if spared < frames/10 {
				t.Errorf("%d frames of %d were not walked again", spared, frames)
			}
			// Nothing of it may outlive a change of the mappings.
			regs := f.Stacks[0].Registers()
			walk(&regs, f.Stacks[0].Regions)
			walk(&regs, f.Stacks[0].Regions)
			space := snap.Libraries().(*procstate.AddressSpace)
			last := space.MappingAt(before[len(before)-1].Addr)
			space.Remove(last.Start, last.End)
			walk(&regs, f.Stacks[0].Regions)
			if last := before[len(before)-1]; last.Flags&unwind.Bottom != 0 {
				t.Error("a walk through code that was unmapped is complete")
			}
		})
	}
}

// sameFrom returns the address from which on a stack of one region is as it was
// before, the largest there is when they are not laid alike.
func sameFrom(before, now []procstate.Region) uint64 {
	end := func(r []procstate.Region) uint64 { return r[0].Addr + uint64(len(r[0].Data)) }
	if len(before) != 1 || len(now) != 1 || end(before) != end(now) {
		return ^uint64(0)
	}
	from, a, b := end(now), before[0].Data, now[0].Data
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		from, a, b = from-1, a[:len(a)-1], b[:len(b)-1]
	}
	return from
}

// damage returns a copy of a stack with some words changed, or cut short, or
// with a hole.
func damage(rng *rand.Rand, of []procstate.Region) []procstate.Region {
	stack := procstate.Region{Addr: of[0].Addr, Data: slices.Clone(of[0].Data)}
	n := len(stack.Data)
	switch rng.IntN(4) {
	case 0:
		stack.Data = stack.Data[:rng.IntN(n)]
	case 1:
		hole := rng.IntN(n)
		end := min(n, hole+rng.IntN(64))
		return []procstate.Region{
			{Addr: stack.Addr, Data: stack.Data[:hole]},
			{Addr: stack.Addr + uint64(end), Data: stack.Data[end:]},
		}
	default:
		for range 1 + rng.IntN(4) {
			at := rng.IntN(n/8) * 8
			// A word from elsewhere in the stack, with a little added.
			word := binary.LittleEndian.Uint64(stack.Data[rng.IntN(n/8)*8:])
			binary.LittleEndian.PutUint64(stack.Data[at:], word+uint64(rng.IntN(3)))
		}
	}
	return []procstate.Region{stack}
}

// threadCPU is the CPU time of the thread that the benchmark is bound to, in
// ns: on a busy machine the time on the clock says little.
func threadCPU(b *testing.B) int64 {
	runtime.LockOSThread()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return ts.Nano()
}

// BenchmarkRecorded walks recorded stacks, each in turn: with CFI alone (debug),
// with all steppers of a recording (all), and with a memo of the walk before as
// well (again), which pays in so far as one stack is like the one before it.
func BenchmarkRecorded(b *testing.B) {
	groups := map[string]func() *unwind.AddressRangeGroup{
		"debug": func() *unwind.AddressRangeGroup { return unwind.NewGroup(NewDebug(unwind.NewTables())) },
		"all":   func() *unwind.AddressRangeGroup { return ForSampling(unwind.NewTables()) },
		"again": func() *unwind.AddressRangeGroup { return ForSampling(unwind.NewTables()) },
	}
	for _, name := range recordedStacks {
		for group, newGroup := range groups {
			if name == "go" && group == "debug" {
				continue
			}
			b.Run(name+"/"+group, func(b *testing.B) {
				f, snap := loadStacks(b, name)
				w := unwind.NewWalker(snap, newGroup(), nil)
				regs, from := make([]procstate.Regs, len(f.Stacks)), make([]uint64, len(f.Stacks))
				for i := range regs {
					regs[i] = f.Stacks[i].Registers()
					from[i] = sameFrom(f.Stacks[(i+len(regs)-1)%len(regs)].Regions, f.Stacks[i].Regions)
				}
				var pcs []unwind.PC
				var memo unwind.Memo
				frames, i := 0, 0
				walk := func() {
					snap.Reset(1, &regs[i], f.Stacks[i].Regions)
					if group == "again" {
						pcs, _, _ = w.WalkPCsAgain(pcs[:0], &regs[i], &memo, from[i])
					} else {
						pcs, _ = w.WalkPCs(pcs[:0], &regs[i])
					}
					frames += len(pcs)
					if i++; i == len(regs) {
						i = 0
					}
				}
				for range regs {
					walk()
				}
				frames = 0
				b.ReportAllocs()
				start := threadCPU(b)
				for b.Loop() {
					walk()
				}
				b.ReportMetric(float64(threadCPU(b)-start)/float64(frames), "cpu-ns/frame")
				b.ReportMetric(float64(frames)/float64(b.N), "frames/op")
			})
		}
	}
}
