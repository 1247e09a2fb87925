package php

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// frame is a zend_execute_data.
type frame struct {
	at, function, opline, previous uint64
	info                           uint32
	waits                          bool // it is that of a generator which waits for the one before
}

// notCopied is the function of frames that were not copied.
const notCopied = ^uint64(0)

// frame reads a frame.
func (vm *machine) frame(at uint64) (f frame, ok bool) {
	b, le := &vm.frameBuf, binary.LittleEndian
	if at%8 != 0 || !vm.Read(at, b[:]) {
		return f, false
	}
	f = frame{at: at, function: le.Uint64(b[phpFunc:]), opline: le.Uint64(b[phpOpline:]), previous: le.Uint64(b[phpPrevious:]), info: le.Uint32(b[phpInfo:])}
	return f, true
}

// readFrames follows the frames from the one that runs.
func (vm *machine) readFrames() {
	vm.frames, vm.next, vm.looks, vm.inside, vm.before = vm.frames[:0], 0, maxLooks, 0, 0
	at, ok := vm.Word(vm.globals.Start + vm.fields.current)
	vm.lacks = vm.Captured != nil && !ok
	waiting := maxWaiting
	for at != 0 && ok && len(vm.frames) < maxFrames {
		f, ok := vm.frame(at)
		if !ok {
			vm.frames = append(vm.frames, frame{function: notCopied, info: phpCallTop})
			return
		}
		vm.frames = append(vm.frames, f)
		if f.function == 0 {
			waiting -= vm.readWaiting(at, waiting)
		}
		at = f.previous
	}
	if len(vm.frames) == maxFrames {
		vm.frames = vm.frames[:0] // in a circle, or without an end
	}
}

// readWaiting adds the frames of the generators that wait for the one that runs, if a frame
// stands for these: it is in the first of them. It looks at so many, and returns at how many.
func (vm *machine) readWaiting(placeholder uint64, most int) (looked int) {
	f, first := vm.fields, len(vm.frames)
	g := placeholder - f.placeholder
	if this, ok := vm.Word(placeholder + phpThis); !ok || this != g {
		return 0
	}
	for ; looked < most; looked++ {
		parent, ok1 := vm.Word(g + f.parent)
		at, ok2 := vm.Word(g + f.execute)
		if !ok1 || !ok2 || parent == 0 || at == 0 {
			break // that which runs, if it is one without a parent
		}
		frame, ok := vm.frame(at)
		if !ok {
			vm.frames = vm.frames[:first]
			return looked + 1
		}
		frame.waits = true
		vm.frames = append(vm.frames, frame)
		g = parent
	}
	for i, j := first, len(vm.frames)-1; i < j; i, j = i+1, j-1 { // the last waits for the one that runs
		vm.frames[i], vm.frames[j] = vm.frames[j], vm.frames[i]
	}
	return looked
}

// maxWaiting is how many generators may wait for others.
const maxWaiting = 1 << 12

// find returns which of the frames that no frame of the C stack has had has an address.
func (vm *machine) find(at uint64) int {
	for i := vm.next; i < len(vm.frames); i++ {
		if vm.frames[i].at == at && !vm.frames[i].waits {
			return i
		}
	}
	return -1
}

// frameOf returns the address of the frame that a frame of the C stack runs; 0 where it is not known. CFI
// tells nothing of the register: where no function in between has saved it, it is what it was when the frame
// before was entered.
func (vm *machine) frameOf(in *unwind.Frame) uint64 {
	register, known := in.Regs.Value(vm.arch.frame)
	at := register
	if vm.kept.reg != procstate.NoReg {
		if !known || register == vm.inside {
			at = vm.before
		}
		vm.inside, vm.before = register, in.Regs.Raw(vm.kept.reg)
		if vm.kept.inStack {
			vm.before, _ = vm.Word(vm.before + vm.kept.off)
		}
	}
	return at
}

// codeOf returns the number of the functions that run in a frame of execute_ex, or of code
// that was compiled, which runs in its place; 0 when that is not known.
func (vm *machine) codeOf(w *unwind.Walker, in *unwind.Frame, isCompiled bool) uint32 {
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[code]uint32{}, codes.Resets()
		clear(vm.running)
		clear(vm.recent[:])
	}
	if vm.walk != w.Walks() {
		vm.walk = w.Walks()
		vm.now = time.Now()
		vm.readFrames()
		if vm.now.Sub(vm.began) >= innerInterval {
			clear(vm.inner)
			vm.inner, vm.began = vm.inner[:0], vm.now
			vm.period++
		}
	}
	at := vm.frameOf(in)
	if at == 0 {
		return 0
	}
	first, ends := vm.find(at), false
	if first < 0 { // it begins or ends, and the one before runs
		f, ok := vm.frame(at)
		if !ok || f.info&phpCallTop != 0 {
			return 0
		}
		if first = vm.find(f.previous); first < 0 {
			return 0
		}
		ends = true
	}
	last := first
	for vm.frames[last].info&phpCallTop == 0 && last+1 < len(vm.frames) {
		last++
	}
	for last+1 < len(vm.frames) && (vm.frames[last+1].waits || vm.frames[last+1].function == 0 && last+2 < len(vm.frames) && vm.frames[last+2].waits) {
		last++
	}
	opline := uint64(0)
	switch op, known := in.Regs.Value(vm.arch.op); {
	case first > 0 || ends:
		opline = vm.frames[first].opline // it was put down before the call
	case known && !isCompiled:
		opline = op
	}
	number := uint32(0)
	for i := last; i >= first; i-- {
		f, at := &vm.frames[i], vm.frames[i].opline
		if i == first {
			at = opline
		}
		r := vm.recentOf(f, at, number, isCompiled)
		if r.fn == nil || vm.now.Sub(r.fn.checked) >= checkInterval || !vm.stays(r.fn) {
			fn := vm.functionOf(f, at)
			switch {
			case fn == nil && (i == first || f.function == 0):
				continue // it begins or ends; or stands for those that wait
			case fn == nil:
				fn = &notRead
			}
			r.fn, r.number = fn, vm.number(codes, fn, at, number, isCompiled)
		}
		if number = r.number; number == 0 {
			return 0 // there is no room: rather none than some
		}
	}
	// What it has called that is written in C; and what its compiler has run meanwhile to look at it, which has its frame
	// in no register of a frame of the C stack.
	for i := first - 1; i >= vm.next; i-- {
		f, at := &vm.frames[i], uint64(0)
		if f.function == 0 {
			continue
		}
		fn := vm.functionOf(f, 0)
		if fn != nil && fn.isUser {
			if f.info&phpCallTop != 0 {
				break
			}
			at = f.opline
			if fn = vm.functionOf(f, at); fn == nil && i == 0 {
				continue // it begins or ends
			}
		}
		if fn == nil {
			fn = &notRead
		}
		if number = vm.number(codes, fn, at, number, isCompiled || !fn.isUser); number == 0 {
			return 0
		}
	}
	vm.next = last + 1
	return number
}

// Lacked returns where the interpreter keeps the frames of a thread, if the last walk has
// met the interpreter and the capture had not copied them: its stack, and those that are not in it, as
// frames of generators and the outer ones of many.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.fields == nil || vm.walk != w.Walks() || !vm.lacks {
		return frames, false
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	f := vm.fields
	return procstate.ThreadFrames{
		Current: vm.globals.Start + f.current, IsFrame: true, Previous: phpPrevious, Bytes: phpFrameBytes,
		Bounds: vm.globals.Start, Low: int(f.stackLow), High: int(f.stackHigh),
	}, true
}

// Knows reports whether walks of a Walker have met the interpreter.
func (s *Stepper) Knows(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*machine)
	return vm != nil && vm.fields != nil
}

// Collector returns a Collector of what walks need of the interpreter; nil where none of the
// libraries of the process is one.
func Collector(libs procstate.LibraryState) procstate.Collector {
	s := New(nil)
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.fields != nil {
			c := &collector{fields: p.fields, globals: variable(libs, lib, "executor_globals", p.globals.Start)}
			return c.collect
		}
	}
	return nil
}

type collector struct {
	fields  *fields
	globals uint64
	done    bool
}

// maxStack is how many bytes are copied of the stack of frames: of one piece, which mostly is
// all there is.
const maxStack = 1 << 20

// collect is the Collector.
func (c *collector) collect(m procstate.Memory, _ procstate.ThreadID, _ *procstate.Regs, add func(addr uint64, n int)) {
	if c.done {
		return
	}
	c.done = true
	f := c.fields
	add(c.globals+f.current, 8)
	low, _ := m.ReadWord(c.globals + f.stackLow)
	high, _ := m.ReadWord(c.globals + f.stackHigh)
	if low < high && high-low <= maxStack {
		add(low, int(high-low))
	} else {
		low, high = 0, 0
	}
	at, _ := m.ReadWord(c.globals + f.current)
	var b [phpFrameBytes]byte
	waiting := maxWaiting
	for n := 0; at != 0 && n < maxFrames; n++ {
		if got, err := m.ReadMemory(at, b[:]); err != nil || got < len(b) {
			break
		}
		if at-low >= high-low {
			add(at, len(b))
		}
		if binary.LittleEndian.Uint64(b[phpFunc:]) == 0 {
			waiting -= c.collectWaiting(m, at, waiting, add)
		}
		at = binary.LittleEndian.Uint64(b[phpPrevious:])
	}
}

// collectWaiting is the Collector of the generators that a frame stands for: see readWaiting.
func (c *collector) collectWaiting(m procstate.Memory, placeholder uint64, most int, add func(addr uint64, n int)) (looked int) {
	f := c.fields
	g := placeholder - f.placeholder
	if this, _ := m.ReadWord(placeholder + phpThis); this != g {
		return 0
	}
	for ; g != 0 && looked < most; looked++ {
		add(g+f.execute, 8)
		add(g+f.parent, 8)
		if at, _ := m.ReadWord(g + f.execute); at != 0 {
			add(at, phpFrameBytes)
		}
		g, _ = m.ReadWord(g + f.parent)
	}
	return looked
}
