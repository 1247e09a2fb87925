package pypy

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"io"
	"slices"
	"strings"
)

// RPython, which PyPy is written in, lays out structs anew in each build, and has a list of all types in the
// program for its garbage collector: what each has in it, in that order, as a text that is packed by zlib, and the
// number that objects of it begin with (rpython/memory/gctransform/framework.py, gc.dump_rpy_heap in Python).

// types are the types of a build.
type types struct {
	names   []string // "GcStruct pypy.interpreter.pycode.PyCode { super, inst_space, ..."
	numbers []byte   // of these, 32 bits each
}

const (
	word       = 8
	objectHead = word // the type's number, and flags in the upper half

	maxTypesText   = 8 << 20
	maxTypesPacked = 1 << 20
	leastTypes     = 1 << 10
	maxTypes       = 1 << 16
	typesBegin     = "member0 "
)

// readTypes finds the list in the data of a file; ok is false when there is none.
func readTypes(data []byte) (t types, ok bool) {
	for at := 2 * word; at+2*word < len(data); at += word {
		// An array has its length before what it holds.
		n := binary.LittleEndian.Uint64(data[at-word:])
		if n < word || n > maxTypesPacked || n > uint64(len(data)-at) || data[at]&0x0f != 8 || binary.BigEndian.Uint16(data[at:])%31 != 0 {
			continue // no head of zlib's
		}
		text, ok := unpack(data[at : at+int(n)])
		if !ok {
			continue
		}
		for line := range strings.Lines(text) {
			_, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			t.names = append(t.names, strings.TrimSpace(name))
		}
		return t, t.findNumbers(data)
	}
	return t, false
}

// unpack unpacks what may be the list.
func unpack(packed []byte) (text string, ok bool) {
	r, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", false
	}
	var begin [len(typesBegin)]byte
	if _, err := io.ReadFull(r, begin[:]); err != nil || string(begin[:]) != typesBegin {
		return "", false
	}
	rest, err := io.ReadAll(io.LimitReader(r, maxTypesText))
	return string(begin[:]) + string(rest), err == nil
}

// findNumbers finds the array of the types' numbers, of which there may be one less than types: they rise, but for
// those of types that have none.
func (t *types) findNumbers(data []byte) bool {
	if len(t.names) < leastTypes || len(t.names) > maxTypes {
		return false
	}
	const number = 4
	for at := 0; at+word < len(data); at += word {
		n := binary.LittleEndian.Uint64(data[at:])
		if n > uint64(len(t.names)) || n+2 < uint64(len(t.names)) || n*number > uint64(len(data)-at-word) {
			continue
		}
		numbers, last, given := data[at+word:at+word+int(n)*number], uint32(0), 0
		for i := 0; i < len(numbers); i += number {
			is := binary.LittleEndian.Uint32(numbers[i:])
			if is != 0 && is <= last || is%8 != 0 {
				given = 0
				break
			}
			if is != 0 {
				last = is
				given++
			}
		}
		if given > int(n)/2 {
			t.numbers = bytes.Clone(numbers)
			return true
		}
	}
	return false
}

// number returns that of a struct by its whole name, or of the struct that begins so; 0 when there is none, or several.
func (t *types) number(begin string) (number uint32) {
	for i, name := range t.names {
		if 4*i+4 > len(t.numbers) || !strings.HasPrefix(name, begin) {
			continue
		}
		is := binary.LittleEndian.Uint32(t.numbers[4*i:])
		if number != 0 && is != 0 {
			return 0
		}
		number = max(number, is)
	}
	return number
}

// fields returns the names of a struct's fields in the order that they have in it, but for those that take no place.
func (t *types) fields(class string) []string {
	for _, name := range t.names {
		if rest, ok := strings.CutPrefix(name, "GcStruct "+class+" { "); ok {
			rest, _, _ = strings.Cut(rest, " }")
			return slices.DeleteFunc(strings.Split(rest, ", "), func(field string) bool {
				return field == "super" || field == "inst_space" // a constant
			})
		}
	}
	return nil
}

// place returns how far into an object a field is, as wide as a word, as all before it are. Fields of classes that it
// is derived from come first: before says how many. 0 is none.
func (t *types) place(class, field string, before int) uint64 {
	if i := slices.Index(t.fields(class), field); i >= 0 {
		return objectHead + word*uint64(before+i)
	}
	return 0
}

// layout is where a build of PyPy has what; offsets are in bytes. All are known.
type layout struct {
	frameCode uint64 // of a PyFrame, the PyCode

	uniqueID  uint64 // of a PyCode: a number that no other ever has in the process
	name      uint64 // a string, qualified from 3.11 on,
	fileName  uint64 // a string
	firstLine uint64
	codeBytes uint64 // of the PyCode, up to the last of these

	handles uint64 // of a WeakCodeObjectList: an array of weak references, to all PyCodes

	// The numbers of types.
	code, codes, weakref, str uint32
}

const (
	pyCode   = "pypy.interpreter.pycode.PyCode"
	pyFrame  = "pypy.interpreter.pyframe.PyFrame"
	codeBase = "pypy.interpreter.eval.Code"
	root     = "pypy.interpreter.baseobjspace.W_Root"
	codeList = "rpython.rlib.rvmprof.rvmprof.WeakCodeObjectList"
)

// layoutOf returns where a build has what, nil where that is not all known.
func (t *types) layoutOf() *layout {
	if !slices.ContainsFunc(t.names, func(name string) bool { return name == "GcStruct "+root+" { super }" }) {
		return nil
	}
	base := t.fields(codeBase)
	f := &layout{
		frameCode: t.place(pyFrame, "inst_pycode", 0),
		uniqueID:  t.place(pyCode, "inst__vmprof_unique_id", len(base)),
		name:      t.place(pyCode, "inst_co_qualname", len(base)),
		fileName:  t.place(pyCode, "inst_co_filename", len(base)),
		firstLine: t.place(pyCode, "inst_co_firstlineno", len(base)),
		handles:   t.place(codeList, "inst_handles", 0),
		code:      t.number("GcStruct " + pyCode + " {"),
		codes:     t.number("GcStruct " + codeList + " {"),
		weakref:   t.number("GcStruct weakref { weakptr }"),
		str:       t.number("GcStruct rpy_string { hash, chars }"),
	}
	name := t.place(codeBase, "inst_co_name", 0)
	if f.name == 0 {
		f.name = name
	}
	for _, at := range []uint64{name, f.frameCode, f.uniqueID, f.name, f.fileName, f.firstLine, f.handles} {
		if at == 0 {
			return nil
		}
		f.codeBytes = max(f.codeBytes, at+word)
	}
	for _, number := range []uint32{f.code, f.codes, f.weakref, f.str} {
		if number == 0 {
			return nil
		}
	}
	return f
}
