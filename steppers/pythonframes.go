package steppers

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Lacked returns where the interpreter keeps the frames of a thread, if the last walk has
// met the interpreter and the capture had not copied them, or not those that are in no stack, as
// those of generators. It is the zero value when that cannot be found out yet.
func (s *Python) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*pythonVM)
	if vm == nil || vm.walk != w.Walks() || !vm.lacks && !vm.lacksFrame {
		return frames, false
	}
	follows, ask := vm.asked.ask(tid, vm.lacks, vm.lacksFrame)
	if !ask {
		return frames, vm.lacks
	}
	f, id := vm.fields, vm.threadPointer
	if !f.isObject {
		id = uint64(procstate.ThreadInNamespace(tid))
	}
	for {
		for _, t := range vm.threads {
			if t.id != id {
				continue
			}
			frames = procstate.ThreadFrames{Current: t.addr + f.current, IsFrame: !f.hasCFrame, First: int(f.cFrame), Previous: int(f.previous)}
			if !f.isObject {
				frames.Bounds, frames.High = t.addr+f.chunk, int(f.top-f.chunk)
			}
			if follows || f.isObject {
				frames.Bytes = f.frameBytes()
			}
			return frames, true
		}
		if !vm.list() {
			return frames, true
		}
	}
}

// Knows reports whether walks of a Walker have met the interpreter.
func (s *Python) Knows(w *unwind.Walker) bool { return w.Kept(s) != nil }

// Limits on what is copied of a process's threads.
const (
	maxPythonStack  = 1 << 20 // bytes, of a thread
	maxPythonStacks = 32 << 20
	maxPythonChunks = 64      // of a stack
	maxPythonOthers = 1 << 12 // frames that are in no stack
	maxPythonLooks  = 1 << 16 // at frames and pieces of stacks
)

// PythonCollector returns a Collector of what walks need of the interpreter, of all threads at
// once; nil where none of the libraries of the process is one.
func PythonCollector(libs procstate.LibraryState) procstate.Collector {
	fields, runtime := pythonOf(libs)
	if fields == nil {
		return nil
	}
	c := &pythonCollector{fields: fields, runtime: runtime}
	return c.collect
}

// pythonOf returns the fields of the interpreter that is among some libraries, and where its _PyRuntime is; nil where
// none is one.
func pythonOf(libs procstate.LibraryState) (fields *pythonFields, runtime uint64) {
	s := NewPython(nil)
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.fields != nil {
			return p.fields, p.runtime + lib.Bias
		}
	}
	return nil, 0
}

type pythonCollector struct {
	fields  *pythonFields
	runtime uint64
	done    bool
}

// collect is the Collector.
func (c *pythonCollector) collect(m procstate.Memory, _ procstate.ThreadID, _ *procstate.Regs, add func(addr uint64, n int)) {
	if c.done {
		return
	}
	c.done = true
	f, left, others, looks := c.fields, maxPythonStacks, maxPythonOthers, maxPythonLooks
	b := make([]byte, f.frameBytes())
	for _, thread := range pythonThreads(f, c.runtime, m.ReadWord) {
		t := thread.addr
		add(t, int(f.threadBytes))
		var chunk, top uint64
		if !f.isObject {
			chunk, _ = m.ReadWord(t + f.chunk)
			top, _ = m.ReadWord(t + f.top)
		}
		var stacks []vaddrRange
		for size := uint64(0); chunk != 0 && top-chunk < maxPythonStack && size < maxPythonStack && left > 0 && looks > 0 && len(stacks) < maxPythonChunks; looks-- {
			stacks = append(stacks, vaddrRange{chunk, top})
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
		for n := 0; frame != 0 && n < maxPythonFrames && others > 0 && looks > 0; n, looks = n+1, looks-1 {
			if got, err := m.ReadMemory(frame, b); err != nil || got < len(b) {
				break
			}
			inStack := false
			for _, s := range stacks {
				inStack = inStack || frame-s.start < s.end-s.start
			}
			if !inStack {
				add(frame, len(b))
				others--
			}
			frame = binary.LittleEndian.Uint64(b[f.previous:])
		}
	}
}
