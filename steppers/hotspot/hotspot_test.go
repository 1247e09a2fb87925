package hotspot

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/unwind"
)

// onesMemory is memory that is full of ones, and counts how often it is read.
type onesMemory struct{ reads int }

func (m *onesMemory) ReadMemory(_ uint64, buf []byte) (int, error) {
	m.reads++
	for i := range buf {
		buf[i] = 1
	}
	return len(buf), nil
}

func (m *onesMemory) ReadWord(uint64) (uint64, bool) { return 0x0101010101010101, true }

// The map of a code heap may be the longest way there is; it takes few reads.
func TestSegmentMap(t *testing.T) {
	mem := &onesMemory{}
	vm := &machine{mem: mem, fields: &vmFields{blobEnd: 64, blockBytes: 16, blockUsed: 8}, heaps: []codeHeap{{low: 1 << 32, high: 1 << 33, segments: 1 << 40, log2: 7}}}
	if b := vm.blobAt(1<<33 - 1); b != nil {
		t.Errorf("%+v", b)
	}
	if most := 2 * maxSegmentHops / len(vm.buf); mem.reads > most {
		t.Errorf("%d reads, of at most %d", mem.reads, most)
	}
}

// A method that has been freed leaves its header behind, and its end may be given to
// another: it is not taken for that.
func TestFreedMethod(t *testing.T) {
	heap := make([]byte, 1<<12)
	put := func(at int, v uint64) { binary.LittleEndian.PutUint64(heap[at:], v) }
	const low = 1 << 32
	f := &vmFields{blobComplete: 0, blobFrame: 4, blobCodeBegin: 8, blobCodeEnd: 16, blobName: 24, blobEnd: 32, blockBytes: 16, blockUsed: 8}
	// method makes a block with the code [begin, end) of a method.
	method := func(at, begin, end int, words uint32) {
		put(at+8, 1)
		put(at+16, 4|uint64(words)<<32)
		put(at+24, low+uint64(begin))
		put(at+32, low+uint64(end))
		put(at+40, low+3<<10)
	}
	copy(heap[3<<10:], "nmethod\x00")
	segments := 2 << 10
	mem := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	mem.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: low, Data: heap}})
	vm := &machine{mem: mem, fields: f, heaps: []codeHeap{{low: low, high: low + 1<<10, segments: low + uint64(segments), log2: 7}}}
	method(0, 128, 1024, 14)
	for i := range 8 {
		heap[segments+i] = byte(i)
	}
	const pc = low + 900
	if b := vm.blobAt(pc); b == nil || b.frame != 14*8 || !b.fixed {
		t.Fatalf("%+v", b)
	}
	put(8, 0) // it is free,
	if b := vm.blobAt(pc); b != nil {
		t.Errorf("of a free block %+v", b)
	}
	method(0, 128, 1024, noFrameSize)
	if b := vm.blobAt(pc); b == nil || b.frame != 0 {
		t.Errorf("without a frame %+v", b)
	}
	method(0, 128, 1024, 1<<20)
	if b := vm.blobAt(pc); b != nil {
		t.Errorf("with a frame that is too large %+v", b)
	}
	method(512, 640, 1024, 21) // and its end another method's
	for i := range 4 {
		heap[segments+4+i] = byte(i)
	}
	if b := vm.blobAt(pc); b == nil || b.frame != 21*8 {
		t.Errorf("%+v", b)
	}
}

// When a process has ended, what holds code that was walked is still known, whatever else was since.
func TestBlobOfEnded(t *testing.T) {
	heap := make([]byte, 1<<12)
	const low, stub, method, end, name = 1 << 32, 0, 512, 2 << 10, 3 << 10
	f := &vmFields{blobComplete: 0, blobFrame: 4, blobCodeBegin: 8, blobCodeEnd: 16, blobName: 24, blobEnd: 32, blockBytes: 16, blockUsed: 8}
	for _, at := range [][2]int{{stub, method}, {method, end}} {
		binary.LittleEndian.PutUint64(heap[at[0]+8:], 1)
		binary.LittleEndian.PutUint64(heap[at[0]+24:], low+uint64(at[0])+128)
		binary.LittleEndian.PutUint64(heap[at[0]+32:], low+uint64(at[1]))
		binary.LittleEndian.PutUint64(heap[at[0]+40:], low+name)
		for i := range (at[1] - at[0]) / 128 {
			heap[end+at[0]/128+i] = byte(i)
		}
	}
	mem := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	mem.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: low, Data: heap}})
	vm := &machine{mem: mem, fields: f, heaps: []codeHeap{{low: low, high: low + end, segments: low + end, log2: 7}}}
	for pc := uint64(low + stub + 128); pc < low+end; pc++ {
		if b := vm.blobAt(pc); b == nil && (pc < low+method || pc >= low+method+128) {
			t.Fatalf("nothing at %#x", pc)
		}
	}
	vm.heaps[0].segments = 0
	for pc := uint64(low + stub + 128); pc < low+method; pc++ {
		if b := vm.blobAt(pc); b == nil || b.header != low+stub+f.blockBytes {
			t.Fatalf("at %#x %+v", pc, b)
		}
	}
}

// What holds code is told by its name: frames of some kinds have the size that is
// noted, wherever they call.
func TestBlobKinds(t *testing.T) {
	const addr = 1 << 32
	for name, want := range map[string]codeBlob{
		"nmethod":                          {fixed: true},
		"native nmethod":                   {fixed: true},
		"ExceptionBlob":                    {fixed: true},
		"UncommonTrapBlob":                 {fixed: true},
		"_new_instance_Java":               {fixed: true},
		"C2 Runtime new_instance":          {fixed: true},
		"new_instance_blob (C2 runtime)":   {fixed: true},
		"new_instance_blob (C1 runtime)":   {},
		"Interpreter":                      {interpreter: true},
		"vtable chunks":                    {jumps: true},
		"DeoptimizationBlob":               {},
		"StubRoutines (1)":                 {},
		"UncommonTrapBlob of another kind": {},
	} {
		text := make([]byte, 64)
		copy(text, name)
		mem := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
		mem.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: addr, Data: text}})
		b := codeBlob{name: addr, frame: 32}
		(&machine{mem: mem}).classify(&b)
		if want.name, want.frame = addr, 32; b != want {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// A frame that takes the place of a deoptimised method's has the caller's SP before
// all else; FrameFunc walks one that is filled in.
func TestInterpretedFrame(t *testing.T) {
	const fp, sender, ra, callerFP = 0x7048, 0x7090, 0x7f0011112222, 0x70d0
	stack := make([]uint64, 0x140/8)
	word := func(addr uint64) *uint64 { return &stack[(addr-0x7000)/8] }
	*word(fp), *word(fp + 8), *word(fp - javacode.SenderWord) = callerFP, ra, sender
	walk := func(fp uint64) (unwind.Verdict, *unwind.Frame) {
		snap := steptest.MadeUp(procstate.AMD64, steptest.NoMapping, stack...)
		w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
		in := unwind.NewFrame(procstate.AMD64, 0x7f0011110000, 0x7000, fp)
		var out unwind.Frame
		v, err := New(nil).interpreted(w, &machine{mem: snap, fields: &vmFields{interp: javacode.Frame9(procstate.AMD64)}}, &codeBlob{}, &in, &out)
		if err != nil {
			t.Error(err)
		}
		return v, &out
	}
	if v, out := walk(fp); v != unwind.Success || out.PC() != ra || out.SP() != sender || out.FP() != callerFP {
		t.Errorf("being made: verdict %d, PC %#x, SP %#x, FP %#x", v, out.PC(), out.SP(), out.FP())
	}
	for _, bad := range []uint64{0, fp, sender + 4, fp + 16 + javacode.MaxLocals + 8} {
		*word(fp - javacode.SenderWord) = bad
		if v, _ := walk(fp); v != unwind.NotMe {
			t.Errorf("caller's SP %#x: verdict %d", bad, v)
		}
	}
	*word(fp - javacode.SenderWord), *word(fp - javacode.Frame9(procstate.AMD64).Locals), *word(fp - javacode.Frame9(procstate.AMD64).InitialSP) = sender, sender-8, 0x7000
	if v, _ := walk(fp); v != unwind.NotMe {
		t.Errorf("filled in: verdict %d", v)
	}
	below := int64(0x7000-fp) / 8
	*word(fp - javacode.Frame9(procstate.AMD64).Locals), *word(fp - javacode.Frame9(procstate.AMD64).InitialSP) = (sender-8-fp)/8, uint64(below) // as from JDK 21 on
	if v, _ := walk(fp); v != unwind.NotMe {
		t.Errorf("filled in, in words: verdict %d", v)
	}
	*word(fp - javacode.Frame9(procstate.AMD64).InitialSP) = uint64(below - 1)
	if v, _ := walk(fp); v != unwind.Success {
		t.Errorf("below SP, in words: verdict %d", v)
	}
	*word(fp - javacode.Frame9(procstate.AMD64).Locals), *word(fp - javacode.Frame9(procstate.AMD64).InitialSP) = sender-8, 0x7000
	if v, _ := walk(0x7040); v != unwind.NotMe {
		t.Errorf("too short: verdict %d", v)
	}
}

// Where a stub calls its frame is whole if the frame pointer points to where that is saved.
func TestWholeStub(t *testing.T) {
	const pc, sp, size = 0x7f0011110000, 0x7000, 48
	for name, c := range map[string]struct {
		frame, fp uint64
		flags     unwind.FrameFlags
		want      bool
	}{
		"whole":       {size, sp + size - 16, 0, true},
		"the least":   {16, sp, 0, true},
		"no frame":    {0, sp - 16, 0, false},
		"other frame": {size, sp + size, 0, false},
		"interrupted": {size, sp + size - 16, unwind.Interrupted, false},
	} {
		f := unwind.NewFrame(procstate.AMD64, pc, sp, c.fp)
		f.Flags = c.flags
		if got := isWholeStub(procstate.AMD64, &codeBlob{frame: c.frame}, &f); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
