package pypy

import (
	"encoding/binary"
	"path"
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of PyPy in a process.
type machine struct {
	vmread.Memory
	vmread.Found

	*image // nil: there is none
	module procstate.Library

	known    map[uint64]*unwind.CodeFunction // by number
	objects  map[uint64]object               // PyCodes by number, as they were listed
	listed   []uint64                        // the weak references that were looked at
	at       time.Time                       // when that was done,
	wholeAt  time.Time                       // and when with all of them,
	wait     time.Duration                   // and how long not to do it again
	unlisted []code                          // keys of numbers for what lacks functions, which may be found yet,
	retried  time.Time                       // when they were looked for again,
	misses   map[uint64]int                  // and how often each was not found

	numbers map[code]uint32 // numbers in unwind.Codes
	resets  int             // of unwind.Codes, when these began

	blocks   []*block             // of compiled code, by where they begin
	serial   uint32               // of the last of them
	others   map[uint64]time.Time // addresses that are in none, and when that was found out
	head     uint64               // of PyPy's list of them; 0: not known
	searched time.Time            // when that was looked for

	calls, outer []uint64 // for block.calls
	ahead        [2]unwind.Frame

	// SP of the last frame whose innermost function is shown with what it has called, and in which walk.
	shownAt, shownIn uint64
}

// object is a code object, which one of the weak references is to.
type object struct {
	at  uint64
	ref int
}

// code is what a frame runs: a function of the interpreter by its number, or what compiled code has at a place.
type code struct {
	function  uint64
	block     uint32 // its serial; 0: it is that function
	place     int
	isWithout bool // the innermost one
}

const (
	maxFunctions = 1 << 17
	maxCodes     = 1 << 18
	maxHandles   = 1 << 20
	maxString    = 1 << 12

	// How long the list of code objects counts as being still the same, and weak references that were looked at, at least
	// and at most.
	listInterval = 100 * time.Millisecond
	leastWait    = time.Second
	mostWait     = time.Minute
	// How often functions that are not found are looked for again.
	missInterval = 200 * time.Millisecond
	maxMisses    = 10
)

// findMachine looks for PyPy, which may be the one that is known. What it returns has no image where there is none.
func (s *Stepper) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	if libs == nil {
		return &machine{}
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.layout == nil {
			continue
		}
		if known != nil && known.module.Image == lib.Image && known.module.Bias == lib.Bias {
			return known
		}
		return &machine{
			Memory: vmread.MemoryOf(w), image: p, module: lib, known: map[uint64]*unwind.CodeFunction{},
			objects: map[uint64]object{}, misses: map[uint64]int{}, wait: leastWait, others: map[uint64]time.Time{},
		}
	}
	return &machine{}
}

// machine returns what is known of PyPy in the process that w walks, nil where there is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, _ := vmread.MachineOf(w, s, s.findMachine)
	if vm.image == nil {
		return nil
	}
	if codes := w.Codes(); vm.numbers == nil || vm.resets != codes.Resets() {
		vm.numbers, vm.resets = map[code]uint32{}, codes.Resets()
	}
	if len(vm.unlisted) > 0 && time.Since(vm.retried) >= missInterval {
		for _, key := range vm.unlisted {
			delete(vm.numbers, key)
		}
		vm.unlisted, vm.retried = vm.unlisted[:0], time.Now()
	}
	return vm
}

// isNumber reports whether a word may be the number of a code object: they count from 8 on, by 4.
func isNumber(number uint64) bool {
	const least, step, most = 8, 4, 1 << 32
	return number >= least && number%step == 0 && number < most
}

// interpreted returns the number in codes of the function that a frame of the interpreter runs.
func (vm *machine) interpreted(codes *unwind.Codes, number uint64) uint32 {
	if !isNumber(number) {
		return 0
	}
	return vm.inlined(codes, []uint64{number}, code{function: number}, 0)
}

// inlined returns the number in codes of the functions that run in compiled code, outermost first, whose
// code begins at an address; of that of the interpreter, which has none, it is one function.
func (vm *machine) inlined(codes *unwind.Codes, calls []uint64, key code, start uint64) uint32 {
	n, ok := vm.numbers[key]
	if ok || len(vm.numbers) >= maxCodes {
		return n
	}
	var lines []unwind.CodeLine
	isFinal := true
	for _, number := range slices.Backward(calls) {
		if number == 0 {
			continue // what is written in RPython, and calls Python
		}
		fn := vm.function(number)
		isFinal = isFinal && (fn != notRead || vm.misses[number] >= maxMisses)
		lines = append(lines, unwind.CodeLine{CodeFunction: fn, IsCompiled: key.block != 0})
	}
	n = codes.Add(start, lines, 0)
	if vm.numbers[key] = n; !isFinal {
		vm.unlisted = append(vm.unlisted, key)
	}
	return n
}

// runtime is the CodeFunction.Runtime of Python.
const runtime = "python"

// notRead is what stands for functions that were gone before they were read, as what exec has made can be.
var notRead = &unwind.CodeFunction{Name: "[not read]", SystemName: "[not read]", Runtime: runtime}

// function returns the function of a code object's number.
func (vm *machine) function(number uint64) *unwind.CodeFunction {
	if fn := vm.known[number]; fn != nil {
		return fn
	}
	if vm.objects[number].at == 0 {
		vm.list(number)
	}
	is := vm.objects[number]
	fn := vm.readFunction(is.at, number)
	if fn == nil {
		if is.at != 0 { // it has moved, or is no more
			vm.listed[is.ref] = 0
			delete(vm.objects, number)
		}
		if len(vm.misses) >= maxFunctions {
			clear(vm.misses)
		}
		vm.misses[number]++
		return notRead
	}
	if len(vm.known) >= maxFunctions || vm.Kept >= vmread.MaxKept {
		clear(vm.known)
		vm.Kept = 0
	}
	vm.known[number] = fn
	vm.Kept += len(fn.Name) + len(fn.File)
	return fn
}

// list looks for code objects that are not known yet, one above all, unless that was done just before. The list is an
// array of weak references, which are mostly new ones where they are to others; the garbage collector moves both in the
// meantime.
func (vm *machine) list(number uint64) {
	if time.Since(vm.at) < listInterval {
		return
	}
	vm.listArrays()
	if vm.objects[number].at == 0 && time.Since(vm.wholeAt) >= vm.wait {
		vm.wholeAt, vm.wait = time.Now(), min(2*vm.wait, mostWait)
		clear(vm.listed)
		vm.listArrays()
	}
	vm.at = time.Now()
}

// listArrays looks at all arrays of weak references that there are: one, but for what looks like it.
func (vm *machine) listArrays() {
	for _, list := range vm.lists {
		head, _ := vm.WordNow(list + vm.module.Bias)
		array, _ := vm.WordNow(list + vm.module.Bias + vm.handles)
		n, ok := vm.WordNow(array + objectHead)
		if uint32(head) == vm.layout.codes && array != 0 && ok && n <= maxHandles {
			vm.listArray(array+2*word, int(n))
		}
	}
}

// listArray looks at an array of weak references to code objects.
func (vm *machine) listArray(at uint64, n int) {
	refs := make([]byte, n*word)
	if !vm.ReadNow(at, refs) {
		return
	}
	if len(vm.listed) < n {
		vm.listed = append(vm.listed, make([]uint64, n-len(vm.listed))...)
	}
	le := binary.LittleEndian
	var b [2 * word]byte
	for i := range n {
		ref := le.Uint64(refs[i*word:])
		if ref == 0 || ref == vm.listed[i] || !vm.ReadNow(ref, b[:]) || le.Uint32(b[:]) != vm.weakref {
			continue
		}
		at := le.Uint64(b[word:])
		head, ok := vm.WordNow(at)
		number, ok2 := vm.WordNow(at + vm.uniqueID)
		if at == 0 || !ok || !ok2 || uint32(head) != vm.code {
			continue
		}
		vm.listed[i] = ref
		if isNumber(number) {
			vm.objects[number] = object{at, i}
		}
	}
}

// readFunction reads a code object that has a number; nil where there is none.
func (vm *machine) readFunction(at, number uint64) *unwind.CodeFunction {
	b := make([]byte, vm.codeBytes)
	le := binary.LittleEndian
	if at == 0 || !vm.ReadNow(at, b) || le.Uint32(b) != vm.code || le.Uint64(b[vm.uniqueID:]) != number {
		return nil
	}
	name, ok := vm.text(le.Uint64(b[vm.name:]))
	file, ok2 := vm.text(le.Uint64(b[vm.fileName:]))
	line := le.Uint64(b[vm.firstLine:])
	const maxLine = 1 << 31
	if !ok || !ok2 || !vmread.IsPrintable(name) || line >= maxLine {
		return nil
	}
	if !vmread.IsPrintable(file) {
		file = ""
	}
	fn := &unwind.CodeFunction{Name: name, SystemName: name, File: file, StartLine: int(line), Runtime: runtime}
	if name == "<module>" && file != "" { // there is one in each file
		fn.Name = "<module " + path.Base(file) + ">"
	}
	return fn
}

// text reads a string of RPython, which Python's are in as UTF-8.
func (vm *machine) text(at uint64) (text string, ok bool) {
	const length, chars = 16, 24
	var head [chars]byte
	le := binary.LittleEndian
	if at == 0 || !vm.ReadNow(at, head[:]) || le.Uint32(head[:]) != vm.str || le.Uint64(head[length:]) > maxString {
		return "", false
	}
	b := make([]byte, le.Uint64(head[length:]))
	if !vm.ReadNow(at+chars, b) {
		return "", false
	}
	return vmread.ValidText(b), true
}
