package gnur

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of the interpreter of a process.
type machine struct {
	*imageInProcess
	image *procstate.Image
	bias  uint64
	vmread.Memory

	walk     uint64 // the contexts are those of this walk
	times    vmread.Times
	contexts []context // innermost first
	next     int       // of these, the first that no frame on the C stack has had yet
	isCut    bool      // there are more, which were not captured
	lacks    bool      // some were not
	asked    vmread.FramesAsked

	codes     map[code]uint32 // numbers in unwind.Codes
	resets    int             // of these
	objects   map[uint64]*object
	closures  map[uint64]*closure
	symbols   map[uint64]string // by address: they stay
	functions map[unwind.CodeFunction]*function
	isKnown   bool // a call could be read
	unread    int  // how many could not be before that

	head [objectHead]byte // what is read
	ends [16]byte
	rest [behindBytes]byte
}

// imageInProcess is an image by run-time addresses.
type imageInProcess struct {
	arch                        *arch
	context, nodesEnd, nodesTop uint64
	nodes                       mcode.Range // the stack of nodes; it has no bytes where that is not known
}

// context is an RCNTXT of a function of R.
type context struct {
	place          uint64 // an address in the frame of C that it belongs to
	call, function uint64
}

// code is a function, and the number of what that is called by in the same frame.
type code struct {
	function *function
	outer    uint32
}

// Limits on what is read.
const (
	maxContexts  = 1 << 13
	maxCodes     = 1 << 18
	maxObjects   = 1 << 16
	maxSymbols   = 1 << 16
	maxFunctions = 1 << 16
	maxName      = 1 << 10 // bytes
	maxNodes     = 1 << 30 // bytes of the stack of nodes
	runtime      = "r"
)

func newMachine(w *unwind.Walker, m *procstate.Mapping, p *image) *machine {
	return &machine{
		imageInProcess: p.in(m.Bias), image: m.Image, bias: m.Bias, Memory: vmread.MemoryOf(w), asked: vmread.FramesAsked{},
		objects: map[uint64]*object{}, closures: map[uint64]*closure{}, symbols: map[uint64]string{}, functions: map[unwind.CodeFunction]*function{},
	}
}

// in returns the image in a process.
func (p *image) in(bias uint64) *imageInProcess {
	return &imageInProcess{arch: p.arch, context: p.context + bias, nodesEnd: p.nodesEnd + bias, nodesTop: p.nodesTop + bias}
}

// findNodes reads where the stack of nodes is: the interpreter makes it before it has a context.
func (p *imageInProcess) findNodes(read vmread.Reader) {
	begin, ok1 := read.Word(p.nodesEnd - 8)
	end, ok2 := read.Word(p.nodesEnd)
	top, ok3 := read.Word(p.nodesTop)
	if ok1 && ok2 && ok3 && begin != 0 && begin <= top && top <= end && end-begin <= maxNodes && (end-begin)%nodeBytes == 0 {
		p.nodes = mcode.Range{Start: begin, End: end}
	}
}

// onNodes reports whether an address is on the stack of nodes.
func (p *imageInProcess) onNodes(at uint64) bool { return at-p.nodes.Start < p.nodes.End-p.nodes.Start }

// readContexts follows the contexts from the innermost one.
func (vm *machine) readContexts() {
	vm.contexts, vm.next, vm.isCut = vm.contexts[:0], 0, false
	if vm.nodes.End == 0 {
		vm.findNodes(vm.ReadNow)
	}
	at, ok := vm.Word(vm.context)
	vm.lacks = vm.Captured != nil && !ok
	le := binary.LittleEndian
	for n := 0; ok && at != 0; n++ {
		if n == maxContexts { // in a circle, or without an end
			vm.contexts = vm.contexts[:0]
			return
		}
		if ok = at%8 == 0 && vm.Read(at, vm.ends[:]) && vm.Read(at+vm.arch.function, vm.rest[:]); !ok {
			vm.isCut, vm.lacks = true, vm.Captured != nil
			return
		}
		c := context{place: at, call: le.Uint64(vm.rest[behindCall:]), function: le.Uint64(vm.rest[:])}
		if vm.onNodes(at) {
			c.place = le.Uint64(vm.rest[behindPlace:])
		}
		if le.Uint32(vm.ends[contextFlags:])&functionContext != 0 {
			vm.contexts = append(vm.contexts, c)
		}
		at = le.Uint64(vm.ends[contextNext:])
	}
}

// codeOf returns the number of the functions whose contexts belong to a frame of C from sp to its CFA, 0 when there
// is none.
func (vm *machine) codeOf(w *unwind.Walker, sp, cfa uint64) uint32 {
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[code]uint32{}, codes.Resets()
	}
	if vm.unread >= maxUnread {
		return 0
	}
	if vm.walk != w.Walks() {
		vm.walk, vm.times = w.Walks(), vm.Times()
		vm.readContexts()
	}
	for vm.next < len(vm.contexts) && vm.contexts[vm.next].place < sp {
		vm.next++ // its frame is gone, or was not met
	}
	first := vm.next
	for vm.next < len(vm.contexts) && vm.contexts[vm.next].place-sp < cfa-sp {
		vm.next++
	}
	number := uint32(0)
	switch {
	case vm.next > first:
	case vm.isCut && vm.next == len(vm.contexts):
		vm.isCut = false
		return vm.number(codes, &others, 0)
	}
	for i := vm.next - 1; i >= first; i-- {
		fn := vm.functionOf(&vm.contexts[i])
		if fn == nil {
			fn = &notRead
		}
		if number = vm.number(codes, fn, number); number == 0 {
			return 0 // there is no room: rather none than some
		}
	}
	return number
}

// number returns the number of a function, which is called by that of another number in the same frame; 0 when there is no
// room.
func (vm *machine) number(codes *unwind.Codes, fn *function, outer uint32) uint32 {
	key := code{fn, outer}
	n, ok := vm.codes[key]
	if !ok && len(vm.codes) < maxCodes {
		n = codes.Add(0, []unwind.CodeLine{{CodeFunction: &fn.CodeFunction}}, outer)
		vm.codes[key] = n
	}
	return n
}

// Lacked returns where the interpreter keeps the contexts of a thread, if the last walk has met the interpreter and the
// capture had not copied them.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.walk != w.Walks() || !vm.lacks {
		return frames, false
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	bounds := min(vm.nodesEnd-8, vm.nodesTop)
	return procstate.ThreadFrames{
		Current: vm.context, IsFrame: true, Previous: contextNext, Bytes: vm.arch.contextBytes(),
		Bounds: bounds, Low: int(vm.nodesEnd - 8 - bounds), High: int(vm.nodesTop - bounds),
		Object: int(vm.arch.function + behindCall), ObjectWord: listValue,
	}, true
}

// Knows reports whether walks of a Walker have met the interpreter.
func (s *Stepper) Knows(w *unwind.Walker) bool { return w.Kept(s) != nil }

// Collector returns a Collector of what walks need of the interpreter; nil where none of the libraries of the process
// has it.
func Collector(libs procstate.LibraryState) procstate.Collector {
	if libs == nil {
		return nil
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		if p := find(lib.Image); p.context != 0 {
			return (&collector{imageInProcess: p.in(lib.Bias)}).collect
		}
	}
	return nil
}

type collector struct {
	*imageInProcess
	done bool
}

// maxStack is more than the stack of C has, in bytes.
const maxStack = 64 << 20

// collect is the Collector. Contexts on the stack of C are copied with that.
func (c *collector) collect(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	if c.done {
		return
	}
	c.done = true
	sp := regs.Raw(c.arch.SP)
	read := func(addr uint64, b []byte) bool { return vmread.ReadAll(m, addr, b) }
	c.findNodes(read)
	add(c.context, 8)
	at, ok := vmread.Reader(read).Word(c.context)
	for n := 0; ok && at != 0 && at%8 == 0 && n < maxContexts; n++ {
		if c.onNodes(at) || at-sp >= maxStack {
			add(at, c.arch.contextBytes())
		}
		if call, ok := vmread.Reader(read).Word(at + c.arch.function + behindCall); ok {
			add(call+listValue, 8)
		}
		at, ok = vmread.Reader(read).Word(at + contextNext)
	}
}
