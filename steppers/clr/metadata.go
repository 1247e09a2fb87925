package clr

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// module is a module: where its tables are (ECMA-335, II.24). They are read row by row, as there are
// tens of thousands in the libraries of .NET.
type module struct {
	read           vmread.Reader
	strings, blobs stream
	tables         [tables]tableAt
	strWide        uint64 // bytes of an index into the names,
	blobWide       uint64 // into the signatures
	guidWide       uint64
	symbols        symbols
	dir            string // that its file is in, as the process names it
}

// stream is a part of a module's metadata in memory.
type stream struct{ addr, size uint64 }

// tableAt is where a table is, how many rows it has and how many bytes each.
type tableAt struct {
	addr      uint64
	rows, row uint64
}

// Tables, by their numbers.
const (
	typeRef     = 0x01
	typeDef     = 0x02
	methodDef   = 0x06
	nestedClass = 0x29
	tables      = 0x2a // those up to the last that is read
)

// clrColumns are the columns of each table: 2 or 4 bytes, an index into a heap (s, g, b), into a table (its number
// behind a colon, in hexadecimal), or into one of several (a letter of clrCoded).
var clrColumns = [tables]string{
	0x00: "2 s g g g", 0x01: "R s s", 0x02: "4 s s D :04 :06", 0x03: ":04", 0x04: "2 s b", 0x05: ":06",
	0x06: "4 2 2 s b :08", 0x07: ":08", 0x08: "2 2 s", 0x09: ":02 D", 0x0a: "P s b", 0x0b: "2 K b",
	0x0c: "A T b", 0x0d: "F b", 0x0e: "2 S b", 0x0f: "2 4 :02", 0x10: "4 :04", 0x11: "b",
	0x12: ":02 :14", 0x13: ":14", 0x14: "2 s D", 0x15: ":02 :17", 0x16: ":17", 0x17: "2 s b",
	0x18: "2 :06 M", 0x19: ":02 O O", 0x1a: "s", 0x1b: "b", 0x1c: "2 W s :1a", 0x1d: "4 :04",
	0x1e: "4 4", 0x1f: "4", 0x20: "4 2 2 2 2 4 b s s", 0x21: "4", 0x22: "4 4 4", 0x23: "2 2 2 2 4 b s s b",
	0x24: "4 :23", 0x25: "4 4 4 :23", 0x26: "4 s b", 0x27: "4 4 s s I", 0x28: "4 4 s I", 0x29: ":02 :02",
}

// clrCoded are the tables that such an index may mean, and how many of its bits tell which.
var clrCoded = map[byte]struct {
	bits   uint
	tables []byte
}{
	'D': {2, []byte{0x02, 0x01, 0x1b}}, 'K': {2, []byte{0x04, 0x08, 0x17}}, 'F': {1, []byte{0x04, 0x08}},
	'S': {2, []byte{0x02, 0x06, 0x20}}, 'P': {3, []byte{0x02, 0x01, 0x1a, 0x06, 0x1b}}, 'M': {1, []byte{0x14, 0x17}},
	'O': {1, []byte{0x06, 0x0a}}, 'W': {1, []byte{0x04, 0x06}}, 'I': {2, []byte{0x26, 0x23, 0x27}},
	'T': {3, []byte{0x06, 0x0a}}, 'R': {2, []byte{0x00, 0x1a, 0x23, 0x01}},
	'A': {5, []byte{0x06, 0x04, 0x01, 0x02, 0x08, 0x09, 0x0a, 0x00, 0x0e, 0x17, 0x14, 0x11, 0x1a, 0x1b, 0x20, 0x23, 0x26, 0x27, 0x28, 0x2a, 0x2c, 0x2b}},
}

// Limits on what is read of metadata.
const (
	maxStreams   = 16
	maxText      = 1 << 10 // bytes of a name
	maxNesting   = 32      // of types
	maxSignature = 1 << 10 // bytes
	maxTypes     = 1 << 8  // that are told of in a signature
)

// readModule reads where the tables of a module are whose file is at an address, as the loader maps it, or as it
// is. It is nil where there are none.
func readModule(read vmread.Reader, base uint64) *module {
	const debug = 6                // the directory that tells of PDBs
	const header, sections = 14, 8 // that tells of .NET's, and what is looked at of it
	le := binary.LittleEndian
	var mz [64]byte
	if !read(base, mz[:]) || string(mz[:2]) != "MZ" {
		return nil
	}
	pe := base + uint64(le.Uint32(mz[0x3c:]))
	var head [24 + 240]byte
	if !read(pe, head[:]) || string(head[:4]) != "PE\x00\x00" {
		return nil
	}
	directory := 24 + 96
	if le.Uint16(head[24:]) == 0x20b {
		directory += 16
	}
	cli := uint64(le.Uint32(head[directory+8*header:]))
	count := min(int(le.Uint16(head[6:])), 64)
	table := make([]byte, 40*count)
	if cli == 0 || !read(pe+24+uint64(le.Uint16(head[20:])), table) {
		return nil
	}
	mapped := func(rva uint64) uint64 { return base + rva }
	inFile := func(rva uint64) uint64 {
		for s := table; len(s) > 0; s = s[40:] {
			if off := rva - uint64(le.Uint32(s[12:])); off < uint64(le.Uint32(s[16:])) {
				return base + uint64(le.Uint32(s[20:])) + off
			}
		}
		return 0
	}
	for _, at := range []func(uint64) uint64{mapped, inFile} {
		var clr [sections * 4]byte
		if !read(at(cli), clr[:]) || le.Uint32(clr[:]) != 72 {
			continue
		}
		if m := readMetadata(read, at(uint64(le.Uint32(clr[8:])))); m != nil {
			entry := head[directory+8*debug:]
			m.symbols = readSymbols(read, stream{at(uint64(le.Uint32(entry))), uint64(le.Uint32(entry[4:]))}, at)
			return m
		}
	}
	return nil
}

// readMetadata reads where the tables are of metadata at an address.
func readMetadata(read vmread.Reader, root uint64) *module {
	le := binary.LittleEndian
	var head [512]byte
	if !read(root, head[:]) || string(head[:4]) != "BSJB" {
		return nil
	}
	m := &module{read: read}
	at := 16 + int(min(le.Uint32(head[12:]), 255)+3)&^3
	tables := stream{}
	for range min(int(le.Uint16(head[at+2:])), maxStreams) {
		if at+4+8+32 > len(head) {
			return nil
		}
		s := stream{root + uint64(le.Uint32(head[at+4:])), uint64(le.Uint32(head[at+8:]))}
		name, _, _ := bytes.Cut(head[at+12:at+12+32], []byte{0})
		switch string(name) {
		case "#~":
			tables = s
		case "#Strings":
			m.strings = s
		case "#Blob":
			m.blobs = s
		}
		at += 8 + (len(name)+4)&^3
	}
	if tables.addr == 0 || !m.layOut(tables) {
		return nil
	}
	return m
}

// layOut finds where each table is.
func (m *module) layOut(s stream) bool {
	le := binary.LittleEndian
	var head [24 + 64*4]byte
	if !m.read(s.addr, head[:min(uint64(len(head)), s.size)]) {
		return false
	}
	wide := func(bit byte) uint64 {
		if head[6]&bit != 0 {
			return 4
		}
		return 2
	}
	m.strWide, m.guidWide, m.blobWide = wide(1), wide(2), wide(4)
	valid := le.Uint64(head[8:])
	var rows [64]uint64
	at := uint64(24)
	for i := range rows {
		if valid>>i&1 != 0 {
			rows[i] = uint64(le.Uint32(head[at:]))
			at += 4
		}
	}
	addr := s.addr + at
	for i, columns := range clrColumns {
		t := &m.tables[i]
		t.addr, t.rows = addr, rows[i]
		for _, c := range strings.Fields(columns) {
			t.row += m.width(c, &rows)
		}
		addr += t.rows * t.row
	}
	return addr-s.addr <= s.size
}

// width returns how many bytes a column has.
func (m *module) width(column string, rows *[64]uint64) uint64 {
	most, bits := uint64(0), uint(0)
	switch c := column[0]; c {
	case '2', '4':
		return uint64(c - '0')
	case 's':
		return m.strWide
	case 'g':
		return m.guidWide
	case 'b':
		return m.blobWide
	case ':':
		n, _ := strconv.ParseUint(column[1:], 16, 8)
		most = rows[n]
	default:
		coded := clrCoded[c]
		bits = coded.bits
		for _, n := range coded.tables {
			most = max(most, rows[n])
		}
	}
	if most >= 1<<(16-bits) {
		return 4
	}
	return 2
}

// row reads a row of a table, which are counted from 1, into the columns that it has.
func (m *module) row(table int, n uint64, into ...*uint64) bool {
	t := &m.tables[table]
	if n == 0 || n > t.rows || t.row > 64 {
		return false
	}
	var buf [64]byte
	b := buf[:t.row]
	if !m.read(t.addr+(n-1)*t.row, b) {
		return false
	}
	var rows [64]uint64
	for i := range m.tables {
		rows[i] = m.tables[i].rows
	}
	for i, c := range strings.Fields(clrColumns[table]) {
		w := m.width(c, &rows)
		v := uint64(binary.LittleEndian.Uint16(b))
		if w == 4 {
			v = uint64(binary.LittleEndian.Uint32(b))
		}
		if i < len(into) && into[i] != nil {
			*into[i] = v
		}
		b = b[w:]
	}
	return true
}

// text returns a name, "" where there is none.
func (m *module) text(at uint64) string {
	if at == 0 || at >= m.strings.size {
		return ""
	}
	b := make([]byte, min(maxText, m.strings.size-at))
	for n := min(64, len(b)); ; n = min(4*n, len(b)) {
		if !m.read(m.strings.addr+at, b[:n]) {
			return ""
		}
		if i := bytes.IndexByte(b[:n], 0); i >= 0 {
			return vmread.ValidText(b[:i])
		}
		if n == len(b) {
			return ""
		}
	}
}

// typeName returns the name of a type that the module defines, as in the source, with those that it is within.
func (m *module) typeName(n uint64) string {
	name := ""
	for range maxNesting {
		var own, namespace uint64
		if !m.row(typeDef, n, nil, &own, &namespace) {
			return ""
		}
		if name != "" {
			name = "." + name
		}
		name = m.text(own) + name
		if s := m.text(namespace); s != "" {
			return s + "." + name
		}
		if n = m.enclosing(n); n == 0 {
			return name
		}
	}
	return ""
}

// enclosing returns the type that a type is within, 0 where it is within none: a table that is sorted by the former.
func (m *module) enclosing(n uint64) uint64 {
	low, high := uint64(1), m.tables[nestedClass].rows
	for low <= high {
		mid := (low + high) / 2
		var nested, enclosing uint64
		switch m.row(nestedClass, mid, &nested, &enclosing); {
		case nested == n:
			return enclosing
		case nested < n:
			low = mid + 1
		default:
			high = mid - 1
		}
	}
	return 0
}

// typeOf returns the type that a method is of: each tells which is the first of its methods.
func (m *module) typeOf(method uint64) uint64 {
	low, high := uint64(1), m.tables[typeDef].rows
	for low < high { // the last whose first method is not behind it
		mid := (low + high + 1) / 2
		var first uint64
		if !m.row(typeDef, mid, nil, nil, nil, nil, nil, &first) {
			return 0
		}
		if first <= method {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// method returns the names of a method, of its type and of its parameters, in parentheses, "" where there is no
// telling.
func (m *module) method(n uint64) (name, typ, parameters string) {
	var own, signature uint64
	if !m.row(methodDef, n, nil, nil, nil, &own, &signature) {
		return "", "", ""
	}
	return m.text(own), m.typeName(m.typeOf(n)), m.parameters(signature)
}

// parameters returns the types of the parameters of a method by its signature.
func (m *module) parameters(at uint64) string {
	if at == 0 || at >= m.blobs.size {
		return ""
	}
	b := make([]byte, min(maxSignature, m.blobs.size-at))
	if !m.read(m.blobs.addr+at, b) {
		return ""
	}
	s := signature{blob: blob{b: b}, m: m}
	if n := int(s.number()); n < len(s.b) {
		s.b = s.b[:n]
	}
	const generic = 0x10
	if s.byte()&generic != 0 {
		s.number()
	}
	count := s.number()
	s.typ() // of the result
	var types []string
	for range min(count, maxTypes) {
		types = append(types, s.typ())
	}
	if s.failed {
		return ""
	}
	return "(" + strings.Join(types, ", ") + ")"
}

// blob reads the contents of one (ECMA-335, II.23.2).
type blob struct {
	b      []byte
	failed bool
}

func (s *blob) byte() byte {
	if len(s.b) == 0 {
		s.failed = true
		return 0
	}
	v := s.b[0]
	s.b = s.b[1:]
	return v
}

// number reads one of one, two or four bytes.
func (s *blob) number() uint64 {
	switch v := uint64(s.byte()); {
	case v < 0x80:
		return v
	case v < 0xc0:
		return v&0x3f<<8 | uint64(s.byte())
	default:
		v = v&0x1f<<8 | uint64(s.byte())
		v = v<<8 | uint64(s.byte())
		return v<<8 | uint64(s.byte())
	}
}

// signed reads one whose lowest bit is its sign.
func (s *blob) signed() int64 {
	n := len(s.b)
	v := s.number()
	if v&1 == 0 {
		return int64(v >> 1)
	}
	switch n - len(s.b) {
	case 1:
		return int64(v>>1) - 1<<6
	case 2:
		return int64(v>>1) - 1<<13
	default:
		return int64(v>>1) - 1<<28
	}
}

// signature reads a signature.
type signature struct {
	blob
	m     *module
	types int
}

// primitive are the names of the types that are a byte of a signature.
var primitive = [...]string{
	0x01: "Void", 0x02: "Boolean", 0x03: "Char", 0x04: "SByte", 0x05: "Byte", 0x06: "Int16", 0x07: "UInt16", 0x08: "Int32",
	0x09: "UInt32", 0x0a: "Int64", 0x0b: "UInt64", 0x0c: "Single", 0x0d: "Double", 0x0e: "String",
	0x16: "TypedReference", 0x18: "IntPtr", 0x19: "UIntPtr", 0x1c: "Object",
}

// typ reads a type and returns its name, without namespace, as .NET's own traces have it.
func (s *signature) typ() string {
	if s.types++; s.types > maxTypes {
		s.failed = true
	}
	if s.failed {
		return ""
	}
	switch v := s.byte(); v {
	case 0x0f:
		return s.typ() + "*"
	case 0x10:
		return s.typ() + "&"
	case 0x11, 0x12: // of values, of objects
		return s.named()
	case 0x13:
		return "!" + strconv.FormatUint(s.number(), 10) // a parameter of the type,
	case 0x1e:
		return "!!" + strconv.FormatUint(s.number(), 10) // of the method
	case 0x14:
		of, rank := s.typ(), s.number()
		for range 2 { // how long, and from where on
			for n := s.number(); n > 0 && !s.failed; n-- {
				s.number()
			}
		}
		return of + "[" + strings.Repeat(",", int(min(max(rank, 1), 32)-1)) + "]"
	case 0x15:
		s.byte()
		of := s.named()
		var args []string
		for n := s.number(); n > 0 && !s.failed; n-- {
			args = append(args, s.typ())
		}
		return of + "[" + strings.Join(args, ", ") + "]"
	case 0x1b: // a pointer to a function
		s.byte()
		for n := s.number() + 1; n > 0 && !s.failed; n-- {
			s.typ()
		}
		return "*"
	case 0x1d:
		return s.typ() + "[]"
	case 0x1f, 0x20: // a modifier
		s.number()
		return s.typ()
	case 0x41, 0x45:
		return s.typ()
	default:
		if int(v) < len(primitive) && primitive[v] != "" {
			return primitive[v]
		}
	}
	s.failed = true
	return ""
}

// named reads which type it is that has a name.
func (s *signature) named() string {
	v := s.number()
	var name uint64
	switch v & 3 {
	case 0:
		s.m.row(typeDef, v>>2, nil, &name)
	case 1:
		s.m.row(typeRef, v>>2, nil, &name)
	}
	text := s.m.text(name)
	if text == "" {
		s.failed = true
	}
	return text
}
