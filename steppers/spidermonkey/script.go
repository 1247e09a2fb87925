package spidermonkey

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// scriptInfo is a function, or what a file does itself.
type scriptInfo struct {
	function *unwind.CodeFunction
	at       uint64
	is       scriptIs
	serial   uint32
	checked  time.Time // when it was seen to be that

	bytecode  mcode.Range
	lines     []sourceLine // of the bytecode, by where they begin; nil: not known
	linesRead bool

	jit           uint64 // JitScript
	baseline, ion madeCode
	calls         []call // of the baseline compiler's code
}

// scriptIs is by what a script is known.
type scriptIs struct {
	function, source, shared uint64
	extent
}

// extent is where a script is in the source, in characters, without and with what stands before its parameters, and
// the line and column of the former.
type extent struct{ start, end, textStart, textEnd, line, column uint32 }

// madeCode is code that was made of a script.
type madeCode struct {
	mcode.Range        // empty: there is none
	of          uint64 // the BaselineScript or IonScript
}

// call is where the baseline compiler's code has called, and for what.
type call struct{ returns, bytecode uint32 }

// calledScript is what a frame's token stands for.
type calledScript struct {
	script  uint64
	checked time.Time
}

// source is a file.
type source struct {
	name    string
	at      uint64 // of its name
	checked time.Time
}

// scriptOf returns the script of a frame's token, nil where there is none.
func (vm *machine) scriptOf(token uint64) *scriptInfo {
	at := token &^ smTokenMask
	switch token & smTokenMask {
	case smTokenMask:
		return nil
	case smTokenScript:
		return vm.scriptAt(at)
	}
	now := time.Now()
	callee, known := vm.tokens[at]
	if !known || !vm.stands(callee.checked, now) {
		callee = calledScript{vm.functionScript(at), now}
		if len(vm.tokens) >= maxTokens {
			clear(vm.tokens)
		}
		vm.tokens[at] = callee
	}
	if callee.script == 0 {
		return nil
	}
	return vm.scriptAt(callee.script)
}

// functionScript returns the script of a function, 0 where there is none.
func (vm *machine) functionScript(function uint64) uint64 {
	var raw [functionBytes]byte
	if vm.classOf(function) != functionClass || !vm.ReadNow(function, raw[:]) {
		return 0
	}
	le := binary.LittleEndian
	flags := le.Uint64(raw[functionFlags:])
	if flags>>32 != smallInteger || flags&hasScript == 0 {
		return 0
	}
	return le.Uint64(raw[functionScript:])
}

// scriptAt returns a script, nil where there is none.
func (vm *machine) scriptAt(at uint64) *scriptInfo {
	s, now := vm.scripts[at], time.Now()
	if s != nil && vm.stands(s.checked, now) {
		return s
	}
	var raw [scriptBytes]byte
	if !isCell(at) || !vm.ReadNow(at, raw[:]) {
		return nil
	}
	le := binary.LittleEndian
	is := scriptIs{function: le.Uint64(raw[scriptFunction:]), source: le.Uint64(raw[scriptSource:]), shared: le.Uint64(raw[scriptShared:])}
	e := raw[scriptExtent:]
	is.extent = extent{le.Uint32(e), le.Uint32(e[4:]), le.Uint32(e[8:]), le.Uint32(e[12:]), le.Uint32(e[16:]), le.Uint32(e[20:])}
	if s == nil || s.is != is {
		if s = vm.readScript(at, is); s == nil {
			delete(vm.scripts, at)
			return nil
		}
	}
	s.checked = now
	vm.readCode(s, le.Uint64(raw[scriptWarmUp:]))
	return s
}

// readScript reads what a script is called, and where it is.
func (vm *machine) readScript(at uint64, is scriptIs) *scriptInfo {
	if is.start > is.end || is.textStart > is.start || is.textEnd < is.end || is.line == 0 || vm.classOf(is.source) != sourceClass {
		return nil
	}
	if is.function != 0 && vm.functionScript(is.function) != at {
		return nil
	}
	s := &scriptInfo{at: at, is: is, function: &unwind.CodeFunction{Runtime: vmread.JavaScript}}
	data, ok := vm.WordNow(is.shared + sharedData)
	var head [8]byte
	if !ok || !isCell(is.shared) || data%4 != 0 || !vm.ReadNow(data, head[:]) {
		return nil
	}
	le := binary.LittleEndian
	optional, length := le.Uint32(head[dataOptional:]), le.Uint32(head[dataLength:])
	if length == 0 || length > maxCode || optional < dataCode+length {
		return nil
	}
	s.bytecode = mcode.Range{Start: data + dataCode, End: data + dataCode + uint64(length)}
	if !vm.nameScript(s) {
		return nil
	}
	vm.serial++
	s.serial = vm.serial
	vm.keep(scriptKept + len(s.function.Name) + len(s.function.File))
	vm.scripts[at] = s
	return s
}

// scriptKept is how many bytes a script takes, without its name and lines, about.
const scriptKept = 512

// nameScript finds out what a script is called. It reports false where it has a name that cannot be read yet.
func (vm *machine) nameScript(s *scriptInfo) bool {
	f, base, name := s.function, "", ""
	f.File = vm.fileOf(s.is.source)
	if f.File != "" {
		f.StartLine = int(s.is.line)
		base = path.Base(f.File)
	}
	if s.is.function != 0 {
		if atom, ok := vm.WordNow(s.is.function + functionAtom); ok && atom>>47 == stringTag {
			if name = vm.text(atom & addressInValue); name == "" && vm.latin1 == 0 {
				return false
			}
		}
	}
	switch {
	case vmread.IsPrintable(name):
		f.Name, f.SystemName = name, name
	case s.is.function == 0 && strings.Contains(f.File, eval):
		f.Name, f.SystemName = "<eval "+base+">", "<eval>"
	case s.is.function == 0 && base != "":
		f.Name, f.SystemName = "<module "+base+">", "<module>"
	case s.is.function == 0:
		f.Name, f.SystemName = "<module>", "<module>"
	case f.File == "":
		f.Name, f.SystemName = vmread.JavaScriptWithoutName, vmread.JavaScriptWithoutName
	default:
		f.Name, f.SystemName = fmt.Sprintf("%s %s:%d", vmread.JavaScriptWithoutName, base, f.StartLine), vmread.JavaScriptWithoutName
	}
	return true
}

// eval is in the name of a file that was made of a text: behind that it is what that was for.
const eval = " > eval"

// fileOf returns the name of the file that a ScriptSourceObject stands for, "" where there is none.
func (vm *machine) fileOf(object uint64) string {
	src, now := vm.sources[object], time.Now()
	if src != nil && vm.stands(src.checked, now) {
		return src.name
	}
	var slots [16]byte
	if !vm.ReadNow(object+sourceSlots, slots[:]) {
		return ""
	}
	for b := slots[:]; len(b) >= 8; b = b[8:] {
		at, name := vm.sourceName(binary.LittleEndian.Uint64(b))
		if at == 0 {
			continue
		}
		vm.keep(sourceKept + len(name))
		vm.sources[object] = &source{name: name, at: at, checked: now}
		return name
	}
	return ""
}

const sourceKept = 128 // bytes that one takes, without its name, about

// sourceName returns the name of the file of a ScriptSource, and its SharedImmutableString: the first string from sourceFirst on, of
// characters of 8 bits that end in 0, which is counted.
func (vm *machine) sourceName(source uint64) (at uint64, name string) {
	var raw [sourceBytes]byte
	if !isCell(source) || !vm.ReadNow(source, raw[:]) {
		return 0, ""
	}
	le := binary.LittleEndian
	for off := uint64(sourceFirst); off+8 <= sourceBytes; off += 8 {
		if vm.name != 0 && vm.name != off {
			continue
		}
		at := le.Uint64(raw[off:])
		var box [16]byte
		if !isCell(at) || !vm.ReadNow(at, box[:]) {
			continue
		}
		chars, n := le.Uint64(box[:]), le.Uint64(box[8:])
		if n < 2 || n > maxName || chars < 1<<12 || chars >= maxAddress {
			continue
		}
		text := make([]byte, n)
		if !vm.ReadNow(chars, text) || bytes.IndexByte(text, 0) != int(n)-1 || !vmread.IsPrintable(string(text[:n-1])) {
			continue
		}
		vm.name = off
		return at, string(text[:n-1])
	}
	return 0, ""
}

// readCode finds the code that was made of a script.
func (vm *machine) readCode(s *scriptInfo, jit uint64) {
	s.baseline, s.ion = madeCode{of: s.baseline.of}, madeCode{of: s.ion.of}
	if s.jit = jit; !isCell(jit) {
		return
	}
	var raw [jitScriptBytes]byte
	if !vm.ReadNow(jit, raw[:]) {
		return
	}
	le := binary.LittleEndian
	for off := uint64(0); off+16 <= jitScriptBytes; off += 8 {
		if vm.baseline != 0 && vm.baseline != off {
			continue
		}
		baseline, ion := le.Uint64(raw[off:]), le.Uint64(raw[off+8:])
		if ion > lastMark && !isCell(ion) {
			continue
		}
		code, _ := vm.WordNow(baseline)
		made := vm.codeAt(code)
		if !isCell(baseline) || made.End == 0 {
			continue
		}
		vm.baseline = off
		if s.baseline.of != baseline {
			s.calls = nil
		}
		if s.baseline = (madeCode{made, baseline}); s.calls == nil {
			s.calls = vm.readCalls(s)
		}
		if ion > lastMark {
			s.ion = madeCode{vm.ionCode(ion), ion}
		}
		return
	}
}

// lastMark is the last small number that stands for an IonScript that is not there yet, or never will be.
const lastMark = 8

// ionCode returns the code of an IonScript.
func (vm *machine) ionCode(ion uint64) mcode.Range {
	var raw [ionBytes]byte
	if !vm.ReadNow(ion, raw[:]) {
		return mcode.Range{}
	}
	for off := uint64(0); off < ionBytes; off += 8 {
		if vm.ion != 0 && vm.ion != off+1 {
			continue
		}
		if made := vm.codeAt(binary.LittleEndian.Uint64(raw[off:])); made.End != 0 {
			vm.ion = off + 1
			return made
		}
	}
	return mcode.Range{}
}

// codeAt returns the instructions of a JitCode, which stands before these. It is empty where there is none.
func (vm *machine) codeAt(cell uint64) mcode.Range {
	var raw [codeSize + 4]byte
	if !isCell(cell) || !vm.ReadNow(cell, raw[:]) {
		return mcode.Range{}
	}
	le := binary.LittleEndian
	start, size := le.Uint64(raw[:]), uint64(le.Uint32(raw[codeSize:]))
	if start%8 != 0 || start >= maxAddress || start < 1<<12 || size == 0 || size > maxCode {
		return mcode.Range{}
	}
	if back, ok := vm.WordNow(start - codeCell); !ok || back != cell {
		return mcode.Range{}
	}
	return mcode.Range{Start: start, End: start + size}
}

// readCalls reads where code of the baseline compiler returns to, in order.
func (vm *machine) readCalls(s *scriptInfo) []call {
	var ends [8]byte
	if !vm.ReadNow(s.baseline.of+baselineReturns, ends[:]) {
		return nil
	}
	le := binary.LittleEndian
	from, to := le.Uint32(ends[:]), le.Uint32(ends[4:])
	if from >= to || (to-from)%8 != 0 || (to-from)/8 > maxCalls || from > ionBytes<<10 {
		return nil
	}
	raw := make([]byte, to-from)
	if !vm.ReadNow(s.baseline.of+uint64(from), raw) {
		return nil
	}
	const bytecodeMask = 1<<28 - 1 // what is above is what kind of call it is
	calls := make([]call, 0, len(raw)/8)
	last := uint32(0)
	for b := raw; len(b) >= 8; b = b[8:] {
		c := call{le.Uint32(b), le.Uint32(b[4:]) & bytecodeMask}
		if c.returns <= last || uint64(c.returns) > s.baseline.End-s.baseline.Start || uint64(c.bytecode) >= s.bytecode.End-s.bytecode.Start {
			return nil
		}
		last = c.returns
		calls = append(calls, c)
	}
	vm.keep(len(raw))
	return calls
}
