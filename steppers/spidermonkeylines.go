package steppers

import (
	"encoding/binary"
	"sort"
	"strings"
)

// smLine is a line of the source that bytecode is of, from an offset on.
type smLine struct {
	from uint32
	line int32
}

// smNotes is how source notes are written (frontend/SourceNotes.h).
type smNotes uint8

const (
	smNotesUnknown smNotes = iota
	smNotesOlder           // as in mozjs 102: they end in 0
	smNotesNewer           // as in Firefox 153: they may end in 0x80, and have a line together with a column
	smNotesOther
)

// smNote is what a source note does, beside its way in the bytecode.
type smNote uint8

const (
	smNoteNone smNote = iota // it is no note
	smNoteOther
	smNoteNewLine
	smNoteSetLine // to the first operand, from the script's line on
)

// smNoteKinds are the notes of both ways to write them, by type, and how many operands these have.
var smNoteKinds = map[smNotes][8]struct {
	does     smNote
	operands int
}{
	smNotesOlder: {1: {smNoteOther, 0}, 2: {smNoteOther, 1}, 3: {smNoteNewLine, 0}, 4: {smNoteSetLine, 1}, 5: {smNoteOther, 0}, 6: {smNoteOther, 0}},
	smNotesNewer: {
		0: {smNoteOther, 1}, 1: {smNoteNewLine, 0}, 2: {smNoteNewLine, 1}, 3: {smNoteSetLine, 1}, 4: {smNoteSetLine, 2}, 5: {smNoteOther, 0},
		6: {smNoteOther, 0},
	},
}

// smEnds are what ends the notes.
var smEnds = map[smNotes]byte{smNotesOlder: 0, smNotesNewer: 0x80}

// smReadNotes takes source notes apart, of bytecode of so many bytes that begins with a line. ok is false where they are not
// written so.
func smReadNotes(notes []byte, how smNotes, length, first uint32) (lines []smLine, ok bool) {
	const isDelta, wide = 0x80, 0x80
	kinds, end := smNoteKinds[how], smEnds[how]
	at, line := uint32(0), first
	lines = append(lines, smLine{0, int32(line)})
	for len(notes) > 0 {
		b := notes[0]
		if b == end {
			return lines, strings.Trim(string(notes), string([]byte{end})) == "" && len(notes) <= smLongestEnd
		}
		notes = notes[1:]
		if b&isDelta != 0 {
			if b == isDelta {
				return nil, false
			}
			at += uint32(b &^ isDelta)
			continue
		}
		at += uint32(b & 15)
		kind := kinds[b>>4]
		if kind.does == smNoteNone || at > length {
			return nil, false
		}
		operand := uint32(0)
		for n := range kind.operands {
			size := 1
			if len(notes) > 0 && notes[0]&wide != 0 {
				size = 4
			}
			if len(notes) < size {
				return nil, false
			}
			v := uint32(notes[0])
			if size == 4 {
				v = binary.BigEndian.Uint32(notes) &^ (wide << 24)
			}
			if n == 0 {
				operand = v
			}
			notes = notes[size:]
		}
		switch kind.does {
		case smNoteNewLine:
			line++
		case smNoteSetLine:
			line = first + operand
		default:
			continue
		}
		if line > maxSMLine {
			return nil, false
		}
		lines = append(lines, smLine{at, int32(line)})
	}
	return lines, how != smNotesOlder && at <= length
}

const (
	smLongestEnd = 4 // bytes that notes end with: they are made so long that what follows is aligned
	maxSMLine    = 1 << 28
)

// readLines reads the lines of a script, once it is known how they are written.
func (vm *smVM) readLines(s *smScript) {
	if s.linesRead || vm.notes == smNotesOther {
		return
	}
	var head [smDataCode]byte
	data := s.bytecode.start - smDataCode
	if !vm.readNow(data, head[:]) {
		return
	}
	le := binary.LittleEndian
	length := uint32(s.bytecode.end - s.bytecode.start)
	const ends = 3 // numbers of ends, in the flags
	until := le.Uint32(head[smDataOptional:]) - 4*uint32(head[smDataFlags]>>4&ends)
	if s.linesRead = le.Uint32(head[smDataLength:]) == length; !s.linesRead || until < smDataCode+length || until-smDataCode-length > maxSMData {
		s.linesRead = true
		return
	}
	notes := make([]byte, until-smDataCode-length)
	if !vm.readNow(s.bytecode.end, notes) {
		return
	}
	older, isOlder := smReadNotes(notes, smNotesOlder, length, s.is.line)
	newer, isNewer := smReadNotes(notes, smNotesNewer, length, s.is.line)
	switch {
	case isOlder && !isNewer && vm.notes != smNotesNewer:
		vm.notes = smNotesOlder
	case isNewer && !isOlder && vm.notes != smNotesOlder:
		vm.notes = smNotesNewer
	case isOlder && isNewer:
	default:
		vm.notes = smNotesOther // a version that is not known
	}
	switch vm.notes {
	case smNotesUnknown:
		s.linesRead = false
	case smNotesOlder:
		s.lines = older
	case smNotesNewer:
		s.lines = newer
	}
	vm.keep(8 * len(s.lines))
}

// lineAt returns the line of an offset in the bytecode, 0 where that is not known.
func (s *smScript) lineAt(off uint32) int32 {
	i := sort.Search(len(s.lines), func(i int) bool { return s.lines[i].from > off })
	if i == 0 {
		return 0
	}
	return s.lines[i-1].line
}

// lineBetween returns the line that all bytecode has from one offset to another, 0 where there are several.
func (s *smScript) lineBetween(from, to uint32) int32 {
	line := s.lineAt(from)
	i := sort.Search(len(s.lines), func(i int) bool { return s.lines[i].from > from })
	for ; i < len(s.lines) && s.lines[i].from <= to; i++ {
		if s.lines[i].line != line {
			return 0
		}
	}
	return line
}

// baselineLine returns the line of a place in code of the baseline compiler, by the calls that it has: of a return address
// it is that of the call, else the one of all bytecode from the last call to the next.
func (s *smScript) baselineLine(pc uint64, interrupted bool) int32 {
	off := uint32(pc - s.baseline.start)
	i := sort.Search(len(s.calls), func(i int) bool { return s.calls[i].returns >= off })
	if !interrupted {
		if i == len(s.calls) || s.calls[i].returns != off {
			return 0
		}
		return s.lineAt(s.calls[i].bytecode)
	}
	from, to := uint32(0), uint32(s.bytecode.end-s.bytecode.start)
	if i > 0 {
		from = s.calls[i-1].bytecode
	}
	if i < len(s.calls) {
		to = s.calls[i].bytecode
	}
	if to < from {
		return 0
	}
	return s.lineBetween(from, to)
}
