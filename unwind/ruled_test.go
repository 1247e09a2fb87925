package unwind

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// A slot holds what fits into it, to the bit: of other rules the steppers are asked.
func TestRuledFrameHolds(t *testing.T) {
	a := procstate.AMD64
	fpSaved := func(off int16) Rule {
		return Rule{cfaReg: a.SP, cfaOff: 32, raOff: -8, n: 1, reg: [maxSaved]procstate.Reg{a.FP}, off: [maxSaved]int16{off}}
	}
	for name, c := range map[string]struct {
		r    Rule
		want ruledHow
	}{
		"by SP":                               {Rule{cfaReg: a.SP, cfaOff: 32, raOff: -8, carry: 1 << a.FP}, ruledBySP},
		"by FP":                               {Rule{cfaReg: a.FP, cfaOff: 16, raOff: -8, carry: 1 << a.FP}, ruledByFP},
		"FP saved":                            {fpSaved(-16), ruledBySP},
		"FP saved at the CFA":                 {fpSaved(0), ruledNot},
		"FP saved far away":                   {fpSaved(-8 * 256), ruledNot},
		"FP saved at no word":                 {fpSaved(-12), ruledNot},
		"FP lost":                             {Rule{cfaReg: a.SP, cfaOff: 32, raOff: -8}, ruledNot},
		"return address far away":             {Rule{cfaReg: a.SP, cfaOff: 4096, raOff: -8 * 256, carry: 1 << a.FP}, ruledNot},
		"return address at no word":           {Rule{cfaReg: a.SP, cfaOff: 32, raOff: -9, carry: 1 << a.FP}, ruledNot},
		"a large frame":                       {Rule{cfaReg: a.SP, cfaOff: 8 * 32767, raOff: -8, carry: 1 << a.FP}, ruledBySP},
		"a larger one":                        {Rule{cfaReg: a.SP, cfaOff: 8 * 32768, raOff: -8, carry: 1 << a.FP}, ruledNot},
		"by another register":                 {Rule{cfaReg: 3, cfaOff: 32, raOff: -8, carry: 1 << a.FP}, ruledNot},
		"no caller":                           {Rule{flags: ruleRAUndefined}, ruledBottom},
		"a signal trampoline":                 {Rule{cfaReg: a.SP, cfaOff: 32, raOff: -8, carry: 1 << a.FP, flags: ruleSignal}, ruledNot},
		"the return address in a register":    {Rule{cfaReg: a.SP, raReg: 2, carry: 1 << a.FP, flags: ruleRAInReg}, ruledNot},
		"what no rule covers":                 {*ruleNone, ruledNot},
		"registers saved by where the CFA is": {Rule{cfaReg: a.FP, raOff: -8, carry: 1 << a.FP, flags: ruleDeref | ruleSavedByReg}, ruledNot},
	} {
		var s ruledFrame
		if s.set(a, &c.r); s.how != c.want {
			t.Errorf("%s: %d, want %d", name, s.how, c.want)
		}
	}
}

// ruler is a stepper with one rule for all addresses; nil: its answers depend on more.
type ruler struct {
	FrameStepper
	rule *Rule
}

func (r *ruler) Name() string       { return "ruler" }
func (r *ruler) Priority() Priority { return PriorityFrame }
func (r *ruler) RuleAt(*Walker, *procstate.Mapping, uint64, bool) (*Rule, bool) {
	return r.rule, r.rule != nil
}

// unruled is a stepper without rules.
type unruled struct{ FrameStepper }

func (unruled) Name() string       { return "unruled" }
func (unruled) Priority() Priority { return PriorityFrame }

// All steppers are asked about a frame but those that have ruled it out, and those before the one that has claimed it.
func TestRuledAsks(t *testing.T) {
	const not, depends, plain, none, many = 'n', 'd', 'p', 'u', 40
	all := func(s string) string { return strings.Repeat("n", many) + s }
	for kinds, want := range map[string][]int{
		"nnp": {2}, "nnpn": {2, 3}, "pd": {0, 1}, "dn": {0}, "ndnn": {1}, "nunn": {1}, "ndnpn": {1, 3, 4}, "nundnn": {1, 3},
		all("d"): {32, 33, 34, 35, 36, 37, 38, 39, 40},
	} {
		var members []member
		rule := PlainRule(procstate.AMD64, 16, 0, false)
		for _, kind := range kinds {
			switch kind {
			case not:
				members = append(members, member{stepper: &ruler{rule: RuleNotMe}})
			case depends:
				members = append(members, member{stepper: &ruler{}})
			case plain:
				members = append(members, member{stepper: &ruler{rule: rule}})
			case none:
				members = append(members, member{stepper: unruled{}})
			}
		}
		w := NewWalker(procstate.NewSnapshot(procstate.AMD64, 1, "", nil), &AddressRangeGroup{ruled: newRuledFrames(members)}, nil)
		w.rules = w.ranged.ruled
		var s ruledFrame
		s.ask(w, nil, 0x1000, true)
		var got []int
		for i := range members {
			if s.mayKnow().has(i) {
				got = append(got, i)
			}
		}
		if w.mayKnow(&Frame{}) != allSteppers {
			t.Errorf("%s: of an address without a file", kinds)
		}
		if !slices.Equal(got, want) || (s.how == ruledBySP) != (strings.TrimLeft(kinds, "n")[0] == plain) {
			t.Errorf("%s: %v are asked, want %v; how %d", kinds, got, want, s.how)
		}
	}
}

// The loop over frames goes on for as long as what a frame is found by lies above its SP, in
// the stack, and the caller's is further down.
func TestRuledRun(t *testing.T) {
	const pc, low, sp = 0x1000, 0x8000, 0x8040
	stack := make([]byte, 0x100)
	for i := 0; i < len(stack); i += wordBytes {
		binary.LittleEndian.PutUint64(stack[i:], 0x5000)
	}
	for name, c := range map[string]struct {
		r    ruledFrame
		want int
	}{
		"a frame":                         {ruledFrame{cfa: 2, ra: -1, how: ruledBySP}, 1},
		"no larger than nothing":          {ruledFrame{cfa: 0, ra: 1, how: ruledBySP}, 0},
		"return address at SP":            {ruledFrame{cfa: 2, ra: -2, how: ruledBySP}, 1},
		"return address below SP":         {ruledFrame{cfa: 2, ra: -3, how: ruledBySP}, 0},
		"return address in the last word": {ruledFrame{cfa: 24, ra: -1, how: ruledBySP}, 1},
		"behind the stack":                {ruledFrame{cfa: 25, ra: -1, how: ruledBySP}, 0},
		"FP below SP":                     {ruledFrame{cfa: 2, ra: -1, fp: -3, how: ruledBySP}, 0},
		"FP behind the stack":             {ruledFrame{cfa: 24, ra: -1, fp: 1, how: ruledBySP}, 0},
		"a signed return address":         {ruledFrame{cfa: 2, ra: -1, how: ruledBySP, only: ruledSigned}, 0},
		"the bottom":                      {ruledFrame{how: ruledBottom}, 0},
	} {
		rules := new(ruledFrames)
		c.r.key = pc
		rules.slots[rules.find(pc)] = c.r
		at := ruledRun{pc: pc, sp: sp, fp: sp + 8, last: &rules.none, stop: ^uint64(0), low: low, stack: stack, start: pc, size: 1}
		var dst [2]PC
		var trail [2]memoFrame
		if n := rules.run(&at, dst[:], trail[:]); n != c.want || n > 0 && (at.pc != 0x5000 || dst[0].Addr != 0x4fff || at.sp != sp+uint64(c.r.cfa)*wordBytes) {
			t.Errorf("%s: %d frames, to %#x at %#x; want %d", name, n, at.pc, at.sp, c.want)
		}
	}
}

// Rules that tell of where code is about to jump to.
func TestJumps(t *testing.T) {
	a := procstate.AMD64
	row := func(ra RegRule) *Row {
		r := &Row{RA: uint8(a.PC), CFA: RegRule{Kind: InReg, Reg: a.SP}}
		r.Regs[a.PC] = ra
		return r
	}
	saved := func(cfa, sp string) *Row {
		r := row(RegRule{Kind: AtExpression, Offset: int64(len(cfa)), size: uint32(len(sp))})
		r.CFA = RegRule{Kind: ValExpression, size: uint32(len(cfa))}
		r.Regs[a.SP] = r.Regs[a.PC]
		r.code = cfa + sp
		return r
	}
	for name, c := range map[string]struct {
		r    Rule
		want bool
	}{
		"return address below the CFA":        {Rule{cfaReg: a.SP, raOff: -8}, false},
		"at the CFA":                          {Rule{cfaReg: a.SP, raOff: 0}, true},
		"in a register":                       {Rule{cfaReg: a.SP, flags: ruleRAInReg}, false},
		"of a whole row, below the CFA":       {Rule{row: row(RegRule{Kind: AtOffset, Offset: -8})}, false},
		"of a whole row, at the CFA":          {Rule{row: row(RegRule{Kind: AtOffset})}, true},
		"of a whole row, in another register": {Rule{row: row(RegRule{Kind: InReg, Reg: 2})}, false},
		"without call frame information":      {*ruleNone, false},
		"SP in a place of its own":            {Rule{row: saved("\x76\x68", "\x76\x70")}, true},
		"where the CFA is":                    {Rule{row: saved("\x76\x70\x06", "\x76\x70")}, false},
	} {
		if got := c.r.Jumps(a); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// A row whose CFA is too low for what is saved is told by where that is.
func TestPushed(t *testing.T) {
	const fp, lr, x0 = 29, 30, 0
	row := func(cfa procstate.Reg, fpAt, raAt int64) *Row {
		r := &Row{RA: lr, CFA: RegRule{Kind: InReg, Reg: cfa}}
		r.Regs[fp] = RegRule{Kind: AtOffset, Offset: fpAt}
		r.Regs[lr] = RegRule{Kind: AtOffset, Offset: raAt}
		return r
	}
	for name, c := range map[string]struct {
		row  *Row
		want int64
	}{
		"as usual":                         {row(fp, -16, -8), 0},
		"a frame record at the CFA":        {row(fp, 0, 8), 16}, // libffi 3.4.8
		"the same by an argument":          {row(x0, 0, 8), 16},
		"longjmp":                          {row(x0, 80, 88), 0},
		"a return address alone":           {row(fp, -16, 8), 0},
		"above SP, as _dl_runtime_resolve": {row(procstate.ARM64.SP, -16, 8), 16},
	} {
		if got := c.row.pushed(procstate.ARM64); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A rule is raised if the next one differs from it in the CFA alone, and its CFA is no word
// in memory.
func TestRaised(t *testing.T) {
	plain := Rule{cfaReg: 7, cfaOff: 8, raOff: -8}
	deref, saves := plain, plain
	deref.flags, saves.raOff = ruleDeref, -16
	for name, c := range map[string]struct {
		r, next Rule
		ok      bool
	}{
		"plain": {plain, Rule{cfaReg: 6, cfaOff: 16, raOff: -8}, true}, "in memory": {deref, deref, false}, "another": {plain, saves, false},
	} {
		raised, ok := c.r.Raised(8, &c.next)
		if ok != c.ok || ok && !raised.CFAIs(7, 16) {
			t.Errorf("%s: %+v, %t", name, raised, ok)
		}
	}
}

// Why a word cannot be read: what was captured of the stack ends before it, or it is elsewhere.
func TestReadFailure(t *testing.T) {
	stack := procstate.Region{Addr: 0x8000, Data: make([]byte, 0x100)}
	s := snapshot(0x1000, 0x8000, 0, stack)
	for addr, want := range map[uint64]Reason{
		0x7ff8: MemoryUnreadable, 0x80f8: MemoryUnreadable, 0x80f9: StackCut, 0x8100: StackCut,
		0x8100 + maxLiveStack - 8: StackCut, 0x8100 + maxLiveStack: MemoryUnreadable, 0: MemoryUnreadable,
	} {
		if got := ReadFailure(s, addr); got != want {
			t.Errorf("%#x: %v, want %v", addr, got, want)
		}
	}
}

// The CFA of a linkage table counts from SP upward.
func TestPLTExpression(t *testing.T) {
	good := []byte{opBreg0 + 7, 8, opBreg0 + 16, 0, opLit0 + 15, opAnd, opLit0 + 11, opGe, opLit0 + 3, opShl, opPlus}
	if off, threshold, ok := pltExpression(procstate.AMD64, good); !ok || off != 8 || threshold != 11 {
		t.Errorf("%d, %d, %t", off, threshold, ok)
	}
	for i, b := range map[int]byte{1: 0x78, 6: opLit0 + 16, 0: opBreg0 + 6, 8: opLit0 + 2} { // -8 among them
		bad := append([]byte(nil), good...)
		bad[i] = b
		if _, _, ok := pltExpression(procstate.AMD64, bad); ok {
			t.Errorf("byte %d is %#x", i, b)
		}
	}
}
