package steppers

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// stubCode is a stub of Mono's for a delegate, and one for an interface, what may look like
// one, a function that they jump to, and one of V8's whose way out takes its return address
// off the stack.
var stubCode = []byte{
	0x48, 0x8b, 0xc7, // 00 mov %rdi,%rax
	0x48, 0x8b, 0xfe, // 03 mov %rsi,%rdi
	0xff, 0x60, 0x10, // 06 jmp *0x10(%rax)
	0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
	0x48, 0x8d, 0x1d, 0x29, 0, 0, 0, // 10 lea 0x29(%rip),%rbx; 40
	0x48, 0x83, 0xc3, 0x00, // 17 add $0,%rbx
	0xff, 0xe3, //             1b jmp *%rbx
	0xcc, 0xcc, 0xcc,
	0x48, 0x89, 0x3c, 0x24, // 20 mov %rdi,(%rsp)
	0xff, 0x67, 0x10, //       24 jmp *0x10(%rdi)
	0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
	0x5d,             // 30 pop %rbp
	0xff, 0x67, 0x10, // 31 jmp *0x10(%rdi)
	0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
	0x48, 0x83, 0xec, 0x18, // 40 sub $0x18,%rsp
	0x31, 0xc0, //             44 xor %eax,%eax
	0x48, 0x83, 0xc4, 0x18, // 46 add $0x18,%rsp
	0xc3,                         // 4a ret
	0xe8, 0xb0, 0xff, 0xff, 0xff, // 4b call 00
	0xcc, // 50: where that returns to
	0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
	0x48, 0x8b, 0x59, 0xf8, // 60 mov -8(%rcx),%rbx
	0xf6, 0x43, 0x35, 0x01, // 64 testb $1,0x35(%rbx)
	0x75, 0xe6, //             68 jne 50
	0x55,             // 6a push %rbp
	0x48, 0x89, 0xe5, // 6b mov %rsp,%rbp
	0x5d,       // 6e pop %rbp
	0x41, 0x5a, // 6f pop %r10
	0x48, 0x8d, 0x64, 0xcc, 0x08, // 71 lea 8(%rsp,%rcx,8),%rsp
	0x41, 0xff, 0xe2, //             76 jmp *%r10
}

// livingSnapshot has memory besides, of the process as it is now.
type livingSnapshot struct {
	*procstate.Snapshot
	now procstate.Region
}

func (s *livingSnapshot) ReadLive(addr uint64, buf []byte) int {
	if off := addr - s.now.Addr; off < uint64(len(s.now.Data)) {
		return copy(buf, s.now.Data[off:])
	}
	return 0
}

// A stub has no frame, and a function none yet, and the frame pointer that of its caller.
func TestStubs(t *testing.T) {
	const (
		code  = 0x200000
		ra    = code + 0x50
		base  = 0x7f0000000000
		sp    = base + 0x100
		frame = base + 0x200 // of the caller of that to which the stub returns
		heap  = 0x300000
	)
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: code, End: code + 0x1000})
	text := make([]byte, 0x1000)
	for i := range text {
		text[i] = mcode.BreakpointAMD64
	}
	copy(text, stubCode)
	const caller, chain = sp + 8, frame + 16
	for _, test := range []struct {
		name string
		pc   uint64
		top  uint64 // the word at SP
		to   uint64 // where the word in memory leads, 0 where it cannot be read
		want uint64 // SP of the caller; 0 where there is none
	}{
		{"start", 0x00, ra, code + 0x40, caller},
		{"middle", 0x03, ra, code + 0x40, caller},
		{"jump", 0x06, ra, code + 0x40, caller},
		{"into a frame", 0x06, ra, code + 0x46, 0},
		{"unread", 0x00, ra, 0, 0},
		{"unread, not called", 0x00, 5, 0, chain},
		{"by a register", 0x10, ra, 0, caller},
		{"by a register, at the jump", 0x1b, ra, 0, caller},
		{"stores", 0x20, ra, code + 0x40, chain},
		{"moves SP", 0x30, ra, code + 0x40, caller + 8},
		{"moves SP, unread", 0x30, ra, 0, chain},
		{"before a frame", 0x60, ra, 0, 0},
		{"its first instruction", 0x6a, ra, 0, 0},
		{"its second", 0x6b, frame, 0, 0},
	} {
		for _, live := range []bool{false, true} {
			stack := make([]byte, 0x300)
			put := func(at, v uint64) { binary.LittleEndian.PutUint64(stack[at-base:], v) }
			put(sp, test.top)
			put(sp+8, ra)
			put(frame, 0)
			put(frame+8, ra)
			regs := new(procstate.Regs)
			regs.Set(procstate.AMD64.PC, code+test.pc)
			regs.Set(procstate.AMD64.SP, sp)
			regs.Set(procstate.AMD64.FP, frame)
			const rax, rbx, rdi = 0, 3, 5
			regs.Set(rax, heap)
			regs.Set(rdi, heap)
			regs.Set(rbx, code+0x40)
			memory := procstate.Region{Addr: heap, Data: make([]byte, 0x18)}
			binary.LittleEndian.PutUint64(memory.Data[0x10:], test.to)
			regions := []procstate.Region{{Addr: sp, Data: stack[sp-base:]}, {Addr: code, Data: text}}
			s := &livingSnapshot{Snapshot: procstate.NewSnapshot(procstate.AMD64, 1, "", &space)}
			switch {
			case test.to == 0:
			case live:
				s.now = memory
			default:
				regions = append(regions, memory)
			}
			s.Reset(1, regs, regions)
			frames, err := unwind.NewWalker(s, unwind.NewGroup(NewFrameFunc(nil)), nil).WalkStack(nil, procstate.DefaultThread)
			switch {
			case test.want == 0:
				if len(frames) != 1 || !errors.Is(err, unwind.NoUnwindInfo) {
					t.Errorf("%s, live %v: %d frames, %v", test.name, live, len(frames), err)
				}
			case len(frames) < 2 || frames[1].PC() != ra || frames[1].SP() != test.want:
				t.Errorf("%s, live %v: %d frames, %v, want the caller's SP %#x: %+v", test.name, live, len(frames), err, test.want, frames)
			}
		}
	}
}

// Where a stub that jumps into the middle of a function is taken for one that leads to its
// start, nulls at the end of a page are not the beginning of a stack.
func TestStubIsNoBottom(t *testing.T) {
	const (
		code = 0x200000
		heap = 0x300000
		page = 0x7f0000001000 // the next page
		sp   = page - 0x20
	)
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: code, End: code + 0x1000})
	text := make([]byte, 0x1000)
	copy(text, stubCode)
	memory := make([]byte, 0x18)
	binary.LittleEndian.PutUint64(memory[0x10:], code+0x40)
	for _, fp := range []uint64{0, page + 0x100} {
		regs := new(procstate.Regs)
		regs.Set(procstate.AMD64.PC, code+0x06)
		regs.Set(procstate.AMD64.SP, sp)
		regs.Set(procstate.AMD64.FP, fp)
		const rax = 0
		regs.Set(rax, heap)
		s := procstate.NewSnapshot(procstate.AMD64, 1, "", &space)
		s.Reset(1, regs, []procstate.Region{
			{Addr: code, Data: text}, {Addr: heap, Data: memory}, {Addr: sp, Data: make([]byte, 0x1000)},
		})
		frames, err := unwind.NewWalker(s, unwind.NewGroup(NewFrameFunc(nil)), nil).WalkStack(nil, procstate.DefaultThread)
		if len(frames) != 1 || frames[0].IsBottom() || !errors.Is(err, unwind.NoUnwindInfo) {
			t.Errorf("FP %#x: %d frames, %v: %+v", fp, len(frames), err, frames)
		}
	}
}

// Where the code before a call and that behind it may be of two functions, with other
// frames, the one that has its return address there is right.
func TestOneOfTwoFrames(t *testing.T) {
	const code, base, sp, frame = 0x200000, 0x7f0000000000, 0x7f0000000100, 0x7f0000000180
	text := make([]byte, 0x1000)
	copy(text, []byte{
		0x55,             // 00 push %rbp
		0x48, 0x89, 0xe5, // 01 mov %rsp,%rbp
		0xe8, 0xf7, 0, 0, 0, // 04 call 100, which may return or not
		0xe8, 0xf2, 0, 0, 0, // 09 call 100; this may be in another function
		0xe8, 0xed, 0, 0, 0, // 0e call 100
		0x48, 0x83, 0xc4, 0x28, // 13 add $0x28,%rsp
		0xc3, // 17 ret
	})
	const pc, ra = code + 0x0e, code + 0x13
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: code, End: code + 0x1000})
	for _, test := range []struct {
		linked, other uint64 // the words where the first function has its return address, and the second
		want          uint64 // SP of the caller, 0 where there is none
	}{
		{ra, 5, frame + 16},
		{5, ra, sp + 0x30},
		{5, 5, 0},
	} {
		stack := make([]byte, 0x200)
		put := func(at, v uint64) { binary.LittleEndian.PutUint64(stack[at-base:], v) }
		put(frame, frame+0x40)
		put(frame+8, test.linked)
		put(sp+0x28, test.other)
		regs := new(procstate.Regs)
		regs.Set(procstate.AMD64.PC, pc)
		regs.Set(procstate.AMD64.SP, sp)
		regs.Set(procstate.AMD64.FP, frame)
		s := procstate.NewSnapshot(procstate.AMD64, 1, "", &space)
		s.Reset(1, regs, []procstate.Region{{Addr: base, Data: stack}, {Addr: code, Data: text}})
		frames, err := unwind.NewWalker(s, unwind.NewGroup(NewFrameFunc(nil)), nil).WalkStack(nil, procstate.DefaultThread)
		switch {
		case test.want == 0 && len(frames) != 1, test.want != 0 && (len(frames) < 2 || frames[1].PC() != ra || frames[1].SP() != test.want):
			t.Errorf("%+v: %d frames, %v: %+v", test, len(frames), err, frames)
		}
	}
}
