package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// typesOf returns what a kernel with these types would tell of them.
func typesOf(t *testing.T, types ...btf.Type) *btf.Spec {
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// Only entries of the kind that is known are taken for it.
func TestORCLayout(t *testing.T) {
	u8, s16 := &btf.Int{Name: "u8", Size: 1}, &btf.Int{Name: "s16", Size: 2, Encoding: btf.Signed}
	u32, ptr := &btf.Int{Name: "u32", Size: 4}, &btf.Pointer{Target: &btf.Void{}}
	entry := func(sp string, regs btf.Bits, size uint32) btf.Type {
		return &btf.Struct{Name: "orc_entry", Size: size, Members: []btf.Member{
			{Name: sp, Type: s16}, {Name: "bp_offset", Type: s16, Offset: 16},
			{Name: "sp_reg", Type: u8, Offset: 32, BitfieldSize: regs}, {Name: "bp_reg", Type: u8, Offset: 36, BitfieldSize: 4},
			{Name: "type", Type: u8, Offset: 40, BitfieldSize: 3}, {Name: "signal", Type: u8, Offset: 43, BitfieldSize: 1},
		}}
	}
	known := entry("sp_offset", 4, 6)
	arch := &btf.Struct{Name: "mod_arch_specific", Size: 24, Members: []btf.Member{
		{Name: "num_orcs", Type: u32}, {Name: "orc_unwind_ip", Type: ptr, Offset: 64}, {Name: "orc_unwind", Type: ptr, Offset: 128},
	}}
	memory := &btf.Struct{Name: "module_memory", Size: 16, Members: []btf.Member{
		{Name: "base", Type: ptr}, {Name: "size", Type: u32, Offset: 64},
	}}
	module := func(arch *btf.Struct) btf.Type {
		return &btf.Struct{Name: "module", Size: 100, Members: []btf.Member{
			{Name: "state", Type: u32}, {Name: "arch", Type: arch, Offset: 64},
			{Name: "mem", Type: &btf.Array{Index: u32, Type: memory, Nelems: 3}, Offset: 256},
		}}
	}
	for _, c := range []struct {
		name  string
		types []btf.Type
		want  kernelLayout
		ok    bool
	}{
		{"with modules", []btf.Type{known, module(arch)}, kernelLayout{8, 32, 40}, true},
		{"without modules", []btf.Type{known}, kernelLayout{}, true},
		{"modules without tables", []btf.Type{known, module(&btf.Struct{Name: "mod_arch_specific"})}, kernelLayout{}, true},
		{"frame pointers", []btf.Type{u32}, kernelLayout{}, false},
		{"longer entries", []btf.Type{entry("sp_offset", 4, 8)}, kernelLayout{}, false},
		{"more registers", []btf.Type{entry("sp_offset", 5, 6)}, kernelLayout{}, false},
		{"other members", []btf.Type{entry("cfa_offset", 4, 6)}, kernelLayout{}, false},
	} {
		got, err := orcLayout(typesOf(t, c.types...))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %+v, %v; want %+v, %v", c.name, got, err, c.want, c.ok)
		}
	}
}

// The same entries in Linux 6.12 and 7.3, which number registers otherwise.
func TestORCRegisters(t *testing.T) {
	for _, c := range []struct{ before, since byte }{
		{0x05, 0x03}, {0x15, 0x83}, {0x14, 0x84}, {0x48, 0x4a}, {0x46, 0x46}, {0x07, 0x07}, {0x19, 0x89}, {0x02, 0x02}, {0, 0},
	} {
		a := orcNumberings[0].decode([]byte{16, 0, 0xf0, 0xff, c.before, 2})
		b := orcNumberings[1].decode([]byte{16, 0, 0xf0, 0xff, c.since, 2})
		if a != b {
			t.Errorf("%#x is %+v, %#x is %+v", c.before, a, c.since, b)
		}
	}
	if r := orcNumberings[1].decode([]byte{8, 0, 0, 0, 0x05, 2}); r.spReg != orcUnknown {
		t.Errorf("a number that is not known is register %d", r.spReg)
	}
}

// testMemory is memory from an address on.
type testMemory struct {
	addr  uint64
	bytes []byte
}

func (m *testMemory) read(addr uint64, n int) ([]byte, error) {
	if addr < m.addr || addr+uint64(n) > m.addr+uint64(len(m.bytes)) {
		return nil, errNoAnswer
	}
	return m.bytes[addr-m.addr:][:n], nil
}

func (m *testMemory) readBoth(addr1 uint64, n1 int, addr2 uint64, n2 int) (b1, b2 []byte, err error) {
	b1, err1 := m.read(addr1, n1)
	b2, err2 := m.read(addr2, n2)
	return b1, b2, errors.Join(err1, err2)
}

func (m *testMemory) read32(addr uint64) (uint32, error) {
	b, err := m.read(addr, 4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

// The kernel's own rows are found by the lookup array, of which more is read at a time:
// at the edges of blocks and of parts, and in the last part, behind which there is nothing.
func TestKernelORC(t *testing.T) {
	const (
		text   = 0xffffffff81000000
		blocks = 2*orcLookupPart + 3
		end    = text + blocks*orcBlock - 0x40
		second = 0x80              // of the two rows of a block; the first begins with it
		ips    = text + 0x100_0000 // and then the other arrays
		rows   = 2 * blocks
		lookup = ips + rows*(4+orcEntryBytes)
	)
	mem := &testMemory{ips, make([]byte, rows*(4+orcEntryBytes)+4*(blocks+1))}
	put := func(addr uint64, v any) {
		if _, err := binary.Encode(mem.bytes[addr-ips:], binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(rows) {
		start := text + i/2*orcBlock + i%2*second
		put(ips+4*i, int32(start-ips-4*i))
		put(ips+4*rows+orcEntryBytes*i, int16(i+1))
	}
	for i := range uint64(blocks + 1) {
		put(lookup+4*i, uint32(min(2*i, rows-1)))
	}
	k := &kernelORC{mem: mem, registers: orcNumberings[0], text: text, end: end, table: orcTable{ips, ips + 4*rows, rows}, lookup: lookup}
	for range 2 {
		for _, block := range []uint64{0, 1, orcLookupPart - 1, orcLookupPart, 2 * orcLookupPart, blocks - 1} {
			for off, want := range map[uint64]uint64{0: 1, second - 1: 1, second: 2, orcBlock - 0x41: 2} {
				pc := text + block*orcBlock + off
				if r, ok := k.rule(pc); !ok || uint64(r.spOffset) != 2*block+want {
					t.Errorf("%#x: row %d, %v; want %d", pc, r.spOffset, ok, 2*block+want)
				}
			}
		}
		k.forget()
	}
	for _, pc := range []uint64{text - 1, text + blocks*orcBlock} {
		if r, ok := k.rule(pc); ok {
			t.Errorf("%#x, which is no code, has row %d", pc, r.spOffset)
		}
	}
}

// The code of one module ends where the next one's begins, inside what /proc/modules tells
// of it; and the tables name places that it had while it began, behind others' code.
func TestModuleORC(t *testing.T) {
	const (
		code      = moduleSpace + 0x100000 // of the first module; of the second a page on
		page      = 0x1000
		structs   = code + 16*page
		tables    = structs + 2*page
		begin     = code + 8*page // where the first one's code for its beginning was
		perModule = 0x100
	)
	mem := &testMemory{structs, make([]byte, 4*page)}
	put := func(addr uint64, v any) {
		if _, err := binary.Encode(mem.bytes[addr-structs:], binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	k := &kernelORC{mem: mem, registers: orcNumberings[0], layout: kernelLayout{moduleArch: 8, moduleText: 32, moduleTextSize: 40}}
	for i, starts := range [][]uint64{
		{code, code + 0x120, code + page, begin, begin + 0x10},
		{code + page, code + page + 0x230, code + 2*page},
	} {
		n := uint64(i)
		module, ips := structs+n*perModule, tables+n*perModule
		entries := ips + uint64(4*len(starts))
		from := code + n*page
		put(module+8, []uint64{uint64(len(starts)), ips, entries, from, page})
		for j, start := range starts {
			put(ips+uint64(4*j), int32(start-ips-uint64(4*j)))
			put(entries+uint64(orcEntryBytes*j), int16(16*(i+1)+j))
		}
		k.modules = append(k.modules, orcModule{from: from, to: from + 4*page, isExamined: true})
		k.readModule(&k.modules[i], module)
	}
	modules := k.modules
	for _, c := range []struct {
		pc   uint64
		want int16 // what the entry has for sp_offset; 0 for none
	}{
		{code - 1, 0}, {code, 16}, {code + 0x11f, 16}, {code + 0x120, 17}, {code + page - 1, 17},
		{code + page, 32}, {code + page + 0x22f, 32}, {code + page + 0x230, 33}, {code + 2*page - 1, 33},
		{code + 2*page, 0}, {begin, 0},
	} {
		k.modules = modules // where there is none, this machine's are looked at
		if got, ok := k.rule(c.pc); got.spOffset != c.want || ok != (c.want != 0) {
			t.Errorf("%#x: %d, %v; want %d", c.pc, got.spOffset, ok, c.want)
		}
	}
	for _, end := range []uint64{moduleSpace - page, moduleSpace + page} {
		k := &kernelORC{text: end - page, end: end}
		for pc, want := range map[uint64]bool{
			end - 1: true, end: false, moduleSpace + 2*page: end < moduleSpace, movedSpace: true, moduleEnd: false,
		} {
			if k.isText(pc) != want {
				t.Errorf("kernel up to %#x: code at %#x", end, pc)
			}
		}
	}
}
