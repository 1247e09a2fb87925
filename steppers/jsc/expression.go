package jsc

import "encoding/binary"

// expressions is how code that has yet to be linked tells where in the source its bytecode is (ExpressionInfo.h and
// .cpp in bytecode of Source/JavaScriptCore): in words of 32 bits, one or more for each place, with how far it is from the one before.
type expressions struct {
	at        uint64 // of an UnlinkedCodeBlock: where they are
	counts    uint64 // of that: how many chapters there are, words, and words that others go aside to (32 bits each)
	words     uint64 // where they begin, behind two for each chapter
	divotBits uint8  // of how far it is in characters, behind instructionBits
}

// expressionLayouts are all that are known: those of Bun until 1.4.0, of 1.4.2 and from 1.4.3 on.
var expressionLayouts = [...]expressions{
	{0xa0, 0x08, 0x18, 7},
	{0x90, 0x08, 0x20, 7},
	{0x90, 0x10, 0x28, 11},
}

// What words consist of, in bits from the highest on.
const (
	instructionBits = 5
	wide            = 1<<instructionBits - 2 // more than fits into one, and
	special         = 1<<instructionBits - 1 // what is no distance
	kindShift       = 26
	fieldShift      = 23
	fieldBits       = 3
	noField         = 1<<fieldBits - 1
	duoBits         = 10
	multiShift      = 18 // how many fields have a word each behind this one
	multiMask       = 1<<5 - 1

	fieldInstruction = 0
	fieldDivot       = 1
	maxFields        = 6

	maxExpressions = 1 << 20 // words
)

// signed returns the number in the lowest so many bits.
func signed(v uint32, bits uint8) uint32 { return uint32(int32(v<<(32-bits)) >> (32 - bits)) }

// unsigned is the same where there is no sign.
func unsigned(v uint32, bits uint8) uint32 { return v << (32 - bits) >> (32 - bits) }

// expressionReader decodes words, of which the last so many are aside.
type expressionReader struct {
	words     []uint32
	aside     int
	divotBits uint8

	next               int
	instruction, divot uint32 // where the bytecode is, and the source
}

// read reads the next place. It reports false at the end, and where the words are none: then next is not at the end.
func (r *expressionReader) read() bool {
	end, n, back := len(r.words)-r.aside, r.next, -1
	if n >= end {
		return false
	}
	var instruction, divot uint32
	set := func(field, v uint32, bits uint8) {
		switch field {
		case fieldInstruction:
			instruction += unsigned(v, bits)
		case fieldDivot:
			divot += signed(v, bits)
		}
	}
	for ; ; n++ {
		if n >= len(r.words) || n >= end && back < 0 {
			return false
		}
		v := r.words[n]
		header, multi, field := v>>(32-instructionBits), v>>kindShift&1 != 0, v>>fieldShift&noField
		switch {
		case header < wide:
			r.instruction += instruction + header
			const bias = 1
			shift := 32 - instructionBits - r.divotBits
			r.divot += divot + signed(v>>shift-bias<<(r.divotBits-1), r.divotBits)
			if back >= 0 {
				n = back
			}
			r.next = n + 1
			return true
		case header == special && multi: // what is aside stands in the place of this word
			if back >= 0 || n >= end {
				return false
			}
			back = n
			if n += int(unsigned(v, kindShift)) - 1; n < end-1 {
				return false
			}
		case header == special: // a chapter: all begins anew
			r.instruction, r.divot = 0, 0
			instruction, divot = unsigned(v, kindShift), 0
		case field == noField && !multi: // the end of what is aside
			if back < 0 {
				return false
			}
			n, back = back, -1
		case field == noField:
			fields := v >> multiShift & multiMask
			if fields == 0 || fields > maxFields || n+int(fields) >= len(r.words) {
				return false
			}
			for i := range fields {
				n++
				set(v>>(multiShift-fieldBits*(i+1))&noField, r.words[n], 32)
			}
		case multi:
			set(field, v>>(fieldShift-duoBits), duoBits)
			set(v>>duoBits&noField, v, duoBits)
		default:
			set(field, v, fieldShift)
		}
	}
}

// readExpressions reads the words of an UnlinkedCodeBlock, nil where these are none of this layout.
func (vm *machine) readExpressions(l *expressions, unlinked uint64) *expressionReader {
	var counts [3 * 4]byte
	at, ok := vm.WordNow(unlinked + l.at)
	if !ok || !isCell(at) || !vm.ReadNow(at+l.counts, counts[:]) {
		return nil
	}
	le := binary.LittleEndian
	chapters, n, aside := le.Uint32(counts[:]), le.Uint32(counts[4:]), le.Uint32(counts[8:])
	if n == 0 || n > maxExpressions || aside > n || chapters > n {
		return nil
	}
	raw := make([]byte, 4*(n+aside))
	if !vm.ReadNow(at+l.words+8*uint64(chapters), raw) {
		return nil
	}
	r := &expressionReader{words: make([]uint32, n+aside), aside: int(aside), divotBits: l.divotBits}
	for i := range r.words {
		r.words[i] = le.Uint32(raw[4*i:])
	}
	return r
}

// divotOf returns where an instruction of bytecode is in a function of so many characters: what the last place tells
// that is not behind it, or else the first. It reports false where anything is not as it should be.
func (r *expressionReader) divotOf(instruction, length uint32) (divot uint32, places int, ok bool) {
	for last := uint32(0); r.read(); places++ {
		if r.divot > length || r.instruction < last {
			return 0, 0, false
		}
		if last = r.instruction; r.instruction <= instruction || places == 0 {
			divot = r.divot
		}
	}
	return divot, places, places > 0 && r.next == len(r.words)-r.aside
}

// divotOf is the same of an UnlinkedCodeBlock. How that tells it is seen of the first that only one layout fits.
func (vm *machine) divotOf(unlinked uint64, instruction, length uint32) (divot uint32, ok bool) {
	const fewest = 3 // places from which on that is certain
	var is *expressions
	for i := range expressionLayouts {
		l := &expressionLayouts[i]
		if vm.expressions != nil && vm.expressions != l {
			continue
		}
		r := vm.readExpressions(l, unlinked)
		if r == nil {
			continue
		}
		at, places, fits := r.divotOf(instruction, length)
		if !fits {
			continue
		}
		if is != nil || vm.expressions == nil && places < fewest {
			return 0, false
		}
		is, divot = l, at
	}
	if is == nil {
		return 0, false
	}
	vm.expressions = is
	return divot, true
}
