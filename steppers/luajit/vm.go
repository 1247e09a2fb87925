package luajit

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of LuaJIT in a process.
type machine struct {
	*imageInfo
	image *procstate.Image // nil: there is none
	bias  uint64
	vmread.Memory
	vmread.Found

	globals map[uint64]*global // by address of the global_State; nil where there is none
	asked   vmread.FramesAsked

	// Of the walk:
	now     time.Time
	threads []thread // whose frames were met
	subs    []runningCall
	isBegun bool // the innermost frame was looked for
	isKnown bool // there are names
	isGone  bool // the innermost closure is no more
	lacks   bool // what runs was not captured
	lacked  lacked
	regs    procstate.Regs
	overlay overlay
	code    [look]byte

	codes      map[code]uint32 // numbers in unwind.Codes
	resets     int             // of these
	protos     map[uint64]*proto
	order      []*proto // by address
	natives    map[native]*proto
	made       map[uint64]madeName // what prototypes are called by where closures of them are made
	names      map[uint64]string   // and by fields of modules
	called     map[native]string   // and functions of C
	namesUntil time.Time           // for how long these two hold
	children   int                 // that may still be looked at for what they are called
	functions  map[uint64]closure
	traces     map[uint64]*traces // of a global_State
	serial     uint32
}

// global is a global_State.
type global struct {
	at      uint64
	main    uint64 // the lua_State of the main thread, which is right before it
	checked time.Time
}

// thread is where a lua_State is, and how far its frames were followed.
type thread struct {
	at, stack, end uint64
	link           uint64 // address of the link of the next frame,
	frame          uint64 // and of the frame of C that this is in
	isLost         bool   // it is not known which that is
}

// lacked tells of what was not captured: the global_State, and the lua_State whose stack that was.
type lacked struct{ global, thread uint64 }

// code is a line of a function, and the number of what that is called by.
type code struct {
	function   uint32
	line       int32
	isCompiled bool
	outer      uint32
}

// Limits on what is read.
const (
	maxFrames    = 1 << 14
	maxThreads   = 1 << 8 // in a walk
	maxGlobals   = 1 << 10
	maxStack     = 1 << 20 // bytes: LuaJIT's own limit is half of that
	maxFunctions = 1 << 15
	maxCodes     = 1 << 18
	maxBytecode  = 1 << 18 // instructions of a function
	maxConstants = 1 << 16
	maxVariables = 1 << 20 // bytes of the names of a function
	maxString    = 1 << 10 // bytes
	maxModules   = 1 << 12 // tables that names are looked for in
	maxNodes     = 1 << 18 // of these, in all

	interval = time.Second // after which what is known is looked at again
)

// Fields of a lua_State (lj_obj.h).
const (
	ljKind       = 9 // of any object: what it is
	ljGlobal     = 16
	ljBase       = 32
	ljTop        = 40
	ljMaxStack   = 48
	ljStack      = 56
	ljCFrame     = 80
	ljStateBytes = 88

	ljFrameFlags = 3 // of the address of a frame of C

	ljStateKind = 6
	ljProtoKind = 7
	ljFuncKind  = 8
)

// machine returns what is known of LuaJIT in the process that w walks, nil where there is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, isNew := vmread.MachineOf(w, s, s.findMachine)
	if vm.image == nil {
		return nil
	}
	if isNew {
		vm.now = time.Now()
		vm.threads, vm.isBegun, vm.isKnown, vm.lacks, vm.lacked = vm.threads[:0], false, false, false, lacked{}
		if codes := w.Codes(); vm.codes == nil || vm.resets != codes.Resets() {
			vm.codes, vm.resets = map[code]uint32{}, codes.Resets()
		}
	}
	return vm
}

// findMachine looks for LuaJIT, which may be the one that is known. What it returns has no image where there is none.
func (s *Stepper) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	if libs == nil {
		return &machine{}
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.code.End == 0 {
			continue
		}
		if known != nil && known.image == lib.Image && known.bias == lib.Bias {
			return known
		}
		return newVM(p, lib.Image, lib.Bias, vmread.MemoryOf(w))
	}
	return &machine{}
}

func newVM(p *imageInfo, im *procstate.Image, bias uint64, m vmread.Memory) *machine {
	return &machine{
		imageInfo: p, image: im, bias: bias, Memory: m, asked: vmread.FramesAsked{}, serial: 1,
		globals: map[uint64]*global{}, made: map[uint64]madeName{}, protos: map[uint64]*proto{}, natives: map[native]*proto{},
		functions: map[uint64]closure{}, traces: map[uint64]*traces{},
	}
}

// globalAt returns the global_State at an address, nil where there is none.
func (vm *machine) globalAt(at uint64) *global {
	g, known := vm.globals[at]
	if known && (g != nil && vm.now.Sub(g.checked) < interval) {
		return g
	}
	main, ok := findMain(vm.ReadNow, at)
	if !ok {
		if _, ok := vm.WordNow(at); known && !ok {
			return g // the process has ended, likely
		}
		return nil
	}
	if len(vm.globals) >= maxGlobals {
		clear(vm.globals)
		clear(vm.traces)
	}
	g = &global{at: at, main: main, checked: vm.now}
	vm.globals[at] = g
	return g
}

// findMain returns the main thread of what may be a global_State. It is right before that, in one object.
func findMain(read vmread.Reader, global uint64) (main uint64, ok bool) {
	const most = 160 // bytes of a lua_State: some builds have more in it than others
	if global%8 != 0 || global < most {
		return 0, false
	}
	var b [most]byte
	if !read(global-most, b[:]) {
		return 0, false
	}
	for n := ljStateBytes; n <= most; n += 8 {
		state := b[most-n:]
		if binary.LittleEndian.Uint64(state[ljGlobal:]) == global && state[ljKind] == ljStateKind {
			return global - uint64(n), true
		}
	}
	return 0, false
}

// ofState returns the global_State of a lua_State, nil where that is none.
func (vm *machine) ofState(state uint64) *global {
	if state == 0 || state%8 != 0 {
		return nil
	}
	for _, g := range vm.globals { // mostly there is one, and what runs was captured
		if current, ok := vm.Word(g.at + vm.current); ok && current == state {
			return vm.globalAt(g.at)
		}
	}
	var b [ljGlobal + 8]byte
	if !vm.ReadNow(state, b[:]) || b[ljKind] != ljStateKind {
		return nil
	}
	return vm.globalAt(binary.LittleEndian.Uint64(b[ljGlobal:]))
}

// thread returns a lua_State as it was, and notes what was not captured of it; isNew tells that it was not met before
// in the walk. It is nil where there are too many.
func (vm *machine) thread(g *global, at uint64) (t *thread, isNew bool) {
	for i := range vm.threads {
		if vm.threads[i].at == at {
			return &vm.threads[i], false
		}
	}
	if len(vm.threads) >= maxThreads {
		return nil, false
	}
	vm.threads = append(vm.threads, thread{at: at, isLost: true})
	t = &vm.threads[len(vm.threads)-1]
	var b [ljStateBytes]byte
	if !vm.Read(at, b[:]) {
		vm.lack(g.at, at)
		return t, true
	}
	le := binary.LittleEndian
	stack, end, base := le.Uint64(b[ljStack:]), le.Uint64(b[ljMaxStack:]), le.Uint64(b[ljBase:])
	if le.Uint64(b[ljGlobal:]) == g.at && stack%8 == 0 && end > stack && end-stack <= maxStack {
		t.stack, t.end, t.link, t.frame, t.isLost = stack, end, base-8, le.Uint64(b[ljCFrame:])&^ljFrameFlags, false
	}
	return t, true
}

// lack notes what was not captured.
func (vm *machine) lack(global, thread uint64) {
	if vm.Captured != nil && !vm.lacks {
		vm.lacks, vm.lacked = true, lacked{global, thread}
	}
}

// number returns the number of functions that call each other, innermost first.
func (vm *machine) number(codes *unwind.Codes, calls []runningCall) (number uint32) {
	for i := len(calls) - 1; i >= 0; i-- {
		c := &calls[i]
		fn, line := vm.functionOf(c)
		if fn == nil {
			continue // of C, which has no name: its frame has its place
		}
		key := code{fn.serial, int32(line), c.isCompiled, number}
		n, ok := vm.codes[key]
		if !ok && len(vm.codes) < maxCodes {
			n = codes.Add(0, []unwind.CodeLine{{CodeFunction: fn.CodeFunction, Line: line, IsCompiled: c.isCompiled}}, number)
			vm.codes[key] = n
		}
		if n == 0 {
			return 0 // there is no room: rather none than some
		}
		number = n
	}
	return number
}
