package procstate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func testSnapshot(t testing.TB, arch *Arch) (*Snapshot, *Regs) {
	var space AddressSpace
	space.Insert(&Mapping{Start: 0x401000, End: 0x405000, Offset: 0x1000, Image: testImage(t)})
	s := NewSnapshot(arch, 42, "/bin/x", &space)
	regs := new(Regs)
	regs.Set(arch.SP, 0x7000)
	stack := make([]byte, 0x1000)
	for i := range stack {
		stack[i] = byte(i)
	}
	s.Reset(43, regs, []Region{{0x7000, stack[:0x800]}, {0x7800, stack[:0x400]}, {0x9000, stack[:0x10]}})
	return s, regs
}

func TestSnapshotReadWord(t *testing.T) {
	s, _ := testSnapshot(t, AMD64)
	tests := []struct {
		addr uint64
		want uint64
		ok   bool
	}{
		{0x7000, 0x0706050403020100, true},
		{0x6fff, 0, false}, {0x6ff9, 0, false},
		{0x77f8, 0xfffefdfcfbfaf9f8, true},
		{0x77fc, 0x03020100fffefdfc, true}, // across two regions
		{0x7bf8, 0xfffefdfcfbfaf9f8, true}, {0x7bf9, 0, false}, {0x7c00, 0, false},
		{0x9000, 0x0706050403020100, true}, {0x9008, 0x0f0e0d0c0b0a0908, true}, {0x9009, 0, false},
		{0x401000, 0x0101010101010101, true}, // code of the file
		{0x405000, 0x0505050505050505, true}, // its constants
		{0x406800, 0, false},                 // its data
		{0, 0, false}, {^uint64(0), 0, false}, {^uint64(0) - 7, 0, false},
	}
	for range 2 {
		for _, test := range tests {
			got, ok := s.ReadWord(test.addr)
			if got != test.want || ok != test.ok {
				t.Errorf("%#x: %#x, %v; want %#x, %v", test.addr, got, ok, test.want, test.ok)
			}
			if addr, missed := s.Missed(); !ok && (!missed || addr < test.addr) {
				t.Errorf("%#x: missed %#x, %v", test.addr, addr, missed)
			}
		}
	}
	s32, _ := testSnapshot(t, I386)
	if got, ok := s32.ReadWord(0x77fe); got != 0x0100fffe || !ok {
		t.Errorf("32 bits: %#x, %v", got, ok)
	}
}

func TestSnapshotReadMemory(t *testing.T) {
	s, regs := testSnapshot(t, AMD64)
	b := make([]byte, 0xc00)
	if n, err := s.ReadMemory(0x7000, b); n != 0xc00 || err != nil || b[0x7ff] != 0xff || b[0x800] != 0 {
		t.Errorf("two regions: %#x, %v", n, err)
	}
	if n, err := s.ReadMemory(0x7bf0, b[:0x20]); n != 0x10 || !errors.Is(err, ErrUnreadable) {
		t.Errorf("past the end: %#x, %v", n, err)
	}
	if n, err := s.ReadMemory(0x100, nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
	var got Regs
	if err := s.Registers(DefaultThread, &got); err != nil || got != *regs {
		t.Errorf("registers %+v, %v", got, err)
	}
	if err := s.Registers(43, &got); err != nil {
		t.Error(err)
	}
	if err := s.Registers(42, &got); !errors.Is(err, ErrNoThread) {
		t.Errorf("another thread: %v", err)
	}
	if tids, err := s.Threads(); err != nil || len(tids) != 1 || tids[0] != 43 {
		t.Errorf("threads %v, %v", tids, err)
	}
	// The next sample has none of the last one's memory.
	s.Reset(44, &Regs{}, nil)
	if _, ok := s.ReadWord(0x7000); ok {
		t.Error("memory of an earlier sample was read")
	}
}

// Whatever the regions, a word is read exactly when its bytes are.
func FuzzSnapshotReadWord(f *testing.F) {
	f.Add(uint64(0x1000), uint64(0x1004), []byte("0123456789abcdef"), uint64(0x1002))
	f.Add(^uint64(0)-3, uint64(0), []byte("0123456789abcdef"), ^uint64(0)-2)
	f.Fuzz(func(t *testing.T, a, b uint64, data []byte, addr uint64) {
		if uint64(len(data)) > ^uint64(0)-max(a, b) {
			return // no memory wraps around
		}
		if a-b < uint64(len(data)) || b-a < uint64(len(data)) {
			return // regions that overlap hold the same bytes
		}
		s := NewSnapshot(AMD64, 1, "", nil)
		s.Reset(1, &Regs{}, []Region{{a, data}, {b, data}})
		byteAt := func(addr uint64) (byte, bool) {
			for _, r := range []uint64{a, b} {
				if i := addr - r; i < uint64(len(data)) {
					return data[i], true
				}
			}
			return 0, false
		}
		var want [8]byte
		all := true
		for i := range want {
			v, ok := byteAt(addr + uint64(i))
			want[i] = v
			all = all && ok && addr+uint64(i) >= addr
		}
		got, ok := s.ReadWord(addr)
		if ok != all || (ok && got != binary.LittleEndian.Uint64(want[:])) {
			t.Errorf("%#x, %v; want % x, %v", got, ok, want, all)
		}
		buf := make([]byte, 8)
		n, _ := s.ReadMemory(addr, buf)
		if ok && (n != 8 || !bytes.Equal(buf, want[:])) {
			t.Errorf("ReadMemory: %d, % x; want % x", n, buf, want)
		}
	})
}

func TestSnapshotAllocates(t *testing.T) {
	s, regs := testSnapshot(t, AMD64)
	regions := append([]Region(nil), s.Regions()...)
	buf := make([]byte, 16)
	for name, fn := range map[string]func(){
		"stack":   func() { s.ReadWord(0x7100) },
		"regions": func() { s.ReadWord(0x7800); s.ReadWord(0x77fc); s.ReadWord(0x9000) },
		"file":    func() { s.ReadWord(0x401000); s.ReadWord(0x405000) },
		"missing": func() { s.ReadWord(0x10) },
		"memory":  func() { s.ReadMemory(0x7100, buf); s.ReadMemory(0x401000, buf) },
		"reset":   func() { s.Reset(43, regs, regions) },
	} {
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkReadWord(b *testing.B) {
	s, _ := testSnapshot(b, AMD64)
	b.Run("stack", func(b *testing.B) {
		for b.Loop() {
			s.ReadWord(0x7100)
		}
	})
	b.Run("other region", func(b *testing.B) {
		for b.Loop() {
			s.ReadWord(0x7100)
			s.ReadWord(0x7900)
		}
	})
}
