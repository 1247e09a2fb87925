package ruby

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// controlFrame is a control frame.
type controlFrame struct {
	iseq, pc   uint64
	env        scopeEnvironment
	isCompiled bool // compiled code may run it, which does not always tell the instruction
}

// scopeEnvironment is what a control frame's environment begins with: whose method it is, the
// environment around it and flags.
type scopeEnvironment struct{ entry, outer, flags uint64 }

// isLast reports whether the interpreter's function returns with the frame.
func (f *controlFrame) isLast() bool { return f.env.flags&isFinish != 0 }

// find returns the index of the control frame at an address, and that of the first that runs in
// the same call of the interpreter's function. ok is false where it is none, or was found before.
func (vm *machine) find(at uint64) (first, i int, ok bool) {
	off, size := at-vm.current, vm.fields.frameBytes
	if at < vm.current || at >= vm.end || off%size != 0 {
		return 0, 0, false
	}
	i = int(off / size)
	if i < vm.next || i >= len(vm.frames) {
		return 0, 0, false
	}
	for first = i; first > vm.next && !vm.frames[first-1].isLast(); first-- {
	}
	return first, i, true
}

// isCut reports whether there are control frames behind those that were copied.
func (vm *machine) isCut() bool {
	return vm.current+uint64(len(vm.frames))*vm.fields.frameBytes < vm.end
}

// readThread finds the control frames of the thread that is walked.
func (vm *machine) readThread(w *unwind.Walker, tid procstate.ThreadID) {
	regs := &vm.regs
	vm.frames, vm.next, vm.at, vm.context, vm.lacks, vm.now = vm.frames[:0], 0, 0, 0, false, time.Now()
	if w.ProcessState().Registers(tid, regs) != nil || regs.ThreadPointer == 0 {
		return
	}
	if vm.at = vm.variable(regs.ThreadPointer); vm.at == 0 {
		return
	}
	context, ok := vm.wordOrNow(vm.at)
	if vm.lacks = !ok; context == 0 {
		return
	}
	vm.context = context
	b := &vm.contextBytes
	if vm.lacks = vm.lacks || !vm.Read(context, b[:]); vm.lacks {
		return
	}
	if !vm.isOf(b, regs.ThreadPointer) {
		delete(vm.threads, regs.ThreadPointer)
		return
	}
	le := binary.LittleEndian
	stack, words := le.Uint64(b[rubyStack:]), le.Uint64(b[rubyStackWords:])
	vm.current, vm.end = le.Uint64(b[rubyCurrent:]), stack+8*words
	if words > maxStack || vm.current < stack || vm.current >= vm.end || (vm.end-vm.current)%vm.fields.frameBytes != 0 {
		return
	}
	vm.readFrames()
	if vm.isMaking = len(vm.frames) > 0 && vm.makesFrame(w); vm.isMaking {
		vm.next = 1
	}
	vm.lacks = vm.Captured != nil && len(vm.frames) == 0
}

// maxStack is the most words that a VM stack has.
const maxStack = 1 << 27

// wordOrNow reads a word as it was captured; where it was not, as it is now, and ok is false.
func (vm *machine) wordOrNow(addr uint64) (word uint64, ok bool) {
	if word, ok = vm.Word(addr); !ok {
		word, _ = vm.WordNow(addr)
	}
	return word, ok
}

// isOf reports whether an rb_execution_context_t is of a thread, where its rb_thread_t tells: another
// can have that by now.
func (vm *machine) isOf(context *[rubyContextBytes]byte, threadPointer uint64) bool {
	f := vm.fields
	if f.threadID == 0 {
		return true
	}
	thread := binary.LittleEndian.Uint64(context[f.thread:])
	is, now := vm.owners[thread], vm.now
	if now.Sub(is.checked) > interval {
		if len(vm.owners) >= maxThreads {
			clear(vm.owners)
		}
		if id, ok := vm.WordNow(thread + f.threadID); ok || !vm.hasEnded() {
			is.id = id
		}
		is.checked = now
		vm.owners[thread] = is
	}
	return vm.isThread(is.id, threadPointer)
}

// readFrames reads the control frames.
func (vm *machine) readFrames() {
	f, le := vm.fields, binary.LittleEndian
	b := vm.frameBytes[:f.frameBytes]
	for at := vm.current; at < vm.end && len(vm.frames) < maxFrames && vm.Read(at, b); at += f.frameBytes {
		frame := controlFrame{iseq: le.Uint64(b[rubyCodeOf:]), pc: le.Uint64(b[rubyPC:])}
		frame.isCompiled = f.jitReturn != 0 && le.Uint64(b[f.jitReturn:]) != 0
		var ok bool
		if frame.env, ok = vm.environment(le.Uint64(b[rubyEnv:]), frame.iseq); !ok {
			return
		}
		vm.frames = append(vm.frames, frame)
	}
}

// escaped is an environment that is an object.
type escaped struct {
	scopeEnvironment
	iseq    uint64
	checked time.Time
}

// beforeFlags is how far in an environment before its flags what is read of it begins.
const beforeFlags = 16

// environment reads an environment, that of a frame where iseq is not 0.
func (vm *machine) environment(at, iseq uint64) (env scopeEnvironment, ok bool) {
	b, le := &vm.envBytes, binary.LittleEndian
	words := func() scopeEnvironment {
		return scopeEnvironment{le.Uint64(b[:]), le.Uint64(b[8:]), le.Uint64(b[beforeFlags:])}
	}
	if ok = vm.Read(at-beforeFlags, b[:beforeFlags+8]); ok || vm.Live == nil {
		return words(), ok
	}
	if env.flags, ok = vm.Word(at); ok {
		return env, true // that of a fiber's first frame, where the VM stack begins
	}
	// It is an object, which stays what it is.
	is, now := vm.escaped[at], vm.now
	if (iseq == 0 || is.iseq == iseq) && now.Sub(is.checked) < interval {
		return is.scopeEnvironment, true
	}
	var object [24]byte
	if !vm.ReadNow(at-beforeFlags, b[:]) {
		if is.iseq != 0 && (iseq == 0 || is.iseq == iseq) && vm.hasEnded() {
			return is.scopeEnvironment, true
		}
		return env, false
	}
	is = escaped{scopeEnvironment: words(), checked: now}
	if is.flags&isEscaped == 0 || !vm.ReadNow(le.Uint64(b[beforeFlags+8:]), object[:]) || le.Uint64(object[16:]) != at {
		return env, false
	}
	if is.iseq = le.Uint64(object[8:]); iseq != 0 && is.iseq != iseq {
		return env, false
	}
	if len(vm.escaped) >= maxFunctions {
		clear(vm.escaped)
	}
	vm.escaped[at] = is
	return is.scopeEnvironment, true
}

// Lacked returns where the interpreter keeps the frames of a thread, if the last walk has
// met the interpreter and the capture had not copied them. It is the zero value when that cannot be
// found out yet.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.walk != w.Walks() || !vm.lacks || vm.at == 0 {
		return frames, false
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	frames = procstate.ThreadFrames{
		Current: vm.at, Head: rubyContextBytes, Low: rubyCurrent, High: rubyStack, IsCounted: true, IsDown: true,
		HasValues: true, Values: rubyStack, ValuesEnd: rubySP,
	}
	var regs procstate.Regs
	if err := w.ProcessState().Registers(procstate.DefaultThread, &regs); err == nil && vm.isStatic(regs.ThreadPointer) {
		frames.Own, frames.IsThreadPointer = regs.ThreadPointer, true
	}
	return frames, true
}

// Knows reports whether walks of a Walker have met the interpreter.
func (s *Stepper) Knows(w *unwind.Walker) bool { return w.Kept(s) != nil }

// Limits on what is copied of a process's threads.
const (
	maxBytes   = 1 << 20 // of a thread's control frames, and of its values
	maxStacks  = 32 << 20
	maxEscaped = 1 << 12 // environments that are objects, of a thread
)

// Collector returns a Collector of what walks need of the interpreter; nil where none of
// the libraries of the process is one.
func Collector(libs procstate.LibraryState) procstate.Collector {
	s := New(nil)
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.fields != nil {
			c := &collector{left: maxStacks}
			c.vm = machine{image: p, bias: lib.Bias, fields: p.fields, threads: map[uint64]uint64{}, owners: map[uint64]owner{}}
			return c.collect
		}
	}
	return nil
}

type collector struct {
	vm   machine
	left int // bytes that may still be copied
}

// collect is the Collector.
func (c *collector) collect(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	vm, f := &c.vm, c.vm.fields
	vm.Mem = m
	at := vm.variable(regs.ThreadPointer)
	context, _ := m.ReadWord(at)
	if at == 0 || context == 0 {
		return
	}
	add(at, 8)
	add(context, rubyContextBytes)
	stack, _ := m.ReadWord(context + rubyStack)
	words, _ := m.ReadWord(context + rubyStackWords)
	frame, _ := m.ReadWord(context + rubyCurrent)
	values, _ := m.ReadWord(frame + rubySP)
	end := stack + 8*words
	if words > maxStack || frame < stack || frame >= end || values < stack || values > frame {
		return
	}
	end = min(end, frame+maxBytes)
	low := max(stack, values-min(values, maxBytes))
	if c.left -= int(end - frame + values - low); c.left < 0 {
		return
	}
	add(frame, int(end-frame))
	add(low, int(values-low))
	for n := 0; frame < end && n < maxEscaped; frame += f.frameBytes {
		if env, ok := m.ReadWord(frame + rubyEnv); ok && env-low >= values-low {
			add(env-beforeFlags, beforeFlags+8)
			n++
		}
	}
}
