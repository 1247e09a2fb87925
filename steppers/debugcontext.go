package steppers

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// When libgcc's unwinder goes on elsewhere, its frame holds two contexts (struct
// _Unwind_Context, the same on x86-64 since GCC 4): that of its own caller,
// and that of the function which it goes on in. They tell where each register of
// either has been saved, and with that what must be true of the frames between.
// Of what is saved in its own frame the return address is overwritten last, by the
// one in the function that it goes on in: the context of its caller still has it.

// The layout of a context on x86-64, in bytes.
const (
	contextRegs   = 0x00 // where registers are saved, by their DWARF number
	contextCFA    = 0x90 // SP in the frame
	contextRA     = 0x98
	contextFlags  = 0xc0
	contextValues = 0xd8 // a byte for each register: it is no place, but the value itself
	contextSize   = 0xf0

	contextReturn = contextRegs + 8*16 // where the return address is

	contextExtended = 1 << 62 // a flag that every context has
	contextSignal   = 1 << 63
)

const maxTried = 1 << 16 // frames looked at to find one's frame pointer

// landing is what the unwinder knows of the frame that it goes on in.
type landing struct {
	pc     uint64 // where it goes on
	sp     uint64 // of the frame, which is the CFA of the one below
	pcAt   uint64 // where the frame's return address is,
	fpAt   uint64 // and where one of the frames below has saved its frame pointer
	frames int    // how many frames are left, the unwinder's own first; 0: not known
	kept   bool   // the caller's frame pointer, in the frame of the unwinder, is not overwritten
	left   bool   // pc is where the frame's return address was: all but the jump is done
}

// ownContext finds the context of the caller of in, code that is leaving its
// frames, and the return address that it has: out is that caller, as CFI has it.
func ownContext(w *unwind.Walker, in, out *unwind.Frame) (own, ra uint64, ok bool) {
	if w.Arch() != procstate.AMD64 || out.FPLocation.Kind != unwind.LocationAddress || out.SP()-in.SP() > maxLeftOut {
		return 0, 0, false
	}
	mem, end := w.ProcessState(), out.SP()
	for own = in.SP(); own+contextSize <= end; own += 8 {
		if !wordIs(mem, own+contextCFA, end) || !wordIs(mem, fpOf(own), out.FPLocation.Addr) {
			continue
		}
		if ra, ok = mem.ReadWord(own + contextRA); !ok {
			continue
		}
		var code [mcode.MaxCallLen]byte
		if ra == out.PC() || wordIs(mem, own+contextReturn, end-8) && behindCall(w, code[:], ra) {
			return own, ra, true
		}
	}
	return 0, 0, false
}

// landingOf finds where code that is leaving its frames, in, goes on: out is its
// caller, as CFI has it, own the context of that and ra its return address.
func landingOf(w *unwind.Walker, in, out *unwind.Frame, own, ra uint64) (l landing, ok bool) {
	mem, end, saved := w.ProcessState(), out.SP(), out.FPLocation.Addr
	for at := in.SP(); at+contextSize <= end; at += 8 {
		if at+contextSize > own && at < own+contextSize {
			continue
		}
		if found, is := contextAt(mem, at, in.SP(), end); is {
			if ok {
				return l, false // there are two
			}
			l, ok = found, true
		}
	}
	if !ok {
		return l, false
	}
	there, ok := mem.ReadWord(l.fpAt)
	l.kept = l.fpAt == saved || ok && there != out.FP()
	l.left = out.PC() != ra && wordIs(mem, l.pcAt, l.pc) && (l.pcAt == end-8 || out.PC() != l.pc)
	l.frames = framesLeft(w, in, end)
	return l, ok
}

// contextAt reads the context at an address, of a frame that is above end, by
// an unwinder whose frame begins at lo.
func contextAt(mem procstate.Memory, at, lo, end uint64) (l landing, ok bool) {
	flags, ok := mem.ReadWord(at + contextFlags)
	if !ok || flags&^contextSignal != contextExtended {
		return l, false
	}
	if l.sp, ok = mem.ReadWord(at + contextCFA); !ok || l.sp < end || l.sp%8 != 0 {
		return l, false
	}
	for _, reg := range []uint64{3, 6, 12, 13, 14, 15} { // RBX, RBP, R12 to R15
		place, ok := mem.ReadWord(at + contextRegs + 8*reg)
		if !ok || place < lo || place >= l.sp || place%8 != 0 {
			return l, false
		}
		if reg == uint64(procstate.AMD64.FP) {
			l.fpAt = place
		}
	}
	if values, ok := mem.ReadWord(at + contextValues); !ok || values>>(8*procstate.AMD64.FP)&0xff != 0 {
		return l, false
	}
	if l.pc, ok = mem.ReadWord(at + contextRA); !ok {
		return l, false
	}
	l.pcAt, ok = mem.ReadWord(at + contextReturn)
	return l, ok
}

// fpOf is where a context has the place of the frame pointer.
func fpOf(context uint64) uint64 { return context + contextRegs + 8*uint64(procstate.AMD64.FP) }

func wordIs(mem procstate.Memory, at, want uint64) bool {
	v, ok := mem.ReadWord(at)
	return ok && v == want
}

// framesLeft returns how many frames an unwinder leaves, in whose frame in the
// code is, the end of which is cfa; 0 when it is not told. Where the processor has
// a shadow stack that is to be set right, and the count is kept for that:
//
//	rdsspq %rax
//	test   %rax,%rax
//	je     ...
//	mov    -0x1c0(%rbp),%rax
func framesLeft(w *unwind.Walker, in *unwind.Frame, cfa uint64) int {
	const before, after = 0x80, 0x60
	var code [before + after]byte
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || m.Image.ReadVaddr(code[:], in.PC()-before-m.Bias) != nil {
		return 0
	}
	found := int32(0)
	for i := range len(code) - 20 {
		if disp, ok := shadowCount(code[i:]); ok {
			if found != 0 {
				return 0
			}
			found = disp
		}
	}
	if found >= 0 {
		return 0
	}
	n, ok := w.ProcessState().ReadWord(cfa - 16 + uint64(int64(found)))
	if !ok || n > maxLeftOut {
		return 0
	}
	return int(n)
}

// shadowCount returns the place, from RBP, of the number that is added to
// the pointer of the shadow stack by the code that begins here.
func shadowCount(code []byte) (disp int32, ok bool) {
	rd, test, je, mov := code[:5], code[5:8], code[8:10], code[10:]
	if rd[0] != 0xf3 || rd[1]&^1 != 0x48 || rd[2] != 0x0f || rd[3] != 0x1e || rd[4]&^7 != 0xc8 {
		return 0, false
	}
	if test[0]&^5 != 0x48 || test[1] != 0x85 || je[0] != 0x74 || mov[0] != 0x48 || mov[1] != 0x8b {
		return 0, false
	}
	switch mov[2] &^ 0x38 {
	case 0x45:
		return int32(int8(mov[3])), true
	case 0x85:
		return int32(binary.LittleEndian.Uint32(mov[3:])), true
	}
	return 0, false
}

// framePointer finds the frame pointer of f, the n-th frame that is left: the only
// value with which the stepper s gets from there to the landing.
func (l *landing) framePointer(w *unwind.Walker, s resumer, f *unwind.Frame, n int) (fp uint64, ok bool) {
	if l.sp-f.SP() > maxLeftOut {
		return 0, false
	}
	steps := maxTried
	for at := f.SP(); at < l.sp; at += 8 {
		switch l.reached(w, s, f, at, n, &steps) {
		case leads:
			if ok {
				return 0, false
			}
			fp, ok = at, true
		case mayLead:
			return 0, false
		}
	}
	return fp, ok
}

// Whether frames lead to the landing.
const (
	strays = iota
	leads
	mayLead
)

// reached reports whether f, the n-th frame that is left, leads to the landing if
// its frame pointer is fp. It takes from steps those that it needs.
func (l *landing) reached(w *unwind.Walker, s resumer, f *unwind.Frame, fp uint64, n int, steps *int) int {
	frame, next := *f, unwind.Frame{}
	frame.SetFP(w.Arch(), fp)
	var code [mcode.MaxCallLen]byte
	for ; l.frames == 0 || n < l.frames; n++ {
		if *steps--; *steps < 0 {
			return mayLead
		}
		if v, _ := s.CallerFrame(w, &frame, &next); v != unwind.Success {
			if m := w.MappingAt(frame.LookupPC()); m != nil && (m.Image == nil || !s.hasRule(m, frame.LookupPC())) {
				return mayLead
			}
			return strays
		}
		switch {
		case next.Flags&unwind.Interrupted != 0:
			return mayLead // a signal has come between
		case next.SP() <= frame.SP() || next.SP() > l.sp:
			return strays
		case !behindCall(w, code[:], next.PC()):
			if m := w.MappingAt(next.PC()); m != nil && m.Image == nil {
				return mayLead
			}
			return strays
		case next.SP() == l.sp:
			if next.FPLocation == unwind.InMemory(l.fpAt) && (l.frames == 0 || n+1 == l.frames) {
				return leads
			}
			return strays
		}
		frame, next = next, unwind.Frame{}
	}
	return strays
}
