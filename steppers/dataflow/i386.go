package dataflow

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// What i386 has of its own. Code does not reach its data by PC: a function asks a thunk
// for where it is, or calls its next instruction and pops that, and finds the table of
// addresses (GOT) from there. Functions may take their arguments off the stack as they
// return: those that return a structure in memory take the address of it, and all with
// the conventions of Windows.

// pcThunk reports whether a function is one that returns its return address in a
// register, and which: __x86.get_pc_thunk.bx.
func (c *Code) pcThunk(vaddr uint64) (reg procstate.Reg, ok bool) {
	if c.arch != procstate.I386 {
		return 0, false
	}
	var b [4]byte
	if _, ok := c.spanOf(vaddr); !ok || c.im.ReadVaddr(b[:], vaddr) != nil || !isa.IsPCThunk(b[:]) {
		return 0, false
	}
	return procstate.Reg(b[1] >> 3), true
}

// askedPC notes in which register the instruction at addr, if it is a call of a thunk or
// the pop behind a call of it, leaves an address of code.
func (c *Code) askedPC(consts *constants, addr, calledNext uint64, in *isa.Inst) (known bool) {
	if c.arch != procstate.I386 {
		return false
	}
	if reg, ok := c.pcThunk(in.Target); ok && in.Flow == isa.Call {
		consts[reg] = addr + uint64(in.Len)
		return true
	}
	if addr == calledNext && in.NumOps == 2 && in.Ops[1].Kind == isa.Load && in.Ops[1].Src == c.arch.SP {
		consts[in.Ops[1].Dst] = addr
		return true
	}
	return false
}

// ofGOT marks the address of a jump table whose entries count from the GOT. Link-time
// addresses of i386 do not reach it.
const ofGOT = 1 << 32

// withGOT makes a decoder tell the word that an indirect branch is to go by where EBX has
// the address of the GOT: in the linkage table, and where the distance is a negative one.
// The three instructions by which a switch goes on are one for it: the load of an entry
// of a jump table, the addition of what both count from, and the jump.
func (c *Code) withGOT(dec isa.Decoder) isa.Decoder {
	got, ok := c.im.Section(".got.plt")
	if !ok {
		got, ok = c.im.Section(".got")
	}
	if !ok {
		return dec
	}
	const ebx = 3
	var tables []span
	for _, name := range [...]string{".plt", ".plt.got", ".plt.sec"} {
		if s, ok := c.im.Section(name); ok {
			tables = append(tables, span{s.Vaddr, s.Vaddr + s.Size})
		}
	}
	c.got = got.Vaddr
	return func(code []byte, pc uint64, in *isa.Inst) bool {
		if !dec(code, pc, in) {
			return false
		}
		if in.NumOps == 1 && in.Ops[0].Kind == isa.LoadIndexed {
			fuseSwitch(dec, code, pc, got.Vaddr, in)
			return true
		}
		if in.Flow != isa.IndirectJump && in.Flow != isa.IndirectCall || in.Base != ebx || in.NumOps != 1 {
			return true
		}
		within := in.Flow == isa.IndirectCall && in.Ops[0].Imm < 0
		for _, t := range tables {
			within = within || pc >= t.lo && pc < t.hi
		}
		if within {
			in.Target = got.Vaddr + uint64(in.Ops[0].Imm)
			in.Word, in.Member, in.NumOps, in.Base = false, false, 0, procstate.NoReg
		}
		return true
	}
}

// fuseSwitch makes of in, the load of an indexed word, a whole switch if it begins one:
//
//	mov table@GOTOFF(%ebx,%eax,4),%ecx
//	add %ebx,%ecx
//	jmp *%ecx
func fuseSwitch(dec isa.Decoder, code []byte, pc, got uint64, in *isa.Inst) {
	load := in.Ops[0]
	code, pc = code[in.Len:], pc+uint64(in.Len)
	var add, jump isa.Inst
	if len(code) == 0 || !dec(code, pc, &add) || add.NumOps != 1 || add.Ops[0] != (isa.Op{Kind: isa.Add, Dst: load.Dst, Src: load.Src}) {
		return
	}
	code, pc = code[add.Len:], pc+uint64(add.Len)
	if len(code) == 0 || !dec(code, pc, &jump) || jump.Flow != isa.IndirectJump || jump.Reg != load.Dst {
		return
	}
	n := in.Len + add.Len + jump.Len
	*in = isa.Inst{Len: n, Flow: isa.IndirectJump, Reg: load.Dst, Base: procstate.NoReg, Table: uint64(uint32(got)+uint32(load.Imm)) | ofGOT}
	in.Ops[0], in.NumOps = isa.Op{Kind: isa.Clobber, Dst: load.Dst}, 1
}

// takesOff returns how many bytes the function that the instruction at vaddr at calls in
// state s takes off the stack as it returns. Of a function that is not known, what comes
// next tells: SP is a multiple of 16 at the next call, if it was at this one, or below
// the CFA at a return.
func (f *flow) takesOff(ch *chunk, at uint64, in *isa.Inst, s *state) int32 {
	if f.arch != procstate.I386 || in.Kernel {
		return 0
	}
	if in.Flow == isa.Call {
		if n, known := f.c.popsOf(in.Target); known {
			return n
		}
	}
	h, ok := s.height(f.arch)
	if !ok {
		return 0
	}
	n, ok := f.popped[at]
	if !ok {
		n = f.popsBehind(ch, at+uint64(in.Len), h)
		f.popped[at] = n
	}
	return n
}

// popsBehind is takesOff by what the code at vaddr next, behind the call, does; SP was
// at h at the call.
func (f *flow) popsBehind(ch *chunk, next uint64, h int32) int32 {
	const most = 48     // instructions
	const structure = 4 // the address of a structure; more cannot be told from a wrong guess
	aligned := h%16 == 0
	atReturn := func() int32 {
		if f.entryHeight()-h == structure {
			return structure
		}
		return 0
	}
	var in isa.Inst
	for range most {
		if f.steps++; next < ch.lo || next >= ch.hi || !f.c.dec(ch.code[next-ch.lo:], next, &in) {
			return 0
		}
		end := next + uint64(in.Len)
		switch in.Flow {
		case isa.Call, isa.IndirectCall:
			switch {
			case in.Flow == isa.Call && in.Target == end:
				h -= 4
			case f.leavesStack(&in):
			case aligned && h%16 != 0 && (h+structure)%16 == 0:
				return structure
			default:
				return 0
			}
		case isa.Return:
			return atReturn()
		case isa.Jump:
			if f.chunkAt(in.Target) != ch {
				return atReturn()
			}
			next = in.Target
			continue
		case isa.IndirectJump, isa.Trap:
			return 0
		}
		for i := range in.Ops[:in.NumOps] {
			switch op := &in.Ops[i]; {
			case op.Dst != f.arch.SP, op.Kind == isa.Store, op.Kind == isa.Scratch, op.Kind == isa.StoreIndexed, op.Kind == isa.Compare:
			case op.Kind == isa.Set && op.Src == f.arch.SP && op.Imm == int64(int16(op.Imm)):
				h += int32(op.Imm)
			default:
				return 0
			}
		}
		next = end
	}
	return 0
}

// popsOf returns how many bytes a function of this file takes off the stack as it
// returns, if it is seen to return.
func (c *Code) popsOf(vaddr uint64) (n int32, known bool) {
	n, ok := c.pops[vaddr]
	if !ok {
		n = c.searchPop(vaddr)
		c.pops[vaddr] = n
	}
	return max(n, 0), n >= 0
}

// searchPop is popsOf for a function that was not asked about before; -1 is not known.
func (c *Code) searchPop(vaddr uint64) int32 {
	var in isa.Inst
	var buf [16]byte
	seen := map[uint64]bool{}
	steps := 0
	defer func() { c.spent += steps }()
	for work := []uint64{vaddr}; len(work) > 0; {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for !seen[at] {
			seen[at] = true
			s, ok := c.spanOf(at)
			if steps++; !ok || steps > maxReturnSteps || c.spent > c.budget {
				return -1
			}
			b := buf[:min(uint64(len(buf)), s.hi-at)]
			if c.im.ReadVaddr(b, at) != nil || !c.dec(b, at, &in) {
				return -1
			}
			at += uint64(in.Len)
			switch in.Flow {
			case isa.Return:
				if in.Pop > maxExtra || in.Pop%4 != 0 {
					return -1
				}
				return int32(in.Pop)
			case isa.Jump, isa.CondJump:
				work = append(work, in.Target)
			case isa.Call:
				if !c.doesReturn(in.Target) {
					in.Flow = isa.Trap
				}
			}
			if in.Ends() {
				break
			}
		}
	}
	return -1
}
