package bash

import (
	"encoding/binary"
	"math/bits"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Lacked returns where bash keeps the calls of functions, if the last walk has met it and the capture had not copied them.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.walk != w.Walks() || !vm.isBash || !vm.lacks {
		return frames, false
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	// The name is copied as if it were a stack of entries of 4 bytes, of which there are 2 more than the flags say, which are 4 to 7 of a
	// function: no more than is allocated for it, but for 7, so that no other VAR_CONTEXT begins in there.
	return procstate.ThreadFrames{
		Current: vm.variables + vm.bias, IsFrame: true, Previous: contextDown, Bytes: contextBytes,
		Low: contextName, Entry: 4, Last: contextFlags,
	}, true
}

// Knows reports whether walks of a Walker have met bash.
func (s *Stepper) Knows(w *unwind.Walker) bool { return w.Kept(s) != nil }

// Collector returns a Collector of what walks need of bash; nil where none of the libraries of the process is one.
func Collector(libs procstate.LibraryState) procstate.Collector {
	if libs == nil {
		return nil
	}
	s := New(nil)
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.arch != nil {
			return (&collector{image: p, bias: lib.Bias}).collect
		}
	}
	return nil
}

type collector struct {
	*image
	bias uint64
	done bool
	pace vmread.Pace
}

// How much of a stack is looked through for addresses of commands, in bytes, and how many of these are read.
const (
	stackBytes  = 256 << 10
	maxCommands = 1 << 12
)

// collect is the Collector: what is read here is copied.
func (c *collector) collect(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	if c.done {
		return
	}
	c.done = true
	b := &books{image: c.image, bias: c.bias, read: func(addr uint64, buf []byte) bool {
		ok := c.pace.May(len(buf)) && vmread.ReadAll(m, addr, buf)
		if ok {
			add(addr, len(buf))
		}
		return ok
	}}
	if _, ok := b.begin(); !ok {
		return
	}
	at, _ := b.wordAt(b.variables + b.bias)
	for range maxCalls {
		is, ok := b.context(at)
		if !ok {
			break
		}
		if is.isFunction {
			b.text(nil, is.name, maxName)
		}
		at = is.down
	}
	b.entries(nil)
	b.commands(m, regs)
}

// commands reads the commands to which a word on the stack or a register leads.
func (b *books) commands(m procstate.Memory, regs *procstate.Regs) {
	sp, seen := regs.Raw(b.arch.SP), map[uint64]bool{}
	take := func(v uint64) {
		const align, least, end = 16, 4 << 20, 1 << 47 // of what malloc returns in a program for x86-64
		if v%align != 0 || v-least >= end-least || v-sp < stackBytes || len(seen) >= maxCommands || seen[v] {
			return
		}
		seen[v] = true
		b.line(v)
	}
	for saved := b.arch.CalleeSaved &^ (1 << b.arch.SP); saved != 0; saved &= saved - 1 {
		take(regs.Raw(procstate.Reg(bits.TrailingZeros64(saved))))
	}
	stack := make([]byte, stackBytes)
	n := procstate.ReadPart(m, sp, stack)
	for s := stack[:n&^7]; len(s) > 0; s = s[8:] {
		take(binary.LittleEndian.Uint64(s))
	}
}
