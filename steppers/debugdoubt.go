package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// CFI that contradicts the code that it is for. libcrypto's leaves out the last
// change of SP before a return. Compilers move instructions over the directive
// that tells of a change of SP: in clang's libraries a comparison stands between
// the addition to SP that ends a frame and the row of CFI that knows of it, and a
// move behind the push of an argument. Where SP is known up to the next row, that
// one tells where the CFA is. GCC saves the static chain of a nested function around
// its call of __fentry__ (-mfentry), and functions written by hand, those of libc that
// multiply long numbers, have no other row than that of their start: both change
// SP without a word of it in their CFI. And the CFI of LuaJIT's interpreter has one row,
// the interpreter's frame, for the functions without one beside it too, and for where traces
// are left, whose frame is larger. That of the copying and comparing functions of glibc for
// i386 goes wrong behind their first return: there the ways to a return are asked throughout.
// What OCaml puts behind a function, for debugaside.go, has the row of its end, and where it
// raises an exception (debugraise.go) rows are of the frame that it leaves.

const (
	// maxLag bounds the bytes from an instruction to the row that corrects its own.
	maxLag = 24
	// maxSilent bounds the bytes of a function that are looked at for how it moves SP.
	maxSilent = 256
)

// What the code at an instruction has against its row of CFI.
const (
	doubtNone    uint8 = 1 + iota
	doubtReturns       // it takes its address from SP, and the row counts from elsewhere
	doubtLags          // the next row has the CFA elsewhere
	doubtPushed        // it is the row of the function's start, and SP has moved since
	doubtSilent        // the same, and registers may have, or how far is not known
	doubtSkips         // it may leave out a caller, as __morestack's does
	doubtThunk         // it is in a thunk that stands for an indirect branch
	doubtLeaf          // it returns with SP as it is, and the only row of all around it has a frame
	doubtPaths         // all ways from it to a return have the CFA elsewhere
	doubtOneRow        // there is one row for all around it
	doubtRaises        // it leaves frames for the handler of an exception of OCaml's
	doubtAside         // jumps to it, or from it, are at another distance from the CFA
	doubtLeaves        // it has taken some of its frame off, or is about to, and the row does not know
)

// doubt returns what there is against the rule r for a link-time address, where
// a frame was interrupted or is in a call.
func (d *Debug) doubt(im *procstate.Image, vaddr uint64, r *unwind.Rule, interrupted bool) uint8 {
	may := mayDoubt(im.Arch(), r, interrupted)
	if !may && !likeOCaml(im.Arch(), r) {
		return doubtNone
	}
	fact, ok := d.doubts.Get(im, vaddr)
	if !ok {
		fact = doubtNone
		if may || d.mayBeAside(im, vaddr, interrupted) {
			at := d.tables.For(im).Look(vaddr, lookAhead(interrupted))
			fact = d.doubtAt(im, vaddr, &at, interrupted)
		}
		d.doubts.Put(im, vaddr, fact)
	}
	return fact
}

// lookAhead returns how far the next rule is looked for, in bytes.
func lookAhead(interrupted bool) uint64 {
	if interrupted {
		return maxLag
	}
	return 0
}

// mayDoubt reports whether there may be anything against a rule.
func mayDoubt(a *procstate.Arch, r *unwind.Rule, interrupted bool) bool {
	return r.Reason() == unwind.ReasonNone && (interrupted || x86Prologues(a) && (isAtEntry(a, r) || maySkip(a, r)))
}

// isAtEntry reports whether a rule is that of where functions begin.
func isAtEntry(a *procstate.Arch, r *unwind.Rule) bool {
	if a.LR != procstate.NoReg {
		return r.CFAIs(a.SP, 0)
	}
	return r.CFAIs(a.SP, int64(a.AddressWidth))
}

// maySkip reports whether a rule has a word more above the frame pointer than there is.
func maySkip(a *procstate.Arch, r *unwind.Rule) bool { return r.CFAIs(a.FP, 3*int64(a.AddressWidth)) }

// doubtAt is doubt for what the table of the file tells of vaddr.
func (d *Debug) doubtAt(im *procstate.Image, vaddr uint64, at *unwind.Place, interrupted bool) uint8 {
	a := im.Arch()
	if !mayDoubt(a, at.Rule, interrupted) {
		if d.isAside(im, vaddr, at.Rule, interrupted) {
			return doubtAside
		}
		return doubtNone
	}
	if a == procstate.ARM64 {
		return d.doubtLate(im, vaddr, at.Rule)
	}
	if d.skips(im, vaddr, at.Rule) {
		return doubtSkips
	}
	atEntry := isAtEntry(a, at.Rule)
	if interrupted {
		if d.raising(im, vaddr) != raisesNothing {
			return doubtRaises
		}
		if mayReturn(im, vaddr) {
			code := d.instructionAt(im, vaddr)
			returns := isReturn(code)
			if mayBeInThunk(a, code) && isThunk(d.thunkAround(im, vaddr)) {
				return doubtThunk
			}
			if !atEntry && returns {
				return doubtReturns
			}
		}
		if code := d.upToNext(im, vaddr, at); code != nil && !at.Next.Jumps(a) && lag(a, code, vaddr, at.Rule, at.Next) != 0 {
			return doubtLags
		}
	}
	if interrupted && !atEntry && d.hasOneRow(im, vaddr, at.Rule) {
		if l := d.layoutBehind(im, vaddr); l.ok && !l.passes && l.layout == leafLayout {
			return doubtLeaf
		}
		return doubtOneRow
	}
	if interrupted && d.returnsElsewhere(im, vaddr, at.Rule) {
		return doubtPaths
	}
	if d.isAside(im, vaddr, at.Rule, interrupted) {
		return doubtAside
	}
	if !atEntry {
		return doubtNone
	}
	start, end, only, ok := d.tables.For(im).FirstRule(vaddr)
	if !ok || start == vaddr {
		return doubtNone
	}
	bytes, known := d.pushed(im, start, vaddr, interrupted)
	switch {
	case known && bytes == 0:
		return doubtNone
	case known:
		return doubtPushed
	}
	code := d.code[:min(maxSilent, end-start)]
	if only && im.ReadVaddr(code, start) == nil {
		if behind, moves := movesSP(a, code, start); moves && vaddr >= behind {
			return doubtSilent
		}
	}
	return doubtNone
}

// hasOneRow reports whether code is one of several pieces for which a table has a single row,
// r, with a frame.
func (d *Debug) hasOneRow(im *procstate.Image, vaddr uint64, r *unwind.Rule) bool {
	a := im.Arch()
	if reg, bytes, plain := r.CFA(); a != procstate.AMD64 || !plain || reg != a.SP || bytes <= 8 {
		return false
	}
	_, _, only, first := d.tables.For(im).FirstRule(vaddr)
	return only && first
}

// returnsElsewhere reports whether code of i386 has, by all ways without a call to where it
// returns, another CFA than the rule r.
func (d *Debug) returnsElsewhere(im *procstate.Image, vaddr uint64, r *unwind.Rule) bool {
	a := im.Arch()
	reg, bytes, plain := r.CFA()
	if a != procstate.I386 || !plain || reg != a.SP {
		return false
	}
	l := d.layoutBehind(im, vaddr)
	return l.ok && !l.passes && l.layout.SP >= 0 && int64(l.layout.SP) != bytes
}

// mayMislead reports whether the CFI for a PC is not to be believed before it is seen where
// it leads: of i386, where a frame was interrupted, or is in a call of a thunk, the only
// one that string functions make.
func (d *Debug) mayMislead(im *procstate.Image, pc uint64, interrupted bool) bool {
	if im.Arch() != procstate.I386 {
		return false
	}
	if interrupted {
		return true
	}
	const other, thunk = 1, 2
	fact, ok := d.thunks.Get(im, pc)
	if !ok {
		fact = other
		var code [4]byte
		if im.ReadVaddr(d.buf[:], pc-mcode.MaxCallLen) == nil {
			target, direct, _ := mcode.CallBefore(im.Arch(), d.buf[:], pc)
			if direct && im.ReadVaddr(code[:], target) == nil && isa.IsPCThunk(code[:]) {
				fact = thunk
			}
		}
		d.thunks.Put(im, pc, fact)
	}
	return fact == thunk
}

// misleads reports whether the CFI for in has led to a return address that no call has left,
// or that is below SP: that of functions written by hand does, where nothing else is
// known of the ways to a return.
func (d *Debug) misleads(w *unwind.Walker, im *procstate.Image, pc uint64, in, out *unwind.Frame) bool {
	if out.Flags&unwind.Interrupted != 0 || !d.mayMislead(im, pc, in.Flags&unwind.Interrupted != 0) {
		return false // or a signal has left it
	}
	if out.PCLocation.Kind == unwind.LocationAddress && out.PCLocation.Addr < in.SP() {
		return true
	}
	ra := out.PC()
	m := w.MappingAt(ra - 1)
	if ra == 0 || m != nil && m.Image == nil {
		return false // of code made at run time, which may not be readable
	}
	if m != nil && m.Image.Arch() == w.Arch() {
		var none unwind.Frame
		if v, _ := d.rule(m.Image, ra-1-m.Bias).CallerFrame(w, out, &none); v == unwind.StackBottom || v == unwind.Success && none.PC() == 0 {
			return false // where stacks begin no call is needed: Go's goexit
		}
	}
	var buf [followsCallLen]byte
	return !followsCall(w, ra, &d.calls, buf[:])
}

// layoutBehind finds the layout at a link-time address by the code from there on.
func (d *Debug) layoutBehind(im *procstate.Image, vaddr uint64) foundLayout {
	return d.layoutOn(im, vaddr, nil)
}

// layoutByRow finds the layout at a link-time address by the code from there on to where
// it jumps on with the frame that its row tells of.
func (d *Debug) layoutByRow(im *procstate.Image, vaddr uint64) foundLayout {
	return d.layoutOn(im, vaddr, &madeWays{
		setsFrame: func(*isa.Inst, uint64) bool { return false },
		rowAt: func(pc uint64) (unwind.Row, uint64, bool) {
			row, _, end, err := d.tables.For(im).Row(pc)
			return row, end, err == nil
		},
	})
}

func (d *Debug) layoutOn(im *procstate.Image, vaddr uint64, made *madeWays) foundLayout {
	d.pathCode = d.pathCode[:0]
	return d.paths.layoutBehind(im.Arch(), func(_, addr, end uint64) ([]byte, uint64) {
		s, ok := segmentAt(im, addr)
		if !ok {
			return nil, addr
		}
		n := len(d.pathCode)
		d.pathCode = append(d.pathCode, make([]byte, min(end, s.Vaddr+s.Filesz)-addr)...)
		code := d.pathCode[n:]
		if im.ReadVaddr(code, addr) != nil {
			return nil, addr
		}
		return code, addr
	}, vaddr, false, made, made != nil)
}

// leafLayout is the layout of a function without a frame on x86-64.
var leafLayout = FrameLayout{Type: NoFrame, State: UnsetFrame, SP: 8, FP: -1, RA: 8}

// leaveLeaf sets out to the caller of a function without a frame.
func (d *Debug) leaveLeaf(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	a := w.Arch()
	ra, ok := w.ProcessState().ReadWord(in.SP())
	if !ok || !behindCall(w, d.buf[:], ra) {
		return unwind.NotMe, nil
	}
	out.Regs.Inherit(&in.Regs, a.CalleeSaved)
	out.SetPC(a, ra)
	out.SetSP(a, in.SP()+8)
	out.SetFP(a, in.FP())
	out.PCLocation, out.FPLocation = unwind.InMemory(in.SP()), in.FPLocation
	return unwind.Success, nil
}

// mend sets out right, the caller that the rule r for vaddr has for in, where r
// is wrong, by what there is against it. It returns false when only the analysis of
// the code can tell.
func (d *Debug) mend(w *unwind.Walker, im *procstate.Image, vaddr uint64, doubt uint8, r *unwind.Rule, in, out *unwind.Frame) bool {
	switch doubt {
	case doubtReturns:
		if out.SP() == in.SP()+uint64(im.Arch().AddressWidth) {
			return true
		}
		ra, ok := w.ProcessState().ReadWord(in.SP())
		return !ok || !behindCall(w, d.buf[:], ra)
	case doubtLags:
		at := d.tables.For(im).Look(vaddr, maxLag)
		code := d.upToNext(im, vaddr, &at)
		if code == nil {
			return true // the file was cut short
		}
		bytes := lag(im.Arch(), code, vaddr, r, at.Next)
		cfa := out.SP() + uint64(bytes)
		ra, ok := w.ProcessState().ReadWord(cfa - uint64(w.Arch().AddressWidth))
		if !ok || cfa <= in.SP() || !behindCall(w, d.buf[:], ra) {
			return true // the next row is wrong
		}
		raised, ok := r.Raised(bytes, at.Next)
		if !ok || behindCall(w, d.buf[:], out.PC()) {
			return false
		}
		*out = unwind.Frame{}
		v, _ := raised.CallerFrame(w, in, out)
		return v == unwind.Success
	case doubtPushed:
		start, _, _, _ := d.tables.For(im).FirstRule(vaddr)
		bytes, _ := d.pushed(im, start, vaddr, in.Flags&unwind.Interrupted != 0)
		raised, ok := r.Raised(bytes, r)
		if !ok {
			return false
		}
		*out = unwind.Frame{}
		v, _ := raised.CallerFrame(w, in, out)
		out.SetPC(w.Arch(), codeAddress(w, out.PC())) // which the row may not tell to be signed either
		return v == unwind.Success && behindCall(w, d.buf[:], out.PC())
	case doubtPaths:
		var other unwind.Frame
		l := d.layoutBehind(im, vaddr)
		if v, _ := walkLayout(w, in, &other, &l.layout); l.ok && v == unwind.Success && behindCall(w, d.buf[:], other.PC()) {
			*out = other
		}
	case doubtOneRow:
		if behindCall(w, d.buf[:], out.PC()) {
			return true
		}
		l := d.layoutByRow(im, vaddr)
		*out = unwind.Frame{}
		v, _ := walkLayout(w, in, out, &l.layout)
		return l.ok && v == unwind.Success && behindCall(w, d.buf[:], out.PC())
	case doubtAside:
		return d.leaveAside(w, im, vaddr, r, in, out)
	case doubtSkips:
		d.unskip(w, im, vaddr, out)
	}
	return true
}

// CFI of __morestack, which gives a function a stack of its own (-fsplit-stack),
// leaves out its caller: the function that it goes on in has the same name.
//
//	call __morestack
//	ret                  what is left out
//	jmp  body            where __morestack calls to
//
// All that tells is the CFA, which is a word above where a function's is: at its
// start, and where it is found from a frame pointer.

// skips reports whether r, the rule for vaddr, has a CFA like that.
func (d *Debug) skips(im *procstate.Image, vaddr uint64, r *unwind.Rule) bool {
	a, table := im.Arch(), d.tables.For(im)
	if a != procstate.AMD64 {
		return false
	}
	switch {
	case r.CFAIs(a.FP, 24):
		start, _, ok := table.FunctionAt(vaddr)
		return ok && d.rule(im, start).CFAIs(a.SP, 16)
	case r.CFAIs(a.SP, 24): // the frame pointer, one byte of code, has been pushed
		vaddr--
	case !r.CFAIs(a.SP, 16):
		return false
	}
	start, _, _, first := table.FirstRule(vaddr)
	return first && start == vaddr
}

// unskip sets out to the caller that the rule for vaddr leaves out, if there is one: a
// call of this very function, behind which there is nothing but a return.
func (d *Debug) unskip(w *unwind.Walker, im *procstate.Image, vaddr uint64, out *unwind.Frame) {
	ra, ok := w.ProcessState().ReadWord(out.SP() - 16)
	if !ok {
		return
	}
	m := w.MappingAt(ra)
	if m == nil || m.Image == nil || m.Image.ReadVaddr(d.buf[:1], ra-m.Bias) != nil || d.buf[0] != 0xc3 ||
		m.Image.ReadVaddr(d.buf[:], ra-m.Bias-mcode.MaxCallLen) != nil {
		return
	}
	start, _, known := d.tables.For(im).FunctionAt(vaddr)
	target, direct, _ := mcode.CallBefore(w.Arch(), d.buf[:], ra-m.Bias)
	if !known || !direct || m.Image != im || target != start {
		return
	}
	out.SetPC(w.Arch(), ra)
	out.SetSP(w.Arch(), out.SP()-8)
	out.PCLocation = unwind.InMemory(out.SP() - 8)
}

// instructionAt returns the first bytes of the instruction at a link-time address, valid
// until more code is read; none where the file has none.
func (d *Debug) instructionAt(im *procstate.Image, vaddr uint64) []byte {
	for n := 5; n > 0; n-- { // the code may end there
		if im.ReadVaddr(d.code[:n], vaddr) == nil {
			return d.code[:n]
		}
	}
	return nil
}

// upToNext returns the code from vaddr up to the next rule, where the one for vaddr
// counts from SP; nil where no rule is near.
func (d *Debug) upToNext(im *procstate.Image, vaddr uint64, at *unwind.Place) []byte {
	if reg, _, ok := at.Rule.CFA(); !ok || at.Next == nil || !x86Prologues(im.Arch()) || reg != im.Arch().SP {
		return nil
	}
	code := d.code[:at.NextAt-vaddr]
	if im.ReadVaddr(code, vaddr) != nil {
		return nil
	}
	return code
}

// isReturn reports whether x86 code begins with a return to the address at SP.
func isReturn(code []byte) bool {
	return len(code) > 0 && (code[0] == 0xc3 || code[0] == 0xc2) ||
		len(code) > 1 && (code[0] == 0xf3 || code[0] == 0xf2) && code[1] == 0xc3
}

// lag returns by how many bytes the CFA is higher than r has it, by the next rule,
// behind code. It is 0 where that does not tell.
func lag(a *procstate.Arch, code []byte, vaddr uint64, r, next *unwind.Rule) int64 {
	_, size, _ := r.CFA()
	reg, nextSize, ok := next.CFA()
	if !ok {
		return 0
	}
	change, ok := changeOf(a, code, vaddr, reg)
	if !ok {
		return 0
	}
	return change + nextSize - size
}

// changeOf returns by how much reg is, behind code, more than SP was before it.
// ok is false where that does not follow from the code, or it does not go on to
// its end.
func changeOf(a *procstate.Arch, code []byte, vaddr uint64, reg procstate.Reg) (bytes int64, ok bool) {
	var more [procstate.MaxRegs]int64 // than SP was
	var known [procstate.MaxRegs]bool
	known[a.SP] = true
	follows := func(r procstate.Reg) bool { return r == a.SP || r == a.FP }
	var in isa.Inst
	for ; len(code) > 0; code = code[in.Len:] {
		if !mcode.Decode(a, code, vaddr, &in) || int(in.Len) > len(code) || in.Flow != isa.Next && in.Flow != isa.CondJump {
			return 0, false
		}
		vaddr += uint64(in.Len)
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
				continue
			case isa.Set:
				if follows(op.Dst) && follows(op.Src) {
					more[op.Dst], known[op.Dst] = more[op.Src]+op.Imm, known[op.Src]
					continue
				}
			case isa.Swap:
				if follows(op.Src) {
					known[op.Src] = false
				}
			}
			if follows(op.Dst) {
				known[op.Dst] = false
			}
		}
	}
	if !follows(reg) {
		return 0, false
	}
	return more[reg], known[reg]
}

// pushed returns how many bytes the function at start has on the stack, its return
// address aside, which is where it was, at vaddr, an instruction or the last byte of a call. ok is false
// where the code does not go straight on to there, or writes what the caller
// needs.
func (d *Debug) pushed(im *procstate.Image, start, vaddr uint64, interrupted bool) (bytes int64, ok bool) {
	end := vaddr
	if !interrupted {
		end++
	}
	if end-start > maxSilent || im.ReadVaddr(d.code[:end-start], start) != nil {
		return 0, false
	}
	a, code := im.Arch(), d.code[:end-start]
	needed := a.CalleeSaved | 1<<a.SP
	if a.LR != procstate.NoReg {
		needed |= 1 << a.LR
	}
	var in isa.Inst
	for at := start; at < end; at += uint64(in.Len) {
		if !mcode.Decode(a, code[at-start:], at, &in) || at+uint64(in.Len) > end {
			return 0, false
		}
		switch {
		case in.Ends(), in.Flow == isa.Call && in.Target-start < end-start, a.LR != procstate.NoReg && (in.Flow == isa.Call || in.Flow == isa.IndirectCall):
			return 0, false
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare, isa.Sign:
				continue
			case isa.Swap:
				if a.CalleeSaved>>op.Src&1 != 0 {
					return 0, false
				}
			case isa.Set:
				if op.Dst == a.SP && op.Src == a.SP {
					bytes -= op.Imm
					continue
				}
			}
			if needed>>op.Dst&1 != 0 {
				return 0, false
			}
		}
	}
	return bytes, true
}

// movesSP returns where the first instruction of code ends that moves SP.
func movesSP(a *procstate.Arch, code []byte, vaddr uint64) (behind uint64, ok bool) {
	var in isa.Inst
	for len(code) > 0 && mcode.Decode(a, code, vaddr, &in) && int(in.Len) <= len(code) {
		vaddr += uint64(in.Len)
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
			default:
				if op.Dst == a.SP && in.Flow == isa.Next {
					return vaddr, true
				}
			}
		}
		code = code[in.Len:]
	}
	return 0, false
}
