package steppers

import (
	"encoding/binary"
	"slices"
	"sort"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// clrVM is what is known of the virtual machine of a process.
type clrVM struct {
	vmMemory
	vmFound
	image     *clrImage // nil: there is none
	fields    *clrFields
	of        *procstate.Mapping // of its code: another once the process has executed a program
	bias      uint64
	rangeMap  uint64 // address of the map of all code; 0: not known
	lookAgain time.Time

	sections  []clrSection // by where they begin
	missed    map[uint64]time.Time
	functions map[uint64]*clrFunction // by where the code begins
	at        map[uint64]*clrFunction // by address
	methods   map[uint64]*clrMethod   // by their MethodDescs
	modules   map[uint64]*clrModule

	codes  map[uint64]uint32 // numbers in unwind.Codes, by address
	resets int               // of these
}

// clrSection is a part of the memory for code: a heap, or a module that was compiled ahead.
type clrSection struct {
	low, high uint64
	heapBase  uint64 // where the addresses begin that its map tells of,
	heapMap   uint64 // which is here; 0: it is no heap
	module    uint64 // a ReadyToRunInfo
	isStubs   bool   // short code that jumps on to methods
}

// clrFunction is a range of code that has its own unwind information: a method, a part of it that handles
// exceptions, or a part that was put elsewhere.
type clrFunction struct {
	begin, end uint64
	start      uint64 // where the method's code begins
	header     uint64 // of code made at run time, what stands before that; 0 of other
	method     uint64 // its MethodDesc; 0: not known
	checked    time.Time
	clrUnwind
}

// Limits on what is kept of a process, and on what is read of it.
const (
	maxCLRSections  = 1 << 12
	maxCLRFragments = 1 << 8 // in one place of the map
	maxCLRFunctions = 1 << 15
	maxCLRPlaces    = 1 << 16
	maxCLRMissed    = 1 << 12
	maxCLRCodes     = 1 << 17
	maxCLRMethods   = 1 << 15
	maxCLRModules   = 1 << 12
	maxCLRBack      = 1 << 20 // words of a heap's map that are looked at
	maxCLRParts     = 1 << 10 // of a method
	maxCLRBuckets   = 1 << 24
	maxCLRProbes    = 1 << 8

	clrInterval = 100 * time.Millisecond // after which what was read is looked at again
	clrSoon     = 5 * time.Millisecond   // after which what was not there is looked for again
	clrPage     = 12                     // bits of addresses that are missed together
)

// machine returns the virtual machine of the process that w walks, nil when there is none.
func (s *CLR) machine(w *unwind.Walker) *clrVM {
	vm, _ := machineOf(w, s, s.findMachine)
	if vm.image == nil || !vm.begin() {
		return nil
	}
	return vm
}

// findMachine looks for the virtual machine, which may be the one that is known.
func (s *CLR) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *clrVM) *clrVM {
	if libs != nil {
		for _, lib := range libs.Libraries() {
			if lib.Image == nil {
				continue
			}
			p := s.image(lib.Image)
			if p.table == 0 {
				continue
			}
			of := libs.MappingAt(codeBegin(lib.Image) + lib.Bias)
			if known != nil && known.of == of && known.image == p {
				return known
			}
			vm := &clrVM{vmMemory: vmMemoryOf(w), image: p, of: of, bias: lib.Bias}
			vm.forget()
			return vm
		}
	}
	return &clrVM{}
}

// forget makes the process one of which nothing is known.
func (vm *clrVM) forget() {
	vm.sections, vm.rangeMap, vm.kept = nil, 0, 0
	vm.missed = map[uint64]time.Time{}
	vm.functions, vm.at = map[uint64]*clrFunction{}, map[uint64]*clrFunction{}
	vm.methods, vm.modules = map[uint64]*clrMethod{}, map[uint64]*clrModule{}
	vm.codes = nil
}

// begin finds the map of all code, once the machine has made it. It reports whether it is known.
func (vm *clrVM) begin() bool {
	if vm.rangeMap != 0 {
		return true
	}
	now := time.Now()
	if now.Sub(vm.lookAgain) < clrSoon {
		return false
	}
	vm.lookAgain = now
	p := vm.image
	if p.fields == nil && !p.isAsked {
		p.fields, p.isAsked = readCLRFields(vm.readNow, p.descriptor+vm.bias)
	}
	if vm.fields = p.fields; vm.fields == nil {
		return false
	}
	at := p.table + vm.bias // its first word
	if vm.fields.isTold {
		at = vm.wordAt(p.descriptor+vm.bias+clrDescriptorPointers) + 8*vm.fields.rangeMap
	}
	vm.rangeMap = vm.wordAt(at)
	return vm.rangeMap != 0
}

// wordAt returns a word of memory as it is now, 0 where that cannot be read.
func (vm *clrVM) wordAt(addr uint64) uint64 {
	v, _ := vm.wordNow(addr)
	return v
}

// sectionAt returns the section of code that holds an address, nil when there is none.
func (vm *clrVM) sectionAt(addr uint64) *clrSection {
	i := sort.Search(len(vm.sections), func(i int) bool { return vm.sections[i].high > addr })
	if i < len(vm.sections) && vm.sections[i].low <= addr {
		return &vm.sections[i]
	}
	s, ok := vm.findSection(addr)
	if !ok {
		return nil
	}
	vm.sections = slices.DeleteFunc(vm.sections, func(o clrSection) bool { return o.low < s.high && s.low < o.high })
	if len(vm.sections) >= maxCLRSections {
		vm.sections = vm.sections[:0]
	}
	i = sort.Search(len(vm.sections), func(i int) bool { return vm.sections[i].low >= s.high })
	vm.sections = slices.Insert(vm.sections, i, s)
	return &vm.sections[i]
}

// isStub reports whether pc is in code that jumps on to methods, and has no frame of its own.
func (vm *clrVM) isStub(pc uint64) bool {
	s := vm.sectionAt(pc)
	return s != nil && s.isStubs
}

// findSection looks for a section in the map: five levels by bits of the address, then a list. The lowest bit of
// a pointer tells that what is there can be unloaded.
func (vm *clrVM) findSection(addr uint64) (s clrSection, ok bool) {
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
	for range maxCLRFragments {
		if at == 0 || !vm.readNow(at, fragment[:]) {
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
func (vm *clrVM) readSection(at, addr uint64) (s clrSection, ok bool) {
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
func (vm *clrVM) functionAt(pc uint64) *clrFunction {
	f, now := vm.at[pc], time.Now()
	if f != nil && vm.stays(f, now) {
		return f
	}
	if t, missed := vm.missed[pc>>clrPage]; missed && now.Sub(t) < clrSoon {
		return nil
	}
	s := vm.sectionAt(pc)
	switch {
	case s == nil || s.isStubs:
		if len(vm.missed) >= maxCLRMissed {
			clear(vm.missed)
		}
		vm.missed[pc>>clrPage] = now
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
	if len(vm.at) >= maxCLRPlaces || len(vm.functions) >= maxCLRFunctions {
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
func (f *clrFunction) isSame(o *clrFunction) bool {
	return f.end == o.end && f.header == o.header && f.method == o.method
}

// stays reports whether a function is still what it was.
func (vm *clrVM) stays(f *clrFunction, now time.Time) bool {
	if f.header != 0 && now.Sub(f.checked) >= clrInterval {
		header, ok := vm.wordNow(f.start - 8)
		if !ok || header != f.header || vm.wordAt(header+clrHeaderMethod) != f.method {
			return false
		}
		f.checked = now
	}
	return true
}

// madeFunction returns the function at pc of a heap, whose code was made at run time.
func (vm *clrVM) madeFunction(s *clrSection, pc uint64) *clrFunction {
	start, ok := vm.startAt(s, pc)
	if !ok {
		return nil
	}
	var head [clrHeaderBytes]byte
	header := vm.wordAt(start - 8)
	if header <= clrLastStub || !vm.readNow(header, head[:]) {
		return nil
	}
	le := binary.LittleEndian
	f := &clrFunction{start: start, header: header, method: le.Uint64(head[clrHeaderMethod:])}
	for i := range min(le.Uint32(head[clrHeaderCount:]), maxCLRParts) {
		if vm.readFunction(f, s.low, header+clrHeaderBytes+clrFunctionBytes*uint64(i), pc) {
			return f
		}
	}
	return nil
}

// startAt returns where the code begins that pc is in, by the map of a heap. That has four bits for each 32 bytes
// of code: 0, or how many words of four bytes into these code begins, plus one. With quickMap a word of it, the
// lowest bits of which are more than 8, is the distance of code that it is all within.
func (vm *clrVM) startAt(s *clrSection, pc uint64) (start uint64, ok bool) {
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
	for range maxCLRBack {
		if at < from {
			from = at - min(at, uint64(len(words)/4-1))
			if !vm.readNow(s.heapMap+4*from, words[:4*(at-from+1)]) {
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
func (vm *clrVM) readFunction(f *clrFunction, base, at, pc uint64) bool {
	var b [clrFunctionBytes]byte
	if !vm.readNow(at, b[:]) {
		return false
	}
	le := binary.LittleEndian
	f.begin, f.end = base+uint64(le.Uint32(b[:])), base+uint64(le.Uint32(b[4:]))
	return pc-f.begin < f.end-f.begin && f.readUnwind(vm.readNow, base, uint64(le.Uint32(b[8:])))
}

// aheadFunction returns the function at pc of a module that was compiled ahead: its functions are sorted.
func (vm *clrVM) aheadFunction(s *clrSection, pc uint64) *clrFunction {
	fields := vm.fields
	functions, count := vm.wordAt(s.module+fields.functions), vm.wordAt(s.module+fields.count)&0xffffffff
	begins := func(i int) uint64 {
		var b [4]byte
		if !vm.readNow(functions+clrFunctionBytes*uint64(i), b[:]) {
			return 0
		}
		return s.low + uint64(binary.LittleEndian.Uint32(b[:]))
	}
	n := sort.Search(int(count), func(i int) bool { return begins(i) > pc }) - 1
	f := &clrFunction{}
	if n < 0 || !vm.readFunction(f, s.low, functions+clrFunctionBytes*uint64(n), pc) {
		return nil
	}
	// Which method it is tells a map of where methods begin that were called. What handles
	// exceptions follows its method. Cold parts are elsewhere.
	f.start = f.begin
	if vm.wordAt(s.module+fields.splits)&0xffffffff != 0 {
		return f
	}
	for i := n; i >= 0 && n-i < maxCLRParts; i-- {
		if i < n {
			f.start = begins(i)
		}
		if f.method = vm.entry(s.module+fields.entries, f.start); f.method != 0 {
			return f
		}
	}
	f.start = f.begin
	return f
}

// entry looks for a key in a HashMap; 0: it is not there.
func (vm *clrVM) entry(hashMap, key uint64) uint64 {
	const highest = 1 << 63
	buckets := vm.wordAt(hashMap + clrBuckets)
	n := vm.wordAt(buckets) & 0xffffffff
	if buckets == 0 || n < 2 || n > maxCLRBuckets {
		return 0
	}
	le := binary.LittleEndian
	seed, step := uint32(key>>2), 1+(uint32(key>>5)+1)%uint32(n-1)
	var b [clrBucketBytes]byte
	for range min(n, maxCLRProbes) {
		if !vm.readNow(buckets+clrBucketBytes*(1+uint64(seed)%n), b[:]) {
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
