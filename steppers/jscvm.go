package steppers

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// jscImage is what is known of a file that may have the virtual machine: link-time addresses.
type jscImage struct {
	config  vaddrRange // what the machine has set up for good (WTF::Config and JSC::Config); empty: there is none
	opcodes vaddrRange // where its interpreter has the code for each operation, once it runs
	text    vaddrRange

	interpreter vaddrRange // in one process or another; empty: in none so far
}

// Sections of a program that has the virtual machine.
const (
	jscConfigSection  = "__DATA,__wtf_config"
	jscOpcodesSection = "__DATA,__jsc_opcodes"
)

// findJSC looks for the virtual machine in a file.
func findJSC(im *procstate.Image) (p jscImage) {
	config, ok1 := im.Section(jscConfigSection)
	opcodes, ok2 := im.Section(jscOpcodesSection)
	text, ok3 := im.Section(".text")
	if !ok1 || !ok2 || !ok3 || im.Arch() != procstate.AMD64 {
		return p
	}
	within := func(s procstate.Section, most uint64) vaddrRange {
		return vaddrRange{s.Vaddr, s.Vaddr + min(s.Size, most)}
	}
	return jscImage{config: within(config, maxJSCConfig), opcodes: within(opcodes, maxJSCConfig), text: within(text, maxJSCText)}
}

// mayInterpret reports whether a link-time address may be in the interpreter.
func (p *jscImage) mayInterpret(vaddr uint64) bool {
	return p.config.end != 0 && (p.interpreter.end == 0 || p.interpreter.holds(vaddr))
}

// jscVM is what is known of the virtual machine of a process.
type jscVM struct {
	vmFound

	vmMemory
	image     *jscImage // nil: there is none
	of        *procstate.Mapping
	file      vaddrRange // run-time addresses of the program's constants and code
	lookAgain time.Time

	interpreter vaddrRange // run-time addresses of its code; empty: not known
	made        vaddrRange // and of all that the compilers make; empty: they make nothing
	structures  uint64     // what the numbers of structures count from; 0: not known

	classes   map[uint32]jscClass // by number of their structure
	unlinked  *jscUnlinked        // nil: not known
	blocks    map[uint64]*jscBlock
	functions map[uint64]*jscFunction // by executable
	serial    uint32                  // of the last function or CodeBlock

	codes  map[jscPlace]uint32 // numbers in unwind.Codes
	resets int                 // of these
}

// jscPlace is what a frame runs: a function, or a call in one that a compiler has inlined others into.
type jscPlace struct {
	serial uint32 // of a jscFunction or jscBlock
	start  uint64 // where its code begins; 0: it has none of its own
	origin uint64 // of the call (CodeOrigin); 0: not known, or not inlined
}

// Limits on what is kept of a process, and on what is read of it.
const (
	maxJSCConfig    = 64 << 10
	maxJSCText      = 1 << 30
	maxJSCLastOp    = 16 << 10 // bytes of code behind where the last operation begins
	maxJSCBlocks    = 1 << 14
	maxJSCFunctions = 1 << 15
	maxJSCCodes     = 1 << 17
	maxJSCName      = 1 << 10 // characters
	maxJSCInlined   = 1 << 5  // functions that are inlined into each other

	jscInterval = 100 * time.Millisecond // after which what was read is looked at again
	jscSoon     = 5 * time.Millisecond   // after which what was not there is looked for again
)

// machine returns the virtual machine of the process that w walks, nil when there is none.
func (s *JSC) machine(w *unwind.Walker) *jscVM {
	vm, _ := machineOf(w, s, s.findMachine)
	if vm.image == nil || !vm.begin() {
		return nil
	}
	return vm
}

// findMachine looks for the virtual machine, which may be the one that is known.
func (s *JSC) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *jscVM) *jscVM {
	if libs == nil {
		return &jscVM{}
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.config.end == 0 {
			continue
		}
		of := libs.MappingAt(p.text.start + lib.Bias)
		if of == nil {
			continue
		}
		if known != nil && known.of == of && known.image == p {
			return known
		}
		vm := &jscVM{vmMemory: vmMemoryOf(w), image: p, of: of, classes: map[uint32]jscClass{}}
		vm.file = vaddrRange{lib.Bias, lib.Bias}
		for _, s := range lib.Image.Segments() {
			vm.file.end = max(vm.file.end, lib.Bias+s.Vaddr+s.Memsz)
		}
		vm.forget()
		return vm
	}
	return &jscVM{}
}

// forget makes the process one of whose functions nothing is known.
func (vm *jscVM) forget() {
	vm.blocks, vm.functions = map[uint64]*jscBlock{}, map[uint64]*jscFunction{}
	vm.kept, vm.codes = 0, nil
}

// begin finds what the machine has set up, once it has. It reports whether that is known.
func (vm *jscVM) begin() bool {
	if vm.structures != 0 {
		return true
	}
	now := time.Now()
	if now.Sub(vm.lookAgain) < jscSoon {
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
func (vm *jscVM) readConfig() bool {
	const structures = 1 << 32
	at := vm.image.config
	config := make([]byte, at.end-at.start)
	if !vm.readNow(at.start+vm.of.Bias, config) {
		return false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(config[8*i:]) }
	for i := 3; i+2 < len(config)/8; i++ {
		base := word(i)
		if base == 0 || base%structures != 0 || base > maxJSCAddress {
			continue
		}
		if word(i+1) != structures && (word(i+1) != base || word(i+2) != structures) {
			continue
		}
		made := vaddrRange{word(i - 3), word(i - 2)}
		if made.start > made.end || made.end > maxJSCAddress {
			continue
		}
		vm.made, vm.structures = made, base
		return true
	}
	return false
}

// maxJSCAddress is more than any address that a cell has.
const maxJSCAddress = 1 << 48

// readInterpreter finds the code of the interpreter, by where the operations begin.
func (vm *jscVM) readInterpreter() bool {
	if vm.interpreter.end != 0 {
		return true
	}
	at, bias := vm.image.opcodes, vm.of.Bias
	table := make([]byte, at.end-at.start)
	if !vm.readNow(at.start+bias, table) {
		return false
	}
	const fewest = 256 // operations
	first, last, n := ^uint64(0), uint64(0), 0
	for ; len(table) >= 8; table = table[8:] {
		op := binary.LittleEndian.Uint64(table) - bias
		if op+bias == 0 {
			continue
		}
		if !vm.image.text.holds(op) {
			return false
		}
		first, last, n = min(first, op), max(last, op), n+1
	}
	if n < fewest || last-first > maxJSCInterpreter {
		return false
	}
	// The last operation ends before what follows is aligned.
	behind := readVaddr(vm.of.Image, last, min(last+maxJSCLastOp, vm.image.text.end))
	end := bytes.Index(behind, bytes.Repeat([]byte{breakpointAMD64}, 8))
	if end < 0 {
		return false
	}
	is := vaddrRange{first, last + uint64(end)}
	vm.interpreter = vaddrRange{is.start + bias, is.end + bias}
	if p := vm.image; p.interpreter.end != 0 {
		is = vaddrRange{min(is.start, p.interpreter.start), max(is.end, p.interpreter.end)}
	}
	vm.image.interpreter = is
	return true
}

const maxJSCInterpreter = 4 << 20 // bytes of its code

// codeOf returns the number of a place in a function, 0 where it is not known what was inlined there.
func (vm *jscVM) codeOf(codes *unwind.Codes, f *jscFunction, at jscPlace, isCompiled bool) uint32 {
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[jscPlace]uint32{}, codes.Resets()
	}
	n, known := vm.codes[at]
	if !known && len(vm.codes) < maxJSCCodes {
		var lines []unwind.CodeLine
		inlined, ok := vm.inlined(at.origin)
		if !ok {
			return 0
		}
		for _, f := range append(inlined, f) {
			lines = append(lines, unwind.CodeLine{CodeFunction: &f.CodeFunction, IsCompiled: isCompiled})
		}
		n = codes.Add(at.start, lines, 0)
		vm.codes[at] = n
	}
	return n
}
