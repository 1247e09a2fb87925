package steppers_test

import (
	"encoding/binary"
	"fmt"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/unwind"
)

// compiler knows the code of a compiler whose functions all push the frame
// pointer, set it, and keep 16 bytes below it.
type compiler struct{}

func (compiler) AllocatesFrame(_ *unwind.Walker, f *unwind.Frame) steppers.FrameLayout {
	if f.PC()&0xff < 4 { // in the prologue
		return steppers.FrameLayout{Type: steppers.StandardFrame, State: steppers.UnsetFrame, SP: 8, RA: 8}
	}
	return steppers.FrameLayout{Type: steppers.StandardFrame, State: steppers.SetFrame, SP: 32, FP: 16, RA: 8, SavedFP: 16}
}

// A helper of one's own tells FrameFunc what frames look like.
func ExampleNewFrameFunc() {
	a := procstate.AMD64
	var regs procstate.Regs
	regs.Set(a.PC, 0x1000) // a function's first instruction
	regs.Set(a.SP, 0x8000)
	regs.Set(a.FP, 0x8020)
	memory := make([]byte, 0x60)
	for addr, v := range map[int]uint64{0x00: 0x1140, 0x20: 0x8050, 0x28: 0x1260, 0x58: 0} { // no more callers
		binary.LittleEndian.PutUint64(memory[addr:], v)
	}
	code := new(procstate.AddressSpace)
	code.Insert(&procstate.Mapping{Start: 0x1000, End: 0x2000, Path: "//anon"})
	state := procstate.NewSnapshot(a, 1, "", code)
	state.Reset(1, &regs, []procstate.Region{{Addr: 0x8000, Data: memory}})

	w := unwind.NewWalker(state, unwind.NewGroup(steppers.NewFrameFunc(compiler{})), nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	for i := range frames {
		fmt.Printf("%#x, FP %#x\n", frames[i].PC(), frames[i].FP())
	}
	fmt.Println(err)
	// Output:
	// 0x1000, FP 0x8020
	// 0x1140, FP 0x8020
	// 0x1260, FP 0x8050
	// <nil>
}
