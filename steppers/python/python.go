package python

import (
	"encoding/binary"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of Python run in the frames of its interpreter (see
// unwind.Codes), CPython 3.7 to 3.15. From 3.11 on these may be several in one frame, which call
// each other. It walks through no frame, and has all other steppers find them as they do.
//
// What a thread runs is in its PyThreadState and in frames of the interpreter's own, most of
// which are in a stack of the thread. A [Collector] copies both, or the kernel side does
// (see [Stepper.Lacked]): they and the C stack must be of one moment. What code is called is read
// from the process when it is first met.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[image]
}

// New makes a Stepper. The tables tell where frames of the interpreter end; nil are some
// of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "python" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image is what is known of a file that may be the interpreter.
type image struct {
	fields   *layout     // nil: it is none
	eval     mcode.Range // of _PyEval_EvalFrameDefault
	parts    mcode.FunctionParts
	runtime  uint64 // link-time addresses of _PyRuntime
	codeType uint64 // and PyCode_Type
}

// evalEntry is how many bytes of the interpreter's function may be executed before it has said
// all of its call, in any order: 176 are, on x86-64. What is there before may be of an earlier one.
func evalEntry(a *procstate.Arch) uint64 {
	if a == procstate.ARM64 {
		return 384
	}
	return 192
}

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image { return s.images.Known(im, find) }

// minorOf returns the minor version in the name of a file of the interpreter, as
// "libpython3.10.so.1.0", which before 3.11 has no other word of it.
func minorOf(file string) (minor int, ok bool) {
	for rest, found := file, true; found && !ok; {
		if _, rest, found = strings.Cut(rest, "python3."); found {
			n := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
			minor, _ = strconv.Atoi(rest[:n])
			ok = n > 0
		}
	}
	return minor, ok
}

// find looks for the interpreter in a file.
func find(im *procstate.Image) (p image) {
	if im.Arch() != procstate.AMD64 && im.Arch() != procstate.ARM64 || !strings.Contains(filepath.Base(im.Path), "python") {
		return p
	}
	var version uint64
	take := func(sym *procstate.ELFSymbol) bool {
		switch string(sym.Name) {
		case "_PyEval_EvalFrameDefault":
			p.eval = mcode.Range{Start: sym.Value, End: sym.Value + sym.Size}
		case "_PyRuntime":
			p.runtime = sym.Value
		case "PyCode_Type":
			p.codeType = sym.Value
		case "Py_Version": // 3.11 and later
			version = sym.Value
		}
		return true
	}
	for _, name := range []string{"_PyEval_EvalFrameDefault", "_PyRuntime", "PyCode_Type", "Py_Version"} {
		if sym, ok := im.ExportedSymbol(name); ok {
			take(&sym)
		}
	}
	isWhole := func() bool { return p.eval.End > p.eval.Start && p.runtime != 0 && p.codeType != 0 }
	if !isWhole() { // it is in a program that exports nothing
		im.EachSymbol(take)
	}
	var word [4]byte
	if !isWhole() {
		return p
	}
	switch minor, named := minorOf(filepath.Base(im.Path)); {
	case version != 0 && im.ReadVaddr(word[:], version) == nil:
		p.fields = versions[binary.LittleEndian.Uint32(word[:])>>16]
	case version == 0 && named:
		p.fields = versions[uint32(0x0300|minor&0xff)]
	}
	if p.fields != nil && p.fields.debugOffsets {
		p.fields = told(im, p.runtime, p.fields)
	}
	return p
}

// told returns the fields of an interpreter whose _PyRuntime tells them, by those of its version: as they are when it was built
// without the lock of all interpreters, where it was, and nil where others are told.
func told(im *procstate.Image, runtime uint64, f *layout) *layout {
	const toFree, bytes = 16, 1 << 10
	var table [bytes]byte
	if im.ReadVaddr(table[:], runtime) != nil {
		return nil
	}
	if binary.LittleEndian.Uint64(table[toFree:]) != 0 {
		f = freeThreaded(*f)
	}
	for _, fields := range f.told() {
		if !hasFields(table[:], fields) {
			return nil
		}
	}
	return f
}

// anywhere stands for a field whose place does not matter.
const anywhere = ^uint64(0)

// told returns fields that _PyRuntime tells one after the other, of a thread, a frame and a code object.
func (f *layout) told() [][]uint64 {
	code := []uint64{f.bytecode}
	if f.copies != 0 {
		code = append(code, f.copies)
	}
	return [][]uint64{
		{f.nextThread, anywhere, f.current}, {f.id, f.chunk}, {f.previous, f.code, f.instruction, anywhere, f.owner},
		{f.fileName, anywhere, f.qualName, f.lineTable, f.firstLine}, code,
	}
}

// hasFields reports whether a table has some fields one after the other.
func hasFields(table []byte, fields []uint64) bool {
	for ; len(table) >= 8*len(fields); table = table[8:] {
		is := true
		for i, field := range fields {
			is = is && (field == anywhere || field == binary.LittleEndian.Uint64(table[8*i:]))
		}
		if is {
			return true
		}
	}
	return false
}

// isEval reports whether a link-time address is in the interpreter's function.
func (s *Stepper) isEval(im *procstate.Image, p *image, vaddr uint64) bool {
	return p.fields != nil && p.parts.Has(vmread.MadeTables(&s.tables), im, p.eval, vaddr)
}

// CallerFrame implements unwind.FrameStepper. It is always NotMe.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	p := s.image(m.Image)
	vaddr := in.LookupPC() - m.Bias
	if !s.isEval(m.Image, p, vaddr) {
		return unwind.NotMe, nil
	}
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.image != m.Image || vm.bias != m.Bias {
		vm = newVM(w, m, p)
		w.Keep(s, vm)
	}
	if in.Flags&unwind.Interrupted != 0 && vaddr-p.eval.Start < evalEntry(w.Arch()) {
		vm.begun = w.Walks()
		return unwind.NotMe, nil
	}
	reg, bytes, ok := vmread.MadeTables(&s.tables).For(m.Image).Rule(vaddr).CFA()
	base, known := in.Regs.Value(reg)
	if !ok || !known {
		return unwind.NotMe, nil
	}
	in.Code = vm.codeOf(w, in, base+uint64(bytes))
	return unwind.NotMe, nil
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil || m.Image == nil {
		return unwind.RuleNotMe, true
	}
	return unwind.RuleNotMe, !s.isEval(m.Image, s.image(m.Image), mcode.LookupPC(pc, interrupted)-m.Bias)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
