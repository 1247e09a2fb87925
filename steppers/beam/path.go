package beam

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
)

// relation is what a value on a path is relative to.
type relation uint8

const (
	unknown   relation = iota
	ofSP               // the process's stack pointer at the instruction in question
	ofFP               // the frame pointer there
	ofProcess          // a word of the process structure
	ofNative           // the scheduler's stack
	ofLink             // no address: what the link register has there,
	ofKept             // or the one in which it may be kept
)

// value is what a register holds on a path. Of the link register it is the address that it was loaded from.
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

	// Where calls leave the return address in a register:
	native, link, kept value
	pushed, framed     pushed // where the link register was put last, on the stack of the process and on the scheduler's
	code               codeAddress
	isPopped           bool // the link register was taken from the process's stack, as it is before a function is left
}

// end is how a path ends: where the return address is and, where that is not on the process's stack, the pointer of that.
type end struct{ at, sp value }

// Limits on paths.
const (
	maxPaths   = 64   // that wait to be followed
	maxInsts   = 4096 // of all paths from a place
	maxScanned = 4 * maxInsts
	maxExits   = 4  // that have to agree; more are not looked for
	maxGuesses = 16 // of different ends
	maxNested  = 3  // calls within each other that are looked into
	maxFrame   = 8 * (1024 + 16)
)

// pathFinder finds the return address at a place of code: by paths from there to where the function
// returns, or goes on with another one.
type pathFinder struct {
	arch  *arch
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
	end
	ok, isAbove bool
	guesses     []value
}

// returnAddress returns where the return address is at an instruction.
func (p *pathFinder) returnAddress(pc uint64) returnPlace {
	p.left, p.n = maxInsts, 0 // code may have changed
	e := p.explore(pc, 0)
	for i, exits := range [...][]end{e.sure, e.waits} {
		if len(exits) > 0 {
			other := slices.ContainsFunc(exits, func(x end) bool { return x != exits[0] })
			return returnPlace{end: exits[0], ok: !other, isAbove: i == 1}
		}
	}
	if p.arch.isLinked && len(e.links) > 0 && p.returnsTo(e.function.start, 0) {
		other := slices.ContainsFunc(e.links, func(x end) bool { return x != e.links[0] })
		return returnPlace{end: e.links[0], ok: !other}
	}
	if e.function != nil && !p.code.isShared(e.module) {
		if at, ok := p.fromStart(e.function, pc); ok {
			return returnPlace{end: at, ok: true}
		}
	}
	if len(e.weak) == 0 {
		return returnPlace{}
	}
	r := returnPlace{end: e.weak[0], ok: true}
	r.at.off = 0
	for _, is := range e.weak {
		if x := is.at; x.base == r.at.base && x.word == r.at.word && !slices.Contains(r.guesses, x) && len(r.guesses) < maxGuesses {
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
	if entry := p.entry(e.function); e.function.isHead && (p.arch.isLinked || pc < entry) {
		if e.sure = []end{{at: value{base: ofSP}}}; pc == entry {
			e.sure[0] = p.back()
		}
		return e
	}
	if e.function.name == dispatchReturn && p.arch.isLinked {
		e.sure = []end{p.back()}
		return e
	}
	first := p.begin(pc)
	if p.arch.isLinked {
		e.lookBack(&first)
	}
	e.paths = append(e.paths, first)
	for len(e.paths) > 0 && len(e.sure) < maxExits {
		e.followLast()
	}
	return e
}

// entry returns where a function is entered, by what stands before it: before a jump over what tracing puts there, which is
// of more than one length where the link register is put down first.
func (p *pathFinder) entry(head *codeRange) uint64 {
	const pushes, most, size = 0xf81f8e9e, 24, 4 // str x30, [x20, #-8]!
	if !p.arch.isLinked {
		return head.end - p.arch.entry
	}
	var code [size]byte
	for n := uint64(size); n <= min(most, head.end-head.start); n += size {
		if p.read(head.end-n, code[:]) && binary.LittleEndian.Uint32(code[:]) == pushes {
			return head.end - n
		}
	}
	return head.end
}

// begin is what is known at an instruction where paths begin.
func (p *pathFinder) begin(pc uint64) path {
	s := path{pc: pc, sp: value{base: ofSP}, fp: value{base: ofFP}}
	if p.arch.isLinked {
		s.native, s.link, s.kept = value{base: ofNative}, value{base: ofLink}, value{base: ofKept}
	}
	return s
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
func (p *pathFinder) fromStart(r *codeRange, pc uint64) (back end, ok bool) {
	e := &explorer{pathFinder: p, seen: map[uint64]bool{}, target: pc}
	e.module, e.function = p.code.at(p.read, pc)
	p.left = maxScanned
	entered := value{base: ofSP} // SP where a frame is made
	first := p.begin(r.start)
	if p.arch.isLinked {
		first.pushed = pushed{entered, first.link}
	}
	e.paths = append(e.paths, first)
	if p.code.hasFramePointers {
		entered.off = -8
	}
	var in isa.Inst
	for at := r.start; at < pc && p.left > 0; p.left-- {
		if !mcode.Decode(p.arch.Arch, p.codeAt(at), at, &in) {
			if !p.arch.isLinked {
				break
			}
			in = isa.Inst{Len: uint8(p.arch.PCAlign)} // what is no code, in between
		}
		at += uint64(in.Len)
		if op := &in.Ops[0]; in.NumOps == 1 && op.Kind == isa.Set && op.Dst == p.arch.stack && op.Src == p.arch.stack && op.Imm < 0 && op.Imm >= -maxFrame {
			s := p.begin(at) // not of a push, which stores, too
			if s.sp = entered.plus(op.Imm); p.arch.isLinked {
				s.link, s.pushed = value{}, pushed{entered, s.link}
			}
			e.paths = append(e.paths, s)
		}
	}
	p.left = maxInsts
	for len(e.paths) > 0 && len(e.targets) < maxExits {
		e.followLast()
		for _, s := range e.targets {
			at, is := s.entered(p.arch)
			if !is || ok && at != back {
				return end{}, false
			}
			back, ok = at, true
		}
	}
	return back, ok
}

// entered returns where the return address of a function is that a path has begun in, by what is known where it has come to.
func (s *path) entered(a *arch) (back end, ok bool) {
	switch sp := int64(s.sp.off); {
	case s.sp.base != ofSP:
		return end{}, false
	case !a.isLinked:
		return end{at: value{base: ofSP}.plus(-sp)}, true
	case s.pushed.at.base == ofSP && s.pushed.link.base == ofLink && s.pushed.at.off >= s.sp.off:
		return end{at: s.pushed.at.plus(-sp)}, true
	case s.link.base == ofLink:
		return end{at: s.link, sp: value{base: ofSP}.plus(-sp)}, true
	}
	return end{}, false
}

// explorer is a search for ends of paths, which are where SP is there.
type explorer struct {
	*pathFinder
	module   *loadedModule
	function *codeRange
	depth    int
	seen     map[uint64]bool
	paths    []path                 // still to follow
	inst     [mcode.MaxInstLen]byte // the instruction; other code may be looked at for that

	sure  []end // where the return address is known
	waits []end // where a function waits for messages, with its frame
	weak  []end // where the return address may be
	links []end // and of code that is called, and then gives way to another process, where it is

	target  uint64 // an instruction, at which paths end, too
	targets []path // there, without calls of functions of Erlang
}

// follow follows a path to its end, and puts off those that branch off.
func (e *explorer) follow(s *path) {
	var in isa.Inst
	for !e.seen[s.pc] && e.left > 0 {
		if s.pc == e.target && !s.called {
			e.targets = append(e.targets, *s)
			return
		}
		e.seen[s.pc] = true
		e.left--
		code := e.codeAt(s.pc)
		if !mcode.Decode(e.arch.Arch, code, s.pc, &in) {
			return
		}
		code = e.inst[:copy(e.inst[:], code[:in.Len])]
		to := e.goesTo(s, &in)
		switch in.Flow {
		case isa.Return:
			e.exit(s, in.Reg)
			return
		case isa.Jump, isa.IndirectJump:
			switch {
			case e.isLeft(s, &in, code):
				e.exit(s, e.arch.LR)
				return
			case to == 0:
				if in.Reg != procstate.NoReg && (!e.arch.isLinked || e.code.isShared(e.module)) {
					e.giveWay(s)
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
			isOfC := s.sp.base == ofNative || e.arch.isLinked && e.code.isShared(e.module)
			if m, _ := e.code.at(e.read, to); !isOfC && (to == 0 || m != nil && !e.code.isShared(m)) {
				s.called = true
			}
			s.link, s.code, s.isPopped = value{}, codeAddress{}, false
		}
		if in.Ends() {
			return
		}
		e.arch.apply(s, &in, code)
		s.pc += uint64(in.Len)
		if _, r := e.code.at(e.read, s.pc); r != e.function && !e.code.isShared(e.module) {
			return
		}
	}
}

// goesTo returns where an instruction goes to that jumps or calls, 0 where that is not known.
func (e *explorer) goesTo(s *path, in *isa.Inst) (to uint64) {
	to = in.Target
	switch isIndirect := in.Flow == isa.IndirectJump || in.Flow == isa.IndirectCall; {
	case !isIndirect && to != 0 && e.arch.isLinked:
		return e.through(to)
	case isIndirect && to != 0:
		to, _ = e.read.Word(to)
	case isIndirect && s.code.is != 0 && s.code.reg == in.Reg:
		to, _ = s.code.address(e.read)
	}
	return to
}

// address returns the address of code, 0 where it is not known.
func (c *codeAddress) address(read vmread.Reader) (at uint64, ok bool) {
	switch c.is {
	case isConstant:
		return c.at, true
	case inWord:
		return read.Word(c.at)
	}
	return 0, false
}

// through returns where a branch leads to in the end: what is far is jumped to by code that is near.
func (e *explorer) through(to uint64) uint64 {
	const most = 6 // instructions
	var in isa.Inst
	s := path{pc: to}
	for range most {
		code := e.codeAt(s.pc)
		if !mcode.Decode(e.arch.Arch, code, s.pc, &in) {
			break
		}
		switch {
		case in.Flow == isa.IndirectJump && s.code.reg == in.Reg:
			if at, ok := s.code.address(e.read); ok {
				return at
			}
		case in.Flow == isa.Next && s.note(binary.LittleEndian.Uint32(code), s.pc):
			s.pc += uint64(in.Len)
			continue
		}
		break
	}
	return to
}

// isLeft reports whether a jump leaves to another function of Erlang.
func (e *explorer) isLeft(s *path, in *isa.Inst, code []byte) bool {
	if !e.arch.isLinked {
		return isDispatch(code)
	}
	return in.Flow == isa.IndirectJump && (s.isPopped || s.code.reg == in.Reg && s.code.is == inTable)
}

// leads reports whether a path goes on at the address of a jump. Where another function goes on instead,
// or the same one anew, the path ends.
func (e *explorer) leads(s *path, to uint64) bool {
	m, r := e.code.at(e.read, to)
	switch {
	case e.isWay() && (r == nil || e.code.isShared(m) && e.returnsTo(to, e.depth)):
		e.exit(s, e.arch.LR)
		return false
	case r == nil:
		return false
	case r.isHead:
		if to == e.entry(r) {
			e.exit(s, e.arch.LR)
		}
		return false
	case s.isPopped && r != e.function:
		e.exit(s, e.arch.LR)
		return false
	case e.code.isShared(m):
		switch {
		case r.name != processMain:
		case e.code.isShared(e.module): // which the function may have jumped to that waits
			e.giveWay(s)
			return false
		default:
			e.waits = exit(e.waits, end{at: s.sp})
			return false
		}
		return e.code.isShared(e.module) || e.function.start == e.module.start
	case r == e.function:
		return true
	case to == r.start:
		e.exit(s, e.arch.LR)
	case m == e.module && r.start == m.start: // the module's ways to where it yields
		e.weak = exit(e.weak, end{at: s.sp})
	}
	return false
}

// What code of the runtime's own is called: that which schedulers run Erlang processes from, and which functions jump to
// instead of returning, where it is another process's turn; and the end of a module, where there are ways to what is far.
const (
	processMain    = "global::process_main"
	dispatchReturn = "global::dispatch_return"
	footer         = ":codeFooter"
)

// isWay reports whether the code is a way to what is far: what has called it is returned to.
func (e *explorer) isWay() bool { return e.arch.isLinked && strings.HasSuffix(e.function.name, footer) }

// exit adds the end of a path, at which the return address is at SP, or in a register.
func (e *explorer) exit(s *path, reg procstate.Reg) {
	is := end{at: s.sp}
	if e.arch.isLinked {
		if is = (end{s.link, s.sp}); reg == linkedKept {
			is.at = s.kept
		}
		if is.at.base == ofSP || is.at.base == ofProcess {
			is.sp = value{} // right behind
		}
	}
	if s.called {
		e.weak = exit(e.weak, is)
	} else {
		e.sure = exit(e.sure, is)
	}
}

// giveWay adds the end of a path in code of the runtime's own that goes on elsewhere.
func (e *explorer) giveWay(s *path) {
	e.weak = exit(e.weak, end{at: s.sp})
	switch is := (end{s.link, s.sp}); {
	case !e.arch.isLinked:
	case s.pushed.at.base == ofSP && s.pushed.at == s.sp: // where it goes on
		e.links = exit(e.links, end{s.pushed.link, s.sp.plus(8)})
	case e.keepsLink():
		e.links = exit(e.links, end{s.kept, s.sp})
	default:
		e.links = exit(e.links, is)
	}
}

// keepsLink reports whether code of the runtime's own keeps the link register in another one, by which it returns.
func (e *explorer) keepsLink() bool {
	var in isa.Inst
	for at := e.function.start; at < e.function.end && mcode.Decode(e.arch.Arch, e.codeAt(at), at, &in); at += uint64(in.Len) {
		if in.Flow == isa.Return && in.Reg == linkedKept {
			return true
		}
	}
	return false
}

// exit adds the end of a path.
func exit(exits []end, is end) []end {
	if is.at.base == unknown || is.at.base == ofNative && is.sp.base == unknown || is.at.off > maxFrame || is.at.off < -maxFrame {
		return exits
	}
	return append(exits, is)
}

// returns reports whether what is called at an address may return: the runtime's code for exceptions does not.
func (p *pathFinder) returns(addr uint64, depth int) bool {
	m, r := p.code.at(p.read, addr)
	return m == nil || r == nil || !p.code.isShared(m) || depth >= maxNested || p.returnsTo(addr, depth)
}

// returnsTo reports whether code of the runtime's own returns to what calls it.
func (p *pathFinder) returnsTo(addr uint64, depth int) bool {
	if r, ok := p.known[addr]; ok {
		return r
	}
	sure := p.explore(addr, depth+1).sure
	if p.left == 0 {
		return true
	}
	is := false
	for _, e := range sure {
		is = is || e == p.back()
	}
	if len(p.known) >= maxReturns {
		clear(p.known)
	}
	p.known[addr] = is
	return is
}

// back is the end of a path that returns to where it has begun.
func (p *pathFinder) back() end {
	if p.arch.isLinked {
		return end{value{base: ofLink}, value{base: ofSP}}
	}
	return end{at: value{base: ofSP}}
}

// isDispatch reports whether an instruction jumps to a function of Erlang by its entry in the table of
// those that are loaded: jmp n(register,%r12,8).
func isDispatch(inst []byte) bool {
	const rexX, group5, toIndexed, byR12 = 0x42, 0xff, 0x24, 0xe0
	return len(inst) >= 4 && inst[0]&0xf2 == rexX && inst[1] == group5 && inst[2]&0x3f == toIndexed && inst[3]&0xf8 == byR12
}
