package beam

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// memory is a process with the runtime's own code, and a module that was loaded twice.
type memory struct {
	b  []byte
	vm *machine
	w  *unwind.Walker
}

// Where it has what.
const (
	testBase      = 0x7f0000000000
	testEntries   = 0x100
	testTold      = 0x400
	testScheduler = 0x1000
	testProcess   = 0x1400
	testStack     = 0x1800 // the process's
	testShared    = 0x2000
	testModule    = 0x2400
	testSize      = 0x13000
)

// Code, as BeamAsm makes it.
const (
	testMain = "\x48\x81\xec\x10\x41\x00\x00" + // sub $0x4110,%rsp
		"\x48\x83\xe4\xc0\x48\x89\x27" + // and $-64,%rsp; mov %rsp,(%rdi)
		"\x48\x8d\x9c\x24\x80\x00\x00\x00\xf4" // lea 0x80(%rsp),%rbx; hlt
	testCollect = "\x48\x8d\x63\x80\xff\xd0\x49\x8b\x65\x58\xc3" // lea -0x80(%rbx),%rsp; call *%rax; mov 0x58(%r13),%rsp; ret

	// sub $16,%rsp; mov %rsp,%rbp; lea -0x80(%rbx),%rsp; call *%rax; mov %rbp,%rsp; call *(%rax,%r12,8);
	// add $16,%rsp; ret
	testCode = "\x48\x83\xec\x10\x48\x89\xe5\x48\x8d\x63\x80\xff\xd0\x48\x89\xec\x42\xff\x14\xe0\x48\x83\xc4\x10\xc3"
)

type testRange struct {
	name string
	code string
	line uint32
}

func newMemory() *memory {
	m := &memory{b: make([]byte, testSize)}
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: m.b}})
	m.w = unwind.NewWalker(snap, unwind.NewGroup(), nil)
	rt := &runtime{arch: amd64, descriptor: testBase, schedulers: testBase + 0x40, count: testBase + 0x48, main: mcode.Range{Start: 1, End: 2}}
	rt.paths.known = map[uint64]bool{}
	m.vm = &machine{runtime: rt, Memory: vmread.Memory{Mem: snap, Captured: snap}, asked: vmread.FramesAsked{}, returns: map[uint64]place{}}
	m.vm.now = m.vm.ReadNow
	m.put(0x10, testBase+testEntries)
	told := m.module(0, testTold, testModule, "m", testRange{"m:new/1" + head, "\xf4", 0}, testRange{"m:new/1", testCode, 7})
	told = m.module(1, told, testModule, "m", testRange{"m:old/2", "\xf4" + testCode, 3})
	calls := testShared + len(testMain) + len(testCollect)
	call := binary.LittleEndian.AppendUint32([]byte("\xff\x15"), uint32(0x40-calls-6)) // call *n(%rip), of what is in no module
	told = m.module(2, told, testShared, "global", testRange{processMain, testMain, 0}, testRange{"global::garbage_collect", testCollect, 0},
		testRange{"global::length", string(call) + "\x48\x89\xec\xc3", 0}) // mov %rbp,%rsp; ret
	m.put(testEntries+3*0x20+0x10, uint64(testBase+told)) // the last entry: where the first function returns to
	m.put(testEntries+3*0x20+0x18, infoBytes)
	m.put(told+16, 0x1234)
	m.put(0x40, testBase+testScheduler)
	m.put(0x48, 1)
	m.put(testScheduler, testBase+0x8000)
	m.put(testScheduler+0x50, testBase+testProcess)
	m.put(testProcess+0x200, testBase+testScheduler)
	m.put(testProcess+0x50, testBase+testStack-0x80)
	m.put(testProcess+0x58, testBase+testStack)
	m.put(testProcess+0x80, testBase+testStack-0x100)
	m.put(testProcess+0x88, testBase+testStack+0x100)
	m.put(testProcess+0x98, 0x200/8)
	m.put(testStack, 0xf)
	m.put(testStack+8, 0x3b)
	m.put(testStack+16, testBase+testModule+24)
	return m
}

func (m *memory) put(at int, v uint64) { binary.LittleEndian.PutUint64(m.b[at:], v) }

// module puts an entry of the list and what is told of a module, whose ranges follow each other, each with
// a line. It returns where there is room behind.
func (m *memory) module(entry, told, code int, name string, ranges ...testRange) (next int) {
	le := binary.LittleEndian
	at := testEntries + 0x20*entry
	m.put(at, testBase+uint64(at)+0x20)
	m.put(at+0x10, testBase+uint64(told))
	b := le.AppendUint64(nil, 1)
	b = le.AppendUint64(b, testBase+uint64(code))
	b = le.AppendUint32(b, uint32(len(ranges)))
	size := len(b)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint16(b, uint16(len(name)+1))
	b = append(append(b, name...), make([]byte, 1+infoBytes-rangeBytes-10)...)
	start := 0
	for _, r := range ranges {
		copy(m.b[code+start:], r.code)
		b = le.AppendUint32(b, uint32(start))
		start += len(r.code)
		b = le.AppendUint32(b, uint32(start))
		b = le.AppendUint32(b, 1)
		b = le.AppendUint16(b, uint16(len(r.name)+1))
		b = append(append(b, r.name...), 0, 0, 0)
		b = le.AppendUint32(b, uint32(start-len(r.code)))
		b = le.AppendUint32(b, r.line)
		b = le.AppendUint16(b, 6)
		b = append(b, "m.erl\x00\x00\x00"...)
	}
	le.PutUint32(b[size:], uint32(start))
	m.put(at+0x18, uint64(len(b)))
	copy(m.b[told:], b)
	return told + len(b)
}

// What the list tells is found, of code in the same place what is newer, and the return address at each
// instruction, on either stack.
func TestBeam(t *testing.T) {
	m := newMemory()
	if !m.vm.update(m.vm.ReadNow) {
		t.Fatalf("%d modules, process_main %#x bytes, %#x", len(m.vm.code.modules), m.vm.frame, m.vm.registers)
	}
	if m.vm.code.exit != 0x1234 || m.vm.frame != 0x4110 || m.vm.registers != 0x80 || m.vm.stop != 0x58 {
		t.Errorf("%+v", m.vm.runtime)
	}
	const start = testBase + testModule + 1
	_, r := m.vm.rangeAt(start + 4)
	if r == nil || r.name != "m:new/1" || r.isHead {
		t.Fatalf("%+v", r)
	}
	if file, line := r.lineAt(start + 4); file != "m.erl" || line != 7 {
		t.Errorf("line %d of %s", line, file)
	}
	sp := func(n int32) returnPlace { return returnPlace{end: end{at: value{base: ofSP, off: n}}, ok: true} }
	guess := func(base relation) returnPlace {
		return returnPlace{end: end{at: value{base: base}}, ok: true, guesses: []value{{base: base, off: 16}}}
	}
	for _, c := range []struct {
		at   uint64
		want returnPlace
	}{{20, sp(16)}, {24, sp(0)}, {16, sp(16)}, {4, sp(16)}, {13, guess(ofFP)}} {
		got := m.vm.paths.returnAddress(start + c.at)
		if got.at != c.want.at || got.ok != c.want.ok || len(got.guesses) != len(c.want.guesses) || len(got.guesses) > 0 && got.guesses[0] != c.want.guesses[0] {
			t.Errorf("at %d: %+v, want %+v", c.at, got, c.want)
		}
	}
	if got := m.vm.paths.returnAddress(testBase + testShared + uint64(len(testMain)) + 6); got.at != (value{base: ofProcess, word: 0x58}) || !got.ok {
		t.Errorf("on the other stack: %+v", got)
	}
	shared := uint64(testBase + testShared + len(testMain) + len(testCollect))
	if got := m.vm.paths.returnAddress(shared); got.at != (value{base: ofFP}) || !got.ok || len(got.guesses) > 0 {
		t.Errorf("before a function of C is called: %+v", got)
	}
	if at, ok := m.vm.scan(testBase + testStack); !ok || at != testBase+testStack+16 {
		t.Errorf("a return address at %#x", at)
	}
	m.vm.findSchedulers(m.vm.ReadNow)
	if s := m.vm.byStack[testBase+0x8000]; s != testBase+testScheduler || !m.vm.knowsFields(m.vm.ReadNow, s) || m.vm.current != 0x50 || m.vm.end != 0x88 {
		t.Errorf("a scheduler at %#x, which runs %#x, the stack ends %#x", s, m.vm.current, m.vm.end)
	}
	// With frame pointers the return address is above the one of the frame that a guess is of.
	m.vm.code.hasFramePointers = true
	in := unwind.NewFrame(procstate.AMD64, start+4, testBase+testStack, testBase+testStack)
	in.Flags = unwind.Top | unwind.Interrupted
	module, _ := m.vm.rangeAt(in.PC())
	if b, err := m.vm.follow(m.w, &in, module); b.at != testBase+testStack+24 || err != nil {
		t.Errorf("the return address of a frame at %#x, %v", b.at, err)
	}
	in.Regs.Set(amd64.process, testBase+testProcess)
	in.Regs.Set(amd64.registers, testBase+0x8080)
	const last = testBase + testStack + 0x100 - 8
	if !m.vm.isLast(&in, last) || m.vm.isLast(&in, last-8) {
		t.Error("the last word of the stack is not known")
	}
}

// Of a module that was unloaded what is told may be freed, and another told of in its place, of as many bytes: the list
// begins as before.
func TestBeamReloaded(t *testing.T) {
	m := newMemory()
	name := func() string {
		m.vm.update(m.vm.ReadNow)
		if _, r := m.vm.code.at(m.vm.ReadNow, testBase+testModule+5); r != nil {
			return r.name
		}
		return ""
	}
	if n := name(); n != "m:new/1" {
		t.Fatalf("%q", n)
	}
	gone := m.vm.code.gone
	for _, other := range []string{"m:nev/1", "m:new/1"} {
		m.module(0, testTold, testModule, "m", testRange{other + head, "\xf4", 0}, testRange{other, testCode, 9})
		if n := name(); n != other {
			t.Errorf("%q, want %q", n, other)
		}
		if gone++; m.vm.code.gone != gone {
			t.Errorf("%d of %d times", m.vm.code.gone, gone)
		}
	}
	module, _ := m.vm.code.at(m.vm.ReadNow, testBase+testModule+5)
	if !module.replaces || !m.vm.wasThere(module) {
		t.Error("there was no other")
	}
	if name(); m.vm.code.gone != gone {
		t.Error("what is the same is told anew")
	}
}

// What ends an Erlang process is told from other functions: nothing on the process's stack tells where that goes on.
func TestBeamExit(t *testing.T) {
	m := newMemory()
	const start = testBase + testModule + 1
	told := int(binary.LittleEndian.Uint64(m.b[testEntries+3*0x20+0x10:]) - testBase)
	m.put(told+16, start+4)
	if !m.vm.update(m.vm.ReadNow) {
		t.Fatal("not all is known")
	}
	for at, want := range map[uint64]bool{start: true, start + 20: true, start - 1: true, testBase + testShared: false} {
		if _, r := m.vm.rangeAt(at); r == nil || m.vm.isExit(r) != want {
			t.Errorf("at %#x: %+v, which is %v", at, r, !want)
		}
	}
	m.vm.code.exit = 0x1234 // in no module
	if _, r := m.vm.rangeAt(start); m.vm.isExit(r) {
		t.Error("another function ends processes")
	}
}

// What is not exported is found: the list of code, the schedulers, and process_main.
func TestBeamSearch(t *testing.T) {
	const list, array, text = 0x60, 0x98, 0xc00
	// A function of C that calls: call *(%rax); call 0x16 bytes on; hlt. And these: jmp *(%rip); push %rbx; jmp *(%rax).
	const code = "\xff\x10\xe8\x09\x00\x00\x00\xe8\x0a\x00\x00\x00\xf4\x90\x90\x90" + "\xff\x25\x00\x00\x00\x00" + "\x53\xff\x20"
	m := newMemory()
	rt := m.vm.runtime
	rt.descriptor, rt.schedulers, rt.count, rt.main = 0, 0, 0, mcode.Range{}
	rt.data = mcode.Range{Start: testBase, End: testBase + testEntries}
	rt.text = mcode.Range{Start: testBase + text, End: testBase + text + uint64(len(code))}
	copy(m.b[text:], code)
	m.put(list, 1)
	m.put(list+0x10, testBase+testEntries)
	m.put(testEntries+0x20+8, testBase+testEntries)
	m.put(array-8, testBase+testProcess&^0x3f) // of something else
	m.put(array, testBase+testScheduler)
	const stack = 0x8000
	ret := func(at, to int) { m.put(stack+0x4110+8+16*at, testBase+text+uint64(to)) }
	ret(0, 7) // behind a call that goes by the PLT
	ret(2, 12)
	m.put(list, 0)
	if rt.update(m.vm.ReadNow) {
		t.Fatal("there is no list yet")
	}
	m.put(list, 1)
	if rt.update(m.vm.ReadNow) {
		t.Error("it is looked for again at once")
	}
	rt.sought = time.Time{}
	if !rt.update(m.vm.ReadNow) || rt.descriptor != testBase+list {
		t.Fatalf("the list is at %#x", rt.descriptor)
	}
	rt.findSchedulers(m.vm.ReadNow)
	if len(rt.byStack) != 1 || rt.byStack[testBase+stack] != testBase+testScheduler || rt.main.Start != testBase+text+22 {
		t.Errorf("schedulers %#x, process_main %#x", rt.byStack, rt.main)
	}
	rt.byStack, rt.searched = nil, time.Time{}
	ret(1, 12)
	if rt.findSchedulers(m.vm.ReadNow); rt.byStack != nil {
		t.Error("which of two has called is not known")
	}
}

func FuzzBeam(f *testing.F) {
	f.Add(newMemory().b, uint16(4), true, false)
	f.Add(newLinkedMemory().b, uint16(32), true, true)
	f.Fuzz(func(t *testing.T, memory []byte, at uint16, interrupted, linked bool) {
		m := newMemory()
		if linked {
			m = newLinkedMemory()
		}
		clear(m.b[copy(m.b, memory):])
		if !m.vm.update(m.vm.ReadNow) {
			return
		}
		pc := testBase + testModule + uint64(at)%0x100
		in := unwind.NewFrame(m.vm.arch.Arch, pc, testBase+testStack, testBase+testStack)
		in.Regs.Set(m.vm.arch.registers, testBase+0x8000+m.vm.registers)
		in.Regs.Set(m.vm.arch.process, testBase+testProcess)
		in.Regs.Set(m.vm.arch.stack, testBase+testStack)
		if interrupted {
			in.Flags = unwind.Top | unwind.Interrupted
		}
		if module, r := m.vm.rangeAt(pc); r != nil {
			m.vm.codeOf(m.w, &in, r)
			if b, err := m.vm.follow(m.w, &in, module); err == nil && b.at%8 != 0 {
				t.Errorf("a return address at %#x", b.at)
			}
		}
		var out unwind.Frame
		_, _ = m.vm.scheduler(m.w, &in, &out)
		total := 0
		m.vm.collect(m.w.ProcessState(), 1, &in.Regs, func(_ uint64, n int) { total += n })
		if total > maxStack+processHead+stackBytes+8 {
			t.Errorf("%d bytes are collected", total)
		}
	})
}

// Of what a process tells of its code there is no end: what is read of it, and looked at, has bounds, and is
// looked at once.
func TestBeamBounds(t *testing.T) {
	const told, code, next = 0x1000_0000, 1 << 56, 32
	head := make([]byte, infoBytes+8)
	binary.LittleEndian.PutUint32(head, 1)
	binary.LittleEndian.PutUint32(head[16:], 1)
	binary.LittleEndian.PutUint32(head[20:], 1<<31)
	binary.LittleEndian.PutUint16(head[24:], 7)
	copy(head[26:], "global")
	ranges := make([]byte, 64)
	binary.LittleEndian.PutUint32(ranges[4:], 1<<31)
	binary.LittleEndian.PutUint16(ranges[12:], uint16(len("global::garbage_collect")+1))
	copy(ranges[14:], "global::garbage_collect")
	reads, bytes := 0, 0
	// Each entry leads to the next, for ever; each module is one large function of code that does nothing.
	read := vmread.Reader(func(addr uint64, b []byte) bool {
		reads++
		bytes += len(b)
		clear(b)
		switch le := binary.LittleEndian; {
		case addr >= code:
			for i := range b {
				b[i] = 0x90
			}
		case addr >= told:
			at := (addr - told) / maxTold
			le.PutUint64(head[8:], code+at<<32)
			copy(b, head)
			copy(b[min(len(b), infoBytes+7):], ranges)
		case len(b) == 8:
			le.PutUint64(b, next)
		default:
			le.PutUint64(b, addr+next)
			le.PutUint64(b[16:], told+addr/next*maxTold)
			le.PutUint64(b[24:], maxTold)
		}
		return true
	})
	rt := &runtime{arch: amd64, descriptor: 8}
	rt.paths.known = map[uint64]bool{}
	for range 3 {
		if rt.update(read) {
			t.Error("it is all known")
		}
		for _, m := range rt.code.modules {
			rt.code.at(read, m.start)
		}
	}
	if n := len(rt.code.modules); n != maxModules {
		t.Errorf("%d modules", n)
	}
	if rt.code.kept > maxMost+2*maxTold || bytes > 3*maxMost || reads > 5*maxModules {
		t.Errorf("%d bytes are kept, %d reads of %d bytes", rt.code.kept, reads, bytes)
	}
}

// Where each word looks like a scheduler's there are no more than some, and which one is near is found by order.
func TestBeamSchedulers(t *testing.T) {
	const first, count = 0x1000_0000, 0x48
	rt := &runtime{arch: amd64, schedulers: 0x40, count: count, main: mcode.Range{Start: 1, End: 2}}
	read := vmread.Reader(func(addr uint64, b []byte) bool {
		le := binary.LittleEndian
		switch {
		case addr == count:
			le.PutUint32(b, 1<<31)
		case len(b) == 8:
			le.PutUint64(b, first)
		default:
			for i := 0; i < len(b); i += 8 {
				le.PutUint64(b[i:], (1<<40)-(addr+uint64(i))*align)
			}
		}
		return true
	})
	rt.findSchedulers(read)
	if len(rt.byStack) != maxStacks || len(rt.stacks) != maxStacks {
		t.Fatalf("%d schedulers, %d in order", len(rt.byStack), len(rt.stacks))
	}
	var regs procstate.Regs
	for _, c := range []struct{ sp, want uint64 }{
		{rt.stacks[1], rt.stacks[1]}, {rt.stacks[1] + 1, rt.stacks[2]}, {rt.stacks[0] - 1, rt.stacks[0]},
		{rt.stacks[0] - 1<<20, 0}, {rt.stacks[maxStacks-1] + 8, 0},
	} {
		regs.Set(amd64.stack, c.sp)
		if got := rt.stackOf(&regs); got != c.want {
			t.Errorf("%#x: %#x, want %#x", c.sp, got, c.want)
		}
	}
}

// What is known of a file that is not kept goes, and nothing else does.
func TestForgetImages(t *testing.T) {
	var s Stepper
	gone, stays := &procstate.Image{Index: 3}, &procstate.Image{Index: 5}
	s.images.Put(gone, &imageInfo{})
	s.images.Put(stays, &imageInfo{})
	s.ForgetImages(func(index uint32) bool { return index == stays.Index })
	if s.images.Get(gone) != nil || s.images.Get(stays) == nil {
		t.Error("the wrong file was forgotten")
	}
	(&Stepper{}).ForgetImages(func(uint32) bool { return false }) // and nothing is known
}
