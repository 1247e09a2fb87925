package pe

import (
	"debug/pe"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/ianlancetaylor/demangle"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Limits on what is read of a file.
const (
	maxFile    = 1 << 30
	maxSymbols = 1 << 20
	maxTexts   = 64 << 20 // bytes of the names of symbols
)

// fileAt returns the mapping of the file whose image begins at an address.
func fileAt(pid int, start uint64) (entry procstate.MapsEntry, ok bool) {
	entries, _ := procstate.ReadMaps(fmt.Sprintf("/proc/%d/maps", pid), false)
	i := slices.IndexFunc(entries, func(e procstate.MapsEntry) bool { return e.Start == start && e.Offset == 0 && e.Inode != 0 })
	if i < 0 {
		return entry, false
	}
	return entries[i], true
}

// readFile reads the contents of an image from the file that it is of, with the symbols of functions that this has, as what GCC
// makes is mostly given. It returns false where that cannot be had, or is another one by now.
func (im *image) readFile(pid int, entry *procstate.MapsEntry) bool {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/root%s", pid, entry.Path), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	file := os.NewFile(uintptr(fd), "")
	defer file.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Ino != entry.Inode || st.Size > maxFile {
		return false
	}
	var head [headBytes]byte
	if _, err := file.ReadAt(head[:], int64(im.header-im.start)); err != nil || withoutBase(head) != withoutBase(im.head) || !hasFewSymbols(file) {
		return false
	}
	f, err := pe.NewFile(file)
	if err != nil || !im.readTables(im.sectionReader(f)) {
		return false
	}
	im.readSymbols(f)
	return true
}

// sectionReader reads the sections of a file as if they were loaded.
func (im *image) sectionReader(f *pe.File) vmread.Reader {
	return func(addr uint64, buf []byte) bool {
		rva := addr - im.start
		for _, s := range f.Sections {
			if off := rva - uint64(s.VirtualAddress); off < uint64(s.Size) && uint64(len(buf)) <= uint64(s.Size)-off {
				n, err := s.ReadAt(buf, int64(off))
				return n == len(buf) && (err == nil || err == io.EOF)
			}
		}
		return false
	}
}

// hasFewSymbols reports whether a file tells of no more symbols, and names of these, than may be read.
func hasFewSymbols(file io.ReaderAt) bool {
	const toHeader, toSymbols, toCount, symbolBytes = 0x3c, 12, 16, 18
	word := func(at int64) (int64, bool) {
		var b [4]byte
		_, err := file.ReadAt(b[:], at)
		return int64(binary.LittleEndian.Uint32(b[:])), err == nil
	}
	header, ok1 := word(toHeader)
	at, ok2 := word(header + toSymbols)
	n, ok3 := word(header + toCount)
	if !ok1 || !ok2 || !ok3 || n > maxSymbols {
		return false
	}
	texts, ok := word(at + symbolBytes*n)
	return at == 0 || ok && texts <= maxTexts
}

// readSymbols reads the symbols of functions in a file. Names that are exported are left.
func (im *image) readSymbols(f *pe.File) {
	const isFunction, external, static = 0x20, 2, 3
	for i := 0; i < len(f.COFFSymbols); i++ {
		s := &f.COFFSymbols[i]
		n := int(s.SectionNumber)
		if s.Type == isFunction && (s.StorageClass == external || s.StorageClass == static) && n > 0 && n <= len(f.Sections) {
			name, err := s.FullName(f.StringTable)
			if start := f.Sections[n-1].VirtualAddress + s.Value; err == nil && name != "" && im.names[start] == "" {
				im.names[start] = name
			}
		}
		i += int(s.NumberOfAuxSymbols)
	}
}

// begin returns where the function without an entry begins that an offset is in, as the names tell: the offset itself, where
// there are functions with entries between.
func (im *image) begin(rva uint32) uint32 {
	if len(im.named) != len(im.names) {
		im.named = slices.Sorted(maps.Keys(im.names))
	}
	i := sort.Search(len(im.named), func(i int) bool { return im.named[i] > rva }) - 1
	before := sort.Search(len(im.functions), func(i int) bool { return im.functions[i].start > rva }) - 1
	if i < 0 || before >= 0 && im.functions[before].end > im.named[i] {
		return rva
	}
	return im.named[i]
}

// function returns what a function is called that begins at an offset.
func (im *image) function(rva uint32) *unwind.CodeFunction {
	name := im.names[rva]
	if name == "" {
		name = fmt.Sprintf("%s+%#x", im.name, rva)
	}
	f := &unwind.CodeFunction{Name: name, SystemName: name, Runtime: runtime}
	if whole, err := demangle.ToString(name); err == nil {
		f.Name = whole
		if short, err := demangle.ToString(name, demangle.NoParams); err == nil && strings.HasPrefix(whole, short) {
			f.Name, f.Parameters = short, whole[len(short):]
		}
	}
	return f
}
