package gnur

import (
	"path/filepath"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of R run in the frames of its interpreter (see unwind.Codes), on x86-64 and AArch64,
// R 4.0 to 4.6. In 4.5 and later several are in one frame, which call each other. It walks through no frame, and has
// all other steppers find them as they do.
//
// What runs is in a list of contexts. Each is in the frame of C that it belongs to, or tells of a variable there. A
// [Collector] copies those that are not on the stack of C, or the kernel side does (see [Stepper.Lacked]): they and that
// stack must be of one moment. What functions are called is read from the process when they are first met.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[image]
}

// New makes a Stepper. The tables tell where frames end; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "r" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image is what is known of a file that may have the interpreter, by link-time addresses.
type image struct {
	arch               *arch
	context            uint64 // R_GlobalContext; 0: it has none
	nodesEnd, nodesTop uint64 // R_BCNodeStackEnd and R_BCNodeStackTop
}

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image { return s.images.Known(im, find) }

// find looks for the interpreter in a file.
func find(im *procstate.Image) (p image) {
	if base := filepath.Base(im.Path); archOf(im.Arch()) == nil || base != "libR.so" && base != "R" {
		return p
	}
	found := image{arch: archOf(im.Arch())}
	for name, at := range map[string]*uint64{
		"R_GlobalContext": &found.context, "R_BCNodeStackEnd": &found.nodesEnd, "R_BCNodeStackTop": &found.nodesTop,
	} {
		sym, ok := im.ExportedSymbol(name)
		if *at = sym.Value; !ok || *at == 0 {
			return p
		}
	}
	return found
}

// CallerFrame implements unwind.FrameStepper. It is always NotMe.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	p := s.image(m.Image)
	if p.context == 0 {
		return unwind.NotMe, nil
	}
	reg, bytes, ok := vmread.MadeTables(&s.tables).For(m.Image).Rule(in.LookupPC() - m.Bias).CFA()
	if !ok {
		return unwind.NotMe, nil
	}
	base, ok := in.Regs.Value(reg)
	if !ok {
		return unwind.NotMe, nil
	}
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.image != m.Image || vm.bias != m.Bias {
		vm = newMachine(w, m, p)
		w.Keep(s, vm)
	}
	in.Code = vm.codeOf(w, in.SP(), base+uint64(bytes))
	return unwind.NotMe, nil
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, _ uint64, _ bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, m == nil || m.Image == nil || s.image(m.Image).context == 0
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
