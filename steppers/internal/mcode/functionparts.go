package mcode

import (
	"cmp"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// FunctionParts tells which code of a file is of one function: that, and what is seldom executed
// of it and lies elsewhere, from where jumps lead back.
type FunctionParts struct {
	known []knownFunction // by where they begin
}

// knownFunction is the code of a function, and whether it is part of another one.
type knownFunction struct {
	Range
	is bool
}

// maxFunctionParts bounds the functions that are remembered.
const maxFunctionParts = 1 << 14

// Has reports whether a link-time address is in the function, or in such a part of it.
func (p *FunctionParts) Has(tables *unwind.Tables, im *procstate.Image, function Range, vaddr uint64) bool {
	if function.Holds(vaddr) {
		return true
	}
	i, _ := slices.BinarySearchFunc(p.known, vaddr, func(f knownFunction, vaddr uint64) int { return cmp.Compare(f.Start, vaddr+1) })
	if i > 0 && p.known[i-1].Holds(vaddr) {
		return p.known[i-1].is
	}
	start, end, ok := tables.For(im).FunctionAt(vaddr)
	if !ok {
		return false
	}
	// Tables may contradict each other: what holds the address may begin before others that do not.
	i, found := slices.BinarySearchFunc(p.known, start, func(f knownFunction, start uint64) int { return cmp.Compare(f.Start, start) })
	if found {
		return p.known[i].is
	}
	f := knownFunction{Range: Range{Start: start, End: end}}
	if len(p.known) < maxFunctionParts {
		f.is = jumpsInto(im, start, end, function)
		p.known = slices.Insert(p.known, i, f)
	}
	return f.is
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
