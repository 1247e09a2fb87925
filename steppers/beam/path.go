package beam

import (
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Code that BeamAsm makes runs with RSP as the pointer of the Erlang process's own stack
// (erts/emulator/beam/jit/x86/beam_asm.hpp). Where it calls functions of C it goes over to the
// scheduler's stack, right below the registers of Erlang's machine, of which RBX has the address; it keeps
// where it was in RBP, or in the process structure, of which R13 has the address, and comes back by that.
const (
	beamRegisters procstate.Reg = 3 // RBX
	beamFP        procstate.Reg = 6
	beamSP        procstate.Reg = 7
	beamProcess   procstate.Reg = 13
)

// relation is what a value on a path is relative to.
type relation uint8

const (
	unknown   relation = iota
	ofSP               // RSP at the instruction in question
	ofFP               // RBP there
	ofProcess          // a word of the process structure
	ofNative           // the scheduler's stack
)

// value is what RSP or RBP holds on a path.
type value struct {
	base relation
	off  int32 // from that, in bytes
	word int32 // of ofProcess, the offset of the word
}

func (v value) plus(n int64) value {
	if sum := int64(v.off) + n; v.base != unknown && sum == int64(int32(sum)) {
		v.off = int32(sum)
		return v
	}
	return value{}
}

// path is a path through code.
type path struct {
	pc     uint64
	sp, fp value
	erlang value // sp where the path last went over to the scheduler's stack; unknown: it has not
	called bool  // it has come over a call of a function of Erlang, which may not return
}

// Limits on paths.
const (
	maxPaths   = 64   // that wait to be followed
	maxInsts   = 4096 // of all paths from a place
	maxExits   = 4    // that have to agree; more are not looked for
	maxGuesses = 16   // of different ends
	maxNested  = 3    // calls within each other that are looked into
	maxFrame   = 8 * (1024 + 16)
)

// pathFinder finds the return address at a place of code: by paths from there to where the function
// returns, or goes on with another one.
type pathFinder struct {
	code  *code
	read  vmread.Reader
	left  int // instructions
	known map[uint64]bool

	buf [4 << 10]byte
	at  uint64 // of what buf holds
	n   int
}

// codeAt returns the code at an address.
func (p *pathFinder) codeAt(addr uint64) []byte {
	const longest, before = 16, 256
	if o := addr - p.at; p.n > 0 && addr >= p.at && o < uint64(p.n) && uint64(p.n)-o >= longest {
		return p.buf[o:p.n]
	}
	m, _ := p.code.at(p.read, addr)
	if m == nil {
		return nil
	}
	p.at = max(m.start, addr-min(addr, before))
	p.n = int(min(uint64(len(p.buf)), m.end-p.at))
	if !p.read(p.at, p.buf[:p.n]) {
		p.n = 0
		return nil
	}
	return p.buf[addr-p.at : p.n]
}

// returnPlace is where the return address is at an instruction: so far from what a value is relative to, or
// with isAbove in the first word from there on that is no term. Where guesses are all that there is it is at
// one of these, if that is the first such word of the stack. It is not ok where it is not known.
type returnPlace struct {
	at          value
	ok, isAbove bool
	guesses     []value
}

// returnAddress returns where the return address is at an instruction.
func (p *pathFinder) returnAddress(pc uint64) returnPlace {
	p.left, p.n = maxInsts, 0 // code may have changed
	e := p.explore(pc, 0)
	for i, exits := range [...][]value{e.sure, e.waits} {
		if len(exits) > 0 {
			other := slices.ContainsFunc(exits, func(x value) bool { return x != exits[0] })
			return returnPlace{at: exits[0], ok: !other, isAbove: i == 1}
		}
	}
	if e.function != nil && !p.code.isShared(e.module) {
		if at, ok := p.fromStart(e.function, pc); ok {
			return returnPlace{at: at, ok: true}
		}
	}
	if len(e.weak) == 0 {
		return returnPlace{}
	}
	r := returnPlace{at: e.weak[0], ok: true}
	r.at.off = 0
	for _, x := range e.weak {
		if x.base == r.at.base && x.word == r.at.word && !slices.Contains(r.guesses, x) && len(r.guesses) < maxGuesses {
			r.guesses = append(r.guesses, x)
		}
	}
	return r
}

// explore follows the paths from an instruction on.
func (p *pathFinder) explore(pc uint64, depth int) *explorer {
	e := &explorer{pathFinder: p, depth: depth, seen: map[uint64]bool{}}
	if e.module, e.function = p.code.at(p.read, pc); e.function == nil {
		return e
	}
	if e.function.isHead && pc+entry < e.function.end {
		e.sure = []value{{base: ofSP}}
		return e
	}
	e.paths = append(e.paths, path{pc: pc, sp: value{base: ofSP}, fp: value{base: ofFP}})
	for len(e.paths) > 0 && len(e.sure) < maxExits {
		e.followLast()
	}
	return e
}

// followLast follows the path that was put off last.
func (e *explorer) followLast() {
	last := e.paths[len(e.paths)-1]
	e.paths = e.paths[:len(e.paths)-1]
	e.follow(&last)
}

// fromStart returns where the return address is at an instruction by how a function comes to it without calls of
// others, which may not return: where it is entered that is at SP, and where it has made its frame above that. It
// makes none where it has one (erts/emulator/beam/jit/x86/instr_call.cpp, emit_allocate).
func (p *pathFinder) fromStart(r *codeRange, pc uint64) (at value, ok bool) {
	e := &explorer{pathFinder: p, seen: map[uint64]bool{}, target: pc}
	e.module, e.function = p.code.at(p.read, pc)
	e.paths = append(e.paths, path{pc: r.start, sp: value{base: ofSP}, fp: value{base: ofFP}})
	p.left = maxInsts
	entered := value{base: ofSP} // SP where a frame is made
	if p.code.hasFramePointers {
		entered.off = -8
	}
	var in isa.Inst
	for at := r.start; at < pc && p.left > 0 && isa.DecodeAMD64(p.codeAt(at), at, &in); p.left-- {
		at += uint64(in.Len)
		if op := &in.Ops[0]; in.NumOps == 1 && op.Kind == isa.Set && op.Dst == beamSP && op.Src == beamSP && op.Imm < 0 && op.Imm >= -maxFrame {
			e.paths = append(e.paths, path{pc: at, sp: entered.plus(op.Imm), fp: value{base: ofFP}}) // not of a push, which stores, too
		}
	}
	p.left = maxInsts
	for len(e.paths) > 0 && len(e.targets) < maxExits {
		e.followLast()
		for _, sp := range e.targets {
			if sp.base != ofSP || sp != e.targets[0] {
				return value{}, false
			}
			at, ok = value{base: ofSP, off: -sp.off}, true
		}
	}
	return at, ok
}

// explorer is a search for ends of paths, which are where SP is there.
type explorer struct {
	*pathFinder
	module   *loadedModule
	function *codeRange
	depth    int
	seen     map[uint64]bool
	paths    []path // still to follow

	sure  []value // where the return address is at SP
	waits []value // where a function waits for messages, with its frame
	weak  []value // where the return address may be at SP

	target  uint64  // an instruction, at which paths end, too
	targets []value // SP there, of paths without calls of functions of Erlang
}

// follow follows a path to its end, and puts off those that branch off.
func (e *explorer) follow(s *path) {
	var in isa.Inst
	for !e.seen[s.pc] && e.left > 0 {
		if s.pc == e.target && !s.called {
			e.targets = append(e.targets, s.sp)
			return
		}
		e.seen[s.pc] = true
		e.left--
		code := e.codeAt(s.pc)
		if !isa.DecodeAMD64(code, s.pc, &in) {
			return
		}
		to := in.Target
		if to != 0 && (in.Flow == isa.IndirectJump || in.Flow == isa.IndirectCall) {
			to, _ = e.read.Word(to)
		}
		switch in.Flow {
		case isa.Return:
			e.exit(s)
			return
		case isa.Jump, isa.IndirectJump:
			switch {
			case isDispatch(code[:in.Len]):
				e.exit(s)
				return
			case to == 0:
				if in.Reg != procstate.NoReg {
					e.weak = exit(e.weak, s.sp)
				}
				return
			case !e.leads(s, to):
				return
			}
			s.pc = to
			continue
		case isa.CondJump:
			if taken := *s; e.leads(s, to) && len(e.paths) < maxPaths {
				taken.pc = to
				e.paths = append(e.paths, taken)
			}
		case isa.Call, isa.IndirectCall:
			if to != 0 && !e.returns(to, e.depth) {
				return
			}
			if m, _ := e.code.at(e.read, to); s.sp.base != ofNative && (to == 0 || m != nil && !e.code.isShared(m)) {
				s.called = true
			}
		}
		if in.Ends() {
			return
		}
		s.apply(&in)
		s.pc += uint64(in.Len)
		if _, r := e.code.at(e.read, s.pc); r != e.function && !e.code.isShared(e.module) {
			return
		}
	}
}

// leads reports whether a path goes on at the address of a jump. Where another function goes on instead,
// or the same one anew, the path ends.
func (e *explorer) leads(s *path, to uint64) bool {
	m, r := e.code.at(e.read, to)
	switch {
	case r == nil:
		return false
	case r.isHead:
		if to+entry == r.end {
			e.exit(s)
		}
		return false
	case e.code.isShared(m):
		switch {
		case r.name != processMain:
		case e.code.isShared(e.module): // which the function may have jumped to that waits
			e.weak = exit(e.weak, s.sp)
			return false
		default:
			e.waits = exit(e.waits, s.sp)
			return false
		}
		return e.code.isShared(e.module) || e.function.start == e.module.start
	case r == e.function:
		return true
	case to == r.start:
		e.exit(s)
	case m == e.module && r.start == m.start: // the module's ways to where it yields
		e.weak = exit(e.weak, s.sp)
	}
	return false
}

// entry is how far a function is entered before the end of what stands before it: a jump over what
// tracing puts there.
const entry = 8

// processMain is what the code is called that schedulers run Erlang processes from.
const processMain = "global::process_main"

// exit adds the end of a path at which the return address is at SP.
func (e *explorer) exit(s *path) {
	if s.called {
		e.weak = exit(e.weak, s.sp)
	} else {
		e.sure = exit(e.sure, s.sp)
	}
}

// exit adds the return address of a path's end, which is where SP is.
func exit(exits []value, sp value) []value {
	if sp.base == unknown || sp.base == ofNative || sp.off > maxFrame || sp.off < -maxFrame {
		return exits
	}
	return append(exits, sp)
}

// returns reports whether what is called at an address may return: the runtime's code for exceptions does not.
func (p *pathFinder) returns(addr uint64, depth int) bool {
	m, r := p.code.at(p.read, addr)
	if m == nil || r == nil || !p.code.isShared(m) || depth >= maxNested {
		return true
	}
	if r, ok := p.known[addr]; ok {
		return r
	}
	sure := p.explore(addr, depth+1).sure
	if p.left == 0 {
		return true
	}
	is := false
	for _, e := range sure {
		is = is || e == value{base: ofSP}
	}
	if len(p.known) >= maxReturns {
		clear(p.known)
	}
	p.known[addr] = is
	return is
}

// apply executes an instruction.
func (s *path) apply(in *isa.Inst) {
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		if op.Dst != beamSP && op.Dst != beamFP || op.Kind == isa.Store || op.Kind == isa.Scratch || op.Kind == isa.StoreIndexed || op.Kind == isa.Compare {
			continue
		}
		var v value
		switch {
		case op.Kind == isa.Set && op.Src == beamSP:
			v = s.sp.plus(op.Imm)
		case op.Kind == isa.Set && op.Src == beamFP:
			v = s.fp.plus(op.Imm)
		case op.Kind == isa.Set && op.Src == beamRegisters && op.Dst == beamSP:
			if s.sp.base != ofNative {
				s.erlang = s.sp
			}
			v = value{base: ofNative}
		case op.Kind == isa.Load && op.Src == beamProcess && op.Imm == int64(int32(op.Imm)):
			if v = (value{base: ofProcess, word: int32(op.Imm)}); s.erlang.base != unknown {
				if v = s.erlang; op.Dst == beamFP {
					v = s.fp
				}
			}
		}
		if op.Dst == beamFP {
			s.fp = v
			continue
		}
		s.sp = v
	}
}

// isDispatch reports whether an instruction jumps to a function of Erlang by its entry in the table of
// those that are loaded: jmp n(register,%r12,8).
func isDispatch(inst []byte) bool {
	const rexX, group5, toIndexed, byR12 = 0x42, 0xff, 0x24, 0xe0
	return len(inst) >= 4 && inst[0]&0xf2 == rexX && inst[1] == group5 && inst[2]&0x3f == toIndexed && inst[3]&0xf8 == byR12
}
