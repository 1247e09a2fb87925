package beam

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// arch is what BeamAsm's code has of its own on an architecture (erts/emulator/beam/jit/*/beam_asm.hpp).
//
// On x86-64 it runs with RSP as the pointer of the Erlang process's own stack, where all return addresses are. Where it
// calls functions of C it goes over to the scheduler's stack, right below the registers of Erlang's machine, of which
// RBX has the address; it keeps where it was in RBP, or in the process structure, of which R13 has the address, and comes
// back by that.
//
// On AArch64 SP is the scheduler's stack pointer at all times, and another register the process's. Functions put the link
// register on the stack of the process where they are entered, and take it from there before they return; code of the
// runtime's own keeps it, or puts it on the scheduler's stack.
type arch struct {
	*procstate.Arch
	registers, process, stack procstate.Reg // of Erlang's machine, of the process structure, and the process's stack pointer
	isLinked                  bool          // calls leave the return address in a register
	entry                     uint64        // how far a function is entered before the end of what stands before it; see pathFinder.entry
	below                     int           // bytes below where a process has its stack pointer that may be in its stack: it is updated at times
	apply                     func(s *path, in *isa.Inst, inst []byte)
}

var amd64 = &arch{Arch: procstate.AMD64, registers: 3, process: 13, stack: 7, entry: 8, below: 256}

var arm64 = &arch{Arch: procstate.ARM64, registers: 19, process: 21, stack: linkedStack, isLinked: true, below: 4096}

func init() { amd64.apply, arm64.apply = applyAMD64, applyARM64 }

// archOf returns what is known of an architecture, nil where there is no BeamAsm, or none that is known.
func archOf(a *procstate.Arch) *arch {
	switch a {
	case procstate.AMD64:
		return amd64
	case procstate.ARM64:
		return arm64
	}
	return nil
}

// Registers of AArch64.
const (
	linkedStack procstate.Reg = 20
	linkedKept  procstate.Reg = 26 // in which code of the runtime's own may keep the link register
	linkedFP    procstate.Reg = 29
	linkedLR    procstate.Reg = 30
	linkedSP    procstate.Reg = 31
)

// applyAMD64 is arch.apply.
func applyAMD64(s *path, in *isa.Inst, _ []byte) {
	const rsp, rbp = 7, 6
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		if op.Dst != rsp && op.Dst != rbp || op.Kind == isa.Store || op.Kind == isa.Scratch || op.Kind == isa.StoreIndexed || op.Kind == isa.Compare {
			continue
		}
		var v value
		switch {
		case op.Kind == isa.Set && op.Src == rsp:
			v = s.sp.plus(op.Imm)
		case op.Kind == isa.Set && op.Src == rbp:
			v = s.fp.plus(op.Imm)
		case op.Kind == isa.Set && op.Src == amd64.registers && op.Dst == rsp:
			if s.sp.base != ofNative {
				s.erlang = s.sp
			}
			v = value{base: ofNative}
		case op.Kind == isa.Load && op.Src == amd64.process && op.Imm == int64(int32(op.Imm)):
			if v = (value{base: ofProcess, word: int32(op.Imm)}); s.erlang.base != unknown {
				if v = s.erlang; op.Dst == rbp {
					v = s.fp
				}
			}
		}
		if op.Dst == rbp {
			s.fp = v
			continue
		}
		s.sp = v
	}
}

// applyARM64 is arch.apply.
func applyARM64(s *path, in *isa.Inst, inst []byte) {
	sets := s.note(binary.LittleEndian.Uint32(inst), s.pc)
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		switch op.Kind {
		case isa.Store:
			switch at := s.linked(op.Dst).plus(op.Imm); {
			case op.Src == linkedLR && at.base == ofSP:
				s.pushed, s.isPopped = pushed{at, s.link}, false
			case op.Src == linkedLR:
				s.framed = pushed{at, s.link}
			case op.Src == linkedStack && op.Dst == arm64.process:
				s.erlang = s.sp
			}
			continue
		case isa.Scratch, isa.StoreIndexed, isa.Compare:
			continue
		}
		if !sets && op.Dst == s.code.reg {
			s.code = codeAddress{}
		}
		var v value
		switch {
		case op.Kind == isa.Set && op.Imm == 0 && op.Src == linkedLR && op.Dst == linkedKept:
			v = s.link
		case op.Kind == isa.Set && op.Dst != linkedKept && op.Dst != linkedLR:
			v = s.linked(op.Src).plus(op.Imm)
		case op.Kind == isa.Load && op.Dst == linkedLR:
			v = s.load(s.linked(op.Src).plus(op.Imm))
			s.isPopped = op.Src == linkedStack
		case op.Kind == isa.Load && op.Dst == linkedStack && op.Src == arm64.process && op.Imm == int64(int32(op.Imm)):
			if v = s.erlang; v.base == unknown {
				v = value{base: ofProcess, word: int32(op.Imm)}
			}
		}
		switch op.Dst {
		case linkedStack:
			s.sp = v
		case linkedFP:
			s.fp = v
		case linkedSP:
			s.native = v
		case linkedLR:
			s.link = v
		case linkedKept:
			s.kept = v
		}
	}
}

// linked returns what a register of AArch64 holds that may be the address of a stack.
func (s *path) linked(r procstate.Reg) value {
	switch r {
	case linkedStack:
		return s.sp
	case linkedFP:
		return s.fp
	case linkedSP:
		return s.native
	}
	return value{}
}

// load returns where the return address is that is loaded from a stack.
func (s *path) load(at value) value {
	switch {
	case at == s.pushed.at:
		return s.pushed.link
	case at == s.framed.at:
		return s.framed.link
	case at.off < 0 && (at.base == ofSP || at.base == ofNative):
		return value{} // calls may have left anything there
	}
	return at
}

// note takes note of an instruction that sets a register to an address of code: to a constant, or to the address of a
// function of Erlang by its entry in the table of those that are loaded, ldr x8, [x0, x24, lsl #3].
func (s *path) note(w uint32, pc uint64) (sets bool) {
	const (
		movz, movk, halves = 0xd2800000, 0xf2800000, 0xff800000
		literal, literals  = 0x58000000, 0xff000000
		indexed, tables    = 0xf8607800, 0xffe0fc00
	)
	reg := procstate.Reg(w & 31)
	half, shift := uint64(w>>5&0xffff), w>>21&3*16
	switch {
	case w&halves == movz:
		s.code = codeAddress{reg: reg, at: half << shift, is: isConstant}
	case w&halves == movk && s.code.reg == reg && s.code.is == isConstant:
		s.code.at = s.code.at&^(0xffff<<shift) | half<<shift
	case w&literals == literal:
		s.code = codeAddress{reg: reg, at: pc + uint64(int64(int32(w<<8)>>13)<<2), is: inWord}
	case w&tables == indexed:
		s.code = codeAddress{reg: reg, is: inTable}
	default:
		return false
	}
	return true
}

// lookBack takes note of what the instructions before the first one of a path have done: where one of them has jumped or
// called it is not known.
func (e *explorer) lookBack(s *path) {
	const most, size = 4, 4
	var in isa.Inst
	pc := s.pc
	for at := pc - min(most*size, pc-e.function.start); at < pc; at += size {
		code := e.codeAt(at)
		if !mcode.Decode(e.arch.Arch, code, at, &in) || in.Flow != isa.Next {
			s.code, s.pushed, s.isPopped = codeAddress{}, pushed{}, false
			continue
		}
		s.note(binary.LittleEndian.Uint32(code), at)
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Load && op.Dst == linkedLR && op.Src == linkedStack:
				s.pushed, s.isPopped = pushed{}, true
			case op.Kind == isa.Store && op.Src == linkedLR && op.Dst == linkedStack:
				s.pushed, s.isPopped = pushed{value{base: ofSP}.plus(op.Imm), s.link}, false
			case op.Kind == isa.Set && op.Dst == linkedStack && op.Src == linkedStack:
				s.pushed.at = s.pushed.at.plus(-op.Imm)
			}
		}
	}
}

// codeAddress is what a register is known to have of an address of code.
type codeAddress struct {
	reg procstate.Reg
	at  uint64
	is  addressKind
}

type addressKind uint8

const (
	isConstant addressKind = iota + 1
	inWord                 // at the address
	inTable                // of functions that are loaded
)

// pushed is where the link register was put on a stack, and what it had.
type pushed struct{ at, link value }
