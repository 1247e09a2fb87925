package python

import (
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// Lock is the lock that a thread has while it runs functions of an interpreter of CPython (the GIL).
type Lock struct {
	Start, End uint64   // its memory
	Holder     ThreadID // the thread that has it
}

// ThreadID is a thread as CPython knows it: by the number that the process has for it from 3.11 on, else by what
// pthread_self returns. The zero value is none.
type ThreadID struct{ Number, Pthread uint64 }

// Is reports whether it is the thread with a number in the process and a thread pointer.
func (id ThreadID) Is(a *procstate.Arch, number, pointer uint64) bool {
	return id.Number != 0 && id.Number == number || id.Pthread != 0 && isPthread(a, id.Pthread, pointer)
}

// threadID is that of a thread.
func (f *layout) threadID(id uint64) ThreadID {
	if f.isObject {
		return ThreadID{Pthread: id}
	}
	return ThreadID{Number: id}
}

// Locks reads those of a process.
type Locks struct {
	fields  *layout
	runtime uint64
}

// NewLocks makes a Locks of a process with some libraries; nil where none is CPython.
func NewLocks(libs procstate.LibraryState) *Locks {
	p, lib := of(libs)
	if p == nil {
		return nil
	}
	return &Locks{p.fields, p.runtime + lib.Bias}
}

// Read reads the locks of all interpreters, of a process that stands still or a copy of it; none where there are
// none, as mostly in a build without.
func (p *Locks) Read(mem procstate.Memory) (locks []Lock) {
	// struct _gil_runtime_state (pycore_gil.h): how long another thread waits before it asks for the lock, in
	// microseconds, who had it last, whether somebody has it, and what is waited for.
	const (
		atHolder, atLocked, size, maxWait = 8, 16, 256, 1 << 32
		locked                            = 1
	)
	f := p.fields
	threads := listThreads(f, p.runtime, mem.ReadWord)
	for _, at := range p.addresses(mem) {
		if f.isFree {
			// It is preceded by whether it is there, as it is for modules that need it.
			var enabled [4]byte
			if n, err := mem.ReadMemory(at, enabled[:]); err != nil || n < len(enabled) || enabled == [4]byte{} {
				continue
			}
			at += 8
		}
		var b [24]byte
		if n, err := mem.ReadMemory(at, b[:]); err != nil || n < len(b) {
			continue
		}
		wait, last := binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[atHolder:])
		i := slices.IndexFunc(threads, func(t threadState) bool { return t.addr == last })
		switch state := binary.LittleEndian.Uint32(b[atLocked:]); {
		case wait == 0 || wait >= maxWait || state > locked:
			continue // it is something else
		case state == locked && i >= 0:
			locks = append(locks, Lock{at, at + size, f.threadID(threads[i].id)})
		default:
			locks = append(locks, Lock{Start: at, End: at + size})
		}
	}
	return locks
}

// maxLocks bounds the locks of a process, one for each interpreter at most.
const maxLocks = 256

// addresses returns where the locks are, each once.
func (p *Locks) addresses(mem procstate.Memory) (all []uint64) {
	f := p.fields
	if f.gil != 0 {
		return []uint64{p.runtime + f.gil} // one for all interpreters
	}
	refersTo := f.gilOf
	if f.gilTold != 0 {
		refersTo, _ = mem.ReadWord(p.runtime + f.gilTold)
	}
	eachInterpreter(f, p.runtime, mem.ReadWord, func(interpreter uint64) {
		if at, ok := mem.ReadWord(interpreter + refersTo); ok && at != 0 && len(all) < maxLocks && !slices.Contains(all, at) {
			all = append(all, at)
		}
	})
	return all
}
