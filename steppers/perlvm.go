package steppers

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// perlVM is what is known of the interpreter of a process.
type perlVM struct {
	*perlImage
	image  *procstate.Image
	bias   uint64
	tables *unwind.Tables
	vmMemory

	walk   uint64 // what follows is of this walk
	head   perlHead
	isRead bool      // whether it is known what the thread runs
	lost   bool      // which loop is whose is not known further out
	runs   []perlRun // innermost first
	subs   []perlSub // those of all runs
	top    int       // the innermost context
	next   int       // of the runs, the first that belongs to none of the loops so far,
	shared bool      // or to one, and to the loop that this is called by

	lacks bool // what the thread runs was not captured
	asked framesAsked

	frames [2]unwind.Frame // on the way to the caller of a loop
	regs   procstate.Regs
	info   [siBytes]byte // what is read
	cx     [maxContextBytes]byte
	outer  [maxContextBytes]byte // one further out
	opBuf  [opBytes]byte
	// Functions of ops; nil: they are not read yet.
	catching, pushing, leaving map[uint64]bool

	codes  map[perlCode]uint32 // numbers in unwind.Codes
	resets int                 // of these
	known  map[uint64]*perlFunction
	files  map[perlFile]*perlFunction
	cops   map[uint64]*perlCop
	kinds  map[uint64]perlOpKind    // of ops
	roots  map[uint64]perlRoot      // and of their trees
	byRoot map[uint64]*perlFunction // which had one
	steps  int                      // that may still be made to such
	now    time.Time                // of the walk
	serial uint32
}

// perlHead is where an interpreter is, and what of it leads to all else.
type perlHead struct {
	current        uint64 // address of the word with the PERL_SI
	op, curcop, si uint64
	compiling      uint64 // a statement that is none yet
}

// perlCode is a line of a function, and the number of what that is called by.
type perlCode struct {
	function uint32
	line     int32
	outer    uint32
}

// Limits on what is read.
const (
	maxPerlInfos     = 1 << 10 // PERL_SI of a thread
	maxPerlContexts  = 1 << 17
	maxPerlSubs      = 1 << 14
	maxPerlFunctions = 1 << 15
	maxPerlCops      = 1 << 16
	maxPerlOps       = 1 << 16
	maxPerlStashes   = 1 << 20
	maxPerlSteps     = 1 << 15 // from ops to the roots of their trees, in a walk
	maxPerlCodes     = 1 << 18
	maxPerlThreads   = 1 << 14
	maxPerlName      = 1 << 10     // bytes
	perlCodeInterval = time.Second // after which what is known of code is looked at again
)

func newPerlVM(w *unwind.Walker, m *procstate.Mapping, p *perlImage, tables *unwind.Tables) *perlVM {
	return &perlVM{
		perlImage: p, image: m.Image, bias: m.Bias, tables: tables, vmMemory: vmMemoryOf(w), asked: framesAsked{},
		serial: 1, known: map[uint64]*perlFunction{}, files: map[perlFile]*perlFunction{}, cops: map[uint64]*perlCop{}, kinds: map[uint64]perlOpKind{}, roots: map[uint64]perlRoot{}, byRoot: map[uint64]*perlFunction{},
	}
}

// begin begins a walk.
func (vm *perlVM) begin(walk uint64) {
	vm.now, vm.steps = time.Now(), maxPerlSteps
	vm.walk, vm.isRead, vm.lost, vm.lacks, vm.next, vm.shared = walk, false, false, false, 0, false
	vm.runs, vm.subs = vm.runs[:0], vm.subs[:0]
}

// codeOf returns the number of the functions that run in a frame of the loop; 0 when that is not
// known.
func (vm *perlVM) codeOf(w *unwind.Walker, in *unwind.Frame) uint32 {
	if vm.lost {
		return 0
	}
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[perlCode]uint32{}, codes.Resets()
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
func (vm *perlVM) headOf(in *unwind.Frame) (head perlHead, ok bool) {
	if !vm.isThreaded {
		return perlHead{current: vm.current + vm.bias}, true
	}
	if in.Flags&unwind.Interrupted != 0 && in.LookupPC()-vm.bias-vm.loop.start < vm.regSet {
		return head, false
	}
	interpreter, ok := in.Regs.Value(vm.reg)
	return perlHead{current: interpreter + vm.fields.current, compiling: interpreter + vm.fields.compiling}, ok && interpreter%8 == 0 && interpreter != 0
}

// headAt returns where the words with the op and the statement are.
func (vm *perlVM) headAt() (op, cop uint64) {
	if !vm.isThreaded {
		return vm.op + vm.bias, vm.perlImage.curcop + vm.bias
	}
	interpreter := vm.head.current - vm.fields.current
	return interpreter + perlOp, interpreter + vm.fields.curcop
}

// readHead reads what the interpreter says of the moment.
func (vm *perlVM) readHead() bool {
	h := &vm.head
	op, cop := vm.headAt()
	var ok [3]bool
	h.si, ok[0] = vm.word(h.current)
	h.op, ok[1] = vm.word(op)
	h.curcop, ok[2] = vm.word(cop)
	if !ok[0] || !ok[1] || !ok[2] {
		vm.lacks = vm.captured != nil
		return false
	}
	return true
}

// number returns the number of functions that call each other, innermost first.
func (vm *perlVM) number(codes *unwind.Codes, subs []perlSub) (number uint32) {
	for i := len(subs) - 1; i >= 0; i-- {
		fn, line := vm.functionOf(&subs[i])
		key := perlCode{fn.serial, int32(line), number}
		n, ok := vm.codes[key]
		if !ok && len(vm.codes) < maxPerlCodes {
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

// perlOpKind is what an op does, as it was.
type perlOpKind struct {
	kind    uint32
	checked time.Time
}

// opKindOf returns what an op does: one that C calls with is on its stack.
func (vm *perlVM) opKindOf(op uint64) (kind uint32, ok bool) {
	b := vm.buf[:4]
	if vm.read(op+opType, b) {
		return binary.LittleEndian.Uint32(b) & opKind, true
	}
	is, known := vm.kinds[op]
	if known && vm.now.Sub(is.checked) < perlCodeInterval {
		return is.kind, true
	}
	if !vm.readNow(op+opType, b) {
		return 0, false
	}
	if len(vm.kinds) >= maxPerlOps {
		clear(vm.kinds)
	}
	is = perlOpKind{binary.LittleEndian.Uint32(b) & opKind, vm.now}
	vm.kinds[op] = is
	return is.kind, true
}
