package loader

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/internal/testenv"
)

// enterKernel has the kernel work on this process's behalf: system calls of several
// kinds, faults of pages, and packets that are received in interrupts.
func enterKernel(t *testing.T, until <-chan struct{}) {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	packet := make([]byte, 1400)
	for {
		select {
		case <-until:
			return
		default:
		}
		for range 20 {
			if _, err := conn.WriteTo(packet, conn.LocalAddr()); err != nil {
				t.Error(err)
			}
			if _, _, err := conn.ReadFrom(packet); err != nil {
				t.Error(err)
			}
		}
		_, _ = os.ReadFile("/proc/self/status")
		_, _ = os.ReadDir("/proc/self/fd")
	}
}

// What is walked here is what the kernel's unwinder says, on stacks of system calls, faults and
// interrupts.
func TestKernelStacks(t *testing.T) {
	kernelTest(t)
	s := startSession(t, Config{Frequency: 3989, PIDs: []int{os.Getpid()}, Kernel: true})
	k := s.kernel
	if k == nil {
		testenv.Lacks(t, "a kernel with unwind tables that are known")
	}
	s.kernel = nil // it shall go on as it begins
	if k.orc == nil {
		t.Fatal("the kernel's tables are not found")
	}
	k.set(kernelChecked)
	done := make(chan struct{})
	defer close(done)
	go enterKernel(t, done)
	compared, interrupts, frames := 0, 0, 0
	readUntil(t, s, func(p *Sample) bool {
		if p.kernelRegs == nil || len(p.Kernel) == 0 {
			return false
		}
		walked, _ := k.walk(p)
		if !k.isSame(walked, p.Kernel) {
			t.Errorf("walked %x\nthe kernel says %x\nregisters %+v", walked, p.Kernel, *p.kernelRegs)
		}
		compared++
		frames += len(walked)
		if p.irqWords > 0 {
			interrupts++
		}
		return compared >= 500 && interrupts >= 20 || t.Failed()
	})
	t.Logf("%d stacks, %d of them in interrupts, %d frames", compared, interrupts, frames)
}

// A session begins with asking the kernel and then copies; and asks it again when what
// is walked is not what it says.
// Before anything is sampled the tables have been compared, and that leaves nothing.
func TestTryKernelStacks(t *testing.T) {
	kernelTest(t)
	s, err := Open(Config{Frequency: 99, PIDs: []int{1}, Kernel: true, Changes: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.kernel == nil {
		testenv.Lacks(t, "a kernel with unwind tables that are known")
	}
	if s.kernel.state != kernelCopied {
		t.Errorf("after %d that are the same it is in state %d", s.kernel.same, s.kernel.state)
	}
	st, err := s.Stats()
	st.RunTime, st.Runs = 0, 0 // kept while any recording on the machine asks for them
	if err != nil || st != (Stats{}) {
		t.Errorf("counted already: %+v, %v", st, err)
	}
	if flags := s.flags.of(os.Getpid()); flags != 0 {
		t.Errorf("this process has flags %#x", flags)
	}
	if err := s.ReadSamples(monotonic(), func(p *Sample) error { return fmt.Errorf("sample of %d", p.TID) }); err != nil {
		t.Error(err)
	}
}

func TestKernelStacksAreChecked(t *testing.T) {
	kernelTest(t)
	s := startSession(t, Config{Frequency: 3989, PIDs: []int{os.Getpid()}, Kernel: true})
	if s.kernel == nil {
		testenv.Lacks(t, "a kernel with unwind tables that are known")
	}
	done := make(chan struct{})
	defer close(done)
	go enterKernel(t, done)
	copied := 0
	readUntil(t, s, func(p *Sample) bool {
		if p.kernelRegs != nil && s.kernel.state == kernelCopied {
			copied++
		}
		return copied >= 20
	})
	s.kernel.orc = brokenORC{s.kernel.orc}
	s.kernel.set(kernelChecked)
	asked := 0
	readUntil(t, s, func(p *Sample) bool {
		if len(p.Kernel) > 1 && p.kernelRegs == nil {
			asked++
		}
		return asked >= 20
	})
	if s.kernel.state != kernelAsked {
		t.Errorf("state %d with wrong tables", s.kernel.state)
	}
}

// Where the tables are not found the kernel is asked, throughout.
func TestKernelStacksWithoutTables(t *testing.T) {
	kernelTest(t)
	defer func(names []string) { orcReaders = names }(orcReaders)
	orcReaders = []string{"no such function"}
	s := startSession(t, Config{Frequency: 3989, PIDs: []int{os.Getpid()}, Kernel: true})
	if s.kernel == nil {
		testenv.Lacks(t, "a kernel with unwind tables that are known")
	}
	done := make(chan struct{})
	defer close(done)
	go enterKernel(t, done)
	asked := 0
	readUntil(t, s, func(p *Sample) bool {
		if p.kernelRegs != nil {
			t.Fatal("a kernel stack was copied")
		}
		if len(p.Kernel) > 1 {
			asked++
		}
		return asked >= 50
	})
	if s.kernel.state != kernelAsked {
		t.Errorf("state %d without tables", s.kernel.state)
	}
}

// brokenORC has another rule for system calls.
type brokenORC struct{ orcRules }

func (b brokenORC) rule(pc uint64) (orcRule, bool) {
	r, ok := b.orcRules.rule(pc)
	r.spOffset += 8
	return r, ok
}

// testORC is a table of a made-up kernel.
type testORC map[uint64]orcRule

func (o testORC) rule(pc uint64) (orcRule, bool) { r, ok := o[pc&^0xff]; return r, ok }

func (o testORC) forget() {}

func (o testORC) isGenerated(pc uint64) bool { return pc>>28 == 0xfffffffff }

func (o testORC) isText(pc uint64) bool { return pc>>32 == 0xffffffff }

const testText = 0xffffffff81000000

// The kernel may leave out frames of code made at run time, and no other.
func TestSameKernelStack(t *testing.T) {
	k := &kernelStacks{orc: testORC{}}
	const a, b, c, made = testText, testText + 1, testText + 2, 0xfffffffff0000001
	for _, s := range []struct {
		walked, asked []uint64
		want          bool
	}{
		{[]uint64{a, b, c}, []uint64{a, b, c}, true},
		{[]uint64{a, made, made + 1, c}, []uint64{a, c}, true},
		{[]uint64{a, made, c}, []uint64{a, made, c}, true},
		{[]uint64{a, b, c}, []uint64{a, c}, false},
		{[]uint64{a, c}, []uint64{a, b, c}, false},
		{[]uint64{a, b}, []uint64{a, b, c}, false},
		{[]uint64{a, b, c}, []uint64{a, b}, false},
		{[]uint64{a, c}, []uint64{a, made, c}, false},
	} {
		if got := k.isSame(s.walked, s.asked); got != s.want {
			t.Errorf("%x and %x: %v", s.walked, s.asked, got)
		}
	}
}

// Each way to find a frame, on a made-up stack.
func TestWalkKernelStack(t *testing.T) {
	const sp = 0xffffc90000001000
	code := func(i uint64) uint64 { return testText + i<<8 + 0x10 }
	call := func(reg uint8, offset int16) orcRule { return orcRule{typ: orcTypeCall, spReg: reg, spOffset: offset} }
	saved := call(orcSP, 16)
	saved.bpReg, saved.bpOffset = orcPrevSP, -16
	for _, c := range []struct {
		name  string
		rules []orcRule // of the functions, leaf first; the last is where the kernel was entered
		regs  gen.SamplerKernelRegs
		stack []uint64
		irq   int
		want  []uint64
	}{
		{"SP", []orcRule{call(orcSP, 16), {typ: orcTypeRegs, spReg: orcSP}}, gen.SamplerKernelRegs{},
			[]uint64{0, code(1)}, 0, []uint64{code(0), code(1)}},
		{"saved BP", []orcRule{saved, call(orcBP, 16), {typ: orcTypeRegs, spReg: orcSP}}, gen.SamplerKernelRegs{},
			[]uint64{sp + 24, code(1), 0, 0, code(2)}, 0, []uint64{code(0), code(1), code(2)}},
		{"R10", []orcRule{call(orcR10, 0), {typ: orcTypeRegs, spReg: orcSP}}, gen.SamplerKernelRegs{R10: sp + 16},
			[]uint64{0, code(1)}, 0, []uint64{code(0), code(1)}},
		{"no registers behind a call", []orcRule{call(orcSP, 8), call(orcR10, 0)}, gen.SamplerKernelRegs{R10: sp + 16},
			[]uint64{code(1), code(2)}, 0, []uint64{code(0), code(1)}},
		{"interrupts' stack", []orcRule{call(orcSP, 8), {typ: orcTypeCall, spReg: orcSPIndirect, spOffset: 8}, {typ: orcTypeRegs, spReg: orcSP}},
			gen.SamplerKernelRegs{}, []uint64{code(1), 0xffffc90000009000, code(2)}, 2, []uint64{code(0), code(1), code(2)}},
		{"backwards", []orcRule{call(orcSP, 8), call(orcBP, 0)}, gen.SamplerKernelRegs{Bp: sp},
			[]uint64{code(1), code(2)}, 0, []uint64{code(0), code(1)}},
		{"no code", []orcRule{call(orcSP, 8)}, gen.SamplerKernelRegs{}, []uint64{7}, 0, []uint64{code(0)}},
		{"beyond the stack", []orcRule{call(orcSP, 24)}, gen.SamplerKernelRegs{}, []uint64{code(1)}, 0, []uint64{code(0)}},
		{"undefined", []orcRule{{typ: orcTypeUndefined}}, gen.SamplerKernelRegs{}, []uint64{code(1)}, 0, []uint64{code(0)}},
		{"end", []orcRule{call(orcSP, 8), {typ: orcTypeEndOfStack}}, gen.SamplerKernelRegs{}, []uint64{code(1), code(2)}, 0, []uint64{code(0), code(1)}},
	} {
		orc := testORC{}
		for i, r := range c.rules {
			orc[testText+uint64(i)<<8] = r
		}
		c.regs.Ip, c.regs.Sp = code(0), sp
		k := &kernelStacks{orc: orc}
		got, known := k.walk(&Sample{kernelRegs: &c.regs, kernelStack: c.stack, irqWords: c.irq})
		if !slices.Equal(got, c.want) || !known {
			t.Errorf("%s: %x, known %v, want %x", c.name, got, known, c.want)
		}
	}
}

// The kernel side's words: whatever a record holds, it is decoded or refused.
func FuzzDecodeKernelStack(f *testing.F) {
	head := unsafe.Sizeof(gen.SamplerKernelRegs{})
	f.Add(make([]byte, head+24), uint16(2), uint16(0))
	f.Add(append(binary.LittleEndian.AppendUint64(make([]byte, head), 5), make([]byte, 16)...), uint16(3), uint16(1))
	k := &kernelStacks{orc: testORC{testText: {typ: orcTypeCall, spReg: orcSP, spOffset: 8}}}
	f.Fuzz(func(t *testing.T, rec []byte, words, irq uint16) {
		aligned := make([]uint64, len(rec)/8)
		b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(aligned))), len(aligned)*8)
		copy(b, rec)
		var s Sample
		rest, err := s.decodeKernelStack(int(words), int(irq), b)
		if err != nil {
			return
		}
		if len(s.kernelStack) != int(words) || len(rest) > len(b) {
			t.Fatalf("%d words of %d, %d bytes left of %d", len(s.kernelStack), words, len(rest), len(b))
		}
		s.kernelRegs.Ip = testText
		k.walk(&s)
	})
}
