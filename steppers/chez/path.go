package chez

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Registers of Scheme's code on x86-64 (s/x86_64.ss in Chez Scheme's sources).
const (
	chezFrame   procstate.Reg = 13
	chezContext procstate.Reg = 14
	chezSP      procstate.Reg = 7
)

// place is where the frame of an instruction's function is, and where SP will be when it leaves that.
type place struct {
	frame, sp int32  // bytes from R13, and from SP
	kept      int32  // where the thread's context has what R13 will be; 0: it is in R13
	code      uint64 // a code object on the way, which may be the function's; 0: none was met
}

// is reports whether two places are the same.
func (p place) is(other place) bool {
	p.code = other.code
	return p == other
}

// path is a path through code of Scheme. R13 has the address of the function's frame all the time but
// between two places: where it calls another, R13 is moved behind the frame, the return address is stored
// there, and a jump follows; and where that returns to R13 is moved back. Right behind such a jump, and what
// may fill up to a length that all jumps have, is the header of the place of return. So each jump that leads
// elsewhere tells where the frame is: one to what the frame's first word has and one to another function
// right there, and a call so far below as the header says.
type path struct {
	pc    uint64
	place place
	lost  bool // R13, or SP, was loaded

	// What it has stored into the thread's context: R13, when the frame was at this place.
	stored   place
	storedAt int32 // 0: nothing
}

const (
	maxInsts = 512 // of all paths from an instruction
	maxPaths = 32  // that wait to be followed
	maxExits = 3   // that have to agree; more are not looked for
	maxDist  = 1 << 20
)

// code is code that was read.
type code struct {
	from uint64
	n    int
	buf  [1 << 10]byte
}

// follow finds out by its code where the frame is of the function at an instruction, with the stack pointer of C.
func (vm *machine) follow(pc, sp uint64) (at place, ok bool) {
	vm.code.n = 0
	vm.seen.Clear()
	vm.paths = append(vm.paths[:0], path{pc: pc})
	for exits, left := 0, maxInsts; len(vm.paths) > 0 && exits < maxExits; {
		s := vm.paths[len(vm.paths)-1]
		vm.paths = vm.paths[:len(vm.paths)-1]
		if !vm.followPath(&s, sp, &left) || s.lost {
			continue
		}
		if exits > 0 && !s.place.is(at) {
			return place{}, false
		}
		if exits++; exits == 1 || at.code == 0 {
			at = s.place
		}
		ok = true
	}
	return at, ok
}

// followPath follows a path to where it leaves its function, and reports whether it does.
func (vm *machine) followPath(s *path, sp uint64, left *int) bool {
	var in isa.Inst
	for ; *left > 0 && vm.seen.Add(s.pc) && isa.DecodeAMD64(vm.codeAt(s.pc), s.pc, &in); *left-- {
		next := s.pc + uint64(in.Len)
		switch in.Flow {
		case isa.Return: // of a routine that was called on C's stack
			ra, ok := vm.Word(sp + uint64(int64(s.place.sp)))
			if !ok {
				return false
			}
			s.pc, s.place.sp = ra, s.place.sp+8
			continue
		case isa.Jump, isa.IndirectJump:
			p, isCall := vm.pointBehind(next)
			switch {
			case isCall:
				s.place.frame -= int32(p.size)
				s.place.code = p.code
				return true
			case in.Flow == isa.IndirectJump:
				if in.Base == chezFrame && in.NumOps > 0 {
					s.place.frame += int32(in.Ops[0].Imm)
				}
				return true
			}
			s.pc = in.Target // of the function, or another that goes on with the frame
			continue
		case isa.CondJump:
			if len(vm.paths) < maxPaths {
				taken := *s
				taken.pc = in.Target
				vm.paths = append(vm.paths, taken)
			}
		}
		if in.Ends() {
			return false
		}
		s.apply(&in)
		s.pc = next
	}
	return false
}

// codeAt returns the code at an address, nil where there is none that was made at run time.
func (vm *machine) codeAt(addr uint64) []byte {
	const longest = 64 // bytes that are looked at
	c := &vm.code
	if o := addr - c.from; addr >= c.from && o < uint64(c.n) && uint64(c.n)-o >= longest {
		return c.buf[o:c.n]
	}
	m := vm.w.MappingAt(addr)
	if c.n = 0; m == nil || m.Image != nil {
		return nil
	}
	c.from, c.n = addr, len(mcode.Read(vm.w, m, addr, c.buf[:]))
	return c.buf[:c.n]
}

// apply executes an instruction.
func (s *path) apply(in *isa.Inst) {
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		switch op.Kind {
		case isa.Store:
			if op.Dst == chezContext && op.Src == chezFrame && op.Imm > 0 && op.Imm < contextBytes {
				s.stored, s.storedAt = s.place, int32(op.Imm)
			}
			continue
		case isa.StoreIndexed, isa.Scratch, isa.Compare:
			continue
		}
		switch op.Dst {
		case chezFrame:
			if op.Kind == isa.Load && op.Src == chezContext && op.Imm > 0 && op.Imm < contextBytes {
				if at := int32(op.Imm); at == s.storedAt {
					s.place.frame, s.place.kept = s.stored.frame, s.stored.kept
				} else {
					s.place.frame, s.place.kept = 0, at // where it was stored before a call of C
				}
				continue
			}
			if moves := op.Kind == isa.Set && op.Src == chezFrame; !moves || !movesBy(&s.place.frame, op.Imm) {
				s.lost = true
			}
		case chezSP:
			if moves := op.Kind == isa.Set && op.Src == chezSP; !moves || !movesBy(&s.place.sp, op.Imm) {
				s.lost = true
			}
		}
	}
}

// movesBy adds a number of bytes to a distance, if that is not too large.
func movesBy(d *int32, n int64) bool {
	if n > maxDist || n < -maxDist || *d > maxDist || *d < -maxDist {
		return false
	}
	*d += int32(n)
	return true
}
