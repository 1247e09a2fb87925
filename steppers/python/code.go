package python

import (
	"bytes"
	"encoding/binary"
	"path"
	"strings"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// function is a code object.
type function struct {
	*unwind.CodeFunction
	serial    uint32          // changes with it
	head      [codeBytes]byte // of the object, as it was
	lineTable []byte
	codeBytes uint64   // of the code, where threads have copies of it,
	copies    []uint64 // and where these are
	valid     vmread.Valid
}

// runtime is the CodeFunction.Runtime of Python.
const runtime = "python"

// pythonNotCopied is what stands for functions whose frames were not copied.
var pythonNotCopied = function{CodeFunction: &unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: runtime}}

// notRead is what stands for functions that were gone before they were read, as what exec has made can be.
var notRead = function{CodeFunction: &unwind.CodeFunction{Name: "[not read]", SystemName: "[not read]", Runtime: runtime}, serial: 1}

// firstSerial is more than those of what stands for functions.
const firstSerial = 1

// codeBytes is as much of a code object as all fields are in.
const codeBytes = 160

// function returns what is known of a code object, nil when it is none.
func (vm *machine) function(object uint64) *function {
	fn := vm.known[object]
	if fn != nil && !fn.valid.IsDue(vm.Times()) {
		return fn.there()
	}
	var head [codeBytes]byte
	if object%8 != 0 || !vm.ReadNow(object, head[:]) {
		return vm.unread(fn)
	}
	if fn != nil && vm.isStill(fn, &head) {
		if !fn.valid.Read(vm.Times(), true) {
			return &notRead
		}
		return fn.there()
	}
	if len(vm.known) >= maxFunctions || vm.Kept >= vmread.MaxKept {
		clear(vm.known)
		vm.Kept = 0
	}
	is := vm.readFunction(&head)
	switch {
	case is == nil && (fn == nil || vm.isCode(&head)):
		return vm.unread(fn) // it may be what it was
	case is == nil:
		is = &function{head: head} // whatever that is
	}
	alike := fn != nil && fn.isLike(is)
	if alike { // as what is compiled again and again
		fn.head = head
		is = fn
	} else if fn != nil {
		is.valid = fn.valid
	}
	vm.known[object] = is
	if !is.valid.Read(vm.Times(), alike) {
		return &notRead
	}
	return is.there()
}

// unread returns a function that cannot be read now, as where the process has ended, as far as it is known; nil where it is
// not, or none.
func (vm *machine) unread(fn *function) *function {
	switch {
	case fn == nil:
		return nil
	case !fn.valid.Holds(vm.Times()):
		return &notRead
	}
	return fn.there()
}

// isCode reports whether that is the head of a code object.
func (vm *machine) isCode(head *[codeBytes]byte) bool {
	return binary.LittleEndian.Uint64(head[vm.fields.typeOf():]) == vm.codeType
}

// isLike reports whether there is no telling two functions apart.
func (fn *function) isLike(other *function) bool {
	a, b := fn.there(), other.there()
	return a != nil && b != nil && a.Name == b.Name && a.SystemName == b.SystemName && a.File == b.File && a.StartLine == b.StartLine && bytes.Equal(a.lineTable, b.lineTable)
}

// there returns a function, nil where it is none.
func (fn *function) there() *function {
	if fn.CodeFunction == nil {
		return nil
	}
	return fn
}

// isStill reports whether a code object is what it was, by its head as it is now.
func (vm *machine) isStill(fn *function, now *[codeBytes]byte) bool {
	f := vm.fields
	for _, at := range [...]uint64{f.typeOf(), f.fileName, f.qualName, f.lineTable} {
		if [8]byte(fn.head[at:]) != [8]byte(now[at:]) {
			return false
		}
	}
	if fn.CodeFunction == nil || [4]byte(fn.head[f.firstLine:]) != [4]byte(now[f.firstLine:]) {
		return fn.CodeFunction == nil
	}
	// Another one has its name where that of this was, too.
	name, ok := vm.text(binary.LittleEndian.Uint64(now[f.qualName:]))
	return ok && name == fn.SystemName
}

// readFunction reads a code object, nil when it is none.
func (vm *machine) readFunction(head *[codeBytes]byte) *function {
	f, le := vm.fields, binary.LittleEndian
	if !vm.isCode(head) {
		return nil
	}
	name, ok := vm.text(le.Uint64(head[f.qualName:]))
	if !ok || !vmread.IsPrintable(name) {
		return nil
	}
	file, _ := vm.text(le.Uint64(head[f.fileName:]))
	if !vmread.IsPrintable(file) {
		file = ""
	}
	vm.serial++
	fn := &function{serial: firstSerial + vm.serial, head: *head}
	fn.CodeFunction = &unwind.CodeFunction{Name: name, SystemName: name, File: file, StartLine: int(int32(le.Uint32(head[f.firstLine:]))), Runtime: runtime}
	if name == "<module>" && file != "" { // there is one in each file
		fn.Name = "<module " + path.Base(file) + ">"
	}
	if f.copies != 0 {
		const units, unit = 16, 2
		fn.codeBytes = unit * le.Uint64(head[units+f.more:])
	}
	fn.lineTable = vm.bytes(le.Uint64(head[f.lineTable:]))
	vm.Kept += len(name) + len(file) + len(fn.lineTable)
	return fn
}

// offset returns how far into the code of a function the instruction of a frame is, -1 where it is not in it. Where threads
// have copies of the code, which they change as they run it, it is in one of these.
func (vm *machine) offset(fn *function, ref *frameRef) int {
	const most = 1 << 30
	f := vm.fields
	off := ref.instruction - ref.code - f.bytecode
	if f.copies == 0 || off < fn.codeBytes {
		if off < most {
			return int(off)
		}
		return -1
	}
	for _, isAnew := range []bool{false, true} {
		if isAnew && !vm.readCopies(fn, ref.code) {
			break
		}
		for _, at := range fn.copies {
			if off := ref.instruction - at; off < fn.codeBytes {
				return int(off)
			}
		}
	}
	return -1
}

// readCopies reads where the copies of a function's code are, of which there is one for each thread that has run it.
func (vm *machine) readCopies(fn *function, object uint64) bool {
	const maxCopies = 1 << 10
	array, _ := vm.WordNow(object + vm.fields.copies)
	n, ok := vm.WordNow(array)
	if fn.CodeFunction == nil || !ok || n > maxCopies {
		return false
	}
	b := make([]byte, 8*n)
	if !vm.ReadNow(array+8, b) {
		return false
	}
	fn.copies = fn.copies[:0]
	for ; len(b) > 0; b = b[8:] {
		if at := binary.LittleEndian.Uint64(b); at != 0 {
			fn.copies = append(fn.copies, at)
		}
	}
	return true
}

// bytes reads an object of the type bytes; nil when it is none.
func (vm *machine) bytes(object uint64) []byte {
	const size, data = 16, 32
	object += vm.fields.more
	n, ok := vm.WordNow(object + size)
	if !ok || n > maxLines {
		return nil
	}
	b := make([]byte, n)
	if !vm.ReadNow(object+data, b) {
		return nil
	}
	return b
}

// text reads an object of the type str. ok is false where it is none that is as usual.
func (vm *machine) text(object uint64) (text string, ok bool) {
	const length, state = 16, 32
	f, le := vm.fields, binary.LittleEndian
	var head [state + 4]byte
	if object == 0 || !vm.ReadNow(object+f.more, head[:]) {
		return "", false
	}
	n, is := le.Uint64(head[length:]), le.Uint32(head[state:])
	kind, compact, ascii := uint64(is>>2&7), is>>5&1 != 0, is>>6&1 != 0
	if n > maxName || !compact || kind != 1 && kind != 2 && kind != 4 {
		return "", false
	}
	at := object + f.compactBytes
	if ascii {
		at = object + f.asciiBytes
	}
	b := make([]byte, n*kind)
	if !vm.ReadNow(at, b) {
		return "", false
	}
	if ascii {
		return string(b), true
	}
	var out strings.Builder
	for i := uint64(0); i < n; i++ {
		switch kind {
		case 1:
			out.WriteRune(rune(b[i]))
		case 2:
			out.WriteRune(rune(le.Uint16(b[2*i:])))
		case 4:
			out.WriteRune(rune(le.Uint32(b[4*i:])))
		}
	}
	return out.String(), true
}

// line returns the line of an instruction, at an offset in bytes, by a table of
// locations (Objects/locations.md); 0 where it is in none. first is that of the function.
func line(table []byte, first, instruction int) int {
	const entryStart = 0x80
	line, at := first, 0
	for i := 0; i < len(table); {
		kind, units := table[i]>>3&15, int(table[i]&7)+1
		i++
		rest := table[i:]
		none := false
		switch {
		case kind == 15:
			none = true
		case kind >= 13: // with and without columns
			delta, ok := varint(rest)
			if !ok {
				return 0
			}
			line += delta
		case kind >= 10:
			line += int(kind) - 10
		}
		if at += 2 * units; instruction < at {
			if none || instruction < 0 {
				return 0
			}
			return line
		}
		for i < len(table) && table[i]&entryStart == 0 {
			i++
		}
	}
	return 0
}

// varint reads a signed integer: six bits in each byte, the lowest first, of which the
// lowest is the sign.
func varint(b []byte) (v int, ok bool) {
	u := 0
	for i := 0; i < len(b) && i < 6; i++ {
		u |= int(b[i]&63) << (6 * i)
		if b[i]&64 == 0 {
			if u&1 != 0 {
				return -(u >> 1), true
			}
			return u >> 1, true
		}
	}
	return 0, false
}

// lineOld is line for a table of 3.9 and earlier: how many bytes of code further on
// the line is how many more.
func lineOld(table []byte, first, instruction int) int {
	line, at := first, 0
	for ; len(table) >= 2 && instruction >= 0; table = table[2:] {
		if at += int(table[0]); at > instruction {
			break
		}
		line += int(int8(table[1]))
	}
	return line
}

// line310 is line for a table of 3.10: for how many bytes of code the line is how many
// more, or none. Instructions are counted, two bytes each.
func line310(table []byte, first, instruction int) int {
	const none = -128
	line, at := first, 0
	for ; len(table) >= 2 && instruction >= 0; table = table[2:] {
		at += int(table[0])
		step := int(int8(table[1]))
		if step != none {
			line += step
		}
		if 2*instruction < at {
			if step == none {
				return 0
			}
			return line
		}
	}
	return 0
}
