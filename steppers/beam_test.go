package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// beamMemory is a process with the runtime's own code, and a module that was loaded twice.
type beamMemory struct {
	b  []byte
	vm *beamVM
	w  *unwind.Walker
}

// Where it has what.
const (
	beamTestBase      = 0x7f0000000000
	beamTestEntries   = 0x100
	beamTestTold      = 0x400
	beamTestScheduler = 0x1000
	beamTestProcess   = 0x1400
	beamTestStack     = 0x1800 // the process's
	beamTestShared    = 0x2000
	beamTestModule    = 0x2400
	beamTestSize      = 0x13000
)

// Code, as BeamAsm makes it.
const (
	beamTestMain = "\x48\x81\xec\x10\x41\x00\x00" + // sub $0x4110,%rsp
		"\x48\x83\xe4\xc0\x48\x89\x27" + // and $-64,%rsp; mov %rsp,(%rdi)
		"\x48\x8d\x9c\x24\x80\x00\x00\x00\xf4" // lea 0x80(%rsp),%rbx; hlt
	beamTestCollect = "\x48\x8d\x63\x80\xff\xd0\x49\x8b\x65\x58\xc3" // lea -0x80(%rbx),%rsp; call *%rax; mov 0x58(%r13),%rsp; ret

	// sub $16,%rsp; mov %rsp,%rbp; lea -0x80(%rbx),%rsp; call *%rax; mov %rbp,%rsp; call *(%rax,%r12,8);
	// add $16,%rsp; ret
	beamTestCode = "\x48\x83\xec\x10\x48\x89\xe5\x48\x8d\x63\x80\xff\xd0\x48\x89\xec\x42\xff\x14\xe0\x48\x83\xc4\x10\xc3"
)

type beamTestRange struct {
	name string
	code string
	line uint32
}

func newBeamMemory() *beamMemory {
	m := &beamMemory{b: make([]byte, beamTestSize)}
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: beamTestBase, Data: m.b}})
	m.w = unwind.NewWalker(snap, unwind.NewGroup(), nil)
	rt := &beamRuntime{descriptor: beamTestBase, schedulers: beamTestBase + 0x40, count: beamTestBase + 0x48}
	rt.paths.known = map[uint64]bool{}
	m.vm = &beamVM{beamRuntime: rt, vmMemory: vmMemory{mem: snap, captured: snap}, asked: framesAsked{}, returns: map[uint64]beamPlace{}}
	m.vm.now = m.vm.readNow
	m.put(0x10, beamTestBase+beamTestEntries)
	told := m.module(0, beamTestTold, beamTestModule, "m", beamTestRange{"m:new/1" + beamHead, "\xf4", 0}, beamTestRange{"m:new/1", beamTestCode, 7})
	told = m.module(1, told, beamTestModule, "m", beamTestRange{"m:old/2", "\xf4" + beamTestCode, 3})
	calls := beamTestShared + len(beamTestMain) + len(beamTestCollect)
	call := binary.LittleEndian.AppendUint32([]byte("\xff\x15"), uint32(0x40-calls-6)) // call *n(%rip), of what is in no module
	told = m.module(2, told, beamTestShared, "global", beamTestRange{beamProcessMain, beamTestMain, 0}, beamTestRange{"global::garbage_collect", beamTestCollect, 0},
		beamTestRange{"global::length", string(call) + "\x48\x89\xec\xc3", 0}) // mov %rbp,%rsp; ret
	m.put(beamTestEntries+3*0x20+0x10, uint64(beamTestBase+told)) // the last entry: where the first function returns to
	m.put(beamTestEntries+3*0x20+0x18, beamInfoBytes)
	m.put(told+16, 0x1234)
	m.put(0x40, beamTestBase+beamTestScheduler)
	m.put(0x48, 1)
	m.put(beamTestScheduler, beamTestBase+0x8000)
	m.put(beamTestScheduler+0x50, beamTestBase+beamTestProcess)
	m.put(beamTestProcess+0x200, beamTestBase+beamTestScheduler)
	m.put(beamTestProcess+0x50, beamTestBase+beamTestStack-0x80)
	m.put(beamTestProcess+0x58, beamTestBase+beamTestStack)
	m.put(beamTestProcess+0x80, beamTestBase+beamTestStack-0x100)
	m.put(beamTestProcess+0x88, beamTestBase+beamTestStack+0x100)
	m.put(beamTestProcess+0x98, 0x200/8)
	m.put(beamTestStack, 0xf)
	m.put(beamTestStack+8, 0x3b)
	m.put(beamTestStack+16, beamTestBase+beamTestModule+24)
	return m
}

func (m *beamMemory) put(at int, v uint64) { binary.LittleEndian.PutUint64(m.b[at:], v) }

// module puts an entry of the list and what is told of a module, whose ranges follow each other, each with
// a line. It returns where there is room behind.
func (m *beamMemory) module(entry, told, code int, name string, ranges ...beamTestRange) (next int) {
	le := binary.LittleEndian
	at := beamTestEntries + 0x20*entry
	m.put(at, beamTestBase+uint64(at)+0x20)
	m.put(at+0x10, beamTestBase+uint64(told))
	b := le.AppendUint64(nil, 1)
	b = le.AppendUint64(b, beamTestBase+uint64(code))
	b = le.AppendUint32(b, uint32(len(ranges)))
	size := len(b)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint16(b, uint16(len(name)+1))
	b = append(append(b, name...), make([]byte, 1+beamInfoBytes-beamRangeBytes-10)...)
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
	m := newBeamMemory()
	if !m.vm.update(m.vm.readNow) {
		t.Fatalf("%d modules, process_main %#x bytes, %#x", len(m.vm.code.modules), m.vm.frame, m.vm.registers)
	}
	if m.vm.code.exit != 0x1234 || m.vm.frame != 0x4110 || m.vm.registers != 0x80 || m.vm.stop != 0x58 {
		t.Errorf("%+v", m.vm.beamRuntime)
	}
	const start = beamTestBase + beamTestModule + 1
	_, r := m.vm.rangeAt(start + 4)
	if r == nil || r.name != "m:new/1" || r.isHead {
		t.Fatalf("%+v", r)
	}
	if file, line := r.lineAt(start + 4); file != "m.erl" || line != 7 {
		t.Errorf("line %d of %s", line, file)
	}
	sp := func(n int32) beamReturn { return beamReturn{at: beamValue{base: beamOfSP, off: n}, ok: true} }
	guess := func(base beamBase) beamReturn {
		return beamReturn{at: beamValue{base: base}, ok: true, guesses: []beamValue{{base: base, off: 16}}}
	}
	for _, c := range []struct {
		at   uint64
		want beamReturn
	}{{20, sp(16)}, {24, sp(0)}, {16, guess(beamOfSP)}, {4, guess(beamOfSP)}, {13, guess(beamOfFP)}} {
		got := m.vm.paths.returnAddress(start + c.at)
		if got.at != c.want.at || got.ok != c.want.ok || len(got.guesses) != len(c.want.guesses) || len(got.guesses) > 0 && got.guesses[0] != c.want.guesses[0] {
			t.Errorf("at %d: %+v, want %+v", c.at, got, c.want)
		}
	}
	if got := m.vm.paths.returnAddress(beamTestBase + beamTestShared + uint64(len(beamTestMain)) + 6); got.at != (beamValue{base: beamOfProcess, word: 0x58}) || !got.ok {
		t.Errorf("on the other stack: %+v", got)
	}
	shared := uint64(beamTestBase + beamTestShared + len(beamTestMain) + len(beamTestCollect))
	if got := m.vm.paths.returnAddress(shared); got.at != (beamValue{base: beamOfFP}) || !got.ok || len(got.guesses) > 0 {
		t.Errorf("before a function of C is called: %+v", got)
	}
	if at, ok := m.vm.scan(beamTestBase + beamTestStack); !ok || at != beamTestBase+beamTestStack+16 {
		t.Errorf("a return address at %#x", at)
	}
	m.vm.findSchedulers(m.vm.readNow)
	if s := m.vm.byStack[beamTestBase+0x8000]; s != beamTestBase+beamTestScheduler || !m.vm.knowsFields(m.vm.readNow, s) || m.vm.current != 0x50 || m.vm.end != 0x88 {
		t.Errorf("a scheduler at %#x, which runs %#x, the stack ends %#x", s, m.vm.current, m.vm.end)
	}
	// With frame pointers the return address is above the one of the frame that a guess is of.
	m.vm.code.hasFramePointers = true
	in := unwind.NewFrame(procstate.AMD64, start+4, beamTestBase+beamTestStack, beamTestBase+beamTestStack)
	in.Flags = unwind.Top | unwind.Interrupted
	module, _ := m.vm.rangeAt(in.PC())
	if at, err := m.vm.follow(m.w, &in, module); at != beamTestBase+beamTestStack+24 || err != nil {
		t.Errorf("the return address of a frame at %#x, %v", at, err)
	}
	in.Regs.Set(beamProcess, beamTestBase+beamTestProcess)
	in.Regs.Set(beamRegisters, beamTestBase+0x8080)
	const last = beamTestBase + beamTestStack + 0x100 - 8
	if !m.vm.isLast(&in, last) || m.vm.isLast(&in, last-8) {
		t.Error("the last word of the stack is not known")
	}
}

func FuzzBeam(f *testing.F) {
	f.Add(newBeamMemory().b, uint16(4), true)
	f.Fuzz(func(t *testing.T, memory []byte, at uint16, interrupted bool) {
		m := newBeamMemory()
		clear(m.b[copy(m.b, memory):])
		if !m.vm.update(m.vm.readNow) {
			return
		}
		pc := beamTestBase + beamTestModule + uint64(at)%0x100
		in := unwind.NewFrame(procstate.AMD64, pc, beamTestBase+beamTestStack, beamTestBase+beamTestStack)
		in.Regs.Set(beamRegisters, beamTestBase+0x8080)
		in.Regs.Set(beamProcess, beamTestBase+beamTestProcess)
		if interrupted {
			in.Flags = unwind.Top | unwind.Interrupted
		}
		if module, r := m.vm.rangeAt(pc); r != nil {
			m.vm.codeOf(m.w, &in, r)
			if ra, err := m.vm.follow(m.w, &in, module); err == nil && ra%8 != 0 {
				t.Errorf("a return address at %#x", ra)
			}
		}
		var out unwind.Frame
		_, _ = m.vm.scheduler(m.w, &in, &out)
		total := 0
		m.vm.collect(m.w.ProcessState(), 1, &in.Regs, func(_ uint64, n int) { total += n })
		if total > maxBeamStack+beamProcessHead+beamStackBytes+8 {
			t.Errorf("%d bytes are collected", total)
		}
	})
}

// Of what a process tells of its code there is no end: what is read of it, and looked at, has bounds, and is
// looked at once.
func TestBeamBounds(t *testing.T) {
	const told, code, next = 0x1000_0000, 1 << 56, 32
	head := make([]byte, beamInfoBytes+8)
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
	read := reader(func(addr uint64, b []byte) bool {
		reads++
		bytes += len(b)
		clear(b)
		switch le := binary.LittleEndian; {
		case addr >= code:
			for i := range b {
				b[i] = 0x90
			}
		case addr >= told:
			at := (addr - told) / maxBeamTold
			le.PutUint64(head[8:], code+at<<32)
			copy(b, head)
			copy(b[min(len(b), beamInfoBytes+7):], ranges)
		case len(b) == 8:
			le.PutUint64(b, next)
		default:
			le.PutUint64(b, addr+next)
			le.PutUint64(b[16:], told+addr/next*maxBeamTold)
			le.PutUint64(b[24:], maxBeamTold)
		}
		return true
	})
	rt := &beamRuntime{}
	rt.paths.known = map[uint64]bool{}
	for range 3 {
		if rt.update(read) {
			t.Error("it is all known")
		}
		for _, m := range rt.code.modules {
			rt.code.at(read, m.start)
		}
	}
	if n := len(rt.code.modules); n != maxBeamModules {
		t.Errorf("%d modules", n)
	}
	if rt.code.kept > maxBeamMost+2*maxBeamTold || bytes > 3*maxBeamMost || reads > 5*maxBeamModules {
		t.Errorf("%d bytes are kept, %d reads of %d bytes", rt.code.kept, reads, bytes)
	}
}

// Where each word looks like a scheduler's there are no more than some, and which one is near is found by order.
func TestBeamSchedulers(t *testing.T) {
	const first, count = 0x1000_0000, 0x48
	rt := &beamRuntime{schedulers: 0x40, count: count}
	read := reader(func(addr uint64, b []byte) bool {
		le := binary.LittleEndian
		switch {
		case addr == count:
			le.PutUint32(b, 1<<31)
		case len(b) == 8:
			le.PutUint64(b, first)
		default:
			for i := 0; i < len(b); i += 8 {
				le.PutUint64(b[i:], (1<<40)-(addr+uint64(i))*beamAlign)
			}
		}
		return true
	})
	rt.findSchedulers(read)
	if len(rt.byStack) != maxBeamStacks || len(rt.stacks) != maxBeamStacks {
		t.Fatalf("%d schedulers, %d in order", len(rt.byStack), len(rt.stacks))
	}
	var regs procstate.Regs
	for _, c := range []struct{ sp, want uint64 }{
		{rt.stacks[1], rt.stacks[1]}, {rt.stacks[1] + 1, rt.stacks[2]}, {rt.stacks[0] - 1, rt.stacks[0]},
		{rt.stacks[0] - 1<<20, 0}, {rt.stacks[maxBeamStacks-1] + 8, 0},
	} {
		regs.Set(beamSP, c.sp)
		if got := rt.stackOf(&regs); got != c.want {
			t.Errorf("%#x: %#x, want %#x", c.sp, got, c.want)
		}
	}
}

// What is known of a file that is not kept goes, and nothing else does.
func TestForgetBeamImages(t *testing.T) {
	var s Beam
	gone, stays := &procstate.Image{Index: 3}, &procstate.Image{Index: 5}
	s.images.put(gone, &beamImage{})
	s.images.put(stays, &beamImage{})
	s.ForgetImages(func(index uint32) bool { return index == stays.Index })
	if s.images.get(gone) != nil || s.images.get(stays) == nil {
		t.Error("the wrong file was forgotten")
	}
	(&Beam{}).ForgetImages(func(uint32) bool { return false }) // and nothing is known
}
