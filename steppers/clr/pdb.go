package clr

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// pdb is a Portable PDB: which lines the methods of an assembly have (docs/design/specs/PortablePdb-Metadata.md of
// .NET's sources; its tables are as those of assemblies, ECMA-335, II.24).
type pdb struct {
	size         int // bytes of the file
	blobs        []byte
	documents    pdbTable // name, and what is not looked at
	methods      pdbTable // document, lines
	blobWide     int      // bytes of an index into blobs,
	documentWide int      // of one into documents
}

// pdbTable is a table of a PDB, whose rows are counted from 1.
type pdbTable struct {
	data []byte
	row  int // bytes
}

// pdbID is what an assembly and its PDB have in common: a GUID and a stamp.
type pdbID [20]byte

// Tables of a PDB, by their numbers.
const (
	pdbDocuments = 0x30
	pdbMethods   = 0x31
)

// Limits on what is read of a PDB.
const (
	maxLines     = 1 << 18 // bytes of those of a method
	maxNameParts = 1 << 7  // of a document
	maxLine      = 1 << 29
)

// point is where a line begins in the IL of a method.
type point struct {
	il       uint64 // offset
	line     int
	document uint64
}

// readPDB reads a PDB, which must have that ID; nil where it is none.
func readPDB(data []byte, id pdbID) *pdb {
	le := binary.LittleEndian
	if len(data) < 16 || string(data[:4]) != "BSJB" {
		return nil
	}
	p := &pdb{size: len(data)}
	var tables []byte
	isOurs := false
	at := 16 + int(min(le.Uint32(data[12:]), 255)+3)&^3
	if at+4 > len(data) {
		return nil
	}
	streams := data[at+4:]
	for range min(int(le.Uint16(data[at+2:])), maxStreams) {
		const head, longest = 8, 32
		if len(streams) < head {
			return nil
		}
		name, _, ended := bytes.Cut(streams[head:min(head+longest, len(streams))], []byte{0})
		from, size := uint64(le.Uint32(streams)), uint64(le.Uint32(streams[4:]))
		if !ended || from+size > uint64(len(data)) {
			return nil
		}
		switch s := data[from : from+size]; string(name) {
		case "#Pdb":
			isOurs = bytes.HasPrefix(s, id[:])
		case "#~":
			tables = s
		case "#Blob":
			p.blobs = s
		}
		streams = streams[min(head+(len(name)+4)&^3, len(streams)):]
	}
	if !isOurs || !p.layOut(tables) {
		return nil
	}
	return p
}

// layOut finds the tables.
func (p *pdb) layOut(s []byte) bool {
	const head = 24
	le := binary.LittleEndian
	if len(s) < head {
		return false
	}
	wide := func(bit byte) int {
		if s[6]&bit != 0 {
			return 4
		}
		return 2
	}
	guidWide := wide(2)
	p.blobWide, p.documentWide = wide(4), 2
	valid := le.Uint64(s[8:])
	if valid&(1<<pdbDocuments-1) != 0 { // those of an assembly
		return false
	}
	var rows [64]uint64
	s = s[head:]
	for i := range rows {
		if valid>>i&1 != 0 {
			if len(s) < 4 {
				return false
			}
			rows[i], s = uint64(le.Uint32(s)), s[4:]
		}
	}
	if rows[pdbDocuments] >= 1<<16 {
		p.documentWide = 4
	}
	p.documents.row, p.methods.row = 2*p.blobWide+2*guidWide, p.documentWide+p.blobWide
	documents, methods := rows[pdbDocuments]*uint64(p.documents.row), rows[pdbMethods]*uint64(p.methods.row)
	if documents+methods > uint64(len(s)) {
		return false
	}
	p.documents.data, p.methods.data = s[:documents], s[documents:documents+methods]
	return true
}

// index returns a number of a row's that begins so many bytes into it; 0 where there is no such row.
func (t *pdbTable) index(row uint64, at, wide int) uint64 {
	if row == 0 || row > uint64(len(t.data)/t.row) {
		return 0
	}
	b := t.data[(row-1)*uint64(t.row)+uint64(at):]
	if wide == 4 {
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return uint64(binary.LittleEndian.Uint16(b))
}

// blob returns a blob, an empty one where there is none.
func (p *pdb) blob(at uint64) blob {
	if at >= uint64(len(p.blobs)) {
		return blob{}
	}
	b := blob{b: p.blobs[at:]}
	if n := b.number(); !b.failed && n <= uint64(len(b.b)) {
		return blob{b: b.b[:n]}
	}
	return blob{}
}

// points reads where lines begin in the IL of a method, in order. What is hidden, as compilers call what has no line, is left out.
type points struct {
	blob
	il, document uint64
	line         int64 // 0 before the first one
	isBegun      bool
}

// points returns those of a method, by its number in the assembly's table.
func (p *pdb) points(method uint64) (r points) {
	b := p.blob(p.methods.index(method, p.documentWide, p.blobWide))
	if len(b.b) == 0 || len(b.b) > maxLines {
		return r
	}
	b.number() // of what the variables are
	document := p.methods.index(method, 0, p.documentWide)
	if document == 0 {
		document = b.number()
	}
	return points{blob: b, document: document}
}

// next returns the next one; ok is false where there is none, or, with failed, no telling.
func (r *points) next() (pt point, ok bool) {
	for len(r.b) > 0 {
		delta := r.number()
		if delta == 0 && r.isBegun {
			r.document = r.number()
			continue
		}
		r.isBegun = true
		r.il += delta
		lines, isHidden := r.number(), false
		if lines == 0 {
			isHidden = r.number() == 0
		} else {
			r.signed() // columns
		}
		switch {
		case isHidden:
			continue
		case r.line == 0:
			r.line = int64(r.number())
			r.number() // column
		default:
			r.line += r.signed()
			r.signed()
		}
		if r.failed = r.failed || r.line <= 0 || r.line >= maxLine; r.failed {
			break
		}
		return point{r.il, int(r.line), r.document}, true
	}
	return point{}, false
}

// at returns the point that an offset in the IL of a method belongs to.
func (p *pdb) at(method uint64, il uint32) (at point, ok bool) {
	r := p.points(method)
	for {
		pt, more := r.next()
		if !more || pt.il > uint64(il) {
			return at, ok && !r.failed
		}
		at, ok = pt, true
	}
}

// document returns the name of a document, "" where there is none. It is stored in parts, with what separates them.
func (p *pdb) document(n uint64) string {
	b := p.blob(p.documents.index(n, 0, p.blobWide))
	separator := b.byte()
	var text []byte
	for i := 0; i < maxNameParts && len(b.b) > 0; i++ {
		if i > 0 && separator != 0 {
			text = append(text, separator)
		}
		if part := p.blob(b.number()).b; len(part) <= maxText-len(text) {
			text = append(text, part...)
		} else {
			b.failed = true
		}
	}
	if name := vmread.ValidText(text); !b.failed && len(b.b) == 0 && vmread.IsPrintable(name) {
		return name
	}
	return ""
}
