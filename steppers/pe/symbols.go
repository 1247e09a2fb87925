package pe

import (
	"debug/pe"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/ianlancetaylor/demangle"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Limits on what is read of a file.
const (
	maxFile    = 4 << 30
	maxSymbols = 1 << 20
)

// nameFile names an image after the file that it begins in, and takes the symbols of functions that this has, as what GCC
// makes is mostly given.
func (im *image) nameFile(pid int) {
	entries, err := procstate.ReadMaps(fmt.Sprintf("/proc/%d/maps", pid), false)
	i := slices.IndexFunc(entries, func(e procstate.MapsEntry) bool { return e.Start == im.start && e.Offset == 0 && e.Inode != 0 })
	if err != nil || i < 0 {
		return
	}
	if im.name == "" {
		im.name = path.Base(entries[i].Path)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/root%s", pid, entries[i].Path), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Ino == entries[i].Inode && st.Size <= maxFile {
		im.readSymbols(f)
	}
}

// readSymbols reads the symbols of functions in a file. Names that are exported are left.
func (im *image) readSymbols(file io.ReaderAt) {
	f, err := pe.NewFile(file)
	if err != nil || len(f.COFFSymbols) > maxSymbols {
		return
	}
	const isFunction, external, static = 0x20, 2, 3
	if header, ok := f.OptionalHeader.(*pe.OptionalHeader64); !ok || uint64(header.SizeOfImage) != im.end-im.start {
		return
	}
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
