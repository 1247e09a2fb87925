package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// lispCode is what SBCL makes of a call of one function by another.
var lispCode = []byte{
	0x48, 0x83, 0xec, 0x10, // 00 sub $16,%rsp
	0x48, 0x89, 0x2c, 0x24, // 04 mov %rbp,(%rsp)
	0x48, 0x8b, 0xec, //       08 mov %rsp,%rbp
	0xb8, 0, 0, 0x10, 0, //    0b mov $0x100000,%eax
	0xff, 0xd0, //             10 call *%rax
	0x48, 0x8b, 0xe5, //       12 mov %rbp,%rsp
	0xf8,                // 15 clc
	0x5d,                // 16 pop %rbp
	0xc3,                // 17 ret
	0xe9, 0x03, 0, 0, 0, //    18 jmp 20
	0xcc, 0xcc, 0xcc,
	0x8f, 0x45, 0x08, //       20 pop 8(%rbp)
	0x48, 0x8d, 0x65, 0xf0, // 23 lea -16(%rbp),%rsp
	0x48, 0x8b, 0xe5, //       27 mov %rbp,%rsp
	0xf8, // 2a clc
	0x5d, // 2b pop %rbp
	0xc3, // 2c ret
	0xcc, 0xcc, 0xcc,
	0xff, 0x25, 2, 0, 0, 0, // 30 jmp *38
	0xcc, 0xcc,
	0x20, 0, 0x20, 0, 0, 0, 0, 0,
}

// The frame of a function that its caller sets up is not taken for the caller's,
// nor is what is left where its return address will be taken for that.
func TestLentFrame(t *testing.T) {
	const (
		code  = 0x200000
		ra    = code + 0x12
		stale = code + 0x12
		base  = 0x7f0000000000
		top   = base + 0xf00 // the frame of the first function: it returns to 0
		frame = base + 0xe00 // of the one that calls
		next  = base + 0xd00 // of the one that is called
	)
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: code, End: code + 0x1000})
	text := make([]byte, 0x1000)
	for i := range text {
		text[i] = mcode.BreakpointAMD64
	}
	copy(text, lispCode)
	for _, test := range []struct {
		pc, sp, fp uint64
		set        map[uint64]uint64
		want       []uint64 // SPs of the callers
	}{
		{0x00, next + 16, frame, nil, []uint64{frame + 16}},
		{0x04, next, frame, nil, []uint64{frame + 16}},
		{0x08, next, frame, map[uint64]uint64{next: frame}, []uint64{frame + 16}},
		{0x0b, next, next, map[uint64]uint64{next: frame}, []uint64{frame + 16}},
		{0x10, next, next, map[uint64]uint64{next: frame}, []uint64{frame + 16}},
		{0x18, next - 8, next, map[uint64]uint64{next: frame, next - 8: ra}, []uint64{next + 16, frame + 16}},
		{0x30, next - 8, next, map[uint64]uint64{next: frame, next - 8: ra}, []uint64{next + 16, frame + 16}},
		{0x20, next - 8, next, map[uint64]uint64{next: frame, next - 8: ra}, []uint64{next + 16, frame + 16}},
		{0x23, next, next, map[uint64]uint64{next: frame, next + 8: ra}, []uint64{next + 16, frame + 16}},
		{0x27, next - 16, next, map[uint64]uint64{next: frame, next + 8: ra}, []uint64{next + 16, frame + 16}},
		{0x2c, next + 8, frame, map[uint64]uint64{next: frame, next + 8: ra}, []uint64{next + 16, frame + 16}},
		{0x12, next + 16, frame, map[uint64]uint64{next: frame, next + 8: ra}, []uint64{frame + 16}},
	} {
		stack := make([]byte, 0x1000)
		put := func(at, v uint64) { binary.LittleEndian.PutUint64(stack[at-base:], v) }
		put(next+8, stale) // of an earlier call
		put(next, next+0x40)
		put(frame, top)
		put(frame+8, ra)
		for at, v := range test.set {
			put(at, v)
		}
		regs := new(procstate.Regs)
		regs.Set(procstate.AMD64.PC, code+test.pc)
		regs.Set(procstate.AMD64.SP, test.sp)
		regs.Set(procstate.AMD64.FP, test.fp)
		s := procstate.NewSnapshot(procstate.AMD64, 1, "", &space)
		s.Reset(1, regs, []procstate.Region{{Addr: test.sp, Data: stack[test.sp-base:]}, {Addr: code, Data: text}})
		frames, err := unwind.NewWalker(s, unwind.NewGroup(NewFrameFunc(nil)), nil).WalkStack(nil, procstate.DefaultThread)
		if err != nil || len(frames) != len(test.want)+1 {
			t.Errorf("%#x: %d frames, want %d: %v", test.pc, len(frames), len(test.want)+1, err)
			continue
		}
		for i, want := range test.want {
			if f := &frames[i+1]; f.PC() != ra || f.SP() != want {
				t.Errorf("%#x, frame %d: pc %#x sp %#x, want %#x %#x", test.pc, i+1, f.PC(), f.SP(), uint64(ra), want)
			}
		}
	}
}

// Paths through code made at run time go on where a register with an address that
// the code gives leads them.
func TestGivenTargets(t *testing.T) {
	const start = 0x100000
	at := func(code []byte) foundLayout {
		read := func(from, addr, end uint64) ([]byte, uint64) {
			from = max(from, start)
			return code[min(from-start, uint64(len(code))):min(end-start, uint64(len(code)))], from
		}
		return new(framePaths).layoutBehind(procstate.AMD64, read, start, false, &madeWays{setsFrame: func(*isa.Inst, uint64) bool { return false }}, false)
	}
	found := foundLayout{layout: FrameLayout{Type: NoFrame, State: UnsetFrame, SP: 0x38, FP: -1, RA: 8}, ok: true}
	for name, test := range map[string]struct {
		code []byte
		want foundLayout
	}{
		"address": {[]byte{
			0x49, 0xbb, 0x20, 0, 0x10, 0, 0, 0, 0, 0, // movabs $100020,%r11
			0x49, 0x83, 0xc3, 0x08, // add $8,%r11
			0x31, 0xc0, //             xor %eax,%eax
			0x41, 0xff, 0xe3, //       jmp *%r11
			0x28: 0x48, 0x83, 0xc4, 0x30, 0xc3, // add $48,%rsp; ret
		}, found},
		"changed": {[]byte{
			0x49, 0xbb, 0x28, 0, 0x10, 0, 0, 0, 0, 0,
			0x49, 0x8b, 0x1b, // mov (%r11),%rbx
			0x4c, 0x8b, 0xd8, // mov %rax,%r11
			0x41, 0xff, 0xe3,
			0x28: 0x48, 0x83, 0xc4, 0x30, 0xc3,
		}, foundLayout{}},
		"word": {[]byte{
			0x48, 0x83, 0xc4, 0x30,
			0x49, 0xbb, 0x28, 0, 0x10, 0, 0, 0, 0, 0,
			0x41, 0xff, 0x23, // jmp *(%r11)
		}, found},
		"table": {[]byte{
			0x48, 0x83, 0xc4, 0x30,
			0x49, 0xbb, 0x28, 0, 0x10, 0, 0, 0, 0, 0,
			0x41, 0xff, 0x24, 0xc3, // jmp *(%r11,%rax,8)
		}, foundLayout{}},
	} {
		if got := at(test.code); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
