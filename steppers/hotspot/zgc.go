package hotspot

import (
	"encoding/binary"
	"math/bits"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// ZGC, a garbage collector that moves objects while threads run, keeps marks in the addresses that objects have of one
// another: by those it tells which of them may be those of before a move (zAddress.hpp). Where an object has gone is in
// tables by the part of memory that it was in (zForwarding.inline.hpp).

// zgc is what it takes to read the addresses of a ZGC.
type zgc struct {
	f    zgcFields
	heap uint64 // address of the ZHeap

	// As they are at one moment: the bits that mark an address as one of before, and where these are, the part of
	// addresses that counts, the mark of good ones where that is part of the address, and the tables.
	bad, badAt, offsets, good uint64
	tables                    []zTable
	ok                        bool

	asStored bool // an address that is none of before is what memory has it by as it is
}

// zTable is a list of ZForwardings by the part of memory that they are of.
type zTable struct{ list, len uint64 }

// zgcFields are offsets of fields, or link-time addresses of static ones.
type zgcFields struct {
	generational bool // as in JDK 21 where it was asked for, and from 23 on

	globals                         uint64 // a struct of what refers to numbers
	offsets, bad, weakBad, good     uint64 // of it
	shift                           uint64
	universe, heap                  uint64 // Universe::_collectedHeap, and of what that refers to the ZHeap
	forwardingTable                 uint64 // of a ZHeap
	pageAllocator, pageTable        uint64 // the same, where the generations have tables of their own
	tableMap, mapList               uint64 // of a table, and of that: where the list is
	start, virtual, alignment, refs uint64 // of a ZForwarding: the memory that it is of, and who needs that still
	entries, length                 uint64 // the same: how many there are, behind it
	forwardingBytes                 uint64
}

const (
	zGranule     = 21 // bits
	maxZHeap     = 256 << 10
	maxZEntries  = 1 << 22
	zGenerations = 2

	zFirstRemapped, zRemapped = 12, 4 // bits of a stored address, of which one is set, beneath the address
)

// findZGC finds how the ZGC of a virtual machine keeps addresses; nil where that is not known, as elsewhere than on
// x86-64, where the marks have other places.
func (vm *machine) findZGC(generational bool) *zgc {
	if vm.image.Arch() != procstate.AMD64 {
		return nil
	}
	var structsAt, typesAt uint64
	vm.image.EachSymbol(vmTablesAt(&structsAt, &typesAt))
	t := vmTables{im: vm.image, bias: vm.bias, read: vm.read, texts: map[uint64]string{}}
	structs, types := t.table(structsAt, vmStructBytes), t.table(typesAt, vmTypeBytes)
	z := &zgc{f: zgcFields{generational: generational}}
	f, x := &z.f, "Z"
	if !generational && vm.release() >= 21 {
		x = "X"
	}
	has := t.fields(structs, map[string]map[string]*uint64{
		x + "GlobalsForVMStructs": {"_instance_p": &f.globals, "_" + x + "AddressOffsetMask": &f.offsets, "_ZPointerLoadBadMask": &f.bad, "_ZPointerLoadShift": &f.shift,
			"_" + x + "AddressGoodMask": &f.good, "_" + x + "AddressBadMask": &f.bad, "_" + x + "AddressWeakBadMask": &f.weakBad},
		"Universe":                       {"_collectedHeap": &f.universe},
		x + "CollectedHeap":              {"_heap": &f.heap},
		x + "Heap":                       {"_forwarding_table": &f.forwardingTable, "_page_allocator": &f.pageAllocator, "_page_table": &f.pageTable},
		x + "ForwardingTable":            {"_map": &f.tableMap},
		x + "GranuleMapForForwarding":    {"_map": &f.mapList},
		x + "VirtualMemory":              {"_start": &f.start},
		x + "Forwarding":                 {"_virtual": &f.virtual, "_object_alignment_shift": &f.alignment, "_ref_count": &f.refs, "_entries": &f.entries},
		x + "AttachedArrayForForwarding": {"_length": &f.length},
	})
	sized := t.sizes(types, map[string]*uint64{x + "Forwarding": &f.forwardingBytes})
	if !has.all(&f.globals, &f.offsets, &f.bad, &f.universe, &f.heap, &f.pageAllocator, &f.pageTable, &f.tableMap, &f.mapList,
		&f.start, &f.virtual, &f.alignment, &f.refs, &f.entries, &f.length) || !sized.all(&f.forwardingBytes) ||
		generational != has.all(&f.shift) || generational == has.all(&f.good, &f.weakBad, &f.forwardingTable) {
		return nil
	}
	if collected, ok := vm.word(f.universe + vm.bias); ok {
		z.heap = collected + f.heap
	}
	if z.refresh(vm); !z.ok || len(z.tables) == 0 {
		return nil
	}
	return z
}

// refresh reads what changes with each collection. Of a process that is no more it stays what it was.
func (z *zgc) refresh(vm *machine) {
	f := &z.f
	z.ok, z.asStored = true, false
	number := func(field uint64, to *uint64) (at uint64) {
		globals, ok1 := vm.word(f.globals + vm.bias)
		at, ok2 := vm.word(globals + field)
		v, ok3 := vm.word(at)
		if !ok1 || !ok2 || !ok3 {
			z.ok = false
			return z.badAt
		}
		*to = v
		return at
	}
	number(f.offsets, &z.offsets)
	if f.generational {
		z.badAt = number(f.bad, &z.bad)
		if z.tables == nil {
			z.findTables(vm)
		}
		return
	}
	z.badAt = number(f.weakBad, &z.bad)
	number(f.good, &z.good)
	if z.tables == nil {
		if list, ok := vm.word(z.heap + f.forwardingTable + f.tableMap + f.mapList); ok {
			z.tables = []zTable{{list, (z.offsets + 1) >> zGranule}}
		}
	}
}

// asCaptured has addresses read as they were marked at the moment of a capture, if it has what tells that: it has objects
// by the addresses that were stored. Where one of before has gone is told as it is now.
func (z *zgc) asCaptured(captured vmread.Reader) {
	var b [8]byte
	if z.badAt != 0 && captured(z.badAt, b[:]) {
		z.bad, z.asStored, z.ok = binary.LittleEndian.Uint64(b[:]), true, true
	}
}

// findTables finds the tables of both generations: each has, one after the other, the addresses of the heap's allocator
// and table of pages, and the table, with its length first.
func (z *zgc) findTables(vm *machine) {
	const step, atList = 4 << 10, 24
	if 16+z.f.tableMap+z.f.mapList != atList {
		return
	}
	allocator, pages := z.heap+z.f.pageAllocator, z.heap+z.f.pageTable
	var b [step + 32]byte
	for at := z.heap; at < z.heap+maxZHeap && len(z.tables) < zGenerations && vm.read(at, b[:]); at += step {
		for i := 0; i < step; i += 8 {
			words := b[i:]
			if binary.LittleEndian.Uint64(words) != allocator || binary.LittleEndian.Uint64(words[8:]) != pages {
				continue
			}
			if n := binary.LittleEndian.Uint64(words[16:]); n > 0 && n <= (z.offsets+1)>>zGranule {
				z.tables = append(z.tables, zTable{binary.LittleEndian.Uint64(words[atList:]), n})
			}
		}
	}
}

// address returns where the object is that a stored address refers to; 0: none, or it cannot be told. read reads the
// tables.
func (z *zgc) address(read vmread.Reader, stored uint64) uint64 {
	if !z.ok || stored == 0 {
		return 0
	}
	if z.f.generational {
		mark := stored >> zFirstRemapped & (1<<zRemapped - 1)
		if bits.OnesCount64(mark) != 1 {
			return 0
		}
		addr := stored >> (zFirstRemapped + bits.Len64(mark))
		if addr == 0 || stored&z.bad == 0 {
			return addr
		}
		for _, table := range z.tables {
			if addr = z.moved(read, table, addr); addr == 0 {
				return 0
			}
		}
		return addr
	}
	addr := stored&z.offsets | z.good
	switch {
	case stored&z.bad != 0:
	case z.asStored:
		return stored
	default:
		return addr
	}
	return z.moved(read, z.tables[0], addr)
}

// movedFrom returns where the object has gone that was at an address, by any of the tables.
func (z *zgc) movedFrom(read vmread.Reader, addr uint64) uint64 {
	if !z.f.generational {
		return z.address(read, addr)
	}
	for _, table := range z.tables {
		if to := z.moved(read, table, addr); to != addr {
			return to
		}
	}
	return addr
}

// whereCaptured returns an address by which a capture has the object at another, which may differ in marks; 0: none.
func (z *zgc) whereCaptured(captured vmread.Reader, addr uint64) uint64 {
	var head [16]byte
	if addr == 0 || captured(addr, head[:]) {
		return addr
	}
	for mark := z.offsets + 1; !z.f.generational && mark != 0 && mark <= (z.offsets+1)<<2; mark <<= 1 {
		if at := addr&z.offsets | mark; captured(at, head[:]) {
			return at
		}
	}
	return 0
}

// moved returns where an object has gone by a table; 0 where it is nowhere any more.
func (z *zgc) moved(read vmread.Reader, table zTable, addr uint64) uint64 {
	f, i := &z.f, addr&z.offsets>>zGranule
	if i >= table.len {
		return addr
	}
	forwarding, ok := read.Word(table.list + 8*i)
	if !ok {
		return 0
	}
	if forwarding == 0 {
		return addr // where it was
	}
	start, ok1 := read.Word(forwarding + f.virtual + f.start)
	alignment, ok2 := read.Word(forwarding + f.alignment)
	n, ok3 := read.Word(forwarding + f.entries + f.length)
	refs, ok4 := read.Word(forwarding + f.refs)
	if !ok1 || !ok2 || !ok3 || !ok4 || n == 0 || n > maxZEntries || n&(n-1) != 0 {
		return 0
	}
	// An entry has whether it is one, where the object has gone, and its number, by which it is found.
	const isEntry, toBits, numberBits = 1, 45, 18
	number := (addr&z.offsets - start) >> (alignment & 63)
	entries := forwarding + (f.forwardingBytes+7)&^7
	for at, looked := uint64(zHash(uint32(number)))&(n-1), uint64(0); looked < n; looked++ {
		entry, ok := read.Word(entries + 8*((at+looked)&(n-1)))
		if !ok {
			return 0
		}
		if entry&isEntry == 0 {
			break
		}
		if entry>>(1+toBits) == number&(1<<numberBits-1) {
			return addr&^z.offsets | entry>>1&(1<<toBits-1)
		}
	}
	if refs&(1<<32-1) == 0 {
		return 0 // that memory is given to others
	}
	return addr // not yet
}

// zHash is ZHash::uint32_to_uint32.
func zHash(key uint32) uint32 {
	key = ^key + key<<15
	key ^= key >> 12
	key += key << 2
	key ^= key >> 4
	key *= 2057
	return key ^ key>>16
}
