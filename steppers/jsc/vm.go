package jsc

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// image is what is known of a file that may have the virtual machine: link-time addresses.
type image struct {
	config  mcode.Range // what the machine has set up for good (WTF::Config and JSC::Config); empty: there is none
	opcodes mcode.Range // where its interpreter has the code for each operation, once it runs
	text    mcode.Range

	interpreter mcode.Range // in one process or another; empty: in none so far
}

// Sections of a program that has the virtual machine.
const (
	configSection  = "__DATA,__wtf_config"
	opcodesSection = "__DATA,__jsc_opcodes"
)

// find looks for the virtual machine in a file.
func find(im *procstate.Image) (p image) {
	config, ok1 := im.Section(configSection)
	opcodes, ok2 := im.Section(opcodesSection)
	text, ok3 := im.Section(".text")
	if !ok1 || !ok2 || !ok3 || archOf(im.Arch()) == nil {
		return p
	}
	within := func(s procstate.Section, most uint64) mcode.Range {
		return mcode.Range{Start: s.Vaddr, End: s.Vaddr + min(s.Size, most)}
	}
	return image{config: within(config, maxConfig), opcodes: within(opcodes, maxConfig), text: within(text, maxText)}
}

// mayInterpret reports whether a link-time address may be in the interpreter.
func (p *image) mayInterpret(vaddr uint64) bool {
	return p.config.End != 0 && (p.interpreter.End == 0 || p.interpreter.Holds(vaddr))
}

// machine is what is known of the virtual machine of a process.
type machine struct {
	vmread.Found

	vmread.Memory
	arch      *arch
	image     *image // nil: there is none
	of        *procstate.Mapping
	file      mcode.Range // run-time addresses of the program's constants and code
	lookAgain time.Time

	interpreter mcode.Range // run-time addresses of its code; empty: not known
	made        mcode.Range // and of all that the compilers make; empty: they make nothing
	structures  uint64      // what the numbers of structures count from; 0: not known

	classes     map[uint32]class       // by number of their structure
	unlinked    *unlinked              // nil: not known
	blockCode   uint64                 // of a CodeBlock: where its code is; 0: not known
	expressions *expressions           // the same
	texts       map[uint64]*sourceText // by SourceProvider
	textAt      map[uint64]uint64      // of that, where it is, by what virtual functions it has
	maps        map[uint64]sourceMaps  // by global object
	mapText     mapText                // the last that was read
	blocks      map[uint64]*block
	functions   map[uint64]*function // by executable
	regExps     []regExpCode
	serial      uint32 // of the last function or CodeBlock

	codes  map[codePlace]numbered // in unwind.Codes
	resets int                    // of these
}

// codePlace is what a frame runs: a function, or a call in one that a compiler has inlined others into.
type codePlace struct {
	serial uint32     // of a function or block
	start  uint64     // where its code begins; 0: it has none of its own
	origin uint64     // of the call (CodeOrigin); 0: not known, or not inlined
	call   bytecodeAt // else where it is
}

// bytecodeAt is where an instruction of bytecode is, and 1; 0 is not known.
type bytecodeAt uint32

// numbered is a place with its number, which is looked at again where its line was not found.
type numbered struct {
	n     uint32
	tries uint8
	again time.Time // zero: all is known
}

// Limits on what is kept of a process, and on what is read of it.
const (
	maxConfig    = 64 << 10
	maxText      = 1 << 30
	maxLastOp    = 16 << 10 // bytes of code behind where the last operation begins
	maxBlocks    = 1 << 14
	maxFunctions = 1 << 15
	maxCodes     = 1 << 17
	maxName      = 1 << 10 // characters
	maxInlined   = 1 << 5  // functions that are inlined into each other

	interval = 100 * time.Millisecond // after which what was read is looked at again
	soon     = 5 * time.Millisecond   // after which what was not there is looked for again
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
	if libs == nil {
		return &machine{}
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.config.End == 0 {
			continue
		}
		of := libs.MappingAt(p.text.Start + lib.Bias)
		if of == nil {
			continue
		}
		if known != nil && known.of == of && known.image == p {
			return known
		}
		vm := &machine{Memory: vmread.MemoryOf(w), arch: archOf(w.Arch()), image: p, of: of, classes: map[uint32]class{}}
		vm.file = mcode.Range{Start: lib.Bias, End: lib.Bias}
		for _, s := range lib.Image.Segments() {
			vm.file.End = max(vm.file.End, lib.Bias+s.Vaddr+s.Memsz)
		}
		vm.forget()
		return vm
	}
	return &machine{}
}

// stands reports whether what was seen at a time needs no other look: it is new, or the process has ended.
func (vm *machine) stands(seen, now time.Time) bool {
	return now.Sub(seen) < interval || vm.hasEnded()
}

// hasEnded reports whether the process has ended: what is known of it stays so.
func (vm *machine) hasEnded() bool {
	return !vmread.ReadNow(vm.Mem, vm.Live, vm.interpreter.Start, vm.Buf[:])
}

// forget makes the process one of whose functions nothing is known.
func (vm *machine) forget() {
	vm.blocks, vm.functions, vm.regExps = map[uint64]*block{}, map[uint64]*function{}, nil
	vm.Kept, vm.codes = 0, nil
}

// begin finds what the machine has set up, once it has. It reports whether that is known.
func (vm *machine) begin() bool {
	if vm.structures != 0 {
		return true
	}
	now := time.Now()
	if now.Sub(vm.lookAgain) < soon {
		return false
	}
	vm.lookAgain = now
	if !vm.readInterpreter() {
		return false
	}
	return vm.readConfig()
}

// readConfig looks for members of JSC::Config that follow each other: where the memory for code that
// is made begins and ends, a third, what the numbers of structures count from, in newer versions twice, and how
// much memory there is for these, which is 4 GB (Source/JavaScriptCore/runtime/JSCConfig.h).
func (vm *machine) readConfig() bool {
	const structures = 1 << 32
	at := vm.image.config
	config := make([]byte, at.End-at.Start)
	if !vm.ReadNow(at.Start+vm.of.Bias, config) {
		return false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(config[8*i:]) }
	for i := 3; i+2 < len(config)/8; i++ {
		base := word(i)
		if base == 0 || base%structures != 0 || base > maxAddress {
			continue
		}
		if word(i+1) != structures && (word(i+1) != base || word(i+2) != structures) {
			continue
		}
		made := mcode.Range{Start: word(i - 3), End: word(i - 2)}
		if made.Start > made.End || made.End > maxAddress {
			continue
		}
		vm.made, vm.structures = made, base
		return true
	}
	return false
}

// maxAddress is more than any address that a cell has.
const maxAddress = 1 << 48

// readInterpreter finds the code of the interpreter, by where the operations begin.
func (vm *machine) readInterpreter() bool {
	if vm.interpreter.End != 0 {
		return true
	}
	at, bias := vm.image.opcodes, vm.of.Bias
	table := make([]byte, at.End-at.Start)
	if !vm.ReadNow(at.Start+bias, table) {
		return false
	}
	const fewest = 256 // operations
	first, last, n := ^uint64(0), uint64(0), 0
	for ; len(table) >= 8; table = table[8:] {
		op := binary.LittleEndian.Uint64(table) - bias
		if op+bias == 0 {
			continue
		}
		if !vm.image.text.Holds(op) {
			return false
		}
		first, last, n = min(first, op), max(last, op), n+1
	}
	if n < fewest || last-first > maxInterpreter {
		return false
	}
	// The last operation ends before what follows is aligned.
	behind := mcode.ReadFile(vm.of.Image, last, min(last+maxLastOp, vm.image.text.End))
	end := bytes.Index(behind, vm.arch.padding)
	if end < 0 {
		return false
	}
	is := mcode.Range{Start: first, End: last + uint64(end)}
	vm.interpreter = mcode.Range{Start: is.Start + bias, End: is.End + bias}
	if p := vm.image; p.interpreter.End != 0 {
		is = mcode.Range{Start: min(is.Start, p.interpreter.Start), End: max(is.End, p.interpreter.End)}
	}
	vm.image.interpreter = is
	return true
}

const maxInterpreter = 4 << 20 // bytes of its code

// codeOf returns the number of a place in a function, 0 where it is not known what was inlined there. b is its
// CodeBlock, nil where it has none.
func (vm *machine) codeOf(codes *unwind.Codes, f *function, b *block, at codePlace, isCompiled bool) uint32 {
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[codePlace]numbered{}, codes.Resets()
	}
	is, known := vm.codes[at]
	if known && (is.again.IsZero() || time.Now().Before(is.again)) || !known && len(vm.codes) >= maxCodes {
		return is.n
	}
	calls, outer, ok := vm.inlined(at.origin)
	if !ok {
		return is.n
	}
	if at.origin == 0 {
		outer = at.call
	}
	if b != nil {
		calls = append(calls, call{f, b.is.global, b.is.unlinked, outer})
	} else {
		calls = append(calls, call{function: f})
	}
	lines, found, whole := []unwind.CodeLine(nil), false, true
	for i := range calls {
		c := &calls[i]
		line := unwind.CodeLine{CodeFunction: &c.function.CodeFunction, IsCompiled: isCompiled}
		if c.at != 0 && c.function.File != "" {
			line.Line = vm.lineOf(c)
			whole = whole && line.Line != 0
			found = found || line.Line != 0
		}
		lines = append(lines, line)
	}
	if !known || found {
		is.n = codes.Add(at.start, lines, 0)
	}
	is.again = time.Time{}
	if !whole && is.tries < maxTries {
		is.again = time.Now().Add(interval << (3 * is.tries))
		is.tries++
	}
	vm.codes[at] = is
	return is.n
}

const maxTries = 4 // to find a line
