package steppers_test

import (
	"encoding/binary"
	"fmt"
	"log"

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

// tracer replaces return addresses by that of a trampoline of its own, from
// which it learns that a function has returned, and keeps the originals.
type tracer struct {
	trampoline uint64
	originals  map[uint64]uint64 // by the SP that the caller will have
}

func (t *tracer) IsInstrumentation(_ *unwind.Walker, f *unwind.Frame) (steppers.Instrumentation, bool) {
	if f.PC() != t.trampoline {
		return steppers.Instrumentation{}, false
	}
	return steppers.Instrumentation{OriginalPC: t.originals[f.SP()]}, true // 0: not known, the walk ends
}

// A helper that knows what instrumentation has changed has frames mended.
func ExampleNewDynamic() {
	a := procstate.AMD64
	var regs procstate.Regs
	regs.Set(a.PC, 0x1010)
	regs.Set(a.SP, 0x8000)
	regs.Set(a.FP, 0x8000)
	memory := make([]byte, 0x30)
	for addr, v := range map[int]uint64{0x00: 0x8010, 0x08: 0x9010, 0x10: 0x8020, 0x18: 0x1300} { // 0x1200 was replaced
		binary.LittleEndian.PutUint64(memory[addr:], v)
	}
	code := new(procstate.AddressSpace)
	code.Insert(&procstate.Mapping{Start: 0x1000, End: 0x2000, Path: "//anon"})
	code.Insert(&procstate.Mapping{Start: 0x9000, End: 0xa000, Path: "//anon"})
	state := procstate.NewSnapshot(a, 1, "", code)
	state.Reset(1, &regs, []procstate.Region{{Addr: 0x8000, Data: memory}})

	knows := &tracer{trampoline: 0x9010, originals: map[uint64]uint64{0x8010: 0x1200}}
	w := unwind.NewWalker(state, unwind.NewGroup(steppers.NewDynamic(knows), steppers.NewFrameFunc(nil)), nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	for i := range frames {
		fmt.Printf("%#x\n", frames[i].PC())
	}
	fmt.Println(err)
	// Output:
	// 0x1010
	// 0x1200
	// 0x1300
	// <nil>
}

// Where nothing else knows a frame, the stack is searched. What is found so is
// marked.
func ExampleNewWanderer() {
	p, err := procstate.Attach(4711)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Detach()
	group := steppers.Default(unwind.NewTables())
	if err := group.AddStepper(steppers.NewWanderer(nil, nil)); err != nil {
		log.Fatal(err)
	}
	frames, err := unwind.NewWalker(p, group, nil).WalkStack(nil, procstate.DefaultThread)
	for i := range frames {
		maybe := ""
		if frames[i].Flags&unwind.Heuristic != 0 {
			maybe = " (perhaps)"
		}
		fmt.Printf("%#x%s\n", frames[i].PC(), maybe)
	}
	fmt.Println(unwind.ReasonOf(err))
}
