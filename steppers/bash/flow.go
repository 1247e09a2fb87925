package bash

import (
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// point is what is known of a place in a function on all ways to it.
type point struct {
	mcode.Holding // where it has its first argument
	phase         phase
}

// phase is what execute_function may have done, a bit each.
type phase uint8

const (
	before  phase = 1 << iota // it has not begun with the function of the script
	within                    // it has
	leaving                   // and is about to let go of it, or has
)

// calls are the points of the calls that a function makes, by link-time return address.
type calls map[uint64]point

// maxFunction bounds the bytes of a function that is looked through, and maxVisits how often an instruction is.
const (
	maxFunction = 64 << 10
	maxVisits   = 64
)

// follow follows a function on all of its ways from the beginning, through tables of jumps too. What only these lead
// to in another way than compilers for x86-64 make them is left out.
func follow(im *procstate.Image, t *unwind.Table, function mcode.Range, push, run uint64, endless []uint64) calls {
	code := mcode.ReadFile(im, function.Start, min(function.End, function.Start+maxFunction))
	w := &way{arch: im.Arch(), start: function.Start, bytes: code, table: t, points: map[uint64]point{}, first: -1}
	argument := mcode.FirstArgument(w.arch)
	mayBegin := true
	var in isa.Inst
	for n := 0; n < len(code); n += int(in.Len) {
		at := function.Start + uint64(n)
		if !mcode.Decode(w.arch, code[n:], at, &in) || in.Len == 0 {
			in = isa.Inst{Len: uint8(w.arch.PCAlign), Flow: isa.Trap}
		}
		for _, op := range in.Ops[:in.NumOps] {
			if mayBegin && op.Kind == isa.Set && op.Imm == 0 && op.Src == argument && w.arch.CalleeSaved>>op.Dst&1 != 0 {
				w.first, w.firstTo, mayBegin = len(w.at), 1<<op.Dst, false
			}
		}
		mayBegin = mayBegin && (in.Flow == isa.Next || in.Flow == isa.CondJump)
		w.at = append(w.at, at)
		w.code = append(w.code, in)
	}
	w.findEndless(endless)
	w.arrive(function.Start, point{mcode.Holding{Regs: 1 << argument}, before})
	found := calls{}
	for left := maxVisits * len(w.code); len(w.todo) > 0 && left > 0; left-- {
		i := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		in, p := &w.code[i], w.points[w.at[i]]
		next := w.at[i] + uint64(in.Len)
		is := p
		is.Apply(w.arch, in, w.cfa(w.at[i]))
		if i == w.first {
			// Here the function has the argument of its caller, or that of the call of itself which it has made a loop of.
			is.Holding = mcode.Holding{Regs: 1<<argument | w.firstTo}
		}
		if in.Flow == isa.Call || in.Flow == isa.IndirectCall {
			at := is
			switch {
			case in.Target == push && push != 0:
				at.phase, is.phase = before|within, within
			case in.Target == run && run != 0:
				at.phase, is.phase = leaving, leaving
			}
			found[next] = at
		}
		switch in.Flow {
		case isa.Jump:
			w.arrive(in.Target, is)
		case isa.CondJump:
			w.arrive(in.Target, is)
			w.arrive(next, is)
		case isa.IndirectJump:
			w.dispatch(im, i, is)
		case isa.Return, isa.Trap:
		case isa.Call:
			if !slices.Contains(w.endless, in.Target) {
				w.arrive(next, is)
			}
		default:
			w.arrive(next, is)
		}
	}
	if len(w.todo) > 0 {
		return nil
	}
	return found
}

// way is a function on its way.
type way struct {
	arch    *procstate.Arch
	start   uint64
	table   *unwind.Table
	bytes   []byte
	endless []uint64 // functions that do not return
	at      []uint64 // of instructions
	code    []isa.Inst
	points  map[uint64]point
	todo    []int // of these
	first   int   // the instruction that first puts the argument into registers that calls preserve,
	firstTo uint64
	row     unwind.RegRule
	rowAt   mcode.Range
}

// findEndless finds functions that do not return: those that are told of, and what is called where a function finds that
// its canary was overwritten (__stack_chk_fail).
func (w *way) findEndless(known []uint64) {
	w.endless = slices.Clone(known)
	for i := 1; i < len(w.code); i++ {
		if w.code[i].Flow != isa.CondJump || !takesCanary(w.bytes[w.at[i-1]-w.start:][:w.code[i-1].Len]) {
			continue
		}
		if j, is := slices.BinarySearch(w.at, w.code[i].Target); is && w.code[j].Flow == isa.Call {
			w.endless = append(w.endless, w.code[j].Target)
		}
	}
}

// takesCanary reports whether an instruction of x86-64 is sub or xor of %fs:0x28 and a register.
func takesCanary(inst []byte) bool {
	const fs, sub, xor, length, register, absolute = 0x64, 0x2b, 0x33, 9, 7 << 3, 0x04
	return len(inst) == length && inst[0] == fs && (inst[2] == sub || inst[2] == xor) && inst[3]&^register == absolute &&
		string(inst[4:]) == "\x25\x28\x00\x00\x00"
}

// cfa returns the rule of the CFA.
func (w *way) cfa(at uint64) unwind.RegRule {
	if !w.rowAt.Holds(at) {
		row, start, end, err := w.table.Row(at)
		if err != nil {
			return unwind.RegRule{}
		}
		w.row, w.rowAt = row.CFA, mcode.Range{Start: start, End: end}
	}
	return w.row
}

// arrive notes that a way leads to an address.
func (w *way) arrive(at uint64, p point) {
	known, is := w.points[at]
	if is {
		p.Regs &= known.Regs
		p.Words &= known.Words
		p.phase |= known.phase
		if p == known {
			return
		}
	}
	if i, is := slices.BinarySearch(w.at, at); is {
		w.points[at] = p
		w.todo = append(w.todo, i)
	}
}

// dispatch follows a jump by a table of 32-bit distances, of which the address is taken shortly before, and how many there
// are is compared.
func (w *way) dispatch(im *procstate.Image, i int, p point) {
	const near, width = 12, 4
	entries := uint64(0)
	for j := max(i-near, 0); j < i; j++ {
		in := &w.code[j]
		if last, ok := comparedWith(w.bytes[w.at[j]-w.start:][:in.Len]); ok {
			entries = last + 1
		}
		for _, op := range in.Ops[:in.NumOps] {
			if op.Kind != isa.Const || op.Imm == 0 {
				continue
			}
			table := uint64(op.Imm)
			var b [width]byte
			for k := uint64(0); k < entries && im.ReadVaddr(b[:], table+width*k) == nil; k++ {
				w.arrive(table+uint64(int64(int32(binary.LittleEndian.Uint32(b[:])))), p)
			}
		}
	}
}

// comparedWith returns with which small number an instruction of x86-64 compares 32 bits.
func comparedWith(inst []byte) (n uint64, ok bool) {
	const group1, compare, most = 0x83, 7, 127
	if len(inst) > 0 && inst[0]&0xf0 == 0x40 {
		inst = inst[1:]
	}
	if len(inst) < 3 || inst[0] != group1 || inst[1]>>3&7 != compare || inst[len(inst)-1] > most {
		return 0, false
	}
	return uint64(inst[len(inst)-1]), true
}
