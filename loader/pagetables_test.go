package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Page tables tell of this process's pages what the kernel does.
func TestPageTables(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("page tables are read on amd64 alone")
	}
	kernelTest(t)
	mem, err := openKernelMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer mem.close()
	tables, err := currentPageTables(mem)
	if err != nil {
		t.Fatal(err)
	}
	top, err := mem.pageTable()
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, 1000*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil {
		t.Log(err)
	}
	for i := 0; i < 1000; i += 3 {
		b[i*page] = 1
	}
	for i := range 1000 {
		addr := uint64(uintptr(unsafe.Pointer(&b[i*page])))
		number, err := tables.pageNumber(mem, top, addr)
		if i%3 != 0 {
			if !errors.Is(err, errNoPageTables) {
				t.Errorf("page %d, which is not there: %#x, %v", i, number, err)
			}
			continue
		}
		if want, wantErr := pageNumberOf(addr); err != nil || wantErr != nil || number != want {
			t.Errorf("page %d: %#x, %v; %#x, %v by the kernel", i, number, err, want, wantErr)
		}
	}
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
	const present, number = 1 << 63, 1<<55 - 1
	e := binary.NativeEndian.Uint64(b[:])
	if e&present == 0 || e&number == 0 {
		return 0, fmt.Errorf("pagemap of %#x: %#x", addr, e)
	}
	return e & number, nil
}

// tablesMemory is a kernel's memory of which some words are told.
type tablesMemory map[uint64]uint64

func (m tablesMemory) read(addr uint64, n int) ([]byte, error) {
	v, ok := m[addr]
	if !ok || n > 8 {
		return nil, errNoAnswer
	}
	return binary.LittleEndian.AppendUint64(nil, v)[:n], nil
}

func (m tablesMemory) readBoth(addr1 uint64, n1 int, addr2 uint64, n2 int) (b1, b2 []byte, err error) {
	return nil, nil, errNoAnswer
}

func (m tablesMemory) read32(addr uint64) (uint32, error) { return 0, errNoAnswer }

// Page tables are found with four levels and with five, with memory that is encrypted and with
// such that is not; and nothing is where something else is found.
func TestFindPageTables(t *testing.T) {
	const memory4, memory5, addr, number, cookie = 0xffff_9a40_0000_0000, 0xff2f_225b_8000_0000, 0x7f12_3456_7000, 0x54321, 0x1122334455667788
	const writable = 7 // and present, and of user space
	tables := func(memory, shift, more uint64) (tablesMemory, uint64) {
		m := tablesMemory{memory + number<<12: cookie}
		table := uint64(0x123456000)
		top := memory + table
		for ; shift >= 12; shift -= 9 {
			next := table + 1<<28
			if shift == 12 {
				next = number << 12
			}
			m[memory+table+addr>>shift&511*8] = next | more | writable
			table = next
		}
		return m, top
	}
	begin := binary.LittleEndian.AppendUint64(nil, cookie)
	const limit = 1 << 40
	const noExecute = 1 << 63
	for _, bit := range []uint64{0, 1 << 47, 1 << 51} {
		for _, c := range []struct{ memory, shift uint64 }{{memory4, 39}, {memory5, 48}} {
			m, top := tables(c.memory, c.shift, bit|noExecute)
			want := pageTables{c.memory, c.shift, (1<<52 - 1<<12) &^ bit, limit}
			if got, err := findPageTables(m, top, addr, begin, limit); err != nil || got != want {
				t.Errorf("bit %#x: %#x, %v; want %#x", bit, got, err, want)
			}
		}
	}
	m, top := tables(memory4, 39, 0)
	for at, v := range m {
		if v == cookie {
			continue
		}
		m[at] = v &^ entryPresent
		if got, err := findPageTables(m, top, addr, begin, limit); err == nil {
			t.Errorf("without the entry at %#x: %#x", at, got)
		}
		m[at] = v
	}
	for _, limit := range []uint64{0, 1 << 12, 1 << 32} { // tables are above
		if got, err := findPageTables(m, top, addr, begin, limit); err == nil {
			t.Errorf("limit %#x: %#x", limit, got)
		}
	}
	if got, err := findPageTables(m, top, addr+1<<12, begin, limit); err == nil {
		t.Errorf("of another page: %#x", got)
	}
	m[memory4+number<<12]++
	if got, err := findPageTables(m, top, addr, begin, limit); err == nil {
		t.Errorf("of a page with other bytes: %#x", got)
	}
	if got, err := findPageTables(tablesMemory{}, 1<<63, addr, begin, limit); err == nil {
		t.Errorf("at the lowest address of the kernel: %#x", got)
	}
}
