package clr

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// runtime is the CodeFunction.Runtime of .NET.
const runtime = "dotnet"

// method is a method, by its MethodDesc.
type method struct{ function *unwind.CodeFunction } // nil: there is no telling

// codeOf returns the number of what runs in a frame of a function; 0 where there is no telling.
func (vm *machine) codeOf(codes *unwind.Codes, f *function, in *unwind.Frame) uint32 {
	if f.method == 0 {
		return 0
	}
	if vm.codes == nil || vm.resets != codes.Resets() || len(vm.codes) >= maxCodes {
		vm.codes, vm.resets = map[uint64]uint32{}, codes.Resets()
	}
	m := vm.methodOf(f.method)
	if m.function == nil {
		return 0
	}
	pc := in.LookupPC()
	n, known := vm.codes[pc]
	if known {
		if lines := codes.Lines(n); len(lines) > 0 && lines[0].CodeFunction == m.function {
			return n
		}
	}
	n = codes.Add(f.start, []unwind.CodeLine{{CodeFunction: m.function, IsCompiled: true}}, 0)
	vm.codes[pc] = n
	return n
}

// methodOf returns the method of a MethodDesc.
func (vm *machine) methodOf(desc uint64) *method {
	m := vm.methods[desc]
	if m == nil {
		if len(vm.methods) >= maxMethods || vm.Memory.Kept >= vmread.MaxKept {
			clear(vm.methods)
			vm.Memory.Kept = 0
		}
		m = &method{vm.readMethod(desc)}
		vm.methods[desc] = m
		vm.Memory.Kept += int(unsafe.Sizeof(*m))
		if f := m.function; f != nil {
			vm.Memory.Kept += int(unsafe.Sizeof(*f)) + len(f.Name) + len(f.Parameters) + len(f.SystemName) + len(f.File)
		}
	}
	return m
}

// readMethod reads what a MethodDesc says; nil where it is none.
func (vm *machine) readMethod(desc uint64) *unwind.CodeFunction {
	var own [clrMethodBytes]byte
	var chunk [clrChunkBytes]byte
	le := binary.LittleEndian
	if desc%clrMethodAlign != 0 || !vm.ReadNow(desc, own[:]) ||
		!vm.ReadNow(desc-clrMethodAlign*uint64(own[clrMethodChunk])-clrChunkBytes, chunk[:]) {
		return nil
	}
	switch own[clrMethodFlags] & clrMethodKinds {
	case clrMethodDynamic:
		return vm.dynamicMethod(desc)
	case clrMethodArray:
		return nil
	}
	bits := vm.fields.tokenBits
	n := uint64(le.Uint16(own[:])&(1<<bits-1)) | uint64(le.Uint16(chunk[clrChunkTokens:])&(1<<(clrTokenBits-bits)-1))<<bits
	module := vm.moduleOf(le.Uint64(chunk[:]))
	if module == nil {
		return nil
	}
	name, typ, parameters := module.method(n)
	if !vmread.IsPrintable(name) || typ != "" && !vmread.IsPrintable(typ) {
		return nil
	}
	if typ != "" && typ != noType {
		name = typ + "." + name
	}
	return &unwind.CodeFunction{Name: name, Parameters: parameters, SystemName: name + parameters, Runtime: runtime}
}

// noType is the type of functions that are of none.
const noType = "<Module>"

// dynamicMethod returns a method that was made at run time, by the program or by the machine itself.
func (vm *machine) dynamicMethod(desc uint64) *unwind.CodeFunction {
	text := make([]byte, maxText)
	at := vm.wordAt(desc + vm.fields.dynamicName)
	for at != 0 && len(text) >= 16 && !vm.ReadNow(at, text) { // memory may end behind it
		text = text[:len(text)/2]
	}
	name, _, ended := bytes.Cut(text, []byte{0})
	if s := vmread.ValidText(name); ended && vmread.IsPrintable(s) {
		return &unwind.CodeFunction{Name: s, SystemName: s, Runtime: runtime}
	}
	return nil
}

// moduleOf returns the module that defines a type, by its MethodTable; nil where there is no telling.
func (vm *machine) moduleOf(table uint64) *module {
	at := vm.wordAt(table + vm.fields.module)
	m, known := vm.modules[at]
	if !known {
		if len(vm.modules) >= maxModules {
			clear(vm.modules)
		}
		image := vm.wordAt(vm.wordAt(at+vm.fields.assembly) + vm.fields.peImage)
		for _, layout := range [...]uint64{vm.fields.loaded, vm.fields.loaded - 8} {
			if l := vm.wordAt(image + layout); l != 0 && m == nil {
				m = readModule(vm.ReadNow, vm.wordAt(l+vm.fields.layoutBase))
			}
		}
		vm.modules[at] = m
	}
	return m
}
