package spidermonkey

import (
	"encoding/binary"
	"sort"
	"strings"
)

// sourceLine is a line of the source that bytecode is of, from an offset on.
type sourceLine struct {
	from uint32
	line int32
}

// notesForm is how source notes are written (frontend/SourceNotes.h).
type notesForm uint8

const (
	notesUnknown notesForm = iota
	notesOlder             // as in mozjs 102: they end in 0
	notesNewer             // as in Firefox 153: they may end in 0x80, and have a line together with a column
	notesOther
)

// note is what a source note does, beside its way in the bytecode.
type note uint8

const (
	noteNone note = iota // it is no note
	noteOther
	noteNewLine
	noteSetLine // to the first operand, from the script's line on
)

// noteKinds are the notes of both ways to write them, by type, and how many operands these have.
var noteKinds = map[notesForm][8]struct {
	does     note
	operands int
}{
	notesOlder: {1: {noteOther, 0}, 2: {noteOther, 1}, 3: {noteNewLine, 0}, 4: {noteSetLine, 1}, 5: {noteOther, 0}, 6: {noteOther, 0}},
	notesNewer: {
		0: {noteOther, 1}, 1: {noteNewLine, 0}, 2: {noteNewLine, 1}, 3: {noteSetLine, 1}, 4: {noteSetLine, 2}, 5: {noteOther, 0},
		6: {noteOther, 0},
	},
}

// ends are what ends the notes.
var ends = map[notesForm]byte{notesOlder: 0, notesNewer: 0x80}

// readNotes takes source notes apart, of bytecode of so many bytes that begins with a line. ok is false where they are not
// written so.
func readNotes(notes []byte, how notesForm, length, first uint32) (lines []sourceLine, ok bool) {
	const isDelta, wide = 0x80, 0x80
	kinds, end := noteKinds[how], ends[how]
	at, line := uint32(0), first
	lines = append(lines, sourceLine{0, int32(line)})
	for len(notes) > 0 {
		b := notes[0]
		if b == end {
			return lines, strings.Trim(string(notes), string([]byte{end})) == "" && len(notes) <= longestEnd
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
		if kind.does == noteNone || at > length {
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
		case noteNewLine:
			line++
		case noteSetLine:
			line = first + operand
		default:
			continue
		}
		if line > maxLine {
			return nil, false
		}
		lines = append(lines, sourceLine{at, int32(line)})
	}
	return lines, how != notesOlder && at <= length
}

const (
	longestEnd = 4 // bytes that notes end with: they are made so long that what follows is aligned
	maxLine    = 1 << 28
)

// readLines reads the lines of a script, once it is known how they are written.
func (vm *machine) readLines(s *scriptInfo) {
	if s.linesRead || vm.notes == notesOther {
		return
	}
	var head [dataCode]byte
	data := s.bytecode.Start - dataCode
	if !vm.ReadNow(data, head[:]) {
		return
	}
	le := binary.LittleEndian
	length := uint32(s.bytecode.End - s.bytecode.Start)
	const ends = 3 // numbers of ends, in the flags
	until := le.Uint32(head[dataOptional:]) - 4*uint32(head[dataFlags]>>4&ends)
	if s.linesRead = le.Uint32(head[dataLength:]) == length; !s.linesRead || until < dataCode+length || until-dataCode-length > maxData {
		s.linesRead = true
		return
	}
	notes := make([]byte, until-dataCode-length)
	if !vm.ReadNow(s.bytecode.End, notes) {
		return
	}
	older, isOlder := readNotes(notes, notesOlder, length, s.is.line)
	newer, isNewer := readNotes(notes, notesNewer, length, s.is.line)
	switch {
	case isOlder && !isNewer && vm.notes != notesNewer:
		vm.notes = notesOlder
	case isNewer && !isOlder && vm.notes != notesOlder:
		vm.notes = notesNewer
	case isOlder && isNewer:
	default:
		vm.notes = notesOther // a version that is not known
	}
	switch vm.notes {
	case notesUnknown:
		s.linesRead = false
	case notesOlder:
		s.lines = older
	case notesNewer:
		s.lines = newer
	}
	vm.keep(8 * len(s.lines))
}

// lineAt returns the line of an offset in the bytecode, 0 where that is not known.
func (s *scriptInfo) lineAt(off uint32) int32 {
	i := sort.Search(len(s.lines), func(i int) bool { return s.lines[i].from > off })
	if i == 0 {
		return 0
	}
	return s.lines[i-1].line
}

// lineBetween returns the line that all bytecode has from one offset to another, 0 where there are several.
func (s *scriptInfo) lineBetween(from, to uint32) int32 {
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
func (s *scriptInfo) baselineLine(pc uint64, interrupted bool) int32 {
	off := uint32(pc - s.baseline.Start)
	i := sort.Search(len(s.calls), func(i int) bool { return s.calls[i].returns >= off })
	if !interrupted {
		if i == len(s.calls) || s.calls[i].returns != off {
			return 0
		}
		return s.lineAt(s.calls[i].bytecode)
	}
	from, to := uint32(0), uint32(s.bytecode.End-s.bytecode.Start)
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
