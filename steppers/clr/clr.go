package clr

import (
	"bytes"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper walks from code of .NET, which its virtual machine has compiled while the program runs, or its
// compiler ahead of time (ReadyToRun), by the unwind information that the machine keeps of each
// function; and it notes which methods these are (see unwind.Codes). Of CoreCLR 8 on x86-64 it is known where that has
// what, and from 10 on the machine says so itself; other versions are left to other steppers, and so is
// what is compiled ahead into a program of its own (NativeAOT), which has no such machine.
//
// All that is read of the machine is read as it is now, when a frame is met there first: code stays where
// it is until its class is unloaded, but that of methods made at run time (DynamicMethod) can give its
// place to other such code.
type Stepper struct {
	images mcode.PerImage[image]
	pdbs   pdbs
	code   [codeBytes]byte
}

// New makes a Stepper.
func New() *Stepper { return &Stepper{} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "clr" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityFrame - 1 }

// image is what is known of a file that may be the virtual machine: link-time addresses, 0 where there is
// no such thing.
type image struct {
	table      uint64  // of what it tells debuggers (g_dacTable)
	descriptor uint64  // of where it has what, from 9 on
	fields     *fields // by its version, or by the descriptor once that was read; nil: not known
	isAsked    bool    // the descriptor was read, or there is none
}

// Names of what the virtual machine tells debuggers, what its version follows, and the file of memory that it has
// twice: to write code, and to run it.
const (
	clrMemory     = "/memfd:doublemapper"
	clrTable      = "g_dacTable"
	clrDescriptor = "DotNetRuntimeContractDescriptor"
	clrVersion    = "@(#)Version "
)

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image { return s.images.Known(im, find) }

// find looks for the virtual machine in a file.
func find(im *procstate.Image) (p image) {
	table, ok := im.ExportedSymbol(clrTable)
	arch := archs[im.Arch()]
	if !ok || arch == nil {
		return p
	}
	p.table = table.Value
	d, ok := im.ExportedSymbol(clrDescriptor)
	if p.descriptor, p.isAsked = d.Value, !ok; ok {
		return p
	}
	data, ok := im.Section(".data")
	if !ok {
		return p
	}
	const most = 1 << 20
	b := mcode.ReadFile(im, data.Vaddr, data.Vaddr+min(data.Size, most))
	if _, version, ok := bytes.Cut(b, []byte(clrVersion)); ok {
		major, _, _ := bytes.Cut(version[:min(len(version), 4)], []byte("."))
		p.fields = arch.fieldsOf[string(major)]
	}
	return p
}

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	pc := in.LookupPC()
	m := w.MappingAt(pc)
	if m == nil || m.Image != nil || archs[w.Arch()] == nil {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil {
		return unwind.NotMe, nil
	}
	interrupted := in.Flags&unwind.Interrupted != 0
	f := vm.functionAt(pc)
	if f != nil {
		in.Code = vm.codeOf(w.Codes(), f, in)
		if epilog := vm.arch.epilog; epilog != nil && interrupted && uint32(pc-f.begin) >= f.prolog {
			if e := epilog(f, mcode.Read(w, m, pc, s.code[:]), pc); e.ok {
				return e.callerFrame(w, in, out)
			}
		}
		return f.callerFrame(w, in, out)
	}
	isStub := vm.isStub(pc) || strings.HasPrefix(m.Path, clrMemory)
	if interrupted && (isStub || !procstate.HasFile(m.Path)) {
		if at, ok := thunk(w.Arch(), mcode.Read(w, m, pc, s.code[:]), pc); ok {
			if !isStub { // whose else should it be?
				out.Flags |= unwind.Heuristic
			}
			out.Regs.Inherit(&in.Regs, w.Arch().CalleeSaved)
			return returnFrom(w, in, out, in.SP()+at, linkOf(w, in))
		}
	}
	return unwind.NotMe, nil
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, _ uint64, _ bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, m == nil || m.Image != nil
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
