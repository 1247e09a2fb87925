package procstate

import (
	"encoding/binary"
	"errors"
	"hash/adler32"
	"math/bits"
	"sync"
)

// Decompression of zlib data (RFC 1950, RFC 1951) into memory, whole or from a point in
// the middle on, which is what Packed needs and no reader of a library can: these begin at
// a stream's start. They also take twice as long, and the first name of a program can wait
// for nothing else: libc's debug information alone is 6 MB.

var (
	errZlib     = errors.New("malformed zlib data")
	errZlibSize = errors.New("compressed section is not of the size that it says")
)

// maxExpansion is the most bytes that deflate makes of one.
const maxExpansion = 1032

// inflate decompresses a zlib stream that holds size bytes.
func inflate(src []byte, size uint64) ([]byte, error) {
	if len(src) < 6 || !isZlib(src) {
		return nil, errZlib
	}
	if size > maxExpansion*uint64(len(src)) {
		return nil, errZlibSize
	}
	z := inflaters.Get().(*inflater)
	defer inflaters.Put(z)
	scratch := z.dst
	defer func() { z.src, z.dst = nil, scratch }()
	z.src, z.pos, z.bits, z.n, z.more = src[:len(src)-4], 2, 0, 0, nil
	z.dst, z.done, z.limit = make([]byte, size), 0, int(size)
	for last := false; !last; {
		var err error
		if last, err = z.oneBlock(); err != nil {
			return nil, err
		}
	}
	if z.done != len(z.dst) {
		return nil, errZlibSize
	}
	// What was read ahead is given back: the checksum follows the last byte
	// that was used.
	end := z.pos - z.n/8
	if z.n < 0 || end+4 > len(src) || adler32.Checksum(z.dst) != binary.BigEndian.Uint32(src[end:]) {
		return nil, errZlib
	}
	return z.dst, nil
}

// isZlib reports whether b begins with a header of zlib data without a preset
// dictionary.
func isZlib(b []byte) bool {
	return b[0]&15 == 8 && b[0]>>4 <= 7 && b[1]&0x20 == 0 && (uint(b[0])<<8|uint(b[1]))%31 == 0
}

var inflaters = sync.Pool{New: func() any { return new(inflater) }}

// inflater is the state of a decompression.
type inflater struct {
	src   []byte
	pos   int                            // of the next byte for bits
	bits  uint64                         // read ahead, the next lowest
	n     int                            // how many; negative past the end
	more  func(rest []byte) (src []byte) // what follows src, behind the rest of it; nil: nothing does
	dst   []byte
	done  int // bytes of dst that are there
	limit int // how long dst may become

	literals, distances huffman
	lengths             [maxLiterals + maxDistances]uint8
}

// oneBlock decompresses the next block.
func (z *inflater) oneBlock() (last bool, err error) {
	z.fill()
	last = z.take(1) == 1
	switch z.take(2) {
	case 0:
		err = z.stored()
	case 1:
		z.fixedCodes()
		err = z.block()
	case 2:
		if err = z.readCodes(); err == nil {
			err = z.block()
		}
	default:
		err = errZlib
	}
	return last, err
}

const (
	maxLiterals  = 288
	maxDistances = 32
	maxCodeBits  = 15
	tableBits    = 11
)

// huffman decodes one alphabet. Codes of up to tableBits are looked up; longer
// ones are found by counting.
type huffman struct {
	table  [1 << tableBits]codeEntry
	count  [maxCodeBits + 1]uint16 // codes of each length
	sorted [maxLiterals]uint16     // symbols in order of their codes
}

// codeEntry is what a code stands for: bits 0-5 how many bits it takes, with
// those that are added to the value; 8-11 the length of the code itself, 12-13
// the kind, 16-31 the value.
type codeEntry uint32

const (
	kindLong    codeEntry = 0 << 12 // a longer code, or none
	kindLiteral codeEntry = 1 << 12
	kindCopy    codeEntry = 2 << 12
	kindEnd     codeEntry = 3 << 12
	kindMask    codeEntry = 3 << 12
)

// of returns the entry for a code of l bits.
func (e codeEntry) of(l int) codeEntry {
	if e != 0 {
		e += codeEntry(l) | codeEntry(l)<<8
	}
	return e
}

// value returns the value with what is added to it, which follows the code in
// the lowest bits.
func (e codeEntry) value(ahead uint64) int {
	return int(e>>16) + int(ahead&(1<<(e&63)-1)>>(e>>8&15))
}

// literalEntries and distanceEntries are the meanings of the symbols, without
// the length of their code; 0 for those that have none.
var literalEntries, distanceEntries = symbolEntries()

func symbolEntries() (lit, dist [maxLiterals]codeEntry) {
	for i := range 256 {
		lit[i] = kindLiteral | codeEntry(i)<<16
	}
	lit[256] = kindEnd
	for i, base := 0, 3; i < 28; i++ {
		extra := max(0, i/4-1)
		lit[257+i] = kindCopy | codeEntry(extra) | codeEntry(base)<<16
		base += 1 << extra
	}
	lit[285] = kindCopy | 258<<16
	for i, base := 0, 1; i < 30; i++ {
		extra := max(0, i/2-1)
		dist[i] = kindCopy | codeEntry(extra) | codeEntry(base)<<16
		base += 1 << extra
	}
	return lit, dist
}

// fill reads ahead, to at least 56 bits before the end.
func (z *inflater) fill() {
	if z.pos+8 <= len(z.src) && z.n >= 0 {
		z.bits |= binary.LittleEndian.Uint64(z.src[z.pos:]) << uint(z.n)
		z.pos += (63 - z.n) >> 3
		z.n |= 56
		return
	}
	z.fillEnd()
}

// fillEnd is fill where src ends.
func (z *inflater) fillEnd() {
	z.source()
	for z.n >= 0 && z.n < 56 && z.pos < len(z.src) {
		z.bits |= uint64(z.src[z.pos]) << uint(z.n)
		z.pos++
		z.n += 8
	}
}

// source makes src reach further, where there is more. It keeps what was read
// ahead and may be given back.
func (z *inflater) source() {
	if z.more != nil {
		back := min(z.pos, 8)
		z.src, z.pos = z.more(z.src[z.pos-back:]), back
	}
}

// room makes dst longer when it has less room than a copy may need.
func (z *inflater) room(done int) {
	if len(z.dst)-done < maxCopy && len(z.dst) < z.limit {
		z.dst = append(z.dst, make([]byte, min(len(z.dst)+maxCopy, z.limit-len(z.dst)))...)
	}
}

// maxCopy is the longest copy that deflate knows, and a word beyond it.
const maxCopy = 258 + 8

// take removes the next n bits of those that fill has read, and returns them as a
// number.
func (z *inflater) take(n int) int {
	v := int(z.bits & (1<<uint(n) - 1))
	z.bits >>= uint(n)
	z.n -= n
	return v
}

// stored copies a block that is not compressed.
func (z *inflater) stored() error {
	z.take(z.n & 7)
	if z.n < 0 {
		return errZlib
	}
	z.pos -= z.n / 8
	z.bits, z.n = 0, 0
	if len(z.src)-z.pos < 4 {
		z.source()
	}
	if len(z.src)-z.pos < 4 {
		return errZlib
	}
	n := int(binary.LittleEndian.Uint16(z.src[z.pos:]))
	if n^0xffff != int(binary.LittleEndian.Uint16(z.src[z.pos+2:])) {
		return errZlib
	}
	z.pos += 4
	for n > 0 {
		if z.pos == len(z.src) {
			z.source()
		}
		z.room(z.done)
		k := min(n, len(z.src)-z.pos, len(z.dst)-z.done)
		switch {
		case z.pos == len(z.src):
			return errZlib
		case k == 0:
			return errZlibSize
		}
		copy(z.dst[z.done:], z.src[z.pos:z.pos+k])
		z.pos += k
		z.done += k
		n -= k
	}
	return nil
}

// fixedCodes sets up the codes of a block that brings none.
func (z *inflater) fixedCodes() {
	l := z.lengths[:maxLiterals]
	for i := range l {
		switch {
		case i < 144 || i >= 280:
			l[i] = 8
		case i < 256:
			l[i] = 9
		default:
			l[i] = 7
		}
	}
	z.literals.set(l, &literalEntries)
	for i := range maxDistances {
		l[i] = 5
	}
	z.distances.set(l[:maxDistances], &distanceEntries)
}

// lengthOrder is the order in which the lengths of the code of lengths come.
var lengthOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// readCodes reads the codes of a block.
func (z *inflater) readCodes() error {
	lit, dist, n := z.take(5)+257, z.take(5)+1, z.take(4)+4
	if lit > 286 || dist > 30 {
		return errZlib
	}
	var of [19]uint8
	for _, i := range lengthOrder[:n] {
		z.fill()
		of[i] = uint8(z.take(3))
	}
	// The code of lengths borrows a table; its symbols mean themselves.
	h := &z.distances
	if !h.set(of[:], nil) {
		return errZlib
	}
	lengths := z.lengths[:lit+dist]
	for i := 0; i < len(lengths); {
		z.fill()
		e := h.next(z.bits)
		z.take(int(e & 63))
		sym := int(e >> 16)
		if e&kindMask == kindLong || z.n < 0 {
			return errZlib
		}
		if sym < 16 {
			lengths[i] = uint8(sym)
			i++
			continue
		}
		var v uint8
		var repeat int
		switch sym {
		case 16:
			if i == 0 {
				return errZlib
			}
			v, repeat = lengths[i-1], 3+z.take(2)
		case 17:
			repeat = 3 + z.take(3)
		default:
			repeat = 11 + z.take(7)
		}
		if repeat > len(lengths)-i {
			return errZlib
		}
		for range repeat {
			lengths[i] = v
			i++
		}
	}
	if z.n < 0 || lengths[256] == 0 ||
		!z.literals.set(lengths[:lit], &literalEntries) || !z.distances.set(lengths[lit:], &distanceEntries) {
		return errZlib
	}
	return nil
}

// set makes the decoder of the code whose symbols have these lengths; entries
// nil: symbols mean themselves. It is false when there is no such code.
func (h *huffman) set(lengths []uint8, entries *[maxLiterals]codeEntry) bool {
	h.count = [maxCodeBits + 1]uint16{}
	for _, l := range lengths {
		h.count[l]++
	}
	h.count[0] = 0
	var next, at [maxCodeBits + 2]int // code and place in sorted, by length
	left := 1
	for l := 1; l <= maxCodeBits; l++ {
		left = left<<1 - int(h.count[l])
		if left < 0 {
			return false
		}
		next[l+1] = (next[l] + int(h.count[l])) << 1
		at[l+1] = at[l] + int(h.count[l])
	}
	// A code of a single symbol, or of none, need not be complete.
	if n := at[maxCodeBits+1]; left > 0 && (n > 1 || n == 1 && h.count[1] == 0) {
		return false
	}
	clear(h.table[:])
	for sym, l := range lengths {
		if l == 0 {
			continue
		}
		h.sorted[at[l]] = uint16(sym)
		at[l]++
		code := next[l]
		next[l]++
		if l > tableBits {
			continue
		}
		e := kindLiteral | codeEntry(sym)<<16
		if entries != nil {
			e = entries[sym]
		}
		e = e.of(int(l))
		for i := int(bits.Reverse16(uint16(code)) >> (16 - l)); i < len(h.table); i += 1 << l {
			h.table[i] = e
		}
	}
	return true
}

// next returns the entry of the code that comes first in ahead, of kindLong
// when there is none in the table.
func (h *huffman) next(ahead uint64) codeEntry { return h.table[ahead&(1<<tableBits-1)] }

// long returns the entry of a code that is longer than the table knows, of the
// alphabet with these entries; of kindLong when there is none.
func (h *huffman) long(ahead uint64, entries *[maxLiterals]codeEntry) codeEntry {
	code, first, at := 0, 0, 0
	for l := 1; l <= maxCodeBits; l++ {
		code |= int(ahead >> uint(l-1) & 1)
		n := int(h.count[l])
		if code-first < n {
			return entries[h.sorted[at+code-first]].of(l)
		}
		at += n
		first = (first + n) << 1
		code <<= 1
	}
	return kindLong
}

// block decompresses a block, with its codes set up.
func (z *inflater) block() error {
	for {
		z.room(z.done)
		if err := z.fast(); err != nil {
			return err
		}
		end, err := z.symbol()
		if end || err != nil {
			return err
		}
	}
}

// What fast wants to be left, in bytes: of src two reads, of dst three literals
// and a copy with what is written beyond it.
const (
	maxFastCopy = 64
	fastSource  = 16
	fastRoom    = 3 + maxFastCopy + 16
)

// fast decompresses as long as neither src nor dst come to their end, and
// codes are short and copies simple, as most are.
func (z *inflater) fast() error {
	if z.n < 0 {
		return errZlib
	}
	le := binary.LittleEndian
	src, dst, pos, done := z.src, z.dst, z.pos, z.done
	ahead, n := z.bits, uint(z.n)
	literals, distances := &z.literals.table, &z.distances.table
	for len(src)-pos >= fastSource && len(dst)-done >= fastRoom {
		ahead |= le.Uint64(src[pos:pos+8]) << (n & 63)
		pos += int((63 - n) >> 3)
		n |= 56
		e := literals[ahead&(1<<tableBits-1)]
		if e&kindMask == kindLiteral {
			ahead >>= e & 63
			n -= uint(e & 63)
			dst[done] = byte(e >> 16)
			done++
			e = literals[ahead&(1<<tableBits-1)]
			if e&kindMask == kindLiteral {
				ahead >>= e & 63
				n -= uint(e & 63)
				dst[done] = byte(e >> 16)
				done++
				e = literals[ahead&(1<<tableBits-1)]
				if e&kindMask == kindLiteral {
					ahead >>= e & 63
					n -= uint(e & 63)
					dst[done] = byte(e >> 16)
					done++
					continue
				}
			}
		}
		if e&kindMask != kindCopy {
			break
		}
		size := e.value(ahead)
		b, m, at := ahead>>(e&63), n-uint(e&63), pos
		if m < 32 {
			b |= le.Uint64(src[at:at+8]) << (m & 63)
			at += int((63 - m) >> 3)
			m |= 56
		}
		e = distances[b&(1<<tableBits-1)]
		d := e.value(b)
		if e&kindMask != kindCopy || size > maxFastCopy || d < 8 || d > done {
			break
		}
		ahead, n, pos = b>>(e&63), m-uint(e&63), at
		from, to := dst[done-d:done-d+maxFastCopy+8], dst[done:done+maxFastCopy+8]
		done += size
		le.PutUint64(to, le.Uint64(from))
		le.PutUint64(to[8:], le.Uint64(from[8:]))
		for i := 16; i < size; i += 8 {
			le.PutUint64(to[i:i+8], le.Uint64(from[i:i+8]))
		}
	}
	z.pos, z.done = pos, done
	z.bits, z.n = ahead, int(n)
	return nil
}

// symbol decompresses a literal or a copy, or ends the block.
func (z *inflater) symbol() (end bool, err error) {
	dst, done := z.dst, z.done
	z.fill()
	if z.n < 0 {
		return false, errZlib
	}
	e := z.literals.next(z.bits)
	if e&kindMask == kindLong {
		e = z.literals.long(z.bits, &literalEntries)
	}
	n := e.value(z.bits)
	if z.take(int(e & 63)); z.n < 0 {
		return false, errZlib
	}
	switch e & kindMask {
	case kindLiteral:
		if done == len(dst) {
			return false, errZlibSize
		}
		dst[done] = byte(n)
		z.done++
		return false, nil
	case kindEnd:
		return true, nil
	case kindLong:
		return false, errZlib
	}
	z.fill()
	e = z.distances.next(z.bits)
	if e&kindMask == kindLong {
		e = z.distances.long(z.bits, &distanceEntries)
	}
	d := e.value(z.bits)
	if z.take(int(e & 63)); e&kindMask != kindCopy || z.n < 0 {
		return false, errZlib
	}
	if d > done {
		return false, errZlib
	}
	if n > len(dst)-done {
		return false, errZlibSize
	}
	from, to := dst[done-d:], dst[done:done+n]
	z.done += n
	if d >= n {
		copy(to, from)
		return false, nil
	}
	for i := range to { // what is copied is part of what it makes
		to[i] = from[i]
	}
	return false, nil
}
