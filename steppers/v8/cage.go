package v8

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// handleTable is where a V8 has its objects whose pointers are compressed, as in Chromium and Electron: a field has the lower
// half of an object's address, the upper one is the same for all objects of a cage, or a small integer of 31 bits.
//
// What must not be changed by who can write to objects has a cage of its own: bytecode and what is known of compiled code.
// Its objects refer to each other as others do, and to maps and functions, which are in the first cage. From the first
// they are found by tables (v8/src/sandbox): a field has a handle, of which the upper bits are an index. An object of
// the other cage has its own handle, too, by which it is told whether a function has it without the table being known.
type handleTable struct {
	cage, trusted uint64 // upper halves, in place; 0: not known
	codeCage      uint64 // of the objects that instructions are in

	root   uint64 // what is in the register for that where code of V8 was interrupted, see rootPointers,
	rootOf uint64 // in this walk

	onFrame uint64 // bytecode of the frame that types are learned from; 0: none

	isolates  map[uint64]*isolate // by root
	isolate   *isolate            // of the stack; nil: not known
	isolateOf uint64              // the walk

	handles map[uint32][]uint64 // of code by the baseline compiler: the bytecode that it was made of
}

// isolate is one of the virtual machines of a process, as each worker has one: its tables are its own.
type isolate struct {
	root        uint64    // what is in the register while its code runs, see isRoot
	checked     time.Time // when it was seen to be that
	objects     uint64    // table of objects of the other cage; 0: not known
	texts       uint64    // table of characters that are not in the heap; 0: not known
	textTag     uint64    // of its entries for characters,
	resourceTag uint64    // and for what has these
	textTries   int       // functions that it was looked for with
}

// Of objects in such a V8.
const (
	v8Half       = 1<<32 - 1
	v8Handle     = 4  // SharedFunctionInfo, BytecodeArray and Code: the handle of what has been compiled, or their own
	v8CodeStream = 20 // Code: the object that its instructions are in
	v8CodeEntry  = 24 // Code: address of its instructions, since V8 14.9

	// Bits of handles below the index of an entry.
	v8ObjectIndex = 9
	v8CodeIndex   = 8
	v8TextIndex   = 6
	v8CodeHandle  = 1 // set in handles of code that is in a table of its own, up to V8 14.9

	v8Address     = 1<<48 - 1 // of an entry; above are its tag and a mark
	v8EntryTag    = 1<<63 - 1<<48
	maxV8Tries    = 1 << 8
	maxV8Isolates = 1 << 10
	maxV8Isolate  = 1 << 10 // bytes from there on that are looked through

	v8Saved = 256 * 8 // bytes of the stack below a frame's in which what it has called may have saved registers
)

// rootPointer is the register that points into the isolate while code of V8 runs, and how far behind where that begins, in bytes: with
// the cage, and its own address.
type rootPointer struct {
	reg  procstate.Reg
	bias uint64
}

var rootPointers = map[*procstate.Arch]rootPointer{
	procstate.AMD64: {13, 0x80},
	procstate.ARM64: {26, 0x100},
}

// compressedFields returns the fields of Chromium's V8 14.1 to 15.6, as far as they are the same in these. No types are known.
func compressedFields(sizes [3][]byte) *fields {
	if sizes[0] == nil {
		return nil
	}
	return &fields{
		shared: 16, name: 12, script: 20, feedback: 16,
		sharedType: noType, bytecodeType: noType, codeType: noType, streamType: noType, scopeType: noType,
		scriptType: noType, listType: noType, arrayType: noType, interpreterDataType: noType,
		compressed: true, split: true, header: 16, codeSize: 32, codeFlags: 28, codeData: 8, positions: 12, baseline: 11, regExp: lateRegExp,
		inlinedCount: 1, literals: 3, optimized: 7, inlining: 8,
		positionFlags: 2, bytecodeLength: 8, bytecodePositions: 16, bytecodeData: 40, sizes: sizes,
		locals: 2, firstLocal: v8LateLocals, moduleScope: 5,
	}
}

// at returns the offset of a field that has an offset with whole pointers, all fields before it being such.
func (f *fields) at(off uint64) uint64 {
	if f.compressed {
		return off / 2
	}
	return off
}

// stringAt returns the offset of a field behind one of four bytes and a map.
func (f *fields) stringAt(off uint64) uint64 {
	const whole, half = 16, 12 // of the first field behind
	switch {
	case !f.compressed:
		return off
	case off < whole:
		return off - 4
	}
	return half + (off-whole)/2
}

// expand returns the word that a field begins b, of an object in the cage of base: a small integer is as it is without compression.
func (vm *machine) expand(b []byte, base uint64) uint64 {
	if !vm.fields.compressed {
		return binary.LittleEndian.Uint64(b)
	}
	v := uint64(binary.LittleEndian.Uint32(b))
	if v&1 == 0 {
		return wholeSmall(v)
	}
	return base&^v8Half | v
}

// wholeSmall returns a small integer as it is without compression; other words are returned as they are.
func wholeSmall(word uint64) uint64 {
	if word&1 == 0 {
		return uint64(uint32(int32(word)>>1)) << 32
	}
	return word
}

// field returns a field of an object that refers to another in its own cage.
func (vm *machine) field(object, at uint64) (uint64, bool) { return vm.fieldIn(object, at, object) }

// globalField returns one that refers to the first cage.
func (vm *machine) globalField(object, at uint64) (uint64, bool) {
	return vm.fieldIn(object, at, vm.cage)
}

func (vm *machine) fieldIn(object, at, base uint64) (uint64, bool) {
	ok := vm.read(object-1+at, vm.small[:vm.fields.at(8)])
	return vm.expand(vm.small[:], base), ok
}

// half returns the four bytes at an address, 0 where they cannot be read.
func (vm *machine) half(addr uint64) uint32 {
	if !vm.read(addr, vm.small[:4]) {
		return 0
	}
	return binary.LittleEndian.Uint32(vm.small[:])
}

// elements returns n elements of an array, from one on, that refer to the cage of base; nothing where they cannot be read.
func (vm *machine) elements(array, from, n, base uint64) []uint64 {
	width := vm.fields.at(8)
	b := make([]byte, width*n)
	if n == 0 || !vm.read(array-1+vm.fields.at(v8Data)+width*from, b) {
		return nil
	}
	words := make([]uint64, n)
	for i := range words {
		words[i] = vm.expand(b[uint64(i)*width:], base)
	}
	return words
}

// enter tries the cages of what may be a function of a frame, and of the bytecode there. Where there is none the other
// cage is known by the isolate.
func (vm *machine) enter(f *unwind.Frame, function, fp uint64) bool {
	if function&3 != 1 || function&vm.beyond != 0 || function>>32 == 0 {
		return false
	}
	vm.handleTable = handleTable{cage: function &^ v8Half, handles: map[uint32][]uint64{}, isolates: map[uint64]*isolate{}, root: vm.root, rootOf: vm.rootOf}
	vm.types = map[uint64]uint16{}
	caller, _ := vm.Mem.ReadWord(fp + 8)
	vm.codeCage = caller &^ v8Half // as good as any guess, of which the code itself must lead back
	vm.findIsolate(f)
	if code, ok := vm.Mem.ReadWord(fp - v8Bytecodes); ok && code&3 == 1 && code&vm.beyond == 0 && code>>32 != 0 && code&^v8Half != vm.cage {
		vm.onFrame = code
		if vm.trusted == 0 {
			vm.trusted = code &^ v8Half
		}
	}
	return vm.trusted != 0
}

// noteRegisters looks for the isolate where V8's code was interrupted: a register points to it.
func (vm *machine) noteRegisters(f *unwind.Frame) {
	if root, known := f.Regs.Value(vm.pointer.reg); known && vm.fields.compressed && f.Flags&unwind.Interrupted != 0 {
		vm.root, vm.rootOf = root, vm.Walk
	}
}

// findIsolate looks for the isolate of a stack, once a walk: by the register where V8's code was interrupted, or where what the frame has called
// has saved that.
func (vm *machine) findIsolate(f *unwind.Frame) {
	if vm.isolateOf == vm.Walk {
		return
	}
	vm.isolate, vm.isolateOf = nil, vm.Walk
	if vm.rootOf == vm.Walk {
		vm.isolate = vm.isolateAt(vm.root)
	}
	var saved [v8Saved]byte
	for n := uint64(v8Saved); vm.isolate == nil && n >= v8Saved/8; n /= 2 {
		b := saved[:n]
		if got := procstate.ReadPart(vm.Mem, f.SP()-n, b); got < len(b) {
			continue
		}
		for ; len(b) > 0 && vm.isolate == nil; b = b[8:] {
			// What calls into C++ for JavaScript passes the isolate, which is in whole pages.
			switch word := binary.LittleEndian.Uint64(b); word % codePage {
			case 0:
				vm.isolate = vm.isolateAt(word + vm.pointer.bias)
			case vm.pointer.bias:
				vm.isolate = vm.isolateAt(word)
			}
		}
		break
	}
	if vm.isolate == nil || vm.trusted != 0 {
		return
	}
	vm.eachTable(func(table uint64) bool {
		if table&v8Half == 0 && table != vm.cage {
			vm.trusted = table
		}
		return vm.trusted != 0
	})
}

// isolateAt returns the isolate with which V8's code may run with this in the register, nil where there is none.
func (vm *machine) isolateAt(root uint64) *isolate {
	now := time.Now()
	known := vm.isolates[root]
	if known != nil && vm.stands(known.checked, now) {
		return known
	}
	if !vm.isRoot(root) {
		delete(vm.isolates, root)
		return nil
	}
	if known == nil {
		if len(vm.isolates) >= maxV8Isolates {
			clear(vm.isolates)
		}
		known = &isolate{root: root}
		vm.isolates[root] = known
	}
	known.checked = now
	return known
}

// isRoot reports whether V8's code may run with this in the register: an isolate begins so far before, with the cage and its own address.
func (vm *machine) isRoot(root uint64) bool {
	if root%8 != 0 || root&vm.beyond != 0 || root>>32 == 0 {
		return false
	}
	cage, ok1 := vm.word(root - vm.pointer.bias)
	self, ok2 := vm.word(root - vm.pointer.bias + 8)
	return ok1 && ok2 && cage == vm.cage && self == root-vm.pointer.bias
}

// eachTable calls visit for what may be the address of a table, or of what begins with that, in what an isolate has, until it returns true.
func (vm *machine) eachTable(visit func(word uint64) bool) bool {
	var words [maxV8Isolate]byte
	if vm.isolate == nil || !vm.read(vm.isolate.root, words[:]) {
		return false
	}
	for b := words[:]; len(b) > 0; b = b[8:] {
		word := binary.LittleEndian.Uint64(b)
		if word%8 == 0 && word&vm.beyond == 0 && word>>32 != 0 && visit(word) {
			return true
		}
	}
	return false
}

// dataOf returns what a function has been compiled to.
func (vm *machine) dataOf(function uint64) (object uint64, ok bool) {
	if !vm.fields.compressed {
		return vm.field(function, v8FunctionData)
	}
	handle := vm.half(function - 1 + v8Handle)
	if handle == 0 {
		return 0, false
	}
	if vm.onFrame != 0 && vm.half(vm.onFrame-1+v8Handle) == handle {
		return vm.onFrame, true
	}
	return vm.resolve(handle)
}

// resolve returns the object that a handle stands for, which has the handle, too.
func (vm *machine) resolve(handle uint32) (object uint64, ok bool) {
	if vm.trusted == 0 || vm.isolate == nil {
		return 0, false
	}
	is := func(entry uint64) bool {
		v, ok := vm.word(entry)
		object = v&v8Address | 1
		return ok && object&^v8Half == vm.trusted && vm.half(object-1+v8Handle) == handle
	}
	isCode, index := handle&v8CodeHandle != 0, uint64(handle)>>v8ObjectIndex
	if !isCode && vm.isolate.objects != 0 {
		return object, is(vm.isolate.objects + 8*index)
	}
	found := vm.eachTable(func(table uint64) bool {
		switch {
		case table%codePage != 0:
			return false
		case isCode: // behind the address of its instructions, or alone in V8 14.9
			return is(table+16*index+8) || is(table+8*(uint64(handle)>>v8CodeIndex))
		case is(table + 8*index):
			vm.isolate.objects = table
			return true
		}
		return false
	})
	return object, found
}

// isHandleOf reports whether a function has a handle of bytecode, or of code that the baseline compiler has made of it.
func (vm *machine) isHandleOf(function, bytecode uint64) bool {
	handle := vm.half(function - 1 + v8Handle)
	return handle != 0 && (handle == vm.half(bytecode-1+v8Handle) || slices.Contains(vm.handles[handle], bytecode))
}

// keepHandle keeps the handle of code that the baseline compiler has made.
func (vm *machine) keepHandle(c *code) {
	if !vm.fields.compressed || c.bytecode == 0 {
		return
	}
	if len(vm.handles) >= maxFunctions {
		clear(vm.handles)
	}
	handle := binary.LittleEndian.Uint32(c.head[v8Handle:])
	if of := vm.handles[handle]; !slices.Contains(of, c.bytecode) {
		if len(of) >= maxDepth {
			of = nil
		}
		vm.handles[handle] = append(of, c.bytecode)
	}
}

// isObject reports whether an object may be at an address.
func (vm *machine) isObject(object uint64) bool {
	is, ok1 := vm.mapOf(object)
	of, ok2 := vm.mapOf(is)
	self, ok3 := vm.mapOf(of)
	return ok1 && ok2 && ok3 && of == self
}

// arePlain tells whether lengths of arrays are no small integers, by what is behind one that has no maps: another object, which begins with its map.
func (vm *machine) arePlain(array uint64) (plain, ok bool) {
	n := uint64(vm.half(array - 1 + vm.fields.at(v8Length)))
	behind := func(n uint64) uint64 { return array + vm.fields.at(v8Data) + vm.fields.at(8)*n }
	if n == 0 || n > maxListed {
		return false, false
	}
	if n%2 == 0 && vm.isObject(behind(n/2)) {
		return false, true
	}
	plain = vm.isObject(behind(n))
	return plain, plain
}

// codeOfStream returns the Code of the object at an address that instructions are in.
func (vm *machine) codeOfStream(at uint64) uint64 {
	var b [8]byte
	if vm.fields.compressed {
		vm.codeCage = at &^ v8Half
	}
	if n := procstate.ReadPart(vm.Mem, at+vm.fields.at(v8StreamCode), b[:]); n < len(b) {
		return 0
	}
	return vm.expand(b[:], vm.trusted)
}

// learnCompressed is learnCode of a V8 whose pointers are compressed: it learns where Code has what as well.
func (vm *machine) learnCompressed(object uint64, typ uint16) bool {
	f := vm.fields
	stream := vm.half(object - 1 + v8CodeStream)
	if stream&3 != 1 {
		return false
	}
	start, ok := vm.word(object - 1 + v8CodeEntry)
	at := vm.codeCage | uint64(stream)
	isEntry := ok && start&v8Half == uint64(stream)-1+f.header && start&vm.beyond == 0
	if isEntry {
		at = start&^v8Half | uint64(stream)
	}
	back, ok1 := vm.fieldIn(at, f.at(v8StreamCode), vm.trusted)
	of, ok2 := vm.mappedType(at)
	if !ok1 || !ok2 || back != object {
		return false
	}
	f.codeType, f.streamType = typ, of
	if isEntry {
		f.codeStart, f.codeFlags, f.codeSize = v8CodeEntry, 36, 40
	}
	return true
}

// learnKind learns the kind of code that the baseline compiler makes: that which has bytecode. It has been 10, the next one
// being of an optimising compiler, and is 11.
func (vm *machine) learnKind(kind uint32, data uint64) {
	const first, later = 10, 11
	typ, ok := vm.typeOf(data)
	switch {
	case !ok || kind != first && kind != later:
	case typ == vm.fields.bytecodeType:
		vm.fields.baseline = kind
	case kind == later && vm.fields.baseline == later:
		of, _ := vm.field(data, vm.fields.at(v8Data+8*vm.fields.optimized))
		if _, isOptimized := vm.unwrapped(of); isOptimized {
			vm.fields.baseline = first
		}
	}
}

// fit reports whether a table of positions is of the bytecode at an address: each but that of the entry is of a bytecode.
func (vm *machine) fit(positions []positionEntry, addr uint64) bool {
	code := vm.codeOf(addr)
	at := int32(0)
	for _, p := range positions {
		for at < p.off && int(at) < len(code) {
			size := vm.fields.bytecodeSize(code[at:])
			if size == 0 {
				return false
			}
			at += int32(size)
		}
		if p.off >= 0 && (at != p.off || int(at) >= len(code)) || p.position < -1 || p.inlined >= 0 {
			return false
		}
	}
	return true
}

// fits reports whether the tables of optimised code are of that.
func (c *code) fits() bool {
	for _, p := range c.positions {
		if uint64(p.off+1) > c.size || int(p.inlined) >= len(c.inlining) {
			return false
		}
	}
	for _, in := range c.inlining {
		if int(in.function) >= len(c.inlined) || int(in.sourcePlace.inlined) >= len(c.inlining) {
			return false
		}
	}
	return true
}

// entry returns the address and the tag that a handle stands for in a table of what is not in the heap.
func (vm *machine) entry(table uint64, handle uint32) (addr, tag uint64) {
	entry, ok := vm.word(table + uint64(handle)>>v8TextIndex*8)
	if !ok || entry&v8Address < codePage {
		return 0, 0
	}
	return entry & v8Address, entry & v8EntryTag
}

// characters returns where the characters of an external string are, 0 where that is not known. Where the string does not tell, its
// resource does (v8::String::ExternalOneByteStringResource), behind the address of its functions.
func (vm *machine) characters(object uint64, typ uint16) uint64 {
	in, at := vm.isolate, vm.fields.stringAt(v8StringSecond)
	if in == nil || in.texts == 0 {
		return 0
	}
	tag := in.textTag
	if typ&v8Uncached != 0 {
		tag, at = in.resourceTag, vm.fields.stringAt(v8StringData)
	}
	addr, is := vm.entry(in.texts, vm.half(object-1+at))
	if is != tag {
		return 0
	}
	if typ&v8Uncached != 0 {
		addr, _ = vm.word(addr + 8)
	}
	return addr
}

// findTexts looks for the table of characters that are not in the heap, by a function whose source has it begin with its parameters,
// behind its name, and end. If the name is such characters, too, it is read.
func (vm *machine) findTexts(scope *scopeInfo, script uint64) {
	in := vm.isolate
	if !vm.fields.compressed || in == nil || in.texts != 0 || in.textTries >= maxV8Tries || scope.start <= 0 || scope.end <= scope.start {
		return
	}
	source, _ := vm.field(script, vm.fields.at(v8ScriptSource))
	typ, _ := vm.typeOf(source)
	n, ok := vm.textLength(source)
	if !ok || typ&(v8StringKind|v8Uncached) != v8External || uint64(scope.end) > n {
		return
	}
	in.textTries++
	resource := vm.half(source - 1 + vm.fields.stringAt(v8StringData))
	handle := vm.half(source - 1 + vm.fields.stringAt(v8StringSecond))
	is := func(table uint64) bool {
		_, in.resourceTag = vm.entry(table, resource)
		_, in.textTag = vm.entry(table, handle)
		if in.resourceTag == 0 || in.textTag == 0 {
			return false
		}
		in.texts = table
		if scope.begins(vm, source) {
			return true
		}
		in.texts = 0
		return false
	}
	vm.eachTable(func(word uint64) bool {
		if word%codePage == 0 && is(word) {
			return true
		}
		table, ok := vm.word(word)
		return ok && table%codePage == 0 && table&vm.beyond == 0 && table >= codePage && is(table)
	})
}

// begins reports whether a source has a function where its scope is said to be, and reads its name if that was not read.
func (is *scopeInfo) begins(vm *machine, source uint64) bool {
	in, ok := vm.textAt(source)
	at := func(i int32) byte {
		if i < 0 || !ok || !vm.read(in.addr+uint64(i)*in.width, vm.small[:in.width]) || in.width == 2 && vm.small[1] != 0 {
			return 0
		}
		return vm.small[0]
	}
	if at(is.start) != '(' || at(is.end-1) != '}' || at(int32(in.n)-1) == 0 {
		return false
	}
	name := is.name
	if is.unread != 0 {
		if name = vm.text(is.unread); name == "" {
			return false
		}
	}
	for i := range name {
		if at(is.start-int32(len(name)-i)) != name[i] {
			return false
		}
	}
	is.name, is.unread = name, 0
	return true
}
