package ruby

import (
	"debug/elf"
	"encoding/binary"
	"path/filepath"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which methods of Ruby run in the frames of its interpreter (see unwind.Codes), and
// in those of what YJIT has compiled on x86-64: CRuby 2.7 to 3.4, on x86-64 and AArch64. It walks through
// no frame, and has all other steppers find them as they do.
//
// What a thread runs is in the control frames of its fiber. Those of one call of the interpreter's
// function are up to one that is marked as such, and which of them that function is at is in a
// register. A [Collector] copies them, or the kernel side does (see [Stepper.Lacked]): they and the
// C stack must be of one moment. What is called how is read from the process when it is first met.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[image]
	places mcode.VaddrCache // whether addresses are in the interpreter's function
}

// New makes a Stepper. The tables tell where functions begin and end; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "ruby" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image is what is known of a file that may be the interpreter. Addresses are link-time ones.
type image struct {
	fields *fields // nil: it is none
	arch   *arch
	parts  mcode.FunctionParts

	exec     mcode.Range // of vm_exec_core, once a process has told it
	lookedAt time.Time   // for that

	machine  uint64  // of the variable that leads to all threads, where that is needed
	storage  storage // else the file's thread-local storage,
	words    uint64  // how many words it has that may be the variable,
	firstOne uint64  // and where in it the first of these is

	symbols []uint64 // variables that may lead to all Symbols
}

const (
	// minExec is less than the interpreter's function has, in bytes.
	minExec = 4 << 10
	// maxWords bounds the words of thread-local storage that are looked at.
	maxWords = 16
)

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image { return s.images.Known(im, find) }

// find looks for the interpreter in a file.
func find(im *procstate.Image) (p image) {
	a := archOf(im.Arch())
	if a == nil || !strings.Contains(filepath.Base(im.Path), "ruby") {
		return p
	}
	sym, ok := im.ExportedSymbol("ruby_version")
	var version [3]byte
	if !ok || im.ReadVaddr(version[:], sym.Value) != nil {
		return p
	}
	fields := versions[string(version[:])]
	if fields == nil {
		return p
	}
	p.arch, p.symbols = a, findSymbols(im)
	if fields.threadID != 0 {
		if sym, ok := im.ExportedSymbol("ruby_current_vm_ptr"); ok {
			p.fields, p.machine = fields, sym.Value
		}
		return p
	}
	tls, ok := im.Prog(elf.PT_TLS)
	if !ok {
		return p
	}
	p.words = min(tls.Memsz/8, maxWords)
	if sym, ok := im.ExportedSymbol("ruby_current_ec"); ok {
		p.firstOne, p.words = sym.Value, 1
	}
	if p.storage, ok = findStorage(im, a, tls); ok {
		p.fields = fields
	}
	return p
}

// CallerFrame implements unwind.FrameStepper. It is always NotMe.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil {
		if vm, _ := w.Kept(s).(*machine); vm != nil && m != nil && !procstate.HasFile(m.Path) {
			in.Code = vm.compiledCode(w, in)
		}
		return unwind.NotMe, nil
	}
	p := s.image(m.Image)
	if p.fields == nil || p.arch.Arch != w.Arch() {
		return unwind.NotMe, nil
	}
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.image != p || vm.bias != m.Bias {
		vm = newVM(w, m, p)
		w.Keep(s, vm)
	}
	if p.exec.End == 0 {
		s.findExec(w, vm, m, in.Thread)
	}
	vaddr := in.LookupPC() - m.Bias
	if !s.isExec(m.Image, p, vaddr) {
		return unwind.NotMe, nil
	}
	if in.Flags&unwind.Interrupted == 0 || vaddr-p.exec.Start >= p.arch.entry {
		in.Code = vm.interpretedCode(w, in)
	}
	return unwind.NotMe, nil
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil {
		return unwind.RuleNotMe, true
	}
	if m.Image == nil {
		return unwind.RuleNotMe, false
	}
	p := s.image(m.Image)
	return unwind.RuleNotMe, p.fields == nil || p.exec.End != 0 && !s.isExec(m.Image, p, mcode.LookupPC(pc, interrupted)-m.Bias)
}

// isExec reports whether a link-time address is in the interpreter's function.
func (s *Stepper) isExec(im *procstate.Image, p *image, vaddr uint64) bool {
	const is, isNot = 1, 2
	if vaddr-p.exec.Start < p.exec.End-p.exec.Start || p.exec.End == 0 {
		return p.exec.End != 0
	}
	fact, known := s.places.Get(im, vaddr)
	if !known {
		fact = isNot
		if p.parts.Has(vmread.MadeTables(&s.tables), im, p.exec, vaddr) {
			fact = is
		}
		s.places.Put(im, vaddr, fact)
	}
	return fact == is
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }

// findExec finds the interpreter's function by what a thread runs: instructions begin with
// the address of their code in there.
func (s *Stepper) findExec(w *unwind.Walker, vm *machine, m *procstate.Mapping, tid procstate.ThreadID) {
	p, now := vm.image, time.Now()
	if now.Sub(p.lookedAt) < interval {
		return
	}
	p.lookedAt = now
	if vm.walk != w.Walks() {
		vm.walk = w.Walks()
		vm.readThread(w, tid)
	}
	word, ok := vm.WordNow(vm.context + rubyCurrent)
	for n := 0; ok && vm.context != 0 && n < 64; n++ {
		var frame [maxRubyFrameBytes]byte
		if !vm.ReadNow(word, frame[:vm.fields.frameBytes]) {
			return
		}
		le := binary.LittleEndian
		iseq, pc := le.Uint64(frame[rubyCodeOf:]), le.Uint64(frame[rubyPC:])
		if fn := vm.readISeq(iseq); pc != 0 && fn != nil {
			code, _ := vm.WordNow(fn.encoded)
			start, end, ok := vmread.MadeTables(&s.tables).For(m.Image).FunctionAt(code - m.Bias)
			if ok && end-start >= minExec {
				p.exec = mcode.Range{Start: start, End: end}
			}
			return
		}
		word += vm.fields.frameBytes
	}
}
