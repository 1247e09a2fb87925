package python

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// class is what is known of the class of an object.
type class struct {
	name       string // as in C: with its module where it is not written in Python
	flags      uint64
	basic      uint64 // bytes of an object
	dictOffset int64
	base       *class // that it is derived from; nil where there is none
	awaitable  awaitable
}

// Flags of classes (Include/object.h).
const (
	inlineValues = 1 << 2 // from 3.13 on
	managedDict  = 1 << 4 // from 3.11 on
	heapType     = 1 << 9
	isInteger    = 1 << 24
	isList       = 1 << 25
	isString     = 1 << 28
)

// is reports whether a class is one of C's with a name, or derived from it.
func (c *class) is(name string) bool {
	for ; c != nil; c = c.base {
		if c.name == name {
			return true
		}
	}
	return false
}

// objectReader reads the objects of an interpreter.
type objectReader struct {
	vm      *machine
	classes map[uint64]*class
}

const (
	maxClasses   = 1 << 14
	maxClassName = 64
)

// class returns that at an address, nil when there is none.
func (h *objectReader) class(addr uint64) *class {
	c, known := h.classes[addr]
	if known || len(h.classes) >= maxClasses {
		return c
	}
	h.classes[addr] = nil // for one that is derived from itself
	c = h.readClass(addr)
	h.classes[addr] = c
	return c
}

// readClass reads a class, and those that it is derived from.
func (h *objectReader) readClass(addr uint64) *class {
	// A PyTypeObject, the same in all versions.
	const name, basicSize, flags, base, dictOffset, size = 24, 32, 168, 256, 288, 296
	var b [size]byte
	if addr == 0 || !h.vm.ReadNow(addr+h.vm.fields.more, b[:]) {
		return nil
	}
	le := binary.LittleEndian
	c := &class{name: h.cString(le.Uint64(b[name:])), flags: le.Uint64(b[flags:]), basic: le.Uint64(b[basicSize:]), dictOffset: int64(le.Uint64(b[dictOffset:]))}
	if c.name == "" {
		return nil
	}
	if c.flags&heapType == 0 {
		c.awaitable = awaitables[c.name]
	} else if c.name == futureIter { // from 3.12 on
		c.awaitable = ofFuture
	}
	if at := le.Uint64(b[base:]); at != 0 {
		c.base = h.class(at)
	}
	return c
}

// cString reads a short string of C; "" where there is none that is a name.
func (h *objectReader) cString(addr uint64) string {
	var b [maxClassName]byte
	n := len(b)
	if rest := pageSize - int(addr%pageSize); rest < n && !h.vm.ReadNow(addr, b[:]) {
		n = rest
	}
	if addr == 0 || !h.vm.ReadNow(addr, b[:n]) {
		return ""
	}
	end := bytes.IndexByte(b[:n], 0)
	if end < 0 || !vmread.IsPrintable(string(b[:end])) {
		return ""
	}
	return string(b[:end])
}

const pageSize = 4096

// object reads the beginning of an object, up to so many bytes as buf has of it, and its class; nil where there is none.
func (h *objectReader) object(addr uint64, buf []byte) *class {
	if addr == 0 || addr%8 != 0 || !h.vm.ReadNow(addr, buf) {
		return nil
	}
	return h.class(binary.LittleEndian.Uint64(buf[h.vm.fields.typeOf():]))
}

// word reads a word, 0 where that cannot be done.
func (h *objectReader) word(addr uint64) uint64 {
	w, _ := h.vm.WordNow(addr)
	return w
}

// valuesHead is before the values of an object, how many there are, where they are in it.
const valuesHead = 8

// attribute returns what an object that has a dictionary has by a name; 0 is nothing.
func (h *objectReader) attribute(object uint64, name string) uint64 {
	var b [headBytes]byte
	c := h.object(object, b[:])
	if c == nil {
		return 0
	}
	var dict, values uint64
	beforeObject := uint64(24) // where a managed dictionary is
	if h.vm.fields.isFree {
		beforeObject = 8
	}
	how := h.vm.fields.asyncio.attributes
	switch {
	case c.flags&managedDict == 0 && c.dictOffset > 0:
		dict = h.word(object + uint64(c.dictOffset))
	case c.flags&managedDict == 0:
		return 0
	case how == besideDict:
		dict, values = h.word(object-beforeObject), h.word(object-beforeObject-8)
	case how == insteadOfDict:
		const isValues = 1
		if dict = h.word(object - beforeObject); dict&isValues != 0 {
			dict, values = 0, dict+isValues
		}
	case how == inObject:
		if dict = h.word(object - beforeObject); dict == 0 && c.flags&inlineValues != 0 {
			values = object + c.basic + valuesHead
		}
	}
	if dict != 0 {
		return h.item(dict, name)
	}
	if values == 0 {
		return 0
	}
	i, _ := h.find(h.word(binary.LittleEndian.Uint64(b[h.vm.fields.typeOf():])+h.vm.fields.asyncio.cachedKeys), name)
	if i < 0 {
		return 0
	}
	return h.word(values + 8*uint64(i))
}

// item returns the value of a key of a dictionary; 0 is none.
func (h *objectReader) item(dict uint64, name string) uint64 {
	const atKeys, atValues = 32, 40
	dict += h.vm.fields.more
	i, value := h.find(h.word(dict+atKeys), name)
	values := h.word(dict + atValues)
	if i < 0 || values == 0 {
		return value
	}
	if h.vm.fields.asyncio.attributes == inObject {
		values += valuesHead
	}
	return h.word(values + 8*uint64(i))
}

// maxKeys bounds what is looked at of a dictionary.
const maxKeys = 1 << 17

// find finds a name among the keys of a dictionary, and the value that stands there with it. i is -1 when there is none.
func (h *objectReader) find(keys uint64, name string) (i int, value uint64) {
	atLength := 16 + h.vm.fields.more
	var entries, count, entry, key uint64
	if h.vm.fields.asyncio.attributes == inDict {
		const size, nentries, indices = 8, 32, 40
		n := h.word(keys + size)
		width := uint64(8)
		switch {
		case n <= 0xff:
			width = 1
		case n <= 0xffff:
			width = 2
		case n <= 0xffffffff:
			width = 4
		}
		entries, count, entry, key = keys+indices+n*width, h.word(keys+nentries), 24, 8
	} else {
		const indexBits, kind, nentries, indices = 9, 10, 24, 32
		head := h.word(keys + 8)
		entries, count, entry = keys+indices+1<<(head>>(8*(indexBits-8))&63), h.word(keys+nentries), 16
		if head>>(8*(kind-8))&0xff == 0 { // with the hash of each
			entry, key = 24, 8
		}
	}
	if keys == 0 || count > maxKeys {
		return -1, 0
	}
	all := make([]byte, count*entry)
	if !h.vm.ReadNow(entries, all) {
		return -1, 0
	}
	for i := range int(count) {
		b := all[uint64(i)*entry+key:]
		at := binary.LittleEndian.Uint64(b)
		if at == 0 || h.word(at+atLength) != uint64(len(name)) {
			continue
		}
		if text, ok := h.vm.text(at); ok && text == name {
			return i, binary.LittleEndian.Uint64(b[8:])
		}
	}
	return -1, 0
}

// eachOfSet calls what with each object of a set, until it returns false.
func (h *objectReader) eachOfSet(set uint64, what func(object uint64) (more bool)) {
	const mask, table, size, entry = 32, 40, 48, 16
	b := make([]byte, size+h.vm.fields.more)
	if c := h.object(set, b); c == nil || c.name != "set" {
		return
	}
	b = b[h.vm.fields.more:]
	slots, at := binary.LittleEndian.Uint64(b[mask:])+1, binary.LittleEndian.Uint64(b[table:])
	var part [entry << 8]byte
	for slots > 0 {
		b := part[:min(slots*entry, uint64(len(part)))]
		if !h.vm.ReadNow(at, b) {
			return
		}
		slots -= uint64(len(b)) / entry
		at += uint64(len(b))
		for ; len(b) > 0; b = b[entry:] {
			if object := binary.LittleEndian.Uint64(b); object != 0 && !what(object) {
				return
			}
		}
	}
}

// eachOfList calls what with each object of a list, until it returns false.
func (h *objectReader) eachOfList(list uint64, what func(object uint64) (more bool)) {
	const length, items, size, most = 16, 24, 32, 1 << 16
	b := make([]byte, size+h.vm.fields.more)
	c := h.object(list, b)
	if c == nil || c.flags&isList == 0 {
		return
	}
	b = b[h.vm.fields.more:]
	all := make([]byte, 8*min(binary.LittleEndian.Uint64(b[length:]), most))
	if !h.vm.ReadNow(binary.LittleEndian.Uint64(b[items:]), all) {
		return
	}
	for ; len(all) > 0 && what(binary.LittleEndian.Uint64(all)); all = all[8:] {
	}
}

// integer returns the value of an int that is not negative and not too large.
func (h *objectReader) integer(object uint64) (n uint64, ok bool) {
	const length, digit, size, digitBits, maxDigits, tagShift = 16, 24, 32, 30, 2, 3
	var buf [size + headBytes]byte
	more := h.vm.fields.more
	b := buf[more : more+size]
	c := h.object(object, buf[:more+digit+4])
	if c == nil || c.flags&isInteger == 0 {
		return 0, false
	}
	le := binary.LittleEndian
	digits := le.Uint64(b[length:])
	if a := h.vm.fields.asyncio.attributes; a == insteadOfDict || a == inObject { // from 3.12 on, with the sign in lower bits
		const negative = 2
		if digits&negative != 0 {
			return 0, false
		}
		digits >>= tagShift
	}
	switch {
	case digits == 0:
		return 0, true
	case digits > maxDigits, digits > 1 && !h.vm.ReadNow(object+more, b):
		return 0, false
	case digits == 1:
		return uint64(le.Uint32(b[digit:])), true
	}
	return uint64(le.Uint32(b[digit:])) | uint64(le.Uint32(b[digit+4:]))<<digitBits, true
}
