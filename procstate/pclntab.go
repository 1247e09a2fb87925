package procstate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sort"
	"strings"
	"sync"
	"unsafe"
	"weak"
)

// ErrNoPclntab is returned for a file that holds no Go code.
var ErrNoPclntab = errors.New("no Go function table")

// Magic numbers of the function table: its first four bytes.
const (
	pclntab116 = 0xfffffffa // Go 1.16 and 1.17
	pclntab118 = 0xfffffff0 // Go 1.18 and 1.19
	pclntab120 = 0xfffffff1 // Go 1.20 and later
)

// maxPclntab bounds the function table of one file. Those of the largest Go
// programs have some 100 MB.
const maxPclntab = 1 << 30

// Flags of a Go function (runtime/internal abi.FuncFlag), Go 1.17 and later.
const (
	GoFuncTopFrame = 1 << iota // the first frame of its stack: goexit, mstart, rt0_go...
	GoFuncSPWrite              // writes an arbitrary value to SP: the tables do not tell its frame
	GoFuncAsm                  // assembly
)

// GoTable is the function table (pclntab) that the Go linker leaves in each
// program, stripped or not. It may be used by any goroutine. Of the file it
// reads what it is asked for, and keeps that until Forget. Its methods never
// panic whatever the file holds, and take time bounded by the size of a
// function; but for Lines, and names of more than 127 bytes, they allocate only
// for parts of the file that are not kept.
//
// The format is read in Go's src/runtime/symtab.go and
// src/cmd/link/internal/ld/pcln.go of each version.
type GoTable struct {
	img   *Image
	data  *chunked // from the header on
	vaddr uint64   // link-time address of its first byte
	magic uint32

	minLC, ptrSize uint64
	nfunc          uint64
	textStart      uint64 // link-time; base of the entries since Go 1.18
	gofunc         uint64 // link-time; base of funcdata offsets since 1.18, 0 when not found

	funcNames, cutab, filetab, pctab, pcln uint64 // offsets in data
}

// GoFunc is a function of a GoTable.
type GoFunc struct {
	Entry, End uint64 // link-time addresses [Entry, End)
	StartLine  int32  // line of the func keyword, 0 before Go 1.20
	Flag       uint8  // GoFuncTopFrame..., 0 before Go 1.17

	t   *GoTable
	rec uint64 // offset in data of the _func record and what follows it
}

// pclntabCache holds the table for as long as somebody else does.
type pclntabCache struct {
	mu    sync.Mutex
	table weak.Pointer[GoTable]
	err   error
}

// Pclntab returns the Go function table of a file. The first call finds and
// reads it, further ones return the same while it is in use, and read it again
// after that. The error wraps ErrNoPclntab when the file has none, else it is a
// *FormatError or the reader's, after which another call reads again.
func Pclntab(im *Image) (*GoTable, error) {
	c := &im.pclntab
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.table.Value(); t != nil || c.err != nil {
		return t, c.err
	}
	t, err := findPclntab(im)
	if err != nil {
		if _, bad := errors.AsType[*FormatError](err); bad || errors.Is(err, ErrNoPclntab) {
			c.err = err
		}
		return nil, err
	}
	c.table = weak.Make(t)
	return t, nil
}

// parsePclntab reads the header of a function table at link-time address
// vaddr. data may be longer than the table.
func parsePclntab(im *Image, data *chunked, vaddr uint64) (*GoTable, error) {
	bad := func(what string) (*GoTable, error) {
		off, _ := im.OffsetOfVaddr(vaddr, 1)
		return nil, &FormatError{int64(off), "pclntab: " + what}
	}
	head := data.from(0)
	if len(head) < 8 || head[4] != 0 || head[5] != 0 {
		return bad("too short")
	}
	t := &GoTable{img: im, data: data, vaddr: vaddr, magic: binary.LittleEndian.Uint32(head)}
	t.minLC, t.ptrSize = uint64(head[6]), uint64(head[7])
	if t.minLC != 1 && t.minLC != 2 && t.minLC != 4 || t.ptrSize != 4 && t.ptrSize != 8 {
		return bad("bad header")
	}
	tables := []*uint64{&t.funcNames, &t.cutab, &t.filetab, &t.pctab, &t.pcln}
	first := uint64(2) // index of the header's first table offset
	switch t.magic {
	case pclntab116:
	case pclntab118, pclntab120:
		first = 3
	default:
		return bad("unknown magic number")
	}
	if uint64(len(head)) < 8+(first+5)*t.ptrSize {
		return bad("too short")
	}
	t.nfunc = t.headerWord(0)
	if first == 3 {
		t.textStart = t.headerWord(2) // 0 since Go 1.26
	}
	for i, p := range tables {
		if *p = t.headerWord(first + uint64(i)); *p > data.size {
			return bad("table offset past the end")
		}
	}
	if n := data.size - t.pcln; t.nfunc > n/(2*t.entrySize()) || n < (2*t.nfunc+1)*t.entrySize() {
		return bad("more functions than bytes")
	}
	return t, nil
}

// headerWord returns the i-th pointer-sized word after the first 8 bytes.
func (t *GoTable) headerWord(i uint64) uint64 {
	v, _ := t.word(8+i*t.ptrSize, t.ptrSize)
	return v
}

// entrySize is the width of a number in functab.
func (t *GoTable) entrySize() uint64 {
	if t.magic == pclntab116 {
		return t.ptrSize
	}
	return 4
}

// word reads a little-endian number of 4 or 8 bytes of the table.
func (t *GoTable) word(off, size uint64) (uint64, bool) { return word(t.data.from(off), 0, size) }

// word reads a little-endian number of 4 or 8 bytes at b[off:].
func word(b []byte, off, size uint64) (uint64, bool) {
	if off > uint64(len(b)) || size > uint64(len(b))-off {
		return 0, false
	}
	if size == 8 {
		return binary.LittleEndian.Uint64(b[off:]), true
	}
	return uint64(binary.LittleEndian.Uint32(b[off:])), true
}

// maxGoName bounds the length of a name.
const maxGoName = 1 << 16

// cstring returns the NUL-terminated string at an offset of the table.
func (t *GoTable) cstring(off uint64) string {
	b := t.data.from(off)
	if n := bytes.IndexByte(b[:min(len(b), chunkOverlap)], 0); n > 0 {
		return unsafe.String(&b[0], n) // b is never written to
	} else if n == 0 {
		return ""
	}
	var long []byte
	for len(b) > 0 && len(long) < maxGoName {
		if n := bytes.IndexByte(b, 0); n >= 0 {
			return string(append(long, b[:n]...))
		}
		long = append(long, b...)
		b = t.data.from(off + uint64(len(long)))
	}
	return ""
}

// Memory is what is kept of the file, in bytes.
func (t *GoTable) Memory() int64 { return t.data.memory() }

// Forget lets go of what is kept of the file.
func (t *GoTable) Forget() { t.data.forget() }

// Len is the number of functions.
func (t *GoTable) Len() int { return int(t.nfunc) }

// At returns the i-th function in order of address; ok is false when its
// record is damaged.
func (t *GoTable) At(i int) (f GoFunc, ok bool) {
	if uint64(i) >= t.nfunc {
		return f, false
	}
	pair := t.data.from(t.pair(uint64(i)))
	off, ok := word(pair, t.entrySize(), t.entrySize())
	if !ok {
		return f, false
	}
	return t.function(pair, off, t.data.from(t.pcln+min(off, t.data.size)))
}

// pair is the offset of the i-th entry of functab.
func (t *GoTable) pair(i uint64) uint64 { return t.pcln + 2*i*t.entrySize() }

// function decodes a function from its entry in functab and the one that
// follows, and its record, at offset off of pcln.
func (t *GoTable) function(pair []byte, off uint64, rec []byte) (f GoFunc, ok bool) {
	f = GoFunc{Entry: t.address(pair, 0), End: t.address(pair, 2), t: t, rec: t.pcln + off}
	fixed := t.fixedSize()
	if uint64(len(pair)) < 3*t.entrySize() || uint64(len(rec)) < fixed || f.End < f.Entry {
		return f, false
	}
	// _func ends with funcID, flag, pad, nfuncdata; StartLine comes before it
	// since Go 1.20.
	f.Flag = rec[fixed-3]
	if t.magic == pclntab120 {
		v, _ := word(rec, 4+4*8, 4)
		f.StartLine = int32(v)
	}
	return f, true
}

// address returns the address that is the i-th number of functab.
func (t *GoTable) address(functab []byte, i uint64) uint64 {
	v, _ := word(functab, i*t.entrySize(), t.entrySize())
	if t.magic != pclntab116 {
		v += t.textStart
	}
	return v
}

// entry returns the address of the i-th function, or the end of the last.
func (t *GoTable) entry(i uint64) uint64 { return t.address(t.data.from(t.pair(i)), 0) }

// fixedSize is the length of _func without the arrays that follow it.
func (t *GoTable) fixedSize() uint64 {
	switch t.magic {
	case pclntab116:
		return t.ptrSize + 8*4 + 4
	case pclntab118:
		return 4 + 8*4 + 4
	}
	return 4 + 9*4 + 4
}

// field returns the i-th 32-bit field of _func after the entry: nameOff 0,
// args 1, deferreturn 2, pcsp 3, pcfile 4, pcln 5, npcdata 6, cuOffset 7,
// startLine 8.
func (f *GoFunc) field(i uint64) uint32 {
	v, _ := f.readField(i)
	return v
}

func (f *GoFunc) readField(i uint64) (v uint32, ok bool) {
	w, ok := f.t.word(f.rec+f.t.entryBytes()+4*i, 4)
	return uint32(w), ok
}

// entryBytes is the size of the address that a _func begins with.
func (t *GoTable) entryBytes() uint64 {
	if t.magic == pclntab116 {
		return t.ptrSize
	}
	return 4
}

// Func returns the function that holds a link-time address.
func (t *GoTable) Func(vaddr uint64) (GoFunc, bool) {
	i := sort.Search(int(t.nfunc), func(i int) bool { return t.entry(uint64(i)) > vaddr })
	if i == 0 {
		return GoFunc{}, false
	}
	f, ok := t.At(i - 1)
	return f, ok && f.Entry <= vaddr && vaddr < f.End
}

// FuncsAround returns the numbers [first, end) of the functions around a link-time address
// that are such as the one that holds it. They are none where that is not such a one.
func (t *GoTable) FuncsAround(vaddr uint64, such func(*GoFunc) bool) (first, end int) {
	is := func(i int) bool {
		f, ok := t.At(i)
		return ok && such(&f)
	}
	first = sort.Search(int(t.nfunc), func(i int) bool { return t.entry(uint64(i)) > vaddr })
	for end = first; first > 0 && is(first-1); {
		first--
	}
	for first < end && end < int(t.nfunc) && is(end) {
		end++
	}
	return first, end
}

// Range returns the link-time addresses [start, end) that the table covers.
func (t *GoTable) Range() (start, end uint64) {
	if t.nfunc == 0 {
		return 0, 0
	}
	return t.entry(0), t.entry(t.nfunc)
}

// Name is the function's name as the linker wrote it: with full type
// arguments in some versions. It may share the memory of the table.
func (f *GoFunc) Name() string {
	if f.t == nil {
		return ""
	}
	return f.t.cstring(f.t.funcNames + uint64(f.field(0)))
}

// SPDelta returns the distance in bytes from SP to the SP at the function's
// entry, for the instruction at vaddr: on amd64 the return address lies at
// SP+delta, on arm64 the caller's SP is SP+delta. ok is false when the tables
// do not tell, as in functions that write SP at will.
func (t *GoTable) SPDelta(f *GoFunc, vaddr uint64) (delta int32, ok bool) {
	if f.t != t {
		return 0, false
	}
	return f.pcvalue(f.field(3), vaddr)
}

// HasSPDeltas reports whether the table tells the height of the stack anywhere in the
// function. It does of all that Go's compiler and assembler have made, and not of C that
// its linker has put in. A table that cannot be read may do so.
func (f *GoFunc) HasSPDeltas() bool {
	if f.t == nil {
		return false
	}
	off, ok := f.readField(3)
	return off != 0 || !ok
}

// pcvalue looks vaddr up in the pc-value table at offset off of pctab: a
// sequence of (zigzag value delta, pc delta) varints that starts at the
// function's entry with value -1 and ends at a zero value delta.
func (f *GoFunc) pcvalue(off uint32, vaddr uint64) (int32, bool) {
	t := f.t
	at := t.pctab + uint64(off)
	if off == 0 || vaddr < f.Entry {
		return 0, false
	}
	p := t.data.from(at)
	pc, val := f.Entry, int32(-1)
	// No more values than instructions, with room for empty ranges.
	limit := min(2*(f.End-f.Entry)+16, maxPCValues)
	for first := true; limit > 0; first = false {
		limit--
		if len(p) < 2*maxVarint32 {
			p = t.data.from(at)
		}
		uv, n := uvarint32(p)
		if n == 0 || uv == 0 && !first {
			return 0, false
		}
		step, m := uvarint32(p[n:])
		if m == 0 {
			return 0, false
		}
		p, at = p[n+m:], at+uint64(n+m)
		val += int32(-(uv & 1) ^ uv>>1)
		pc += uint64(step) * t.minLC
		if vaddr < pc {
			return val, true
		}
		if pc > f.End {
			return 0, false
		}
	}
	return 0, false
}

// maxPCValues bounds the values of one function that are read for an address.
const maxPCValues = 1 << 20

// maxVarint32 is the most bytes that uvarint32 reads.
const maxVarint32 = 5

// uvarint32 reads an unsigned LEB128 number of at most 32 bits; n is 0 when b
// ends before it does.
func uvarint32(b []byte) (v uint32, n int) {
	for shift := uint(0); n < len(b) && n < maxVarint32; shift += 7 {
		c := b[n]
		n++
		v |= uint32(c&0x7f) << shift
		if c&0x80 == 0 {
			return v, n
		}
	}
	return 0, 0
}

// GoName shortens the name of a generic function as Go prints it: with its
// type arguments as [...].
func GoName(name string) string {
	i := strings.IndexByte(name, '[')
	if i < 0 {
		return name
	}
	j := strings.LastIndexByte(name, ']')
	if j <= i || name[i:j+1] == "[...]" {
		return name
	}
	return name[:i] + "[...]" + name[j+1:]
}
