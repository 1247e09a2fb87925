package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
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
	maxMemoryGB   = 1 << 12 // that are looked at
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
}

// knownPage is a page of this process of which all is known.
type knownPage struct {
	addr   uint64
	number uint64 // in physical memory
	bytes  []byte // it begins with these
}

var errNoPageTables = errors.New("page tables not found")

// findPageTables finds out how those that begin at top can be read: so that they lead to the
// known page.
func findPageTables(mem memoryReader, top uint64, page knownPage) (pageTables, error) {
	first := top &^ (memoryAlign - 1)
	for memory := first; memory >= lowestAddress && first-memory < maxMemoryGB*memoryAlign; memory -= memoryAlign {
		if b, err := mem.read(memory+page.number<<pageBits, len(page.bytes)); err != nil || !bytes.Equal(b, page.bytes) {
			continue
		}
		for _, shift := range []uint64{39, 48} {
			for _, encrypted := range encryptionBits {
				t := pageTables{memory, shift, entryAddress &^ encrypted}
				if number, err := t.pageNumber(mem, top, page.addr); err == nil && number == page.number {
					return t, nil
				}
			}
		}
		break
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
		case entry&entryPresent == 0, shift > pageBits && entry&entryLarge != 0:
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
	number, err := pageNumberOf(addr)
	if err != nil {
		return pageTables{}, err
	}
	top, err := mem.pageTable()
	if err != nil {
		return pageTables{}, err
	}
	return findPageTables(mem, top, knownPage{addr, number, b[:16]})
}

// pageNumberOf asks the kernel which page of physical memory is at an address of this process
// (Documentation/admin-guide/mm/pagemap.rst).
func pageNumberOf(addr uint64) (uint64, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var b [8]byte
	if _, err := f.ReadAt(b[:], int64(addr>>pageBits*8)); err != nil {
		return 0, err
	}
	const present, number = 1 << 63, 1<<55 - 1 // 0 without CAP_SYS_ADMIN
	e := binary.NativeEndian.Uint64(b[:])
	if e&present == 0 || e&number == 0 {
		return 0, fmt.Errorf("pagemap of %#x: %#x", addr, e)
	}
	return e & number, nil
}
