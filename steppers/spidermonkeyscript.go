package steppers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/swbpf/swbpf/unwind"
)

// smScript is a function, or what a file does itself.
type smScript struct {
	function *unwind.CodeFunction
	at       uint64
	is       smScriptIs
	serial   uint32
	checked  time.Time // when it was seen to be that

	bytecode  vaddrRange
	lines     []smLine // of the bytecode, by where they begin; nil: not known
	linesRead bool

	jit           uint64 // JitScript
	baseline, ion smCode
	calls         []smCall // of the baseline compiler's code
}

// smScriptIs is by what a script is known.
type smScriptIs struct {
	function, source, shared uint64
	smExtent
}

// smExtent is where a script is in the source, in characters, without and with what stands before its parameters, and
// the line and column of the former.
type smExtent struct{ start, end, textStart, textEnd, line, column uint32 }

// smCode is code that was made of a script.
type smCode struct {
	vaddrRange        // empty: there is none
	of         uint64 // the BaselineScript or IonScript
}

// smCall is where the baseline compiler's code has called, and for what.
type smCall struct{ returns, bytecode uint32 }

// smCallee is what a frame's token stands for.
type smCallee struct {
	script  uint64
	checked time.Time
}

// smSource is a file.
type smSource struct {
	name    string
	at      uint64 // of its name
	checked time.Time
}

// scriptOf returns the script of a frame's token, nil where there is none.
func (vm *smVM) scriptOf(token uint64) *smScript {
	at := token &^ smTokenMask
	switch token & smTokenMask {
	case smTokenMask:
		return nil
	case smTokenScript:
		return vm.scriptAt(at)
	}
	now := time.Now()
	callee, known := vm.tokens[at]
	if !known || now.Sub(callee.checked) >= smInterval {
		callee = smCallee{vm.functionScript(at), now}
		if len(vm.tokens) >= maxSMTokens {
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
func (vm *smVM) functionScript(function uint64) uint64 {
	var raw [smFunctionBytes]byte
	if vm.classOf(function) != smFunctionClass || !vm.readNow(function, raw[:]) {
		return 0
	}
	le := binary.LittleEndian
	flags := le.Uint64(raw[smFunctionFlags:])
	if flags>>32 != smSmallInteger || flags&smHasScript == 0 {
		return 0
	}
	return le.Uint64(raw[smFunctionScript:])
}

// scriptAt returns a script, nil where there is none.
func (vm *smVM) scriptAt(at uint64) *smScript {
	s, now := vm.scripts[at], time.Now()
	if s != nil && now.Sub(s.checked) < smInterval {
		return s
	}
	var raw [smScriptBytes]byte
	if !isSMCell(at) || !vm.readNow(at, raw[:]) {
		return nil
	}
	le := binary.LittleEndian
	is := smScriptIs{function: le.Uint64(raw[smScriptFunction:]), source: le.Uint64(raw[smScriptSource:]), shared: le.Uint64(raw[smScriptShared:])}
	e := raw[smScriptExtent:]
	is.smExtent = smExtent{le.Uint32(e), le.Uint32(e[4:]), le.Uint32(e[8:]), le.Uint32(e[12:]), le.Uint32(e[16:]), le.Uint32(e[20:])}
	if s == nil || s.is != is {
		if s = vm.readScript(at, is); s == nil {
			delete(vm.scripts, at)
			return nil
		}
	}
	s.checked = now
	vm.readCode(s, le.Uint64(raw[smScriptWarmUp:]))
	return s
}

// readScript reads what a script is called, and where it is.
func (vm *smVM) readScript(at uint64, is smScriptIs) *smScript {
	if is.start > is.end || is.textStart > is.start || is.textEnd < is.end || is.line == 0 || vm.classOf(is.source) != smSourceClass {
		return nil
	}
	if is.function != 0 && vm.functionScript(is.function) != at {
		return nil
	}
	s := &smScript{at: at, is: is, function: &unwind.CodeFunction{Runtime: javaScript}}
	data, ok := vm.wordNow(is.shared + smSharedData)
	var head [8]byte
	if !ok || !isSMCell(is.shared) || data%4 != 0 || !vm.readNow(data, head[:]) {
		return nil
	}
	le := binary.LittleEndian
	optional, length := le.Uint32(head[smDataOptional:]), le.Uint32(head[smDataLength:])
	if length == 0 || length > maxSMCode || optional < smDataCode+length {
		return nil
	}
	s.bytecode = vaddrRange{data + smDataCode, data + smDataCode + uint64(length)}
	if !vm.nameScript(s) {
		return nil
	}
	vm.serial++
	s.serial = vm.serial
	vm.keep(smScriptKept + len(s.function.Name) + len(s.function.File))
	vm.scripts[at] = s
	return s
}

// smScriptKept is how many bytes a script takes, without its name and lines, about.
const smScriptKept = 512

// nameScript finds out what a script is called. It reports false where it has a name that cannot be read yet.
func (vm *smVM) nameScript(s *smScript) bool {
	f, base, name := s.function, "", ""
	f.File = vm.fileOf(s.is.source)
	if f.File != "" {
		f.StartLine = int(s.is.line)
		base = path.Base(f.File)
	}
	if s.is.function != 0 {
		if atom, ok := vm.wordNow(s.is.function + smFunctionAtom); ok && atom>>47 == smStringTag {
			if name = vm.text(atom & (maxSMAddress - 1)); name == "" && vm.latin1 == 0 {
				return false
			}
		}
	}
	switch {
	case isPrintable(name):
		f.Name, f.SystemName = name, name
	case s.is.function == 0 && strings.Contains(f.File, smEval):
		f.Name, f.SystemName = "<eval "+base+">", "<eval>"
	case s.is.function == 0 && base != "":
		f.Name, f.SystemName = "<module "+base+">", "<module>"
	case s.is.function == 0:
		f.Name, f.SystemName = "<module>", "<module>"
	case f.File == "":
		f.Name, f.SystemName = javaScriptWithoutName, javaScriptWithoutName
	default:
		f.Name, f.SystemName = fmt.Sprintf("%s %s:%d", javaScriptWithoutName, base, f.StartLine), javaScriptWithoutName
	}
	return true
}

// smEval is in the name of a file that was made of a text: behind that it is what that was for.
const smEval = " > eval"

// fileOf returns the name of the file that a ScriptSourceObject stands for, "" where there is none.
func (vm *smVM) fileOf(object uint64) string {
	src, now := vm.sources[object], time.Now()
	if src != nil && now.Sub(src.checked) < smInterval {
		return src.name
	}
	var slots [16]byte
	if !vm.readNow(object+smSourceSlots, slots[:]) {
		return ""
	}
	for b := slots[:]; len(b) >= 8; b = b[8:] {
		at, name := vm.sourceName(binary.LittleEndian.Uint64(b))
		if at == 0 {
			continue
		}
		vm.keep(smSourceKept + len(name))
		vm.sources[object] = &smSource{name: name, at: at, checked: now}
		return name
	}
	return ""
}

const smSourceKept = 128 // bytes that one takes, without its name, about

// sourceName returns the name of the file of a ScriptSource, and its SharedImmutableString: the first string from smSourceFirst on, of
// characters of 8 bits that end in 0, which is counted.
func (vm *smVM) sourceName(source uint64) (at uint64, name string) {
	var raw [smSourceBytes]byte
	if !isSMCell(source) || !vm.readNow(source, raw[:]) {
		return 0, ""
	}
	le := binary.LittleEndian
	for off := uint64(smSourceFirst); off+8 <= smSourceBytes; off += 8 {
		if vm.name != 0 && vm.name != off {
			continue
		}
		at := le.Uint64(raw[off:])
		var box [16]byte
		if !isSMCell(at) || !vm.readNow(at, box[:]) {
			continue
		}
		chars, n := le.Uint64(box[:]), le.Uint64(box[8:])
		if n < 2 || n > maxSMName || chars < 1<<12 || chars >= maxSMAddress {
			continue
		}
		text := make([]byte, n)
		if !vm.readNow(chars, text) || bytes.IndexByte(text, 0) != int(n)-1 || !isPrintable(string(text[:n-1])) {
			continue
		}
		vm.name = off
		return at, string(text[:n-1])
	}
	return 0, ""
}

// readCode finds the code that was made of a script.
func (vm *smVM) readCode(s *smScript, jit uint64) {
	s.baseline, s.ion = smCode{of: s.baseline.of}, smCode{of: s.ion.of}
	if s.jit = jit; !isSMCell(jit) {
		return
	}
	var raw [smJITScriptBytes]byte
	if !vm.readNow(jit, raw[:]) {
		return
	}
	le := binary.LittleEndian
	for off := uint64(0); off+16 <= smJITScriptBytes; off += 8 {
		if vm.baseline != 0 && vm.baseline != off {
			continue
		}
		baseline, ion := le.Uint64(raw[off:]), le.Uint64(raw[off+8:])
		if ion > smLastMark && !isSMCell(ion) {
			continue
		}
		code, _ := vm.wordNow(baseline)
		made := vm.codeAt(code)
		if !isSMCell(baseline) || made.end == 0 {
			continue
		}
		vm.baseline = off
		if s.baseline.of != baseline {
			s.calls = nil
		}
		if s.baseline = (smCode{made, baseline}); s.calls == nil {
			s.calls = vm.readCalls(s)
		}
		if ion > smLastMark {
			s.ion = smCode{vm.ionCode(ion), ion}
		}
		return
	}
}

// smLastMark is the last small number that stands for an IonScript that is not there yet, or never will be.
const smLastMark = 8

// ionCode returns the code of an IonScript.
func (vm *smVM) ionCode(ion uint64) vaddrRange {
	var raw [smIonBytes]byte
	if !vm.readNow(ion, raw[:]) {
		return vaddrRange{}
	}
	for off := uint64(0); off < smIonBytes; off += 8 {
		if vm.ion != 0 && vm.ion != off+1 {
			continue
		}
		if made := vm.codeAt(binary.LittleEndian.Uint64(raw[off:])); made.end != 0 {
			vm.ion = off + 1
			return made
		}
	}
	return vaddrRange{}
}

// codeAt returns the instructions of a JitCode, which stands before these. It is empty where there is none.
func (vm *smVM) codeAt(cell uint64) vaddrRange {
	var raw [smCodeSize + 4]byte
	if !isSMCell(cell) || !vm.readNow(cell, raw[:]) {
		return vaddrRange{}
	}
	le := binary.LittleEndian
	start, size := le.Uint64(raw[:]), uint64(le.Uint32(raw[smCodeSize:]))
	if start%8 != 0 || start >= maxSMAddress || start < 1<<12 || size == 0 || size > maxSMCode {
		return vaddrRange{}
	}
	if back, ok := vm.wordNow(start - smCodeCell); !ok || back != cell {
		return vaddrRange{}
	}
	return vaddrRange{start, start + size}
}

// readCalls reads where code of the baseline compiler returns to, in order.
func (vm *smVM) readCalls(s *smScript) []smCall {
	var ends [8]byte
	if !vm.readNow(s.baseline.of+smBaselineReturns, ends[:]) {
		return nil
	}
	le := binary.LittleEndian
	from, to := le.Uint32(ends[:]), le.Uint32(ends[4:])
	if from >= to || (to-from)%8 != 0 || (to-from)/8 > maxSMCalls || from > smIonBytes<<10 {
		return nil
	}
	raw := make([]byte, to-from)
	if !vm.readNow(s.baseline.of+uint64(from), raw) {
		return nil
	}
	const bytecodeMask = 1<<28 - 1 // what is above is what kind of call it is
	calls := make([]smCall, 0, len(raw)/8)
	last := uint32(0)
	for b := raw; len(b) >= 8; b = b[8:] {
		c := smCall{le.Uint32(b), le.Uint32(b[4:]) & bytecodeMask}
		if c.returns <= last || uint64(c.returns) > s.baseline.end-s.baseline.start || uint64(c.bytecode) >= s.bytecode.end-s.bytecode.start {
			return nil
		}
		last = c.returns
		calls = append(calls, c)
	}
	vm.keep(len(raw))
	return calls
}
