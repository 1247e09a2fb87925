package unwind

import (
	"math/bits"

	"github.com/swbpf/swbpf/procstate"
)

// RuleStepper is a FrameStepper that can say beforehand what it will answer at
// a code address. WalkPCs keeps such answers and walks through most frames by
// them, without asking the steppers one by one. About other frames, as those that
// come to a stepper that is no RuleStepper before one has claimed them by rule, all are
// asked each time but those whose rule is RuleNotMe.
type RuleStepper interface {
	FrameStepper

	// RuleAt returns the rule that CallerFrame applies to every frame whose PC
	// is pc, an address of the mapping m, and that is in a call or, when
	// interrupted is set, was interrupted there. It stands for all processes
	// that map m.Image, and for good. RuleNotMe and RuleBottom are rules, too.
	// ok is false when the answer depends on more.
	RuleAt(w *Walker, m *procstate.Mapping, pc uint64, interrupted bool) (r *Rule, ok bool)
}

// RuleGuard is implemented by a RuleStepper whose rules hold for some stacks
// only.
type RuleGuard interface {
	// RulesHold tells whether they do for the walk that w begins. It is called at
	// the start of each.
	RulesHold(w *Walker) bool
}

// RuleNotMe and RuleBottom are the rules by which CallerFrame answers NotMe
// and StackBottom.
var (
	RuleNotMe  = ruleNone
	RuleBottom = &Rule{flags: ruleRAUndefined}
)

// PlainRule makes the rule of a frame that preserves no register but, if
// anything, the frame pointer: the CFA is SP plus size bytes, the return address right
// below it, and the caller's frame pointer at the CFA plus fp; it is unchanged
// when fp is 0 or, with linked, when it does not point to that place.
func PlainRule(a *procstate.Arch, size int32, fp int16, linked bool) *Rule {
	r := &Rule{cfaReg: a.SP, cfaOff: size, raOff: -int16(a.AddressWidth), flags: rulePlain}
	if fp == 0 {
		r.carry = 1 << a.FP
		return r
	}
	r.n, r.reg[0], r.off[0] = 1, a.FP, fp
	if linked {
		r.flags |= ruleFPLinked
	}
	return r
}

// Noted makes a PlainRule one that leaves a trace in the walk: Walker.Noted.
func (r *Rule) Noted() *Rule {
	r.flags |= ruleNoted
	return r
}

// ruledFrames remembers how frames are walked through, by image and link-time
// address: a cache of what the RuleSteppers of a group answer, in sets of two.
type ruledFrames struct {
	slots    [2 << ruledSetBits]ruledFrame
	none     ruledFrame    // the callee of a frame where a walk begins
	steppers []RuleStepper // those of the group; nil is one that makes no rules
	guards   []RuleGuard
	trail    [maxTrail]memoFrame // Walker.trail of the walk that goes on
}

const (
	ruledSetBits = 15 // slots are numbered in 16 bits

	// A key holds 43 bits of a link-time address, whether the frame was
	// interrupted, and 1 + the index of the image. What does not fit is not
	// kept.
	keyVaddrBits   = 43
	keyInterrupted = 1 << keyVaddrBits
	keyImageShift  = keyVaddrBits + 1
)

// ruledFrame is a slot: how PC, SP and FP of the caller are found, and nothing
// else.
type ruledFrame struct {
	key uint64 // 0 when the slot is empty
	cfa int16  // CFA minus SP or FP, in words
	// Where the return address and the caller's FP are, as offsets from the CFA
	// in words. fp is 0 when FP is unchanged.
	ra, fp int8
	how    ruledHow
	only   ruledOnly
	// next is the slot of the caller's frame when this one was met last: a
	// guess that lets the processor go ahead before it has read the key.
	next uint16
}

// ruledHow tells how a frame is walked through.
type ruledHow uint8

const (
	ruledNot ruledHow = iota // by asking the steppers
	ruledBySP
	ruledByFP
	ruledBottom
)

// ruledOnly are the rare traits of a rule.
type ruledOnly uint8

const (
	ruledSigned ruledOnly = 1 << iota // the return address carries an authentication code
	ruledLinked                       // FP is unchanged when it does not point to where it is saved
	ruledPlain                        // no other registers are known in the caller
	ruledNoted                        // Walker.Noted is true from here on

	// With them is the index of the stepper whose rule it is, or the last that there is room for.
	makerShift = 4
	lastMaker  = 15
)

// keyOf returns what makes keys of the PCs of a mapping. ok is false when they cannot be
// keys.
func keyOf(m *procstate.Mapping, interrupted bool) (toKey uint64, ok bool) {
	if m == nil || m.Image == nil {
		return 0, false
	}
	image := uint64(m.Image.Index) + 1
	toKey = image<<keyImageShift - m.Bias
	if interrupted {
		toKey += keyInterrupted
	} else {
		toKey--
	}
	return toKey, image < 1<<(64-keyImageShift) && (m.End-m.Bias)>>keyVaddrBits == 0
}

// lookupPC is Frame.LookupPC of a frame that is in a call or interrupted.
func lookupPC(pc uint64, interrupted bool) uint64 {
	if interrupted {
		return pc
	}
	return pc - 1
}

// ruledSet returns the number of the first of the two slots that a key may be in.
func ruledSet(key uint64) uint16 {
	return uint16(key * 0x9e3779b97f4a7c15 >> (64 - ruledSetBits) * 2)
}

// find returns the number of the slot of a key, or makes one free and returns
// that: then its key is 0.
func (c *ruledFrames) find(key uint64) uint16 {
	i := ruledSet(key)
	p := (*[2]ruledFrame)(c.slots[i:])
	if p[0].key == key {
		return i
	}
	if p[1].key != key {
		p[1], p[0] = p[0], ruledFrame{}
		return i
	}
	return i + 1
}

// newRuledFrames makes an empty cache for the steppers of a group.
func newRuledFrames(members []member) *ruledFrames {
	c := &ruledFrames{}
	for _, m := range members {
		s, _ := m.stepper.(RuleStepper)
		c.steppers = append(c.steppers, s)
	}
	for _, m := range members {
		if g, ok := m.stepper.(RuleGuard); ok {
			c.guards = append(c.guards, g)
		}
	}
	return c
}

// hold tells whether the rules hold for the walk that w begins.
func (c *ruledFrames) hold(w *Walker) bool {
	for _, g := range c.guards {
		if !g.RulesHold(w) {
			return false
		}
	}
	return true
}

// fill stores in a slot how to walk from pc, by asking the steppers in order. What a stepper
// panics in is not stored, nor what is said of another mapping than that which the key is of.
func (s *ruledFrame) fill(w *Walker, key, pc uint64, interrupted bool) {
	m := w.MappingAt(lookupPC(pc, interrupted))
	made := ruledFrame{}
	if toKey, ok := keyOf(m, interrupted); ok && pc+toKey == key {
		made.ask(w, m, pc, interrupted)
		made.key = key
	} else {
		made.keep(allSteppers)
	}
	*s = made
}

// ask has the steppers say how to walk from pc.
func (s *ruledFrame) ask(w *Walker, m *procstate.Mapping, pc uint64, interrupted bool) {
	may := allSteppers
	for i, stepper := range w.rules.steppers {
		if stepper == nil {
			continue
		}
		r, ok := stepper.RuleAt(w, m, pc, interrupted)
		switch {
		case !ok || r == nil:
		case r.why == NoUnwindInfo:
			may = may.without(i)
		default:
			if may.first() == i {
				s.set(w.arch, r)
			}
			if s.how == ruledNot {
				s.keep(may)
			}
			s.only |= ruledOnly(min(i, lastMaker)) << makerShift
			return
		}
	}
	s.keep(may)
}

// stepperMask is a set of the steppers of a group, by their indices in it: of the first ones, those that it has, and all others.
type stepperMask uint32

const (
	allSteppers = ^stepperMask(0)
	maskBits    = 32
)

func (m stepperMask) has(i int) bool            { return i >= maskBits || m>>i&1 != 0 }
func (m stepperMask) without(i int) stepperMask { return m &^ (1 << i) }
func (m stepperMask) first() int                { return bits.TrailingZeros32(uint32(m)) }

// keep stores which steppers may know a frame that is not ruled, in the place of the rule.
func (s *ruledFrame) keep(may stepperMask) {
	s.cfa, s.ra, s.fp = int16(may), int8(may>>16), int8(may>>24)
}

// mayKnow returns the steppers that may know a frame: others say that they do not, by rule.
func (w *Walker) mayKnow(f *Frame) stepperMask {
	if g := w.ranged; w.rules == nil || w.rules != g.ruled || len(g.ranges) > 0 || f.Flags&^(Top|Interrupted|StackSwitched) != 0 {
		return allSteppers
	}
	interrupted := f.Flags&Interrupted != 0
	if !w.ruledMapping(f.pc, interrupted) {
		return allSteppers
	}
	key := f.pc + w.run.toKey
	s := &w.rules.slots[w.rules.find(key)&(2<<ruledSetBits-1)]
	if s.key == 0 {
		s.fill(w, key, f.pc, interrupted)
	}
	return s.mayKnow()
}

// mayKnow returns the steppers that may know the frame: from that on whose rule it is, or those that were kept.
func (s *ruledFrame) mayKnow() stepperMask {
	if s.how != ruledNot {
		return allSteppers << (s.only >> makerShift)
	}
	return stepperMask(uint16(s.cfa)) | stepperMask(uint8(s.ra))<<16 | stepperMask(uint8(s.fp))<<24
}

// set stores what a rule says of PC, SP and FP, if the slot can hold it.
func (s *ruledFrame) set(a *procstate.Arch, r *Rule) {
	const known = ruleRAUndefined | ruleRASigned | ruleFPLinked | rulePlain
	flags, noted := r.flags, r.flags&(rulePlain|ruleNoted) == rulePlain|ruleNoted
	if noted {
		flags &^= ruleNoted
	}
	switch {
	case r.why != ReasonNone || r.row != nil || flags&^known != 0:
		return
	case r.flags&ruleRAUndefined != 0:
		s.how = ruledBottom
		return
	}
	fp := int16(0)
	for i, reg := range r.reg[:r.n] {
		if reg == a.FP {
			fp = r.off[i]
		}
	}
	cfa, ra, saved := int16(r.cfaOff/wordBytes), int8(r.raOff/wordBytes), int8(fp/wordBytes)
	if int32(cfa)*wordBytes != r.cfaOff || int16(saved)*wordBytes != fp || int16(ra)*wordBytes != r.raOff ||
		fp == 0 && r.carry>>a.FP&1 == 0 || r.cfaReg != a.SP && r.cfaReg != a.FP {
		return
	}
	s.cfa, s.ra, s.fp = cfa, ra, saved
	if r.flags&ruleRASigned != 0 {
		s.only |= ruledSigned
	}
	if r.flags&ruleFPLinked != 0 {
		s.only |= ruledLinked
	}
	if r.flags&rulePlain != 0 {
		s.only |= ruledPlain
	}
	if noted {
		s.only |= ruledNoted
	}
	s.how = ruledBySP
	if r.cfaReg == a.FP {
		s.how = ruledByFP
	}
}
