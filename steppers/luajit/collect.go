package luajit

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Limits on what is copied of a process's stacks of Lua, and on what is looked at for that.
const (
	maxCopied = 16 << 20  // bytes
	maxLooked = 256 << 10 // bytes of a stack of C
	maxLooks  = 1 << 14   // at words of it
)

// Lacked returns where LuaJIT has the stack of what a thread runs, if the last walk has come to it and the capture
// had not copied it. There is room for two: that of the lua_State that runs, and that of the main thread, which mostly
// has resumed it.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.image == nil || vm.LastFound().Walk != w.Walks() || !vm.lacks {
		return frames, false
	}
	g := vm.globalAt(vm.lacked.global)
	if g == nil {
		return frames, true
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	const (
		piece    = 16<<10 - 128 // bytes that are copied of a stack at most
		nowhere  = 8            // where in a lua_State is a word that leads nowhere
		slots    = 88           // and how many there are on its stack (32 bits)
		slotSize = 8
	)
	current := g.at + vm.current
	frames = procstate.ThreadFrames{
		Current: current, Before: int(current - g.main), After: int(vm.jitBase - vm.current),
		Low: ljStack, High: ljMaxStack, IsDown: true, Head: ljStateBytes,
	}
	var b [ljStateBytes]byte
	runs, ok := vm.WordNow(current)
	if !ok || !vm.ReadNow(runs, b[:]) {
		return frames, true
	}
	le := binary.LittleEndian
	stack, top, end := le.Uint64(b[ljStack:]), le.Uint64(b[ljTop:]), le.Uint64(b[ljMaxStack:])
	switch {
	case top-stack > piece: // what runs is more important than what has called it
		frames.High, frames.IsDown = ljTop, false
	case end-stack <= piece || runs == g.main:
		frames.Bounds, frames.IsFrame, frames.Previous = g.main, true, nowhere
		frames.Entry, frames.Last, frames.Bytes, frames.Head = slotSize, slots, ljStateBytes, 0
	}
	return frames, true
}

// Knows reports whether walks of a Walker have met LuaJIT.
func (s *Stepper) Knows(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*machine)
	return vm != nil && vm.image != nil
}

// Collector returns a Collector of what walks need of LuaJIT; nil where none of the libraries of the process has
// it.
func Collector(libs procstate.LibraryState) procstate.Collector {
	s := New(nil)
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.code.End != 0 {
			c := &collector{imageInfo: p, seen: map[uint64]bool{}, left: maxCopied}
			return c.collect
		}
	}
	return nil
}

type collector struct {
	*imageInfo
	seen map[uint64]bool // what words lead to, be it a lua_State or not
	left int
}

// collect is the Collector: frames of the interpreter on the stack of C have the address of a lua_State.
func (c *collector) collect(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	read := vmread.Reader(func(addr uint64, buf []byte) bool { return vmread.ReadAll(m, addr, buf) })
	if dispatch, ok := regs.Value(c.arch.dispatch); ok && dispatch%8 == 0 {
		c.global(read, dispatch-c.dispatch, add)
	}
	var b [4 << 10]byte
	sp := regs.Raw(c.arch.SP) &^ 7
	looks := maxLooks
	for n := uint64(0); n < maxLooked; {
		part := b[:uint64(len(b))-(sp+n)%uint64(len(b))]
		if !read(sp+n, part) {
			return
		}
		n += uint64(len(part))
		for ; len(part) >= 8; part = part[8:] {
			word := binary.LittleEndian.Uint64(part)
			if word%8 != 0 || word < 1<<16 || word >= 1<<47 || c.seen[word] {
				continue
			}
			if looks--; looks < 0 {
				return
			}
			c.seen[word] = true
			c.state(read, word, add)
		}
	}
}

// state adds a lua_State, if it is one.
func (c *collector) state(read vmread.Reader, at uint64, add func(addr uint64, n int)) {
	var b [ljStateBytes]byte
	if !read(at, b[:]) || b[ljKind] != ljStateKind {
		return
	}
	le := binary.LittleEndian
	global := le.Uint64(b[ljGlobal:])
	if _, ok := findMain(read, global); !ok {
		return
	}
	stack, end := le.Uint64(b[ljStack:]), le.Uint64(b[ljMaxStack:])
	if end <= stack || end-stack > maxStack || end-stack > uint64(c.left) {
		return
	}
	c.left -= int(end - stack)
	add(at, len(b))
	add(stack, int(end-stack)+slack)
	c.global(read, global, add)
}

// global adds what there is to know of a global_State, if it is one, and the lua_State that runs.
func (c *collector) global(read vmread.Reader, at uint64, add func(addr uint64, n int)) {
	if c.seen[at] {
		return
	}
	c.seen[at] = true
	if _, ok := findMain(read, at); !ok {
		return
	}
	add(at+c.current, int(c.jitBase-c.current)+8)
	if state, ok := read.Word(at + c.current); ok && !c.seen[state] {
		c.seen[state] = true
		c.state(read, state, add)
	}
}
