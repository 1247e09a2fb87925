package steppers

import (
	"hash/maphash"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// madeFrames is what a FrameAnalyzer knows of code that was made at run time and is in no
// file, and what it finds that out with.
type madeFrames struct {
	tables  *unwind.Tables // of files that it goes on in; nil: none yet
	layouts [1 << (seenBits - 2)][4]madeLayout
	looks   uint64 // at layouts
	callees [1 << calleeBits]madeCallee
	window  []byte // around a frame's PC

	flow  frameFlow  // of what may be the frame's function
	paths framePaths // from the frame's PC
	calls framePaths // through functions that are called on these
	code  []byte     // that was read for both
	insts int        // that were on the paths of the last analysis

	tries map[int]*madeTries // by PID
}

// madeLayout is a slot of the cache of layouts, which has some for each hash of a PC: one stack
// may have more than one of the same. It holds as long as the code around the PC is the same.
type madeLayout struct {
	pc          uint64
	code        uint64 // hash of it
	interrupted bool
	look        uint64 // the last at it
	layout      FrameLayout

	// by is a register that the layout hangs by, NoReg for none, and value what it holds.
	by    procstate.Reg
	value uint64

	failed uint8 // how often nothing was found where other registers, and memory, may tell more

	beside FrameLayout // where layout is not known, what stands behind it has
}

// maxFailed is how often a layout that was not found is looked for again.
const maxFailed = 8

// madeCallee is a slot of the direct-mapped cache of whether functions set up the frames
// of their callers. It holds as long as the code around is the same.
type madeCallee struct {
	addr, code uint64 // code is a hash of it, or tells the file: then addr is a link-time address
	sets       bool
}

// calleeBits is the logarithm of the number of slots of that cache.
const calleeBits = 9

// codeSeed is for hashes of code.
var codeSeed = maphash.MakeSeed()

// codeHasher is implemented by a ProcessState that knows whether code is the same as it
// was without that being read: see procstate.Snapshot.
type codeHasher interface {
	HashCode(addr, n uint64) (hash uint64, ok bool)
}

// hashCode is codeHasher.HashCode, if there is one.
func hashCode(w *unwind.Walker, addr, n uint64) (hash uint64, ok bool) {
	h, ok := w.ProcessState().(codeHasher)
	if !ok {
		return 0, false
	}
	return h.HashCode(addr, n)
}

// layoutAt finds the layout of a frame whose code is in no file. It may change at any
// time: what was found is kept for code that is the same.
func (k *madeFrames) layoutAt(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame) FrameLayout {
	addr, interrupted := f.LookupPC(), f.Flags&unwind.Interrupted != 0
	from := max(m.Start, addr-min(addr, maxPrologueScan))
	n := min(m.End-from, 2*maxPrologueScan)
	var code []byte
	sum, hashed := hashCode(w, from, n)
	if !hashed {
		if code = k.readWindow(w, m, from, n); uint64(len(code)) <= addr-from {
			return unknownLayout
		}
		sum = maphash.Bytes(codeSeed, code)
	}
	s, same := k.slot(f)
	again := same && s.code == sum && s.value == f.Regs.Raw(s.by)
	t := k.triesOf(w.ProcessState().PID())
	switch {
	case again && (s.failed == 0 || s.failed == maxFailed):
		if s.layout.State != UnknownState {
			t.known()
		}
	case !t.mayLook(again):
		return unknownLayout
	default:
		if hashed {
			code = k.readWindow(w, m, from, n)
		}
		l, by := k.analyze(w, f, code, from)
		now := madeLayout{pc: f.PC(), code: sum, interrupted: interrupted, look: k.looks, layout: l, by: by, value: f.Regs.Raw(by)}
		if l.State == UnknownState {
			if k.paths.open {
				if now.failed = 1; same && s.code == sum {
					now.failed = min(s.failed+1, maxFailed)
				}
			}
			if now.beside = beside(w.Arch(), code, from, f.PC(), !interrupted); now.beside.State == UnknownState {
				now.beside = k.besideTarget(w, f.PC(), code[min(f.PC()-from, uint64(len(code))):])
			}
		}
		t.looked(again, l.State != UnknownState, k.insts)
		*s = now
	}
	return s.layout
}

// besideTarget is beside for where the code from pc on jumps to: YJIT has its stubs elsewhere.
func (k *madeFrames) besideTarget(w *unwind.Walker, pc uint64, code []byte) FrameLayout {
	target, ok := jumpsOnTo(w.Arch(), code, pc)
	m := w.MappingAt(target)
	if !ok || m == nil || m.Image != nil {
		return unknownLayout
	}
	from := max(m.Start, target-min(target, maxPrologueScan))
	return beside(w.Arch(), k.readWindow(w, m, from, min(m.End-from, 2*maxPrologueScan)), from, target, false)
}

// besideAt returns the layout that code beside that of a frame has, after its own has
// turned out not to be known.
func (k *madeFrames) besideAt(f *unwind.Frame) (l *FrameLayout, ok bool) {
	s, ok := k.slot(f)
	return &s.beside, ok && s.beside.State != UnknownState
}

// slot returns the slot of a frame, whatever its code was, or else the one to be used for it.
func (k *madeFrames) slot(f *unwind.Frame) (s *madeLayout, ok bool) {
	set := &k.layouts[f.PC()*0x9e3779b97f4a7c15>>(64-(seenBits-2))]
	k.looks++
	for i := range set {
		t := &set[i]
		if t.pc == f.PC() && t.interrupted == (f.Flags&unwind.Interrupted != 0) {
			t.look = k.looks
			return t, true
		}
		if s == nil || t.look < s.look {
			s = t
		}
	}
	return s, false
}

// readWindow reads n bytes of code, at most twice maxPrologueScan, valid until the next
// call.
func (k *madeFrames) readWindow(w *unwind.Walker, m *procstate.Mapping, from, n uint64) []byte {
	if k.window == nil {
		k.window = make([]byte, 2*maxPrologueScan)
	}
	return mcode.Read(w, m, from, k.window[:n])
}

// analyze finds the layout of a frame by the code around its PC, which
// begins at from, and by the value of a register, NoReg for none.
func (k *madeFrames) analyze(w *unwind.Walker, f *unwind.Frame, code []byte, from uint64) (l FrameLayout, by procstate.Reg) {
	by = procstate.NoReg
	addr, interrupted := f.LookupPC(), f.Flags&unwind.Interrupted != 0
	before := k.afterPrologue(w.Arch(), code, from, addr)
	k.code = k.code[:0]
	read := func(start, addr, end uint64) ([]byte, uint64) {
		m := w.MappingAt(addr)
		if m == nil {
			return nil, 0
		}
		start = max(start, m.Start)
		n := len(k.code)
		k.code = slices.Grow(k.code, int(end-start))[:n+int(end-start)]
		return mcode.Read(w, m, start, k.code[n:]), start
	}
	setsFrame := func(in *isa.Inst, written uint64) bool {
		if in.Flow == isa.Call {
			return k.setsCallersFrame(w, read, in.Target)
		}
		op := &in.Ops[0]
		at, known := f.Regs.Value(op.Src)
		if in.NumOps == 0 || op.Kind != isa.Load || !known || written>>op.Src&1 != 0 || by != procstate.NoReg && by != op.Src {
			return false
		}
		by = op.Src
		to, ok := w.ProcessState().ReadWord(at + uint64(op.Imm))
		return ok && k.setsCallersFrame(w, read, to)
	}
	// Where the function's start tells without a call on the way, ways out behind one
	// tell nothing more: see agreed.
	direct := before.ok && !before.passes && before.layout.State != UnknownState
	ways := madeWays{setsFrame: setsFrame, rowAt: func(pc uint64) (unwind.Row, uint64, bool) { return k.rowAt(w, pc) }}
	reads := 0
	ways.word = func(addr uint64) (uint64, bool) {
		const most = 64 // words of memory
		if reads++; reads > most {
			return 0, false
		}
		return wordNow(w, addr)
	}
	behind := k.paths.layoutBehind(w.Arch(), read, f.PC(), !interrupted, &ways, direct)
	k.insts = maxMadeInsts - k.paths.left
	l = agreed(&before, &behind)
	switch {
	case l.State != UnknownState:
	case before.ok && behind.ok:
		// A call on either way may not return, and what follows be another function, with
		// another frame. Where that has its return address there is none.
		switch b, o := returns(w, f, &before.layout), returns(w, f, &behind.layout); {
		case b && !o:
			l = before.layout
		case o && !b:
			l = behind.layout
		}
	case k.paths.open && !k.paths.differ:
		k.code, ways.regs, by = k.code[:0], &f.Regs, procstate.NoReg
		behind = k.paths.layoutBehind(w.Arch(), read, f.PC(), !interrupted, &ways, direct)
		k.insts += maxMadeInsts - k.paths.left
		l = agreed(&before, &behind)
	}
	if l.State == UnknownState && (interrupted && beforeFrame(w.Arch(), code, int(addr-from)) ||
		lendsFP(w, read, f.PC(), from, from+uint64(len(code)))) {
		l.Type = NoFrame
	}
	return l, by
}

// returns reports whether there is a return address where a layout has it.
func returns(w *unwind.Walker, f *unwind.Frame, l *FrameLayout) bool {
	var caller unwind.Frame
	var buf [mcode.MaxCallLen + javacode.DeoptHandlerLen]byte
	v, _ := walkLayout(w, f, &caller, l)
	return v == unwind.Success && javacode.MayReturnTo(w, caller.PC(), buf[:])
}

// afterPrologue finds the layout at an address by the nearest prologue before it from
// which paths come there.
func (k *madeFrames) afterPrologue(a *procstate.Arch, code []byte, from, addr uint64) foundLayout {
	const many = 1 << 12
	if s := k.flow.layouts; s != nil && len(s.of) > many {
		k.flow.layouts = nil
	}
	for p := lastPrologue(a, code); p >= 0; p = lastPrologue(a, code[:p]) {
		start := from + uint64(p)
		if start > addr {
			continue
		}
		k.flow.code = flowCode{size: uint64(len(code) - p), read: code[p:]}
		if l := k.flow.analyze(a, start, entryState(a), false).guessedAt(addr); l.ok && l.layout.aligned(a) {
			return l
		}
	}
	return foundLayout{}
}

// rowAt returns the row of code of a file, and where the code ends that has it.
func (k *madeFrames) rowAt(w *unwind.Walker, pc uint64) (row unwind.Row, end uint64, ok bool) {
	m := w.MappingAt(pc)
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return row, 0, false
	}
	if k.tables == nil {
		k.tables = unwind.NewTables()
	}
	row, _, end, err := k.tables.For(m.Image).Row(pc - m.Bias)
	return row, end + m.Bias, err == nil
}

// setsCallersFrame is framePaths.setsCallersFrame. The answer is kept where it follows
// from the code in one piece around the address.
func (k *madeFrames) setsCallersFrame(w *unwind.Walker, read mcode.Reader, addr uint64) bool {
	m := w.MappingAt(addr)
	if m == nil {
		return false
	}
	key, hash, ok := addr, uint64(0), false
	if m.Image != nil {
		key, hash, ok = addr-m.Bias, ^uint64(m.Image.Index), true
	} else {
		start := max(addr-min(addr, mcode.WindowBefore), m.Start)
		hash, ok = hashCode(w, start, min(addr+mcode.WindowBehind, m.End)-start)
	}
	s := &k.callees[key*0x9e3779b97f4a7c15>>(64-calleeBits)]
	if ok && s.addr == key && s.code == hash {
		return s.sets
	}
	n := len(k.code)
	sets := k.calls.setsCallersFrame(w.Arch(), read, addr)
	if k.code = k.code[:n]; ok && k.calls.code.Pieces() == 1 {
		*s = madeCallee{key, hash, sets}
	}
	return sets
}

// beforeFrame reports whether x86-64 code goes on, from an offset on, to set up a frame by
// the frame pointer, which is another's until then: that of the caller, or where
// instrumentation has such a frame in the middle of a function, its own.
func beforeFrame(a *procstate.Arch, code []byte, at int) bool {
	const most, pushFP = 8, 0x55 // instructions; the first of a frame
	if a != procstate.AMD64 {
		return false
	}
	if at > 0 && code[at-1] == pushFP && movesSPToFP(code[at:]) {
		return true
	}
	var in isa.Inst
	for range most {
		if at < len(code) && code[at] == pushFP && movesSPToFP(code[at+1:]) {
			return true
		}
		if !isa.DecodeAMD64(code[at:], 0, &in) || in.Flow != isa.Next && in.Flow != isa.CondJump {
			return false
		}
		for _, op := range in.Ops[:in.NumOps] {
			if op.Kind != isa.Compare && (op.Dst == a.SP || op.Dst == a.FP || op.Kind == isa.Swap) {
				return false
			}
		}
		at += int(in.Len)
	}
	return false
}
