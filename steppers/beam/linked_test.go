package beam

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// words is code of AArch64.
func words(w ...uint32) string {
	var b []byte
	for _, w := range w {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return string(b)
}

// branch is b, or bl, over so many bytes.
func branch(op uint32, distance int) uint32 { return op | uint32(distance/4)&(1<<26-1) }

const (
	opB  = 0x14000000
	opBL = 0x94000000
)

// Code of AArch64, as BeamAsm of OTP 27 makes it.
var (
	linkedMain = words(
		0xa9bf7bfd, 0x910003e8, // stp x29, x30, [sp, #-16]!; mov x8, sp
		0xd1020108, 0xd1401108, // sub x8, x8, #0x80; sub x8, x8, #0x4000
		0x927ae508, 0x9100011f, 0x910003fd, 0xf9000008, // and x8, x8, #-64; mov sp, x8; mov x29, sp; str x8, [x0]
		0x910003f3, 0xd4200000) // mov x19, sp; brk
	linkedCollect = words(
		0xa9bf7bfd, 0x910003fd, 0xa90552b7, // stp x29, x30, [sp, #-16]!; mov x29, sp; stp x23, x20, [x21, #80]
		0xd63f0100, 0xa94552b7, // blr x8; ldp x23, x20, [x21, #80]
		0x910003bf, 0xa8c17bfd, 0xd65f03c0) // mov sp, x29; ldp x29, x30, [sp], #16; ret
	linkedReturn  = words(0xaa1e03e2, 0xf90066bf) // mov x2, x30; str xzr, [x21, #200]
	linkedReceive = words(
		0xaa1e03fa, 0xd63f0100, 0xb4000040, 0xd65f0340, // mov x26, x30; blr x8; cbz x0, 8; ret x26
		branch(opB, -4*(10+8+2+4))) // b process_main, to give way
)

// newLinkedMemory is a process whose module has one function, entered some bytes before it:
//
//	bl i_func_info_shared           // and what the function is called
//	str x30, [x20, #-8]!; b 8; bl 0 // where it is entered, and what tracing jumps to: other releases have more of that
//	sub x20, x20, #16; str x25, [x20]; bl the way to garbage_collect
//	ldr x0, n; ldr x8, [x0, x24, lsl #3]; blr x8
//	add x20, x20, #16; ldr x30, [x20], #8; subs w22, w22, #1; b.mi the way to dispatch_return; ret
//	ldr x14, [x0, x24, lsl #3]; br x14
//
// and the ways to what is far: mov x14, #n; movk x14, #n, lsl #16; movk x14, #n, lsl #32; br x14.
func newLinkedMemory(more ...uint32) *memory {
	m := newMemory()
	m.vm.arch = arm64
	snap := procstate.NewSnapshot(procstate.ARM64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: m.b}})
	m.w = unwind.NewWalker(snap, unwind.NewGroup(), nil)
	m.vm.Mem, m.vm.Captured = snap, snap
	collect, dispatch := testShared+len(linkedMain), testShared+len(linkedMain)+len(linkedCollect)
	way := func(to int) string {
		const mov, movk = 0xd280000e, 0xf2a0000e
		at := uint64(testBase + to)
		half := func(i int) uint32 { return uint32(at>>(16*i)) & 0xffff << 5 }
		return words(mov|half(0), movk|half(1), movk+1<<21|half(2), 0xd61f01c0)
	}
	const body = 14 * 4
	code := words(
		0xd1004294, 0xf9000299, branch(opBL, body-8),
		0x58000060, 0xf8787808, 0xd63f0100,
		0x91004294, 0xf840869e, 0x710006d6, 0x54000004|uint32(body+16-9*4)/4<<5, 0xd65f03c0,
		0xf878780e, 0xd61f01c0, 0xd503201f)
	info := words(branch(opBL, 0), 0, 0, 0, 0xf81f8e9e, branch(opB, 8+4*len(more))) + words(append(more, branch(opBL, 0))...)
	told := m.module(0, testTold, testModule, "m", testRange{"m:f/1" + "-CodeInfoPrologue", info, 0}, testRange{"m:f/1", code, 7},
		testRange{"m:" + footer, way(collect) + way(dispatch), 0})
	told = m.module(1, told, testShared, "global", testRange{processMain, linkedMain, 0}, testRange{"global::garbage_collect", linkedCollect, 0},
		testRange{dispatchReturn, linkedReturn, 0}, testRange{"global::i_loop_rec_shared", linkedReceive, 0})
	m.put(testEntries+0x20+8, 0)
	m.put(testEntries+2*0x20, testBase+testEntries+3*0x20)
	m.put(testEntries+2*0x20+0x10, testBase+uint64(told)+0x100) // nothing
	m.put(testEntries+3*0x20, 0)
	m.put(testEntries+3*0x20+0x10, testBase+uint64(told)) // where the first function returns to
	m.put(told, 0)
	m.put(told+8, 0)
	m.put(told+16, 0x1234)
	return m
}

// On AArch64 the return address is in the link register where a function is entered or left, in that where code of the
// runtime's own keeps it, on the stack of C where that has a frame, and else on the process's stack.
func TestBeamLinked(t *testing.T) {
	for name, more := range map[string][]uint32{"27": nil, "25": {0xd2800000}} { // mov x0, #0
		t.Run(name, func(t *testing.T) { testBeamLinked(t, more...) })
	}
}

func testBeamLinked(t *testing.T, more ...uint32) {
	m := newLinkedMemory(more...)
	if !m.vm.update(m.vm.ReadNow) {
		t.Fatalf("%d modules, process_main %#x bytes, %#x", len(m.vm.code.modules), m.vm.frame, m.vm.registers)
	}
	if m.vm.frame != 0x4080 || m.vm.registers != 0 || m.vm.stop != 0x58 {
		t.Errorf("process_main takes %#x, registers %#x behind, the stack pointer at %#x", m.vm.frame, m.vm.registers, m.vm.stop)
	}
	const entry = testModule + 4*4
	start := testModule + 4*(7+len(more))
	ways := start + 14*4
	collect := testShared + len(linkedMain)
	dispatch := collect + len(linkedCollect)
	receive := dispatch + len(linkedReturn)
	stack := func(off int32) end { return end{at: value{base: ofSP, off: off}} }
	link := end{value{base: ofLink}, value{base: ofSP}}
	inC := func(base relation, off int32, sp value) end { return end{value{base: base, off: off}, sp} }
	for _, c := range []struct {
		name string
		at   int
		want end
	}{
		{"where it raises for its arguments", testModule, stack(0)},
		{"at its entry", entry, link},
		{"behind that", entry + 4, stack(0)},
		{"before its frame", start, stack(0)},
		{"in its frame", start + 4, stack(16)},
		{"behind a collection", start + 12, stack(16)},
		{"before it gives up its frame", start + 6*4, stack(16)},
		{"before it takes the return address", start + 7*4, stack(0)},
		{"behind that", start + 8*4, link},
		{"where it gives way", start + 9*4, link},
		{"at its return", start + 10*4, link},
		{"on a way to what returns", ways + 8, link},
		{"on a way out", ways + 16 + 4, link},
		{"at the entry of what has a frame in C", collect, link},
		{"there", collect + 4, inC(ofNative, 8, value{base: ofSP})},
		{"in C", collect + 4*4, inC(ofFP, 8, value{base: ofProcess, word: 0x58})},
		{"and back", collect + 5*4, inC(ofFP, 8, value{base: ofSP})},
		{"at its return", collect + 7*4, link},
		{"where it goes to another process", dispatch + 4, link},
		{"at the entry of what keeps it", receive, link},
		{"there", receive + 8, end{value{base: ofKept}, value{base: ofSP}}},
		{"where that gives way", receive + 16, end{value{base: ofKept}, value{base: ofSP}}},
	} {
		if got := m.vm.paths.returnAddress(testBase + uint64(c.at)); !got.ok || got.end != c.want || len(got.guesses) > 0 {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// A frame of AArch64 leads to its caller by any of these, and has the process's stack pointer in its register.
func TestBeamLinkedFrames(t *testing.T) {
	m := newLinkedMemory()
	if !m.vm.update(m.vm.ReadNow) {
		t.Fatal("not all is known")
	}
	const start, sp, native = testBase + testModule + 7*4, testBase + testStack, testBase + 0x8000
	collect := testBase + testShared + uint64(len(linkedMain))
	m.put(testProcess+0x58, sp+0x20)
	m.put(0x8008, 0x5678)
	for _, c := range []struct {
		pc   uint64
		want back
	}{
		{start + 4, back{at: sp + 16, sp: sp + 24}},
		{start + 10*4, back{sp: sp, reg: 30, isInRegister: true}},
		{collect + 4*4, back{at: native + 8, sp: sp + 0x20}},
	} {
		in := unwind.NewFrame(procstate.ARM64, c.pc, native, native)
		in.Regs.Set(linkedStack, sp)
		in.Regs.Set(arm64.process, testBase+testProcess)
		in.Flags = unwind.Top | unwind.Interrupted
		module, _ := m.vm.rangeAt(c.pc)
		if b, err := m.vm.follow(m.w, &in, module); b != c.want || err != nil {
			t.Errorf("%#x: %+v, %v, want %+v", c.pc, b, err, c.want)
		}
	}
}
