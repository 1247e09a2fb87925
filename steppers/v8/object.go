package v8

import (
	"encoding/binary"
	"strings"
	"unicode/utf16"
)

// read reads memory of the process as it is now.
func (vm *machine) read(addr uint64, buf []byte) bool { return vm.ReadNow(addr, buf) }

func (vm *machine) word(addr uint64) (uint64, bool) {
	ok := vm.read(addr, vm.small[:])
	return binary.LittleEndian.Uint64(vm.small[:]), ok
}

// smallInteger returns the integer that a word is in place of an object's address. It is negative as int32.
func smallInteger(word uint64) (v uint64, ok bool) { return word >> 32, word&(1<<32-1) == 0 }

// typeOf returns the type of an object; ok is false where there is none.
func (vm *machine) typeOf(object uint64) (typ uint16, ok bool) {
	if object&3 != 1 {
		return 0, false
	}
	is, ok := vm.globalField(object, 0)
	if !ok {
		return 0, false
	}
	return vm.typeOfMap(is)
}

// typeOfMap returns the type of the objects of a map. Those of the types that are asked for here
// are never freed.
func (vm *machine) typeOfMap(addr uint64) (typ uint16, ok bool) {
	if addr&3 != 1 || addr&vm.beyond != 0 || addr < codePage {
		return 0, false
	}
	if typ, ok = vm.types[addr]; ok {
		return typ, true
	}
	if typ, ok = vm.readType(addr); !ok {
		return 0, false
	}
	if len(vm.types) >= maxTypes {
		clear(vm.types)
	}
	vm.types[addr] = typ
	if typ == vm.fields.sharedType {
		vm.sharedMap = addr
	}
	return typ, true
}

func (vm *machine) readType(addr uint64) (typ uint16, ok bool) {
	ok = vm.read(addr-1+vm.fields.stringAt(v8MapType), vm.small[:2])
	return binary.LittleEndian.Uint16(vm.small[:]), ok
}

// blockReader reads memory by blocks, for what lies close together.
type blockReader struct {
	vm   *machine
	addr uint64
	b    [16 << 10]byte
}

// field returns a field of an object, see machine.field.
func (r *blockReader) field(object, at uint64) (uint64, bool) {
	addr := object - 1 + at
	if addr%r.vm.fields.at(8) != 0 {
		return 0, false
	}
	if start := addr &^ uint64(len(r.b)-1); start != r.addr {
		if !r.vm.read(start, r.b[:]) {
			return r.vm.field(object, at)
		}
		r.addr = start
	}
	return r.vm.expand(r.b[addr-r.addr:], object), true
}

// typeOf returns the type of an object; ok is false where there is none.
func (r *blockReader) typeOf(object uint64) (typ uint16, ok bool) {
	if object&3 != 1 {
		return 0, false
	}
	is, ok := r.field(object, 0)
	if !ok {
		return 0, false
	}
	return r.vm.typeOfMap(is)
}

// lengthOf returns how many elements an array has.
func (vm *machine) lengthOf(array uint64) (n uint64, ok bool) {
	if array&3 != 1 {
		return 0, false
	}
	if vm.fields.compressed && vm.fields.plainLengths {
		ok := vm.read(array-1+vm.fields.at(v8Length), vm.small[:4])
		return uint64(binary.LittleEndian.Uint32(vm.small[:])), ok
	}
	word, ok := vm.field(array, vm.fields.at(v8Length))
	if !ok {
		return 0, false
	}
	if vm.fields.plainLengths {
		return word & (1<<32 - 1), true // the other half may be anything
	}
	return smallInteger(word)
}

// byteArray reads an array of bytes; nothing where it is none.
func (vm *machine) byteArray(array uint64) []byte {
	n, ok := vm.lengthOf(array)
	if !ok || n > maxTable {
		return nil
	}
	b := make([]byte, n)
	if !vm.read(array-1+vm.fields.at(v8Data), b) {
		return nil
	}
	return b
}

// Kinds of strings, in their type.
const (
	v8StringTypes   = 128 // those below are of strings
	v8StringKind    = 7
	v8OneByteString = 8

	v8Sequential = 0
	v8Cons       = 1
	v8External   = 2
	v8Sliced     = 3
	v8Thin       = 5

	v8Uncached = 16 // External: with no room for where its characters are

	v8StringLength = 12
	v8StringData   = 16 // characters, or another string
	v8StringSecond = 24 // of Cons; of External where the characters are, of Sliced where in the other one
	maxV8Strings   = 64 // that one is made of
)

func isString(typ uint16) bool { return typ < v8StringTypes }

// text is where the characters of a string are: of one byte each, in Latin-1, or of two.
type text struct {
	addr  uint64
	n     uint64 // characters
	width uint64 // bytes of each
}

// text returns a string, "" where it is none, or its pieces cannot be read or are longer than
// maxName.
func (vm *machine) text(object uint64) string {
	left := maxV8Strings
	var out strings.Builder
	if !vm.appendText(&out, object, &left) {
		return ""
	}
	return out.String()
}

func (vm *machine) appendText(out *strings.Builder, object uint64, left *int) bool {
	*left--
	typ, ok := vm.typeOf(object)
	if *left < 0 || !ok || !isString(typ) || out.Len() > 4*maxName {
		return false
	}
	if typ&v8StringKind == v8Cons {
		first, ok1 := vm.field(object, vm.fields.stringAt(v8StringData))
		second, ok2 := vm.field(object, vm.fields.stringAt(v8StringSecond))
		return ok1 && ok2 && vm.appendText(out, first, left) && vm.appendText(out, second, left)
	}
	in, ok := vm.textAt(object)
	if !ok || in.n > maxName {
		return false
	}
	b := make([]byte, in.n*in.width)
	if !vm.read(in.addr, b) {
		return false
	}
	if in.width == 1 {
		for _, c := range b {
			out.WriteRune(rune(c))
		}
		return true
	}
	units := make([]uint16, in.n)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	out.WriteString(string(utf16.Decode(units)))
	return true
}

// textLength returns how many characters a string has.
func (vm *machine) textLength(object uint64) (n uint64, ok bool) {
	typ, known := vm.typeOf(object)
	ok = vm.read(object-1+vm.fields.stringAt(v8StringLength), vm.small[:4])
	return uint64(binary.LittleEndian.Uint32(vm.small[:])), ok && known && isString(typ)
}

// isUnread reports whether an object is a string that is not empty.
func (vm *machine) isUnread(object uint64) bool {
	n, ok := vm.textLength(object)
	return ok && n > 0
}

// textAt finds the characters of a string, if they lie in one piece.
func (vm *machine) textAt(object uint64) (t text, ok bool) {
	skip := uint64(0)
	for i := range maxV8Strings {
		typ, _ := vm.typeOf(object)
		n, ok := vm.textLength(object)
		if !ok {
			return t, false
		}
		if i == 0 {
			t.n = n
		}
		first, _ := vm.field(object, vm.fields.stringAt(v8StringData))
		second, ok := vm.field(object, vm.fields.stringAt(v8StringSecond))
		switch typ & v8StringKind {
		case v8Sequential:
			t.addr = object - 1 + vm.fields.stringAt(v8StringData)
		case v8External:
			if t.addr = second; vm.fields.compressed {
				t.addr = vm.characters(object, typ)
			}
			if t.addr == 0 {
				return t, false
			}
		case v8Sliced:
			from, ok := smallInteger(second)
			if !ok {
				return t, false
			}
			skip += from
			object = first
			continue
		case v8Thin:
			object = first
			continue
		case v8Cons: // if all has been put into the first
			if n, known := vm.textLength(second); !ok || !known || n != 0 {
				return t, false
			}
			object = first
			continue
		default:
			return t, false
		}
		t.width = 2
		if typ&v8OneByteString != 0 {
			t.width = 1
		}
		t.addr += skip * t.width
		return t, skip+t.n <= n
	}
	return t, false
}

// lineEnds returns where the lines of a text end, and where that does.
func (vm *machine) lineEnds(t text) (ends []int32) {
	b := make([]byte, 32<<10)
	last := uint16(0)
	for at := uint64(0); at < t.n; {
		n := min(t.n-at, uint64(len(b))/t.width)
		if !vm.read(t.addr+at*t.width, b[:n*t.width]) {
			return nil
		}
		for i := range n {
			c := uint16(b[i*t.width])
			if t.width == 2 {
				c |= uint16(b[2*i+1]) << 8
			}
			if last == '\r' && c != '\n' {
				ends = append(ends, int32(at+i)-1)
			}
			if c == '\n' || c == 0x2028 || c == 0x2029 {
				ends = append(ends, int32(at+i))
			}
			last = c
		}
		at += n
	}
	return append(ends, int32(t.n))
}
