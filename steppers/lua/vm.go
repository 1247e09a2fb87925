package lua

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of Lua in a process.
type machine struct {
	*imageInfo
	image *procstate.Image
	bias  uint64
	vmread.Memory

	walk    uint64 // the threads are those of this walk
	now     time.Time
	threads []thread
	lacked  uint64 // the innermost lua_State that was not captured; 0: none
	asked   map[int]askedThread

	codes       map[code]uint32   // numbers in unwind.Codes
	resets      int               // of these
	known       []*proto          // by where their instructions begin
	byConstants map[uint64]*proto // and by where their constants are
	ofConstants map[keptPlace]int // where luaV_execute has these, and in how many
	placed      int               // of so many frames
	names       names
	serial      uint32
	calls       map[uint64]bool // whether instructions of 5.1 are calls,
	since       time.Time       // looked at since then
	learning    learning

	head  [luaMaxState]byte // what is read
	call  [maxLuaCall]byte
	words [maxFrame]byte
}

// code is a line of a function, and the number of what that is called by.
type code struct {
	function uint32
	line     int32
	outer    uint32
}

// askedThread is which lua_State's calls are copied of a thread, since when, and in how many walks of the last time
// that or another one ran.
type askedThread struct {
	state       uint64
	at          time.Time
	since       time.Time
	had, missed int
}

// Limits on what is read.
const (
	maxStates   = 1 << 8 // of a thread
	maxCalls    = 1 << 15
	maxFrame    = 4 << 10 // bytes of a frame of luaV_execute
	maxProtos   = 1 << 15
	maxInner    = 1 << 12 // functions that are read with the one that they are in
	maxOps      = 1 << 20
	maxCodes    = 1 << 18
	maxThreads  = 1 << 14
	minPlaced   = 64
	maxName     = 1 << 10 // bytes
	interval    = 100 * time.Millisecond
	runtime     = "lua"
	maxCallSite = 1 << 14
)

func newVM(w *unwind.Walker, m *procstate.Mapping, p *imageInfo) *machine {
	return &machine{
		imageInfo: p, image: m.Image, bias: m.Bias, Memory: vmread.MemoryOf(w),
		asked: map[int]askedThread{}, calls: map[uint64]bool{}, byConstants: map[uint64]*proto{}, ofConstants: map[keptPlace]int{},
	}
}

// begin begins a walk.
func (vm *machine) begin(walk uint64) {
	vm.walk, vm.now, vm.lacked, vm.threads = walk, time.Now(), 0, vm.threads[:0]
	if vm.now.Sub(vm.since) >= interval {
		clear(vm.calls)
		vm.since = vm.now
	}
}

// codeOf returns the number of the functions that run in a frame of luaV_execute; 0 when that is not known.
func (vm *machine) codeOf(w *unwind.Walker, in *unwind.Frame) uint32 {
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[code]uint32{}, codes.Resets()
	}
	cfa, ok := in.Regs.Value(vm.frame.Reg)
	cfa += uint64(vm.frame.Offset)
	if !ok || cfa <= in.SP() {
		return 0
	}
	t := vm.threadOf(in, cfa)
	switch {
	case t == nil || !t.isCopied: // it may be gone
		return vm.innermost(codes, in, cfa)
	case t.isLost:
		return 0
	}
	first := vm.find(t, in, cfa)
	if first < 0 {
		t.isLost = true
		return 0
	}
	last := first
	for last < len(t.calls) && t.calls[last].isLua && !t.calls[last].begins {
		last++
	}
	isCut := last == len(t.calls) && t.isCut
	if !isCut && (last == len(t.calls) || !t.calls[last].isLua) {
		t.isLost = true // what has called luaV_execute is not among them
		return 0
	}
	number := uint32(0)
	if isCut {
		t.isLost = true
		if number = vm.number(codes, &others, 0, 0); number == 0 {
			return 0
		}
		last--
	}
	t.next = last + 1
	for i := last; i >= first; i-- {
		c, fn, line := &t.calls[i], &notRead, 0
		p := vm.functionOf(c)
		if p == nil && vm.learn(t.at) {
			p = vm.knownAt(c.next)
		}
		if p == nil {
			p = vm.foundWith(c.next)
		}
		if p != nil {
			if vm.lacksName(p) {
				vm.meet(t)
				vm.seek(p)
			}
			fn = p
			if i == first {
				vm.learnPlaces(p, in, cfa)
			}
			if i > 0 || vm.fields.hasNext {
				line = p.line(c.next)
			} else {
				line = p.lineNow(vm.arch, in)
			}
		}
		if number = vm.number(codes, fn, line, number); number == 0 {
			return 0 // there is no room: rather none than some
		}
	}
	return number
}

// meet reads what runs further out, which tells what functions are called that are made there.
func (vm *machine) meet(t *thread) {
	if t.isMet {
		return
	}
	t.isMet = true
	for i := len(t.calls) - 1; i >= t.next; i-- {
		if t.calls[i].isLua {
			vm.functionOf(&t.calls[i])
		}
	}
}

// number returns the number of a function in a line, which is called by that of another number in the same
// frame; 0 when there is no room.
func (vm *machine) number(codes *unwind.Codes, fn *proto, line int, outer uint32) uint32 {
	key := code{fn.serial, int32(line), outer}
	n, ok := vm.codes[key]
	if !ok && len(vm.codes) < maxCodes {
		n = codes.Add(0, []unwind.CodeLine{{CodeFunction: fn.CodeFunction, Line: line}}, outer)
		vm.codes[key] = n
	}
	return n
}

// threadOf returns the lua_State that a frame of luaV_execute runs, nil when it is not known.
func (vm *machine) threadOf(in *unwind.Frame, cfa uint64) *thread {
	for _, place := range vm.places {
		at, ok := vm.valueAt(place, in, cfa)
		if !ok || at == 0 || at%8 != 0 {
			continue
		}
		if t := vm.thread(at); t != nil {
			return t
		}
	}
	return nil
}

// find returns which of the calls of a lua_State a frame of luaV_execute runs: the one whose address is in a
// register, or else on the stack of C in the frame; -1 when that is not known.
func (vm *machine) find(t *thread, in *unwind.Frame, cfa uint64) int {
	found, isOnly, hasReg := -1, true, false
	vm.eachPlace(in, cfa, func(place keptPlace, v uint64) {
		if place.isWord && hasReg {
			return
		}
		i := t.find(v)
		if i >= 0 && vm.fields.previous == 0 {
			i = t.running(i) // 5.1 reads where a call has its values anew after most of what it does
		}
		if i >= 0 && i != found {
			isOnly = isOnly && found < 0
			found = i
		}
		hasReg = found >= 0 && (hasReg || !place.isWord)
	})
	if found >= 0 && isOnly {
		return found
	}
	if vm.fields.previous != 0 {
		return -1
	}
	return vm.findOld(t, in)
}

// innermost returns the number of the function that a frame of luaV_execute runs whose lua_State was not copied,
// by where the interpreter has the function's constants; 0 where it is not known.
func (vm *machine) innermost(codes *unwind.Codes, in *unwind.Frame, cfa uint64) uint32 {
	var found *proto
	if vm.placed < minPlaced {
		return 0
	}
	for place := range vm.ofConstants {
		v, ok := vm.valueAt(place, in, cfa)
		p := vm.byConstants[v]
		if v == 0 {
			p = vm.withoutConstants(in)
		}
		if !ok || p == nil || found != nil && found != p {
			return 0
		}
		found = p
	}
	if found == nil || !vm.isStill(found) {
		return 0
	}
	if vm.lacksName(found) {
		vm.seek(found)
	}
	number := vm.number(codes, &others, 0, 0)
	if number == 0 {
		return 0
	}
	return vm.number(codes, found, found.lineNow(vm.arch, in), number)
}

// withoutConstants returns the function without constants of which an instruction is in a register, nil where there
// is none.
func (vm *machine) withoutConstants(in *unwind.Frame) (found *proto) {
	a := vm.arch
	for saved := a.CalleeSaved &^ (1 << a.SP); saved != 0; saved &= saved - 1 {
		v, ok := in.Regs.Value(procstate.Reg(bits.TrailingZeros64(saved)))
		p := vm.knownAt(v)
		if !ok || p == nil || p.constants != 0 {
			continue
		}
		if found != nil && found != p {
			return nil
		}
		found = p
	}
	return found
}

// valueAt returns what is in a place of a frame of luaV_execute.
func (vm *machine) valueAt(place keptPlace, in *unwind.Frame, cfa uint64) (uint64, bool) {
	if place.isWord {
		return vm.Word(cfa + uint64(place.offset))
	}
	return in.Regs.Value(place.reg)
}

// learnPlaces notes where luaV_execute has the constants of the function that it runs: where they were nearly each
// time. While a function is called or returns they may be those of another.
func (vm *machine) learnPlaces(p *proto, in *unwind.Frame, cfa uint64) {
	if vm.placed >= minPlaced || p.constants == 0 || in.Flags&unwind.Interrupted != 0 {
		return
	}
	vm.eachPlace(in, cfa, func(place keptPlace, v uint64) {
		if v == p.constants {
			vm.ofConstants[place]++
		}
	})
	if vm.placed++; vm.placed == minPlaced {
		const part = 8
		maps.DeleteFunc(vm.ofConstants, func(_ keptPlace, n int) bool { return n < minPlaced-minPlaced/part })
	}
}

// eachPlace visits the registers and the words on the stack of C that a frame of luaV_execute has.
func (vm *machine) eachPlace(in *unwind.Frame, cfa uint64, visit func(place keptPlace, v uint64)) {
	a := vm.arch
	for saved := a.CalleeSaved &^ (1 << a.SP); saved != 0; saved &= saved - 1 {
		reg := procstate.Reg(bits.TrailingZeros64(saved))
		if v, ok := in.Regs.Value(reg); ok {
			visit(keptPlace{reg: reg}, v)
		}
	}
	sp := in.SP()
	if cfa-sp > maxFrame {
		return
	}
	b := vm.words[:(cfa-sp)&^7]
	if !vm.Read(sp, b) {
		return
	}
	for i := 0; i < len(b); i += 8 {
		visit(keptPlace{isWord: true, offset: int64(sp + uint64(i) - cfa)}, binary.LittleEndian.Uint64(b[i:]))
	}
}

// findOld is find in 5.1, where it is known of most frames alone: the next one, if that has begun.
func (vm *machine) findOld(t *thread, in *unwind.Frame) int {
	for i := t.next; i < len(t.calls); i++ {
		c := &t.calls[i]
		if !c.isLua {
			continue
		}
		if i == 0 && c.begins && in.Flags&unwind.Interrupted == 0 {
			if p := vm.functionOf(c); p == nil || c.next == p.code.Start {
				return -1
			}
		}
		return i
	}
	return -1
}
