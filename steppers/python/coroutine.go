package python

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// awaitable is what an object that is awaited leads to.
type awaitable uint8

const (
	ofOther     awaitable = iota
	ofCoroutine           // it has a frame
	ofNext                // it refers to one that has
	ofFuture              // nothing: the task waits for that
)

// futureIter is the class of what an await of a future makes.
const futureIter = "_asyncio.FutureIter"

// awaitables are those of CPython's classes.
var awaitables = map[string]awaitable{
	"coroutine": ofCoroutine, "generator": ofCoroutine, "async_generator": ofCoroutine,
	"coroutine_wrapper": ofNext, "async_generator_asend": ofNext, "async_generator_athrow": ofNext, "anext_awaitable": ofNext,
	futureIter: ofFuture,
}

// ErrAwaited is of the stack of a task that ends with what is not a coroutine of Python's own, as those of Cython.
var ErrAwaited = errors.New("it awaits what is not known")

// errCoroutine is of the stack of a task a coroutine of which could not be read.
var errCoroutine = errors.New("a coroutine could not be read")

const (
	maxAwaits      = 1 << 12 // of a task
	coroutineBytes = 184     // of a coroutine, with its frame up to the variables, in all versions
)

// coroutines are the frames of what a task runs, outermost first.
type coroutines struct {
	frames []frameRef
	first  uint64        // the first variable of the innermost one; 0 is none
	thread *threadFrames // that runs it; nil when none does
}

// follow follows a task's coroutine to what it waits for.
func (t *taskReader) follow(object uint64) (c coroutines, err error) {
	next := 16 + t.vm.fields.more // of what is ofNext
	c.frames = t.buf[:0]
	for range maxAwaits {
		var buf [coroutineBytes]byte
		class := t.object(object, buf[:next+8])
		switch {
		case class == nil:
			return c, errCoroutine
		case class.awaitable == ofFuture:
			return c, nil
		case class.awaitable == ofNext:
			object = binary.LittleEndian.Uint64(buf[next:])
			continue
		case class.awaitable != ofCoroutine:
			return c, fmt.Errorf("%w: %s", ErrAwaited, class.name)
		}
		var more bool
		if object, more, err = t.suspended(&c, object, &buf); !more {
			return c, err
		}
	}
	return c, errCoroutine
}

// suspended appends the frame of a coroutine. more is whether it awaits another object.
func (t *taskReader) suspended(c *coroutines, object uint64, buf *[coroutineBytes]byte) (awaited uint64, more bool, err error) {
	f, g, le := t.vm.fields, &t.vm.fields.asyncio, binary.LittleEndian
	at, frame := object+g.frame, buf[g.frame:]
	if f.isObject {
		frame = buf[:objectBytes]
		if at = le.Uint64(buf[g.frame:]); at == 0 {
			return 0, false, nil // it is done
		}
	}
	if f.isObject && !t.vm.ReadNow(at, frame) || !f.isObject && !t.vm.ReadNow(object, buf[:]) {
		return 0, false, errCoroutine
	}
	if run, ok := t.running[at]; ok {
		for _, inner := range slices.Backward(run.thread.frames[:run.index+1]) {
			c.frames = append(c.frames, inner)
		}
		c.thread = run.thread
		return 0, false, nil
	}
	ref := frameRef{le.Uint64(frame[f.code:]) &^ tagBits, le.Uint64(frame[f.instruction:])}
	last := int32(ref.instruction)
	if f.isObject {
		ref.instruction = ref.code + uint64(int64(last))
	}
	state, states := g.states.yielded, g.states
	switch {
	case g.frameState == 0:
		if last < 0 {
			state = states.created
		}
	case f.isObject:
		state = int8(frame[g.frameState])
	default:
		state = int8(buf[g.frameState])
	}
	switch state {
	case states.created, states.yielded, states.awaits, states.executing:
		c.frames = append(c.frames, ref)
	default:
		return 0, false, nil // it is done
	}
	variables := g.words
	if f.isObject {
		variables = g.variables
	}
	c.first = t.word(at+variables) &^ tagBits
	switch {
	case state == states.executing: // by a thread that was not found
		return 0, false, errCoroutine
	case state == states.created, state != states.awaits, states.awaits == states.yielded && !t.isAwait(&ref, last):
		return 0, false, nil
	}
	end := uint64(0)
	switch {
	case g.stackTop != 0:
		end = le.Uint64(frame[g.stackTop:])
	case f.isObject:
		end = le.Uint64(frame[g.words:]) + 8*uint64(le.Uint32(frame[g.stackDepth:]))
	default:
		end = at + g.words + 8*uint64(le.Uint32(frame[g.stackDepth:]))
	}
	return t.word(end-8*g.awaited) &^ tagBits, true, nil
}

// isAwait reports whether a frame has yielded for what it awaits, by its code.
func (t *taskReader) isAwait(ref *frameRef, last int32) bool {
	f := t.vm.fields
	if !f.isObject {
		// RESUME comes next, with what it is for: yield from or await.
		const argument, from, await = 3, 2, 3
		var b [1]byte
		return t.vm.ReadNow(ref.instruction+argument, b[:]) && (b[0] == from || b[0] == await)
	}
	const (
		beforeFileName = 56 // where co_code is
		data           = 32 // of bytes
		yieldFrom      = 72
	)
	at := int64(last) + 2
	if f.asyncio.frameState != 0 { // 3.10: instructions are counted
		at = 2 * (int64(last) + 1)
	}
	var b [1]byte
	return t.vm.ReadNow(t.word(ref.code+f.fileName-beforeFileName)+data+uint64(at), b[:]) && b[0] == yieldFrom
}
