package perl

import (
	"bytes"
	"path/filepath"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which subroutines of Perl run in the frames of its loop (see unwind.Codes), Perl
// 5.30 to 5.42. These are several in one frame, which call each other. It walks through
// no frame, and has all other steppers find them as they do.
//
// What a thread runs is in contexts, which are in no order with the C stack. A
// [Collector] copies them, or the kernel side does (see [Stepper.Lacked]): they and the C stack must be of
// one moment. Which of them are those of a frame is told by where Perl says that a loop ends, see
// runs.go.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[imageInfo]
}

// New makes a Stepper. The tables tell how its functions are left; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "perl" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// imageInfo is what is known of a file that may be the interpreter. Addresses are link-time
// addresses.
type imageInfo struct {
	fields *fields     // nil: it is none
	loop   mcode.Range // Perl_runops_standard

	// Of builds with threads: where in the loop the register is set that has the interpreter's
	// address, and the variables with the main one and the key of each thread's. Without threads what
	// is in the interpreter are variables: op, curcop and current.
	isThreaded          bool
	reg                 procstate.Reg
	regSet              uint64
	main, key           uint64
	op, curcop, current uint64

	callers [perlOverloaded + 1]mcode.Range // of the loop, by what they begin
	unwind  mcode.Range                     // Perl_dounwind
	ends    []mcode.Range                   // functions from which no caller goes on as it was
	ops     uint64                          // PL_ppaddr, the functions of ops
}

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *imageInfo { return s.images.Known(im, find) }

// find looks for the interpreter in a file.
func find(im *procstate.Image) (p imageInfo) {
	if im.Arch() != procstate.AMD64 && im.Arch() != procstate.ARM64 || !strings.Contains(filepath.Base(im.Path), "perl") {
		return p
	}
	find := func(name string) mcode.Range {
		sym, _ := im.ExportedSymbol(name)
		return mcode.Range{Start: sym.Value, End: sym.Value + sym.Size}
	}
	var version [1]byte
	at := find("PL_version").Start
	if p.loop = find("Perl_runops_standard"); p.loop.End <= p.loop.Start || at == 0 || im.ReadVaddr(version[:], at) != nil {
		return p
	}
	p.callers = [...]mcode.Range{
		perlMain: find("perl_run"), perlCalled: find("Perl_call_sv"), perlEvaluated: find("Perl_eval_sv"), perlOverloaded: find("Perl_amagic_call"),
	}
	p.unwind, p.ops = find("Perl_dounwind"), find("PL_ppaddr").Start
	p.ends = []mcode.Range{find("Perl_my_exit"), find("Perl_my_failure_exit"), find("Perl_die_unwind")}
	if die := &p.ends[2]; die.Start == 0 {
		*die = lastCallee(im, find("Perl_croak_sv")) // from 5.38 on
	}
	p.key, p.main = find("PL_thr_key").Start, find("PL_curinterp").Start
	p.op, p.curcop, p.current = find("PL_op").Start, find("PL_curcop").Start, find("PL_curstackinfo").Start
	ok := p.unwind.Start != 0 && p.ops != 0
	for _, f := range p.callers {
		ok = ok && f.End >= f.Start && (f.Start != 0 || f.End == 0)
	}
	for _, f := range p.ends {
		ok = ok && f.Start != 0
	}
	if p.isThreaded = p.key != 0; p.isThreaded {
		var found bool
		p.reg, p.regSet, found = interpreterRegister(im, p.loop)
		ok = ok && found && p.main != 0
	} else {
		ok = ok && p.op != 0 && p.curcop != 0 && p.current != 0
	}
	if options := find("PL_bincompat_options"); ok {
		b := make([]byte, min(options.End-options.Start, 1<<12))
		ok = len(b) > 0 && im.ReadVaddr(b, options.Start) == nil && bytes.Contains(b, []byte("USE_ITHREADS")) == p.isThreaded && !bytes.Contains(b, []byte("DEBUGGING"))
	}
	if ok {
		p.fields = versions[version[0]]
	}
	return p
}

// lastCallee returns the function that another calls last. Of Perl_croak_sv it is Perl_die_unwind, which
// does not return.
func lastCallee(im *procstate.Image, caller mcode.Range) (callee mcode.Range) {
	const most = 512
	code := make([]byte, min(caller.End-caller.Start, most))
	if im.ReadVaddr(code, caller.Start) != nil {
		return callee
	}
	var in isa.Inst
	for n := 0; n < len(code) && mcode.Decode(im.Arch(), code[n:], caller.Start+uint64(n), &in) && in.Len > 0; n += int(in.Len) {
		if in.Flow == isa.Call && in.Target != 0 {
			callee.Start = in.Target
		}
	}
	if lo, hi, _ := im.FunctionAround(callee.Start); lo == callee.Start && hi > lo {
		callee.End = hi
		return callee
	}
	return mcode.Range{}
}

// interpreterRegister finds the register in which the loop keeps the interpreter's address over
// the calls that it makes, and how far into the loop it is set: from its first argument.
func interpreterRegister(im *procstate.Image, loop mcode.Range) (reg procstate.Reg, set uint64, ok bool) {
	argument := mcode.FirstArgument(im.Arch())
	var code [48]byte
	b := code[:min(uint64(len(code)), loop.End-loop.Start)]
	if im.ReadVaddr(b, loop.Start) != nil {
		return 0, 0, false
	}
	var in isa.Inst
	for n := 0; mcode.Decode(im.Arch(), b[n:], loop.Start+uint64(n), &in) && in.Len > 0 && in.Flow == isa.Next; {
		n += int(in.Len)
		for _, op := range in.Ops[:in.NumOps] {
			if op.Kind == isa.Set && op.Src == argument && op.Imm == 0 && im.Arch().CalleeSaved>>op.Dst&1 != 0 {
				return op.Dst, uint64(n), true
			}
		}
	}
	return 0, 0, false
}

// place is what code is where a frame is.
type place uint8

const (
	perlElsewhere place = iota
	perlLoop
	perlUnwind
	perlEnd
)

// place returns what code is at a link-time address.
func (p *imageInfo) place(vaddr uint64) place {
	in := func(r mcode.Range) bool { return vaddr-r.Start < r.End-r.Start }
	switch {
	case p.fields == nil:
		return perlElsewhere
	case in(p.loop):
		return perlLoop
	case in(p.unwind):
		return perlUnwind
	}
	for _, r := range p.ends {
		if in(r) {
			return perlEnd
		}
	}
	return perlElsewhere
}

// CallerFrame implements unwind.FrameStepper. It is always NotMe.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	p := s.image(m.Image)
	place := p.place(in.LookupPC() - m.Bias)
	if place == perlElsewhere {
		return unwind.NotMe, nil
	}
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.image != m.Image || vm.bias != m.Bias {
		vm = newVM(w, m, p, vmread.MadeTables(&s.tables))
		w.Keep(s, vm)
	}
	if vm.walk != w.Walks() {
		vm.begin(w.Walks())
	}
	if place != perlLoop {
		vm.lost = vm.lost || place == perlEnd || !vm.isOrdinary(w, in)
		return unwind.NotMe, nil
	}
	in.Code = vm.codeOf(w, in)
	return unwind.NotMe, nil
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil || m.Image == nil {
		return unwind.RuleNotMe, true
	}
	return unwind.RuleNotMe, s.image(m.Image).place(mcode.LookupPC(pc, interrupted)-m.Bias) == perlElsewhere
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
