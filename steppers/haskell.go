package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Haskell walks from code that GHC has made for x86-64 to the function of the runtime that
// runs it. That code has a stack of its own, another register than SP for it, no CFI and no
// returns: all of it runs in the frame of the runtime's StgRun, which has jumped there, with SP as
// it was then, or a word lower around calls of C. Where StgRun's return address is in that
// frame is the same in all versions since GHC 7; what is there has to be behind a direct call
// of StgRun, which is known by its code. The zero value is that of NewHaskell.
type Haskell struct {
	calls mcode.VaddrCache // whether a return address is behind a call of StgRun
	mem   vmread.Memory    // of the walk: that nothing is there in a copy is no miss, as nearly all code is other
	buf   [len(stgRun)]byte
}

// NewHaskell makes a Haskell.
func NewHaskell() *Haskell { return &Haskell{} }

// stgRun is how StgRun begins.
const stgRun = "" +
	"\x48\x83\xec\x30" + //             sub  $48, %rsp
	"\x48\x89\xe0" + //                 mov  %rsp, %rax
	"\x48\x81\xec\x00\x40\x00\x00" + // sub  $16384, %rsp
	"\x48\x89\x18" + //                 mov  %rbx, (%rax)
	"\x48\x89\x68\x08" + //             mov  %rbp, 8(%rax)
	"\x4c\x89\x60\x10" + //             mov  %r12, 16(%rax)
	"\x4c\x89\x68\x18" + //             mov  %r13, 24(%rax)
	"\x4c\x89\x70\x20" + //             mov  %r14, 32(%rax)
	"\x4c\x89\x78\x28" //               mov  %r15, 40(%rax)

// stgRunSaved is where StgRun saves registers, in bytes from SP, and stgRunRegs are those.
const stgRunSaved = 16384

var stgRunRegs = [...]procstate.Reg{3, 6, 12, 13, 14, 15} // RBX, RBP, R12 to R15

// Name implements unwind.FrameStepper.
func (s *Haskell) Name() string { return "haskell" }

// Priority implements unwind.FrameStepper.
func (s *Haskell) Priority() unwind.Priority { return unwind.PriorityFrame - 1 }

// CallerFrame implements unwind.FrameStepper.
func (s *Haskell) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	a := w.Arch()
	if a != procstate.AMD64 || w.MappingAt(in.LookupPC()) == nil {
		return unwind.NotMe, nil
	}
	s.mem = vmread.MemoryOf(w)
	var saved, ra uint64
	for _, lower := range [...]uint64{0, 8} {
		at := in.SP() + lower + stgRunSaved
		word, ok := s.mem.Word(at + uint64(8*len(stgRunRegs)))
		switch {
		case !ok || !s.isRun(w, word):
		case saved != 0:
			return unwind.NotMe, nil // one of them was there before
		default:
			saved, ra = at, word
		}
	}
	if saved == 0 {
		return unwind.NotMe, nil
	}
	for i, reg := range stgRunRegs {
		if v, ok := s.mem.Word(saved + uint64(8*i)); ok {
			out.Regs.Set(reg, v)
		}
	}
	at := saved + uint64(8*len(stgRunRegs))
	out.SetPC(a, ra)
	out.SetSP(a, at+8)
	out.PCLocation, out.FPLocation = unwind.InMemory(at), unwind.InMemory(saved+8)
	return unwind.Success, nil
}

// isRun reports whether a return address is behind a direct call of StgRun.
func (s *Haskell) isRun(w *unwind.Walker, ra uint64) bool {
	const other, run = 1, 2
	m := w.MappingAt(ra - 1)
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return false
	}
	vaddr := ra - m.Bias
	fact, ok := s.calls.Get(m.Image, vaddr)
	if !ok {
		fact = other
		code := s.buf[:mcode.MaxCallLen]
		if m.Image.ReadVaddr(code, vaddr-mcode.MaxCallLen) == nil {
			target, direct, _ := mcode.CallBefore(w.Arch(), code, vaddr)
			if direct && m.Image.ReadVaddr(s.buf[:], target) == nil && string(s.buf[:]) == stgRun {
				fact = run
			}
		}
		s.calls.Put(m.Image, vaddr, fact)
	}
	return fact == run
}
