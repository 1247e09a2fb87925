package dataflow

import (
	"errors"
	"fmt"
	"math"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Code is the code of one file and what was found out about it so far.
type Code struct {
	im   *procstate.Image
	arch *procstate.Arch
	dec  isa.Decoder
	told []uint64 // functions that the file does not tell of

	spans    []span     // executable ranges, sorted
	alone    *Functions // of the file, where one function is looked at by itself; else nil
	nops     bool       // NopsBehindCalls
	lo       uint64     // the lowest vaddr of them: offsets count from here
	starts   []uint32   // where functions start, sorted
	evidence []uint8    // what says so, parallel to starts
	taken    []uint32   // addresses that some instruction or relocation takes, sorted
	skimmed  [][]skim   // of each span, until functions are known
	tables   []uint64   // addresses of jump tables of absolute addresses, sorted
	incoming []jump     // jumps from one region into another, sorted by target

	funcs     map[uint32]*function // by start; nil when analysis gave up
	rules     []Rule               // rules[0] is none
	ruleIndex map[Rule]uint16
	lastRule  uint16          // asked for: mostly it is asked for again
	noReturn  map[uint64]bool // words that hold the address of a function that never returns
	returns   map[uint64]bool // whether a function returns, as far as found out
	shared    map[uint64]bool // answers of isShared
	callees   map[uint64]*Callee
	got       uint64           // the address of the GOT, for i386
	pops      map[uint64]int32 // bytes that functions take off the stack as they return; -1 is not known
	spent     int              // instructions carried out so far
	budget    int              // and how many are enough
	depth     int              // of nested questions for that

	cache [1 << 10]cached
}

// span is the executable link-time addresses [lo, hi).
type span struct{ lo, hi uint64 }

// jump is a branch from one region to another, by offset.
type jump struct{ target, source uint32 }

// cached is a past answer of RuleAt.
type cached struct {
	vaddr uint64
	rule  uint16
	valid bool
}

// Evidence that a function starts somewhere.
const (
	declared  = 1 << iota // a symbol or an unwind table says so
	called                // a call goes there
	continued             // a known continuation of other code, not an entry
	stub                  // an entry of the procedure linkage table
)

// ErrNoCode is returned for a file without code that could be analysed.
var ErrNoCode = errors.New("no code to analyse")

// maxText bounds how much code of one file is looked at.
const maxText = 1 << 30

// How many instructions the analysis of all functions of a file may carry
// out: real files take one or two a byte.
const (
	baseBudget    = 1 << 20
	budgetPerByte = 32
)

// New looks through the code of a file for its functions: a few passes over
// its bytes, which take two seconds for 100 MB. The Image is kept.
func New(im *procstate.Image) (*Code, error) {
	return look(im, (*Code).findSpans)
}

// NewRange is New for the code at link-time addresses [lo, hi) alone, as if
// the file had no other. It suits small sections that stand for themselves,
// such as .init.
func NewRange(im *procstate.Image, lo, hi uint64) (*Code, error) {
	return look(im, func(c *Code) { c.addSpan(lo, hi-lo) })
}

// NewStarts is New for the code from the first of some link-time addresses, in
// ascending order, up to hi, where a function begins at each of them, whatever the file says.
func NewStarts(im *procstate.Image, starts []uint64, hi uint64) (*Code, error) {
	return look(im, func(c *Code) {
		if len(starts) > 0 && starts[0] < hi {
			c.addSpan(starts[0], hi-starts[0])
		}
		c.told = starts
	})
}

func look(im *procstate.Image, findSpans func(*Code)) (*Code, error) {
	c := &Code{
		im: im, arch: im.Arch(), dec: isa.DecoderFor(im.Arch()), nops: NopsBehindCalls(im),
		funcs: map[uint32]*function{}, rules: make([]Rule, 1), ruleIndex: map[Rule]uint16{},
		noReturn: map[uint64]bool{}, returns: map[uint64]bool{}, shared: map[uint64]bool{}, callees: map[uint64]*Callee{}, pops: map[uint64]int32{},
	}
	switch c.arch {
	case procstate.AMD64:
		c.dec = withFill(c.arch, c.dec)
	case procstate.I386:
		c.dec = withFill(c.arch, c.withGOT(c.dec))
	}
	if c.dec == nil {
		return nil, fmt.Errorf("%s: architecture %s: %w", im.Path, c.arch.Name, ErrNoCode)
	}
	findSpans(c)
	if len(c.spans) == 0 || c.spans[len(c.spans)-1].hi-c.spans[0].lo > math.MaxUint32 {
		return nil, fmt.Errorf("%s: %w", im.Path, ErrNoCode)
	}
	c.lo = c.spans[0].lo
	c.budget = baseBudget
	for _, s := range c.spans {
		c.budget += budgetPerByte * int(s.hi-s.lo)
	}
	if c.alone == nil {
		c.findNoReturn()
	}
	c.findFunctions()
	return c, nil
}

// withFill makes a decoder take the zero bytes up to a multiple of 16 where a
// function begins, by which linkers fill gaps, for one instruction that does
// nothing. Two of them are one on x86, and the last of an odd number would take
// the function's first byte.
func withFill(a *procstate.Arch, dec isa.Decoder) isa.Decoder {
	return func(code []byte, pc uint64, in *isa.Inst) bool {
		n := -pc % 16
		if n%2 == 0 || uint64(len(code)) < n || !isZero(code[:n]) ||
			!dec(code[n:], pc+n, in) || !lowersSP(a, in) {
			return dec(code, pc, in)
		}
		*in = isa.Inst{Len: uint8(n), Reg: procstate.NoReg, Base: procstate.NoReg}
		return true
	}
}

func isZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// off turns a vaddr within the spans into an offset.
func (c *Code) off(vaddr uint64) uint32 { return uint32(vaddr - c.lo) }

// spanOf returns the executable range that holds vaddr.
func (c *Code) spanOf(vaddr uint64) (span, bool) {
	return spanIn(c.spans, vaddr)
}

// RuleAt returns the rule for the instruction that covers vaddr. ok is false
// when there is none that is sure. The Rule is valid until the next call.
func (c *Code) RuleAt(vaddr uint64) (r *Rule, ok bool) {
	e := &c.cache[vaddr*0x9e3779b97f4a7c15>>(64-10)]
	if !e.valid || e.vaddr != vaddr {
		*e = cached{vaddr, c.find(vaddr), true}
	}
	if e.rule == 0 {
		return nil, false
	}
	return &c.rules[e.rule], true
}

// maxSources bounds how many jumps into a region are followed back.
const maxSources = 12

// find answers RuleAt. Code may be a part of another function, moved away as
// seldom executed: then that function's flow leads there. What a flow says is
// believed before any guess.
func (c *Code) find(vaddr uint64) uint16 {
	if _, ok := c.spanOf(vaddr); !ok {
		return 0
	}
	region, ev := c.region(vaddr)
	if ev&called == 0 {
		r, sure := c.findFromSources(region, span{region.lo, region.lo + 1}, vaddr)
		if sure || r != 0 && c.isPart(region, ev) {
			return r
		}
	}
	if c.isShared(region) {
		if r, sure := c.findFromSources(region, span{region.lo, vaddr + 1}, vaddr); sure {
			return r
		}
	}
	rule, isGuess := uint16(0), false
	if f := c.function(region.lo); f != nil && ev&continued == 0 {
		if rule, isGuess = f.ruleAt(c.off(vaddr)); rule != 0 && !isGuess {
			return rule
		}
	}
	r, sure := c.findFromSources(region, span{region.lo, vaddr + 1}, vaddr)
	if r != 0 && (sure || rule == 0) {
		return r
	}
	return rule
}

// findFromSources looks for vaddr in the functions that jump from elsewhere to
// the given targets in its region, the nearest first. sure tells that no
// guess led there.
func (c *Code) findFromSources(region, targets span, vaddr uint64) (rule uint16, sure bool) {
	jumps := c.jumpsInto(targets)
	last := uint64(0)
	for i, n := len(jumps)-1, 0; i >= 0 && n < maxSources; i-- {
		from, ev := c.region(c.lo + uint64(jumps[i].source))
		if ev&continued != 0 || from == region || from.lo == last {
			continue
		}
		n, last = n+1, from.lo
		if f := c.function(from.lo); f != nil {
			r, isGuess := f.ruleAt(c.off(vaddr))
			if r != 0 && !isGuess {
				return r, true
			}
			rule = max(rule, r)
		}
	}
	return rule, false
}

// function returns the analysis of the function that starts at vaddr.
func (c *Code) function(vaddr uint64) *function {
	off := c.off(vaddr)
	f, ok := c.funcs[off]
	if !ok {
		f = c.analyse(vaddr)
		c.funcs[off] = f
	}
	return f
}

// internRule returns the index of a rule in rules, 0 when there are too many.
func (c *Code) internRule(r *Rule) uint16 {
	if *r == c.rules[c.lastRule] {
		return c.lastRule
	}
	if i, ok := c.ruleIndex[*r]; ok {
		c.lastRule = i
		return i
	}
	if len(c.rules) >= guessedRule {
		return 0
	}
	i := uint16(len(c.rules))
	c.rules = append(c.rules, *r)
	c.ruleIndex[*r] = i
	return i
}
