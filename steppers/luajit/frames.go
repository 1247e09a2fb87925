package luajit

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Kinds of link, in its low bits (lj_frame.h). All but the first have the distance to the caller's frame above these.
const (
	ljFromLua      = 0 // the address at which the caller goes on in its bytecode
	ljFromC        = 1
	ljContinuation = 2 // of a metamethod: two words before the function tell what comes then, and where
	ljVararg       = 3 // the function of the frame before, whose arguments are there
	ljFromLuaP     = 4
	ljFromCP       = 5
	ljPcall        = 6
	ljPcallHook    = 7

	ljLink = 7

	ljCallback = 1 // the continuation of what the FFI has called
)

// funcTag is the tag of a function, in the upper 17 bits of a value.
const funcTag = 0x1fff7

// runningCall is a function that runs.
type runningCall struct {
	function   uint64 // GCfunc; 0: not known
	pc         uint64 // the instruction behind the one that runs; 0: not known
	isExact    bool   // a link has told where that is
	isEntered  bool   // it runs none yet, or none any more
	isAbsent   bool   // it stands for what was not copied,
	isUnread   bool   // or for what cannot be told, as code is gone by which it is found
	isCompiled bool
	global     uint64
}

// innermostPlace is where the innermost function of Lua is, by one of the places that may tell.
type innermostPlace struct {
	base, pc uint64
	sure     bool // no need to look whether they fit together
}

// codeOf returns the number of the functions that run in a frame of C, at an address; 0 where that is not known.
func (vm *machine) codeOf(w *unwind.Walker, in *unwind.Frame, frame uint64, isTrace bool) uint32 {
	state, ok := vm.Word(frame + uint64(vm.arch.state))
	if !ok || frame%8 != 0 {
		return 0
	}
	g := vm.ofState(state)
	vm.subs, vm.overlay.isSet, vm.isGone = vm.subs[:0], false, false
	var t *thread
	isNew := true
	if g != nil {
		if t, isNew = vm.thread(g, state); t == nil {
			return 0
		}
	}
	pc := uint64(0)
	switch {
	case g == nil || t.isLost:
		// The one that has called what runs was not copied, and may be gone; or it is a function without a frame, that the
		// interpreter has called.
		if g == nil && (in.Flags&unwind.Interrupted != 0 || !vm.isBegun || state%8 != 0 || state>>32 == 0) || !isNew || !vm.isKnown {
			return 0
		}
		vm.subs = append(vm.subs, runningCall{isAbsent: true})
		return vm.number(w.Codes(), vm.subs)
	case frame < t.frame:
		return 0 // it is being entered, or left
	case frame > t.frame:
		t.isLost = true
		return 0
	case !vm.isBegun:
		vm.isBegun = true
		if pc, ok = vm.begin(w, in, g, t, frame, isTrace); !ok {
			t.isLost = true
			return 0
		}
	case isNew: // it has resumed the one before
	default:
		pc = vm.pcOf(in, frame)
	}
	if t.frame, ok = vm.Word(frame + uint64(vm.arch.outer)); !ok || !vm.follow(g, t, frame, pc, isTrace) {
		t.isLost = true
		if n := len(vm.subs); n > 0 && !vm.subs[n-1].isAbsent {
			vm.subs = append(vm.subs, runningCall{isUnread: true})
		}
	}
	t.frame &^= ljFrameFlags
	vm.isKnown = vm.isKnown || len(vm.subs) > 0
	return vm.number(w.Codes(), vm.subs)
}

// pcOf returns where the bytecode goes on that runs in a frame of the interpreter which has called C.
func (vm *machine) pcOf(in *unwind.Frame, frame uint64) uint64 {
	if pc, ok := in.Regs.Value(vm.arch.pc); ok && pc%4 == 0 {
		return pc
	}
	pc, _ := vm.Word(frame + uint64(vm.arch.next))
	return pc
}

// begin finds the innermost frame of Lua, and where that goes on in its bytecode.
func (vm *machine) begin(w *unwind.Walker, in *unwind.Frame, g *global, t *thread, frame uint64, isTrace bool) (pc uint64, ok bool) {
	base, ok := vm.Word(g.at + vm.jitBase)
	current, ok2 := vm.Word(g.at + vm.current)
	if !ok || !ok2 {
		vm.lack(g.at, t.at)
		return 0, false
	}
	if isTrace && base != 0 && current == t.at {
		t.link = base - 8
		if vm.interprets(in.LookupPC()) {
			return 0, true
		}
		return vm.overlay.begin(vm, in, g, t), true
	}
	if isTrace {
		return 0, true // what is left has put down its frame
	}
	top := &vm.regs
	if w.ProcessState().Registers(in.Thread, top) != nil {
		return 0, false
	}
	const helpers = 32 // bytes of return addresses
	runs := frame-top.Raw(vm.arch.SP) < helpers && vm.interprets(top.Raw(w.Arch().PC))
	if !runs {
		at := innermostPlace{base: t.link + 8, pc: vm.pcOf(in, frame), sure: true}
		if kept, ok := in.Regs.Value(vm.arch.kept); ok && vm.keepsBase(in.PC()) {
			is := innermostPlace{base: kept, pc: at.pc}
			if vm.arch.kept != vm.arch.base || vm.fits(g, t, &is) { // or it is that of a frame that is not begun
				at = is
			}
		}
		fits := vm.fits(g, t, &at)
		if !at.sure && !fits {
			return 0, false
		}
		t.link = at.base - 8
		if saved := (innermostPlace{base: at.base}); !fits { // the register is not set yet
			if saved.pc, ok = vm.Word(frame + uint64(vm.arch.next)); ok && vm.fits(g, t, &saved) {
				return saved.pc, true
			}
		}
		return at.pc, true
	}
	at := innermostPlace{base: top.Raw(vm.arch.base), pc: top.Raw(vm.arch.pc)}
	before := top.Raw(vm.arch.before)
	switch kind := at.pc & ljLink; {
	case at.pc%8 == 0 && at.pc > t.stack && at.pc <= at.base && at.base <= t.end+slack:
		// It returns to C, and has in place of the address of an instruction that of the frame that goes on.
		t.link = at.pc - 8
		return 0, true
	case at.pc < maxStack && (kind == ljFromC || kind == ljFromCP) && (at.base == t.link+8 || vm.arch.returnsByLink && before == t.link+8):
		return 0, true // C has called it, and there is no frame yet, or no more
	}
	if pc, ok := vm.beginsMeta(g, t, &at); ok {
		return pc, true
	}
	if caller := (innermostPlace{base: before, pc: at.pc}); vm.begins(&at, before) && vm.fits(g, t, &caller) {
		t.link = before - 8
		return at.pc, true
	}
	for _, base := range [...]uint64{at.base, before, t.link + 8} {
		if at.base = base; !vm.fits(g, t, &at) {
			continue
		}
		t.link = at.base - 8
		if link, _ := vm.Word(t.link); link == at.pc && link&3 == ljFromLua {
			// It is about to return, and may have the result in the function's place already.
			a, ok := vm.operandA(link)
			if t.link -= 8 * (2 + uint64(a)); !ok || t.link <= t.stack {
				return 0, false
			}
		}
		return at.pc, true
	}
	if results, ok := vm.Word(frame + uint64(vm.arch.results)); ok && int32(results) < 0 {
		return 0, true // no function is called yet
	}
	// Of a closure that is gone the registers tell.
	at.base = top.Raw(vm.arch.base)
	if at.base%8 != 0 || at.base <= t.stack+8 || at.base > t.end+slack || vm.protoAt(at.pc) == nil {
		return 0, false
	}
	function, ok := vm.Word(at.base - 16)
	if _, is := vm.readClosure(function & ljObject); !ok || function>>47 != funcTag || is {
		return 0, false
	}
	t.link, vm.isGone = at.base-8, true
	return at.pc, true
}

// begins reports whether what is at the base is called by what is at the one before, and has no link yet: it may look like
// the caller, where that calls itself.
func (vm *machine) begins(at *innermostPlace, before uint64) bool {
	a, ok := vm.operandA(at.pc)
	link, _ := vm.Word(at.base - 8)
	return ok && link != at.pc && at.base == before+8*(2+uint64(a))
}

// beginsMeta finds the function that calls a metamethod, whose frame has no link yet, or which has just returned: how far
// its frame is from the caller's is in place of the next instruction, which is in that frame.
func (vm *machine) beginsMeta(g *global, t *thread, at *innermostPlace) (pc uint64, ok bool) {
	const next = 24 // bytes below a base
	if at.pc >= maxStack || at.pc&ljLink != ljContinuation {
		return 0, false
	}
	distance := at.pc &^ ljLink
	for _, base := range [...]uint64{at.base - distance, at.base} {
		caller := innermostPlace{base: base}
		if caller.pc, ok = vm.Word(base + distance - next); ok && vm.fits(g, t, &caller) {
			t.link = base - 8
			return caller.pc, true
		}
	}
	return 0, false
}

// interprets reports whether a run-time address is in the interpreter.
func (vm *machine) interprets(pc uint64) bool { return vm.imageInfo.code.Holds(pc - vm.bias) }

const look = 48 // bytes of code behind a call

// keepsBase reports whether the interpreter has its base in the register for that, or where it keeps it over a call of C
// that returns to an address: else it is in the lua_State.
func (vm *machine) keepsBase(ra uint64) bool {
	return vm.image.ReadVaddr(vm.code[:], ra-vm.bias) == nil && vm.arch.keepsBase(vm.code[:])
}

// fits reports whether what may be the base of the innermost frame and where its function goes on fit together.
func (vm *machine) fits(g *global, t *thread, at *innermostPlace) bool {
	if at.base%8 != 0 || at.base <= t.stack+8 || at.base > t.end+slack {
		return false
	}
	function, ok1 := vm.Word(at.base - 16)
	link, ok2 := vm.Word(at.base - 8)
	if !ok1 || !ok2 {
		vm.lack(g.at, t.at)
		return false
	}
	if at.pc == link && link&3 == ljFromLua {
		return true
	}
	if function>>47 != funcTag {
		return false
	}
	if at.pc == link || at.pc < maxStack && at.pc^ljFromC == link {
		return true // it is entered, or left
	}
	call := runningCall{function: function &^ (funcTag << 47), pc: at.pc, global: g.at}
	p := vm.protoOf(&call)
	if p == nil {
		return false
	}
	if p.isNative {
		return at.pc-p.enters <= 8 // its only instruction, which stands for it
	}
	return p.has(at.pc) || at.pc == p.start
}

// slack is how far behind the end of a stack there may be frames, of handlers of errors.
const slack = 64 * 8

// slot reads a word of a stack of Lua, or what a trace would put there.
func (vm *machine) slot(at uint64) (uint64, bool) {
	if vm.overlay.isSet {
		if v, is := vm.overlay.word(at); is {
			return v, true
		}
	}
	return vm.Word(at)
}

// follow lists the functions that run in a frame of C, from the innermost one. It reports whether what is further out
// is known.
func (vm *machine) follow(g *global, t *thread, frame, pc uint64, isTrace bool) bool {
	results, ok := vm.Word(frame + uint64(vm.arch.results))
	if !ok {
		return false
	}
	// What C has called without a function (lj_vm_cpcall) has how much there was on the stack, negative.
	if n := int32(results); n < 0 && t.link < t.stack+uint64(-int64(n)) {
		return true
	}
	isVararg, isExact := false, vm.overlay.isSet || vm.isGone
	for range maxFrames {
		if t.link <= t.stack+8 || t.link%8 != 0 || t.link > t.end+slack {
			return t.link == t.stack+8 // of this lua_State there is nothing more
		}
		function, ok1 := vm.slot(t.link - 8)
		link, ok2 := vm.slot(t.link)
		if !ok1 || !ok2 {
			vm.lack(g.at, t.at)
			vm.subs = append(vm.subs, runningCall{isAbsent: true})
			return false
		}
		kind := link & ljLink
		if link&3 == ljFromLua {
			kind = ljFromLua
		}
		isFunction := function>>47 == funcTag
		if !isVararg && (isFunction || vm.overlay.isSet && function == 0) {
			call := runningCall{function: function &^ (funcTag << 47), pc: pc, isExact: isExact, isEntered: pc == link, isCompiled: isTrace, global: g.at}
			vm.subs = append(vm.subs, call)
		}
		if !isFunction && function != 0 && function&(1<<47-1) != t.at {
			return false
		}
		isVararg = kind == ljVararg
		from, back := t.link, link&^ljLink
		ends := false
		switch kind {
		case ljFromLua:
			a, ok := vm.operandA(link)
			if !ok {
				return false
			}
			pc, back, isExact = link, 8*(2+uint64(a)), true
		case ljContinuation:
			cont, ok1 := vm.slot(t.link - 24)
			next, ok2 := vm.slot(t.link - 16)
			if !ok1 || !ok2 {
				vm.lack(g.at, t.at)
				return false
			}
			pc, ends, isExact = next, cont == ljCallback, cont > ljCallback
		case ljFromC, ljFromCP:
			ends = true
		case ljVararg:
		default:
			pc, isExact = 0, false
		}
		if back == 0 || back > from-t.stack {
			return false
		}
		t.link = from - back
		if ends {
			return true
		}
	}
	return false
}

// operandA returns the operand A of the call before an address in bytecode: where it is in
// the caller's frame.
func (vm *machine) operandA(pc uint64) (a byte, ok bool) {
	if p := vm.protoAt(pc); p != nil {
		return p.code[pc-4-p.start+1], true
	}
	var b [4]byte
	if pc%4 != 0 || !vm.ReadNow(pc-4, b[:]) {
		return 0, false
	}
	switch b[0] {
	case bcCallM, bcCall, bcIterC, bcIterN:
		return b[1], true
	}
	return 0, false // the function is gone
}

// Instructions of 2.1 that functions return behind.
const (
	bcCallM = 0x41
	bcCall  = 0x42
	bcIterC = 0x45
	bcIterN = 0x46
)

// traceFrame returns the address of the frame of the interpreter that a trace runs in, or one that is being left: its
// lua_State has it. ok is false where no trace runs, or where that is not known.
func (vm *machine) traceFrame(in *unwind.Frame, m *procstate.Mapping) (frame uint64, ok bool) {
	dispatch, ok := in.Regs.Value(vm.arch.dispatch)
	if !ok || vm.imageInfo.traces == 0 || dispatch < vm.dispatch {
		return 0, false
	}
	g := vm.globalAt(dispatch - vm.dispatch)
	if g == nil || m.Image == nil && !vm.tracesOf(g).isIn(vm, g, m, in.LookupPC()) {
		return 0, false
	}
	state, ok := vm.Word(g.at + vm.current)
	if !ok {
		vm.lack(g.at, 0)
		return 0, false
	}
	frame, ok = vm.Word(state + ljCFrame)
	if !ok {
		vm.lack(g.at, state)
		return 0, false
	}
	frame &^= ljFrameFlags
	is, ok := vm.Word(frame + uint64(vm.arch.state))
	return frame, ok && is == state && frame%8 == 0 && frame >= in.SP()
}
