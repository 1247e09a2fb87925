package jsc

import (
	"encoding/binary"
	"slices"
)

// sourceText is the text that a function is compiled from, which is not that of its file: Bun has made it of that.
type sourceText struct {
	is     stringIs
	starts []uint32 // where its lines begin, in characters of 16 bits
}

// stringIs is by what a StringImpl is known.
type stringIs struct {
	at, data uint64
	length   uint32
	isWide   bool
}

// Limits on texts, and where a SourceProvider may have its one.
const (
	maxSource    = 1 << 24 // characters
	maxLines     = 1 << 21 // of all
	firstText    = 0x80
	lastText     = 0x148
	longestPaths = 1 << 12 // characters of a path that is compared
	maxProviders = 1 << 6  // kinds of SourceProviders
)

// lineOf returns the line of its file, counted from 1, in which a function has called the next, as the language's own
// stacks have it, 0 where that is not known: the call's place in the text, where in the file that was made from.
func (vm *machine) lineOf(c *call) int {
	at, ok := vm.placeOf(c)
	if !ok {
		return 0
	}
	line, _ := vm.lineInFile(c.global, c.function.File, at)
	return line
}

// placeOf returns where in the text a function has called the next.
func (vm *machine) placeOf(c *call) (at sourcePlace, ok bool) {
	is := &c.function.is
	start, end := uint32(is.between), uint32(is.between>>32)
	if start > end {
		return at, false
	}
	offset, ok := vm.offsetOf(c.unlinked, uint32(c.at-1), end-start)
	if !ok {
		return at, false
	}
	if vm.expressions.hasLines {
		at = sourcePlace{uint32(c.function.first) + offset.line, offset.column}
		if offset.line == 0 {
			at.column += uint32(c.function.first >> 32)
		}
		return at, true
	}
	text := vm.textOf(is.source, c.function.File, end)
	if text == nil {
		return at, false
	}
	line, found := slices.BinarySearch(text.starts, start+offset.divot)
	if !found {
		line--
	}
	return sourcePlace{uint32(line), start + offset.divot - text.starts[line]}, true
}

// textOf returns the text of a SourceProvider, nil where there is none of so many characters at least.
func (vm *machine) textOf(provider uint64, path string, end uint32) *sourceText {
	class, ok := vm.WordNow(provider) // its virtual functions
	if !ok {
		return nil
	}
	offset := vm.textAt[class]
	if offset == 0 {
		if offset = vm.findText(provider, path, end); offset == 0 {
			return nil
		}
		if vm.textAt == nil || len(vm.textAt) >= maxProviders {
			vm.textAt = map[uint64]uint64{}
		}
		vm.textAt[class] = offset
	}
	at, ok := vm.WordNow(provider + offset)
	if !ok {
		return nil
	}
	is, ok := vm.stringAt(at)
	if !ok || is.length < end {
		return nil
	}
	if t := vm.texts[provider]; t != nil && t.is == is {
		return t
	}
	chars := vm.charsOf(is, is.length)
	if chars == nil {
		return nil
	}
	t := &sourceText{is: is, starts: lineStarts(chars)}
	kept := len(t.starts)
	for _, other := range vm.texts {
		kept += len(other.starts)
	}
	if vm.texts == nil || kept > maxLines {
		vm.texts = map[uint64]*sourceText{}
	}
	vm.texts[provider] = t
	return t
}

// findText looks for where a SourceProvider has its text: the only string there that is long enough, besides the path.
// It returns 0 where that is not certain.
func (vm *machine) findText(provider uint64, path string, end uint32) (offset uint64) {
	var raw [lastText - firstText]byte
	if !vm.ReadNow(provider+firstText, raw[:]) {
		return 0
	}
	var text uint64
	for i := 0; i < len(raw); i += 8 {
		is, ok := vm.stringAt(binary.LittleEndian.Uint64(raw[i:]))
		if !ok || is.length < end || is.length <= longestPaths && vm.text(is.at) == path {
			continue
		}
		if chars := vm.charsOf(is, end); chars == nil || slices.Contains(chars, 0) {
			continue // it is no string, as it looks like, or one of something else
		}
		switch text {
		case 0:
			text, offset = is.at, firstText+uint64(i)
		case is.at:
		default:
			return 0
		}
	}
	return offset
}

// stringAt reads what a StringImpl is.
func (vm *machine) stringAt(at uint64) (is stringIs, ok bool) {
	const count, length, data, flags, is8Bit = 0, 4, 8, 16, 4
	var raw [stringBytes]byte
	if !isCell(at) || !vm.ReadNow(at, raw[:]) {
		return is, false
	}
	le := binary.LittleEndian
	is = stringIs{at: at, data: le.Uint64(raw[data:]), length: le.Uint32(raw[length:]), isWide: le.Uint32(raw[flags:])&is8Bit == 0}
	return is, le.Uint32(raw[count:]) != 0 && is.length != 0 && is.length <= maxSource && is.data >= 1<<16 && is.data < maxAddress
}

// charsOf reads the first n characters, nil where they cannot be read.
func (vm *machine) charsOf(is stringIs, n uint32) []uint16 {
	chars := make([]uint16, n)
	size := uint64(1)
	if is.isWide {
		size = 2
	}
	raw := make([]byte, size*uint64(n))
	if !vm.ReadNow(is.data, raw) {
		return nil
	}
	for i := range chars {
		if is.isWide {
			chars[i] = binary.LittleEndian.Uint16(raw[2*i:])
		} else {
			chars[i] = uint16(raw[i])
		}
	}
	return chars
}

// lineStarts returns where lines of JavaScript begin.
func lineStarts(chars []uint16) []uint32 {
	const lineSeparator, paragraphSeparator = 0x2028, 0x2029
	starts := []uint32{0}
	for i, c := range chars {
		switch {
		case c == '\r' && i+1 < len(chars) && chars[i+1] == '\n':
		case c == '\n', c == '\r', c == lineSeparator, c == paragraphSeparator:
			starts = append(starts, uint32(i)+1)
		}
	}
	return starts
}
