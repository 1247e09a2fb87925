package loader

import (
	"errors"
	"math/bits"
	"testing"
	"unsafe"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

type testRegion struct{ addr, len uint64 }

// testRecord makes a well-formed record, aligned to 8 bytes.
func testRecord(kernelFrames int, regions ...testRegion) []byte {
	size := uint64(unsafe.Sizeof(sampleHeader{})) + uint64(kernelFrames)*8
	for _, r := range regions {
		size += uint64(unsafe.Sizeof(regionHeader{})) + (r.len+7)&^7
	}
	words := make([]uint64, size/8)
	h := (*sampleHeader)(unsafe.Pointer(&words[0]))
	h.Time, h.Weight, h.Tgid, h.Tid, h.Cpu = 1000, 7, 11, 12, 3
	h.User, h.StackEnd = uint8(UserNative), uint8(StackEndBottom)
	h.KernelFrames, h.Regions = uint8(kernelFrames), uint8(len(regions))
	copy(h.Comm[:], "name")
	at := int(unsafe.Sizeof(*h)) / 8
	for i := range kernelFrames {
		words[at+i] = 0xffffffff81000000 + uint64(i)
	}
	at += kernelFrames
	for _, r := range regions {
		*(*regionHeader)(unsafe.Pointer(&words[at])) = regionHeader{Addr: r.addr, Len: uint32(r.len), Mirror: noMirror}
		at += 2 + int(r.len+7)/8
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
}

// Names end at their first zero byte, whatever is behind it; the longest has 15
// bytes before it.
func TestDecodeComm(t *testing.T) {
	for raw, want := range map[string]string{
		"name\x00s-of-before": "name",
		"exactly fifteen":     "exactly fifteen",
		"":                    "",
	} {
		rec := testRecord(0)
		comm := rec[unsafe.Offsetof(sampleHeader{}.Comm):][:16]
		clear(comm)
		copy(comm, raw)
		var s Sample
		if err := s.decode(rec, nil); err != nil {
			t.Fatal(err)
		}
		var full [16]byte
		copy(full[:], want)
		if s.CommString() != want || s.Comm != full {
			t.Errorf("%q: %q", raw, s.Comm)
		}
	}
}

// What the kernel puts before a precise event's stack is no frame.
func TestDecodePrecise(t *testing.T) {
	for _, frames := range []int{1, 3} {
		rec := testRecord(frames, testRegion{0x7000, 8})
		*(*uint64)(unsafe.Pointer(&rec[unsafe.Sizeof(sampleHeader{})])) = ^uint64(128) + 1 // PERF_CONTEXT_KERNEL
		var s Sample
		if err := s.decode(rec, nil); err != nil {
			t.Fatal(err)
		}
		if len(s.Kernel) != frames-1 || len(s.Regions) != 1 || frames > 1 && s.Kernel[0] != 0xffffffff81000001 {
			t.Errorf("%d frames, decoded %#x", frames, s.Kernel)
		}
	}
}

func TestDecode(t *testing.T) {
	var s Sample
	// What an earlier sample left must not show through.
	if err := s.decode(testRecord(127, testRegion{1, 8}, testRegion{2, 0}), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.decode(testRecord(2, testRegion{0x7000, 13}, testRegion{0x8000, 0}, testRegion{0x9000, 8}), nil); err != nil {
		t.Fatal(err)
	}
	if s.Time != 1000 || s.Weight != 7 || s.PID != 11 || s.TID != 12 || s.CPU != 3 || s.Comm != [16]byte{'n', 'a', 'm', 'e'} {
		t.Errorf("decoded %+v", s)
	}
	if len(s.Kernel) != 2 || s.Kernel[1] != 0xffffffff81000001 {
		t.Errorf("kernel frames %#x", s.Kernel)
	}
	if len(s.Regions) != 3 || len(s.Regions[0].Data) != 13 || s.Regions[1].Addr != 0x8000 || s.Regions[2].Addr != 0x9000 {
		t.Errorf("regions %+v", s.Regions)
	}
	if s.Arch != procstate.HostArch() || s.Regs.Known() == 0 {
		t.Errorf("architecture %v, registers %#x", s.Arch, s.Regs.Known())
	}
}

func TestDecodeMalformed(t *testing.T) {
	header := int(unsafe.Sizeof(sampleHeader{}))
	for name, damage := range map[string]func(rec []byte) []byte{
		"empty":                   func([]byte) []byte { return nil },
		"header cut":              func(rec []byte) []byte { return rec[:header-1] },
		"kernel frames cut":       func(rec []byte) []byte { return rec[:header+8] },
		"region header cut":       func(rec []byte) []byte { return rec[:header+16+8] },
		"region cut":              func(rec []byte) []byte { return rec[:len(rec)-1] },
		"too long":                func(rec []byte) []byte { return append(rec, 0) },
		"region larger":           func(rec []byte) []byte { rec[header+16+8]++; return rec },
		"region enormous":         func(rec []byte) []byte { rec[header+16+11] = 0xff; return rec },
		"without a mirror":        func(rec []byte) []byte { clear(rec[header+16+12 : header+16+16]); return rec },
		"one region more":         func(rec []byte) []byte { (*sampleHeader)(unsafe.Pointer(&rec[0])).Regions++; return rec },
		"more parts than regions": func(rec []byte) []byte { (*sampleHeader)(unsafe.Pointer(&rec[0])).Parts = 2; return rec },
		"one kernel frame more":   func(rec []byte) []byte { (*sampleHeader)(unsafe.Pointer(&rec[0])).KernelFrames++; return rec },
	} {
		var s Sample
		if err := s.decode(damage(testRecord(2, testRegion{0x7000, 16})), nil); !errors.Is(err, errBadRecord) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestDecodeStates(t *testing.T) {
	for u := UserNone; u <= UserExec+1; u++ {
		rec := testRecord(0)
		(*sampleHeader)(unsafe.Pointer(&rec[0])).User = uint8(u)
		var s Sample
		if err := s.decode(rec, nil); err != nil {
			t.Fatal(err)
		}
		if s.User != u || s.HasUser() != (u == UserNative || u == UserCompat32 && procstate.HostArch() == procstate.AMD64) {
			t.Errorf("%v: user part %v", s.User, s.HasUser())
		}
		if u.String() == "" || StackEnd(u).String() == "" {
			t.Errorf("state %d has no name", u)
		}
	}
}

// A thread that ran while it was looked at as waiting has its registers and no stack.
func TestDropUserStack(t *testing.T) {
	rec := testRecord(2, testRegion{0x7000, 64}, testRegion{0x9000, 16}, testRegion{0xa000, 16})
	(*sampleHeader)(unsafe.Pointer(&rec[0])).Parts = 2
	b := newBlockedThreads()
	if err := b.hold(b.byTID, rec); err != nil {
		t.Fatal(err)
	}
	r := b.take(12, 1000)
	if err := r.dropUserStack(); err != nil {
		t.Fatal(err)
	}
	var s Sample
	if err := s.decode(r.bytes(), nil); err != nil {
		t.Fatal(err)
	}
	if s.StackEnd != StackEndChanged || len(s.Regions) != 1 || len(s.Regions[0].Data) != 0 || s.StackParts != 0 || len(s.Kernel) != 2 || !s.HasUser() {
		t.Errorf("%+v", s)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(testRecord(0))
	f.Add(testRecord(3, testRegion{0x7000, 100}, testRegion{0x8000, 3}))
	mirrored := testRecord(0, testRegion{0x7010, 120})
	(*sampleHeader)(unsafe.Pointer(&mirrored[0])).Changes = 1
	copy(mirrored[unsafe.Sizeof(sampleHeader{})+12:], []byte{64, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Add(mirrored)
	kernel := append(testRecord(0), make([]byte, unsafe.Sizeof(gen.SamplerKernelRegs{})+16)...)
	(*sampleHeader)(unsafe.Pointer(&kernel[0])).KernelBytes = 16
	kernel[len(kernel)-16] = 3 // a mask of both words, and these
	f.Add(kernel)
	labelled := testRecord(0, testRegion{0x7000, 100}, testRegion{0x8000, 64}, testRegion{0x9000, 3})
	(*sampleHeader)(unsafe.Pointer(&labelled[0])).Labels = 2
	f.Add(labelled)
	f.Fuzz(func(t *testing.T, data []byte) {
		rec := make([]uint64, len(data)/8+1) // aligned, as in the ring
		b := unsafe.Slice((*byte)(unsafe.Pointer(&rec[0])), len(rec)*8)[:len(data):len(data)]
		copy(b, data)
		var s Sample
		m := &mirror{bytes: make([]byte, 1<<16)}
		if err := s.decode(b, m); err != nil {
			return
		}
		for label := range s.GoLabels() {
			if len(label.Key) > MaxGoLabelBytes || len(label.Value) > MaxGoLabelBytes {
				t.Errorf("label %q of %d and %d bytes", label.Key, len(label.Key), len(label.Value))
			}
		}
		if s.StackParts > len(s.StackRegions()) {
			t.Errorf("%d parts of stacks in %d regions", s.StackParts, len(s.Regions))
		}
		total := uintptr(len(s.Kernel) * 8)
		for _, r := range s.Regions {
			total += unsafe.Sizeof(regionHeader{}) + uintptr(len(r.Data)+7)&^7
		}
		if s.kernelRegs != nil {
			head := unsafe.Sizeof(*s.kernelRegs)
			masks := unsafe.Slice((*uint64)(unsafe.Add(unsafe.Pointer(s.kernelRegs), head)), (len(s.kernelStack)+63)/64)
			kept := 0
			for _, mask := range masks {
				kept += bits.OnesCount64(mask)
			}
			total += head + uintptr(8*len(masks)) + uintptr(8*((kept+1)/2))
		}
		total += unsafe.Sizeof(sampleHeader{}) + uintptr(len(s.Probes.Returns))*unsafe.Sizeof(replacedReturn{})
		if total != uintptr(len(data)) && m.changes == 0 {
			t.Errorf("parts of %d bytes in a record of %d", total, len(data))
		}
	})
}

// Return addresses that uretprobes replaced come before the regions.
func TestDecodeReplacedReturns(t *testing.T) {
	rec := testRecord(2, testRegion{0x7010, 0})
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&rec[0])), len(rec)/8)
	words = words[:int(unsafe.Sizeof(sampleHeader{}))/8+2+2]
	h := (*sampleHeader)(unsafe.Pointer(&words[0]))
	words[len(words)-1] = 0x401234 // the region's header becomes a return address
	h.Returns, h.Regions, h.Trampoline, h.Breakpoint = 1, 0, 0x7fffe000, 0x401000
	rec = rec[:len(words)*8]
	var s Sample
	if err := s.decode(rec, nil); err != nil {
		t.Fatal(err)
	}
	want := procstate.ReplacedReturn{Stack: 0x7010, RA: 0x401234}
	if p := s.Probes; p.Trampoline != 0x7fffe000 || p.Breakpoint != 0x401000 || len(p.Returns) != 1 || p.Returns[0] != want {
		t.Errorf("decoded %x", p)
	}
	h.Returns = 2
	if err := s.decode(rec, nil); !errors.Is(err, errBadRecord) {
		t.Errorf("one of two: %v", err)
	}
}

// What a thread works on lies between frames of its runtime and labels of its goroutine, and belongs to neither.
func TestDecodeContext(t *testing.T) {
	regions := []testRegion{{0x1000, 16}, {0x2000, 8}, {0x3000, 40}, {0x4000, 32}, {0x5000, 3}}
	set := func(frames, contexts, labels uint8) []byte {
		rec := testRecord(0, regions...)
		h := (*sampleHeader)(unsafe.Pointer(&rec[0]))
		h.Frames, h.Contexts, h.Labels = frames, contexts, labels
		return rec
	}
	for _, c := range []struct {
		frames, contexts, labels uint8
		context                  int // the bytes of what the thread works on
		stack                    int // regions
		err                      bool
	}{
		{1, 1, 2, 40, 1, false}, {0, 1, 2, 40, 2, false}, {0, 1, 0, 3, 4, false}, {1, 0, 2, 0, 2, false},
		{0, 2, 0, 0, 0, true}, {2, 1, 3, 0, 0, true},
	} {
		var s Sample
		err := s.decode(set(c.frames, c.contexts, c.labels), nil)
		if (err != nil) != c.err {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && (len(s.ThreadContext()) != c.context || len(s.StackRegions()) != c.stack) {
			t.Errorf("%+v: %d bytes, %d regions of stacks", c, len(s.ThreadContext()), len(s.StackRegions()))
		}
	}
}
