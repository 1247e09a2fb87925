package procstate

import (
	"encoding/binary"
	"errors"
	"hash/adler32"
	"math/bits"
	"sync"
)

// Decompression of zlib data (RFC 1950, RFC 1951) into memory. The readers that
// stream take twice as long, and the first name of a program can wait for
// nothing else: libc's debug information alone is 6 MB.

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
	tableBits    = 10
)

// huffman decodes one alphabet. Codes of up to tableBits are looked up; longer
// ones are found by counting.
type huffman struct {
	table  [1 << tableBits]codeEntry
	count  [maxCodeBits + 1]uint16 // codes of each length
	sorted [maxLiterals]uint16     // symbols in order of their codes
}

// codeEntry is what a code stands for: bits 0-3 the length of the code, 4-7
// how many more bits are added to the value, 8-9 the kind, 16-31 the value.
type codeEntry uint32

const (
	kindLong    codeEntry = 0 << 8 // a longer code, or none
	kindLiteral codeEntry = 1 << 8
	kindCopy    codeEntry = 2 << 8
	kindEnd     codeEntry = 3 << 8
	kindMask    codeEntry = 3 << 8
)

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
		lit[257+i] = kindCopy | codeEntry(extra)<<4 | codeEntry(base)<<16
		base += 1 << extra
	}
	lit[285] = kindCopy | 258<<16
	for i, base := 0, 1; i < 30; i++ {
		extra := max(0, i/2-1)
		dist[i] = kindCopy | codeEntry(extra)<<4 | codeEntry(base)<<16
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
	z.next()
	for z.n >= 0 && z.n < 56 && z.pos < len(z.src) {
		z.bits |= uint64(z.src[z.pos]) << uint(z.n)
		z.pos++
		z.n += 8
	}
}

// next makes src reach further, where there is more. It keeps what was read
// ahead and may be given back.
func (z *inflater) next() {
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

// take removes up to 16 bits of those that fill has read.
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
		z.next()
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
			z.next()
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
		e := h.decode(z)
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
		if e != 0 {
			e |= codeEntry(l)
		}
		for i := int(bits.Reverse16(uint16(code)) >> (16 - l)); i < len(h.table); i += 1 << l {
			h.table[i] = e
		}
	}
	return true
}

// decode takes a code and returns its entry, of kindLong when there is none.
func (h *huffman) decode(z *inflater) codeEntry {
	e := h.table[z.bits&(1<<tableBits-1)]
	z.bits >>= uint(e & 15)
	z.n -= int(e & 15)
	return e
}

// long takes a code that is longer than the table knows, of the alphabet with
// these entries.
func (h *huffman) long(z *inflater, entries *[maxLiterals]codeEntry) codeEntry {
	code, first, at := 0, 0, 0
	for l := 1; l <= maxCodeBits; l++ {
		code |= int(z.bits >> uint(l-1) & 1)
		n := int(h.count[l])
		if code-first < n {
			e := entries[h.sorted[at+code-first]]
			z.take(l)
			return e
		}
		at += n
		first = (first + n) << 1
		code <<= 1
	}
	return kindLong
}

// block decompresses a block, with its codes set up.
func (z *inflater) block() error {
	dst, done := z.dst, z.done
	for {
		if len(dst)-done < maxCopy {
			z.room(done)
			dst = z.dst
		}
		z.fill()
		if z.n < 0 {
			return errZlib
		}
		e := z.literals.decode(z)
		if e&kindMask == kindLiteral && done < len(dst) {
			dst[done] = byte(e >> 16)
			done++
			// What is left is enough for another one, with a copy.
			e = z.literals.decode(z)
		}
		if e&kindMask == kindLong {
			e = z.literals.long(z, &literalEntries)
		}
		switch e & kindMask {
		case kindLiteral:
			if done == len(dst) {
				return errZlibSize
			}
			dst[done] = byte(e >> 16)
			done++
			continue
		case kindEnd:
			z.done = done
			if z.n < 0 {
				return errZlib
			}
			return nil
		case kindLong:
			return errZlib
		}
		n := int(e>>16) + z.take(int(e>>4&15))
		z.fill()
		e = z.distances.decode(z)
		if e&kindMask == kindLong {
			e = z.distances.long(z, &distanceEntries)
		}
		if e&kindMask != kindCopy || z.n < 0 {
			return errZlib
		}
		d := int(e>>16) + z.take(int(e>>4&15))
		if d > done {
			return errZlib
		}
		if n > len(dst)-done {
			return errZlibSize
		}
		if d >= 8 && n <= 64 && len(dst)-done >= n+8 { // most are: a word at a time, beyond the end
			for i := 0; i < n; i += 8 {
				binary.LittleEndian.PutUint64(dst[done+i:], binary.LittleEndian.Uint64(dst[done+i-d:]))
			}
			done += n
			continue
		}
		from, to := dst[done-d:], dst[done:done+n]
		done += n
		if d >= n {
			copy(to, from)
			continue
		}
		for i := range to { // what is copied is part of what it makes
			to[i] = from[i]
		}
	}
}
