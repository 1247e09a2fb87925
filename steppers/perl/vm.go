package perl

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of the interpreter of a process.
type machine struct {
	*imageInfo
	image  *procstate.Image
	bias   uint64
	tables *unwind.Tables
	vmread.Memory

	walk   uint64 // what follows is of this walk
	head   interpreterHead
	isRead bool  // whether it is known what the thread runs
	lost   bool  // which loop is whose is not known further out
	runs   []run // innermost first
	subs   []sub // those of all runs
	top    int   // the innermost context
	next   int   // of the runs, the first that belongs to none of the loops so far,
	shared bool  // or to one, and to the loop that this is called by

	lacks bool // what the thread runs was not captured
	asked vmread.FramesAsked

	frames [2]unwind.Frame // on the way to the caller of a loop
	regs   procstate.Regs
	info   [siBytes]byte // what is read
	cx     [maxContextBytes]byte
	outer  [maxContextBytes]byte // one further out
	opBuf  [opBytes]byte
	// Functions of ops; nil: they are not read yet.
	catching, pushing, leaving map[uint64]bool

	codes  map[code]uint32 // numbers in unwind.Codes
	resets int             // of these
	known  map[uint64]*function
	files  map[fileBody]*function
	cops   map[uint64]*statement
	kinds  map[uint64]opAction  // of ops
	roots  map[uint64]rootOp    // and of their trees
	byRoot map[uint64]*function // which had one
	steps  int                  // that may still be made to such
	now    time.Time            // of the walk
	serial uint32
}

// interpreterHead is where an interpreter is, and what of it leads to all else.
type interpreterHead struct {
	current        uint64 // address of the word with the PERL_SI
	op, curcop, si uint64
	compiling      uint64 // a statement that is none yet
}

// code is a line of a function, and the number of what that is called by.
type code struct {
	function uint32
	line     int32
	outer    uint32
}

// Limits on what is read.
const (
	maxInfos     = 1 << 10 // PERL_SI of a thread
	maxContexts  = 1 << 17
	maxSubs      = 1 << 14
	maxFunctions = 1 << 15
	maxCops      = 1 << 16
	maxOps       = 1 << 16
	maxStashes   = 1 << 20
	maxSteps     = 1 << 15 // from ops to the roots of their trees, in a walk
	maxCodes     = 1 << 18
	maxThreads   = 1 << 14
	maxName      = 1 << 10     // bytes
	codeInterval = time.Second // after which what is known of code is looked at again
)

func newVM(w *unwind.Walker, m *procstate.Mapping, p *imageInfo, tables *unwind.Tables) *machine {
	return &machine{
		imageInfo: p, image: m.Image, bias: m.Bias, tables: tables, Memory: vmread.MemoryOf(w), asked: vmread.FramesAsked{},
		serial: 1, known: map[uint64]*function{}, files: map[fileBody]*function{}, cops: map[uint64]*statement{}, kinds: map[uint64]opAction{}, roots: map[uint64]rootOp{}, byRoot: map[uint64]*function{},
	}
}

// begin begins a walk.
func (vm *machine) begin(walk uint64) {
	vm.now, vm.steps = time.Now(), maxSteps
	vm.walk, vm.isRead, vm.lost, vm.lacks, vm.next, vm.shared = walk, false, false, false, 0, false
	vm.runs, vm.subs = vm.runs[:0], vm.subs[:0]
}

// codeOf returns the number of the functions that run in a frame of the loop; 0 when that is not
// known.
func (vm *machine) codeOf(w *unwind.Walker, in *unwind.Frame) uint32 {
	if vm.lost {
		return 0
	}
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[code]uint32{}, codes.Resets()
	}
	head, ok := vm.headOf(in)
	switch {
	case !ok:
	case !vm.isRead:
		vm.isRead, vm.head = true, head
		isPushing := vm.isPushing(w, in.Thread)
		ok = vm.readHead() && vm.readRuns(isPushing) && vm.isSettled(isPushing)
	default:
		ok = head.current == vm.head.current
	}
	kind, goesOn := perlUnknown, false
	if ok {
		kind, goesOn = vm.loopKind(w, in)
		ok = kind != perlUnknown
	}
	if !ok {
		vm.lost = true
		return 0
	}
	first, end := vm.take(kind, goesOn)
	return vm.number(codes, vm.subs[first:end])
}

// headOf tells where the interpreter is that runs in a frame of the loop.
func (vm *machine) headOf(in *unwind.Frame) (head interpreterHead, ok bool) {
	if !vm.isThreaded {
		return interpreterHead{current: vm.current + vm.bias}, true
	}
	if in.Flags&unwind.Interrupted != 0 && in.LookupPC()-vm.bias-vm.loop.Start < vm.regSet {
		return head, false
	}
	interpreter, ok := in.Regs.Value(vm.reg)
	return interpreterHead{current: interpreter + vm.fields.current, compiling: interpreter + vm.fields.compiling}, ok && interpreter%8 == 0 && interpreter != 0
}

// headAt returns where the words with the op and the statement are.
func (vm *machine) headAt() (op, cop uint64) {
	if !vm.isThreaded {
		return vm.op + vm.bias, vm.imageInfo.curcop + vm.bias
	}
	interpreter := vm.head.current - vm.fields.current
	return interpreter + perlOp, interpreter + vm.fields.curcop
}

// readHead reads what the interpreter says of the moment.
func (vm *machine) readHead() bool {
	h := &vm.head
	op, cop := vm.headAt()
	var ok [3]bool
	h.si, ok[0] = vm.Word(h.current)
	h.op, ok[1] = vm.Word(op)
	h.curcop, ok[2] = vm.Word(cop)
	if !ok[0] || !ok[1] || !ok[2] {
		vm.lacks = vm.Captured != nil
		return false
	}
	return true
}

// number returns the number of functions that call each other, innermost first.
func (vm *machine) number(codes *unwind.Codes, subs []sub) (number uint32) {
	for i := len(subs) - 1; i >= 0; i-- {
		fn, line := vm.functionOf(&subs[i])
		key := code{fn.serial, int32(line), number}
		n, ok := vm.codes[key]
		if !ok && len(vm.codes) < maxCodes {
			n = codes.Add(0, []unwind.CodeLine{{CodeFunction: fn.CodeFunction, Line: line}}, number)
			vm.codes[key] = n
		}
		if n == 0 {
			return 0 // there is no room: rather none than some
		}
		number = n
	}
	return number
}

// opAction is what an op does, as it was.
type opAction struct {
	kind    uint32
	checked time.Time
}

// hasEnded reports whether the process has ended.
func (vm *machine) hasEnded() bool { return vm.HasEnded(vm.image, vm.bias) }

// opKindOf returns what an op does: one that C calls with is on its stack.
func (vm *machine) opKindOf(op uint64) (kind uint32, ok bool) {
	b := vm.Buf[:4]
	if vm.Read(op+opType, b) {
		return binary.LittleEndian.Uint32(b) & opKind, true
	}
	is, known := vm.kinds[op]
	if known && vm.now.Sub(is.checked) < codeInterval {
		return is.kind, true
	}
	if !vm.ReadNow(op+opType, b) {
		return is.kind, known && vm.hasEnded()
	}
	if len(vm.kinds) >= maxOps {
		clear(vm.kinds)
	}
	is = opAction{binary.LittleEndian.Uint32(b) & opKind, vm.now}
	vm.kinds[op] = is
	return is.kind, true
}
