package variables

import (
	"bytes"

	"github.com/swbpf/swbpf/symbols"
)

// Value is the value of a variable in a frame: where it is, or its bytes.
type Value struct {
	Type *symbols.Type

	f     *frame
	size  uint64
	sized bool

	memory bool   // it lies at addr
	addr   uint64 // run-time address
	block  *block // memory that was read already; may be nil
	single bool   // of an array: its elements are to be read one by one

	data    []byte  // else: its bytes
	why     []error // by byte: nil where data is right
	pointer *piece  // an implicit pointer, which has no bytes
}

// Address returns the run-time address of the value; ok is false when it is
// not in memory, or not in one place.
func (v *Value) Address() (addr uint64, ok bool) { return v.addr, v.memory }

// Size returns the size of the value in bytes; ok is false when it is not
// known.
func (v *Value) Size() (size uint64, ok bool) { return v.size, v.sized }

// Read stores the bytes of the value in buf, as they would be in memory, and
// returns their number. The error is ErrShortBuffer when they do not fit, and
// else tells why some of them are not known.
func (v *Value) Read(buf []byte) (int, error) {
	if !v.sized {
		return 0, symbols.ErrUnsupported
	}
	if v.size > uint64(len(buf)) {
		return 0, ErrShortBuffer
	}
	b, err := v.bytes(0, int(v.size))
	if err != nil {
		return 0, err
	}
	return copy(buf, b), nil
}

// bytes returns n bytes of the value, or why they are not known.
func (v *Value) bytes(off uint64, n int) ([]byte, error) {
	if v.memory {
		if b := v.block.at(v.addr+off, n); b != nil {
			return b, nil
		}
		b := make([]byte, n)
		return b, v.f.r.read(v.addr+off, b)
	}
	if off > uint64(len(v.data)) || uint64(n) > uint64(len(v.data))-off {
		return nil, symbols.ErrOptimizedOut
	}
	for _, err := range v.why[off : off+uint64(n)] {
		if err != nil {
			return nil, err
		}
	}
	return v.data[off : off+uint64(n)], nil
}

// block is a copy of memory.
type block struct {
	addr uint64
	data []byte
}

// at returns n bytes at an address, nil when the block has not got them.
func (b *block) at(addr uint64, n int) []byte {
	if b == nil || addr < b.addr || addr-b.addr > uint64(len(b.data)) || n > len(b.data)-int(addr-b.addr) {
		return nil
	}
	return b.data[addr-b.addr:][:n:n]
}

// unknown returns the reason when no byte of the value is there, all for one
// reason.
func (v *Value) unknown() error {
	if v.memory || len(v.why) == 0 {
		return nil
	}
	for _, err := range v.why {
		if err == nil || err != v.why[0] || err == ErrSynthetic {
			return nil
		}
	}
	return v.why[0]
}

// part returns what lies at an offset of the value as a value of type t.
func (v *Value) part(t *symbols.Type, off uint64) *Value {
	p := &Value{Type: t, f: v.f}
	p.size, p.sized = v.f.sizeOf(t)
	if v.memory {
		p.memory, p.addr, p.block = true, v.addr+off, v.block
		return p
	}
	if off <= uint64(len(v.data)) && p.size <= uint64(len(v.data))-off {
		p.data, p.why = v.data[off:off+p.size], v.why[off:off+p.size]
	}
	return p
}

// bits returns up to 128 bits of the value, from bit off on, as little-endian
// bytes.
func (v *Value) bits(off, n uint64) ([]byte, error) {
	first, last := off/8, (off+n+7)/8
	b, err := v.bytes(first, int(last-first))
	if err != nil {
		return nil, err
	}
	out := make([]byte, (n+7)/8)
	copyBits(out, 0, b, off-8*first, n)
	return out, nil
}

// copyBits copies n bits, the least significant of each byte first.
func copyBits(dst []byte, at uint64, src []byte, from, n uint64) {
	for i := range n {
		s, d := from+i, at+i
		if src[s/8]>>(s%8)&1 != 0 {
			dst[d/8] |= 1 << (d % 8)
		}
	}
}

// assemble puts the value together from pieces.
func (v *Value) assemble(pieces []piece) {
	v.data, v.why = make([]byte, v.size), make([]error, v.size)
	at, all := uint64(0), 8*v.size // in bits
	for i := range pieces {
		p := &pieces[i]
		n := p.bits
		if n == 0 {
			if len(pieces) > 1 {
				continue
			}
			n = all
		}
		n = min(n, all-at)
		if p.kind == implicitPointer && at == 0 && n == all {
			v.pointer = p
		}
		src, err := v.source(p, n)
		if err == nil {
			copyBits(v.data, at, src, p.bitOff, n)
		} else {
			for b := at / 8; b < (at+n+7)/8; b++ {
				v.why[b] = err
			}
		}
		at += n
	}
	for b := at / 8; b < v.size; b++ { // the pieces are too short
		v.why[b] = symbols.ErrOptimizedOut
	}
}

// source returns the bytes that hold bits [bitOff, bitOff+n) of a piece.
func (v *Value) source(p *piece, n uint64) ([]byte, error) {
	need := int((p.bitOff + n + 7) / 8)
	if p.bitOff > 8*maxPieces {
		return nil, errBadExpression
	}
	switch p.kind {
	case inMemory:
		b := make([]byte, need)
		return b, v.f.r.read(p.addr, b)
	case inRegister:
		b, err := v.f.registerBytes(p.addr)
		if err != nil {
			return nil, err
		}
		if s := v.Type.Strip(); len(b) == sizeExtended && s.Kind == symbols.KindBase && s.Encoding == symbols.EncodingFloat {
			b = fromExtended(b, int(v.size))
		}
		if need > len(b) {
			return nil, ErrNotSaved // a register wider than those that are known
		}
		return b, nil
	case isValue:
		b := p.data
		if need > len(b) { // numbers of the generic type are as wide as it takes
			b = append(bytes.Clone(b), make([]byte, need-len(b))...)
		}
		return b, nil
	case implicitPointer:
		return nil, ErrSynthetic
	}
	if p.err != nil {
		return nil, p.err
	}
	return nil, symbols.ErrOptimizedOut
}

// Target returns what a pointer or reference points to. For a pointer to an
// object without an address it is the object, where that is known.
func (v *Value) Target() (*Value, error) {
	if v.f == nil {
		return nil, symbols.ErrUnsupported
	}
	t := v.Type.Strip()
	if v.pointer != nil {
		x, typ, err := v.pointer.from.Object(v.pointer.addr, v.f.vaddr())
		if err != nil {
			return nil, err
		}
		o, err := v.f.object(typ, x)
		if err != nil {
			return nil, err
		}
		if v.pointer.off < 0 {
			return nil, errBadExpression
		}
		return o.part(t.Elem(), uint64(v.pointer.off)), nil
	}
	addr, err := v.word()
	if err != nil {
		return nil, err
	}
	return v.f.at(t.Elem(), addr), nil
}

// at returns the value of a type at a run-time address.
func (f *frame) at(t *symbols.Type, addr uint64) *Value {
	v := &Value{Type: t, f: f, memory: true, addr: addr}
	v.size, v.sized = f.sizeOf(t)
	return v
}

// word returns the value of a pointer.
func (v *Value) word() (uint64, error) {
	n := uint64(v.f.arch().AddressWidth)
	if v.sized {
		n = min(n, v.size)
	}
	b, err := v.bytes(0, int(n))
	if err != nil {
		return 0, err
	}
	return decode(generic, b).bits, nil
}
