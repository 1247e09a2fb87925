package steppers

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Lacked returns where Scheme has the stack of a thread, if the last walk has come to it and the capture had
// not copied it.
func (s *Chez) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*chezVM)
	if vm == nil || vm.runtime == nil || vm.found != w.Walks() || !vm.lacks || vm.thread == 0 {
		return frames, false
	}
	if !vm.context.find(vm.readNow, vm.thread) {
		return frames, true
	}
	if _, ask := vm.asked.ask(tid, true, false); !ask {
		return frames, true
	}
	l := &vm.context
	// What Scheme has not yet written to is in no page, and nothing is copied for that: reading makes one.
	start, ok1 := vm.wordNow(vm.thread + l.start)
	end, ok2 := vm.wordNow(vm.thread + l.end)
	if ok1 && ok2 && end > start {
		vm.readNow(start, make([]byte, min(end-start, maxChezTouched)))
	}
	return procstate.ThreadFrames{
		Current: vm.thread + l.frame, Before: int(l.frame), After: int(l.link - l.frame),
		Bounds: vm.thread, Low: int(l.start), High: int(l.end), IsDown: true, // what runs is not far from where it begins
	}, true
}

// ChezCollector returns a Collector of what walks need of Scheme; nil where none of the libraries of the process has
// its runtime.
func ChezCollector(libs procstate.LibraryState) procstate.Collector {
	s := NewChez()
	if vm := s.find(libs, nil); vm.runtime == nil {
		return nil
	}
	var layout chezContextLayout
	var pace readPace
	return func(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
		read := reader(func(addr uint64, buf []byte) bool { return pace.may(len(buf)) && readAll(m, addr, buf) })
		collectChez(read, &layout, regs, add)
	}
}

// collectChez adds the context of a thread and its stack. In functions of C the context is what is more than once on
// their stack.
func collectChez(read reader, layout *chezContextLayout, regs *procstate.Regs, add func(addr uint64, n int)) {
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
		now := chezContextLayout{}
		if !now.find(read, context) || layout.frame != 0 && now != *layout {
			continue
		}
		*layout = now
		add(context, chezContextBytes)
		start, ok1 := read.word(context + now.start)
		end, ok2 := read.word(context + now.end)
		if ok1 && ok2 && end > start {
			add(start, int(min(end-start, maxChezSegments)))
		}
		link, _ := read.word(context + now.link)
		for left, n := uint64(maxChezSegments), 0; n < maxChezLinks; n++ {
			k, ok := readChez(read, link)
			if !ok || k.size > left {
				return
			}
			if add(link, chezContinuationBytes); k.isNone() {
				return
			}
			add(k.stack, int(k.size))
			left -= k.size
			link = k.link
		}
		return
	}
}
