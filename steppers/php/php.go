package php

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of PHP run in the frames of its interpreter and in those of code
// that its compiler has made (see unwind.Codes), on x86-64 and AArch64: PHP 7.4 to 8.5, without threads
// (NTS) and as GCC compiles it. Several are in one frame, which call each other; functions that are written in C
// stand in the frame of those that have called them. It walks through no frame, and has all other
// steppers find them as they do.
//
// What runs is in a list of frames of the interpreter's own. A [Collector] copies them, or the
// kernel side does (see [Stepper.Lacked]): they and the C stack must be of one moment. Which of them
// a frame of the C stack runs is in a register that the interpreter and the compiled code have
// for that alone. What functions are called is read from the process when they are first met.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[image]
	shared sharedFiles
}

// New makes a Stepper. The tables tell where functions begin; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "php" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image is what is known of a file that may be the interpreter.
type image struct {
	fields  *fields // nil: it is none
	arch    *arch
	execute mcode.Range         // of execute_ex
	parts   mcode.FunctionParts // and of that
	entry                       // how that has its frame in a register
	globals mcode.Range         // executor_globals
	sapi    uint64              // sapi_module
}

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image { return s.images.Known(im, find) }

// find looks for the interpreter in a file.
func find(im *procstate.Image) (p image) {
	p.arch = archOf(im.Arch())
	if p.arch == nil || !strings.Contains(filepath.Base(im.Path), "php") {
		return p
	}
	take := func(sym *procstate.ELFSymbol) bool {
		is := mcode.Range{Start: sym.Value, End: sym.Value + sym.Size}
		switch string(sym.Name) {
		case "execute_ex":
			p.execute = is
		case "executor_globals":
			p.globals = is
		case "sapi_module":
			p.sapi = sym.Value
		}
		return true
	}
	for _, name := range []string{"execute_ex", "executor_globals", "sapi_module"} {
		if sym, ok := im.ExportedSymbol(name); ok {
			take(&sym)
		}
	}
	isWhole := func() bool { return p.execute.End != 0 && p.globals.End != 0 && p.sapi != 0 }
	if !isWhole() { // it is in a program that exports nothing
		im.EachSymbol(take)
	}
	if !isWhole() || !p.findRegister(im) {
		return p
	}
	if f := phpVersions[api(im)]; f != nil && p.globals.End-p.globals.Start > f.current {
		p.fields = f
	}
	return p
}

// build is how a build without threads says for which extensions it is.
var build = regexp.MustCompile(`\x00API(20[0-9]{6}),NTS\x00`)

// maxData bounds what is looked through for that.
const maxData = 64 << 20

// api returns the number of the interface to extensions, 0 when that is not known.
func api(im *procstate.Image) uint32 {
	data, ok := im.Section(".rodata")
	if !ok {
		return 0
	}
	const overlap = 32
	buf := make([]byte, 64<<10)
	for off := uint64(0); off < min(data.Size, maxData); off += uint64(len(buf) - overlap) {
		n, _ := im.ReadAt(buf[:min(uint64(len(buf)), data.Size-off)], int64(data.Off+off))
		if n <= 0 {
			break
		}
		if m := build.FindSubmatch(buf[:n]); m != nil {
			api, _ := strconv.ParseUint(string(m[1]), 10, 32)
			return uint32(api)
		}
	}
	return 0
}

// maxExecute is the most bytes that execute_ex has.
const maxExecute = 4 << 20

// findRegister finds out where execute_ex has its frame in the register. ok is false where it has it in
// no known way.
func (p *image) findRegister(im *procstate.Image) (ok bool) {
	f := p.execute
	if f.End-f.Start > maxExecute {
		return false
	}
	code := make([]byte, f.End-f.Start)
	if im.ReadVaddr(code, f.Start) != nil {
		return false
	}
	p.entry, ok = p.arch.find(code, f.Start)
	return ok
}

// hasFrame reports whether a frame of execute_ex that was interrupted at a link-time address has
// the register.
func (p *image) hasFrame(vaddr uint64) bool {
	if vaddr >= p.execute.Start && vaddr < p.entered {
		return false
	}
	for _, r := range p.leaves {
		if vaddr-r.Start < r.End-r.Start {
			return false
		}
	}
	return true
}

// isExecute reports whether a link-time address of a file is in execute_ex.
func (s *Stepper) isExecute(im *procstate.Image, p *image, vaddr uint64) bool {
	if p.fields == nil {
		return false
	}
	return p.parts.Has(vmread.MadeTables(&s.tables), im, p.execute, vaddr)
}

// CallerFrame implements unwind.FrameStepper. It is always NotMe.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || archOf(w.Arch()) == nil {
		return unwind.NotMe, nil
	}
	isCompiled := m.Image == nil
	if isCompiled {
		if procstate.HasFile(m.Path) {
			return unwind.NotMe, nil
		}
	} else {
		p, vaddr := s.image(m.Image), in.LookupPC()-m.Bias
		if m.Image.Arch() != w.Arch() || !s.isExecute(m.Image, p, vaddr) || in.Flags&unwind.Interrupted != 0 && !p.hasFrame(vaddr) {
			return unwind.NotMe, nil
		}
	}
	if vm := s.machine(w); vm != nil {
		in.Code = vm.codeOf(w, in, isCompiled)
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
	return unwind.RuleNotMe, !s.isExecute(m.Image, s.image(m.Image), mcode.LookupPC(pc, interrupted)-m.Bias)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
