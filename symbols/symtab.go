package symbols

import (
	"bytes"
	"slices"
	"sync"

	"github.com/swbpf/swbpf/procstate"
)

// Limits on names, in bytes. Templates have names of a hundred kilobytes and more.
const (
	maxNameLength = 1 << 20 // longer ones are cut
	usualName     = 1 << 12 // longer ones are cut to it when they take too much together
)

// cutMark ends a name that was cut.
const cutMark = "..."

// symtab is the index of all symbols of a file that name code: disjoint
// ranges of link-time addresses, sorted, each with its symbol. Names stay in
// the file until they are asked for. It is immutable but for its name cache.
//
// Where symbols share an address the one with the highest rank wins (see
// symbolRank), then the one with fewer leading underscores, then the shorter,
// then the first in order of bytes: the same for every order of symbols. A
// sized symbol inside another takes its own bytes from that one. A symbol
// without size is open: it reaches to the next symbol or the end of its
// section, and takes nothing from sized ones.
type symtab struct {
	base   uint64   // link-time address that offsets count from
	ranges rangeSet // of indices in addrs

	addrs   []uint32 // of the symbols
	names   []uint32 // offset of the name in its string table
	sources []uint8  // index in strtabs; alike where it is another name of the symbol before
	open    []uint32 // the symbols without size, in order

	strtabs []strtab

	mu    sync.RWMutex
	cache map[uint32]symbolName
}

// alike is set in the source of a name that the symbol before has as well, if it is
// the better one.
const alike = 0x80

// strtab is a string table, left in its file, and what follows its names.
type strtab struct {
	img    *procstate.Image
	off    uint64
	size   uint64
	raw    []byte // in memory instead, where it had to be decompressed, or is asked for often
	missed uint64 // what was read so far cost, as with a dwarfSection
	suffix string // "@plt"
}

// symbolName is a name as the file has it and as people read it.
type symbolName struct{ system, function string }

// nameAt returns the string at b[off:], without its version.
func nameAt(b []byte, off uint64) []byte {
	if off >= uint64(len(b)) {
		return nil
	}
	b = b[off:]
	if len(b) > maxNameLength {
		b = b[:maxNameLength]
	}
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	if i := bytes.IndexByte(b, '@'); i > 0 {
		b = b[:i]
	}
	return b
}

// memory is what the index takes, in bytes.
func (t *symtab) memory() int {
	return 8*cap(t.ranges.starts) + 9*cap(t.addrs) + 4*cap(t.open)
}

// find returns the symbol that holds a link-time address.
func (t *symtab) find(vaddr uint64) (id uint32, ok bool) {
	off := vaddr - t.base
	if vaddr < t.base || off >= none {
		return 0, false
	}
	return t.ranges.find(uint32(off))
}

// isOpen reports whether the symbol that holds a link-time address has no size.
func (t *symtab) isOpen(vaddr uint64) bool {
	id, ok := t.find(vaddr)
	if !ok {
		return false
	}
	_, open := slices.BinarySearch(t.open, id)
	return open
}

// start is the link-time address of a symbol.
func (t *symtab) start(id uint32) uint64 { return t.base + uint64(t.addrs[id]) }

// name returns a symbol's name; both parts are empty when the file cannot be
// read any more.
func (t *symtab) name(id uint32, mode DemangleMode, b *budget) symbolName {
	t.mu.RLock()
	n, ok := t.cache[id]
	t.mu.RUnlock()
	if ok {
		return n
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n.system = t.systemName(id, b)
	n.function = Demangle(n.system, mode)
	t.cache[id] = n
	return n
}

// maxNamesRead bounds what is read to find the best name of a symbol, in bytes.
const maxNamesRead = 16 << 20

// systemName reads the best name of a symbol.
func (t *symtab) systemName(id uint32, b *budget) string {
	read := func() string {
		strs := &t.strtabs[t.sources[id]&^alike]
		strs.asked(b)
		return strs.read(uint64(t.names[id]))
	}
	best, cost := read(), 0
	for id++; int(id) < len(t.sources) && t.sources[id]&alike != 0 && cost < maxNamesRead; id++ {
		name := read()
		if compareNames([]byte(name), []byte(best)) < 0 {
			best = name
		}
		cost += len(name) + 64 // of the call
	}
	return b.boundName(best)
}

// asked counts a question, and reads the table whole when that had been the
// cheaper way to answer all so far.
func (s *strtab) asked(b *budget) {
	if s.missed += readCost; s.raw != nil || s.missed < s.size || s.size > maxWhole || !b.mayCharge(int(s.size)) {
		return
	}
	s.raw = s.whole()
}

// whole reads the table; it is nil when that cannot be.
func (s *strtab) whole() []byte {
	if s.size > uint64(s.img.Size()) {
		return nil
	}
	b := make([]byte, s.size)
	if n, _ := s.img.ReadAt(b, int64(s.off)); n < len(b) {
		return nil
	}
	return b
}

// read returns the name at an offset of the table.
func (s *strtab) read(off uint64) string {
	if s.raw != nil {
		return string(nameAt(s.raw, off)) + s.suffix
	}
	var small [128]byte
	buf := small[:]
	for off < s.size {
		buf = buf[:min(uint64(len(buf)), s.size-off)]
		n, _ := s.img.ReadAt(buf, int64(s.off+off))
		if bytes.IndexByte(buf[:n], 0) >= 0 || len(buf) >= maxNameLength || n < len(buf) {
			return string(nameAt(buf[:n], 0)) + s.suffix
		}
		if uint64(len(buf)) == s.size-off {
			return string(nameAt(buf, 0)) + s.suffix
		}
		buf = make([]byte, 16*len(buf))
	}
	return s.suffix
}
