package steppers

import (
	"encoding/binary"
	"fmt"
	"path"
	"time"

	"github.com/swbpf/swbpf/unwind"
)

// jscFunction is an executable: a function as it is in the source.
type jscFunction struct {
	unwind.CodeFunction
	is         jscExecutable
	isFunction bool // not what a file or a module does itself
	serial     uint32
	checked    time.Time // when it was seen to be that
}

// jscExecutable is by what an executable is known.
type jscExecutable struct {
	class                     jscClass
	source, unlinked, between uint64
	names                     [2]uint64 // StringImpls: the name, or the one that others call it by, and that, or what is none
}

// functionAt returns the function, or else, of an executable, nil where there is none. unlinked is
// an UnlinkedCodeBlock of it, 0 where that is not known.
func (vm *jscVM) functionAt(e, unlinked uint64) *jscFunction {
	f, now := vm.functions[e], time.Now()
	if f != nil && now.Sub(f.checked) < jscInterval {
		return f
	}
	is := jscExecutable{class: vm.classOf(e)}
	switch is.class {
	case jscFunctionExecutable:
		if !vm.readUnlinked(&is, e, unlinked) {
			return nil
		}
	case jscFileExecutable, jscModuleExecutable, jscEvalExecutable:
	default:
		return nil
	}
	var raw [16]byte
	if !vm.readNow(e+jscScriptSource, raw[:]) {
		return nil
	}
	is.source, is.between = binary.LittleEndian.Uint64(raw[:]), binary.LittleEndian.Uint64(raw[8:])
	if f == nil || f.is != is {
		read := vm.readFunction(is)
		if read == nil {
			return nil
		}
		f = vm.keep(e, read)
	}
	f.checked = now
	return f
}

// keep makes an executable that of a function.
func (vm *jscVM) keep(e uint64, f *jscFunction) *jscFunction {
	if vm.kept += len(f.Name) + len(f.File) + jscFunctionBytes; len(vm.functions) >= maxJSCFunctions || vm.kept > maxKept {
		vm.forget()
		vm.kept = len(f.Name) + len(f.File) + jscFunctionBytes
	}
	vm.serial++
	f.serial = vm.serial
	vm.functions[e] = f
	return f
}

const jscFunctionBytes = 256 // that one takes, without its name, about

// readUnlinked reads what the unlinked executable of a function tells of it. Where that has what is seen once of a
// function that has run: it refers to the code that its CodeBlock has.
func (vm *jscVM) readUnlinked(is *jscExecutable, e, unlinked uint64) bool {
	for i := range jscUnlinkeds {
		at := &jscUnlinkeds[i]
		if vm.unlinked != nil && vm.unlinked != at {
			continue
		}
		is.unlinked, _ = vm.wordNow(e + at.at)
		if vm.classOf(is.unlinked) != jscUnlinkedFunction {
			continue
		}
		var raw [4 * 8]byte
		if !vm.readNow(is.unlinked+at.codes, raw[:]) {
			continue
		}
		le := binary.LittleEndian
		is.names = [2]uint64{le.Uint64(raw[16:]), le.Uint64(raw[24:])}
		if vm.unlinked == nil {
			code, forNew := le.Uint64(raw[:]), le.Uint64(raw[8:])
			if unlinked == 0 || code != unlinked && forNew != unlinked || vm.classOf(unlinked) != jscUnlinkedBlock {
				continue
			}
			vm.unlinked = at
		}
		return true
	}
	return false
}

// readFunction reads what a function is called and where it is, nil where that is not understood.
func (vm *jscVM) readFunction(is jscExecutable) *jscFunction {
	f := &jscFunction{is: is, isFunction: is.class == jscFunctionExecutable}
	f.Runtime = javaScript
	if table, ok := vm.wordNow(is.source); ok && vm.file.holds(table) {
		url, _ := vm.wordNow(is.source + jscSourceURL)
		if url := vm.text(url); isPrintable(url) {
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
	case is.class == jscEvalExecutable:
		f.Name, f.SystemName = "<eval"+base+">", "<eval>"
	case !f.isFunction:
		f.Name, f.SystemName = "<module"+base+">", "<module>"
	case name != "":
		f.Name, f.SystemName = name, name
	case base == "":
		f.Name, f.SystemName = javaScriptWithoutName, javaScriptWithoutName
	default:
		f.Name, f.SystemName = fmt.Sprintf("%s%s@%d", javaScriptWithoutName, base, start), javaScriptWithoutName
	}
	return f
}

// nativeAt returns the function with this executable, nil if that is not native.
func (vm *jscVM) nativeAt(e uint64) *jscFunction {
	f, now := vm.functions[e], time.Now()
	if f != nil && now.Sub(f.checked) < jscInterval {
		if f.is.class != jscNativeExecutable {
			return nil
		}
		return f
	}
	is := jscExecutable{class: vm.classOf(e)}
	if is.class != jscNativeExecutable {
		return nil
	}
	is.names[0], _ = vm.wordNow(e + jscNativeName)
	if f == nil || f.is != is {
		name := vm.text(is.names[0])
		if !isPrintable(name) {
			return nil
		}
		f = vm.keep(e, &jscFunction{is: is, CodeFunction: unwind.CodeFunction{Name: name, SystemName: name, Runtime: javaScript}})
	}
	f.checked = now
	return f
}

// entersNative reports whether pc is in the code that all native functions are called from.
func (vm *jscVM) entersNative(e, pc uint64) bool {
	for _, which := range [...]uint64{jscForCall, jscForNew} {
		code, _ := vm.wordNow(e + which)
		if !isJSCCell(code) {
			continue
		}
		entry, ok := vm.wordNow(code + jscCodeEntry)
		if ok && vm.made.holds(entry) && pc-entry < jscNativeBytes {
			return true
		}
	}
	return false
}

// identifier reads a StringImpl that is a name in a program: an atom, or a symbol. "" is no name.
func (vm *jscVM) identifier(at uint64) (name string, ok bool) {
	const (
		length, flags = 4, 16
		isNamed       = 3 << 4 // it is one of these
		hashed        = 6      // bits of flags, below those of its hash
	)
	if at == 0 {
		return "", true
	}
	var raw [jscStringBytes]byte
	if !isJSCCell(at) || !vm.readNow(at, raw[:]) {
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
	return name, isPrintable(name)
}

// text reads a StringImpl, of maxJSCName characters at most; "" where there is none.
func (vm *jscVM) text(at uint64) string {
	const length, data, flags, is8Bit = 4, 8, 16, 4
	var raw [jscStringBytes]byte
	if !isJSCCell(at) || !vm.readNow(at, raw[:]) {
		return ""
	}
	le := binary.LittleEndian
	n, wide := le.Uint32(raw[length:]), le.Uint32(raw[flags:])&is8Bit == 0
	if n == 0 || n > maxJSCName {
		return ""
	}
	if !wide {
		chars := make([]byte, n)
		if !vm.readNow(le.Uint64(raw[data:]), chars) {
			return ""
		}
		return latin1(chars)
	}
	chars := make([]byte, 2*n)
	if !vm.readNow(le.Uint64(raw[data:]), chars) {
		return ""
	}
	return utf16LE(chars)
}
