package jsc

import (
	"bytes"
	"encoding/binary"
	"time"
)

// sourceMaps is where Bun keeps, for each file, where in it the text is from that it has made of it: in a table of its own
// virtual machine, which the global object knows, by the Wyhash of the file's path (SavedSourceMap in src/jsc, before 1.4 in
// src/bun.js). Of files that come with a map of their own, which tells of others, nothing is taken.
type sourceMaps struct {
	table     uint64 // what tells of the table
	isRust    bool
	lookAgain time.Time
}

// sourcePlace is a place in a text, counted from 0.
type sourcePlace struct{ line, column uint32 }

func (p sourcePlace) isBehind(other sourcePlace) bool {
	return p.line > other.line || p.line == other.line && p.column > other.column
}

const (
	globalBytes  = 0x2000  // of a global object, in which Bun's virtual machine is looked for,
	machineBytes = 0x20000 // and of that, in which the table is
	maxTable     = 1 << 20 // places in one
	maxMappings  = 1 << 20 // of a file
	maxMapBytes  = 1 << 24
	pageSize     = 1 << 12 // such a machine is allocated alone
	tagShift     = 49      // of an address in the table: what is there
	tagParsed    = 1024    // it was asked for once; else it is as it was made
	mapHeader    = 24      // bytes before what was made: how many these are together, mappings, and lines of the file
)

// lineInFile returns the line of a file, counted from 1, that a place in the text was made of. It reports false where
// that is not known.
func (vm *machine) lineInFile(global uint64, path string, at sourcePlace) (line int, ok bool) {
	key := wyhash(path)
	value, ok := vm.sourceMapOf(global, key)
	if !ok {
		return 0, false
	}
	addr := value & (1<<tagShift - 1)
	switch isParsed := value>>tagShift == tagParsed; {
	case isParsed && vm.maps[global].isRust:
		const is, data = 0x48, 0x50 // whether it refers to what was made, and that
		var raw [16]byte
		if !vm.ReadNow(addr+is, raw[:]) || binary.LittleEndian.Uint64(raw[:]) != 1 {
			return 0, false
		}
		return vm.lineInWindows(binary.LittleEndian.Uint64(raw[8:]), at)
	case isParsed:
		return vm.lineInList(addr, at)
	}
	if line, ok = vm.lineInWindows(addr, at); ok {
		return line, true
	}
	return vm.lineInText(addr, key, at)
}

// sourceMapOf looks up what the table has by a key.
func (vm *machine) sourceMapOf(global, key uint64) (value uint64, ok bool) {
	maps := vm.maps[global]
	if maps.table != 0 {
		return vm.inTable(&maps, key)
	}
	now := time.Now()
	if now.Before(maps.lookAgain) {
		return 0, false
	}
	maps.lookAgain = now.Add(interval)
	value, ok = vm.findTable(&maps, global, key)
	if vm.maps == nil || len(vm.maps) > maxGlobals {
		vm.maps = map[uint64]sourceMaps{}
	}
	vm.maps[global] = maps
	return value, ok
}

const maxGlobals = 1 << 8

// findTable looks for the table by a key that it has. Bun's virtual machine refers back to the global object.
func (vm *machine) findTable(maps *sourceMaps, global, key uint64) (value uint64, ok bool) {
	var object [globalBytes]byte
	if !vm.ReadNow(global, object[:]) {
		return 0, false
	}
	le, back := binary.LittleEndian, binary.LittleEndian.AppendUint64(nil, global)
	words := make([]byte, 0, machineBytes)
	for b := object[:]; len(b) >= 8; b = b[8:] {
		at := le.Uint64(b)
		if at%pageSize != 0 || !isCell(at) || at == global {
			continue
		}
		for words = words[:0]; len(words) < machineBytes; words = words[:len(words)+pageSize] {
			if !vm.ReadNow(at+uint64(len(words)), words[len(words):len(words)+pageSize]) {
				break
			}
		}
		if !bytes.Contains(words, back) {
			continue
		}
		for i := 0; i+8 <= len(words); i += 8 {
			if !isCell(le.Uint64(words[i:])) {
				continue
			}
			for _, isRust := range [...]bool{false, true} {
				try := sourceMaps{table: at + uint64(i), isRust: isRust}
				if value, ok = vm.inTable(&try, key); ok {
					*maps = try
					return value, true
				}
			}
		}
	}
	return 0, false
}

// inTable looks a key up. A table of Zig is told by where it has bits on what is used, behind where its values and its
// keys are and how many have room (HashMapUnmanaged in lib/std/hash_map.zig), one of Rust by the vector of its places; behind
// that are how many are used, and how many may yet be.
func (vm *machine) inTable(maps *sourceMaps, key uint64) (value uint64, ok bool) {
	const percent, usedBit = 80, 0x80
	le := binary.LittleEndian
	var raw [4 * 8]byte // the word before, that at table, and two behind
	if !vm.ReadNow(maps.table-8, raw[:]) {
		return 0, false
	}
	at, behind := le.Uint64(raw[8:]), raw[16:]
	if maps.isRust {
		behind = raw[24:]
	}
	room := uint64(le.Uint32(behind)) + uint64(le.Uint32(behind[4:]))
	fits := func(n uint64) bool {
		return n != 0 && n <= maxTable && n&(n-1) == 0 && room == n*percent/100 && le.Uint32(behind) != 0
	}
	if maps.isRust {
		n := le.Uint64(raw[16:])
		if !isCell(at) || le.Uint64(raw[:]) != n || !fits(n) {
			return 0, false
		}
		const size = 3 * 8
		places := make([]byte, n*size)
		if !vm.ReadNow(at, places) {
			return 0, false
		}
		for ; len(places) > 0; places = places[size:] {
			if le.Uint64(places) == 1 && le.Uint64(places[8:]) == key {
				return le.Uint64(places[16:]), true
			}
		}
		return 0, false
	}
	var head [3 * 8]byte
	if !isCell(at) || room == 0 || room > maxTable || !vm.ReadNow(at-uint64(len(head)), head[:]) {
		return 0, false
	}
	values, keys, n := le.Uint64(head[:]), le.Uint64(head[8:]), uint64(le.Uint32(head[16:]))
	if !fits(n) || keys != (at+n+7)&^7 || values != keys+8*n {
		return 0, false
	}
	all := make([]byte, values+8*n-at)
	if !vm.ReadNow(at, all) {
		return 0, false
	}
	for i := range n {
		k := all[keys-at+8*i:]
		if all[i]&usedBit != 0 && le.Uint64(k) == key {
			return le.Uint64(k[8*n:]), true
		}
	}
	return 0, false
}

// lastMapping returns the last of so many places in order that is not behind another.
func lastMapping(n uint64, at sourcePlace, read func(uint64) (sourcePlace, bool)) (i uint64, p sourcePlace, ok bool) {
	lo, hi := uint64(0), n
	for lo < hi {
		mid := lo + (hi-lo)/2
		q, read := read(mid)
		switch {
		case !read:
			return 0, p, false
		case q.isBehind(at):
			hi = mid
		default:
			lo, p = mid+1, q
		}
	}
	return lo - 1, p, lo > 0
}

// lineInList looks in the lists that Bun makes of the text before 1.3.14 or so, when an exception is looked at: of places
// in the text, then of those in the file, for as many as there is room for (Mapping.zig in src/sourcemap).
func (vm *machine) lineInList(addr uint64, at sourcePlace) (line int, ok bool) {
	const lines, data, count, room, named, others = 0, 8, 16, 24, 32, 80
	const unknown = 1<<31 - 1 // lines of a file that comes with its map
	var raw [others + 8]byte
	if !vm.ReadNow(addr, raw[:]) {
		return 0, false
	}
	le := binary.LittleEndian
	from, n, cap := le.Uint64(raw[data:]), le.Uint64(raw[count:]), le.Uint64(raw[room:])
	if le.Uint64(raw[lines:]) >= unknown || raw[named] != 0 || le.Uint64(raw[others:]) != 0 || n > cap || cap > maxMappings || !isCell(from) {
		return 0, false
	}
	place := func(i uint64) (p sourcePlace, ok bool) {
		v, ok := vm.WordNow(from + 8*i)
		return sourcePlace{uint32(v), uint32(v >> 32)}, ok
	}
	i, p, ok := lastMapping(n, at, place)
	if !ok || p.line != at.line {
		return 0, false
	}
	p, ok = place(cap + i)
	return checkedLine(p.line, le.Uint64(raw[lines:]), ok)
}

// checkedLine returns a line counted from 1, of so many at most; 0 is not known.
func checkedLine(from0 uint32, lines uint64, ok bool) (int, bool) {
	if !ok || lines != 0 && uint64(from0) > lines || from0 >= 1<<30 {
		return 0, false
	}
	return int(from0) + 1, true
}

// readMapHeader reads what stands before what was made.
func (vm *machine) readMapHeader(addr uint64) (size, mappings, lines uint64, ok bool) {
	var raw [mapHeader]byte
	if !isCell(addr) || !vm.ReadNow(addr, raw[:]) {
		return 0, 0, 0, false
	}
	le := binary.LittleEndian
	size, mappings, lines = le.Uint64(raw[:]), le.Uint64(raw[8:]), le.Uint64(raw[16:])
	return size, mappings, lines, size > mapHeader && size <= maxMapBytes && mappings != 0 && mappings <= maxMappings
}

// Of windows, as Bun keeps its maps from 1.3.14 on, which are of 64 mappings but for the last (InternalSourceMap.zig
// and .rs in src/sourcemap).
const (
	windowMappings = 64
	windowEntry    = 24 // bytes for each: its first mapping, between whose halves is where the others are
	windowHeader   = 32 // bytes that it begins with, then varints

	windowLinesFar = 1 << 2 // flag: there are lines that are further on than by one
)

// lineInWindows looks in the windows.
func (vm *machine) lineInWindows(addr uint64, at sourcePlace) (line int, ok bool) {
	size, mappings, lines, ok := vm.readMapHeader(addr)
	if !ok {
		return 0, false
	}
	le := binary.LittleEndian
	v, ok := vm.WordNow(addr + mapHeader)
	n, stream := v&(1<<32-1), v>>32
	const table = mapHeader + 8
	if !ok || n != (mappings+windowMappings-1)/windowMappings || stream != table+n*windowEntry || stream >= size {
		return 0, false
	}
	entry := func(i uint64) (raw [windowEntry]byte, ok bool) {
		ok = vm.ReadNow(addr+table+windowEntry*i, raw[:])
		return raw, ok
	}
	i, _, ok := lastMapping(n, at, func(i uint64) (sourcePlace, bool) {
		raw, ok := entry(i)
		return sourcePlace{le.Uint32(raw[:]), le.Uint32(raw[4:])}, ok
	})
	first, read := entry(i)
	if !ok || !read {
		return 0, false
	}
	begins, ends, count := uint64(le.Uint32(first[8:])), size-stream-1, mappings-windowMappings*i // a byte of 0 is behind all
	if i+1 < n {
		next, ok := entry(i + 1)
		if !ok {
			return 0, false
		}
		ends, count = uint64(le.Uint32(next[8:])), windowMappings
	}
	if begins+windowHeader > ends || ends > size-stream || ends-begins > 1<<16 {
		return 0, false
	}
	window := make([]byte, ends-begins)
	if !vm.ReadNow(addr+stream+begins, window) {
		return 0, false
	}
	from0, ok := lineInWindow(first[:], window, int(count), at)
	return checkedLine(from0, lines, ok)
}

// lineInWindow looks in one that has so many mappings. It reports false where that is not all that it has.
func lineInWindow(first, window []byte, count int, at sourcePlace) (line uint32, ok bool) {
	le := binary.LittleEndian
	if int(window[0]) != count || window[1]&^windowLinesFar != 0 || le.Uint32(first[20:]) != 0 {
		return 0, false // or of another source
	}
	lengths := [...]int{int(le.Uint16(window[2:])), int(le.Uint16(window[4:])), int(le.Uint16(window[6:]))}
	var streams [len(lengths)]varints
	rest := window[windowHeader:]
	for i, n := range lengths {
		if n > len(rest) {
			return 0, false
		}
		streams[i], rest = rest[:n:n], rest[n:]
	}
	columns, linesApart, columnsApart := &streams[0], &streams[1], &streams[2]
	further := map[int]uint32{}
	if window[1]&windowLinesFar != 0 {
		far := varints(rest)
		for {
			if len(far) == 0 {
				return 0, false
			}
			i := int(far[0])
			if far = far[1:]; i == 0xff {
				break
			}
			by, ok := far.next()
			if !ok {
				return 0, false
			}
			further[i] = by
		}
		rest = far
	}
	is := func(mask, i int) bool { return window[8+8*mask+i/8]>>(i%8)&1 != 0 }
	p := sourcePlace{le.Uint32(first[:]), le.Uint32(first[4:])}
	original := le.Uint32(first[12:])
	found := sourcePlace{line: p.line}
	line = original
	for i := range count - 1 {
		by := uint32(0)
		if is(0, i) {
			by = 1
		}
		if far, ok := further[i]; ok {
			by = far
		}
		column, ok := columns.next()
		if !ok {
			return 0, false
		}
		originalBy := by
		if !is(1, i) {
			if originalBy, ok = linesApart.next(); !ok {
				return 0, false
			}
		}
		if !is(2, i) {
			if _, ok := columnsApart.next(); !ok {
				return 0, false
			}
		}
		if by != 0 {
			p = sourcePlace{line: p.line + by}
		}
		p.column += column
		original += originalBy
		if !p.isBehind(at) {
			found, line = p, original
		}
	}
	whole := len(streams[0])+len(streams[1])+len(streams[2])+len(rest) == 0
	return line, whole && found.line == at.line
}

// varints are signed numbers, of 7 bits in each byte, the lowest of which is the sign.
type varints []byte

func (v *varints) next() (n uint32, ok bool) {
	for shift := 0; len(*v) > 0 && shift <= 28; shift += 7 {
		b := (*v)[0]
		*v = (*v)[1:]
		if n |= uint32(b&0x7f) << shift; b < 0x80 {
			return n>>1 ^ -(n & 1), true
		}
	}
	return 0, false
}

// mapText is a map as others have it, before 1.3.14 or so, once it was read.
type mapText struct {
	addr, size, mappings uint64
	key                  uint64 // of its file
	places               []mapping
}

// mapping is where in a line of the file something is from.
type mapping struct {
	sourcePlace
	line uint32 // counted from 0
}

// lineInText looks in such a map.
func (vm *machine) lineInText(addr, key uint64, at sourcePlace) (line int, ok bool) {
	size, mappings, lines, ok := vm.readMapHeader(addr)
	if !ok {
		return 0, false
	}
	if t := &vm.mapText; t.addr != addr || t.size != size || t.mappings != mappings || t.key != key {
		var begin [8]byte
		if !vm.ReadNow(addr+mapHeader, begin[:min(len(begin), int(size-mapHeader))]) || bytes.ContainsFunc(begin[:], isNoMap) {
			return 0, false
		}
		text := make([]byte, size-mapHeader)
		if !vm.ReadNow(addr+mapHeader, text) {
			return 0, false
		}
		places, ok := mappingsIn(text)
		if !ok || uint64(len(places)) != mappings {
			return 0, false
		}
		*t = mapText{addr, size, mappings, key, places}
	}
	places := vm.mapText.places
	i, p, ok := lastMapping(uint64(len(places)), at, func(i uint64) (sourcePlace, bool) { return places[i].sourcePlace, true })
	if !ok || p.line != at.line {
		return 0, false
	}
	return checkedLine(places[i].line, lines, true)
}

// isNoMap reports whether a character is in no such map; 0 stands for what is behind it.
func isNoMap(c rune) bool {
	return c != 0 && c != ',' && c != ';' && (int(c) >= len(base64Digits) || base64Digits[c] < 0)
}

// mappingsIn reads a map: the differences of each mapping and the one before, in base 64
// (https://tc39.es/ecma426/#sec-mappings-grammar). It reports false where it is none, or of more sources than one.
func mappingsIn(text []byte) (places []mapping, ok bool) {
	var p mapping
	var fields [4]uint32 // column in the text, source, line and column there
	field, shift, v := 0, 0, uint32(0)
	end := func() bool {
		switch {
		case shift != 0 || field != 0 && field != len(fields):
			return false
		case field == 0:
			return true
		}
		p.column += fields[0]
		p.line += fields[2]
		if field = 0; fields[1] != 0 {
			return false
		}
		places = append(places, p)
		return true
	}
	for _, c := range text {
		if c == ',' || c == ';' {
			if !end() {
				return nil, false
			}
			if c == ';' {
				p.sourcePlace = sourcePlace{line: p.sourcePlace.line + 1}
			}
			continue
		}
		digit := base64Digits[c]
		if digit < 0 || shift > 30 || field == len(fields) {
			return nil, false
		}
		v |= uint32(digit&31) << shift
		if shift += 5; digit < 32 {
			fields[field] = v >> 1
			if v&1 != 0 {
				fields[field] = -fields[field]
			}
			field, shift, v = field+1, 0, 0
		}
	}
	return places, end()
}

// base64Digits are what characters stand for, -1 for what is none.
var base64Digits = func() (digits [256]int8) {
	for i := range digits {
		digits[i] = -1
	}
	for i, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/" {
		digits[c] = int8(i)
	}
	return digits
}()
