package php

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// function is a function of PHP, or one that is written in C, or what a file does itself.
type function struct {
	*unwind.CodeFunction
	serial    uint32 // changes with it
	isUser    bool
	isFile    bool // it is what a file does itself
	isClosure bool
	ofRequest bool          // it ends with the request
	seen      int           // how often it was found again after that
	head      [phpHead]byte // of its zend_function, as it was
	opcodes   mcode.Range
	checked   time.Time
	period    uint64 // in which it was given to addInner
}

// runtime is the CodeFunction.Runtime of PHP.
const runtime = "php"

// others is what stands for functions whose frames were not copied, and notRead for one that was
// gone before it was looked at.
var (
	others  = function{CodeFunction: &unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: runtime}}
	notRead = function{CodeFunction: &unwind.CodeFunction{Name: "[not read]", SystemName: "[not read]", Runtime: runtime}, serial: 1}
)

// functionOf returns what is known of the function of a frame, which runs an instruction of it, or
// one that is not known (0); nil when it is none any more.
func (vm *machine) functionOf(f *frame, opline uint64) *function {
	if f.function == notCopied {
		return &others
	}
	now, fn := vm.now, vm.known[f.function]
	if fn == nil || now.Sub(fn.checked) >= checkInterval || !fn.has(opline) {
		// A closure has a function of its own, which ends with it. Its instructions remain. But
		// the register may have an instruction of a function that has just returned to this one.
		if is := vm.innerAt(opline); is != nil && is.has(f.opline) {
			return is
		}
		runs := vm.running[opline]
		if runs != nil && !runs.has(f.opline) {
			runs = nil
		}
		if runs != nil && now.Sub(runs.checked) < checkInterval && vm.stays(runs) {
			return runs
		}
		fn = vm.look(f.function, fn, now)
		// While an exception is thrown, and before the function of __call is found, instructions
		// of the interpreter's own run.
		if fn == nil || !fn.has(opline) && opline-vm.globals.Start >= vm.globals.End-vm.globals.Start {
			if runs != nil && now.Sub(runs.checked) < runningInterval && vm.stays(runs) {
				return runs
			}
			if is := vm.sharedAt(opline); is != nil && is.has(f.opline) {
				return is
			}
			return nil
		}
	}
	if vm.stays(fn) || !vm.isSampled && vm.runsStill(f) {
		return fn
	}
	return nil
}

// has reports whether an instruction may be of the function.
func (fn *function) has(opline uint64) bool {
	return !fn.isUser || opline == 0 || opline-fn.opcodes.Start < fn.opcodes.End-fn.opcodes.Start
}

// look reads the function at an address, where there was a known one; nil is none.
func (vm *machine) look(at uint64, known *function, now time.Time) *function {
	head := &vm.head
	if vm.looks--; vm.looks < 0 || at%8 != 0 || !vm.ReadNow(at, head[:]) {
		return known
	}
	if known != nil && same(vm.fields, &known.head, head) && (vm.once || !known.ofRequest) {
		known.checked = now
		vm.addInner(known)
		return known
	}
	// A closure that is being made has no class yet, and is whole by the time of another look.
	if !vm.ReadNow(at, head[:]) {
		return known
	}
	fn := vm.readFunction(head)
	switch {
	case fn == nil:
	case known == nil || known.isClosure || !known.ofRequest:
	case known.Name == fn.Name && known.File == fn.File && known.opcodes == fn.opcodes:
		known.checked = now
		known.seen++
		return known
	default:
		vm.changes = true
	}
	if len(vm.known) >= maxFunctions || vm.Kept >= vmread.MaxKept {
		vm.forget()
	}
	if fn != nil {
		fn.checked = now
		vm.Kept += fn.bytes()
		vm.addInner(fn)
	}
	vm.known[at] = fn
	return fn
}

// forget forgets the functions that are kept, but for those that frames had lately.
func (vm *machine) forget() {
	clear(vm.known)
	clear(vm.running)
	vm.inner, vm.Kept = nil, 0
	vm.period++
}

// bytes is how much of it is kept, about.
func (fn *function) bytes() int { return len(fn.Name) + len(fn.File) }

// stays reports whether a function is what it was when it ran: it lives as long as the process, or
// is in the same place for all requests.
func (vm *machine) stays(fn *function) bool {
	const often = 3
	return vm.once || !fn.ofRequest || !vm.changes && fn.seen >= often
}

// runsStill reports whether a frame is still what it was, and so its function.
func (vm *machine) runsStill(f *frame) bool {
	b, le := &vm.frameBuf, binary.LittleEndian
	return vm.ReadNow(f.at, b[:]) && le.Uint64(b[phpFunc:]) == f.function && le.Uint64(b[phpPrevious:]) == f.previous
}

// isOnce reports whether the process runs a script and ends: functions stay until then.
func (vm *machine) isOnce() bool {
	at, _ := vm.WordNow(vm.sapi)
	var name [4]byte
	return at != 0 && vm.ReadNow(at, name[:]) && string(name[:]) == "cli\x00"
}

// ofRequest reports whether memory is of the heap that ends with a request: at the beginning of
// each of its pieces is where it is described, which is in the first of them.
func (vm *machine) ofRequest(at uint64) bool {
	const piece, heap = 2 << 20, 64
	described, _ := vm.WordNow(at &^ (piece - 1))
	first := described &^ (piece - 1)
	is, _ := vm.WordNow(first)
	return described != 0 && described == is && described-first == heap
}

// addInner notes functions that are found by their instructions, which stay when they end: the
// closures of one that is known to, and what a file does itself.
func (vm *machine) addInner(fn *function) {
	f, le := vm.fields, binary.LittleEndian
	if fn.period == vm.period {
		return
	}
	fn.period = vm.period
	if fn.isUser && fn.isFile && !fn.ofRequest && len(vm.inner) < maxInner {
		if i, known := slices.BinarySearchFunc(vm.inner, fn.opcodes.Start, byOpcodes); !known {
			vm.inner = slices.Insert(vm.inner, i, fn)
			vm.share(fn)
		}
	}
	if f.closures == 0 || !fn.isUser || fn.head[phpType] == eval || fn.ofRequest && (!vm.once || fn.isClosure || fn.isFile) {
		return
	}
	n, list := min(le.Uint32(fn.head[f.closureCount:]), maxClosures), le.Uint64(fn.head[f.closures:])
	for ; n > 0 && len(vm.inner) < maxInner && vm.Kept < vmread.MaxKept; n, list = n-1, list+8 {
		at, ok := vm.WordNow(list)
		if !ok {
			return
		}
		var head [phpHead]byte
		if at%8 != 0 || !vm.ReadNow(at, head[:]) {
			continue
		}
		if le.Uint64(head[phpScope:]) == 0 { // it is given the class of what makes it, if not another
			copy(head[phpScope:phpScope+8], fn.head[phpScope:])
		}
		inner := vm.readFunction(&head)
		if inner == nil || !inner.isUser || inner.ofRequest != fn.ofRequest {
			continue
		}
		i, known := slices.BinarySearchFunc(vm.inner, inner.opcodes.Start, byOpcodes)
		if known {
			continue
		}
		vm.inner = slices.Insert(vm.inner, i, inner)
		vm.Kept += inner.bytes()
		inner.isClosure = false // what it has itself stays as well
		vm.addInner(inner)
	}
}

func byOpcodes(fn *function, at uint64) int { return cmp.Compare(fn.opcodes.Start, at) }

// innerAt returns the closure that an instruction is of, nil when it is not known.
func (vm *machine) innerAt(opline uint64) *function {
	i, is := slices.BinarySearchFunc(vm.inner, opline, byOpcodes)
	if !is {
		i--
	}
	if opline == 0 || i < 0 || !vm.inner[i].has(opline) {
		return nil
	}
	return vm.inner[i]
}

// same reports whether a function is what it was.
func same(f *fields, a, b *[phpHead]byte) bool {
	same := func(at uint64) bool { return [8]byte(a[at:]) == [8]byte(b[at:]) }
	if a[phpType] != b[phpType] || !same(phpName) || !same(phpScope) {
		return false
	}
	return a[phpType] == internal || same(f.opcodes) && same(f.fileName) && [4]byte(a[f.last:]) == [4]byte(b[f.last:])
}

// readFunction reads a function, nil when it is none.
func (vm *machine) readFunction(head *[phpHead]byte) *function {
	f, le := vm.fields, binary.LittleEndian
	fn := &function{CodeFunction: &unwind.CodeFunction{Runtime: runtime}, head: *head}
	name := ""
	if at := le.Uint64(head[phpName:]); at != 0 {
		if name = vm.text(at); name == "" {
			return nil
		}
	}
	switch head[phpType] {
	case internal:
		if name == "" {
			return nil
		}
	case user, eval:
		fn.isUser = true
		start, n := le.Uint64(head[f.opcodes:]), uint64(le.Uint32(head[f.last:]))
		if start == 0 || start%8 != 0 || n == 0 || n > maxOps {
			return nil
		}
		fn.opcodes = mcode.Range{Start: start, End: start + n*phpOpSize}
		fn.ofRequest, fn.isFile, fn.isClosure = vm.ofRequest(start), name == "", strings.HasPrefix(name, "{closure")
		if fn.File = vm.text(le.Uint64(head[f.fileName:])); fn.File == "" {
			return nil
		}
		fn.StartLine = int(int32(le.Uint32(head[f.firstLine:])))
	default:
		return nil
	}
	if class := le.Uint64(head[phpScope:]); class != 0 && name != "" {
		at, ok := vm.WordNow(class + phpClassName)
		of := ""
		if ok {
			of = vm.text(at)
		}
		if of == "" {
			return nil
		}
		name = of + "::" + name
	}
	if name == "" {
		name = fileName(fn.File)
	}
	fn.serial, fn.Name, fn.SystemName = vm.nextSerial(), name, name
	return fn
}

// nextSerial returns a number for another function.
func (vm *machine) nextSerial() uint32 {
	vm.serial = max(vm.serial, notRead.serial) + 1
	return vm.serial
}

// fileName is the name of what a file does itself, or the text that is given to eval in one.
func fileName(file string) string {
	if at, is := strings.CutSuffix(file, " : eval()'d code"); is {
		return "<eval " + path.Base(at) + ">"
	}
	return "<file " + path.Base(file) + ">"
}

// text reads a zend_string, up to a byte that is 0, as names of classes without a name have one;
// "" when it is none that is as usual.
func (vm *machine) text(at uint64) string {
	var head [phpStringData]byte
	if at == 0 || at%8 != 0 || !vm.ReadNow(at, head[:]) {
		return ""
	}
	n := binary.LittleEndian.Uint64(head[phpStringSize:])
	if n == 0 || n > maxName {
		return ""
	}
	b := make([]byte, n)
	if !vm.ReadNow(at+phpStringData, b) {
		return ""
	}
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	text := vmread.ValidText(b)
	if !vmread.IsPrintable(text) {
		return ""
	}
	return text
}

// number returns the number of a function at an instruction, which is called by that of another
// number in the same frame; 0 when there is no room.
func (vm *machine) number(codes *unwind.Codes, fn *function, opline uint64, outer uint32, isCompiled bool) uint32 {
	if opline-fn.opcodes.Start >= fn.opcodes.End-fn.opcodes.Start {
		opline = 0
	}
	key := code{fn.serial, isCompiled, outer, opline}
	n, ok := vm.codes[key]
	if !ok && len(vm.codes) < maxCodes {
		n = codes.Add(0, []unwind.CodeLine{{CodeFunction: fn.CodeFunction, Line: vm.line(opline), IsCompiled: isCompiled}}, outer)
		vm.codes[key] = n
		if opline != 0 {
			vm.running[opline] = fn
		}
	}
	return n
}

// recentOf returns what is known of a frame that runs an instruction and is called by what has another
// number: without a function where it was not met lately.
func (vm *machine) recentOf(f *frame, opline uint64, outer uint32, isCompiled bool) *recent {
	h := (f.function ^ opline<<7 ^ uint64(outer)<<32) * 0x9e3779b97f4a7c15
	r := &vm.recent[h>>(64-recentBits)]
	if r.function != f.function || r.opline != opline || r.saved != f.opline || r.outer != outer || r.isCompiled != isCompiled {
		*r = recent{function: f.function, opline: opline, saved: f.opline, outer: outer, isCompiled: isCompiled}
	}
	return r
}

// line returns the line of an instruction, 0 when it is not known.
func (vm *machine) line(opline uint64) int {
	var b [4]byte
	if opline == 0 || opline%8 != 0 || !vm.ReadNow(opline+phpOpLine, b[:]) {
		return 0
	}
	return int(max(0, int32(binary.LittleEndian.Uint32(b[:]))))
}
