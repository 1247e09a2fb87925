package python

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Lacked returns where the interpreter keeps the frames of a thread, if the last walk has
// met the interpreter and the capture had not copied them, or not those that are in no stack, as
// those of generators. It is the zero value when that cannot be found out yet.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.walk != w.Walks() || !vm.lacks && !vm.lacksFrame && !vm.runsOther {
		return frames, false
	}
	follows, ask := vm.asked.Ask(tid, vm.lacks || vm.runsOther, vm.lacksFrame || vm.follows)
	vm.follows = vm.follows || follows
	if !ask {
		return frames, vm.lacks
	}
	f, number := vm.fields, uint64(0)
	if !f.isObject {
		number = uint64(procstate.ThreadInNamespace(tid))
	}
	for {
		threadState, best := vm.own, -1
		for i, t := range vm.threads {
			if f.isObject && !isPthread(w.Arch(), t.id, vm.threadPointer) || !f.isObject && t.id != number {
				continue
			}
			if best < 0 || !vm.isIdle(t) && vm.isIdle(vm.threads[best]) {
				best = i
			}
		}
		isListed := best < 0 && vm.list()
		switch {
		case best >= 0:
			threadState = vm.threads[best].addr
		case isListed:
			continue
		case threadState == 0 && !f.isObject:
			threadState = vm.besideThreadPointer(w)
		}
		t := threadState
		if t == 0 {
			return frames, vm.lacks || vm.lacksFrame
		}
		frames = procstate.ThreadFrames{Current: t + f.current, IsFrame: !f.hasCFrame, First: int(f.cFrame), Previous: int(f.previous)}
		if !f.isObject {
			frames.Bounds, frames.High = t+f.chunk, int(f.top-f.chunk)
		}
		if follows || f.isObject {
			frames.Bytes = f.frameBytes()
		}
		if from, ok := vm.fromThreadPointer(w, t); ok && !f.isObject {
			frames.Own, frames.FromThreadPointer = t, from
		}
		return frames, vm.lacks || vm.lacksFrame
	}
}

// fromThreadPointer looks for a word with the address of a PyThreadState near the thread pointer of the thread that was
// walked, where thread-local variables and values of keys are: from 3.12 on CPython has one there, and to 3.11 a key. A
// word that has it by chance leads to nothing with other threads.
func (vm *machine) fromThreadPointer(w *unwind.Walker, threadState uint64) (from int64, ok bool) {
	if vm.ownFrom == 0 {
		vm.ownFrom, _ = vmread.BesideThreadPointer(w, vm.ReadNow, threadState)
	}
	return vm.ownFrom, vm.ownFrom != 0
}

// besideThreadPointer returns the PyThreadState of the thread that was walked where none has its number, as in a process
// that C has forked, which CPython knows nothing of; 0 where there is none. It looks where fromThreadPointer does.
func (vm *machine) besideThreadPointer(w *unwind.Walker) (threadState uint64) {
	vmread.EachBesideThreadPointer(w, vm.ReadNow, func(_ int64, word uint64) (more bool) {
		for _, t := range vm.threads {
			if t.addr == word && (threadState == 0 || !vm.isIdle(t)) {
				threadState = word
			}
		}
		return true
	})
	return threadState
}

// isIdle reports whether a thread runs nothing in an interpreter, as it is now; it may do so in another.
func (vm *machine) isIdle(t threadState) bool {
	const within = 4 << 10 // the _PyCFrame of a thread that runs nothing is in its PyThreadState
	current, ok := vm.WordNow(t.addr + vm.fields.current)
	return !ok || current == 0 || vm.fields.hasCFrame && current-t.addr < within
}

// Knows reports whether walks of a Walker have met the interpreter.
func (s *Stepper) Knows(w *unwind.Walker) bool { return w.Kept(s) != nil }

// Limits on what is copied of a process's threads.
const (
	maxStack  = 1 << 20 // bytes, of a thread
	maxStacks = 32 << 20
	maxChunks = 64      // of a stack
	maxOthers = 1 << 12 // frames that are in no stack
	maxLooks  = 1 << 16 // at frames and pieces of stacks
)

// Collector returns a Collector of what walks need of the interpreter, of all threads at
// once; nil where none of the libraries of the process is one.
func Collector(libs procstate.LibraryState) procstate.Collector { return newCollector(libs, false) }

// ThreadCollector is Collector for one thread: it takes what is of others only where CPython does not tell which is its own.
func ThreadCollector(libs procstate.LibraryState) procstate.Collector {
	return newCollector(libs, true)
}

func newCollector(libs procstate.LibraryState, one bool) procstate.Collector {
	p, lib := of(libs)
	if p == nil {
		return nil
	}
	c := &collector{fields: p.fields, arch: lib.Image.Arch(), runtime: p.runtime + lib.Bias, one: one}
	return c.collect
}

// of returns the interpreter that is among some libraries, and in which; nil where none is one.
func of(libs procstate.LibraryState) (p *image, lib procstate.Library) {
	s := New(nil)
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.fields != nil {
			return p, lib
		}
	}
	return nil, procstate.Library{}
}

type collector struct {
	fields  *layout
	arch    *procstate.Arch
	runtime uint64
	one     bool // of a thread
	done    bool
}

// own leaves the PyThreadStates of a thread, all where none is known to be one.
func (c *collector) own(threads []threadState, tid procstate.ThreadID, regs *procstate.Regs) []threadState {
	number := uint64(0)
	if !c.fields.isObject {
		number = uint64(procstate.ThreadInNamespace(int(tid)))
	}
	var own []threadState
	for _, t := range threads {
		if c.fields.isObject && isPthread(c.arch, t.id, regs.ThreadPointer) || !c.fields.isObject && t.id == number {
			own = append(own, t)
		}
	}
	if len(own) == 0 {
		return threads
	}
	return own
}

// collect is the Collector.
func (c *collector) collect(m procstate.Memory, tid procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	if c.done {
		return
	}
	c.done = true
	f, left, others, looks := c.fields, maxStacks, maxOthers, maxLooks
	b := make([]byte, f.frameBytes())
	threads := listThreads(f, c.runtime, m.ReadWord)
	if c.one {
		threads = c.own(threads, tid, regs)
	}
	for _, thread := range threads {
		t := thread.addr
		add(t, int(f.threadBytes))
		var chunk, top uint64
		if !f.isObject {
			chunk, _ = m.ReadWord(t + f.chunk)
			top, _ = m.ReadWord(t + f.top)
		}
		var stacks []mcode.Range
		for size := uint64(0); chunk != 0 && top-chunk < maxStack && size < maxStack && left > 0 && looks > 0 && len(stacks) < maxChunks; looks-- {
			stacks = append(stacks, mcode.Range{Start: chunk, End: top})
			add(chunk, int(top-chunk))
			size += top - chunk
			left -= int(top - chunk)
			// A chunk begins with the one before; its top is a number of words of data behind three.
			const chunkTop, chunkHead = 16, 24
			if chunk, _ = m.ReadWord(chunk); chunk != 0 {
				words, _ := m.ReadWord(chunk + chunkTop)
				top = chunk + chunkHead + 8*words
			}
		}
		frame, _ := m.ReadWord(t + f.current)
		if f.hasCFrame {
			frame, _ = m.ReadWord(frame + f.cFrame)
		}
		for n := 0; frame != 0 && n < maxFrames && others > 0 && looks > 0; n, looks = n+1, looks-1 {
			if got, err := m.ReadMemory(frame, b); err != nil || got < len(b) {
				break
			}
			inStack := false
			for _, s := range stacks {
				inStack = inStack || frame-s.Start < s.End-s.Start
			}
			if !inStack {
				add(frame, len(b))
				others--
			}
			frame = binary.LittleEndian.Uint64(b[f.previous:])
		}
	}
}
