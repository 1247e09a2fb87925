package clr

import (
	"encoding/binary"
	"math/bits"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// form is how it is stored which instruction of code is of which of IL, what C# and others are compiled to
// (src/coreclr/vm/debuginfostore.cpp).
type form uint8

const (
	formUnknown form = iota
	formNibbles      // numbers of 3 bits at a time: .NET 8, code compiled ahead before version 16
	formPacked       // of as many bits as the greatest has: .NET 10, version 16
)

// debugInfo is where the debug information of a function is.
type debugInfo struct {
	addr     uint64 // 0: there is none
	form     form
	hasFlags bool // a byte that tells what stands before it
}

// What stands for an offset in IL (src/coreclr/inc/cordebuginfo.h, MappingTypes).
const (
	ilNone   = ^uint32(0) - iota // code that is of no instruction
	ilProlog                     // before the first one
	ilEpilog                     // behind the last one
)

// Debug information, in bytes unless something else is said.
const (
	debugHasPatchpoint = 1          // of its flags: where code is that replaces other while it runs,
	debugHasInlined    = 2          // what was inlined (DOTNET_RichDebugInfo), with its size before it
	debugPatchpoint    = 24         // what that takes behind a register, or from .NET 10 on a register and a pointer
	debugPatchpointVar = 4          // and for each variable, of which it begins with the number
	debugInstrumented  = ^uint32(0) // as a size: behind it are that of what is told of IL as a profiler has changed it, and of IL as it was
	maxDebugVars       = 1 << 16
	maxBounds          = 1 << 18

	boundsIsCall       = 1 << 4 // of what is told of a place in code: no statement begins there
	boundsIsCallPacked = 1
	boundsPackedSource = 2 // bits
)

// ilOffset returns which instruction of IL the code is of that is native bytes behind where a method begins, as an
// offset in the IL of the method, as .NET itself does for its traces. ok is false where it is of none, or there is no telling.
func (d *debugInfo) ilOffset(read vmread.Reader, native uint32) (il uint32, ok bool) {
	at := d.addr
	if d.hasFlags {
		var b [1]byte
		if !read(at, b[:]) || b[0]&^(debugHasPatchpoint|debugHasInlined) != 0 {
			return 0, false
		}
		at++
		if b[0]&debugHasPatchpoint != 0 {
			if at += 8; d.form == formPacked {
				at += 8
			}
			n, ok := half(read, at)
			if !ok || n >= maxDebugVars {
				return 0, false
			}
			at += debugPatchpoint + debugPatchpointVar*uint64(n)
		}
		if b[0]&debugHasInlined != 0 {
			n, ok := half(read, at)
			if !ok {
				return 0, false
			}
			at += 4 + uint64(n)
		}
	}
	var buf [24]byte
	head := nibbles{b: readSome(read, at, buf[:])}
	size, skipped := head.number(), uint32(0)
	if size == debugInstrumented && d.form == formPacked {
		skipped, size = head.number(), head.number()
	}
	head.number() // of what is told of variables
	if head.failed || size == 0 || size > maxBounds {
		return 0, false
	}
	b := make([]byte, size)
	if !read(at+uint64(head.bytes())+uint64(skipped), b) {
		return 0, false
	}
	return ilIn(b, d.form, native)
}

// half reads half a word.
func half(read vmread.Reader, at uint64) (v uint32, ok bool) {
	var b [4]byte
	ok = read(at, b[:])
	return binary.LittleEndian.Uint32(b[:]), ok
}

// readSome reads memory that may end, with a page, before all of buf is read.
func readSome(read vmread.Reader, at uint64, buf []byte) []byte {
	const pageBytes = 1 << 12
	if !read(at, buf) {
		if buf = buf[:min(uint64(len(buf)), pageBytes-at%pageBytes)]; !read(at, buf) {
			return nil
		}
	}
	return buf
}

// ilIn looks for an offset of code in what is told of a method's: places in code, in order, with the IL that begins there. Code
// before the first instruction is of that, and what leaves a function of the instruction before; but what begins code that
// handles exceptions is of none, which .NET takes for the method's first.
func ilIn(b []byte, form form, native uint32) (il uint32, ok bool) {
	r := bounds{nibbles: nibbles{b: b}, form: form}
	n := r.begin()
	at, last, lastAt, before := uint32(0), ilNone, ^uint32(0), ilNone
	for range n {
		delta, il, isCall := r.next()
		if r.failed || delta > ^uint32(0)-at {
			return 0, false
		}
		if at += delta; isCall || at > native {
			continue
		}
		// Of what is at the same place .NET 8 takes the last, 10 the first in IL.
		if lastAt != at || form != formPacked || il != ilNone && int32(il) < int32(last) {
			last, lastAt = il, at
		}
		if il < ilEpilog {
			before = il
		}
	}
	switch {
	case r.failed || r.end() != len(b):
		return 0, false
	case last == ilProlog && lastAt == 0:
		return 0, true
	case last == ilEpilog:
		last = before
	}
	return last, last < ilEpilog
}

// bounds reads places in code.
type bounds struct {
	nibbles
	form              form
	deltaBits, ilBits uint // of formPacked
	bit               uint // where to read on
}

// begin returns how many places there are.
func (r *bounds) begin() (n uint32) {
	n = r.number()
	if r.form == formPacked {
		r.deltaBits, r.ilBits = uint(r.number())+1, uint(r.number())+1
		r.bit = 8 * uint(r.bytes())
	}
	if n > 8*uint32(len(r.b)) || r.deltaBits > 32 || r.ilBits > 32 {
		r.failed = true
	}
	if r.failed {
		return 0
	}
	return n
}

// next reads a place: how far it is behind the last one, in bytes, and the offset in IL.
func (r *bounds) next() (delta, il uint32, isCall bool) {
	if r.form != formPacked {
		delta, il = r.number(), r.number()+ilEpilog
		return delta, il, r.number()&boundsIsCall != 0
	}
	isCall = r.take(boundsPackedSource)&boundsIsCallPacked != 0
	delta, il = r.take(r.deltaBits), r.take(r.ilBits)+ilEpilog
	return delta, il, isCall
}

// take reads so many bits, the lowest first.
func (r *bounds) take(n uint) (v uint32) {
	for got := uint(0); got < n; {
		i, from := r.bit/8, r.bit%8
		if i >= uint(len(r.b)) {
			r.failed = true
			return 0
		}
		m := min(8-from, n-got)
		v |= uint32(r.b[i]) >> from & (1<<m - 1) << got
		got, r.bit = got+m, r.bit+m
	}
	return v
}

// end returns how many bytes were read.
func (r *bounds) end() int {
	if r.form == formPacked {
		return int(r.bit+7) / 8
	}
	return r.bytes()
}

// nibbles reads numbers of which each four bits have three, the highest first, and tell whether more follow
// (src/coreclr/inc/nibblestream.h).
type nibbles struct {
	b      []byte
	at     int // in nibbles
	failed bool
}

func (r *nibbles) number() (v uint32) {
	const more, most = 8, 11 // the most of a number
	for range most {
		if r.at/2 >= len(r.b) {
			break
		}
		n := r.b[r.at/2] >> (4 * (r.at % 2)) & 15
		r.at++
		v = v<<3 | uint32(n&^more)
		if n&more == 0 {
			return v
		}
	}
	r.failed = true
	return 0
}

// bytes returns how many bytes were read, or begun.
func (r *nibbles) bytes() int { return (r.at + 1) / 2 }

// ahead is a method in a module that was compiled ahead.
type ahead struct {
	module uint64 // a ReadyToRunInfo; 0: there is nothing to look for
	base   uint64 // of the image
	index  uint32 // among its functions
}

// Parts of a module that was compiled ahead (src/coreclr/inc/readytorun.h).
const (
	readyToRunIs       = "RTR\x00"
	readyToRunHead     = 16
	readyToRunPart     = 12
	readyToRunDebug    = 105
	readyToRunPacked   = 16 // the version that began with formPacked
	maxReadyToRunParts = 64
)

// debugOf returns where the debug information of a function is.
func (vm *machine) debugOf(f *function) *debugInfo {
	if a := &f.ahead; a.module != 0 {
		part, known := vm.parts[a.module]
		if !known {
			if len(vm.parts) >= maxModules {
				clear(vm.parts)
			}
			part = vm.debugPart(a)
			vm.parts[a.module] = part
		}
		f.debug = debugInfo{form: part.form}
		if at, ok := (nativeReader{vm.ReadNow, a.base}).element(part.addr, a.index); ok && part.form != formUnknown {
			f.debug.addr = at
		}
		a.module = 0
	}
	return &f.debug
}

// debugPart looks for the array of what functions of a module have, which is by their numbers, and how that is stored.
func (vm *machine) debugPart(a *ahead) (part debugInfo) {
	var head [readyToRunHead]byte
	le := binary.LittleEndian
	header := vm.wordAt(a.module + vm.fields.header)
	if vm.fields.header == 0 || !vm.ReadNow(header, head[:]) || string(head[:4]) != readyToRunIs {
		return part
	}
	b := make([]byte, readyToRunPart*min(le.Uint32(head[12:]), maxReadyToRunParts))
	if !vm.ReadNow(header+readyToRunHead, b) {
		return part
	}
	for ; len(b) > 0; b = b[readyToRunPart:] {
		if le.Uint32(b) != readyToRunDebug {
			continue
		}
		switch version := le.Uint16(head[4:]); {
		case version < readyToRunPacked:
			part.form = formNibbles
		case version == readyToRunPacked:
			part.form = formPacked
		}
		part.addr = a.base + uint64(le.Uint32(b[4:]))
	}
	return part
}

// nativeReader reads numbers in an image, and arrays (src/coreclr/vm/nativeformatreader.h).
type nativeReader struct {
	read vmread.Reader
	base uint64
}

// number reads a number of which the lowest bits tell how many bytes it has, and returns where the next one is.
func (r nativeReader) number(at uint64) (v uint32, next uint64, ok bool) {
	var buf [8]byte
	b := readSome(r.read, at, buf[:5])
	if len(b) == 0 {
		return 0, 0, false
	}
	n := bits.TrailingZeros8(^b[0]) + 1 // bytes
	if n > 5 || n > len(b) {
		return 0, 0, false
	}
	if n == 5 {
		return binary.LittleEndian.Uint32(buf[1:]), at + 5, true
	}
	return binary.LittleEndian.Uint32(buf[:]) & (1<<(8*n) - 1) >> n, at + uint64(n), true
}

// element returns where what an element of an array refers to is: 16 elements at a time are the leaves of a tree.
func (r nativeReader) element(array uint64, index uint32) (at uint64, ok bool) {
	const leaves, left, right = 16, 1, 2
	head, base, ok := r.number(array)
	if !ok || index >= head>>2 {
		return 0, false
	}
	var b [4]byte
	wide := uint64(1) << min(head&3, 2)
	if !r.read(base+wide*uint64(index/leaves), b[:wide]) {
		return 0, false
	}
	at = base + uint64(binary.LittleEndian.Uint32(b[:]))
	for bit := uint32(leaves / 2); bit > 0; bit /= 2 {
		v, next, ok := r.number(at)
		switch {
		case !ok:
			return 0, false
		case index&bit != 0 && v&right != 0:
			at += uint64(v >> 2)
		case index&bit == 0 && v&left != 0:
			at = next
		case v&(left|right) == 0 && v>>2 == index%leaves: // the only one left
			at, bit = next, 0
		default:
			return 0, false
		}
	}
	back, next, ok := r.number(at)
	switch {
	case !ok:
		return 0, false
	case back != 0: // the same as of an earlier one
		return at - uint64(back), true
	}
	return next, true
}
