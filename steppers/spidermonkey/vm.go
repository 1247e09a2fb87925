package spidermonkey

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// image is what is known of a file that may have the virtual machine.
type image struct {
	is        bool
	interpret []mcode.Range // js::Interpret; nil: not known
	searched  bool          // for that
}

// interprets reports whether a link-time address is in js::Interpret.
func (p *image) interprets(vaddr uint64) bool {
	for _, r := range p.interpret {
		if r.Holds(vaddr) {
			return true
		}
	}
	return false
}

// find looks for the virtual machine in a file: by its name, as it has no symbols.
func find(im *procstate.Image) (p image) {
	name := filepath.Base(im.Path)
	p.is = archOf(im.Arch()) != nil && (name == "libxul.so" || strings.HasPrefix(name, "libmozjs"))
	return p
}

// machine is what is known of the virtual machine of a process.
type machine struct {
	vmread.Found
	vmread.Memory

	arch  *arch
	image *procstate.Image // nil: there is none
	file  mcode.Range      // run-time addresses

	learned
	classes map[uint64]class // by JSClass
	scripts map[uint64]*scriptInfo
	tokens  map[uint64]calledScript
	sources map[uint64]*source
	chains  map[uint64]chain // by SP of js::Interpret
	serial  uint32           // of the last script

	codes  map[framePlace]uint32 // numbers in unwind.Codes
	resets int                   // of these
}

// learned is what differs between versions, as far as it has been seen.
type learned struct {
	latin1      uint32      // the flag of strings of 8 bits for a character; 0: not known
	baseline    uint64      // of a JitScript: the BaselineScript; 0: not known
	ion         uint64      // of an IonScript, and 1: the JitCode; 0: not known
	name        uint64      // of a ScriptSource: the name of the file; 0: not known
	notes       notesForm   // how source notes are written
	frames      frames      // what frames have
	interpreter mcode.Range // the baseline interpreter; empty: not known
	searches    int         // for these
	looks       int         // at frames further out
}

// frames is what frames of the virtual machine have.
type frames uint8

const (
	framesUnknown frames = iota
	framesLinked         // a frame pointer each, from mozjs 104 on
	framesSized          // their size, and only those of the baseline compiler a frame pointer
)

// framePlace is what a frame runs.
type framePlace struct {
	serial     uint32
	line       int32
	start      uint64 // where its code begins; 0: it has none of its own
	outer      uint32 // what it is called by in the same frame
	isCompiled bool
}

// Limits on what is kept of a process, and on what is read of it.
const (
	maxScripts = 1 << 15
	maxTokens  = 1 << 16
	maxSources = 1 << 12
	maxClasses = 1 << 12
	maxCodes   = 1 << 18
	maxName    = 1 << 10 // characters
	maxData    = 1 << 20 // bytes of bytecode and source notes
	maxCalls   = 1 << 16 // of a script that the baseline compiler has compiled
	maxCode    = 64 << 20

	interval = 100 * time.Millisecond // after which what was read is looked at again
)

// machine returns the virtual machine of the process that w walks, nil when there is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, _ := vmread.MachineOf(w, s, s.findMachine)
	if vm.image == nil {
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
		if lib.Image == nil || !s.images.Known(lib.Image, find).is {
			continue
		}
		if known != nil && known.image == lib.Image && known.file.Start == lib.Bias {
			return known
		}
		vm := &machine{Memory: vmread.MemoryOf(w), arch: archOf(w.Arch()), image: lib.Image, file: mcode.Range{Start: lib.Bias, End: lib.Bias}}
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
	return now.Sub(seen) < interval || vm.HasEnded(vm.image, vm.file.Start)
}

// forget makes the process one of whose functions nothing is known.
func (vm *machine) forget() {
	vm.classes, vm.tokens = map[uint64]class{}, map[uint64]calledScript{}
	vm.scripts, vm.sources = map[uint64]*scriptInfo{}, map[uint64]*source{}
	vm.chains = map[uint64]chain{}
	vm.Kept, vm.codes = 0, nil
}

// keep counts what is kept of a script or a file.
func (vm *machine) keep(bytes int) {
	if vm.Kept += bytes; vm.Kept > vmread.MaxKept || len(vm.scripts) >= maxScripts || len(vm.sources) >= maxSources {
		vm.forget()
		vm.Kept = bytes
	}
}

// codeOf returns the number of a place in a script.
func (vm *machine) codeOf(codes *unwind.Codes, script *scriptInfo, at framePlace) uint32 {
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[framePlace]uint32{}, codes.Resets()
	}
	n, known := vm.codes[at]
	if !known && len(vm.codes) < maxCodes {
		n = codes.Add(at.start, []unwind.CodeLine{{CodeFunction: script.function, Line: int(at.line), IsCompiled: at.isCompiled}}, at.outer)
		vm.codes[at] = n
	}
	return n
}

// isCell reports whether an address may be that of an object.
func isCell(addr uint64) bool { return addr%8 == 0 && addr >= 1<<12 && addr < maxAddress }

// maxAddress is more than any address that memory has: on AArch64 libraries and what malloc gives are up there. Objects that
// values refer to are lower.
const maxAddress = 1 << 48

// classOf returns what an object is, by its class, which is in the file.
func (vm *machine) classOf(object uint64) class {
	class := object
	for range 3 { // its shape, what that is based on, and its class
		if !isCell(class) {
			return unknown
		}
		class, _ = vm.WordNow(class)
	}
	if !vm.file.Holds(class) {
		return unknown
	}
	is, known := vm.classes[class]
	if known {
		return is
	}
	var name [16]byte
	at, ok := vm.WordNow(class)
	if ok && vm.file.Holds(at) && vm.ReadNow(at, name[:]) {
		if n := bytes.IndexByte(name[:], 0); n >= 0 {
			is = classes[string(name[:n])]
		}
	}
	if len(vm.classes) < maxClasses {
		vm.classes[class] = is
	}
	return is
}

// text reads a string of few characters that is a name in a program: an atom. "" is none.
func (vm *machine) text(at uint64) string {
	var head [16]byte
	if !isCell(at) || !vm.ReadNow(at, head[:]) {
		return ""
	}
	le := binary.LittleEndian
	flags, n := le.Uint32(head[:]), int(le.Uint32(head[4:]))
	if flags&(isAtom|isLinear) != isAtom|isLinear || n == 0 || n > maxName {
		return ""
	}
	chars := at + stringChars
	if flags&isInline == 0 {
		chars = le.Uint64(head[stringChars:])
	}
	raw := make([]byte, 2*n)
	vm.learnLatin1(flags, chars, n)
	switch {
	case vm.latin1 == 0:
		return ""
	case flags&vm.latin1 != 0:
		if raw = raw[:n]; !vm.ReadNow(chars, raw) {
			return ""
		}
		return vmread.Latin1(raw)
	case !vm.ReadNow(chars, raw):
		return ""
	}
	return vmread.UTF16LE(raw)
}

// learnLatin1 learns from a string which flag those of 8 bits have: in older versions one and in newer the other, if it is
// all ASCII, and at least so long.
func (vm *machine) learnLatin1(flags uint32, chars uint64, n int) {
	const older, newer, enough = 1 << 9, 1 << 10, 4
	flags &= older | newer
	if vm.latin1 != 0 || n < enough || flags == 0 || flags == older|newer {
		return
	}
	raw := make([]byte, n)
	if !vm.ReadNow(chars, raw) {
		return
	}
	for _, c := range raw {
		if c < ' ' || c > '~' {
			return
		}
	}
	vm.latin1 = flags
}
