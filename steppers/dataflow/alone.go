package dataflow

import (
	"fmt"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Functions analyses functions of one file each by its own code alone, which costs a
// millisecond where [New] costs twenty for a megabyte. Only functions that leave nothing open have
// rules: their own jumps reach all of their code, none leads to where is not known, and all ways
// out leave the stack and the registers that calls preserve as they came. It belongs to one
// goroutine at a time, as its Codes do.
type Functions struct {
	im       *procstate.Image
	spans    []span          // executable ranges of the file
	noReturn map[uint64]bool // see Code
	back     map[uint64]bool // whether subroutines return, as far as asked
	left     int             // instructions that may still be carried out
}

// maxAlone bounds how many instructions the analysis of single functions of a file may carry
// out: one or two a byte.
const maxAlone = 8 << 20

// NewFunctions prepares the analysis of functions of a file, which reads its
// relocations. The Image is kept.
func NewFunctions(im *procstate.Image) *Functions {
	c := Code{im: im, arch: im.Arch(), noReturn: map[uint64]bool{}}
	c.findSpans()
	c.findNoReturn()
	return &Functions{im, c.spans, c.noReturn, map[uint64]bool{}, maxAlone}
}

// Function looks through the function at link-time addresses [lo, hi), of which something
// says that it is entered at lo alone. The Code has rules for it only, and none where
// other code could have to do with it.
func (fs *Functions) Function(lo, hi uint64) (*Code, error) {
	c, err := look(fs.im, func(c *Code) {
		c.alone, c.noReturn = fs, fs.noReturn
		c.addSpan(lo, hi-lo)
	})
	if err != nil {
		return nil, err
	}
	c.budget = min(c.budget, fs.left)
	known := len(c.starts) == 1 && c.function(lo) != nil
	if fs.left -= c.spent; !known {
		return nil, fmt.Errorf("%s: function at %#x: other code has to do with it: %w", fs.im.Path, lo, ErrNoCode)
	}
	return c, nil
}

// fileSpanOf is spanOf for all code of the file, which is more where a function is looked
// at alone: what that calls.
func (c *Code) fileSpanOf(vaddr uint64) (span, bool) {
	if c.alone != nil {
		return spanIn(c.alone.spans, vaddr)
	}
	return spanIn(c.spans, vaddr)
}

func spanIn(spans []span, vaddr uint64) (span, bool) {
	for _, s := range spans {
		if vaddr >= s.lo && vaddr < s.hi {
			return s, true
		}
	}
	return span{}, false
}

// isClosed reports whether a function that was looked at alone leaves nothing open: where
// its jumps lead is known, they reach all of its code, and it is left as it should be.
func (f *flow) isClosed(home *chunk) bool {
	if f.isOpen || len(f.dispatch) > 0 || len(f.exits) == 0 {
		return false
	}
	for i := range f.exits {
		if !f.isLeft(&f.exits[i].state) {
			return false
		}
	}
	var in isa.Inst
	for i := uint64(0); i < uint64(len(home.code)); i += uint64(in.Len) {
		if !f.c.dec(home.code[i:], home.lo+i, &in) {
			return false
		}
		if !home.covered[i] && !isPadding(home.code[i:i+uint64(in.Len)], &in) {
			return false
		}
	}
	return true
}

// isLeft reports whether a state is that of the entry as far as the function's caller
// needs it.
func (f *flow) isLeft(s *state) bool {
	if h, ok := s.height(f.arch); !ok || h != f.entryHeight() {
		return false
	}
	kept := func(r procstate.Reg) bool { return s.regs[r] == value{kind: entry, base: uint8(r)} }
	for _, r := range SavedRegs(f.arch) {
		if !kept(r) {
			return false
		}
	}
	return f.arch.LR == procstate.NoReg || kept(f.arch.LR)
}

// Bounds on the search for the function around an address.
const (
	maxAround  = 128 << 10 // bytes that it may begin before the address, or go on behind it
	maxTries   = 4         // places where it could begin that are looked at, of a scan
	maxReached = 40_000    // instructions that are followed from one
	maxLeaf    = 2_000     // instructions of a subroutine that it calls
	startAlign = 16        // compilers and assemblers have functions begin at multiples of it
)

// aroundScans are the bytes before an address in which the start of its function is looked
// for, one after the other: a function is rarely long.
var aroundScans = [...]uint64{8 << 10, maxAround} // read only

// Around is Function for the instruction at vaddr, or the call whose last byte is there, in code at
// [lo, hi) of which nothing tells where functions begin. It takes code that begins behind what ends
// other code and calls nothing but subroutines that return: other calls may not, and what follows be
// another function. Its ways out, returns among them, prove how the stack is where it begins, be
// that a function's start or not.
func (fs *Functions) Around(lo, vaddr, hi uint64) (c *Code, start, end uint64) {
	within, ok := spanIn(fs.spans, vaddr)
	if !ok {
		return nil, 0, 0
	}
	lo, hi = max(lo, within.lo), min(hi, within.hi, vaddr+maxAround)
	seen := vaddr + 1 // from there on no more starts are looked for
	for _, scan := range aroundScans {
		from := max(lo, (vaddr-min(vaddr, scan))&^(startAlign-1))
		r := fs.reach(from, hi)
		if r == nil {
			return nil, 0, 0
		}
		starts := r.behindEnds(seen)
		for i := len(starts) - 1; i >= max(0, len(starts)-maxTries); i-- {
			at := starts[i]
			if end := r.from(at); end > vaddr && r.holds[vaddr-r.lo] {
				if c, err := fs.Function(at, end); err == nil && c.function(at).returns {
					return c, at, end
				}
			}
		}
		if len(starts) >= maxTries || from == lo {
			break
		}
		if seen = from + 1; len(starts) > 0 {
			seen = starts[0]
		}
	}
	return nil, 0, 0
}

// reach follows jumps in a piece of code.
type reach struct {
	of      *Functions
	dec     isa.Decoder
	lo      uint64
	code    []byte
	covered []bool // bytes of instructions that were reached
	holds   []bool // their first bytes, and the last ones of calls
	work    []uint64
}

// reach reads the code at [lo, hi), nil where that cannot be read.
func (fs *Functions) reach(lo, hi uint64) *reach {
	r := &reach{of: fs, dec: isa.DecoderFor(fs.im.Arch()), lo: lo}
	if r.dec == nil || lo >= hi {
		return nil
	}
	r.code = make([]byte, hi-lo)
	if fs.im.ReadVaddr(r.code, lo) != nil {
		return nil
	}
	r.covered, r.holds = make([]bool, len(r.code)), make([]bool, len(r.code))
	return r
}

// behindEnds returns the places before an address where a function could begin: aligned, behind
// an instruction that nothing follows, but for padding.
func (r *reach) behindEnds(before uint64) (starts []uint64) {
	align := uint64(r.of.im.Arch().PCAlign)
	var in isa.Inst
	ended := false
	for at := r.lo; at < before; {
		o := at - r.lo
		if !r.dec(r.code[o:], at, &in) {
			at, ended = at+align, false
			continue
		}
		if padding := isPadding(r.code[o:o+uint64(in.Len)], &in); !padding {
			if ended && at%startAlign == 0 {
				starts = append(starts, at)
			}
			ended = in.Ends()
		}
		at += uint64(in.Len)
	}
	return starts
}

// from returns the end of the code from start on that jumps reach from there; start where they
// go where nothing is known.
func (r *reach) from(start uint64) (end uint64) {
	clear(r.covered)
	clear(r.holds)
	var in isa.Inst
	left := min(maxReached, r.of.left)
	before := left
	defer func() { r.of.left -= before - max(left, 0) }()
	for r.work = append(r.work[:0], start); len(r.work) > 0; {
		at := r.work[len(r.work)-1]
		r.work = r.work[:len(r.work)-1]
		for at >= start && at-r.lo < uint64(len(r.code)) && !r.covered[at-r.lo] {
			o := at - r.lo
			if left--; left < 0 || !r.dec(r.code[o:], at, &in) {
				return start
			}
			last := o + uint64(in.Len) - 1
			switch in.Flow {
			case isa.IndirectCall, isa.Syscall, isa.IndirectJump:
				return start
			case isa.Call:
				if !r.of.comesBack(in.Target) {
					return start
				}
				r.holds[last] = true
			case isa.Jump, isa.CondJump:
				r.work = append(r.work, in.Target)
			}
			r.holds[o] = true
			for i := o; i <= last; i++ {
				r.covered[i] = true
			}
			if at += uint64(in.Len); in.Ends() {
				break
			}
		}
	}
	end = start
	for at := start; at-r.lo < uint64(len(r.code)); {
		o := at - r.lo
		if !r.dec(r.code[o:], at, &in) || !r.covered[o] && !isPadding(r.code[o:o+uint64(in.Len)], &in) {
			break
		}
		at += uint64(in.Len)
		if r.covered[o] {
			end = at
		}
	}
	return end
}

// comesBack reports whether a subroutine is one that certainly returns: it calls nothing and has
// no other way out but returns.
func (fs *Functions) comesBack(vaddr uint64) bool {
	back, known := fs.back[vaddr]
	if !known {
		back = fs.onlyReturns(vaddr)
		fs.back[vaddr] = back
	}
	return back
}

func (fs *Functions) onlyReturns(vaddr uint64) (returns bool) {
	dec := isa.DecoderFor(fs.im.Arch())
	seen := map[uint64]struct{}{}
	var buf [16]byte
	var in isa.Inst
	for work := []uint64{vaddr}; len(work) > 0; {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for {
			if _, known := seen[at]; known {
				break
			}
			s, ok := spanIn(fs.spans, at)
			if !ok || len(seen) >= maxLeaf {
				return false
			}
			seen[at] = struct{}{}
			b := buf[:min(uint64(len(buf)), s.hi-at)]
			if fs.im.ReadVaddr(b, at) != nil || !dec(b, at, &in) {
				return false
			}
			at += uint64(in.Len)
			switch in.Flow {
			case isa.Return:
				returns = true
			case isa.Jump, isa.CondJump:
				work = append(work, in.Target)
			case isa.Next:
			default:
				return false
			}
			if in.Ends() {
				break
			}
		}
	}
	return returns
}
