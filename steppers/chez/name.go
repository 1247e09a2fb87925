package chez

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/swbpf/swbpf/unwind"
)

// name is the number of what runs at an address, and by what it was found.
type name struct {
	object, name uint64
	number       uint32
}

// codeOf returns the number of what runs in a frame, 0 where it has no name.
func (vm *machine) codeOf(w *unwind.Walker, pc, object uint64) uint32 {
	const nameAt = 24
	codes := w.Codes()
	if vm.resets != codes.Resets() || len(vm.codes) >= maxCodes || vm.funcs == nil {
		vm.codes, vm.funcs, vm.resets = map[uint64]name{}, map[string]*unwind.CodeFunction{}, codes.Resets()
	}
	n, known := vm.codes[pc]
	at, ok := vm.WordNow(object + nameAt)
	if known && n.object == object && (n.name == at || !ok) { // of what cannot be read any more nothing else will be known
		return n.number
	}
	if !ok {
		return 0
	}
	n = name{object: object, name: at}
	if name := plainName(vm.stringAt(at)); name != "" {
		f := vm.funcs[name]
		if f == nil {
			f = &unwind.CodeFunction{Name: name, SystemName: name, Runtime: runtime}
			vm.funcs[name] = f
		}
		n.number = codes.Add(object+codeHead, []unwind.CodeLine{{CodeFunction: f, IsCompiled: true}}, 0)
	}
	vm.codes[pc] = n
	return n.number
}

// plainName returns a name as Racket shows it, which marks with a bracket one that tells where a function without a name
// is, and one that begins with a bracket itself (schemify/infer-name.rkt).
func plainName(name string) string {
	if len(name) > 1 && (name[0] == '[' || name[0] == ']') {
		return name[1:]
	}
	return name
}

// stringAt returns a string of Scheme, "" where there is none.
func (vm *machine) stringAt(at uint64) string {
	const typed, isString, lenShift = 7, 2, 4
	const character, charShift = 0x16, 8
	if at&typed != typed {
		return ""
	}
	head, ok := vm.WordNow(at + 1)
	if n := head >> lenShift; !ok || head&typed != isString || n == 0 || n > maxName {
		return ""
	}
	chars := make([]byte, 4*(head>>lenShift))
	if !vm.ReadNow(at+9, chars) {
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
