package v8

import (
	"encoding/binary"
	"slices"
	"time"
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// wasm is what is known of the functions of WebAssembly of a process. V8 puts what it compiles of
// them into memory of its own. A frame of such a function has the instance that it belongs to,
// from which objects lead to the module, and that has a tree of all its code. Where an instance and
// a module have that differs between versions, and is learned from the first that is met: what is
// found must have the bytes that the module was loaded from, and code that knows its module.
type wasm struct {
	steps   []uint64 // offsets of the fields from an instance to what holds its module; nil: not known
	bytes   uint64   // NativeModule: its bytes
	root    uint64   // that of the tree of its code, behind which is a list of new code; 0: not known
	kind    uint64   // of frames of functions; 0: not known
	modules []*wasmModule
	codes   []*wasmCode           // by where they begin
	kept    int                   // bytes of these, about
	missed  map[uint64]missedPage // code that no module has, in units of wasmAlign, and instances without a module, which are higher
}

// wasmCode is the code of a function.
type wasmCode struct {
	start, size uint64
	object      uint64 // WasmCode
	module      *wasmModule
	index       uint32 // of the function, or noFunction
	inlining    []wasmInlining
	positions   []positionEntry // of calls; nil where nothing was inlined
	serial      uint32
	checked     time.Time // when it was seen to be that
}

// wasmInlining is where a function was inlined, by its index.
type wasmInlining struct {
	index uint32
	sourcePlace
}

// wasmFields are where WasmCode has the size of the code and the index of the function; size is 0 where that is not known.
// Versions that inline functions have where tables are and, in a row, how long each is: of relocations, of
// source positions, and of what was inlined.
type wasmFields struct{ size, index, tables, lengths uint64 }

// wasmFieldsOf returns those of a version of V8.
func wasmFieldsOf(major uint64) wasmFields {
	switch major {
	case 10:
		return wasmFields{size: 32, index: 48}
	case 11, 12:
		return wasmFields{size: 24, index: 44}
	case 13, 14:
		return wasmFields{size: 32, index: 56, tables: 24, lengths: 36}
	}
	return wasmFields{}
}

// Where a frame has what it is, by twice a small number, and its instance: below the frame pointer.
const (
	wasmFrameKind     = 8
	wasmFrameInstance = 16
	maxFrameKind      = 128

	toJavaScript = 2 // how far the kind of frames that call what is imported is behind that of functions
)

// Offsets that are the same in all versions, and that of the list from the tree's root, as they are in libstdc++.
const (
	wasmHolder     = 8  // Foreign: address of ManagedPtrDestructor
	wasmShared     = 24 // of that: address of a shared_ptr
	wasmNewCode    = 32
	wasmCodeStart  = 8 // WasmCode, which begins with its NativeModule
	wasmCodeBytes  = 64
	wasmNodeParent = 8
	wasmNodeLeft   = 16
	wasmNodeRight  = 24
	wasmNodeStart  = 32
	wasmNodeCode   = 40
	wasmNodeBytes  = 48
)

// wasmAlign is what addresses of code are multiples of, at least.
const wasmAlign = 32

// Limits on what is read of modules.
const (
	wasmInstanceBytes = 512 // that the fields which matter are in
	wasmObjectBytes   = 48
	wasmNativeBytes   = 768

	maxWasmSteps    = 3 // from an instance
	maxWasmModules  = 1 << 8
	maxWasmSections = 1 << 10
	maxWasmNames    = 8 << 20 // bytes
	maxWasmNew      = 1 << 12 // of the list of new code
	maxWasmDepth    = 64      // of the tree
)

// wasmAt returns the code that a frame runs, nil where that is no function of WebAssembly that is known.
func (vm *machine) wasmAt(f *unwind.Frame) *wasmCode {
	if vm.fields.wasm.size == 0 || vm.fields.compressed {
		return nil
	}
	if c := vm.knownWasm(f.LookupPC()); c != nil {
		return c
	}
	return vm.findWasm(f)
}

// wasmCode returns the number of what a frame runs, which is c; 0 where there is no telling. Code that calls what is imported
// may be of no module, and is told by the kind of its frame.
func (vm *machine) wasmCode(codes *unwind.Codes, c *wasmCode, f *unwind.Frame) uint32 {
	if c == nil {
		if vm.wasm.kind == 0 || f.Flags&unwind.Interrupted != 0 {
			return 0
		}
		if _, kind := vm.wasmFrame(f); kind != vm.wasm.kind+toJavaScript {
			return 0
		}
		return vm.ownCode(codes, wasmStub, 0)
	}
	off := int32(0) // that of the function
	if f.Flags&unwind.Interrupted == 0 && c.positions != nil {
		off = int32(f.LookupPC() - c.start)
	}
	return vm.number(codes, place{c.serial, off}, c.start, func() []unwind.CodeLine { return c.lines(off) })
}

// lines tells which functions are at an offset, what was inlined first. Of code that does not call nothing tells what
// of it was inlined: at offset 0 is the function that it was made of.
func (c *wasmCode) lines(off int32) (lines []unwind.CodeLine) {
	add := func(index uint32) { lines = append(lines, unwind.CodeLine{CodeFunction: c.module.function(index)}) }
	if off > 0 {
		for at := positionAt(c.positions, off); at.inlined >= 0 && int(at.inlined) < len(c.inlining) && len(lines) < maxDepth; {
			in := &c.inlining[at.inlined]
			add(in.index)
			at = in.sourcePlace
		}
	}
	add(c.index)
	return lines
}

// wasmCaller walks from a frame in a call of code, which has a frame pointer by then, but where the baseline compiler's
// code has what it calls first set up its frame: then its return address is at SP, where later no address of code is.
func (vm *machine) wasmCaller(w *unwind.Walker, c *wasmCode, in, out *unwind.Frame) (unwind.Verdict, error) {
	const first = 14         // bytes up to behind that call
	const index = "\x41\xbc" // mov $index,%r12d
	b := vm.small[:len(index)]
	if c == nil || vm.arch.LR != procstate.NoReg || in.PC()-c.start > first {
		return byFramePointer(w, in, out)
	}
	if n := procstate.ReadPart(vm.Mem, c.start, b); n < len(b) || string(b) != index {
		return byFramePointer(w, in, out)
	}
	word, ok := w.ProcessState().ReadWord(in.SP())
	switch {
	case !ok:
		return unwind.Failed, unwind.ReadFailure(w.ProcessState(), in.SP())
	case w.MappingAt(word) != nil:
		return unframed{ok: true}.callerFrame(w, in, out)
	}
	return byFramePointer(w, in, out)
}

// unframedWasm tells where the return address is at pc, in code that a thread was interrupted in, where that is before its frame is
// set up: in a function, or in a table of jumps, to functions, which are called by that, or to code that is far away.
func (s *Stepper) unframedWasm(w *unwind.Walker, m *procstate.Mapping, c *wasmCode, sp, pc uint64) unframed {
	if c.index != noFunction {
		return s.unframed(w, m, &code{start: c.start, size: c.size}, false, pc)
	}
	before := min(5, int(pc-c.start))
	if w.Arch() != procstate.AMD64 || !isWasmJump(mcode.Read(w, m, pc-uint64(before), s.buf[:before+len(wasmFarJump)]), before) {
		return unframed{}
	}
	ra, ok := w.ProcessState().ReadWord(sp) // or what it jumps to takes, which is no address
	return unframed{ok: ok && w.MappingAt(ra) != nil}
}

// wasmFarJump is jmp *2(%rip); xchg %ax,%ax, of 8 bytes, with the address behind.
const wasmFarJump = "\xff\x25\x02\x00\x00\x00\x66\x90"

// isWasmJump reports whether there is a jump of such tables at a place in code, where it is a near one the first, or
// right behind another one or what fills the gap between two.
func isWasmJump(b []byte, at int) bool {
	const jump, size, trap = 0xe9, 5, 0xcc
	if len(b) < at+len(wasmFarJump) {
		return false
	}
	return string(b[at:]) == wasmFarJump || b[at] == jump && (at == 0 || b[at-1] == trap || at >= size && b[at-size] == jump)
}

// knownWasm returns the code at pc, nil where none is known to be.
func (vm *machine) knownWasm(pc uint64) *wasmCode {
	codes := vm.wasm.codes
	i, found := slices.BinarySearchFunc(codes, pc, func(c *wasmCode, pc uint64) int {
		if c.start <= pc {
			return -1
		}
		return 1
	})
	if found || i == 0 || pc-codes[i-1].start >= codes[i-1].size {
		return nil
	}
	c := codes[i-1]
	if now := time.Now(); now.Sub(c.checked) >= interval {
		if vm.read(c.object, vm.buf[:16]) && !c.begins(vm.buf[:]) {
			vm.wasm.codes = slices.Delete(codes, i-1, i)
			return nil
		}
		c.checked = now
	}
	return c
}

// begins reports whether b begins as the WasmCode does.
func (c *wasmCode) begins(b []byte) bool {
	le := binary.LittleEndian
	return le.Uint64(b) == c.module.native && le.Uint64(b[wasmCodeStart:]) == c.start
}

// findWasm looks for the code that a frame runs in the modules that are known, and in that of its instance.
func (vm *machine) findWasm(f *unwind.Frame) *wasmCode {
	s, pc := &vm.wasm, f.LookupPC()
	at := pc / wasmAlign
	if !s.mayFind(at) {
		return nil
	}
	for i := 0; i < len(s.modules); i++ {
		m := s.modules[i]
		if !vm.isStillModule(m) {
			s.modules = slices.Delete(s.modules, i, i+1)
			i--
			continue
		}
		if c := vm.codeOfModule(m, pc); c != nil {
			return vm.keepWasm(c)
		}
	}
	if instance, kind := vm.wasmFrame(f); kind != 0 && s.mayFind(instance) {
		if m := vm.moduleOf(instance); m == nil {
			s.miss(instance)
		} else if c := vm.codeOfModule(m, pc); c != nil {
			if f.Flags&unwind.Interrupted == 0 { // else it may be its caller's frame
				s.kind = kind
			}
			return vm.keepWasm(c)
		}
	}
	s.miss(at)
	return nil
}

// mayFind reports whether what was missed may be looked for again.
func (s *wasm) mayFind(key uint64) bool {
	miss := s.missed[key]
	return time.Since(miss.at) >= miss.wait
}

// keep counts what is kept. All is forgotten when that is too much.
func (s *wasm) keep(bytes int) {
	if s.kept += bytes; s.kept >= vmread.MaxKept {
		s.modules, s.codes, s.kept = nil, nil, bytes
	}
}

func (s *wasm) miss(key uint64) {
	if s.missed == nil || len(s.missed) >= maxCompiled {
		s.missed = map[uint64]missedPage{}
	}
	s.missed[key] = missedPage{time.Now(), min(max(2*s.missed[key].wait, missedFirst), missedLast)}
}

// keepWasm puts code in the place of what was there.
func (vm *machine) keepWasm(c *wasmCode) *wasmCode {
	s := &vm.wasm
	if s.keep(len(c.positions)*int(unsafe.Sizeof(positionEntry{})) + len(c.inlining)*int(unsafe.Sizeof(wasmInlining{}))); len(s.codes) >= maxCompiled {
		s.codes = nil
	}
	s.codes = slices.DeleteFunc(s.codes, func(o *wasmCode) bool { return o.start < c.start+c.size && c.start < o.start+o.size })
	i, _ := slices.BinarySearchFunc(s.codes, c.start, func(o *wasmCode, start uint64) int {
		if o.start < start {
			return -1
		}
		return 1
	})
	s.codes = slices.Insert(s.codes, i, c)
	vm.serial++
	c.serial = vm.serial
	return c
}

// wasmFrame returns what kind of frame one is, which V8 notes in those that are not of JavaScript, 0 where it may not be
// such, and the instance that it has if it is of WebAssembly.
func (vm *machine) wasmFrame(f *unwind.Frame) (instance, kind uint64) {
	fp, known := f.Regs.Value(vm.arch.FP)
	b := vm.buf[:wasmFrameInstance]
	if n := procstate.ReadPart(vm.Mem, fp-wasmFrameInstance, b); !known || fp%8 != 0 || n < len(b) {
		return 0, 0
	}
	instance, kind = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[wasmFrameInstance-wasmFrameKind:])
	if !vm.mayBeObject(instance) || kind%2 != 0 || kind >= maxFrameKind {
		return 0, 0
	}
	return instance, kind
}

// mayBeObject reports whether a word may be the address of an object.
func (vm *machine) mayBeObject(word uint64) bool {
	return word&3 == 1 && word&vm.beyond == 0 && word >= codePage
}

// isPointer reports whether a word may be the address of what is no object.
func (vm *machine) isPointer(word uint64) bool {
	return word&7 == 0 && word&vm.beyond == 0 && word >= codePage
}

// words reads words at an address, nil where they cannot be read.
func (vm *machine) words(addr uint64, n int) []uint64 {
	b := make([]byte, 8*n)
	if !vm.read(addr, b) {
		return nil
	}
	words := make([]uint64, n)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return words
}

// moduleOf returns the module of an instance, nil where that is not found.
func (vm *machine) moduleOf(instance uint64) *wasmModule {
	if steps := vm.wasm.steps; steps != nil {
		object, ok := instance, true
		for _, at := range steps {
			object, ok = vm.field(object, at)
			if !ok || !vm.mayBeObject(object) {
				return nil
			}
		}
		return vm.moduleIn(object)
	}
	type found struct {
		object uint64
		steps  []uint64
	}
	seen, at := map[uint64]bool{}, []found{{instance, nil}}
	for bytes := wasmInstanceBytes; len(at) > 0; bytes = wasmObjectBytes {
		var next []found
		for _, from := range at {
			for i, word := range vm.words(from.object-1, bytes/8) {
				if i == 0 || !vm.mayBeObject(word) || seen[word] {
					continue
				}
				seen[word] = true
				to := found{word, append(slices.Clip(from.steps), uint64(8*i))}
				if m := vm.moduleIn(word); m != nil {
					vm.wasm.steps = to.steps
					return m
				}
				if len(to.steps) < maxWasmSteps {
					next = append(next, to)
				}
			}
		}
		at = next
	}
	return nil
}

// moduleIn returns the module that an object holds: a Foreign with the address of what owns a reference
// to it; nil where it is no such.
func (vm *machine) moduleIn(object uint64) *wasmModule {
	at := object - 1 + wasmHolder
	for _, off := range [...]uint64{wasmShared, 0, 0} {
		word, ok := vm.word(at)
		if !ok || !vm.isPointer(word) {
			return nil
		}
		at = word + off
	}
	for _, m := range vm.wasm.modules {
		if m.native == at && vm.isStillModule(m) {
			return m
		}
	}
	m := vm.readModule(at)
	if m == nil {
		return nil
	}
	if vm.wasm.keep(len(m.names) + len(m.exports)); len(vm.wasm.modules) >= maxWasmModules {
		vm.wasm.modules = nil
	}
	vm.wasm.modules = append(vm.wasm.modules, m)
	return m
}

// readModule reads what is known of a NativeModule, nil where there is none.
func (vm *machine) readModule(native uint64) *wasmModule {
	words := vm.words(native, wasmNativeBytes/8)
	s := &vm.wasm
	for i, word := range words {
		if at := uint64(8 * i); s.bytes != 0 && at != s.bytes || !vm.isPointer(word) {
			continue
		}
		m := &wasmModule{native: native}
		if !vm.readBytes(m, word) {
			continue
		}
		s.bytes = uint64(8 * i)
		for j := range words {
			if s.root == 0 && j > i && vm.hasCode(native, words[j:], uint64(8*j)) {
				s.root = uint64(8 * j)
			}
		}
		return m
	}
	return nil
}

// hasCode reports whether the words from an offset on begin with the root of a tree of code of a module, or are followed by
// a list of new code.
func (vm *machine) hasCode(native uint64, words []uint64, at uint64) bool {
	const begin = wasmNewCode / 8
	if len(words) < begin+3 {
		return false
	}
	if vm.isPointer(words[0]) {
		if n := vm.words(words[0], wasmNodeBytes/8); n != nil && n[wasmNodeParent/8] == native+at-wasmNodeParent && vm.isPointer(n[wasmNodeCode/8]) {
			c := vm.words(n[wasmNodeCode/8], 2)
			return c != nil && c[0] == native && c[1] == n[wasmNodeStart/8]
		}
	}
	first, end, room := words[begin], words[begin+1], words[begin+2]
	if words[0] != 0 || !vm.isPointer(first) || first >= end || end > room {
		return false
	}
	object, ok := vm.word(first)
	if !ok || !vm.isPointer(object) {
		return false
	}
	is, ok := vm.word(object)
	return ok && is == native
}

// isStillModule reports whether a module still has the bytes that it had.
func (vm *machine) isStillModule(m *wasmModule) bool {
	word, ok := vm.word(m.native + vm.wasm.bytes)
	if !ok {
		return true // of one that cannot be read any more nothing else will be known
	}
	if word != m.is[0] {
		return false
	}
	b := vm.words(word, 2)
	return b == nil || b[0] == m.is[1] && b[1] == m.is[2]
}

// codeOfModule returns the code of a module at pc, nil where there is none.
func (vm *machine) codeOfModule(m *wasmModule, pc uint64) *wasmCode {
	if vm.wasm.root == 0 {
		again := vm.readModule(m.native) // it may have code by now
		if again == nil || vm.wasm.root == 0 {
			return nil
		}
	}
	at := m.native + vm.wasm.root
	if list := vm.words(at+wasmNewCode, 2); list != nil && list[0] <= list[1] && list[1]-list[0] <= 8*maxWasmNew {
		for _, object := range vm.words(list[0], int(list[1]-list[0])/8) {
			if c := vm.readWasm(m, object, pc); c != nil {
				return c
			}
		}
	}
	object := uint64(0)
	node, _ := vm.word(at)
	for range maxWasmDepth {
		if !vm.isPointer(node) {
			break
		}
		n := vm.words(node, wasmNodeBytes/8)
		if n == nil {
			return nil
		}
		if n[wasmNodeStart/8] <= pc {
			object, node = n[wasmNodeCode/8], n[wasmNodeRight/8]
		} else {
			node = n[wasmNodeLeft/8]
		}
	}
	return vm.readWasm(m, object, pc)
}

// readWasm reads a WasmCode of a module, nil where there is none or its code is not at pc.
func (vm *machine) readWasm(m *wasmModule, object, pc uint64) *wasmCode {
	b := vm.buf[:wasmCodeBytes]
	if !vm.isPointer(object) || !vm.read(object, b) {
		return nil
	}
	le, f := binary.LittleEndian, vm.fields.wasm
	c := &wasmCode{
		start: le.Uint64(b[wasmCodeStart:]), size: uint64(le.Uint32(b[f.size:])), index: le.Uint32(b[f.index:]),
		object: object, module: m, checked: time.Now(),
	}
	if !c.begins(b) || pc-c.start >= c.size || c.index != noFunction && uint64(c.index) >= uint64(m.imported)+uint64(m.defined) {
		return nil
	}
	if c.index < m.imported {
		c.index = noFunction
	}
	if f.lengths != 0 {
		at, lengths := le.Uint64(b[f.tables:]), b[f.lengths:]
		vm.readInlined(c, at+uint64(le.Uint32(lengths)), uint64(le.Uint32(lengths[4:])), uint64(le.Uint32(lengths[8:])))
	}
	return c
}

// readInlined reads the tables at an address, of so many bytes, that tell what was inlined into code.
func (vm *machine) readInlined(c *wasmCode, at, positions, inlined uint64) {
	const bytes = 13 // an index, whether its call was a return, and where that was
	if inlined == 0 || positions > maxTable || inlined > maxTable {
		return
	}
	b := make([]byte, positions+inlined)
	if !vm.read(at, b) {
		return
	}
	c.positions = readPositions(b[:positions], vm.fields.positionFlags)
	for b = b[positions:]; len(b) >= bytes; b = b[bytes:] {
		le := binary.LittleEndian
		c.inlining = append(c.inlining, wasmInlining{le.Uint32(b), sourceOf(int64(le.Uint64(b[5:])))})
	}
}
