package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// PCState tells whether an address belongs to a function.
type PCState uint8

// The states.
const (
	UnknownFunc PCState = iota // it could not be found out
	InFunc
	OutsideFunc
)

// WandererHelper answers what a Wanderer asks about words that may be return
// addresses.
type WandererHelper interface {
	// IsPrevInstrACall reports whether the instruction before run-time
	// address addr is a call, and where it goes to: direct is false when that
	// is in a register or in memory.
	IsPrevInstrACall(w *unwind.Walker, addr uint64) (target uint64, direct, ok bool)

	// IsPCInFunc tells whether pc lies in the function that starts at entry.
	IsPCInFunc(w *unwind.Walker, entry, pc uint64) PCState

	// RequireExactMatch makes the Wanderer accept only direct calls of the
	// function that it comes from.
	RequireExactMatch() bool
}

// Wanderer is the last resort: it searches the stack from SP upward for a
// word that can be the return address of the frame, one that lies behind a
// call which fits. Such a word may be left over from an earlier call, so its
// frames are marked Heuristic, and the default group does without it: alone, on
// a C program with its loader and library, two walks in three are wrong
// (docs/ACCURACY.md), and a wrong frame is worse than a missing one.
//
// A direct call of the very function is taken before any other; a call
// through a register or of an unknown function is taken when there is no such
// word, unless the helper requires an exact match. The zero value is that of
// NewWanderer(nil, nil).
type Wanderer struct {
	helper WandererHelper
	frames FrameFuncHelper
}

// NewWanderer makes a Wanderer. Helpers that are nil are the default ones:
// then functions are where the file says, and frames as a FrameAnalyzer finds
// them.
func NewWanderer(helper WandererHelper, frames FrameFuncHelper) *Wanderer {
	return &Wanderer{helper: helper, frames: frames}
}

// Name implements unwind.FrameStepper.
func (s *Wanderer) Name() string { return "wanderer" }

// Priority implements unwind.FrameStepper.
func (s *Wanderer) Priority() unwind.Priority { return unwind.PriorityWanderer }

// maxWander bounds the words that are searched.
const maxWander = 512

// CallerFrame implements unwind.FrameStepper.
func (s *Wanderer) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if s.helper == nil {
		s.helper = &codeHelper{}
	}
	if s.frames == nil {
		s.frames = NewFrameAnalyzer()
	}
	arch, mem := w.Arch(), w.ProcessState()
	width := uint64(arch.AddressWidth)
	m := w.MappingAt(in.LookupPC())
	if m == nil {
		return unwind.NotMe, nil
	}
	from := in.SP() &^ (width - 1)
	if from != in.SP() {
		return unwind.NotMe, nil
	}
	var second uint64 // the place of the first word that may fit
	for at := from; at < from+maxWander*width; at += width {
		word, ok := mem.ReadWord(at)
		if !ok {
			break
		}
		pc := codeAddress(w, word)
		if w.MappingAt(pc-1) == nil {
			continue
		}
		target, direct, ok := s.helper.IsPrevInstrACall(w, pc)
		if !ok {
			continue
		}
		fits := UnknownFunc
		if direct {
			fits = s.helper.IsPCInFunc(w, target, in.LookupPC())
		}
		switch {
		case fits == InFunc:
			return s.found(w, in, out, at, pc)
		case fits == UnknownFunc && second == 0 && !s.helper.RequireExactMatch():
			second = at
		}
	}
	if second == 0 {
		return unwind.NotMe, nil
	}
	word, _ := mem.ReadWord(second)
	return s.found(w, in, out, second, codeAddress(w, word))
}

// found makes the frame of the return address pc that is stored at run-time
// address at.
func (s *Wanderer) found(w *unwind.Walker, in, out *unwind.Frame, at, pc uint64) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	width := uint64(arch.AddressWidth)
	out.SetPC(arch, pc)
	out.PCLocation = unwind.InMemory(at)
	out.SetSP(arch, at+width)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	out.Flags |= unwind.Heuristic
	// The frame pointer is the caller's, or saved next to the return address.
	l := s.frames.AllocatesFrame(w, in)
	fp, known := in.Regs.Value(arch.FP)
	slot := at - width
	switch {
	case l.Type == NoFrame && known:
	case known && fp == slot:
		fp, known = mem.ReadWord(slot)
		out.FPLocation = unwind.InMemory(slot)
	case !known || l.Type != UnknownFrame || fp < at:
		return unwind.Success, nil
	}
	if known {
		out.SetFP(arch, fp)
	}
	return unwind.Success, nil
}

// codeHelper is the default WandererHelper.
type codeHelper struct {
	images mcode.PerImage[imageStarts]
	calls  [1 << 9]callFact
	jump   mcode.VaddrCache // whether a function jumps away at once
	buf    [32]byte
}

// imageStarts are the starts of the functions of a file.
type imageStarts struct{ starts []uint64 }

// callFact is a slot of the direct-mapped cache of calls by return address.
type callFact struct {
	vaddr      uint64
	target     uint64 // link-time
	image      uint32 // Image.Index + 1
	direct, ok bool
}

// IsPrevInstrACall implements WandererHelper.
func (h *codeHelper) IsPrevInstrACall(w *unwind.Walker, addr uint64) (target uint64, direct, ok bool) {
	m := w.MappingAt(addr - 1)
	if m == nil {
		return 0, false, false
	}
	var c *callFact
	if m.Image != nil {
		vaddr := addr - m.Bias
		k := (vaddr ^ uint64(m.Image.Index)<<48) * 0x9e3779b97f4a7c15
		c = &h.calls[k>>(64-9)]
		if c.vaddr == vaddr && c.image == m.Image.Index+1 {
			return c.target + m.Bias, c.direct, c.ok
		}
		*c = callFact{vaddr: vaddr, image: m.Image.Index + 1}
	}
	n := min(mcode.MaxCallLen, addr-m.Start)
	code := mcode.Read(w, m, addr-n, h.buf[:n])
	if uint64(len(code)) == n {
		target, direct, ok = mcode.CallBefore(w.Arch(), code, addr)
	}
	if c != nil {
		c.target, c.direct, c.ok = target-m.Bias, direct, ok
	}
	return target, direct, ok
}

// IsPCInFunc implements WandererHelper. A call through the procedure linkage
// table goes to a jump, and that anywhere.
func (h *codeHelper) IsPCInFunc(w *unwind.Walker, entry, pc uint64) PCState {
	m := w.MappingAt(entry)
	if m == nil || m.Image == nil {
		return UnknownFunc
	}
	if entry == pc {
		return InFunc
	}
	if h.jumps(w, m, entry) {
		return UnknownFunc
	}
	if !m.Contains(pc) || pc < entry {
		return OutsideFunc
	}
	im := h.images.Get(m.Image)
	if im == nil {
		im = &imageStarts{starts: m.Image.FuncStarts()}
		h.images.Put(m.Image, im)
	}
	lo, hi := 0, len(im.starts)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); im.starts[mid] <= pc-m.Bias {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	switch {
	case lo == 0:
		return UnknownFunc
	case im.starts[lo-1] == entry-m.Bias:
		return InFunc
	case im.starts[lo-1] > entry-m.Bias:
		return OutsideFunc
	}
	return UnknownFunc
}

// jumps reports whether the code at entry, in mapping m of a file, jumps away
// at once.
func (h *codeHelper) jumps(w *unwind.Walker, m *procstate.Mapping, entry uint64) bool {
	if fact, ok := h.jump.Get(m.Image, entry-m.Bias); ok {
		return fact != 0
	}
	fact := uint8(0)
	if startsWithJump(w.Arch(), mcode.Read(w, m, entry, h.buf[:])) {
		fact = 1
	}
	h.jump.Put(m.Image, entry-m.Bias, fact)
	return fact != 0
}

func startsWithJump(a *procstate.Arch, code []byte) bool {
	if isa.DecoderFor(a) == nil {
		return true // not known, like a jump
	}
	var in isa.Inst
	for i := 0; i < 4 && mcode.Decode(a, code, 0, &in); i++ {
		if in.Flow == isa.Jump || in.Flow == isa.IndirectJump {
			return true
		}
		if in.Flow != isa.Next {
			break
		}
		code = code[in.Len:]
	}
	return false
}

// RequireExactMatch implements WandererHelper.
func (h *codeHelper) RequireExactMatch() bool { return false }
