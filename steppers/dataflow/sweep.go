package dataflow

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// skim is what is kept of an instruction from the first sweep for the others: most of them are
// of no interest then, and decoding them takes most of the time.
type skim uint8

const (
	skimLen   skim = 15     // length in bytes, 0 of what is no instruction
	skimPads  skim = 1 << 4 // it fills gaps
	skimLooks skim = 1 << 5 // it is to be decoded again, as it changes the flow or lowers SP
)

// maxSkimmed bounds the code of which that is kept, a byte for each instruction. Of larger files
// each sweep decodes all.
const maxSkimmed = 64 << 20

// codeBlock is how much code is read at a time, and longest bounds the bytes of what is taken for
// one instruction.
const (
	codeBlock = 256 << 10
	longest   = 256
)

// sweep decodes the span with a number from one end to the other and calls visit for each
// instruction. fresh tells that nothing runs on into it: the instruction before, padding
// left out, ends the flow. After the first sweep of a span, instructions that neither change
// the flow nor lower SP come with their lengths alone.
func (c *Code) sweep(number int, visit func(addr uint64, in *isa.Inst, fresh bool)) {
	if c.skimmed == nil {
		c.skimmed = make([][]skim, len(c.spans))
	}
	s := c.spans[number]
	if known := c.skimmed[number]; known != nil {
		c.sweepAgain(s, known, visit)
		return
	}
	var skims []skim
	keeps := s.hi-s.lo <= maxSkimmed
	if keeps {
		skims = make([]skim, 0, (s.hi-s.lo)*2/7+16)
	}
	var in isa.Inst
	fresh := true
	buf := make([]byte, min(codeBlock+longest, s.hi-s.lo))
	for lo := s.lo; lo < s.hi; {
		hi := min(lo+codeBlock+longest, s.hi)
		code := buf[:hi-lo]
		if c.im.ReadVaddr(code, lo) != nil {
			return
		}
		i := uint64(0)
		for i < uint64(len(code)) && (i < codeBlock || hi == s.hi) {
			if !c.dec(code[i:], lo+i, &in) {
				i += uint64(c.arch.PCAlign)
				fresh = true
				if keeps {
					skims = append(skims, 0)
				}
				continue
			}
			visit(lo+i, &in, fresh)
			pads := isPadding(code[i:i+uint64(in.Len)], &in)
			if !pads {
				fresh = in.Ends()
			}
			if keeps {
				skims = append(skims, skimOf(c.arch, &in, pads))
			}
			i += uint64(in.Len)
		}
		lo += i
	}
	c.skimmed[number] = skims
}

func skimOf(a *procstate.Arch, in *isa.Inst, pads bool) skim {
	k := skim(in.Len) & skimLen
	if pads {
		k |= skimPads
	}
	if in.Flow != isa.Next || lowersSP(a, in) || in.Len > uint8(skimLen) {
		k |= skimLooks
	}
	return k
}

// sweepAgain is sweep for a span that was swept before.
func (c *Code) sweepAgain(s span, known []skim, visit func(addr uint64, in *isa.Inst, fresh bool)) {
	var in isa.Inst
	fresh := true
	buf := make([]byte, min(codeBlock+longest, s.hi-s.lo))
	code, lo := buf[:0], s.lo
	at := s.lo
	for _, k := range known {
		if k == 0 {
			at, fresh = at+uint64(c.arch.PCAlign), true
			continue
		}
		if k&skimLooks == 0 {
			in = isa.Inst{Len: uint8(k & skimLen), Reg: procstate.NoReg, Base: procstate.NoReg}
		} else {
			if end := lo + uint64(len(code)); at >= end || at+longest > end && end < s.hi {
				lo, code = at, buf[:min(uint64(len(buf)), s.hi-at)]
				if c.im.ReadVaddr(code, lo) != nil {
					return
				}
			}
			if !c.dec(code[at-lo:], at, &in) {
				return // the file has changed
			}
		}
		visit(at, &in, fresh)
		if k&skimPads == 0 {
			fresh = in.Ends()
		}
		at += uint64(in.Len)
	}
}
