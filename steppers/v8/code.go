package v8

import (
	"encoding/binary"
	"slices"
	"time"
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// code is code that V8 has compiled.
type code struct {
	start, size uint64
	header      [headerBytes]byte // of the object that it is in, as it was
	object      uint64            // Code
	head        [v8CodeBytes]byte // of that, as it was
	checked     time.Time         // when it was seen to be that
	serial      uint32

	kind      uint32
	bytecode  uint64   // of what the baseline compiler has made, else 0
	offsets   []byte   // how long the code of each bytecode is
	function  uint64   // SharedFunctionInfo, of optimised code, else 0
	inlined   []uint64 // the same, of functions that were inlined
	inlining  []inlining
	positions []positionEntry

	// Where it goes on when it is given up while it calls: each place has exitBytes of code, from
	// an offset on, and belongs to a return address.
	exits   uint32
	returns []uint32 // offsets
}

// exitBytes is how long the code is that a function goes on with when it was given up.
const exitBytes = 4

// headerBytes is as much as is looked at of the object that instructions are in.
const headerBytes = 16

// inlining is where a function was inlined.
type inlining struct {
	sourcePlace
	function int32 // an index, -1: none of JavaScript
}

// sourcePlace is a place in the source: in a function that was inlined, by index, or -1.
type sourcePlace struct{ position, inlined int32 }

// positionEntry tells the place in the source of code from an offset on.
type positionEntry struct {
	off int32
	sourcePlace
}

// isJavaScript reports whether code is that of a function.
func (c *code) isJavaScript(f *fields) bool {
	return c.kind >= f.baseline-1 && c.kind <= f.baseline+2
}

// isWasmStub reports whether code is what calls WebAssembly, from C++ or JavaScript, or what that calls, in either.
func (c *code) isWasmStub(f *fields) bool {
	before := f.baseline - c.kind
	return before > 1 && before < f.regExp-1
}

// callerFrame walks from a frame in a call of code, which has a frame pointer by then, but for that of the baseline compiler
// where calls push: what it calls first, before its first bytecode, sets up its frame. Until then its return address is at SP, where later no
// address of code is.
func (c *code) callerFrame(f *fields, w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if !c.isJavaScript(f) {
		return unwind.NotMe, nil
	}
	if c.kind == f.baseline && w.Arch().LR == procstate.NoReg {
		before, n := unsigned(c.offsets)
		if n == 0 {
			return unwind.NotMe, nil
		}
		if in.PC()-c.start <= before {
			word, ok := w.ProcessState().ReadWord(in.SP())
			switch {
			case !ok:
				return unwind.Failed, unwind.ReadFailure(w.ProcessState(), in.SP())
			case w.MappingAt(word) != nil:
				return unframed{ok: true}.callerFrame(w, in, out)
			}
		}
	}
	return byFramePointer(w, in, out)
}

// compiledCode returns the number of what f runs, which is in c; 0 where there is no telling.
func (vm *machine) compiledCode(codes *unwind.Codes, c *code, f *unwind.Frame) uint32 {
	switch {
	case c.kind == vm.fields.baseline-1: // a copy of the code that runs bytecode
		return vm.interpretedCode(codes, f)
	case c.bytecode != 0:
		return vm.baselineCode(codes, c, f)
	case c.function == 0:
		return vm.codeOfKind(codes, c)
	}
	off, ok := c.called(f.PC(), f.LookupPC())
	if !ok {
		return 0
	}
	return vm.number(codes, place{c.serial, off}, c.start, func() []unwind.CodeLine { return vm.compiledLines(c, off) })
}

// codeOfKind returns the number of code that is of no function, by its kind; 0 where that tells nothing.
func (vm *machine) codeOfKind(codes *unwind.Codes, c *code) uint32 {
	name := ""
	switch {
	case vm.fields.baseline-c.kind == vm.fields.regExp:
		name = "RegExp"
	case c.isWasmStub(vm.fields):
		name = wasmStub
	default:
		return 0
	}
	return vm.number(codes, place{c.serial, 0}, c.start, func() []unwind.CodeLine {
		return []unwind.CodeLine{{CodeFunction: &unwind.CodeFunction{Name: name, SystemName: name, Runtime: vmread.JavaScript}}}
	})
}

// called returns the offset of the instruction that a frame is at. Where the code has been given up,
// V8 has put another return address in the place of that behind the call.
func (c *code) called(pc, lookupPC uint64) (off int32, ok bool) {
	at := uint32(pc-c.start) - c.exits
	if c.exits == 0 || pc == lookupPC || uint32(pc-c.start) < c.exits {
		return int32(lookupPC - c.start), true
	}
	if i := at / exitBytes; at%exitBytes == 0 && i < uint32(len(c.returns)) && c.returns[i] != 0 {
		return int32(c.returns[i]) - 1, true
	}
	return 0, false
}

// compiledLines tells what is at an offset of optimised code, what was inlined first.
func (vm *machine) compiledLines(c *code, off int32) (lines []unwind.CodeLine) {
	at := positionAt(c.positions, off)
	for n := 0; at.inlined >= 0; n++ {
		if int(at.inlined) >= len(c.inlining) || n >= maxDepth {
			return nil
		}
		in := c.inlining[at.inlined]
		if in.function >= 0 {
			if int(in.function) >= len(c.inlined) {
				return nil
			}
			fn := vm.functionAt(c.inlined[in.function])
			if fn == nil {
				return nil
			}
			lines = append(lines, fn.at(at.position))
		}
		at = in.sourcePlace
	}
	fn := vm.functionAt(c.function)
	if fn == nil {
		return nil
	}
	return append(lines, fn.at(at.position))
}

// codeAt returns the code at pc, in m, nil where none is known to be.
func (vm *machine) codeAt(m *procstate.Mapping, pc uint64) *code {
	i, found := slices.BinarySearchFunc(vm.compiled, pc, func(c *code, pc uint64) int {
		if c.start <= pc {
			return -1
		}
		return 1
	})
	if found || i == 0 {
		return vm.findCode(m, pc)
	}
	c := vm.compiled[i-1]
	if pc-c.start >= c.size {
		return vm.findCode(m, pc)
	}
	if !vm.isStill(c) {
		vm.compiled = slices.Delete(vm.compiled, i-1, i)
		return vm.findCode(m, pc)
	}
	return c
}

// isStill reports whether code is still what it was.
func (vm *machine) isStill(c *code) bool {
	header := vm.buf[:headerBytes]
	if n := procstate.ReadPart(vm.Mem, c.start-vm.fields.header, header); n < len(header) || [headerBytes]byte(header) != c.header {
		return false
	}
	now := time.Now()
	if now.Sub(c.checked) < interval {
		return true
	}
	if vm.read(c.object-1, vm.buf[:]) && vm.buf != c.head {
		return false
	}
	c.checked = now // of one that cannot be read any more nothing else will be known
	return true
}

// findCode looks for the object whose instructions are at pc: they begin at multiples
// of 32, behind a header that begins with the address of its map.
func (vm *machine) findCode(m *procstate.Mapping, pc uint64) *code {
	const align = 32
	now := time.Now()
	miss := vm.missed[pc/codePage]
	if now.Sub(miss.at) < miss.wait {
		return nil
	}
	page, n := ^uint64(0), 0
	for start := pc &^ (align - 1); pc-start < maxCodeBytes; start -= align {
		at := start - vm.fields.header
		if at < m.Start || at > start {
			break
		}
		if at&^(codePage-1) != page {
			page = at &^ (codePage - 1)
			n = procstate.ReadPart(vm.Mem, page, vm.page[:])
		}
		if at-page+8 > uint64(n) {
			break
		}
		is := vm.expand(vm.page[at-page:], vm.cage)
		if vm.fields.streamType == noType {
			if object := vm.codeOfStream(at); object&3 == 1 {
				vm.learnCode(object)
			}
		}
		if typ, ok := vm.typeOfMap(is); !ok || typ != vm.fields.streamType {
			continue
		}
		c := vm.readCode(start)
		if c == nil {
			continue
		}
		if pc-start >= c.size {
			return nil // what was there is gone
		}
		vm.keepCode(c)
		return c
	}
	if len(vm.missed) >= maxCompiled {
		clear(vm.missed)
	}
	vm.missed[pc/codePage] = missedPage{now, min(max(2*miss.wait, missedFirst), missedLast)}
	return nil
}

// bytes returns how much memory the tables of code take.
func (c *code) bytes() int {
	return len(c.offsets) + 8*len(c.inlined) + 4*len(c.returns) +
		len(c.inlining)*int(unsafe.Sizeof(inlining{})) + len(c.positions)*int(unsafe.Sizeof(positionEntry{}))
}

// keepCode puts code in the place of what was there.
func (vm *machine) keepCode(c *code) {
	if vm.tables += c.bytes(); len(vm.compiled) >= maxCompiled || vm.tables >= vmread.MaxKept {
		vm.compiled, vm.tables = nil, 0
	}
	vm.compiled = slices.DeleteFunc(vm.compiled, func(o *code) bool {
		return o.start < c.start+c.size && c.start < o.start+o.size
	})
	i, _ := slices.BinarySearchFunc(vm.compiled, c.start, func(o *code, start uint64) int {
		if o.start < start {
			return -1
		}
		return 1
	})
	vm.compiled = slices.Insert(vm.compiled, i, c)
}

// readCode reads what is known of code that begins at an address, nil where there is none.
func (vm *machine) readCode(start uint64) *code {
	f, le := vm.fields, binary.LittleEndian
	c := &code{start: start, checked: time.Now()}
	if n := procstate.ReadPart(vm.Mem, start-f.header, c.header[:]); n < len(c.header) {
		return nil
	}
	c.object = start - f.header + 1
	if f.split {
		c.object = vm.expand(c.header[f.at(v8StreamCode):], vm.trusted)
		if typ, ok := vm.typeOf(c.object); !ok || typ != f.codeType {
			return nil
		}
	}
	if !vm.read(c.object-1, c.head[:]) || f.codeStart != 0 && f.split && le.Uint64(c.head[f.codeStart:]) != start ||
		f.compressed && le.Uint32(c.head[v8CodeStream:]) != uint32(start-f.header+1) {
		return nil
	}
	c.size = uint64(le.Uint32(c.head[f.codeSize:]))
	c.kind = le.Uint32(c.head[f.codeFlags:]) & v8CodeKindMask
	vm.serial++
	c.serial = vm.serial
	data, positions := vm.expand(c.head[f.codeData:], c.object), vm.expand(c.head[f.positions:], c.object)
	if f.compressed {
		vm.learnKind(c.kind, data)
	}
	switch c.kind {
	case f.baseline:
		c.bytecode, _ = vm.bytecodeIn(data)
		vm.keepHandle(c)
		c.offsets = vm.byteArray(positions)
	case f.baseline + 1, f.baseline + 2:
		vm.readOptimized(c, data, positions)
	}
	return c
}

// readOptimized reads what is known of optimised code. Of which not all fits together nothing is.
func (vm *machine) readOptimized(c *code, data, positions uint64) {
	f := vm.fields
	element := func(array, index uint64) uint64 {
		v, _ := vm.field(array, f.at(v8Data+8*index))
		return v
	}
	if n, ok := vm.lengthOf(data); !ok || n <= max(f.inlinedCount, f.literals, f.optimized, f.inlining) {
		return
	}
	function, ok := vm.unwrapped(element(data, f.optimized))
	inlined, isSmall := smallInteger(element(data, f.inlinedCount))
	literals := element(data, f.literals)
	n, isArray := vm.lengthOf(literals)
	if !ok || !isSmall || !isArray || inlined > maxInlined || inlined > n {
		return
	}
	words := vm.elements(literals, 0, inlined, vm.cage)
	if uint64(len(words)) != inlined {
		return
	}
	for _, word := range words {
		fn, ok := vm.unwrapped(word &^ 2) // which may be a weak reference
		if !ok {
			return
		}
		c.inlined = append(c.inlined, fn)
	}
	c.inlining = inlinings(vm.byteArray(element(data, f.inlining)))
	c.positions = readPositions(vm.byteArray(positions), f.positionFlags)
	if vm.readExits(c, data) && (!f.compressed || c.fits()) {
		c.function = function
	}
}

// readExits reads where code goes on that was given up: behind the places where functions were inlined,
// DeoptimizationData has where that code begins, how much of it is for code that calls and how
// much is not, and three words for each place, the last with its return address.
func (vm *machine) readExits(c *code, data uint64) bool {
	first := vm.fields.inlining + 1
	n, ok := vm.lengthOf(data)
	if !ok || n < first+3 || n > maxListed {
		return false
	}
	words := vm.elements(data, first, n-first, data)
	if uint64(len(words)) != n-first {
		return false
	}
	small := func(i uint64) uint64 {
		v, _ := smallInteger(words[i])
		return v
	}
	begin, places := small(0), small(1)+small(2)
	if begin > c.size || 3+3*places > n-first {
		return false
	}
	c.exits = uint32(begin)
	for i := range places {
		c.returns = append(c.returns, uint32(min(small(3+3*i+2), c.size)))
	}
	return true
}

// unwrapped returns a SharedFunctionInfo, which may be in an object of its own.
func (vm *machine) unwrapped(object uint64) (function uint64, ok bool) {
	for range 2 {
		typ, known := vm.typeOf(object)
		if !known {
			return 0, false
		}
		if typ == vm.fields.sharedType {
			return object, true
		}
		object, _ = vm.globalField(object, vm.fields.at(v8Wrapped))
	}
	return 0, false
}

// sourceOf takes a SourcePosition apart.
func sourceOf(v int64) sourcePlace {
	return sourcePlace{int32(v>>1&(1<<30-1)) - 1, int32(v>>31&(1<<16-1)) - 1}
}

// inlinings reads the table of where functions were inlined (InliningPosition).
func inlinings(b []byte) (table []inlining) {
	const bytes = 16
	for ; len(b) >= bytes; b = b[bytes:] {
		source := sourceOf(int64(binary.LittleEndian.Uint64(b)))
		table = append(table, inlining{source, int32(binary.LittleEndian.Uint32(b[8:]))})
	}
	return table
}

// readPositions reads a table of places in the source (SourcePositionTableIterator): steps from one
// to the next. The first is from offset -1, which is that of the function's entry. A step of the
// offset has some flags in its last bits: whether a statement begins there, and what is new in later versions.
func readPositions(b []byte, flags uint) (table []positionEntry) {
	off, position := int64(-1), int64(0)
	for len(b) > 0 {
		step, n := unsigned(b)
		moved, m := unsigned(b[n:])
		if n == 0 || m == 0 {
			break
		}
		b = b[n+m:]
		if step >>= flags; step > 1<<31-2 {
			break
		}
		off, position = off+int64(step), position+(int64(moved>>1)^-int64(moved&1))
		if off > 1<<31-1 {
			break
		}
		table = append(table, positionEntry{int32(off), sourceOf(position)})
	}
	return table
}

// positionAt returns the place in the source of an offset.
func positionAt(table []positionEntry, off int32) sourcePlace {
	i, _ := slices.BinarySearchFunc(table, off, func(p positionEntry, off int32) int {
		if p.off <= off {
			return -1
		}
		return 1
	})
	if i == 0 {
		return sourcePlace{-1, -1}
	}
	return table[i-1].sourcePlace
}

// bytecodeOffset returns which bytecode some code of the baseline compiler is for, less than 0
// where there is no telling (BytecodeOffsetIterator). code is the bytecode that it was made of.
func (f *fields) bytecodeOffset(offsets, code []byte, off uint32) int32 {
	at, next, end := int32(-1), 0, uint64(0) // the bytecode, the one behind it, and where its code ends
	for {
		n, bytes := unsigned(offsets)
		if bytes == 0 {
			return -1
		}
		offsets = offsets[bytes:]
		if end += n; end > uint64(off) {
			return at
		}
		size := f.bytecodeSize(code[next:])
		if size == 0 {
			return -1
		}
		at, next = int32(next), next+size
	}
}

// bytecodeSize returns how many bytes the first bytecode has; 0 where there is none.
func (f *fields) bytecodeSize(code []byte) int {
	const wide = 2 // those below are prefixes of others, whose operands are wider
	prefix, sizes := 0, f.sizes[0]
	if len(code) > 1 && code[0] < wide {
		prefix, sizes = 1, f.sizes[1+code[0]]
	}
	if len(code) <= prefix || int(code[prefix]) >= len(sizes) {
		return 0
	}
	n := prefix + int(sizes[code[prefix]])
	if n > len(code) {
		return 0
	}
	return n
}

// unsigned reads the number that b begins with, of n bytes; n is 0 when there is none.
func unsigned(b []byte) (v uint64, n int) {
	for n < len(b) && n < 10 {
		digit := b[n]
		v |= uint64(digit&0x7f) << (7 * n)
		n++
		if digit < 0x80 {
			return v, n
		}
	}
	return 0, 0
}
