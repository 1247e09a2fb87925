package mcode

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// FunctionParts tells which code of a file is of one function: that, and what is seldom executed
// of it and lies elsewhere, from where jumps lead back.
type FunctionParts struct {
	known map[uint64]bool // functions, by where they begin, and whether they are part of that
}

// maxFunctionParts bounds the functions that are remembered.
const maxFunctionParts = 1 << 14

// Has reports whether a link-time address is in the function, or in such a part of it.
func (p *FunctionParts) Has(tables *unwind.Tables, im *procstate.Image, function Range, vaddr uint64) bool {
	if vaddr-function.Start < function.End-function.Start {
		return true
	}
	start, end, ok := tables.For(im).FunctionAt(vaddr)
	if !ok {
		return false
	}
	is, known := p.known[start]
	if !known && len(p.known) < maxFunctionParts {
		is = jumpsInto(im, start, end, function)
		if p.known == nil {
			p.known = map[uint64]bool{}
		}
		p.known[start] = is
	}
	return is
}

// jumpsInto reports whether code [start, end) has a jump into the middle of a function.
func jumpsInto(im *procstate.Image, start, end uint64, function Range) bool {
	var in isa.Inst
	buf := make([]byte, 1<<10)
	for start < end {
		code := buf[:min(uint64(len(buf)), end-start)]
		if im.ReadVaddr(code, start) != nil {
			return false
		}
		for n := 0; ; n += int(in.Len) {
			if last := start+uint64(len(code)) == end; !last && len(code)-n < MaxInstLen || !Decode(im.Arch(), code[n:], start+uint64(n), &in) || in.Len == 0 {
				if n == 0 || last {
					return false
				}
				start += uint64(n)
				break
			}
			if (in.Flow == isa.Jump || in.Flow == isa.CondJump) && in.Target > function.Start && in.Target < function.End {
				return true
			}
		}
	}
	return false
}

// MaxInstLen is the most bytes that an instruction has.
const MaxInstLen = 15
