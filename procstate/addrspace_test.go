package procstate

import (
	"fmt"
	"math/rand"
	"runtime"
	"testing"
)

// flat is an image whose code segment starts at file offset 0x1000 and
// link-time address 0x401000.
func testImage(t testing.TB) *Image {
	t.Helper()
	im := &Image{size: 0x8000, arch: AMD64}
	im.segs = []Segment{
		{Off: 0, Filesz: 0x800, Vaddr: 0x400000, Memsz: 0x800, Flags: 4},
		{Off: 0x1000, Filesz: 0x4000, Vaddr: 0x401000, Memsz: 0x4000, Flags: 5},
		{Off: 0x5000, Filesz: 0x800, Vaddr: 0x405000, Memsz: 0x800, Flags: 4},
		{Off: 0x5800, Filesz: 0x800, Vaddr: 0x406800, Memsz: 0x2000, Flags: 6},
	}
	im.r = countingReader{}
	return im
}

// countingReader has at each offset the low byte of its page's number.
type countingReader struct{}

func (countingReader) ReadAt(b []byte, off int64) (int, error) {
	for i := range b {
		b[i] = byte((off + int64(i)) >> 12)
	}
	return len(b), nil
}

// checkRuns checks what is said of the lists in an AddressSpace.
func checkRuns(t *testing.T, s *AddressSpace) {
	t.Helper()
	count, end := 0, uint64(0)
	for i := range s.runs {
		r := &s.runs[i]
		if len(r.maps) == 0 || len(r.maps) > maxRun || r.start != r.maps[0].Start {
			t.Fatalf("run %d of %d: %d mappings, start %#x", i, len(s.runs), len(r.maps), r.start)
		}
		for _, m := range r.maps {
			if m.Start < end || m.Start >= m.End {
				t.Fatalf("mapping out of order: %+v", m)
			}
			end = m.End
		}
		count += len(r.maps)
	}
	if count != s.Len() || len(s.Mappings()) != count {
		t.Fatalf("%d mappings, %d by Len, %d by Mappings", count, s.Len(), len(s.Mappings()))
	}
	if h := s.Highest(); count > 0 && h != s.Mappings()[count-1] || count == 0 && h != nil {
		t.Fatalf("highest mapping %+v", h)
	}
}

// As TestAddressSpaceModel, with so many mappings that they are in several runs, and
// with clones that live on while either side changes.
func TestAddressSpaceModelMany(t *testing.T) {
	const pages = 2048
	type modelled struct {
		s     *AddressSpace
		model *[pages]uint64 // serial<<32 | file page; 0: unmapped
	}
	rnd := rand.New(rand.NewSource(1))
	spaces := []modelled{{new(AddressSpace), new([pages]uint64)}}
	for serial := uint64(1); serial < 30000; serial++ {
		at := rnd.Intn(len(spaces))
		of := spaces[at]
		first, n := uint64(rnd.Intn(pages)), uint64(1)
		switch rnd.Intn(200) {
		case 0: // a wide one
			n = uint64(rnd.Intn(pages))
		case 1:
			of.s.Clear()
			*of.model = [pages]uint64{}
		case 2:
			clone := modelled{of.s.Clone(), new([pages]uint64)}
			*clone.model = *of.model
			if len(spaces) == 4 {
				spaces[rnd.Intn(4)] = clone
			} else {
				spaces = append(spaces, clone)
			}
		default:
			n += uint64(rnd.Intn(3))
		}
		n = min(n, pages-first)
		if rnd.Intn(4) == 0 {
			of.s.Remove(first<<12, (first+n)<<12)
			clear(of.model[first : first+n])
		} else {
			of.s.Insert(&Mapping{Start: first << 12, End: (first + n) << 12, Offset: serial << 32})
			for i := first; i < first+n; i++ {
				of.model[i] = serial<<32 + (i-first)<<12
			}
		}
		if serial%500 != 0 {
			continue
		}
		for _, of := range spaces {
			checkRuns(t, of.s)
			for i, want := range of.model {
				addr := uint64(i)<<12 + 0xfff
				m := of.s.MappingAt(addr)
				if (m == nil) != (want == 0) || m != nil && m.Offset+(addr-m.Start)&^0xfff != want {
					t.Fatalf("page %d: %+v, want %#x", i, m, want)
				}
				if of.s.Overlaps(addr, addr+1) != (want != 0) {
					t.Fatalf("page %d: overlaps %v", i, want == 0)
				}
			}
		}
	}
}

// A change among very many mappings, as a process makes that maps the same addresses
// again and again, must not copy them all.
func TestAddressSpaceChurns(t *testing.T) {
	const count, changes = 20000, 2000
	var s AddressSpace
	for i := range uint64(count) {
		s.Insert(&Mapping{Start: i * 0x3000, End: i*0x3000 + 0x2000})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range uint64(changes) {
		at := i * 7919 % count * 0x3000
		s.Insert(&Mapping{Start: at + 0x1000, End: at + 0x4000})
		s.Insert(&Mapping{Start: at, End: at + 0x1000})
		s.Remove(at, at+0x1000)
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / changes; n > 2048 {
		t.Errorf("%d bytes for three changes", n)
	}
	checkRuns(t, &s)
}

// The mappings near an address range are those that overlap it, and one on each side.
func TestAddressSpaceNear(t *testing.T) {
	var s AddressSpace
	for i := range uint64(3 * maxRun) {
		s.Insert(&Mapping{Start: i * 0x3000, End: i*0x3000 + 0x2000})
	}
	for _, test := range []struct{ first, last uint64 }{{0, 0}, {1, 1}, {maxRun - 1, maxRun}, {maxRun, maxRun}, {10, 3*maxRun - 1}} {
		near := s.near(test.first*0x3000+0x1000, test.last*0x3000+0x1001)
		from, to := max(test.first, 0), min(test.last+1, 3*maxRun-1)
		if uint64(len(near)) != to-from+1 || near[0].Start != from*0x3000 || near[len(near)-1].Start != to*0x3000 {
			t.Errorf("%d to %d: %d mappings", test.first, test.last, len(near))
		}
	}
	if near := new(AddressSpace).near(0, 1); len(near) != 0 {
		t.Errorf("%d mappings of an empty space", len(near))
	}
}

// Inserts and removals are compared with a model that knows each page.
func TestAddressSpaceModel(t *testing.T) {
	const pages = 64
	rnd := rand.New(rand.NewSource(1))
	for range 300 {
		var s AddressSpace
		var model [pages]uint64 // serial<<32 | file page; 0: unmapped
		for serial := uint64(1); serial < 40; serial++ {
			first := uint64(rnd.Intn(pages))
			n := uint64(rnd.Intn(pages - int(first) + 1))
			gen := s.Generation()
			if rnd.Intn(3) == 0 {
				s.Remove(first<<12, (first+n)<<12)
				for i := first; i < first+n; i++ {
					model[i] = 0
				}
			} else {
				s.Insert(&Mapping{Start: first << 12, End: (first + n) << 12, Offset: serial << 32})
				for i := first; i < first+n; i++ {
					model[i] = serial<<32 + (i-first)<<12
				}
			}
			if n > 0 && s.Generation() == gen {
				t.Fatal("a change left the generation as it was")
			}
			clone := s.Clone()
			for i, want := range model {
				for _, addr := range []uint64{uint64(i) << 12, uint64(i)<<12 + 0xfff} {
					for _, space := range []*AddressSpace{&s, clone} {
						m := space.MappingAt(addr)
						if (m == nil) != (want == 0) {
							t.Fatalf("page %d: %+v, want %#x", i, m, want)
						}
						if m != nil && m.Offset+(addr-m.Start)&^0xfff != want {
							t.Fatalf("page %d: file offset %#x, want %#x", i, m.Offset+(addr-m.Start), want)
						}
					}
				}
			}
			checkRuns(t, &s)
		}
	}
}

func TestMappingAtBounds(t *testing.T) {
	var s AddressSpace
	if s.MappingAt(0) != nil || s.MappingAt(^uint64(0)) != nil {
		t.Error("an empty space holds something")
	}
	last := ^uint64(0) &^ 0xfff
	s.Insert(&Mapping{Start: 0x1000, End: 0x2000})
	s.Insert(&Mapping{Start: 0x2000, End: 0x3000})
	s.Insert(&Mapping{Start: last, End: ^uint64(0)})
	s.Insert(&Mapping{Start: 0x5000, End: 0x5000}) // of no length
	s.Insert(&Mapping{Start: 0x6000, End: 0x5000})
	tests := []struct{ addr, start uint64 }{
		{0, 0}, {0xfff, 0}, {0x1000, 0x1000}, {0x1fff, 0x1000}, {0x2000, 0x2000}, {0x2fff, 0x2000},
		{0x3000, 0}, {0x5000, 0}, {last - 1, 0}, {last, last}, {^uint64(0) - 1, last}, {^uint64(0), 0},
	}
	for range 2 { // the second time with the last hit at the other end
		for _, test := range tests {
			var start uint64
			if m := s.MappingAt(test.addr); m != nil {
				start = m.Start
			}
			if start != test.start {
				t.Errorf("%#x is in the mapping at %#x, want %#x", test.addr, start, test.start)
			}
		}
	}
	s.Clear()
	if s.MappingAt(0x1000) != nil || len(s.Mappings()) != 0 {
		t.Error("a cleared space holds something")
	}
}

func TestOverlaps(t *testing.T) {
	var s AddressSpace
	s.Insert(&Mapping{Start: 0x1000, End: 0x2000})
	s.Insert(&Mapping{Start: 0x4000, End: 0x6000})
	for _, test := range []struct {
		start, end uint64
		want       bool
	}{
		{0, 0x1000, false}, {0, 0x1001, true}, {0x1fff, 0x2000, true}, {0x2000, 0x4000, false},
		{0x2000, 0x4001, true}, {0x5000, 0x5001, true}, {0x6000, ^uint64(0), false}, {0, ^uint64(0), true},
		{0x1800, 0x1800, false}, {0x1900, 0x1800, false},
	} {
		if s.Overlaps(test.start, test.end) != test.want {
			t.Errorf("[%#x, %#x): %v", test.start, test.end, !test.want)
		}
	}
}

func TestInsertBias(t *testing.T) {
	im := testImage(t)
	var s AddressSpace
	s.Insert(&Mapping{Start: 0x7f0000001000, End: 0x7f0000005000, Offset: 0x1000, Image: im})
	if m := s.MappingAt(0x7f0000001000); m.Bias != 0x7f0000001000-0x401000 {
		t.Errorf("bias %#x", m.Bias)
	}
	// A hole leaves two mappings of the same bias.
	s.Remove(0x7f0000002000, 0x7f0000003000)
	for _, addr := range []uint64{0x7f0000001fff, 0x7f0000003000} {
		if m := s.MappingAt(addr); m == nil || m.Bias != 0x7f0000001000-0x401000 {
			t.Errorf("at %#x: %+v", addr, m)
		}
	}
	if libs := s.Libraries(); len(libs) != 1 || libs[0].Image != im {
		t.Errorf("libraries %+v", libs)
	}
	// What is in no segment is of no use.
	s.Insert(&Mapping{Start: 0x1000, End: 0x2000, Offset: 0x7000, Image: im})
	if m := s.MappingAt(0x1000); m.Image != nil || m.ImageErr == nil {
		t.Errorf("%+v", m)
	}
}

// A library that was mapped whole is known as far as its code goes.
func TestNewFileMappingClips(t *testing.T) {
	im := testImage(t)
	m := NewFileMapping(&FileRef{Start: 0x1000, End: 0x9000}, 0x1000, im, nil)
	if m.Start != 0x1000 || m.End != 0x5000 {
		t.Errorf("[%#x, %#x)", m.Start, m.End)
	}
	m = NewFileMapping(&FileRef{Start: 0x1000, End: 0x3000}, 0x2000, im, nil)
	if m.End != 0x3000 {
		t.Errorf("a part of the code ends at %#x", m.End)
	}
}

func TestReadFile(t *testing.T) {
	im := testImage(t)
	const bias = 0x7f0000000000
	var s AddressSpace
	s.Insert(&Mapping{Start: bias + 0x401000, End: bias + 0x405000, Offset: 0x1000, Image: im})
	s.Insert(&Mapping{Start: bias + 0x10000, End: bias + 0x11000}) // no file
	tests := []struct {
		vaddr uint64
		n     int
		page  byte // of the file; 0xff: unreadable
	}{
		{0x400000, 8, 0}, {0x4007f8, 8, 0}, {0x4007f9, 8, 0xff}, // headers, and past their end
		{0x401000, 8, 1}, {0x404ff8, 8, 4}, // code
		{0x404ffc, 8, 0xff},                // across segments
		{0x405000, 8, 5}, {0x4057f8, 8, 5}, // constants
		{0x406800, 8, 0xff}, {0x4067ff, 1, 0xff}, // data that is written
		{0x407000, 8, 0xff}, {0x3ffff8, 8, 0xff}, // .bss, nothing
		{0x10000, 8, 0xff},
	}
	for _, test := range tests {
		b := make([]byte, test.n)
		err := s.ReadFile(b, bias+test.vaddr)
		if (err != nil) != (test.page == 0xff) || (err == nil && b[0] != test.page) {
			t.Errorf("%d bytes at %#x: % x, %v", test.n, test.vaddr, b, err)
		}
	}
}

// BenchmarkAddressSpaceChurn maps a place again and again, each time another.
func BenchmarkAddressSpaceChurn(b *testing.B) {
	for _, count := range []uint64{20, 60, 300, 8000, 65000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			var s AddressSpace
			for i := range count {
				s.Insert(&Mapping{Start: i * 0x3000, End: i*0x3000 + 0x1000})
			}
			b.ReportAllocs()
			at := uint64(0)
			for b.Loop() {
				at = (at + 7919) % count
				s.Insert(&Mapping{Start: at * 0x3000, End: at*0x3000 + 0x1000})
			}
		})
	}
}

// BenchmarkAddressSpaceFork is a process that forks, each child of which maps something.
func BenchmarkAddressSpaceFork(b *testing.B) {
	for _, count := range []uint64{60, 300} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			var s AddressSpace
			for i := range count {
				s.Insert(&Mapping{Start: i * 0x3000, End: i*0x3000 + 0x1000})
			}
			b.ReportAllocs()
			for b.Loop() {
				s.Clone().Insert(&Mapping{Start: 0x3000, End: 0x4000})
			}
		})
	}
}

func BenchmarkMappingAt(b *testing.B) {
	for _, count := range []uint64{20, 60, 400} {
		var s AddressSpace
		for i := range count {
			s.Insert(&Mapping{Start: i * 0x3000, End: i*0x3000 + 0x1000})
		}
		b.Run(fmt.Sprintf("same of %d", count), func(b *testing.B) {
			for b.Loop() {
				s.MappingAt(0x3000 * 7)
			}
		})
		b.Run(fmt.Sprintf("other of %d", count), func(b *testing.B) {
			addr := uint64(0)
			for b.Loop() {
				addr = (addr + 0x3000*131) % (0x3000 * count)
				s.MappingAt(addr)
			}
		})
	}
}

func TestMappingAtAllocates(t *testing.T) {
	var s AddressSpace
	for i := range uint64(40) {
		s.Insert(&Mapping{Start: i * 0x3000, End: i*0x3000 + 0x1000})
	}
	addr := uint64(0)
	if n := testing.AllocsPerRun(1000, func() {
		addr = (addr + 0x3000*13) % (0x3000 * 40)
		s.MappingAt(addr)
		s.MappingAt(addr + 0x1000)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A process and its child share their mappings until either changes them, and
// never see what the other does after.
func TestAddressSpaceCloneIsIndependent(t *testing.T) {
	add := func(s *AddressSpace, page uint64, path string) {
		s.Insert(&Mapping{Start: page << 12, End: (page + 1) << 12, Path: path})
	}
	list := func(s *AddressSpace) (all string) {
		for _, m := range s.Mappings() {
			all += m.Path
		}
		return all
	}
	// One more each time, so that the list has room left at some and none at others.
	for n := uint64(0); n < 12; n++ {
		var parent AddressSpace
		want := ""
		for i := range n {
			add(&parent, 2*i+1, "p")
			want += "p"
		}
		child := parent.Clone()
		grandchild := child.Clone()
		add(child, 0, "c")
		add(&parent, 100, "q")
		add(grandchild, 100, "g")
		child.Remove(1<<12, 2<<12)
		second := parent.Clone()
		parent.Clear()
		add(second, 101, "s")
		left := "c" + want[min(n, 1):]
		for _, tc := range []struct {
			of   string
			s    *AddressSpace
			want string
		}{{"parent", &parent, ""}, {"child", child, left}, {"grandchild", grandchild, want + "g"}, {"second", second, want + "qs"}} {
			if got := list(tc.s); got != tc.want {
				t.Errorf("%d mappings: %s has %q, want %q", n, tc.of, got, tc.want)
			}
		}
	}
}
