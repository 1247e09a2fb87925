package steppers

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// luaVM is what is known of Lua in a process.
type luaVM struct {
	*luaImage
	image *procstate.Image
	bias  uint64
	vmMemory

	walk    uint64 // the threads are those of this walk
	now     time.Time
	threads []luaThread
	lacked  uint64 // the innermost lua_State that was not captured; 0: none
	asked   map[int]luaAsked

	codes       map[luaCode]uint32   // numbers in unwind.Codes
	resets      int                  // of these
	known       []*luaProto          // by where their instructions begin
	byConstants map[uint64]*luaProto // and by where their constants are
	ofConstants map[luaPlace]int     // where luaV_execute has these, and in how many
	placed      int                  // of so many frames
	serial      uint32
	calls       map[uint64]bool // whether instructions of 5.1 are calls,
	since       time.Time       // looked at since then
	learning    luaLearning

	head  [luaMaxState]byte // what is read
	call  [maxLuaCall]byte
	words [maxLuaFrame]byte
}

// luaCode is a line of a function, and the number of what that is called by.
type luaCode struct {
	function uint32
	line     int32
	outer    uint32
}

// luaAsked is which lua_State's calls are copied of a thread, and in how many walks that or another one ran since.
type luaAsked struct {
	state       uint64
	at          time.Time
	had, missed int
}

// Limits on what is read.
const (
	maxLuaStates   = 1 << 8 // of a thread
	maxLuaCalls    = 1 << 15
	maxLuaFrame    = 4 << 10 // bytes of a frame of luaV_execute
	maxLuaProtos   = 1 << 15
	maxLuaInner    = 1 << 12 // functions that are read with the one that they are in
	maxLuaOps      = 1 << 20
	maxLuaCodes    = 1 << 18
	maxLuaThreads  = 1 << 14
	minLuaPlaced   = 64
	maxLuaName     = 1 << 10 // bytes
	luaInterval    = 100 * time.Millisecond
	luaRuntime     = "lua"
	maxLuaCallSite = 1 << 14
)

func newLuaVM(w *unwind.Walker, m *procstate.Mapping, p *luaImage) *luaVM {
	return &luaVM{
		luaImage: p, image: m.Image, bias: m.Bias, vmMemory: vmMemoryOf(w),
		asked: map[int]luaAsked{}, calls: map[uint64]bool{}, byConstants: map[uint64]*luaProto{}, ofConstants: map[luaPlace]int{},
	}
}

// begin begins a walk.
func (vm *luaVM) begin(walk uint64) {
	vm.walk, vm.now, vm.lacked, vm.threads = walk, time.Now(), 0, vm.threads[:0]
	if vm.now.Sub(vm.since) >= luaInterval {
		clear(vm.calls)
		vm.since = vm.now
	}
}

// codeOf returns the number of the functions that run in a frame of luaV_execute; 0 when that is not known.
func (vm *luaVM) codeOf(w *unwind.Walker, in *unwind.Frame) uint32 {
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[luaCode]uint32{}, codes.Resets()
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
		if number = vm.number(codes, &luaOthers, 0, 0); number == 0 {
			return 0
		}
		last--
	}
	t.next = last + 1
	for i := last; i >= first; i-- {
		c, fn, line := &t.calls[i], &luaGone, 0
		p := vm.functionOf(c)
		if p == nil && vm.learn(t.at) {
			p = vm.knownAt(c.next)
		}
		if p != nil {
			fn = p
			if i == first {
				vm.learnPlaces(p, in, cfa)
			}
			if i > 0 || vm.fields.hasNext {
				line = p.line(c.next)
			} else {
				line = p.lineNow(in)
			}
		}
		if number = vm.number(codes, fn, line, number); number == 0 {
			return 0 // there is no room: rather none than some
		}
	}
	return number
}

// number returns the number of a function in a line, which is called by that of another number in the same
// frame; 0 when there is no room.
func (vm *luaVM) number(codes *unwind.Codes, fn *luaProto, line int, outer uint32) uint32 {
	key := luaCode{fn.serial, int32(line), outer}
	n, ok := vm.codes[key]
	if !ok && len(vm.codes) < maxLuaCodes {
		n = codes.Add(0, []unwind.CodeLine{{CodeFunction: fn.CodeFunction, Line: line}}, outer)
		vm.codes[key] = n
	}
	return n
}

// threadOf returns the lua_State that a frame of luaV_execute runs, nil when it is not known.
func (vm *luaVM) threadOf(in *unwind.Frame, cfa uint64) *luaThread {
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
func (vm *luaVM) find(t *luaThread, in *unwind.Frame, cfa uint64) int {
	found, isOnly, hasReg := -1, true, false
	vm.eachPlace(in, cfa, func(place luaPlace, v uint64) {
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
func (vm *luaVM) innermost(codes *unwind.Codes, in *unwind.Frame, cfa uint64) uint32 {
	var found *luaProto
	if vm.placed < minLuaPlaced {
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
	number := vm.number(codes, &luaOthers, 0, 0)
	if number == 0 {
		return 0
	}
	return vm.number(codes, found, found.lineNow(in), number)
}

// withoutConstants returns the function without constants of which an instruction is in a register, nil where there
// is none.
func (vm *luaVM) withoutConstants(in *unwind.Frame) (found *luaProto) {
	a := procstate.AMD64
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
func (vm *luaVM) valueAt(place luaPlace, in *unwind.Frame, cfa uint64) (uint64, bool) {
	if place.isWord {
		return vm.word(cfa + uint64(place.offset))
	}
	return in.Regs.Value(place.reg)
}

// learnPlaces notes where luaV_execute has the constants of the function that it runs: where they were nearly each
// time. While a function is called or returns they may be those of another.
func (vm *luaVM) learnPlaces(p *luaProto, in *unwind.Frame, cfa uint64) {
	if vm.placed >= minLuaPlaced || p.constants == 0 || in.Flags&unwind.Interrupted != 0 {
		return
	}
	vm.eachPlace(in, cfa, func(place luaPlace, v uint64) {
		if v == p.constants {
			vm.ofConstants[place]++
		}
	})
	if vm.placed++; vm.placed == minLuaPlaced {
		const part = 8
		maps.DeleteFunc(vm.ofConstants, func(_ luaPlace, n int) bool { return n < minLuaPlaced-minLuaPlaced/part })
	}
}

// eachPlace visits the registers and the words on the stack of C that a frame of luaV_execute has.
func (vm *luaVM) eachPlace(in *unwind.Frame, cfa uint64, visit func(place luaPlace, v uint64)) {
	a := procstate.AMD64
	for saved := a.CalleeSaved &^ (1 << a.SP); saved != 0; saved &= saved - 1 {
		reg := procstate.Reg(bits.TrailingZeros64(saved))
		if v, ok := in.Regs.Value(reg); ok {
			visit(luaPlace{reg: reg}, v)
		}
	}
	sp := in.SP()
	if cfa-sp > maxLuaFrame {
		return
	}
	b := vm.words[:(cfa-sp)&^7]
	if !vm.read(sp, b) {
		return
	}
	for i := 0; i < len(b); i += 8 {
		visit(luaPlace{isWord: true, offset: int64(sp + uint64(i) - cfa)}, binary.LittleEndian.Uint64(b[i:]))
	}
}

// findOld is find in 5.1, where it is known of most frames alone: the next one, if that has begun.
func (vm *luaVM) findOld(t *luaThread, in *unwind.Frame) int {
	for i := t.next; i < len(t.calls); i++ {
		c := &t.calls[i]
		if !c.isLua {
			continue
		}
		if i == 0 && c.begins && in.Flags&unwind.Interrupted == 0 {
			if p := vm.functionOf(c); p == nil || c.next == p.code.start {
				return -1
			}
		}
		return i
	}
	return -1
}
