package chez

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// stackWord returns a word of Scheme's stack.
func (vm *machine) stackWord(addr uint64) (uint64, bool) {
	if vm.isLinked {
		if o := addr - vm.start; o < uint64(len(vm.segment)) && uint64(len(vm.segment))-o >= 8 {
			return binary.LittleEndian.Uint64(vm.segment[o:]), true
		}
		return 0, false
	}
	return vm.Word(addr)
}

// contextLayout is where words of a thread's context are, in bytes.
type contextLayout struct {
	frame uint64 // where the stack pointer is kept while functions of C run; 0: it is not known
	end   uint64 // the end of the segment, but for some room
	start uint64 // its beginning
	link  uint64 // the continuation before
}

const contextBytes = 64 * 8

// find finds out what is where in a context, by what it holds.
func (l *contextLayout) find(read vmread.Reader, context uint64) bool {
	const most, room = 16, 16 << 10 // words before the stack's end, and bytes behind
	if l.frame != 0 {
		return true
	}
	var buf [contextBytes]byte
	if context%8 != 0 || !read(context, buf[:]) {
		return false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(buf[8*i:]) }
	const between = 2 // words from the stack pointer's to the end's
	var found, likely contextLayout
	several, severalLikely := false, false
	for i := most; i+3 < len(buf)/8; i++ {
		start, link, size := word(i), word(i+2), word(i+3)
		if start == 0 || (start|size)%8 != 0 || link&7 != 5 || size == 0 || size > 1<<40 {
			continue
		}
		for j := 3; j < most; j++ {
			end := word(j)
			if behind := start + size - end; end <= start || end%8 != 0 || behind == 0 || behind > room {
				continue
			}
			is := contextLayout{uint64(8 * (j - between)), uint64(8 * j), uint64(8 * i), uint64(8 * (i + 2))}
			several = several || found.frame != 0
			found = is
			// In a small segment its end is not all that is near its end, but the stack pointer is before that.
			if frame := word(j - between); frame%8 == 0 && frame >= start && frame < end {
				severalLikely = severalLikely || likely.frame != 0
				likely = is
			}
		}
	}
	if several {
		if found = likely; severalLikely {
			return false
		}
	}
	*l = found
	return found.frame != 0
}

// noteContext takes note of the context of the thread that is walked.
func (vm *machine) noteContext(in *unwind.Frame) {
	if v, ok := in.Regs.Value(chezContext); ok && vm.thread == 0 {
		vm.thread = v
	}
}

// goOn returns where a continuation goes on that is behind the beginning of a segment, and what R13 is there. A
// return address of 0 is that of the continuation that is none.
func (vm *machine) goOn(frame uint64) (ra, at uint64, ok bool) {
	link := vm.link
	if !vm.isLinked {
		if vm.thread == 0 || !vm.context.find(vm.ReadNow, vm.thread) {
			return 0, 0, false
		}
		start, ok1 := vm.Word(vm.thread + vm.context.start)
		next, ok2 := vm.Word(vm.thread + vm.context.link)
		if !ok1 || !ok2 {
			vm.lacks = true
			return 0, 0, false
		}
		if link = next; start != frame {
			return 0, 0, false
		}
	} else if frame != vm.start {
		return 0, 0, false
	}
	k, segment, ok := vm.continuation(link)
	if !ok {
		return 0, 0, false
	}
	vm.isLinked, vm.link, vm.start, vm.segment, ra = true, k.link, k.stack, segment, k.ra
	switch {
	case k.isNone():
		return 0, 0, true
	case !vm.isWhole(ra):
		return 0, 0, false
	}
	return ra, k.stack + k.size, true
}

// continuationRecord is what a continuation has.
type continuationRecord struct {
	code  uint64 // of what goes on with it
	stack uint64 // its segment of a stack
	whole uint64 // bytes of that, a negative number when it is used up
	size  uint64 // and of those that have frames
	link  uint64 // the continuation behind it, tagged
	ra    uint64 // where it goes on
}

// isNone reports whether a continuation is that which has no frames.
func (k *continuationRecord) isNone() bool { return k.stack == 0 && k.link == 0 && k.ra == 0 }

// read is a continuation as it was read from the running process.
type read struct {
	continuationRecord
	segment []byte
	since   uint64 // ns of CLOCK_MONOTONIC, from which on it was the same whenever it was read
}

// readChez reads a continuation, without its segment.
func readChez(read vmread.Reader, link uint64) (k continuationRecord, ok bool) {
	const closure, tag = 7, 5
	var b [6 * 8]byte
	if link&closure != tag || !read(link+8-tag, b[:]) {
		return k, false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	k = continuationRecord{code: word(0), stack: word(1), whole: word(2), size: word(3), link: word(4), ra: word(5)}
	if k.isNone() {
		k.size = 0
		return k, true
	}
	return k, k.size != 0 && k.size <= k.whole && k.whole <= maxCode && (k.size|k.stack)%8 == 0 && k.size <= maxSegments
}

// continuation returns what a continuation had at the moment of the capture, and its segment, valid until the next call.
// Where it was not captured, garbage collection may have moved it since, and another be there: it has to be the same as
// it was when it was read before that moment.
func (vm *machine) continuation(link uint64) (k continuationRecord, segment []byte, ok bool) {
	if k, ok = readChez(vm.Read, link); ok && vm.mayRead(&k) && (k.isNone() || vm.Read(k.stack, vm.segmentOf(&k))) {
		return k, vm.segmentOf(&k), true
	}
	if k, ok = readChez(vm.ReadNow, link); !ok || !vm.mayRead(&k) || !k.isNone() && !vm.ReadNow(k.stack, vm.segmentOf(&k)) {
		return k, nil, false
	}
	segment = vm.segmentOf(&k)
	known := vm.reads[link]
	if known == nil || known.continuationRecord != k || !bytes.Equal(known.segment, segment) {
		if vm.keptReads += len(segment) + 128; vm.reads == nil || vm.keptReads > maxKept {
			vm.reads, vm.keptReads = map[uint64]*read{}, len(segment)+128
		}
		known = &read{k, slices.Clone(segment), procstate.Monotonic()}
		vm.reads[link] = known
	}
	return k, segment, known.since < vm.taken()
}

// taken returns when the capture was made, 0 where that is not known.
func (vm *machine) taken() uint64 {
	if s, ok := vm.w.ProcessState().(interface{ Taken() uint64 }); ok {
		return s.Taken()
	}
	return 0
}

// mayRead reports whether the segment of a continuation may be read in this walk.
func (vm *machine) mayRead(k *continuationRecord) bool {
	kind, ok := vm.codeObject(k.code-codeHead, k.code)
	if !ok || kind&continuationCode == 0 || k.size > maxSegments-vm.segments {
		return false
	}
	vm.segments += k.size
	return true
}

// segmentOf returns where the segment of a continuation is read to.
func (vm *machine) segmentOf(k *continuationRecord) []byte {
	vm.buffer = slices.Grow(vm.buffer[:0], int(k.size))[:k.size]
	return vm.buffer
}

// isWhole reports whether the frames of a continuation's segment, which goes on at an address, lead to its beginning,
// or to where C has called Scheme.
func (vm *machine) isWhole(ra uint64) bool {
	for at := vm.start + uint64(len(vm.segment)); ; {
		p, ok := vm.pointAt(ra)
		switch {
		case !ok || !vm.Pace.May(1):
			return false
		case p.size == 0:
			return at == vm.start
		case vm.isInvoke(p.code):
			return true
		}
		if at -= p.size; at < vm.start {
			return false
		}
		if ra, ok = vm.stackWord(at); !ok {
			return false
		}
	}
}
