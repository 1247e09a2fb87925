package steppers

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/swbpf/swbpf/unwind"
)

// chezName is the number of what runs at an address, and by what it was found.
type chezName struct {
	object, name uint64
	number       uint32
}

// codeOf returns the number of what runs in a frame, 0 where it has no name.
func (vm *chezVM) codeOf(w *unwind.Walker, pc, object uint64) uint32 {
	const nameAt = 24
	codes := w.Codes()
	if vm.resets != codes.Resets() || len(vm.codes) >= maxChezCodes || vm.funcs == nil {
		vm.codes, vm.funcs, vm.resets = map[uint64]chezName{}, map[string]*unwind.CodeFunction{}, codes.Resets()
	}
	at, ok := vm.wordNow(object + nameAt)
	if !ok {
		return 0
	}
	n, known := vm.codes[pc]
	if known && n.object == object && n.name == at {
		return n.number
	}
	n = chezName{object: object, name: at}
	if name := vm.stringAt(at); name != "" {
		f := vm.funcs[name]
		if f == nil {
			f = &unwind.CodeFunction{Name: name, SystemName: name, Runtime: chezRuntime}
			vm.funcs[name] = f
		}
		n.number = codes.Add(object+chezCodeHead, []unwind.CodeLine{{CodeFunction: f, IsCompiled: true}}, 0)
	}
	vm.codes[pc] = n
	return n.number
}

// stringAt returns a string of Scheme, "" where there is none.
func (vm *chezVM) stringAt(at uint64) string {
	const typed, isString, lenShift = 7, 2, 4
	const character, charShift = 0x16, 8
	if at&typed != typed {
		return ""
	}
	head, ok := vm.wordNow(at + 1)
	if n := head >> lenShift; !ok || head&typed != isString || n == 0 || n > maxChezName {
		return ""
	}
	chars := make([]byte, 4*(head>>lenShift))
	if !vm.readNow(at+9, chars) {
		return ""
	}
	var name []byte
	for ; len(chars) > 0; chars = chars[4:] {
		c := binary.LittleEndian.Uint32(chars)
		if c&0xff != character || !utf8.ValidRune(rune(c>>charShift)) {
			return ""
		}
		name = utf8.AppendRune(name, rune(c>>charShift))
	}
	return string(name)
}
