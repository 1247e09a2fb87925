package beam

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sort"
	"strings"
	"time"
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// What BeamAsm, the compiler of Erlang's runtime system, tells debuggers of the code that it has made
// (erts/emulator/beam/jit/beam_jit_metadata.cpp) is in the list of GDB's JIT interface. The entries are
// no object files: one tells how frames are laid out, and the others of a module each. The list has the newest
// first. Up to OTP 25 modules that were unloaded stay in it; later ones are taken from it, and what is told of
// them is freed, so that the next may be told of in the same place.
//
//	4 bytes  0: of all code   8: whether there are frame pointers, 16: where the first function returns to
//	         1: of a module   8: where its code is, 16: of how many ranges it tells, 20: bytes of code,
//	                          24: bytes of its name, which follows at 26
//	32 bytes behind the name ranges: where it begins, where it ends, lines, bytes of the name, the name
//	                         and its lines: from where on, the line, bytes of the file, the file
const (
	infoBytes  = 32
	rangeBytes = 16
	rangeName  = 14
	lineBytes  = 12
	lineFile   = 10
)

// Limits on what is read of that.
const (
	maxModules = 1 << 15
	maxTold    = 16 << 20 // bytes, of a module
	maxRanges  = 1 << 16  // of a module
	maxLines   = 1 << 18  // of a module
	maxKept    = 64 << 20 // bytes of what was read of modules, until all is read anew,
	maxMost    = 2 * maxKept
	maxPast    = 1 << 10          // modules that are no more
	maxAgain   = 16               // modules that are compared again, the newest, where the list has changed
	anew       = 10 * time.Second // which is not done again for so long
)

// loadedModule is code that was made in one piece.
type loadedModule struct {
	start, end uint64 // run-time addresses
	told       uint64 // address of what is told of it
	size       uint64 // bytes of that
	name       string

	isRead bool
	sum    uint32      // of what is told of it
	ranges []codeRange // in order of address, without overlaps; nil where they could not be read

	replaces bool         // there was another module in this place: when it was this one's
	valid    vmread.Valid // is known by this
}

// codeRange is the code of a function, of a part of the runtime's own, or what stands before a function.
type codeRange struct {
	start, end uint64
	name       string // of the function, without what it has before it
	isHead     bool   // the end of it is where the function is entered
	lines      []line
}

// line is a line of the source, from an address on.
type line struct {
	start uint64
	line  uint32
	file  string
}

// notRead stands for functions of which it is not known whether they were there.
var notRead = codeRange{name: "[not read]"}

// head is what BeamAsm adds to the name of a function for what stands before it.
const head = "-CodeInfoPrologue"

// code is the code that a process has told of.
type code struct {
	modules []*loadedModule // in order of address, without overlaps
	first   uint64          // the entry that the list began with when it was read; 0: it was not read to its end
	newest  *loadedModule   // what that told of; nil: of no module
	past    []*loadedModule // the last that were no longer told of,
	gone    int             // and how many there were
	kept    int             // bytes
	anew    time.Time       // when all was read anew

	hasFramePointers bool
	shared           uint64 // where the code begins that is the runtime's own; 0: not known
	exit             uint64 // where the first function of an Erlang process returns to; 0: not known
}

// update reads the list again if it has changed. descriptor is where it begins, see procstate.JITObjects.
func (c *code) update(read vmread.Reader, descriptor uint64) {
	const head, next, what = 16, 0, 16
	first, ok := read.Word(descriptor + head)
	isFull := c.kept >= maxKept && time.Since(c.anew) >= anew
	if !ok || first == c.first && !isFull && (c.newest == nil || c.isTold(read, c.newest)) {
		return
	}
	known := map[uint64]*loadedModule{}
	if !isFull {
		for _, m := range c.modules {
			known[m.told] = m
		}
	} else {
		c.kept, c.anew = 0, time.Now()
	}
	c.first, c.newest = first, nil
	var modules []*loadedModule
	var entry [32]byte
	le := binary.LittleEndian
	again := maxAgain // older ones are in the list for as long as these
	for at, n := first, 0; at != 0 && n < maxModules; at, n = le.Uint64(entry[next:]), n+1 {
		if !read(at, entry[:]) {
			c.first = 0
			break
		}
		m := c.open(read, le.Uint64(entry[what:]), le.Uint64(entry[what+8:]))
		if m == nil {
			continue
		}
		if k := known[m.told]; k != nil && k.isSame(m) && (!k.isRead || k.ranges != nil) {
			if k.isRead {
				again--
			}
			if again < 0 || !k.isRead || c.isTold(read, k) {
				m = k
			}
		}
		if n == 0 {
			c.newest = m
		}
		modules = append(modules, m)
	}
	was := c.modules
	if c.modules = newestModules(modules); isFull {
		c.gone++
		return
	}
	isNew := map[*loadedModule]bool{}
	for _, m := range c.modules {
		isNew[m] = true
	}
	for _, m := range was {
		if !isNew[m] {
			c.gone++
			c.past = append(c.past[max(0, len(c.past)+1-maxPast):], m)
		}
		delete(isNew, m)
	}
	for m := range isNew {
		if slices.ContainsFunc(c.past, func(o *loadedModule) bool { return o.start < m.end && m.start < o.end }) {
			m.replace()
		}
	}
}

// replace takes note that another module was in this place, and that this one is now.
func (m *loadedModule) replace() {
	at := procstate.Monotonic()
	m.replaces = true
	m.valid.Differs(vmread.Times{Taken: at, Now: at})
}

// isTold reports whether the same is told of a module as when the list was read.
func (c *code) isTold(read vmread.Reader, m *loadedModule) bool {
	if !m.isRead {
		now := c.open(read, m.told, m.size)
		return now != nil && now.isSame(m)
	}
	b := make([]byte, m.size)
	return read(m.told, b) && crc32.ChecksumIEEE(b) == m.sum
}

// isList reports whether the list of code begins at an address: with an entry that is the first, and before the next.
func (c *code) isList(read vmread.Reader, first uint64) bool {
	const previous = 8
	var entry [32]byte
	le := binary.LittleEndian
	if !read(first, entry[:]) || le.Uint64(entry[previous:]) != 0 || c.open(read, le.Uint64(entry[16:]), le.Uint64(entry[24:])) == nil {
		return false
	}
	second := le.Uint64(entry[:])
	return second != 0 && read(second, entry[:]) && le.Uint64(entry[previous:]) == first
}

// isSame reports whether two modules are one, as far as their beginnings tell.
func (m *loadedModule) isSame(o *loadedModule) bool {
	return m.start == o.start && m.end == o.end && m.size == o.size && m.name == o.name
}

// open reads what an entry begins with. It is nil where that is of no module.
func (c *code) open(read vmread.Reader, told, size uint64) *loadedModule {
	var b [infoBytes + 256]byte
	le := binary.LittleEndian
	if size < infoBytes || size > maxTold || !read(told, b[:min(size, uint64(len(b)))]) {
		return nil
	}
	switch le.Uint32(b[:]) {
	case 0:
		c.hasFramePointers, c.exit = le.Uint32(b[8:]) != 0, le.Uint64(b[16:])
	case 1:
		m := &loadedModule{start: le.Uint64(b[8:]), told: told, size: size}
		m.end = m.start + uint64(le.Uint32(b[20:]))
		n := uint64(le.Uint16(b[24:]))
		if m.end <= m.start || n == 0 || infoBytes+n > min(size, uint64(len(b))) {
			return nil
		}
		m.name = string(bytes.TrimRight(b[26:26+n], "\x00"))
		return m
	}
	return nil
}

// newestModules puts modules in order of address, the newest of which come first. Of those that
// overlap the newest is left: the others are no more.
func newestModules(modules []*loadedModule) []*loadedModule {
	age := map[*loadedModule]int{}
	for i, m := range modules {
		age[m] = i
	}
	slices.SortFunc(modules, func(a, b *loadedModule) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(age[a], age[b]))
	})
	out := modules[:0]
	for _, m := range modules {
		for n := len(out); n > 0 && out[n-1].end > m.start && age[out[n-1]] > age[m]; n-- {
			out = out[:n-1]
		}
		if n := len(out); n == 0 || out[n-1].end <= m.start {
			out = append(out, m)
		}
	}
	return out
}

// at returns the module and the range with the code at an address, nil where there is none.
func (c *code) at(read vmread.Reader, addr uint64) (*loadedModule, *codeRange) {
	i := sort.Search(len(c.modules), func(i int) bool { return c.modules[i].start > addr }) - 1
	if i < 0 || addr >= c.modules[i].end {
		return nil, nil
	}
	m := c.modules[i]
	if !m.isRead && c.kept < maxMost {
		m.isRead = true
		b := make([]byte, m.size)
		if read(m.told, b) {
			m.ranges, m.sum = m.parse(b), crc32.ChecksumIEEE(b)
		}
		c.kept += len(b) + m.bytes()
	}
	i = sort.Search(len(m.ranges), func(i int) bool { return m.ranges[i].start > addr }) - 1
	if i < 0 || addr >= m.ranges[i].end {
		return m, nil
	}
	return m, &m.ranges[i]
}

// parse takes apart what is told of a module; nil where it does not fit together.
func (m *loadedModule) parse(b []byte) []codeRange {
	le := binary.LittleEndian
	count, name := le.Uint32(b[16:]), uint64(le.Uint16(b[24:]))
	if le.Uint32(b) != 1 || le.Uint64(b[8:]) != m.start || count > maxRanges || infoBytes+name > uint64(len(b)) {
		return nil
	}
	b = b[infoBytes+name:]
	files := map[string]string{}
	size, lines := m.end-m.start, 0
	var ranges []codeRange
	for range count {
		if len(b) < rangeBytes {
			return nil
		}
		start, end, left := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), int(le.Uint32(b[8:]))
		n := rangeBytes + int(le.Uint16(b[12:]))
		if start > end || end > size || n > len(b) {
			return nil
		}
		r := codeRange{start: m.start + start, end: m.start + end}
		r.name, r.isHead = strings.CutSuffix(string(bytes.TrimRight(b[rangeName:n-2], "\x00")), head)
		b = b[n:]
		if lines += left; left > len(b)/lineBytes || lines > maxLines {
			return nil
		}
		for ; left > 0; left-- {
			if len(b) < lineBytes {
				return nil
			}
			n := lineBytes + int(le.Uint16(b[8:]))
			if n > len(b) {
				return nil
			}
			file := bytes.TrimRight(b[lineFile:n-2], "\x00")
			if _, ok := files[string(file)]; !ok {
				files[string(file)] = string(file)
			}
			r.lines = append(r.lines, line{m.start + uint64(le.Uint32(b)), le.Uint32(b[4:]), files[string(file)]})
			b = b[n:]
		}
		if start < end {
			ranges = append(ranges, r)
		}
	}
	slices.SortFunc(ranges, func(a, b codeRange) int { return cmp.Compare(a.start, b.start) })
	for i := 1; i < len(ranges); i++ {
		if ranges[i-1].end > ranges[i].start {
			return nil
		}
	}
	return ranges
}

// bytes returns how much memory the ranges take, without their names.
func (m *loadedModule) bytes() (n int) {
	n = len(m.ranges) * int(unsafe.Sizeof(codeRange{}))
	for i := range m.ranges {
		n += len(m.ranges[i].lines) * int(unsafe.Sizeof(line{}))
	}
	return n
}

// lineAt returns the line of the code at an address of a function, 0 where that is not known.
func (r *codeRange) lineAt(addr uint64) (file string, line int) {
	for i := range r.lines {
		if l := &r.lines[i]; l.start <= addr {
			file, line = l.file, int(l.line)
		}
	}
	return file, line
}

// isShared reports whether code is the runtime's own, which functions of Erlang call and jump to.
func (c *code) isShared(m *loadedModule) bool { return m.start == c.shared }
