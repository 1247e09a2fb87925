package v8

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// beyond are the bits that no address of an object has, of the architectures whose V8 is known. Frames hold the same on
// both (frame-constants.h).
var beyond = map[*procstate.Arch]uint64{
	procstate.AMD64: ^uint64(1<<47 - 1),
	procstate.ARM64: ^uint64(1<<48 - 1),
}

// linkedCode tells of V8's own code where calls leave the return address in a register, as on AArch64, where that is. It is
// in that register until a frame is there, and again when the frame is gone. What others cannot walk
// through is code that gives room to arguments or takes them off the stack, as many as there are, and code that is
// jumped to in a frame, which it leaves in the end.
type linkedCode struct {
	functions []linkedFunction // by address, once they are looked for
	sorted    bool
	known     map[uint64][]unframed // of each instruction, by where the function begins
	kept      int                   // instructions of these
}

// linkedFunction is one of V8's own functions.
type linkedFunction struct {
	mcode.Range
	inFrame bool // it is jumped to in a frame
}

// inFrame are names of functions that are jumped to in a frame of JavaScript: what leaves it, and where it goes on when it
// was made anew (builtins-arm64.cc).
var inFrame = [...]string{"Builtins_BaselineLeaveFrame", "Builtins_BaselineOutOfLinePrologueDeopt", enters,
	"Builtins_BaselineOrInterpreterEnterAt", "Builtins_ContinueTo"}

const (
	maxLinkedBytes = 16 << 10 // of a function
	maxLinkedKept  = 1 << 18
)

// note notes a function.
func (l *linkedCode) note(name string, at mcode.Range) {
	is := slices.ContainsFunc(inFrame[:], func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	l.functions = append(l.functions, linkedFunction{at, is})
}

// at tells where the return address is at a link-time address, in code that was interrupted or has called.
func (l *linkedCode) at(im *procstate.Image, vaddr uint64, interrupted bool) unframed {
	if !l.sorted {
		slices.SortFunc(l.functions, func(a, b linkedFunction) int { return cmp.Compare(a.Start, b.Start) })
		l.sorted, l.known = true, map[uint64][]unframed{}
	}
	i, _ := slices.BinarySearchFunc(l.functions, vaddr, func(f linkedFunction, vaddr uint64) int {
		if f.Start <= vaddr {
			return -1
		}
		return 1
	})
	if i == 0 || !l.functions[i-1].Holds(vaddr) {
		return unframed{}
	}
	f := &l.functions[i-1]
	places, known := l.known[f.Start]
	if !known {
		if l.kept >= maxLinkedKept {
			clear(l.known)
			l.kept = 0
		}
		places = findLinked(im.Arch(), mcode.ReadFile(im, f.Start, min(f.End, f.Start+maxLinkedBytes)), f.Start, f.inFrame)
		l.known[f.Start] = places
		l.kept += len(places)
	}
	at := (vaddr - f.Start) / im.Arch().PCAlign
	if at >= uint64(len(places)) || !interrupted && !places[at].framed {
		return unframed{}
	}
	return places[at]
}

// linkage is where the return address of a function is before an instruction of it.
type linkage struct {
	kind   linkageKind
	lostSP bool // so that others do not know SP
}

type linkageKind uint8

const (
	notReached linkageKind = iota
	inLink                 // in the link register; the frame pointer is the caller's
	called                 // it was, and a call has changed that
	inFramed               // the function runs in the frame that the frame pointer tells
	within                 // it has made another one in that
	elsewhere              // others know
)

// findLinked tells of each instruction of a function where the return address is before it, as far as others do not know.
func findLinked(arch *procstate.Arch, code []byte, start uint64, inFrame bool) []unframed {
	n := uint64(len(code)) / arch.PCAlign
	states := make([]linkage, n)
	work := []uint64{0}
	reach := func(at uint64, s linkage) {
		if at >= n {
			return
		}
		old := states[at]
		switch {
		case old.kind == notReached:
		case old.kind != s.kind:
			s.kind = elsewhere
		}
		if s.lostSP = s.lostSP || old.lostSP; s != old {
			states[at] = s
			work = append(work, at)
		}
	}
	first := linkage{kind: inLink}
	if inFrame {
		first = linkage{inFramed, true}
	}
	if n > 0 {
		states[0] = first
	}
	var in isa.Inst
	for len(work) > 0 && n > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		pc := start + at*arch.PCAlign
		if !mcode.Decode(arch, code[at*arch.PCAlign:], pc, &in) {
			continue // what fills the room between functions
		}
		s := states[at].after(arch, &in, inFrame && at == 0)
		if in.Flow == isa.Jump || in.Flow == isa.CondJump {
			reach((in.Target-start)/arch.PCAlign, s)
		}
		if !in.Ends() {
			reach(at+1, s)
		}
	}
	places := make([]unframed, n)
	if inFrame && mcode.Decode(arch, code, start, &in) && setsFrame(arch, &in) {
		states[0].kind = elsewhere // the frame pointer is not there yet
	}
	for i, s := range states {
		switch b := code[uint64(i)*arch.PCAlign:]; {
		case s.kind == inFramed:
			places[i] = unframed{ok: true, framed: true}
		case s.kind == inLink && (s.lostSP || isReturn(b)):
			places[i] = unframed{ok: true, inRegister: true, reg: arch.LR}
		}
	}
	return places
}

// after tells the same after an instruction.
func (s linkage) after(arch *procstate.Arch, in *isa.Inst, first bool) linkage {
	if in.Flow == isa.Call || in.Flow == isa.IndirectCall {
		if s.kind == inLink {
			s.kind = called
		}
		return s
	}
	fp, lr := false, false // loaded
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		switch op.Kind {
		case isa.Store, isa.Scratch, isa.StoreIndexed, isa.Compare, isa.Sign:
			continue
		}
		switch op.Dst {
		case arch.FP:
			fp = op.Kind == isa.Load
			if !fp && !first {
				s.kind = s.making()
			}
		case arch.LR:
			if lr = op.Kind == isa.Load; !lr && s.kind == inLink {
				s.kind = elsewhere
			}
		case arch.SP:
			switch {
			case op.Kind == isa.Set && op.Src == arch.FP:
				s.lostSP = s.kind == inFramed
			case op.Kind != isa.Set || op.Src != arch.SP:
				s.lostSP = true
			}
		}
	}
	switch {
	case fp && lr && s.kind == within:
		s.kind = inFramed
	case fp && lr:
		s.kind = inLink
	case fp:
		s.kind = elsewhere
	case lr && s.kind == called:
		s.kind = inLink
	case lr && s.kind == inLink:
		s.kind = elsewhere
	}
	return s
}

// making tells the same where the frame pointer is set to a frame.
func (s linkage) making() linkageKind {
	if s.kind == inFramed {
		return within
	}
	return elsewhere
}

// entry is a function that calls JavaScript from C++. Its CFI, if it has any, has the caller's SP right above what the frame pointer
// points to, where it saves all registers that calls preserve before it has a frame; nor does it tell that the return address is signed.
type entry struct {
	mcode.Range
	above uint64 // from the frame pointer to the caller's SP, in bytes; 0: not known
}

var entryNames = [...]string{"Builtins_JSEntry", "Builtins_JSConstructEntry", "Builtins_JSRunMicrotasksEntry"}

// entryAbove finds how far above by what such a function loads from where it loads the frame pointer on, straight to its return.
func entryAbove(arch *procstate.Arch, code []byte) (above uint64) {
	loaded := false
	var in isa.Inst
	for ; mcode.Decode(arch, code, 0, &in); code = code[in.Len:] {
		switch {
		case in.Flow == isa.Return && loaded:
			return above
		case in.Flow != isa.Next:
			loaded = false
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Load && op.Dst == arch.FP && op.Src == arch.SP && op.Imm == 0:
				loaded, above = true, 0
			case op.Kind == isa.Set && op.Dst == arch.SP && op.Src == arch.SP && loaded:
				above += uint64(op.Imm)
			}
		}
	}
	return 0
}

// leaveEntry sets out to the C++ that has called JavaScript by such a function, which is in a call.
func (p *image) leaveEntry(w *unwind.Walker, vaddr uint64, in, out *unwind.Frame) (unwind.Verdict, error) {
	for i := range p.entries {
		if e := &p.entries[i]; e.Holds(vaddr) && e.above != 0 {
			v, err := byFramePointer(w, in, out)
			if v == unwind.Success {
				out.SetSP(w.Arch(), in.FP()+e.above)
			}
			return v, err
		}
	}
	return unwind.NotMe, nil
}

// setsFrame reports whether an instruction sets the frame pointer.
func setsFrame(arch *procstate.Arch, in *isa.Inst) bool {
	return in.NumOps == 1 && in.Ops[0].Kind == isa.Set && in.Ops[0].Dst == arch.FP
}

// isReturn reports whether code begins with a return to where the link register says.
func isReturn(code []byte) bool {
	const ret = 0xd65f03c0
	return len(code) >= 4 && binary.LittleEndian.Uint32(code) == ret
}

// returns is leaves for AArch64: at the return of a function that has taken its arguments off the stack, as many as it was
// called with, the return address is in its register.
func returns(code []byte) unframed {
	return unframed{ok: len(code) >= dropBytes && isReturn(code[dropBytes:]), inRegister: true, reg: procstate.ARM64.LR}
}

// inCompiled tells the same at an offset of compiled code of a function, by what that begins with: it makes its frame at once, but
// for looking whether it was given up. Code of the baseline compiler leaves it by a jump to other code.
func inCompiled(arch *procstate.Arch, code []byte, isBaseline bool, off uint64) unframed {
	var in isa.Inst
	for at := uint64(0); at < off; at += uint64(in.Len) {
		switch {
		case at >= uint64(len(code)) || !mcode.Decode(arch, code[at:], at, &in):
			return unframed{}
		case setsFrame(arch, &in):
			return unframed{ok: isBaseline, framed: true}
		case in.Flow != isa.Next && in.Flow != isa.CondJump && in.Flow != isa.IndirectJump:
			return unframed{}
		}
	}
	return unframed{ok: true, inRegister: true, reg: arch.LR}
}
