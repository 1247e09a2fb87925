package steppers

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Code made at run time may run in the frame of a function of a file, and go on there, by
// what it knows itself or by what registers hold and lead to.
func TestWaysIntoFiles(t *testing.T) {
	const (
		start  = 0x100000
		inFile = 0x200000 // with a frame of 0xa0 bytes
		vm     = 0x210000 // the same, for all that there is; there is no CFI elsewhere
		heap   = 0x300000
	)
	a := procstate.AMD64
	row := unwind.Row{RA: uint8(a.PC)}
	row.CFA = unwind.RegRule{Kind: unwind.InReg, Reg: a.SP, Offset: 0xa0}
	row.Regs[a.PC] = unwind.RegRule{Kind: unwind.AtOffset, Offset: -8}
	row.Regs[a.FP] = unwind.RegRule{Kind: unwind.AtOffset, Offset: -0x20}
	memory := map[uint64]uint64{heap: inFile, heap + 8: start + 0x20, heap + 0x10: heap - 0x20, heap + 0x18: inFile + 8}
	vmCode := []byte{
		0x48, 0x8d, 0x4c, 0x24, 0x10, // 00 lea 0x10(%rsp),%rcx
		0x48, 0x89, 0xcc, //             05 mov %rcx,%rsp
		0xff, 0x24, 0xc3, //             08 jmp *(%rbx,%rax,8)
		0x54, 0xff, 0x24, 0xc3, //       0b push %rsp; jmp *(%rbx,%rax,8)
		0x48, 0x89, 0xc4, 0xff, 0x24, 0xc3, // 0f mov %rax,%rsp; jmp *(%rbx,%rax,8)
		0x31, 0xc0, 0xff, 0x24, 0xc3, //       15 xor %eax,%eax; jmp *(%rbx,%rax,8)
	}
	at := func(code []byte, regs *procstate.Regs) foundLayout {
		read := func(from, addr, end uint64) ([]byte, uint64) {
			if addr-vm < uint64(len(vmCode)) {
				return vmCode[addr-vm:], addr
			}
			if addr-start >= uint64(len(code)) {
				return nil, addr
			}
			from = max(from, start)
			return code[from-start : min(end-start, uint64(len(code)))], from
		}
		made := madeWays{
			setsFrame: func(*isa.Inst, uint64) bool { return false },
			rowAt: func(pc uint64) (unwind.Row, uint64, bool) {
				return row, pc&^0xfff + 0x1000, pc == inFile || pc-vm < uint64(len(vmCode))
			},
			word: func(addr uint64) (uint64, bool) { v, ok := memory[addr]; return v, ok },
			regs: regs,
		}
		return new(framePaths).layoutBehind(a, read, start, false, &made, false)
	}
	const r14, r15 = 14, 15
	regs := new(procstate.Regs)
	regs.Set(r14, heap)
	regs.Set(r15, heap)
	found := foundLayout{FrameLayout{Type: SaveFPOnlyFrame, State: HalfSetFrame, SP: 0xa0, FP: -1, RA: 8, SavedFP: 0x20}, true, false}
	behind := found
	behind.passes = true
	none := foundLayout{}
	withSP := func(sp int32) foundLayout {
		l := found
		l.layout.SP = sp
		return l
	}
	for name, test := range map[string]struct {
		code []byte
		regs *procstate.Regs
		want foundLayout
	}{
		"jump":                           {[]byte{0xe9, 0xfb, 0xff, 0x0f, 0}, nil, found},
		"branch":                         {[]byte{0x0f, 0x84, 0xfa, 0xff, 0x0f, 0, 0x0f, 0x0b}, nil, found},
		"with a pop":                     {[]byte{0x58, 0xe9, 0xfa, 0xff, 0x0f, 0}, nil, withSP(0xa8)},
		"with a push":                    {[]byte{0x50, 0xe9, 0xfa, 0xff, 0x0f, 0}, nil, withSP(0x98)},
		"no CFI":                         {[]byte{0xe9, 0xfc, 0xff, 0x0f, 0}, nil, none},
		"one row for all, that moves SP": {[]byte{0xe9, 0xfb, 0xff, 0x10, 0}, nil, withSP(0xb0)},
		"one row for all, that pushes":   {[]byte{0xe9, 0x06, 0, 0x11, 0}, nil, withSP(0xa0 - 8)},
		"one row for all, that moves SP to anywhere": {[]byte{0xe9, 0x0a, 0, 0x11, 0}, nil, none},
		"one row for all, that leaves SP alone":      {[]byte{0xe9, 0x10, 0, 0x11, 0}, nil, found},
		"a word": {[]byte{
			0x49, 0xbf, 0, 0, 0x30, 0, 0, 0, 0, 0, // movabs $heap,%r15
			0x41, 0xff, 0x27, // jmp *(%r15)
		}, nil, found},
		"a word that leads to code": {[]byte{
			0x49, 0xbf, 8, 0, 0x30, 0, 0, 0, 0, 0,
			0x41, 0xff, 0x27,
			0x20: 0xe9, 0xdb, 0xff, 0x0f, 0, // jmp inFile
		}, nil, found},
		"behind a call": {[]byte{
			0x49, 0xbf, 0, 0, 0x30, 0, 0, 0, 0, 0,
			0xe8, 0, 1, 0, 0, // call
			0x41, 0xff, 0x27,
		}, nil, behind},
		"a register that calls do not preserve": {[]byte{
			0x48, 0xb8, 0, 0, 0x30, 0, 0, 0, 0, 0, // movabs $heap,%rax
			0xe8, 0, 1, 0, 0,
			0xff, 0x20, // jmp *(%rax)
		}, nil, none},
		"known on one path, which comes second": {[]byte{
			0x74, 0x06, //             je 8
			0x41, 0xff, 0x27, //       2 jmp *(%r15)
			0xcc, 0xcc, 0xcc,
			0x49, 0xbf, 0, 0, 0x30, 0, 0, 0, 0, 0, // 8 movabs $heap,%r15
			0xeb, 0xee, //             12 jmp 2
		}, nil, found},
		"a register":            {[]byte{0x41, 0xff, 0x27}, regs, found},
		"a register, not known": {[]byte{0x41, 0xff, 0x27}, nil, none},
		"a register, written":   {[]byte{0x4d, 0x89, 0xc7, 0x41, 0xff, 0x27}, regs, none}, // mov %r8,%r15
		"memory": {[]byte{
			0x4d, 0x8b, 0x7e, 0x10, // mov 0x10(%r14),%r15
			0x49, 0x83, 0xc7, 0x20, // add $0x20,%r15
			0x41, 0xff, 0x27,
		}, regs, found},
		"memory that cannot be read": {[]byte{0x4d, 0x8b, 0x7e, 0x20, 0x41, 0xff, 0x27}, regs, none},
	} {
		if got := at(test.code, test.regs); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// A stub that jumps to where a function tells it has the frame that what stands behind it
// takes off, if a call in a file to anywhere has left its return address there.
func TestBeside(t *testing.T) {
	const code, base, sp = 0x7e0000000000, 0x7f0000000000, 0x7f0000000100
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	images := procstate.NewImages(0)
	defer images.Close()
	im := steptest.OpenFile(t, images, exe)
	text, ok := im.Section(".text")
	if !ok {
		t.Fatal("no .text")
	}
	file := make([]byte, min(text.Size, 8<<20))
	if err := im.ReadVaddr(file, text.Vaddr); err != nil {
		t.Fatal(err)
	}
	// behind returns where a call returns to that is made by a register, or is not.
	behind := func(want bool) uint64 {
		for i := uint64(mcode.MaxCallLen); i < uint64(len(file)); i++ {
			if _, direct, ok := mcode.CallBefore(procstate.AMD64, file[i-mcode.MaxCallLen:i], text.Vaddr+i); ok && direct != want {
				return text.Vaddr + i
			}
		}
		t.Fatal("no such call")
		return 0
	}
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: code, End: code + 0x1000})
	for _, s := range im.Segments() {
		if text.Vaddr-s.Vaddr < s.Filesz {
			space.Insert(&procstate.Mapping{Start: s.Vaddr, End: s.Vaddr + s.Filesz, Image: im})
		}
	}
	stub := []byte{0x4c, 0x89, 0xe2, 0xe8, 0, 1, 0, 0, 0xff, 0xe0} // mov %r12,%rdx; call; jmp *%rax
	const returned = 8
	exit := []byte{0x5b, 0x41, 0x5c, 0x41, 0x5d, 0xc3}                                       // pop %rbx; pop %r12; pop %r13; ret
	other := []byte{0x5b, 0x41, 0x5c, 0xc3}                                                  // pop %rbx; pop %r12; ret
	function := []byte{0x53, 0x90, 0x5b, 0xc3}                                               // push %rbx; nop; pop %rbx; ret
	framed := []byte{0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3}                                     // push %rbp; mov %rsp,%rbp; pop %rbp; ret
	on := []byte{0x4c, 0x89, 0xe2, 0xe8, 0, 1, 0, 0, 0x48, 0x89, 0x03, 0xe9, 7, 0, 0, 0}     // mov %r12,%rdx; call; mov %rax,(%rbx); jmp
	pushes := []byte{0x4c, 0x89, 0xe2, 0xe8, 0, 1, 0, 0, 0x53, 0x90, 0x90, 0xe9, 7, 0, 0, 0} // mov %r12,%rdx; call; push %rbx; nop; nop; jmp
	leaf := []byte{0x31, 0xc0, 0xc3}                                                         // xor %eax,%eax; ret
	branch := []byte{0x0f, 0x85, 0x40, 0, 0, 0, 0xe9, 0x00, 0x01, 0, 0}                      // jne; jmp
	for name, test := range map[string]struct {
		code  [][]byte
		pc    uint64
		ra    uint64
		whole bool
	}{
		"stubs":                          {[][]byte{stub, exit, stub, stub, exit}, returned, behind(true), true},
		"the last stub":                  {append(slices.Repeat([][]byte{exit, stub}, 80), stub), 80*16 + returned, behind(true), true},
		"the last one, ways that differ": {append(slices.Repeat([][]byte{other, exit, exit[:0], stub}, 64), stub), 64*20 + returned, behind(true), false},
		"the last one, behind functions": {append(slices.Repeat([][]byte{exit, stub, function}, 64), stub), 64*20 + returned, behind(true), false},
		"interrupted":                    {[][]byte{stub, exit, stub, stub, exit}, 3, behind(true), true},
		"branches":                       {[][]byte{stub, branch, exit, branch, exit}, returned, behind(true), true},
		"called by name":                 {[][]byte{stub, exit, stub, stub, exit}, returned, behind(false), false},
		"called by code":                 {[][]byte{stub, exit, stub, stub, exit}, returned, code + returned, false},
		"one way out":                    {[][]byte{stub, exit}, returned, behind(true), false},
		"ways that differ":               {[][]byte{stub, exit, other}, returned, behind(true), false},
		"a function":                     {[][]byte{stub, exit, function, exit}, returned, behind(true), false},
		"a function that links":          {[][]byte{stub, framed, exit, exit}, returned, behind(true), false},
		"known ways":                     {[][]byte{branch, exit, exit}, 0, behind(true), false},
		"no frame":                       {[][]byte{stub, leaf, leaf}, returned, behind(true), false},
		"stubs that are jumped to":       {[][]byte{on, leaf, function, stub, exit, stub, stub, exit}, returned, behind(true), true},
		"by way of a push":               {[][]byte{pushes, leaf, function, stub, exit, stub, stub, exit}, returned, behind(true), false},
	} {
		made := slices.Concat(test.code...)
		made = append(made, make([]byte, 0x1000-len(made))...)
		for i := len(slices.Concat(test.code...)); i < len(made); i++ {
			made[i] = mcode.BreakpointAMD64
		}
		stack := make([]byte, 0x200)
		put := func(at, v uint64) { binary.LittleEndian.PutUint64(stack[at-base:], v) }
		put(sp, test.ra)
		put(sp+8, test.ra)
		put(sp+16, test.ra)
		put(sp+24, test.ra)
		regs := new(procstate.Regs)
		regs.Set(procstate.AMD64.PC, code+test.pc)
		regs.Set(procstate.AMD64.SP, sp)
		if test.pc > 3 {
			const callee = 0xf00 // which has no frame
			made[callee] = 0xc3
			put(sp-8, code+test.pc)
			regs.Set(procstate.AMD64.PC, code+callee)
			regs.Set(procstate.AMD64.SP, sp-8)
		}
		s := procstate.NewSnapshot(procstate.AMD64, 1, "", &space)
		s.Reset(1, regs, []procstate.Region{{Addr: base, Data: stack}, {Addr: code, Data: made}})
		frames, err := unwind.NewWalker(s, unwind.NewGroup(NewFrameFunc(nil)), nil).WalkStack(nil, procstate.DefaultThread)
		if test.pc > 3 && len(frames) > 0 {
			frames = frames[1:]
		}
		if whole := len(frames) > 1 && frames[1].PC() == test.ra && frames[1].SP() == sp+32; whole != test.whole || !whole && (len(frames) != 1 || !errors.Is(err, unwind.NoUnwindInfo)) {
			t.Errorf("%s: %d frames, %v: %+v", name, len(frames), err, frames)
		} else if whole && frames[1].Flags&unwind.Heuristic == 0 {
			t.Errorf("%s: not marked", name)
		}
	}
}
