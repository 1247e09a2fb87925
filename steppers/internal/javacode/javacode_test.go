package javacode

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Frames of the interpreter are told apart by where their words are: those of JDK 8 have one less.
func TestSenderSP(t *testing.T) {
	const fp, sp, sender = 0x7080, 0x7000, 0x70b0
	for _, words := range []*Frame{Frame9(procstate.AMD64), &Frame8} {
		stack := make([]uint64, 0x100/8)
		word := func(addr uint64) *uint64 { return &stack[(addr-sp)/8] }
		*word(fp - SenderWord), *word(fp - words.Locals), *word(fp - words.Bytecode), *word(fp - words.InitialSP) = sender, sender-8, 0x7f0000001234, fp-words.InitialSP
		w := unwind.NewWalker(steptest.MadeUp(procstate.AMD64, steptest.NoMapping, stack...), unwind.NewGroup(), nil)
		if got, is, ok := SenderSP(w, sp, fp); !ok || got != sender || is != words {
			t.Errorf("%+v: caller's SP %#x of %+v, %v", words, got, is, ok)
		}
		if _, _, ok := SenderSP(w, fp-words.InitialSP+8, fp); ok {
			t.Errorf("%+v: one that is too short", words)
		}
		for noted, want := range map[uint64]uint64{fp + 16: fp + 16, fp + 8: fp + 16, fp: 0} { // an argument may have been taken off
			*word(fp - SenderWord) = noted
			w := unwind.NewWalker(steptest.MadeUp(procstate.AMD64, steptest.NoMapping, stack...), unwind.NewGroup(), nil)
			if got, _, ok := SenderSP(w, sp, fp); ok != (want != 0) || got != want {
				t.Errorf("noted %#x: caller's SP %#x, %v", noted, got, ok)
			}
		}
	}
}

// On AArch64 the caller's SP may be beneath the frame where that is interpreted, and the walk goes on above it.
func TestSenderSPARM64(t *testing.T) {
	const fp, sp = 0x7080, 0x7000
	words := Frame9(procstate.ARM64)
	for noted, want := range map[uint64]uint64{0x70b0: 0x70b0, 0x7090: 0x7090, 0x7020: 0x7090, 0x7028: 0} {
		stack := make([]uint64, 0x100/8)
		word := func(addr uint64) *uint64 { return &stack[(addr-sp)/8] }
		*word(fp - SenderWord), *word(fp - words.Locals), *word(fp - words.InitialSP) = noted, fp+16, fp-words.InitialSP
		w := unwind.NewWalker(steptest.MadeUp(procstate.ARM64, steptest.NoMapping, stack...), unwind.NewGroup(), nil)
		if got, is, ok := SenderSP(w, sp, fp); ok != (want != 0) || got != want || ok && is != words {
			t.Errorf("noted %#x: caller's SP %#x of %+v, %v", noted, got, is, ok)
		}
	}
}
