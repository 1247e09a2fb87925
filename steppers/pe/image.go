package pe

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"path"
	"slices"
	"sort"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// image is a program or a library, as it is in memory.
type image struct {
	start, end uint64           // run-time addresses
	header     uint64           // where its header is,
	head       [headBytes]byte  // and what that begins with
	infos      map[uint32]*info // what is told of functions, by where that is
	*contents
}

// contents is what is known of a program or a library wherever it is loaded. Places are offsets from where it begins.
type contents struct {
	name      string
	functions []function        // in order of address
	names     map[uint32]string // of functions, by where they begin
	named     []uint32          // these, in order
}

// contentsKey tells contents apart: by their file, and what their header begins with but for where they are loaded.
type contentsKey struct {
	major, minor uint32
	inode        uint64
	head         [headBytes]byte
}

// function is an entry of the table of functions: offsets from where the image begins.
type function struct{ start, end, info uint32 }

// Limits on what is read of an image.
const (
	granularity  = 64 << 10 // of where images begin
	maxImage     = 1 << 31
	maxSearch    = 512 << 20 // from where a mapping begins down to its image
	maxFunctions = 1 << 21
	maxExports   = 1 << 16
	maxName      = 256
	maxShared    = 256 // contents
	entryBytes   = 12
	pieceBytes   = 64 << 10 // that are read at once
)

// imageAt returns the image that an address in a mapping is in, nil when there is none.
func (vm *machine) imageAt(m *procstate.Mapping, addr uint64) *image {
	i := sort.Search(len(vm.images), func(i int) bool { return vm.images[i].end > addr })
	if i < len(vm.images) && vm.images[i].start <= addr {
		return vm.images[i]
	}
	missed, seen := vm.none[m.Start]
	if seen && time.Since(missed.at) < missed.last {
		return nil
	}
	im := vm.findImage(m, addr)
	if im == nil || len(vm.images) >= maxImages {
		if len(vm.none) >= maxNone {
			clear(vm.none)
		}
		vm.none[m.Start] = miss{time.Now(), min(max(2*missed.last, firstMiss), longMiss)}
		return nil
	}
	vm.images = slices.DeleteFunc(vm.images, func(o *image) bool { return o.start < im.end && im.start < o.end })
	i = sort.Search(len(vm.images), func(i int) bool { return vm.images[i].start > im.start })
	vm.images = slices.Insert(vm.images, i, im)
	return im
}

// findImage looks for the image that an address in a mapping is in.
func (vm *machine) findImage(m *procstate.Mapping, addr uint64) *image {
	read := vmread.Reader(vm.ReadNow)
	var head [2]byte
	for start := m.Start &^ (granularity - 1); m.Start-start <= maxSearch; start -= granularity {
		if read(start, head[:]) && string(head[:]) == "MZ" {
			if im := openImage(read, start); im != nil {
				if addr-im.start >= im.end-im.start || !vm.fill(im, read) {
					return nil
				}
				return im
			}
		}
		if start < granularity {
			break
		}
	}
	return nil
}

// isStill reports whether the image is still there, or cannot be read any more.
func (im *image) isStill(read vmread.Reader) bool {
	var head [headBytes]byte
	return !read(im.header, head[:]) || head == im.head
}

// fill takes the contents of an image, which are read once from its file for all processes that have it, and from memory where there is
// no such file. It returns false where they cannot be read now.
func (vm *machine) fill(im *image, read vmread.Reader) bool {
	im.infos = map[uint32]*info{}
	entry, isFile := fileAt(vm.pid, im.start)
	key := contentsKey{entry.Major, entry.Minor, entry.Inode, withoutBase(im.head)}
	if c := vm.shared[key]; isFile && c != nil {
		im.contents = c
		return true
	}
	im.contents = &contents{names: map[uint32]string{}}
	if isFile {
		im.name = path.Base(entry.Path)
		if im.readFile(vm.pid, &entry) {
			if len(vm.shared) >= maxShared {
				clear(vm.shared)
			}
			vm.shared[key] = im.contents
			return true
		}
	}
	return im.readTables(read)
}

// withoutBase returns a header without where the image was loaded.
func withoutBase(head [headBytes]byte) [headBytes]byte {
	clear(head[toImageBase : toImageBase+8])
	return head
}

// Places in a header, from where it begins.
const (
	toImageBase    = 24 + 24
	sizeOfImage    = 24 + 56
	countOfTables  = 24 + 108
	exportTable    = 24 + 112
	exceptionTable = exportTable + 3*8
	headBytes      = exportTable + 4*8 // of a header: up to the table of functions
)

// openImage reads where the image is that begins at an address, nil when it is none for x86-64.
func openImage(read vmread.Reader, start uint64) *image {
	const (
		toHeader, machineAMD64, optional64 = 0x3c, 0x8664, 0x20b
	)
	le := binary.LittleEndian
	var offset [4]byte
	if !read(start+toHeader, offset[:]) || le.Uint32(offset[:]) >= 1<<16 {
		return nil
	}
	header := start + uint64(le.Uint32(offset[:]))
	var head [headBytes]byte
	if !read(header, head[:]) || string(head[:4]) != "PE\x00\x00" ||
		le.Uint16(head[4:]) != machineAMD64 || le.Uint16(head[24:]) != optional64 {
		return nil
	}
	size := le.Uint32(head[sizeOfImage:])
	if size == 0 || size > maxImage {
		return nil
	}
	return &image{start: start, end: start + uint64(size), header: header, head: head}
}

// readTables reads the functions, and the names of those that are exported.
func (im *image) readTables(read vmread.Reader) bool {
	le, size := binary.LittleEndian, uint32(im.end-im.start)
	tables := le.Uint32(im.head[countOfTables:])
	if at, n := le.Uint32(im.head[exceptionTable:]), le.Uint32(im.head[exceptionTable+4:]); tables > 3 && n/entryBytes <= maxFunctions && at < size && n <= size-at && !im.readFunctions(read, at, n) {
		return false
	}
	if at := le.Uint32(im.head[exportTable:]); tables > 0 && at != 0 && at < size {
		im.readExports(read, at)
	}
	return true
}

// readFunctions reads the table of functions.
func (im *image) readFunctions(read vmread.Reader, at, size uint32) bool {
	b := make([]byte, size/entryBytes*entryBytes)
	for from := 0; from < len(b); from += pieceBytes {
		if !read(im.start+uint64(at)+uint64(from), b[from:min(from+pieceBytes, len(b))]) {
			return false
		}
	}
	le := binary.LittleEndian
	im.functions = make([]function, 0, len(b)/entryBytes)
	for ; len(b) >= entryBytes; b = b[entryBytes:] {
		if f := (function{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:])}); f.start < f.end {
			im.functions = append(im.functions, f)
		}
	}
	slices.SortFunc(im.functions, func(a, b function) int { return cmp.Compare(a.start, b.start) })
	return true
}

// readExports reads the names of what the image exports, and its own.
func (im *image) readExports(read vmread.Reader, at uint32) {
	const name, addresses, names, toAddresses, toNames, toOrdinals, headLen = 12, 20, 24, 28, 32, 36, 40
	le := binary.LittleEndian
	var head [headLen]byte
	if !read(im.start+uint64(at), head[:]) {
		return
	}
	if text := im.text(read, le.Uint32(head[name:])); text != "" {
		im.name = text
	}
	n, all := min(le.Uint32(head[names:]), maxExports), min(le.Uint32(head[addresses:]), maxExports)
	table := func(at uint32, size uint32) []byte {
		b := make([]byte, size)
		if !read(im.start+uint64(le.Uint32(head[at:])), b) {
			return nil
		}
		return b
	}
	starts, texts, ordinals := table(toAddresses, 4*all), table(toNames, 4*n), table(toOrdinals, 2*n)
	if starts == nil || texts == nil || ordinals == nil {
		return
	}
	for i := range n {
		if o := uint32(le.Uint16(ordinals[2*i:])); o < all {
			if text := im.text(read, le.Uint32(texts[4*i:])); text != "" {
				start := le.Uint32(starts[4*o:])
				if known := im.names[start]; known == "" || len(text) < len(known) {
					im.names[start] = text
				}
			}
		}
	}
}

// text reads a text that ends with a zero; "" when there is none.
func (im *image) text(read vmread.Reader, at uint32) string {
	var b [maxName]byte
	n := len(b)
	for n > 0 && !read(im.start+uint64(at), b[:n]) {
		n /= 2 // it is at the end of what can be read
	}
	if at == 0 {
		return ""
	}
	end := bytes.IndexByte(b[:n], 0)
	if end <= 0 || !vmread.IsPrintable(string(b[:end])) {
		return ""
	}
	return string(b[:end])
}

// functionAt returns the function with the code at an offset, nil when there is none.
func (im *image) functionAt(rva uint32) *function {
	i := sort.Search(len(im.functions), func(i int) bool { return im.functions[i].start > rva }) - 1
	if i < 0 || rva >= im.functions[i].end {
		return nil
	}
	return &im.functions[i]
}
