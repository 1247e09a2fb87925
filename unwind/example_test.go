package unwind_test

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// fixedFrames walks through generated code all of whose frames have one size,
// with the return address on top.
type fixedFrames struct{ size uint64 } // bytes, without the return address

func (s *fixedFrames) Name() string { return "fixed-frames" }

// Priority puts the stepper before all that come with this module.
func (s *fixedFrames) Priority() unwind.Priority { return unwind.PriorityBottom - 1 }

func (s *fixedFrames) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	at := in.SP() + s.size
	ra, ok := w.ProcessState().ReadWord(at)
	if !ok {
		return unwind.Failed, unwind.ReadFailure(w.ProcessState(), at)
	}
	a := w.Arch()
	out.Regs.Inherit(&in.Regs, a.CalleeSaved) // which this code leaves alone
	out.SetPC(a, ra)
	out.SetSP(a, at+8)
	out.SetFP(a, in.FP())
	out.PCLocation, out.FPLocation = unwind.InMemory(at), in.FPLocation
	return unwind.Success, nil
}

// end is a stepper that knows one function, that which threads begin in.
type end struct{ start, end uint64 }

func (s end) Name() string              { return "end" }
func (s end) Priority() unwind.Priority { return unwind.PriorityBottom }

func (s end) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	if pc := in.LookupPC(); pc < s.start || pc >= s.end {
		return unwind.NotMe, nil
	}
	return unwind.StackBottom, nil
}

// madeUp is a thread in generated code, two calls deep.
func madeUp() *procstate.Snapshot {
	a := procstate.AMD64
	var regs procstate.Regs
	regs.Set(a.PC, 0x7010)
	regs.Set(a.SP, 0x10000)
	regs.Set(a.FP, 0)
	stack := make([]byte, 64)
	binary.LittleEndian.PutUint64(stack[16:], 0x7123) // both frames have 16 bytes
	binary.LittleEndian.PutUint64(stack[40:], 0x1008)
	s := procstate.NewSnapshot(a, 1, "", nil)
	s.Reset(1, &regs, []procstate.Region{{Addr: 0x10000, Data: stack}})
	return s
}

// A stepper for generated code is asked before all others, in the range of
// addresses where that code is.
func ExampleFrameStepper() {
	group := unwind.NewGroup(end{0x1000, 0x1010})
	if err := group.AddStepperRange(&fixedFrames{16}, 0x7000, 0x8000); err != nil {
		fmt.Println(err)
	}
	w := unwind.NewWalker(madeUp(), group, nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	for i := range frames {
		by := "the thread's registers"
		if s := w.Stepper(&frames[i]); s != nil {
			by = s.Name()
		}
		fmt.Printf("%#x by %s\n", frames[i].PC(), by)
	}
	fmt.Println(err)
	// Output:
	// 0x7010 by the thread's registers
	// 0x7123 by fixed-frames
	// 0x1008 by fixed-frames
	// <nil>
}

// A stack is walked frame by frame.
func ExampleWalker_Step() {
	group := unwind.NewGroup(end{0x1000, 0x1010})
	if err := group.AddStepperRange(&fixedFrames{16}, 0x7000, 0x8000); err != nil {
		fmt.Println(err)
	}
	w := unwind.NewWalker(madeUp(), group, nil)
	var frame, caller unwind.Frame
	if err := w.InitialFrame(procstate.DefaultThread, &frame); err != nil {
		fmt.Println(err)
		return
	}
	for {
		verdict, err := w.Step(&frame, &caller)
		fmt.Printf("%#x, SP %#x: %v\n", frame.PC(), frame.SP(), verdict)
		if verdict != unwind.Success {
			fmt.Println(err)
			break
		}
		frame = caller
	}
	// Output:
	// 0x7010, SP 0x10000: success
	// 0x7123, SP 0x10018: success
	// 0x1008, SP 0x10030: bottom
	// <nil>
}

// pluginFrames walks the frames of a library, wherever the process loads that.
type pluginFrames struct {
	fixedFrames
	group unwind.StepperGroup
}

func (s *pluginFrames) JoinGroup(g unwind.StepperGroup) {
	s.group = g
	_ = g.AddStepperRange(s, 0, 1) // nowhere, until the library is there
}

func (s *pluginFrames) LibraryChanged(_ *unwind.Walker, lib procstate.Library, change unwind.LibraryChange) {
	if change == unwind.LibraryLoaded && lib.Path == "/opt/plugin.so" {
		_ = s.group.AddStepperRange(s, lib.Bias+0x1000, lib.Bias+0x2000) // its code
	}
}

// A stepper that chooses its addresses itself, and others when libraries come.
func ExampleGroupMember() {
	group := unwind.NewGroup(&pluginFrames{fixedFrames: fixedFrames{16}})
	asked := func(addr uint64) bool { _, ok := group.StepperFor(addr, nil); return ok }
	fmt.Println(asked(0x7f0000001800))
	// What a Walker does when the process loads the library:
	group.LibraryChanged(nil, procstate.Library{Path: "/opt/plugin.so", Bias: 0x7f0000000000}, unwind.LibraryLoaded)
	fmt.Println(asked(0x7f0000001800), asked(0x7f0000002000))
	// Output:
	// false
	// true false
}

// What is missing of a stack has a reason.
func ExampleReason() {
	w := unwind.NewWalker(madeUp(), unwind.NewGroup(&fixedFrames{64}), nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	reason := unwind.ReasonOf(err)
	fmt.Println(len(frames), "frame,", reason)
	fmt.Println(reason.Help())
	// Output:
	// 1 frame, stack-cut
	// the stack is longer than what was copied of it; raise --stack-bytes
}

// Stacks of many threads are one tree, by what their frames have in common.
func ExampleCallTree() {
	a := procstate.AMD64
	stack := func(pcs ...uint64) (frames []unwind.Frame) {
		for i, pc := range pcs {
			frames = append(frames, unwind.NewFrame(a, pc, 0x10000+uint64(i)*16, 0))
		}
		return frames
	}
	page := func(_ *unwind.Walker, f *unwind.Frame) unwind.FrameID { return unwind.FrameID{N: f.PC() &^ 0xfff} }
	tree := unwind.NewCallTree(page) // more often ByFunction
	for tid, frames := range [][]unwind.Frame{
		stack(0x3010, 0x2010, 0x1010),
		stack(0x3020, 0x2020, 0x1010),
		stack(0x4010, 0x1020),
	} {
		tree.Add(unwind.Walk{Thread: procstate.ThreadID(tid), Frames: frames})
	}
	tree.Visit(func(n *unwind.CallNode, depth int) {
		fmt.Printf("%s%#x: %d\n", strings.Repeat("  ", depth), n.Frame.PC()&^0xfff, n.Count)
	})
	// Output:
	// 0x1000: 3
	//   0x2000: 2
	//     0x3000: 2
	//   0x4000: 1
}
