package steppers

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Guile walks from code that Guile 3 has made for x86-64 to the function of libguile that runs it. That code
// has neither CFI nor a frame pointer, and keeps what it calls in Scheme on another stack: all of it runs in the
// frame of the code by which it is entered, which has jumped there. What is found as its return address has to be
// behind a call by way of a variable, and that to lead to such code in what was made.
type Guile struct {
	calls mcode.VaddrCache // whether a return address is behind a call of made code
	mem   vmread.Memory    // of the walk: that nothing is there in a copy is no miss, as nearly all made code is other
	buf   [max(len(guileEntry), mcode.MaxCallLen)]byte
}

// NewGuile makes a Guile.
func NewGuile() *Guile { return &Guile{} }

// guileEntry is how the code begins by which other is entered (jit_enter_jit_abi in libguile/lightening).
const guileEntry = "" +
	"\x48\x83\xec\x18" + //     sub $24, %rsp
	"\x48\x89\x1c\x24" + //     mov %rbx, (%rsp)
	"\x4c\x89\x64\x24\x08" + // mov %r12, 8(%rsp)
	"\x4c\x89\x6c\x24\x10" //   mov %r13, 16(%rsp)

const (
	guileFrame = 24  // bytes below the return address
	guileExit  = 128 // within which from guileEntry on the code is by which it is left
)

var guileSaved = [...]procstate.Reg{3, 12, 13} // RBX, R12, R13, from SP on

// guileProcess is what is kept of a process.
type guileProcess struct {
	ra    uint64 // behind the call that enters made code
	entry uint64 // what that calls
}

// Name implements unwind.FrameStepper.
func (s *Guile) Name() string { return "guile" }

// Priority implements unwind.FrameStepper.
func (s *Guile) Priority() unwind.Priority { return unwind.PriorityFrame - 1 }

// CallerFrame implements unwind.FrameStepper.
func (s *Guile) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	a, m := w.Arch(), w.MappingAt(in.LookupPC())
	if a != procstate.AMD64 || m == nil || m.Image != nil {
		return unwind.NotMe, nil
	}
	s.mem = vmread.MemoryOf(w)
	interrupted := in.Flags&unwind.Interrupted != 0
	var found guileCaller
	for _, size := range [...]uint64{guileFrame, guileFrame + 8, guileFrame + 16, 0} {
		ra, ok := s.mem.Word(in.SP() + size)
		if !ok {
			continue
		}
		entry, ok := s.entryBy(w, ra)
		if !ok {
			continue
		}
		c := guileCaller{ra: ra, at: size}
		switch into := in.PC() - entry; {
		case size == guileFrame && (!interrupted || into != 0):
			c.saved = !interrupted || into >= uint64(len(guileEntry))
		case size > guileFrame && interrupted: // it has pushed registers for a moment
			c.saved = true
			// Or was called within made code, which takes the return address off the stack at once.
			if caller, ok := s.mem.Word(in.SP()); ok && s.isCall(caller, in.PC()) {
				c = guileCaller{ra: caller}
			}
		case size == 0 && interrupted && (into == 0 || into < guileExit && s.returns(in.PC())):
		default:
			continue
		}
		if found.ra != 0 {
			return unwind.NotMe, nil // one of them was there before
		}
		found = c
	}
	if found.ra == 0 {
		return unwind.NotMe, nil
	}
	at := in.SP() + found.at
	out.Regs.Inherit(&in.Regs, a.CalleeSaved)
	for i, reg := range guileSaved {
		if !found.saved {
			break
		}
		if v, ok := s.mem.Word(at - guileFrame + uint64(8*i)); ok {
			out.Regs.Set(reg, v)
		}
	}
	out.SetPC(a, found.ra)
	out.SetSP(a, at+8)
	out.SetFP(a, in.FP())
	out.PCLocation, out.FPLocation = unwind.InMemory(at), in.FPLocation
	return unwind.Success, nil
}

// guileCaller is a return address that was found.
type guileCaller struct {
	ra    uint64
	at    uint64 // from SP
	saved bool   // registers are below it
}

// entryBy returns the address of the code that the call before a return address enters, if it is guileEntry.
func (s *Guile) entryBy(w *unwind.Walker, ra uint64) (entry uint64, ok bool) {
	const other, enters = 1, 2
	m := w.MappingAt(ra - 1)
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return 0, false
	}
	fact, known := s.calls.Get(m.Image, ra-m.Bias)
	if known && fact == other {
		return 0, false
	}
	if p, _ := w.Kept(s).(guileProcess); known && p.ra == ra {
		return p.entry, true
	}
	entry, ok, known = s.readEntry(w, m, ra)
	switch {
	case ok:
		s.calls.Put(m.Image, ra-m.Bias, enters)
		w.Keep(s, guileProcess{ra, entry})
	case known:
		s.calls.Put(m.Image, ra-m.Bias, other)
	}
	return entry, ok
}

// readEntry is entryBy by what is read now; known is false where that cannot be.
func (s *Guile) readEntry(w *unwind.Walker, m *procstate.Mapping, ra uint64) (entry uint64, ok, known bool) {
	const callLen = 6 // call *d(%rip)
	code := s.buf[:callLen]
	if m.Image.ReadVaddr(code, ra-m.Bias-callLen) != nil || code[0] != 0xff || code[1] != 0x15 {
		return 0, false, true
	}
	entry, ok = s.mem.WordNow(ra + uint64(int64(int32(binary.LittleEndian.Uint32(code[2:])))))
	if !ok {
		return 0, false, false
	}
	if to := w.MappingAt(entry); to == nil || to.Image != nil {
		return 0, false, true
	}
	code = s.buf[:len(guileEntry)]
	if !s.mem.ReadNow(entry, code) {
		return 0, false, false
	}
	return entry, string(code) == guileEntry, true
}

// returns reports whether a return is at an address.
func (s *Guile) returns(pc uint64) bool {
	return s.mem.ReadNow(pc, s.buf[:1]) && isReturn(s.buf[:1])
}

// isCall reports whether a call of an address stands before a return address.
func (s *Guile) isCall(ra, of uint64) bool {
	code := s.buf[:mcode.MaxCallLen]
	if !s.mem.ReadNow(ra-uint64(len(code)), code) {
		return false
	}
	target, direct, _ := mcode.CallBefore(procstate.AMD64, code, ra)
	return direct && target == of
}
