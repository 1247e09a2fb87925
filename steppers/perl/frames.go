package perl

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Limits on what is copied of a process's threads.
const (
	maxCopied = 32 << 20 // bytes
	maxHead   = 4 << 10  // around the word that leads to the contexts
)

// Lacked returns where the interpreter keeps the contexts of a thread, if the last walk has
// met the interpreter and the capture had not copied them.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.walk != w.Walks() || !vm.lacks {
		return frames, false
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	frames = procstate.ThreadFrames{
		Current: vm.head.current, IsFrame: true, Bytes: siBytes, Previous: siPrevious, Low: siContexts,
		Entry: int(vm.fields.contextBytes), Last: siLast,
	}
	op, cop := vm.headAt()
	current := vm.head.current
	first, last := min(op, cop, current), max(op, cop, current)
	if last-first > maxHead {
		return frames, false
	}
	frames.Before, frames.After = int(current-first), int(last-current)
	if interpreter := current - vm.fields.current; vm.isThreaded {
		if from, ok := vmread.BesideThreadPointer(w, vm.ReadNow, interpreter); ok {
			frames.Own, frames.FromThreadPointer = interpreter, from
		}
	}
	return frames, true
}

// Knows reports whether walks of a Walker have met the interpreter.
func (s *Stepper) Knows(w *unwind.Walker) bool { return w.Kept(s) != nil }

// Collector returns a Collector of what walks need of the interpreter; nil where none of
// the libraries of the process is one.
func Collector(libs procstate.LibraryState) procstate.Collector {
	s := New(nil)
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.fields != nil {
			c := &collector{imageInfo: p, bias: lib.Bias, values: valuesOf(libs), seen: map[uint64]bool{}, left: maxCopied}
			return c.collect
		}
	}
	return nil
}

type collector struct {
	*imageInfo
	bias   uint64
	values uint64          // of the first keys of a thread, from its thread pointer on; 0: not known
	seen   map[uint64]bool // interpreters
	left   int
}

// collect is the Collector.
func (c *collector) collect(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	if !c.isThreaded {
		add(c.op+c.bias, 8)
		add(c.curcop+c.bias, 8)
		add(c.current+c.bias, 8)
		c.contexts(m, c.current+c.bias, add)
		return
	}
	main, _ := m.ReadWord(c.main + c.bias)
	of := c.ofThread(m, regs)
	for _, interpreter := range [...]uint64{main, of[0], of[1]} {
		if interpreter == 0 || c.seen[interpreter] {
			continue
		}
		add(interpreter, int(c.fields.current)+8)
		add(interpreter+c.fields.compiling, copBytes)
		c.contexts(m, interpreter+c.fields.current, add)
	}
}

// inPthread is where glibc has the values of the first 32 keys in its struct pthread of x86-64, at which the thread
// pointer points.
const inPthread = 0x310

// valuesOf returns where a thread has the values of its first keys, counted from its thread pointer, by what the C library is.
func valuesOf(libs procstate.LibraryState) uint64 {
	const block = 32 * 16 // of values, right before what is told of
	for _, lib := range procstate.LibrariesOf(libs) {
		switch {
		case lib.Image == nil:
		case lib.Image.Arch() == procstate.AMD64:
			return inPthread
		default: // struct pthread ends where the thread pointer points; glibc tells libthread_db of it
			var size, specific [12]byte // of the second: bits, number, and place in the structure
			at, ok := lib.Image.ExportedSymbol("_thread_db_sizeof_pthread")
			if !ok || lib.Image.ReadVaddr(size[:4], at.Value) != nil {
				continue
			}
			at, ok = lib.Image.ExportedSymbol("_thread_db_pthread_specific")
			if !ok || lib.Image.ReadVaddr(specific[:], at.Value) != nil {
				continue
			}
			le := binary.LittleEndian
			return uint64(le.Uint32(specific[8:])) - block - uint64(le.Uint32(size[:]))
		}
	}
	return 0
}

// ofThread returns what may be the interpreter of a thread: what the C library has under a key, if that
// is glibc, or musl 1.2 of x86-64.
func (c *collector) ofThread(m procstate.Memory, regs *procstate.Regs) (may [2]uint64) {
	const (
		size, most        = 16, 32    // of glibc: of a value, and how many are the first
		pointer, mostMusl = 0x80, 128 // of musl: where the address of a thread's is
	)
	var key [4]byte
	if n, err := m.ReadMemory(c.key+c.bias, key[:]); err != nil || n < len(key) || regs.ThreadPointer == 0 {
		return may
	}
	n := uint64(binary.LittleEndian.Uint32(key[:]))
	if n < most && c.values != 0 {
		may[0], _ = m.ReadWord(regs.ThreadPointer + c.values + size*n + 8)
	}
	if list, _ := m.ReadWord(regs.ThreadPointer + pointer); list != 0 && n < mostMusl && c.values == inPthread {
		may[1], _ = m.ReadWord(list + 8*n)
	}
	return may
}

// contexts adds the PERL_SI of an interpreter and what they have.
func (c *collector) contexts(m procstate.Memory, current uint64, add func(addr uint64, n int)) {
	if c.seen[current] || len(c.seen) >= maxThreads {
		return
	}
	c.seen[current] = true
	var info [siBytes]byte
	le := binary.LittleEndian
	si, _ := m.ReadWord(current)
	for n := 0; si != 0 && n < maxInfos && c.left > 0; n++ {
		if got, err := m.ReadMemory(si, info[:]); err != nil || got < len(info) {
			return
		}
		add(si, len(info))
		last := int(int32(le.Uint32(info[siLast:])))
		if last < -1 || last >= maxContexts {
			return
		}
		bytes := (last + 2) * int(c.fields.contextBytes) // with one that has ended
		add(le.Uint64(info[siContexts:]), bytes)
		c.left -= bytes + len(info)
		si = le.Uint64(info[siPrevious:])
	}
}
