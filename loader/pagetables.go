package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The page tables of x86-64 (Intel SDM volume 3, 4.5): each level is indexed by nine bits of an
// address. The kernel keeps all physical memory at one address, at which the tables can be
// read; it is another one each time that the machine starts, and in no public place.
const (
	entryPresent  = 1 << 0
	entryLarge    = 1 << 7
	entryAddress  = 1<<52 - 1<<12 // of the next table, or the page
	tableBits     = 9
	pageBits      = 12
	memoryAlign   = 1 << 30 // of the address of all memory (PUD_SIZE)
	lowestAddress = 1 << 63 // of the kernel
)

// encryptionBits are where entries may tell that a page is encrypted (AMD SEV): none, or
// the bit that some processor has for it.
var encryptionBits = []uint64{0, 1 << 47, 1 << 51}

// pageTables tells the sampling programs how to find page tables: struct page_tables of bpf/config.h.
type pageTables struct {
	memory      uint64 // the address of physical memory
	shift       uint64 // of an address, for the index of the topmost table
	addressBits uint64 // of an entry
	limit       uint64 // that physical addresses are below
}

var errNoPageTables = errors.New("page tables not found")

// findPageTables finds out how those that begin at top can be read: so that they lead from an address to a page that
// begins with these bytes, as no other does. All memory has an address of 48 bits where the tables have four levels.
// What is taken for a table while that is tried is memory, too: physical addresses are below limit, or else what is
// behind all memory, devices perhaps, would be read.
func findPageTables(mem memoryReader, top, addr uint64, begin []byte, limit uint64) (pageTables, error) {
	t := pageTables{memory: top &^ (memoryAlign - 1), shift: 48, limit: limit}
	if int64(top)<<16>>16 == int64(top) {
		t.shift -= tableBits
	}
	for top-t.memory < limit {
		for _, encrypted := range encryptionBits {
			t.addressBits = entryAddress &^ encrypted
			number, err := t.pageNumber(mem, top, addr)
			if err != nil {
				continue
			}
			if b, err := mem.read(t.memory+number<<pageBits, len(begin)); err == nil && bytes.Equal(b, begin) {
				return t, nil
			}
		}
		if t.memory -= memoryAlign; t.memory < lowestAddress {
			break
		}
	}
	return pageTables{}, errNoPageTables
}

// pageNumber returns which page of physical memory is at an address; errNoPageTables when
// there is none, or not one of 4 KB.
func (t pageTables) pageNumber(mem memoryReader, top, addr uint64) (uint64, error) {
	table := top
	for shift := t.shift; ; shift -= tableBits {
		b, err := mem.read(table+addr>>shift&(1<<tableBits-1)*8, 8)
		if err != nil {
			return 0, err
		}
		entry := binary.LittleEndian.Uint64(b)
		switch {
		case entry&entryPresent == 0, shift > pageBits && entry&entryLarge != 0, entry&t.addressBits >= t.limit:
			return 0, errNoPageTables
		case shift == pageBits:
			return entry & t.addressBits >> pageBits, nil
		}
		table = t.memory + entry&t.addressBits
	}
}

// hasGaps tells whether pages were left out of a stack, between two regions.
func (s *Sample) hasGaps() bool {
	regions := s.StackRegions()
	for i := 1; i < len(regions); i++ {
		end, next := regions[i-1].Addr+uint64(len(regions[i-1].Data)), regions[i].Addr
		if end < next && (end|next)&(1<<pageBits-1) == 0 {
			return true
		}
	}
	return false
}

// watchForGaps returns a function that has tellPageTables called for the first sample that has gaps, before it calls fn.
func (s *Session) watchForGaps(fn func(*Sample) error) func(*Sample) error {
	if s.toldPages {
		return fn
	}
	return func(p *Sample) error {
		if !s.toldPages && p.hasGaps() {
			s.tellPageTables()
		}
		return fn(p)
	}
}

// tellPageTables has the sampling programs know what is there of stacks with gaps, where
// that can be known. It is tried once.
func (s *Session) tellPageTables() {
	s.toldPages = true
	if runtime.GOARCH != "amd64" {
		return
	}
	mem := s.openMemory()
	if mem == nil {
		return
	}
	if s.kernel == nil || mem != s.kernel.mem {
		defer mem.close()
	}
	t, err := currentPageTables(mem)
	if err != nil {
		return
	}
	for i := range s.rings.cpus {
		p := s.rings.cpus[i].pageTables
		p.Shift, p.AddressBits = t.shift, t.addressBits
		atomic.StoreUint64(&p.Memory, t.memory)
	}
}

// openMemory returns the kernel's memory; nil where it cannot be read.
func (s *Session) openMemory() *kernelMemory {
	if s.kernel != nil && s.kernel.mem != nil {
		return s.kernel.mem
	}
	mem, err := openKernelMemory()
	if err != nil {
		return nil
	}
	return mem
}

// currentPageTables finds those of this process.
func currentPageTables(mem *kernelMemory) (pageTables, error) {
	b, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return pageTables{}, err
	}
	defer unix.Munmap(b)
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // an older kernel may not have them
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	binary.NativeEndian.PutUint64(b, monotonic()) // such as no other page has
	binary.NativeEndian.PutUint64(b[8:], ^addr)
	top, err := mem.pageTable()
	if err != nil {
		return pageTables{}, err
	}
	limit, err := physicalLimit()
	if err != nil {
		return pageTables{}, err
	}
	return findPageTables(mem, top, addr, b[:16], limit)
}

// physicalLimit returns an address that the machine's memory ends below, unless it has large holes.
func physicalLimit() (uint64, error) {
	const holes = 64 << 30
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, err
	}
	return 2*info.Totalram*uint64(info.Unit) + holes, nil
}
