package jsc

import "encoding/binary"

// expressions is how code that has yet to be linked tells where in the source its bytecode is (ExpressionInfo.h and
// .cpp in bytecode of Source/JavaScriptCore): in words of 32 bits, one or more for each place, with how far it is from the one before.
type expressions struct {
	at        uint64 // of an UnlinkedCodeBlock: where they are
	counts    uint64 // of that: how many chapters there are, words, and words that others go aside to (32 bits each)
	words     uint64 // where they begin, behind two for each chapter
	mayBorrow bool   // before that is where they are in a cache of bytecode, 0 if they are not
	wordLayout
}

// wordLayout tells what is in a word, behind instructionBits.
type wordLayout struct {
	divotBits uint8 // of how far it is in characters
	hasLines  bool  // and of how far in lines and columns, in the lowest bits
}

// expressionLayouts are all that are known: those of Bun until 1.4.0, of 1.4.1 and 1.4.2, and from 1.4.3 on.
var expressionLayouts = [...]expressions{
	{0xa0, 0x08, 0x18, false, wordLayout{7, true}},
	{0x90, 0x08, 0x20, true, wordLayout{7, true}},
	{0x90, 0x10, 0x28, true, wordLayout{11, false}},
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
	fieldLine        = 4
	fieldColumn      = 5
	maxFields        = 6

	lineBits    = 3
	columnBits  = 5
	columnDivot = 1<<columnBits - 1 // it is as far as in characters

	maxExpressions = 1 << 20 // words
)

// signed returns the number in the lowest so many bits.
func signed(v uint32, bits uint8) uint32 { return uint32(int32(v<<(32-bits)) >> (32 - bits)) }

// unsigned is the same where there is no sign.
func unsigned(v uint32, bits uint8) uint32 { return v << (32 - bits) >> (32 - bits) }

// biased is signed for what is greater by half the numbers that there are.
func biased(v uint32, bits uint8) uint32 { return signed(v-1<<(bits-1), bits) }

// expressionReader decodes words, of which the last so many are aside.
type expressionReader struct {
	words []uint32
	aside int
	wordLayout

	next        int
	instruction uint32 // where the bytecode is
	sourceOffset
}

// sourceOffset is how far something is from where the source of a function begins.
type sourceOffset struct {
	divot        uint32 // in characters
	line, column uint32 // from 0, where that is told; of the first line from where the function begins
}

// read reads the next place. It reports false at the end, and where the words are none: then next is not at the end.
func (r *expressionReader) read() bool {
	end, n, back := len(r.words)-r.aside, r.next, -1
	if n >= end {
		return false
	}
	var instruction uint32
	var by sourceOffset
	set := func(field, v uint32, bits uint8) {
		switch field {
		case fieldInstruction:
			instruction += unsigned(v, bits)
		case fieldDivot:
			by.divot += signed(v, bits)
		case fieldLine:
			by.line += signed(v, bits)
		case fieldColumn:
			by.column += signed(v, bits)
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
			by.divot += biased(v>>(32-instructionBits-r.divotBits), r.divotBits)
			r.divot += by.divot
			if r.hasLines {
				r.addLines(by, v)
			}
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
			r.instruction, r.sourceOffset = 0, sourceOffset{}
			instruction, by = unsigned(v, kindShift), sourceOffset{}
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

// addLines goes on by what was read, and by the last word of it.
func (r *expressionReader) addLines(by sourceOffset, v uint32) {
	if by.line += biased(v>>columnBits, lineBits); by.line != 0 {
		r.line, r.column = r.line+by.line, 0
	}
	if r.column += by.column; v&columnDivot == columnDivot {
		r.column += by.divot
	} else {
		r.column += biased(v, columnBits)
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
	words := at + l.words
	if l.mayBorrow {
		if borrowed, ok := vm.WordNow(words - 8); !ok {
			return nil
		} else if borrowed != 0 {
			words = borrowed
		}
	}
	raw := make([]byte, 4*(n+aside))
	if !vm.ReadNow(words+8*uint64(chapters), raw) {
		return nil
	}
	r := &expressionReader{words: make([]uint32, n+aside), aside: int(aside), wordLayout: l.wordLayout}
	for i := range r.words {
		r.words[i] = le.Uint32(raw[4*i:])
	}
	return r
}

// find returns where an instruction of bytecode is in a function of so many characters: what the last place tells
// that is not behind it, or else the first. It reports false where anything is not as it should be.
func (r *expressionReader) find(instruction, length uint32) (at sourceOffset, places int, ok bool) {
	for last := uint32(0); r.read(); places++ {
		if r.divot > length || r.line > length || r.instruction < last {
			return at, 0, false
		}
		if last = r.instruction; r.instruction <= instruction || places == 0 {
			at = r.sourceOffset
		}
	}
	return at, places, places > 0 && r.next == len(r.words)-r.aside
}

// offsetOf is the same of an UnlinkedCodeBlock. How that tells it is seen of the first that only one layout fits.
func (vm *machine) offsetOf(unlinked uint64, instruction, length uint32) (offset sourceOffset, ok bool) {
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
		at, places, fits := r.find(instruction, length)
		if !fits {
			continue
		}
		if is != nil || vm.expressions == nil && places < fewest {
			return offset, false
		}
		is, offset = l, at
	}
	if is == nil {
		return offset, false
	}
	vm.expressions = is
	return offset, true
}
