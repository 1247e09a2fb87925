package jsc

import (
	"encoding/binary"
	"fmt"
	"path"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// function is an executable: a function as it is in the source.
type function struct {
	unwind.CodeFunction
	is         executable
	isFunction bool   // not what a file or a module does itself
	first      uint64 // the line in which it begins, where it has that, and the column, from 0 (32 bits each)
	serial     uint32
	checked    time.Time // when it was seen to be that
}

// executable is by what an executable is known.
type executable struct {
	class                     class
	source, unlinked, between uint64
	names                     [2]uint64 // StringImpls: the name, or the one that others call it by, and that, or what is none
}

// functionAt returns the function, or else, of an executable, nil where there is none. unlinked is
// an UnlinkedCodeBlock of it, 0 where that is not known.
func (vm *machine) functionAt(e, unlinked uint64) *function {
	f, now := vm.functions[e], time.Now()
	if f != nil && vm.stands(f.checked, now) {
		return f
	}
	is := executable{class: vm.classOf(e)}
	switch is.class {
	case functionExecutable:
		if !vm.readUnlinked(&is, e, unlinked) {
			return nil
		}
	case fileExecutable, moduleExecutable, evalExecutable:
	default:
		return nil
	}
	var raw [24]byte
	if !vm.ReadNow(e+scriptSource, raw[:]) {
		return nil
	}
	le := binary.LittleEndian
	is.source, is.between = le.Uint64(raw[:]), le.Uint64(raw[8:])
	if f == nil || f.is != is {
		read := vm.readFunction(is)
		if read == nil {
			return nil
		}
		read.first = le.Uint64(raw[16:])
		f = vm.keep(e, read)
	}
	f.checked = now
	return f
}

// keep makes an executable that of a function.
func (vm *machine) keep(e uint64, f *function) *function {
	if vm.Kept += len(f.Name) + len(f.File) + functionBytes; len(vm.functions) >= maxFunctions || vm.Kept > vmread.MaxKept {
		vm.forget()
		vm.Kept = len(f.Name) + len(f.File) + functionBytes
	}
	vm.serial++
	f.serial = vm.serial
	vm.functions[e] = f
	return f
}

const functionBytes = 256 // that one takes, without its name, about

// readUnlinked reads what the unlinked executable of a function tells of it. Where that has what is seen once of a
// function that has run: it refers to the code that its CodeBlock has.
func (vm *machine) readUnlinked(is *executable, e, unlinked uint64) bool {
	for i := range unlinkeds {
		at := &unlinkeds[i]
		if vm.unlinked != nil && vm.unlinked != at {
			continue
		}
		is.unlinked, _ = vm.WordNow(e + at.at)
		if vm.classOf(is.unlinked) != unlinkedFunction {
			continue
		}
		var raw [4 * 8]byte
		if !vm.ReadNow(is.unlinked+at.codes, raw[:]) {
			continue
		}
		le := binary.LittleEndian
		is.names = [2]uint64{le.Uint64(raw[16:]), le.Uint64(raw[24:])}
		if vm.unlinked == nil {
			code, forNew := le.Uint64(raw[:]), le.Uint64(raw[8:])
			if unlinked == 0 || code != unlinked && forNew != unlinked || vm.classOf(unlinked) != unlinkedBlock {
				continue
			}
			vm.unlinked = at
		}
		return true
	}
	return false
}

// readFunction reads what a function is called and where it is, nil where that is not understood.
func (vm *machine) readFunction(is executable) *function {
	f := &function{is: is, isFunction: is.class == functionExecutable}
	f.Runtime = vmread.JavaScript
	if table, ok := vm.WordNow(is.source); ok && vm.file.Holds(table) {
		url, _ := vm.WordNow(is.source + sourceURL)
		if url := vm.text(url); vmread.IsPrintable(url) {
			f.File = url
		}
	}
	base := ""
	if f.File != "" {
		base = " " + path.Base(f.File)
	}
	name, ok := vm.identifier(is.names[1])
	if !ok || name == "" {
		if name, ok = vm.identifier(is.names[0]); !ok {
			return nil
		}
	}
	start := uint32(is.between)
	switch {
	case is.class == evalExecutable:
		f.Name, f.SystemName = "<eval"+base+">", "<eval>"
	case !f.isFunction:
		f.Name, f.SystemName = "<module"+base+">", "<module>"
	case name != "":
		f.Name, f.SystemName = name, name
	case base == "":
		f.Name, f.SystemName = vmread.JavaScriptWithoutName, vmread.JavaScriptWithoutName
	default:
		f.Name, f.SystemName = fmt.Sprintf("%s%s@%d", vmread.JavaScriptWithoutName, base, start), vmread.JavaScriptWithoutName
	}
	return f
}

// nativeAt returns the function with this executable, nil if that is not native.
func (vm *machine) nativeAt(e uint64) *function {
	f, now := vm.functions[e], time.Now()
	if f != nil && vm.stands(f.checked, now) {
		if f.is.class != nativeExecutable {
			return nil
		}
		return f
	}
	is := executable{class: vm.classOf(e)}
	if is.class != nativeExecutable {
		return nil
	}
	is.names[0], _ = vm.WordNow(e + nativeName)
	if f == nil || f.is != is {
		name := vm.text(is.names[0])
		if !vmread.IsPrintable(name) {
			return nil
		}
		f = vm.keep(e, &function{is: is, CodeFunction: unwind.CodeFunction{Name: name, SystemName: name, Runtime: vmread.JavaScript}})
	}
	f.checked = now
	return f
}

// entersNative reports whether pc is in the code that all native functions are called from.
func (vm *machine) entersNative(e, pc uint64) bool {
	for _, which := range [...]uint64{forCall, forNew} {
		code, _ := vm.WordNow(e + which)
		if !isCell(code) {
			continue
		}
		entry, ok := vm.WordNow(code + codeEntry)
		if ok && vm.made.Holds(entry) && pc-entry < nativeBytes {
			return true
		}
	}
	return false
}

// identifier reads a StringImpl that is a name in a program: an atom, or a symbol. "" is no name.
func (vm *machine) identifier(at uint64) (name string, ok bool) {
	const (
		length, flags = 4, 16
		isNamed       = 3 << 4 // it is one of these
		hashed        = 6      // bits of flags, below those of its hash
	)
	if at == 0 {
		return "", true
	}
	var raw [stringBytes]byte
	if !isCell(at) || !vm.ReadNow(at, raw[:]) {
		return "", false
	}
	le := binary.LittleEndian
	if le.Uint32(raw[length:]) == 0 {
		return "", true
	}
	if v := le.Uint32(raw[flags:]); v&isNamed == 0 || v>>hashed == 0 {
		return "", false
	}
	name = vm.text(at)
	return name, vmread.IsPrintable(name)
}

// text reads a StringImpl, of maxName characters at most; "" where there is none.
func (vm *machine) text(at uint64) string {
	const length, data, flags, is8Bit = 4, 8, 16, 4
	var raw [stringBytes]byte
	if !isCell(at) || !vm.ReadNow(at, raw[:]) {
		return ""
	}
	le := binary.LittleEndian
	n, wide := le.Uint32(raw[length:]), le.Uint32(raw[flags:])&is8Bit == 0
	if n == 0 || n > maxName {
		return ""
	}
	if !wide {
		chars := make([]byte, n)
		if !vm.ReadNow(le.Uint64(raw[data:]), chars) {
			return ""
		}
		return vmread.Latin1(chars)
	}
	chars := make([]byte, 2*n)
	if !vm.ReadNow(le.Uint64(raw[data:]), chars) {
		return ""
	}
	return vmread.UTF16LE(chars)
}
