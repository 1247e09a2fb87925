package chez

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Lacked returns where Scheme has the stack of a thread, if the last walk has come to it and the capture had
// not copied it.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.runtime == nil || vm.Walk != w.Walks() || !vm.lacks || vm.thread == 0 {
		return frames, false
	}
	if !vm.context.find(vm.ReadNow, vm.thread) {
		return frames, true
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	l := &vm.context
	// What Scheme has not yet written to is in no page, and nothing is copied for that: reading makes one.
	start, ok1 := vm.WordNow(vm.thread + l.start)
	end, ok2 := vm.WordNow(vm.thread + l.end)
	if ok1 && ok2 && end > start {
		vm.ReadNow(start, make([]byte, min(end-start, maxTouched)))
	}
	return procstate.ThreadFrames{
		Current: vm.thread + l.frame, Before: int(l.frame), After: int(l.link - l.frame),
		Bounds: vm.thread, Low: int(l.start), High: int(l.end), IsDown: true, // what runs is not far from where it begins
	}, true
}

// Collector returns a Collector of what walks need of Scheme; nil where none of the libraries of the process has
// its runtime.
func Collector(libs procstate.LibraryState) procstate.Collector {
	s := New()
	if vm := s.find(libs, nil); vm.runtime == nil {
		return nil
	}
	var layout contextLayout
	var pace vmread.Pace
	return func(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
		read := vmread.Reader(func(addr uint64, buf []byte) bool { return pace.May(len(buf)) && vmread.ReadAll(m, addr, buf) })
		collect(read, &layout, regs, add)
	}
}

// collect adds the context of a thread and its stack. In functions of C the context is what is more than once on
// their stack.
func collect(read vmread.Reader, layout *contextLayout, regs *procstate.Regs, add func(addr uint64, n int)) {
	const most = 8 << 10 // bytes of C's stack
	contexts := []uint64{regs.Raw(chezContext)}
	stack := make([]byte, most)
	for len(stack) > 8 && !read(regs.Raw(chezSP), stack) {
		stack = stack[:len(stack)/2]
	}
	seen := map[uint64]int{}
	for ; len(stack) >= 8; stack = stack[8:] {
		const often = 2
		word := binary.LittleEndian.Uint64(stack)
		if seen[word]++; word != 0 && word%8 == 0 && seen[word] == often {
			contexts = append(contexts, word)
		}
	}
	for _, context := range contexts {
		now := contextLayout{}
		if !now.find(read, context) || layout.frame != 0 && now != *layout {
			continue
		}
		*layout = now
		add(context, contextBytes)
		start, ok1 := read.Word(context + now.start)
		end, ok2 := read.Word(context + now.end)
		if ok1 && ok2 && end > start {
			add(start, int(min(end-start, maxSegments)))
		}
		link, _ := read.Word(context + now.link)
		for left, n := uint64(maxSegments), 0; n < maxLinks; n++ {
			k, ok := readChez(read, link)
			if !ok || k.size > left {
				return
			}
			if add(link, continuationBytes); k.isNone() {
				return
			}
			add(k.stack, int(k.size))
			left -= k.size
			link = k.link
		}
		return
	}
}
