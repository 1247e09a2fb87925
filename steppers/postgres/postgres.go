package postgres

import (
	"path/filepath"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions in PL/pgSQL and SQL run in the frames of a server process of PostgreSQL (see unwind.Codes), on
// x86-64 and AArch64, PostgreSQL 13 to 18. It walks through no frame, and has all other steppers find them as they do.
//
// What runs is told by the contexts of errors, which are in the frames of C that they belong to. A [Collector] copies the word
// that leads to them, or the kernel side does (see [Stepper.Lacked]): it and that stack must be of one moment. What
// functions are called, and the lines of their statements, is read from the process when they are first met.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[image]
}

// New makes a Stepper. The tables tell where frames end; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "postgres" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image is what is known of a file, by link-time addresses.
type image struct {
	contexts uint64      // of a server: error_context_stack; 0 where it is none that is known
	sql      mcode.Range // of a server: the function of C that runs those in SQL
	release  release     // of a server
	language bool        // it is the module that runs functions in PL/pgSQL
}

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image { return s.images.Known(im, find) }

// find looks at a file.
func find(im *procstate.Image) (p image) {
	if a := im.Arch(); a != procstate.AMD64 && a != procstate.ARM64 {
		return p
	}
	switch filepath.Base(im.Path) {
	case "postgres":
		contexts, ok1 := im.ExportedSymbol("error_context_stack")
		sql, ok2 := im.ExportedSymbol("fmgr_sql")
		if !ok1 || !ok2 {
			break
		}
		if release, ok := releaseOf(im); ok {
			p = image{contexts: contexts.Value, sql: mcode.Range{Start: sql.Value, End: sql.Value + sql.Size}, release: release}
		}
	case "plpgsql.so":
		_, p.language = im.ExportedSymbol("plpgsql_call_handler")
	}
	return p
}

// runs reports whether a function in PL/pgSQL, or one in SQL, may run in code of the file.
func (p *image) runs(vaddr uint64) bool { return p.language || p.contexts != 0 && p.sql.Holds(vaddr) }

// CallerFrame implements unwind.FrameStepper. It is always NotMe.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	p := s.image(m.Image)
	if !p.runs(in.LookupPC() - m.Bias) {
		return unwind.NotMe, nil
	}
	vm, _ := vmread.MachineOf(w, s, s.machineOf)
	if vm.server == nil {
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
	in.Code = vm.codeOf(w, m, p, mcode.Range{Start: in.SP(), End: base + uint64(bytes)})
	return unwind.NotMe, nil
}

// machineOf finds the server in the process that w walks, which may be known.
func (s *Stepper) machineOf(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.contexts != 0 {
			if known != nil && known.server == p && known.bias == lib.Bias {
				return known
			}
			return newMachine(w, p, lib.Image, lib.Bias)
		}
	}
	return &machine{}
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil || m.Image == nil {
		return unwind.RuleNotMe, true
	}
	return unwind.RuleNotMe, !s.image(m.Image).runs(mcode.LookupPC(pc, interrupted) - m.Bias)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
