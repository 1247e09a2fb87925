package clr

import (
	"encoding/binary"
	"path"
	"slices"
	"sort"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of the virtual machine of a process.
type machine struct {
	vmread.Memory
	vmread.Found
	image     *image // nil: there is none
	arch      *arch
	fields    *fields
	pdbs      *pdbs
	root, dir string             // the directories that it has for one, and that its program is in
	of        *procstate.Mapping // of its code: another once the process has executed a program
	bias      uint64
	rangeMap  uint64 // address of the map of all code; 0: not known
	lookAgain time.Time

	sections  []codeSection // by where they begin
	missed    map[uint64]time.Time
	functions map[uint64]*function // by where the code begins
	at        map[uint64]*function // by address
	methods   map[uint64]*method   // by their MethodDescs
	modules   map[uint64]*module
	parts     map[uint64]debugInfo // of modules compiled ahead, by their ReadyToRunInfo: the list of what functions have

	codes  map[uint64]placeCode // by address
	resets int                  // of unwind.Codes
}

// codeSection is a part of the memory for code: a heap, or a module that was compiled ahead.
type codeSection struct {
	low, high uint64
	heapBase  uint64 // where the addresses begin that its map tells of,
	heapMap   uint64 // which is here; 0: it is no heap
	module    uint64 // a ReadyToRunInfo
	isStubs   bool   // short code that jumps on to methods
}

// function is a range of code that has its own unwind information: a method, a part of it that handles
// exceptions, or a part that was put elsewhere.
type function struct {
	begin, end uint64
	start      uint64 // where the method's code begins
	header     uint64 // of code made at run time, what stands before that; 0 of other
	method     uint64 // its MethodDesc; 0: not known
	debug      debugInfo
	ahead      ahead // where debug is to be looked for
	checked    time.Time
	unwindInfo
}

// Limits on what is kept of a process, and on what is read of it.
const (
	maxSections  = 1 << 12
	maxFragments = 1 << 8 // in one place of the map
	maxFunctions = 1 << 15
	maxPlaces    = 1 << 16
	maxMissed    = 1 << 12
	maxCodes     = 1 << 17
	maxMethods   = 1 << 15
	maxModules   = 1 << 12
	maxBack      = 1 << 20 // words of a heap's map that are looked at
	maxParts     = 1 << 10 // of a method
	maxBuckets   = 1 << 24
	maxProbes    = 1 << 8

	interval = 100 * time.Millisecond // after which what was read is looked at again
	soon     = 5 * time.Millisecond   // after which what was not there is looked for again
	page     = 12                     // bits of addresses that are missed together
)

// machine returns the virtual machine of the process that w walks, nil when there is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, _ := vmread.MachineOf(w, s, s.findMachine)
	if vm.image == nil || !vm.begin() {
		return nil
	}
	return vm
}

// findMachine looks for the virtual machine, which may be the one that is known.
func (s *Stepper) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	if libs != nil {
		for _, lib := range libs.Libraries() {
			if lib.Image == nil {
				continue
			}
			p := s.image(lib.Image)
			if p.table == 0 {
				continue
			}
			of := libs.MappingAt(mcode.Begin(lib.Image) + lib.Bias)
			if known != nil && known.of == of && known.image == p {
				return known
			}
			vm := &machine{Memory: vmread.MemoryOf(w), image: p, arch: archs[w.Arch()], of: of, bias: lib.Bias, pdbs: &s.pdbs, root: rootOf(w.ProcessState()), dir: path.Dir(w.ProcessState().ExecutablePath())}
			vm.forget()
			return vm
		}
	}
	return &machine{}
}

// forget makes the process one of which nothing is known.
func (vm *machine) forget() {
	vm.sections, vm.rangeMap, vm.Kept = nil, 0, 0
	vm.missed = map[uint64]time.Time{}
	vm.functions, vm.at = map[uint64]*function{}, map[uint64]*function{}
	vm.methods, vm.modules = map[uint64]*method{}, map[uint64]*module{}
	vm.parts = map[uint64]debugInfo{}
	vm.codes = nil
}

// begin finds the map of all code, once the machine has made it. It reports whether it is known.
func (vm *machine) begin() bool {
	if vm.rangeMap != 0 {
		return true
	}
	now := time.Now()
	if now.Sub(vm.lookAgain) < soon {
		return false
	}
	vm.lookAgain = now
	p := vm.image
	if p.fields == nil && !p.isAsked {
		p.fields, p.isAsked = readFields(vm.ReadNow, p.descriptor+vm.bias, vm.arch.functionBytes)
	}
	if vm.fields = p.fields; vm.fields == nil {
		return false
	}
	at := p.table + vm.bias // its first word
	if vm.fields.isTold {
		at = vm.wordAt(p.descriptor+vm.bias+descriptorPointers) + 8*vm.fields.rangeMap
	}
	vm.rangeMap = vm.wordAt(at)
	return vm.rangeMap != 0
}

// wordAt returns a word of memory as it is now, 0 where that cannot be read.
func (vm *machine) wordAt(addr uint64) uint64 {
	v, _ := vm.WordNow(addr)
	return v
}

// sectionAt returns the section of code that holds an address, nil when there is none.
func (vm *machine) sectionAt(addr uint64) *codeSection {
	i := sort.Search(len(vm.sections), func(i int) bool { return vm.sections[i].high > addr })
	if i < len(vm.sections) && vm.sections[i].low <= addr {
		return &vm.sections[i]
	}
	s, ok := vm.findSection(addr)
	if !ok {
		return nil
	}
	vm.sections = slices.DeleteFunc(vm.sections, func(o codeSection) bool { return o.low < s.high && s.low < o.high })
	if len(vm.sections) >= maxSections {
		vm.sections = vm.sections[:0]
	}
	i = sort.Search(len(vm.sections), func(i int) bool { return vm.sections[i].low >= s.high })
	vm.sections = slices.Insert(vm.sections, i, s)
	return &vm.sections[i]
}

// isStub reports whether pc is in code that jumps on to methods, and has no frame of its own.
func (vm *machine) isStub(pc uint64) bool {
	s := vm.sectionAt(pc)
	return s != nil && s.isStubs
}

// findSection looks for a section in the map: five levels by bits of the address, then a list. The lowest bit of
// a pointer tells that what is there can be unloaded.
func (vm *machine) findSection(addr uint64) (s codeSection, ok bool) {
	const levels, bits, first = 5, 8, 17
	at := vm.rangeMap
	for level := levels - 1; level >= 0; level-- {
		at += 8 * (addr >> (first + bits*level) & (1<<bits - 1))
		if at = vm.wordAt(at) &^ 1; at == 0 {
			return s, false
		}
	}
	var fragment [clrFragmentBytes]byte
	le := binary.LittleEndian
	for range maxFragments {
		if at == 0 || !vm.ReadNow(at, fragment[:]) {
			return s, false
		}
		if low, high := le.Uint64(fragment[clrFragmentLow:]), le.Uint64(fragment[clrFragmentHigh:]); addr-low < high-low {
			return vm.readSection(le.Uint64(fragment[clrFragmentSection:]), addr)
		}
		at = le.Uint64(fragment[clrFragmentNext:]) &^ 1
	}
	return s, false
}

// readSection reads a RangeSection, which must hold addr.
func (vm *machine) readSection(at, addr uint64) (s codeSection, ok bool) {
	f := vm.fields
	s.low, s.high = vm.wordAt(at+clrSectionLow), vm.wordAt(at+clrSectionHigh)
	if addr-s.low >= s.high-s.low {
		return s, false
	}
	switch flags := vm.wordAt(at + f.sectionFlags); {
	case flags&clrSectionIsHeap != 0:
		heap := vm.wordAt(at + f.sectionHeap)
		s.heapBase, s.heapMap = vm.wordAt(heap+clrHeapBase), vm.wordAt(heap+clrHeapMap)
		return s, s.heapMap != 0
	case flags&clrSectionIsStubs != 0:
		s.isStubs = true
		return s, true
	}
	s.module = vm.wordAt(vm.wordAt(at+f.sectionModule) + f.readyToRun)
	if composite := vm.wordAt(s.module + f.composite); composite != 0 {
		s.module = composite
	}
	return s, s.module != 0
}

// functionAt returns the function of the virtual machine that has the code at pc, nil when there is none.
func (vm *machine) functionAt(pc uint64) *function {
	f, now := vm.at[pc], time.Now()
	if f != nil && vm.stays(f, now) {
		return f
	}
	if t, missed := vm.missed[pc>>page]; missed && now.Sub(t) < soon {
		return nil
	}
	s := vm.sectionAt(pc)
	switch {
	case s == nil || s.isStubs:
		if len(vm.missed) >= maxMissed {
			clear(vm.missed)
		}
		vm.missed[pc>>page] = now
		return nil
	case s.heapMap != 0:
		f = vm.madeFunction(s, pc)
	default:
		f = vm.aheadFunction(s, pc)
	}
	if f == nil {
		return nil
	}
	f.checked = now
	if len(vm.at) >= maxPlaces || len(vm.functions) >= maxFunctions {
		clear(vm.at)
		clear(vm.functions)
	}
	if known := vm.functions[f.begin]; known != nil && known.isSame(f) {
		known.checked = now
		f = known
	}
	vm.functions[f.begin], vm.at[pc] = f, f
	return f
}

// isSame reports whether two functions that begin at the same address are the same.
func (f *function) isSame(o *function) bool {
	return f.end == o.end && f.header == o.header && f.method == o.method
}

// stays reports whether a function is still what it was: of a process that has ended all is.
func (vm *machine) stays(f *function, now time.Time) bool {
	if f.header != 0 && now.Sub(f.checked) >= interval && !vm.HasEnded(vm.of.Image, vm.bias) {
		header, ok := vm.WordNow(f.start - 8)
		if !ok || header != f.header || vm.wordAt(header+clrHeaderMethod) != f.method {
			return false
		}
		f.checked = now
	}
	return true
}

// madeFunction returns the function at pc of a heap, whose code was made at run time.
func (vm *machine) madeFunction(s *codeSection, pc uint64) *function {
	start, ok := vm.startAt(s, pc)
	if !ok {
		return nil
	}
	var head [clrHeaderBytes]byte
	header := vm.wordAt(start - 8)
	if header <= clrLastStub || !vm.ReadNow(header, head[:]) {
		return nil
	}
	le := binary.LittleEndian
	f := &function{start: start, header: header, method: le.Uint64(head[clrHeaderMethod:])}
	f.debug = debugInfo{le.Uint64(head[clrHeaderDebug:]), vm.fields.debug, true}
	for i := range min(le.Uint32(head[clrHeaderCount:]), maxParts) {
		if vm.readFunction(f, s.low, header+clrHeaderBytes+vm.arch.functionBytes*uint64(i), pc) {
			return f
		}
	}
	return nil
}

// startAt returns where the code begins that pc is in, by the map of a heap. That has four bits for each 32 bytes
// of code: 0, or how many words of four bytes into these code begins, plus one. With quickMap a word of it, the
// lowest bits of which are more than 8, is the distance of code that it is all within.
func (vm *machine) startAt(s *codeSection, pc uint64) (start uint64, ok bool) {
	const (
		covers, align = 32, 4
		inWord        = 8
		most          = 8 // the greatest that tells of where code begins
	)
	if pc < s.heapBase {
		return 0, false
	}
	rel := pc - s.heapBase
	index := rel / covers
	var words [256]byte
	at := index / inWord // the word to look at
	from := at + 1       // what of the map is in words
	for range maxBack {
		if at < from {
			from = at - min(at, uint64(len(words)/4-1))
			if !vm.ReadNow(s.heapMap+4*from, words[:4*(at-from+1)]) {
				return 0, false
			}
		}
		word := binary.LittleEndian.Uint32(words[4*(at-from):])
		if n := word & 15; vm.fields.quickMap && n > most {
			return s.heapBase + uint64(word&^15+(n-most-1)*align), true
		}
		for i := min(index, at*inWord+inWord-1); ; i-- {
			n := uint64(word >> (28 - 4*(i%inWord)) & 15)
			if begins := i*covers + (n-1)*align; n != 0 && n <= most && begins <= rel {
				return s.heapBase + begins, true
			}
			if i%inWord == 0 {
				break
			}
		}
		if at == 0 {
			return 0, false
		}
		at--
	}
	return 0, false
}

// readFunction reads a RUNTIME_FUNCTION, whose addresses count from base, and its unwind information into f. It
// reports whether pc is in it.
func (vm *machine) readFunction(f *function, base, at, pc uint64) bool {
	var buf [maxFunctionBytes]byte
	b := buf[:vm.arch.functionBytes]
	return vm.ReadNow(at, b) && vm.arch.readUnwind(f, vm.ReadNow, base, b) && pc-f.begin < f.end-f.begin
}

// aheadFunction returns the function at pc of a module that was compiled ahead: its functions are sorted.
func (vm *machine) aheadFunction(s *codeSection, pc uint64) *function {
	fields := vm.fields
	functions, count := vm.wordAt(s.module+fields.functions), vm.wordAt(s.module+fields.count)&0xffffffff
	begins := func(i int) uint64 {
		var b [4]byte
		if !vm.ReadNow(functions+vm.arch.functionBytes*uint64(i), b[:]) {
			return 0
		}
		return s.low + uint64(binary.LittleEndian.Uint32(b[:]))
	}
	n := sort.Search(int(count), func(i int) bool { return begins(i) > pc }) - 1
	f := &function{ahead: ahead{module: s.module, base: s.low}}
	if n < 0 || !vm.readFunction(f, s.low, functions+vm.arch.functionBytes*uint64(n), pc) {
		return nil
	}
	// Which method it is tells a map of where methods begin that were called. What handles
	// exceptions follows its method. Cold parts are elsewhere.
	f.start = f.begin
	if vm.wordAt(s.module+fields.splits)&0xffffffff != 0 {
		return f
	}
	for i := n; i >= 0 && n-i < maxParts; i-- {
		if i < n {
			f.start = begins(i)
		}
		if f.method = vm.entry(s.module+fields.entries, f.start); f.method != 0 {
			f.ahead.index = uint32(i)
			return f
		}
	}
	f.start = f.begin
	return f
}

// entry looks for a key in a HashMap; 0: it is not there.
func (vm *machine) entry(hashMap, key uint64) uint64 {
	const highest = 1 << 63
	buckets := vm.wordAt(hashMap + clrBuckets)
	n := vm.wordAt(buckets) & 0xffffffff
	if buckets == 0 || n < 2 || n > maxBuckets {
		return 0
	}
	le := binary.LittleEndian
	seed, step := uint32(key>>2), 1+(uint32(key>>5)+1)%uint32(n-1)
	var b [clrBucketBytes]byte
	for range min(n, maxProbes) {
		if !vm.ReadNow(buckets+clrBucketBytes*(1+uint64(seed)%n), b[:]) {
			return 0
		}
		for i := range clrBucketSlots {
			if le.Uint64(b[8*i:]) == key {
				return le.Uint64(b[clrBucketBytes/2+8*i:]) &^ highest << 1
			}
		}
		if le.Uint64(b[clrBucketBytes/2:])&highest == 0 { // nothing that was to be here is elsewhere
			return 0
		}
		seed += step
	}
	return 0
}
