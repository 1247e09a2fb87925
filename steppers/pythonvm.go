package steppers

import (
	"encoding/binary"
	"path"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// CPython keeps of each thread (pycore_pystate.h, pycore_frame.h):
//
//	PyThreadState         the frame that runs, or a _PyCFrame with it; and where the thread's
//	                      stack of frames is, [datastack_chunk, datastack_top)
//	_PyCFrame             on the C stack, one for each call of the interpreter's function; to 3.12
//	_PyInterpreterFrame   the code object, the instruction, and the frame before: of functions, and
//	                      from 3.12 on one on the C stack, for each call of the interpreter's function

// pythonFields are the offsets of fields in CPython's structures.
type pythonFields struct {
	interpreters             uint64 // of _PyRuntime, the first interpreter
	nextInterpreter, threads uint64 // of a PyInterpreterState
	debugOffsets             bool   // _PyRuntime tells these itself

	nextThread          uint64 // of a PyThreadState
	id                  uint64 // the kernel's number of the thread; with isObject its thread pointer
	current             uint64 // its _PyCFrame or its frame,
	chunk, top          uint64 // and its stack
	threadBytes         uint64
	hasCFrame           bool
	cFrame, outerCFrame uint64 // of a _PyCFrame, its frame and the one before

	code, instruction, previous uint64 // of a frame
	owner                       uint64
	isEntry                     uint64 // 0: there is none
	isObject                    bool   // frames are objects, one for each call of the interpreter's function

	fileName, qualName, firstLine uint64 // of a code object
	lineTable, bytecode           uint64
	lines                         func(table []byte, first, instruction int) int // reads the lineTable

	asciiBytes, compactBytes uint64 // of a str, what is before its characters
}

// pythonVersions are the fields by version, major and minor in a byte each. Releases of a
// version have the same but for those that debugOffsets is for.
var pythonVersions = map[uint32]*pythonFields{
	0x0307: pythonOfObjects(pythonFields{interpreters: 24, instruction: 104, fileName: 96, qualName: 104, firstLine: 36, lineTable: 112, lines: pythonLineOld}),
	0x0308: pythonOfObjects(pythonFields{interpreters: 32, instruction: 104, fileName: 104, qualName: 112, firstLine: 40, lineTable: 120, lines: pythonLineOld}),
	0x0309: pythonOfObjects(pythonFields{interpreters: 32, instruction: 104, fileName: 104, qualName: 112, firstLine: 40, lineTable: 120, lines: pythonLineOld}),
	0x030a: pythonOfObjects(pythonFields{interpreters: 32, instruction: 96, fileName: 104, qualName: 112, firstLine: 40, lineTable: 120, lines: pythonLine310}),
	0x030b: {
		interpreters: 40, nextInterpreter: 0, threads: 16, nextThread: 8, id: 160, current: 56, chunk: 296, top: 304, threadBytes: 312,
		hasCFrame: true, cFrame: 8, outerCFrame: 16, code: 32, instruction: 56, previous: 48, isEntry: 68, owner: 69,
		fileName: 112, qualName: 128, firstLine: 72, lineTable: 136, bytecode: 184, asciiBytes: 48, compactBytes: 72, lines: pythonLine,
	},
	0x030c: {
		interpreters: 40, nextInterpreter: 0, threads: 72, nextThread: 8, id: 144, current: 56, chunk: 232, top: 240, threadBytes: 248,
		hasCFrame: true, cFrame: 0, outerCFrame: 8, code: 0, instruction: 56, previous: 8, owner: 70,
		fileName: 112, qualName: 128, firstLine: 68, lineTable: 136, bytecode: 192, asciiBytes: 40, compactBytes: 56, lines: pythonLine,
	},
	0x030d: {
		debugOffsets: true, nextThread: 8, id: 160, current: 72, chunk: 232, top: 240, threadBytes: 248,
		code: 0, instruction: 56, previous: 8, owner: 70,
		fileName: 112, qualName: 128, firstLine: 68, lineTable: 136, bytecode: 200, asciiBytes: 40, compactBytes: 56, lines: pythonLine,
	},
}

// frameBytes and objectBytes are as much of a frame as all fields are in.
const (
	frameBytes  = 72
	objectBytes = 112
)

func (f *pythonFields) frameBytes() int {
	if f.isObject {
		return objectBytes
	}
	return frameBytes
}

// Owners of frames.
const ownedByCStack = 3

// pythonVM is what is known of the interpreter of a process.
type pythonVM struct {
	image    *procstate.Image
	bias     uint64
	fields   *pythonFields
	runtime  uint64
	codeType uint64

	mem      procstate.Memory
	captured procstate.CapturedMemory // nil where mem is all there is
	live     procstate.LiveMemory     // nil where mem is live

	threads []pythonThread
	listed  time.Time // when they were

	walk  uint64 // the calls are those of this walk
	begun uint64 // the last walk in which a call of the interpreter's function begins, which may have said so or not
	calls []pythonCalls
	found []pythonFrame // frames of all calls
	left  int           // frames that may still be read

	objects       []uint64 // PyFrameObjects, those of found
	next          int      // of these, the first that no frame on the C stack was found for yet
	above         uint64   // where that frame ends which was found last
	threadPointer uint64   // of the thread

	lacks      bool                // what the thread runs was not captured
	lacksFrame bool                // a frame was not
	asked      map[int]pythonAsked // for threads, see LackedFrames

	codes  map[pythonCode]uint32 // numbers in unwind.Codes
	resets int                   // of these
	known  map[uint64]*pythonFunction
	serial uint32
}

// pythonThread is a PyThreadState, and which thread it is of.
type pythonThread struct{ addr, id uint64 }

// pythonAsked is when it was asked last where a thread's frames are, and whether frames that are
// in no stack were wanted.
type pythonAsked struct {
	at      time.Time
	follows bool
}

// pythonCalls are the functions that run in one call of the interpreter's function, which has
// a place on the C stack at an address: found[first:end], innermost first.
type pythonCalls struct {
	at         uint64
	first, end int
}

// pythonFrame is a frame of a function.
type pythonFrame struct{ code, instruction uint64 }

// pythonCode is an instruction of a function, and the number of what that is called by.
type pythonCode struct {
	function    uint32
	instruction int32
	outer       uint32
}

// pythonFunction is a code object.
type pythonFunction struct {
	unwind.CodeFunction
	serial    uint32 // changes with it
	object    uint64
	head      [pythonCodeBytes]byte // of the object, as it was
	lineTable []byte
	checked   time.Time
}

// pythonRuntime is the CodeFunction.Runtime of Python.
const pythonRuntime = "python"

// pythonNotCopied is what stands for functions whose frames were not copied.
var pythonNotCopied = pythonFunction{CodeFunction: unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: pythonRuntime}}

// pythonCodeBytes is as much of a code object as all fields are in.
const pythonCodeBytes = 144

// Limits on what is read.
const (
	maxPythonThreads      = 1 << 14
	maxPythonFrames       = 1 << 14 // of a thread
	maxPythonCalls        = 1 << 12 // of the interpreter's function
	maxPythonFunctions    = 1 << 15
	maxPythonCodes        = 1 << 18
	maxPythonName         = 1 << 10 // characters
	maxPythonLines        = 1 << 20 // bytes of a table
	pythonThreadsInterval = 100 * time.Millisecond
	pythonCodeInterval    = time.Second // after which a code object is looked at again
)

func newPythonVM(w *unwind.Walker, m *procstate.Mapping, p *pythonImage) *pythonVM {
	vm := &pythonVM{
		image: m.Image, bias: m.Bias, fields: p.fields, runtime: p.runtime + m.Bias, codeType: p.codeType + m.Bias,
		mem: w.ProcessState(), known: map[uint64]*pythonFunction{}, asked: map[int]pythonAsked{},
	}
	vm.captured, _ = w.ProcessState().(procstate.CapturedMemory)
	vm.live, _ = w.ProcessState().(procstate.LiveMemory)
	return vm
}

// codeOf returns the number of the functions that run in a frame of the interpreter's
// function, up to cfa on the C stack; 0 when that is not known.
func (vm *pythonVM) codeOf(w *unwind.Walker, in *unwind.Frame, cfa uint64) uint32 {
	sp := in.SP()
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[pythonCode]uint32{}, codes.Resets()
	}
	if vm.fields.isObject {
		return vm.objectCode(w, in, cfa)
	}
	if vm.walk != w.Walks() {
		vm.walk = w.Walks()
		vm.readThread(sp)
	}
	for i := range vm.calls {
		if c := &vm.calls[i]; c.at-sp < cfa-sp {
			return vm.number(codes, vm.found[c.first:c.end])
		}
	}
	return 0
}

// number returns the number of functions that call each other, innermost first.
func (vm *pythonVM) number(codes *unwind.Codes, frames []pythonFrame) (number uint32) {
	for i := len(frames) - 1; i >= 0; i-- {
		f := &frames[i]
		fn := &pythonNotCopied
		if f.code != notCopied {
			fn = vm.function(f.code)
		}
		if fn == nil {
			continue // a frame that is being made
		}
		key := pythonCode{fn.serial, -1, number}
		if off := f.instruction - f.code - vm.fields.bytecode; off < 1<<30 {
			key.instruction = int32(off)
		}
		n, ok := vm.codes[key]
		if !ok && len(vm.codes) < maxPythonCodes {
			line := unwind.CodeLine{CodeFunction: &fn.CodeFunction, Line: vm.fields.lines(fn.lineTable, fn.StartLine, int(key.instruction))}
			n = codes.Add(0, []unwind.CodeLine{line}, number)
			vm.codes[key] = n
		}
		if n == 0 {
			return 0 // there is no room: rather none than some
		}
		number = n
	}
	return number
}

// read reads memory as it was at the moment of the capture.
func (vm *pythonVM) read(addr uint64, buf []byte) bool {
	if vm.captured != nil {
		return vm.captured.ReadCaptured(addr, buf)
	}
	n, err := vm.mem.ReadMemory(addr, buf)
	return err == nil && n == len(buf)
}

// readNow reads memory as it is now.
func (vm *pythonVM) readNow(addr uint64, buf []byte) bool {
	if vm.live != nil {
		return vm.live.ReadLive(addr, buf) == len(buf)
	}
	n, err := vm.mem.ReadMemory(addr, buf)
	return err == nil && n == len(buf)
}

func (vm *pythonVM) word(addr uint64) (uint64, bool) {
	var b [8]byte
	ok := vm.read(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), ok
}

func (vm *pythonVM) wordNow(addr uint64) (uint64, bool) {
	var b [8]byte
	ok := vm.readNow(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), ok
}

// readThread finds out which functions the thread runs whose C stack sp is on.
func (vm *pythonVM) readThread(sp uint64) {
	if !vm.readCalls(sp) && vm.list() {
		vm.readCalls(sp)
	}
}

// list lists the threads, if that was not done just before.
func (vm *pythonVM) list() bool {
	if time.Since(vm.listed) < pythonThreadsInterval {
		return false
	}
	vm.threads, vm.listed = pythonThreads(vm.fields, vm.runtime, vm.wordNow), time.Now()
	return true
}

// LackedFrames is where the interpreter keeps the frames of a thread: see loader.ThreadFrames.
type LackedFrames struct {
	Current, Bounds uint64
	Bytes           int
	IsFrame         bool
	First, Previous int
}

// LackedFrames returns where the interpreter keeps the frames of a thread, if the last walk has
// met the interpreter and the capture had not copied them, or not those that are in no stack, as
// those of generators. It is the zero value when that cannot be found out yet.
func (s *Python) LackedFrames(w *unwind.Walker, tid int) (frames LackedFrames, lacks bool) {
	vm, _ := w.Kept(s).(*pythonVM)
	if vm == nil || vm.walk != w.Walks() || !vm.lacks && !vm.lacksFrame {
		return frames, false
	}
	asked, again := vm.asked[tid]
	switch {
	case again && time.Since(asked.at) < pythonThreadsInterval, again && !vm.lacks && asked.follows:
		return frames, vm.lacks
	case len(vm.asked) >= maxPythonThreads:
		clear(vm.asked)
	}
	asked.at, asked.follows = time.Now(), asked.follows || vm.lacksFrame
	vm.asked[tid] = asked
	f, id := vm.fields, vm.threadPointer
	if !f.isObject {
		id = uint64(procstate.ThreadInNamespace(tid))
	}
	for {
		for _, t := range vm.threads {
			if t.id != id {
				continue
			}
			frames = LackedFrames{Current: t.addr + f.current, IsFrame: !f.hasCFrame, First: int(f.cFrame), Previous: int(f.previous)}
			if !f.isObject {
				frames.Bounds = t.addr + f.chunk
			}
			if asked.follows || f.isObject {
				frames.Bytes = f.frameBytes()
			}
			return frames, true
		}
		if !vm.list() {
			return frames, true
		}
	}
}

// Knows reports whether walks of a Walker have met the interpreter.
func (s *Python) Knows(w *unwind.Walker) bool { return w.Kept(s) != nil }

// readCalls is readThread for the threads that are known.
func (vm *pythonVM) readCalls(sp uint64) bool {
	best, at, captured := uint64(0), uint64(onStack), 0
	for _, t := range vm.threads {
		if _, ok := vm.word(t.addr + vm.fields.current); ok {
			captured++
		}
	}
	vm.lacks, vm.lacksFrame = vm.captured != nil, false
	for _, t := range vm.threads {
		current, ok := vm.word(t.addr + vm.fields.current)
		vm.lacks = vm.lacks && !ok
		if ok && vm.callsOf(current, sp, captured == 1) && vm.lowest(sp) < at {
			best, at = current, vm.lowest(sp) // stacks of others are above that
		}
	}
	if best == 0 {
		vm.calls = vm.calls[:0]
		return false
	}
	return vm.callsOf(best, sp, captured == 1)
}

// onStack is how far above SP what the interpreter has on the C stack may be: it is in the
// frame of its function, or of one that was called by others that it called.
const onStack = 8 << 20

// beforeFirst is how far below the first frame that is asked for there may be another, of a
// call that begins.
const beforeFirst = 16 << 10

// lowest returns how far above sp the first of the calls is.
func (vm *pythonVM) lowest(sp uint64) uint64 {
	for i := range vm.calls {
		if at := vm.calls[i].at; at >= sp {
			return at - sp
		}
	}
	return onStack
}

// callsOf follows the frames of a thread from the one that runs. It returns whether the thread
// may be the one whose C stack sp is on, as it is when it is alone.
func (vm *pythonVM) callsOf(current, sp uint64, alone bool) bool {
	vm.calls, vm.found, vm.left = vm.calls[:0], vm.found[:0], maxPythonFrames
	f := vm.fields
	above := sp - min(sp, beforeFirst)
	if !f.hasCFrame {
		for frame := current; frame != 0 && len(vm.calls) < maxPythonCalls; {
			first := len(vm.found)
			at, next, ok := vm.call(frame)
			if !ok && first == 0 && len(vm.found) > 0 && alone && vm.begun != vm.walk {
				at, ok = sp, true // the first frame that is asked for is that of the call
			}
			if !ok || at < above || at-above >= onStack {
				vm.found = vm.found[:first]
				break
			}
			vm.calls = append(vm.calls, pythonCalls{at, first, len(vm.found)})
			frame, above = next, at+1
		}
		return len(vm.calls) > 0
	}
	for at := current; at >= above && at-above < onStack && len(vm.calls) < maxPythonCalls; {
		frame, ok := vm.word(at + f.cFrame)
		if !ok {
			break
		}
		first := len(vm.found)
		vm.call(frame)
		vm.calls = append(vm.calls, pythonCalls{at, first, len(vm.found)})
		above = at + 1
		at, _ = vm.word(at + f.outerCFrame)
	}
	return len(vm.calls) > 0
}

// call finds the functions of one call of the interpreter's function, from the frame that
// runs on. at is the address of the frame on the C stack that ends them, where it is one, and
// next the frame that comes then. ok is false when there are others, which were not copied: then
// the last one found stands for these.
func (vm *pythonVM) call(frame uint64) (at, next uint64, ok bool) {
	f, first := vm.fields, len(vm.found)
	var b [frameBytes]byte
	for ; frame != 0 && vm.left > 0; vm.left-- {
		if !vm.read(frame, b[:]) {
			vm.lacksFrame = vm.captured != nil
			break
		}
		word := func(off uint64) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
		previous := word(f.previous)
		if f.isEntry == 0 && b[f.owner] == ownedByCStack {
			return frame, previous, true
		}
		vm.found = append(vm.found, pythonFrame{word(f.code), word(f.instruction)})
		if f.isEntry != 0 && b[f.isEntry] != 0 {
			return 0, previous, true
		}
		frame = previous
	}
	if vm.left == 0 {
		vm.found = vm.found[:first] // in a circle
	} else {
		vm.found = append(vm.found, pythonFrame{notCopied, 0})
	}
	return 0, 0, false
}

// notCopied stands for the code object of frames that cannot be read.
const notCopied = ^uint64(0)

// pythonThreads lists the PyThreadStates of all interpreters.
func pythonThreads(f *pythonFields, runtime uint64, word func(addr uint64) (uint64, bool)) (threads []pythonThread) {
	firstInterpreter, nextInterpreter, first := f.interpreters, f.nextInterpreter, f.threads
	if f.debugOffsets {
		const freeThreaded, head, next, threads = 16, 40, 64, 72
		free, ok := word(runtime + freeThreaded)
		firstInterpreter, _ = word(runtime + head)
		nextInterpreter, _ = word(runtime + next)
		if first, _ = word(runtime + threads); !ok || free != 0 {
			return nil
		}
	}
	interpreter, _ := word(runtime + firstInterpreter)
	for n := 0; interpreter != 0 && n < maxPythonThreads; n++ {
		t, _ := word(interpreter + first)
		for t != 0 && len(threads) < maxPythonThreads {
			id, _ := word(t + f.id)
			threads = append(threads, pythonThread{t, id})
			t, _ = word(t + f.nextThread)
		}
		interpreter, _ = word(interpreter + nextInterpreter)
	}
	return threads
}

// function returns what is known of a code object, nil when it is none.
func (vm *pythonVM) function(object uint64) *pythonFunction {
	fn, known := vm.known[object]
	now := time.Now()
	if known && fn != nil && now.Sub(fn.checked) < pythonCodeInterval {
		return fn
	}
	var head [pythonCodeBytes]byte
	if object%8 != 0 || !vm.readNow(object, head[:]) {
		return fn // it has ended, or is none
	}
	if fn != nil && sameCode(vm.fields, &fn.head, &head) {
		fn.checked = now
		return fn
	}
	if len(vm.known) >= maxPythonFunctions {
		clear(vm.known)
	}
	fn = vm.readFunction(object, &head)
	if fn != nil {
		fn.checked = now
	}
	vm.known[object] = fn
	return fn
}

// sameCode reports whether a code object is what it was.
func sameCode(f *pythonFields, a, b *[pythonCodeBytes]byte) bool {
	for _, at := range [...]uint64{8, f.fileName, f.qualName, f.lineTable} {
		if [8]byte(a[at:]) != [8]byte(b[at:]) {
			return false
		}
	}
	return [4]byte(a[f.firstLine:]) == [4]byte(b[f.firstLine:])
}

// readFunction reads a code object, nil when it is none.
func (vm *pythonVM) readFunction(object uint64, head *[pythonCodeBytes]byte) *pythonFunction {
	f, le := vm.fields, binary.LittleEndian
	const typeOf = 8
	if le.Uint64(head[typeOf:]) != vm.codeType {
		return nil
	}
	name, ok := vm.text(le.Uint64(head[f.qualName:]))
	if !ok || !isPrintable(name) {
		return nil
	}
	file, _ := vm.text(le.Uint64(head[f.fileName:]))
	if !isPrintable(file) {
		file = ""
	}
	vm.serial++
	fn := &pythonFunction{serial: vm.serial, object: object, head: *head}
	fn.CodeFunction = unwind.CodeFunction{Name: name, SystemName: name, File: file, StartLine: int(int32(le.Uint32(head[f.firstLine:]))), Runtime: pythonRuntime}
	if name == "<module>" && file != "" { // there is one in each file
		fn.Name = "<module " + path.Base(file) + ">"
	}
	fn.lineTable = vm.bytes(le.Uint64(head[f.lineTable:]))
	return fn
}

// bytes reads an object of the type bytes; nil when it is none.
func (vm *pythonVM) bytes(object uint64) []byte {
	const size, data = 16, 32
	n, ok := vm.wordNow(object + size)
	if !ok || n > maxPythonLines {
		return nil
	}
	b := make([]byte, n)
	if !vm.readNow(object+data, b) {
		return nil
	}
	return b
}

// text reads an object of the type str. ok is false where it is none that is as usual.
func (vm *pythonVM) text(object uint64) (text string, ok bool) {
	const length, state = 16, 32
	f, le := vm.fields, binary.LittleEndian
	var head [state + 4]byte
	if object == 0 || !vm.readNow(object, head[:]) {
		return "", false
	}
	n, is := le.Uint64(head[length:]), le.Uint32(head[state:])
	kind, compact, ascii := uint64(is>>2&7), is>>5&1 != 0, is>>6&1 != 0
	if n > maxPythonName || !compact || kind != 1 && kind != 2 && kind != 4 {
		return "", false
	}
	at := object + f.compactBytes
	if ascii {
		at = object + f.asciiBytes
	}
	b := make([]byte, n*kind)
	if !vm.readNow(at, b) {
		return "", false
	}
	if ascii {
		return string(b), true
	}
	var out strings.Builder
	for i := uint64(0); i < n; i++ {
		switch kind {
		case 1:
			out.WriteRune(rune(b[i]))
		case 2:
			out.WriteRune(rune(le.Uint16(b[2*i:])))
		case 4:
			out.WriteRune(rune(le.Uint32(b[4*i:])))
		}
	}
	return out.String(), true
}

// pythonLine returns the line of an instruction, at an offset in bytes, by a table of
// locations (Objects/locations.md); 0 where it is in none. first is that of the function.
func pythonLine(table []byte, first, instruction int) int {
	const entryStart = 0x80
	line, at := first, 0
	for i := 0; i < len(table); {
		kind, units := table[i]>>3&15, int(table[i]&7)+1
		i++
		rest := table[i:]
		none := false
		switch {
		case kind == 15:
			none = true
		case kind >= 13: // with and without columns
			delta, ok := pythonVarint(rest)
			if !ok {
				return 0
			}
			line += delta
		case kind >= 10:
			line += int(kind) - 10
		}
		if at += 2 * units; instruction < at {
			if none || instruction < 0 {
				return 0
			}
			return line
		}
		for i < len(table) && table[i]&entryStart == 0 {
			i++
		}
	}
	return 0
}

// pythonVarint reads a signed integer: six bits in each byte, the lowest first, of which the
// lowest is the sign.
func pythonVarint(b []byte) (v int, ok bool) {
	u := 0
	for i := 0; i < len(b) && i < 6; i++ {
		u |= int(b[i]&63) << (6 * i)
		if b[i]&64 == 0 {
			if u&1 != 0 {
				return -(u >> 1), true
			}
			return u >> 1, true
		}
	}
	return 0, false
}

// Limits on what is copied of a process's threads.
const (
	maxPythonStack  = 1 << 20 // bytes, of a thread
	maxPythonStacks = 32 << 20
	maxPythonChunks = 64      // of a stack
	maxPythonOthers = 1 << 12 // frames that are in no stack
	maxPythonLooks  = 1 << 16 // at frames and pieces of stacks
)

// PythonCollector returns a Collector of what walks need of the interpreter, of all threads at
// once; nil where the process runs none.
func PythonCollector(pid int) procstate.Collector {
	s := NewPython(nil)
	for _, lib := range procstate.SpaceOfProcess(pid).Libraries() {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.fields != nil {
			c := &pythonCollector{fields: p.fields, runtime: p.runtime + lib.Bias}
			return c.collect
		}
	}
	return nil
}

type pythonCollector struct {
	fields  *pythonFields
	runtime uint64
	done    bool
}

// collect is the Collector.
func (c *pythonCollector) collect(m procstate.Memory, _ procstate.ThreadID, _ *procstate.Regs, add func(addr uint64, n int)) {
	if c.done {
		return
	}
	c.done = true
	f, left, others, looks := c.fields, maxPythonStacks, maxPythonOthers, maxPythonLooks
	b := make([]byte, f.frameBytes())
	for _, thread := range pythonThreads(f, c.runtime, m.ReadWord) {
		t := thread.addr
		add(t, int(f.threadBytes))
		var chunk, top uint64
		if !f.isObject {
			chunk, _ = m.ReadWord(t + f.chunk)
			top, _ = m.ReadWord(t + f.top)
		}
		var stacks []vaddrRange
		for size := uint64(0); chunk != 0 && top-chunk < maxPythonStack && size < maxPythonStack && left > 0 && looks > 0 && len(stacks) < maxPythonChunks; looks-- {
			stacks = append(stacks, vaddrRange{chunk, top})
			add(chunk, int(top-chunk))
			size += top - chunk
			left -= int(top - chunk)
			// A chunk begins with the one before; its top is a number of words of data behind three.
			const chunkTop, chunkHead = 16, 24
			if chunk, _ = m.ReadWord(chunk); chunk != 0 {
				words, _ := m.ReadWord(chunk + chunkTop)
				top = chunk + chunkHead + 8*words
			}
		}
		frame, _ := m.ReadWord(t + f.current)
		if f.hasCFrame {
			frame, _ = m.ReadWord(frame + f.cFrame)
		}
		for n := 0; frame != 0 && n < maxPythonFrames && others > 0 && looks > 0; n, looks = n+1, looks-1 {
			if got, err := m.ReadMemory(frame, b); err != nil || got < len(b) {
				break
			}
			inStack := false
			for _, s := range stacks {
				inStack = inStack || frame-s.start < s.end-s.start
			}
			if !inStack {
				add(frame, len(b))
				others--
			}
			frame = binary.LittleEndian.Uint64(b[f.previous:])
		}
	}
}
