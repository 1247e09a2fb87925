package clr

import (
	"bytes"
	"encoding/binary"
	"path"
	"unsafe"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// runtime is the CodeFunction.Runtime of .NET.
const runtime = "dotnet"

// method is a method, by its MethodDesc.
type method struct {
	function *unwind.CodeFunction // nil: there is no telling
	module   *module              // that has its lines; nil: there are none
	number   uint64               // in that
	document uint64               // of function.File
}

// placeCode is the number in unwind.Codes of a place in a function.
type placeCode struct {
	of     *function
	number uint32
}

// codeOf returns the number of what runs in a frame of a function; 0 where there is no telling.
func (vm *machine) codeOf(codes *unwind.Codes, f *function, in *unwind.Frame) uint32 {
	if f.method == 0 {
		return 0
	}
	if vm.codes == nil || vm.resets != codes.Resets() || len(vm.codes) >= maxCodes {
		vm.codes, vm.resets = map[uint64]placeCode{}, codes.Resets()
	}
	pc := in.LookupPC()
	if known := vm.codes[pc]; known.of == f {
		return known.number
	}
	m := vm.methodOf(f.method)
	if m.function == nil {
		return 0
	}
	n := codes.Add(f.start, []unwind.CodeLine{vm.lineOf(f, m, pc)}, 0)
	vm.codes[pc] = placeCode{f, n}
	return n
}

// lineOf returns the line of a method that the code at pc is of: where a call is, or what was interrupted.
func (vm *machine) lineOf(f *function, m *method, pc uint64) unwind.CodeLine {
	l := unwind.CodeLine{CodeFunction: m.function, IsCompiled: true}
	if m.module == nil {
		return l
	}
	p := vm.pdbOf(m.module)
	if p == nil {
		return l
	}
	il, ok := vm.debugOf(f).ilOffset(vm.ReadNow, uint32(pc-f.start))
	if !ok {
		return l
	}
	at, ok := p.at(m.number, il)
	if !ok {
		return l
	}
	if l.Line = at.line; at.document != m.document { // as a compiler can be told that lines are another file's
		other := *m.function
		other.File, other.StartLine = p.document(at.document), 0
		l.CodeFunction = &other
	}
	return l
}

// methodOf returns the method of a MethodDesc.
func (vm *machine) methodOf(desc uint64) *method {
	m := vm.methods[desc]
	if m == nil {
		if len(vm.methods) >= maxMethods || vm.Memory.Kept >= vmread.MaxKept {
			clear(vm.methods)
			vm.Memory.Kept = 0
		}
		m = vm.readMethod(desc)
		vm.methods[desc] = m
		vm.Memory.Kept += int(unsafe.Sizeof(*m))
		if f := m.function; f != nil {
			vm.Memory.Kept += int(unsafe.Sizeof(*f)) + len(f.Name) + len(f.Parameters) + len(f.SystemName) + len(f.File)
		}
	}
	return m
}

// readMethod reads what a MethodDesc says; of no function where it is none.
func (vm *machine) readMethod(desc uint64) *method {
	var own [clrMethodBytes]byte
	var chunk [clrChunkBytes]byte
	le := binary.LittleEndian
	if desc%clrMethodAlign != 0 || !vm.ReadNow(desc, own[:]) ||
		!vm.ReadNow(desc-clrMethodAlign*uint64(own[clrMethodChunk])-clrChunkBytes, chunk[:]) {
		return &method{}
	}
	switch own[clrMethodFlags] & clrMethodKinds {
	case clrMethodDynamic:
		return &method{function: vm.dynamicMethod(desc)}
	case clrMethodArray:
		return &method{}
	}
	bits := vm.fields.tokenBits
	n := uint64(le.Uint16(own[:])&(1<<bits-1)) | uint64(le.Uint16(chunk[clrChunkTokens:])&(1<<(clrTokenBits-bits)-1))<<bits
	module := vm.moduleOf(le.Uint64(chunk[:]))
	if module == nil {
		return &method{}
	}
	name, typ, parameters := module.method(n)
	if !vmread.IsPrintable(name) || typ != "" && !vmread.IsPrintable(typ) {
		return &method{}
	}
	if typ != "" && typ != noType {
		name = typ + "." + name
	}
	m := &method{function: &unwind.CodeFunction{Name: name, Parameters: parameters, SystemName: name + parameters, Runtime: runtime}}
	if p := vm.pdbOf(module); p != nil {
		points := p.points(n)
		if first, ok := points.next(); ok {
			m.module, m.number, m.document = module, n, first.document
			m.function.File, m.function.StartLine = p.document(first.document), first.line
		}
	}
	return m
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

// pathOf returns the name of the file of a module; "" where there is no telling.
func (vm *machine) pathOf(module, image uint64) string {
	at := vm.wordAt(module + vm.fields.path)
	if !vm.fields.isTold {
		const flags, buffer, kinds, unicode = 8, 16, 7, 4 // of the SString that PEImage begins with
		if vm.wordAt(image+flags)&kinds != unicode {
			return ""
		}
		at = vm.wordAt(image + buffer)
	}
	b := make([]byte, maxPath)
	for n := 256; n <= len(b) && at != 0; n *= 4 {
		text := readSome(vm.ReadNow, at, b[:n])
		for i := 0; i+1 < len(text); i += 2 {
			if text[i] == 0 && text[i+1] == 0 {
				return vmread.UTF16LE(text[:i])
			}
		}
	}
	return ""
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
		switch {
		case m == nil:
		case vm.fields.debug == formUnknown:
			m.symbols = symbols{}
		case m.symbols.id != (pdbID{}):
			m.dir = vm.dir // also of what is in one file with the program
			if name := vm.pathOf(at, image); name != "" {
				m.dir = path.Dir(name)
			}
		}
		vm.modules[at] = m
	}
	return m
}
