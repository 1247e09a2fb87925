package v8

import (
	"fmt"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

const wasmMagic = "\x00asm\x01\x00\x00\x00"

// wasmModule is a module.
type wasmModule struct {
	native   uint64    // NativeModule
	is       [3]uint64 // where its bytes are, and how many, as they were
	imported uint32    // functions, which come first
	defined  uint32    // those that have code
	names    []byte    // of functions, by number, as the module has them; and by which they are exported
	exports  []byte

	functions map[uint32]*unwind.CodeFunction // that were met, by index
}

// readBytes reads what is to be known of a module from its bytes, to which a word leads. It reports whether they are such.
func (vm *machine) readBytes(m *wasmModule, word uint64) bool {
	at := vm.words(word, 2)
	if at == nil || at[1] < uint64(len(wasmMagic)) || !vm.read(at[0], vm.small[:]) || string(vm.small[:]) != wasmMagic {
		return false
	}
	m.is = [3]uint64{word, at[0], at[1]}
	// Sections: what they are, their length, and that.
	const imports, functions, exports = 2, 3, 7
	end := at[0] + at[1]
	for pos, n := at[0]+uint64(len(wasmMagic)), 0; pos < end && n < maxWasmSections; n++ {
		head := wasmReader{b: vm.bytesAt(pos, min(end-pos, 16))}
		id, size := head.byte(), uint64(head.number())
		body := pos + uint64(head.at)
		if head.bad || size > end-body {
			break
		}
		pos = body + size
		switch id {
		case imports:
			r := wasmReader{b: vm.bytesAt(body, size)}
			m.imported = r.importedFunctions()
		case functions:
			r := wasmReader{b: vm.bytesAt(body, min(size, 16))}
			m.defined = r.number()
		case exports:
			m.exports = vm.bytesAt(body, size)
		case 0:
			r := wasmReader{b: vm.bytesAt(body, min(size, 16))}
			if string(r.text()) == "name" {
				names := wasmReader{b: vm.bytesAt(body+uint64(r.at), size-uint64(r.at))}
				m.names = names.functionNames()
			}
		}
	}
	return true
}

// bytesAt reads bytes, nil where they cannot be read or are too many.
func (vm *machine) bytesAt(addr, n uint64) []byte {
	if n > maxWasmNames {
		return nil
	}
	b := make([]byte, n)
	if !vm.read(addr, b) {
		return nil
	}
	return b
}

// function returns a function by its index.
func (m *wasmModule) function(index uint32) *unwind.CodeFunction {
	fn := m.functions[index]
	if fn == nil {
		name := m.nameOf(index)
		fn = &unwind.CodeFunction{Name: name, SystemName: name, Runtime: vmread.JavaScript}
		if m.functions == nil || len(m.functions) >= maxFunctions {
			m.functions = map[uint32]*unwind.CodeFunction{}
		}
		m.functions[index] = fn
	}
	return fn
}

// noFunction is the index of code of a module that is of no function: what jumps to these, or calls what is imported.
const noFunction = 1<<32 - 1

// wasmStub is what such code is called.
const wasmStub = "wasm-stub"

// nameOf returns what a function is called: as the module says, or as it is exported, or by its index, as V8 does.
func (m *wasmModule) nameOf(index uint32) string {
	if index == noFunction {
		return wasmStub
	}
	r := wasmReader{b: m.names}
	for n := r.number(); n > 0 && !r.bad; n-- {
		i, name := r.number(), r.text()
		if i == index && !r.bad && vmread.IsPrintable(string(name)) {
			return vmread.ValidText(name[:min(len(name), maxName)])
		}
	}
	r = wasmReader{b: m.exports}
	for n := r.number(); n > 0 && !r.bad; n-- {
		name, kind, i := r.text(), r.byte(), r.number()
		if kind == 0 && i == index && !r.bad && vmread.IsPrintable(string(name)) {
			return vmread.ValidText(name[:min(len(name), maxName)])
		}
	}
	return fmt.Sprintf("wasm-function[%d]", index)
}

// wasmReader reads a part of a module (WebAssembly Core Specification, Binary Format). What is not there is zero, and bad.
type wasmReader struct {
	b   []byte
	at  int
	bad bool
}

func (r *wasmReader) byte() byte {
	if r.at >= len(r.b) {
		r.bad = true
		return 0
	}
	r.at++
	return r.b[r.at-1]
}

// number reads a number of 32 bits.
func (r *wasmReader) number() (v uint32) {
	for shift := 0; shift < 35; shift += 7 {
		b := r.byte()
		v |= uint32(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
	r.bad = true
	return 0
}

// skip passes a number of up to 64 bits.
func (r *wasmReader) skip() {
	for r.byte() >= 0x80 && !r.bad {
	}
}

func (r *wasmReader) text() []byte {
	n := r.number()
	if r.bad || uint64(n) > uint64(len(r.b)-r.at) {
		r.bad = true
		return nil
	}
	r.at += int(n)
	return r.b[r.at-int(n) : r.at]
}

// importedFunctions counts those among what a module imports.
func (r *wasmReader) importedFunctions() (functions uint32) {
	const function, table, memory, global, tag = 0, 1, 2, 3, 4
	for n := r.number(); n > 0 && !r.bad; n-- {
		r.text()
		r.text()
		switch r.byte() {
		case function:
			r.number()
			functions++
		case table:
			r.valueType()
			r.limits()
		case memory:
			r.limits()
		case global:
			r.valueType()
			r.byte()
		case tag:
			r.byte()
			r.number()
		default:
			r.bad = true
		}
	}
	return functions
}

// valueType passes a type, which may be a reference to another.
func (r *wasmReader) valueType() {
	const nullable, reference = 0x63, 0x64
	if b := r.byte(); b == nullable || b == reference {
		r.skip()
	}
}

// limits passes what the size of a table or a memory is, and may be.
func (r *wasmReader) limits() {
	const hasMaximum, hasPageSize = 1, 8
	flags := r.byte()
	r.skip()
	if flags&hasMaximum != 0 {
		r.skip()
	}
	if flags&hasPageSize != 0 {
		r.skip()
	}
}

// functionNames returns those of functions of all names that a module has.
func (r *wasmReader) functionNames() []byte {
	const ofFunctions = 1
	for r.at < len(r.b) && !r.bad {
		kind, b := r.byte(), r.text()
		if kind == ofFunctions && !r.bad {
			return b
		}
	}
	return nil
}
