package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// These make unwind.RuleSteppers of the steppers whose answers follow from the
// code alone, at most addresses.

// RuleAt implements unwind.RuleStepper.
func (b *Bottom) RuleAt(w *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m.Image == nil {
		return unwind.RuleNotMe, true
	}
	lookup := mcode.LookupPC(pc, interrupted)
	if b.isEntry(m.Image, lookup-m.Bias) {
		return unwind.RuleBottom, true
	}
	if !maybeEntry(m.Image, pc-m.Bias) {
		return unwind.RuleNotMe, true
	}
	// Where no thread starts, registers are never looked at.
	if start, known := b.isStart(w, m, pc, lookup, 0); start || !known {
		return nil, false
	}
	if interrupted {
		for _, when := range []uint64{fromSyscall, inExit} {
			if start, known := b.isStart(w, m, pc, lookup, when); start || !known {
				return nil, false
			}
		}
	}
	return unwind.RuleNotMe, true
}

// RuleAt implements unwind.RuleStepper.
func (s *SigHandler) RuleAt(w *unwind.Walker, _ *procstate.Mapping, pc uint64, _ bool) (*unwind.Rule, bool) {
	t, known := s.trampolineAt(w, pc)
	return unwind.RuleNotMe, known && t == noTrampoline
}

// RulesHold implements unwind.RuleGuard: uretprobes replace return addresses.
func (d *Dynamic) RulesHold(w *unwind.Walker) bool {
	_, ok := d.helper.(*ReturnProbes)
	return (ok || d.helper == nil) && mcode.UserProbes(w) == nil
}

// RuleAt implements unwind.RuleStepper.
func (d *Dynamic) RuleAt(*unwind.Walker, *procstate.Mapping, uint64, bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, true
}

// RulesHold implements unwind.RuleGuard. It only takes note that a walk begins,
// whose top frame may go by a rule.
func (s *Go) RulesHold(*unwind.Walker) bool {
	s.walk = goWalk{}
	return true
}

// RuleAt implements unwind.RuleStepper.
func (s *Go) RuleAt(w *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m.Image == nil {
		return unwind.RuleNotMe, true
	}
	im := s.image(m.Image)
	if im.table == nil {
		return unwind.RuleNotMe, true
	}
	switch r := s.rule(m.Image, im.table, mcode.LookupPC(pc, interrupted)-m.Bias); {
	case r.kind == goForeign:
		return unwind.RuleNotMe, true
	case r.kind == goTop:
		return unwind.RuleBottom, true
	case w.Arch() != procstate.AMD64:
	case (r.kind == goPlain || r.kind == goAsm) && r.delta < 8: // see goFrame.framePointer
		return unwind.PlainRule(w.Arch(), r.delta+8, 0, false), true
	case r.kind == goSchedule && r.delta >= 8 && !interrupted:
		return unwind.PlainRule(w.Arch(), r.delta+8, -16, false).Noted(), true
	case r.kind == goPlain:
		return unwind.PlainRule(w.Arch(), r.delta+8, -16, interrupted), true
	}
	return nil, false
}

// RuleAt implements unwind.RuleStepper.
func (d *Debug) RuleAt(w *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m.Image == nil || m.Image.Arch() != w.Arch() {
		return unwind.RuleNotMe, true
	}
	if d.cache == nil {
		d.begin()
	}
	vaddr := mcode.LookupPC(pc, interrupted) - m.Bias
	at := d.tables.For(m.Image).Look(vaddr, lookAhead(interrupted))
	// A call that is the last of a function does not return, as that of a coroutine's first one: see returnsToItself.
	isLast := !interrupted && !at.Inside
	if isLast && (w.Arch().LR != procstate.NoReg || d.putThere(m, pc)) || d.doubtAt(m.Image, vaddr, &at, interrupted) != doubtNone || d.mayMislead(m.Image, pc-m.Bias, interrupted) {
		return nil, false
	}
	return at.Rule, !at.Rule.Jumps(w.Arch()) && !at.Rule.SwitchesStack(w.Arch())
}
