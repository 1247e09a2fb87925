package unwind

import (
	"encoding/binary"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
)

// A walk goes on in another stack than the captured one, and from that in a third, while the calls that
// left them are under way, and where that leads to code.
func TestWalkOtherStack(t *testing.T) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	const page, call = 4096, 128 // offset of the SP that the call returns with
	stacks := make([]byte, 32*page)
	var pin runtime.Pinner
	pin.Pin(&stacks[0])
	defer pin.Unpin()
	at := func(off int) uint64 { return uint64(uintptr(unsafe.Pointer(&stacks[off]))) }
	const other, third = 2 * page, 31 * page // offsets of the return addresses on other stacks
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: 0x1000, End: 0x2000})
	for _, test := range []struct {
		name    string
		first   uint64 // PC at which another stack was left
		second  uint64 // the caller's on that
		over    bool   // the call has returned
		leaves  bool   // it is one of many that leave the stack
		frames  int
		want    Reason
		otherAt int // index of the first frame on another stack, which all further ones are on, too; 0: none
	}{
		{"in a call", 0x1100, 0x1300, false, false, 3, ReasonNone, 2},
		{"returned", 0x1100, 0x1300, true, false, 2, MemoryUnreadable, 0},
		{"one of many", 0x1100, 0x1300, false, true, 2, MemoryUnreadable, 0},
		{"to no code", 0x1100, 0x9300, false, false, 2, MemoryUnreadable, 0},
		{"interrupted", 0x1000, 0x1300, false, false, 1, MemoryUnreadable, 0},
		{"twice", 0x1100, 0x1200, false, false, 4, ReasonNone, 2},
	} {
		ps := procstate.NewSnapshot(procstate.AMD64, os.Getpid(), exe, &space)
		ps.SetLiveCode(procstate.NewLiveCode(os.Getpid(), exe))
		s := &fakeStepper{name: "s"}
		s.step = func(in, out *Frame) {
			s.verdict, s.err = Success, nil
			from := 0
			switch in.PC() {
			case test.first:
				from = other
			case 0x1200:
				from = third
			case 0x1300:
				s.verdict = StackBottom
				return
			}
			if from == 0 {
				out.SetPC(procstate.AMD64, in.PC()+0x100)
				out.SetSP(procstate.AMD64, at(call))
				return
			}
			pc, ok := ps.ReadWord(at(from))
			if !ok {
				s.verdict, s.err = Failed, MemoryUnreadable
			}
			out.SetPC(procstate.AMD64, pc)
			out.SetSP(procstate.AMD64, at(from)+8)
		}
		binary.LittleEndian.PutUint64(stacks[other:], test.second)
		binary.LittleEndian.PutUint64(stacks[third:], 0x1300)
		stacks[call-8] = 0
		var regs procstate.Regs
		regs.Set(procstate.AMD64.PC, 0x1000)
		regs.Set(procstate.AMD64.SP, at(call-32))
		captured := append([]byte(nil), stacks[:page/2]...)
		if test.over {
			stacks[call-8]++
		}
		w := NewWalker(ps, NewGroup(s), nil)
		if test.leaves {
			w = NewWalker(ps, NewGroup(leaver{s}), nil)
		}
		for range 2 {
			ps.Reset(1, &regs, []procstate.Region{{Addr: at(0), Data: captured}})
			frames, err := w.WalkStack(nil, procstate.DefaultThread)
			if len(frames) != test.frames || ReasonOf(err) != test.want {
				t.Errorf("%s: %d frames, %v, want %d, %v", test.name, len(frames), err, test.frames, test.want)
			}
			for i := range frames {
				if switched := frames[i].Flags&StackSwitched != 0; switched != (i >= test.otherAt && test.otherAt > 0) {
					t.Errorf("%s: frame %d on another stack than its callee: %v", test.name, i, switched)
				}
			}
		}
	}
}

// leaver is a stepper for code that leaves its stack for each of many calls.
type leaver struct{ *fakeStepper }

func (leaver) LeavesStack(*Walker, *Frame) bool { return true }
