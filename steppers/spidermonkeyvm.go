package steppers

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// smImage is what is known of a file that may have the virtual machine.
type smImage struct {
	is        bool
	interpret []vaddrRange // js::Interpret; nil: not known
	searched  bool         // for that
}

// interprets reports whether a link-time address is in js::Interpret.
func (p *smImage) interprets(vaddr uint64) bool {
	for _, r := range p.interpret {
		if r.holds(vaddr) {
			return true
		}
	}
	return false
}

// findSM looks for the virtual machine in a file: by its name, as it has no symbols.
func findSM(im *procstate.Image) (p smImage) {
	name := filepath.Base(im.Path)
	p.is = im.Arch() == procstate.AMD64 && (name == "libxul.so" || strings.HasPrefix(name, "libmozjs"))
	return p
}

// smVM is what is known of the virtual machine of a process.
type smVM struct {
	vmFound
	vmMemory

	image *procstate.Image // nil: there is none
	file  vaddrRange       // run-time addresses

	smLearned
	classes map[uint64]smClass // by JSClass
	scripts map[uint64]*smScript
	tokens  map[uint64]smCallee
	sources map[uint64]*smSource
	chains  map[uint64]smChain // by SP of js::Interpret
	serial  uint32             // of the last script

	codes  map[smPlace]uint32 // numbers in unwind.Codes
	resets int                // of these
}

// smLearned is what differs between versions, as far as it has been seen.
type smLearned struct {
	latin1      uint32     // the flag of strings of 8 bits for a character; 0: not known
	baseline    uint64     // of a JitScript: the BaselineScript; 0: not known
	ion         uint64     // of an IonScript, and 1: the JitCode; 0: not known
	name        uint64     // of a ScriptSource: the name of the file; 0: not known
	notes       smNotes    // how source notes are written
	frames      smFrames   // what frames have
	interpreter vaddrRange // the baseline interpreter; empty: not known
	searches    int        // for these
}

// smFrames is what frames of the virtual machine have.
type smFrames uint8

const (
	smFramesUnknown smFrames = iota
	smFramesLinked           // a frame pointer each, from mozjs 104 on
	smFramesSized            // their size, and only those of the baseline compiler a frame pointer
)

// smPlace is what a frame runs.
type smPlace struct {
	serial     uint32
	line       int32
	start      uint64 // where its code begins; 0: it has none of its own
	outer      uint32 // what it is called by in the same frame
	isCompiled bool
}

// Limits on what is kept of a process, and on what is read of it.
const (
	maxSMScripts = 1 << 15
	maxSMTokens  = 1 << 16
	maxSMSources = 1 << 12
	maxSMClasses = 1 << 12
	maxSMCodes   = 1 << 18
	maxSMName    = 1 << 10 // characters
	maxSMData    = 1 << 20 // bytes of bytecode and source notes
	maxSMCalls   = 1 << 16 // of a script that the baseline compiler has compiled
	maxSMCode    = 64 << 20

	smInterval = 100 * time.Millisecond // after which what was read is looked at again
)

// machine returns the virtual machine of the process that w walks, nil when there is none.
func (s *SpiderMonkey) machine(w *unwind.Walker) *smVM {
	vm, _ := machineOf(w, s, s.findMachine)
	if vm.image == nil {
		return nil
	}
	return vm
}

// findMachine looks for the virtual machine, which may be the one that is known.
func (s *SpiderMonkey) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *smVM) *smVM {
	if libs == nil {
		return &smVM{}
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil || !s.images.known(lib.Image, findSM).is {
			continue
		}
		if known != nil && known.image == lib.Image && known.file.start == lib.Bias {
			return known
		}
		vm := &smVM{vmMemory: vmMemoryOf(w), image: lib.Image, file: vaddrRange{lib.Bias, lib.Bias}}
		for _, s := range lib.Image.Segments() {
			vm.file.end = max(vm.file.end, lib.Bias+s.Vaddr+s.Memsz)
		}
		vm.forget()
		return vm
	}
	return &smVM{}
}

// forget makes the process one of whose functions nothing is known.
func (vm *smVM) forget() {
	vm.classes, vm.tokens = map[uint64]smClass{}, map[uint64]smCallee{}
	vm.scripts, vm.sources = map[uint64]*smScript{}, map[uint64]*smSource{}
	vm.chains = map[uint64]smChain{}
	vm.kept, vm.codes = 0, nil
}

// keep counts what is kept of a script or a file.
func (vm *smVM) keep(bytes int) {
	if vm.kept += bytes; vm.kept > maxKept || len(vm.scripts) >= maxSMScripts || len(vm.sources) >= maxSMSources {
		vm.forget()
		vm.kept = bytes
	}
}

// codeOf returns the number of a place in a script.
func (vm *smVM) codeOf(codes *unwind.Codes, script *smScript, at smPlace) uint32 {
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[smPlace]uint32{}, codes.Resets()
	}
	n, known := vm.codes[at]
	if !known && len(vm.codes) < maxSMCodes {
		n = codes.Add(at.start, []unwind.CodeLine{{CodeFunction: script.function, Line: int(at.line), IsCompiled: at.isCompiled}}, at.outer)
		vm.codes[at] = n
	}
	return n
}

// isSMCell reports whether an address may be that of an object.
func isSMCell(addr uint64) bool { return addr%8 == 0 && addr >= 1<<12 && addr < maxSMAddress }

// maxSMAddress is more than any address that an object has.
const maxSMAddress = 1 << 47

// classOf returns what an object is, by its class, which is in the file.
func (vm *smVM) classOf(object uint64) smClass {
	class := object
	for range 3 { // its shape, what that is based on, and its class
		if !isSMCell(class) {
			return smUnknown
		}
		class, _ = vm.wordNow(class)
	}
	if !vm.file.holds(class) {
		return smUnknown
	}
	is, known := vm.classes[class]
	if known {
		return is
	}
	var name [16]byte
	at, ok := vm.wordNow(class)
	if ok && vm.file.holds(at) && vm.readNow(at, name[:]) {
		if n := bytes.IndexByte(name[:], 0); n >= 0 {
			is = smClasses[string(name[:n])]
		}
	}
	if len(vm.classes) < maxSMClasses {
		vm.classes[class] = is
	}
	return is
}

// text reads a string of few characters that is a name in a program: an atom. "" is none.
func (vm *smVM) text(at uint64) string {
	var head [16]byte
	if !isSMCell(at) || !vm.readNow(at, head[:]) {
		return ""
	}
	le := binary.LittleEndian
	flags, n := le.Uint32(head[:]), int(le.Uint32(head[4:]))
	if flags&(smIsAtom|smIsLinear) != smIsAtom|smIsLinear || n == 0 || n > maxSMName {
		return ""
	}
	chars := at + smStringChars
	if flags&smIsInline == 0 {
		chars = le.Uint64(head[smStringChars:])
	}
	raw := make([]byte, 2*n)
	vm.learnLatin1(flags, chars, n)
	switch {
	case vm.latin1 == 0:
		return ""
	case flags&vm.latin1 != 0:
		if raw = raw[:n]; !vm.readNow(chars, raw) {
			return ""
		}
		return latin1(raw)
	case !vm.readNow(chars, raw):
		return ""
	}
	return utf16LE(raw)
}

// learnLatin1 learns from a string which flag those of 8 bits have: in older versions one and in newer the other, if it is
// all ASCII, and at least so long.
func (vm *smVM) learnLatin1(flags uint32, chars uint64, n int) {
	const older, newer, enough = 1 << 9, 1 << 10, 4
	flags &= older | newer
	if vm.latin1 != 0 || n < enough || flags == 0 || flags == older|newer {
		return
	}
	raw := make([]byte, n)
	if !vm.readNow(chars, raw) {
		return
	}
	for _, c := range raw {
		if c < ' ' || c > '~' {
			return
		}
	}
	vm.latin1 = flags
}
