package lua

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// thread is a lua_State that frames of a walk run, and its calls, innermost first.
type thread struct {
	at       uint64
	calls    []call
	next     int    // the first that no frame has had yet
	isCopied bool   // else nothing is known of it
	isCut    bool   // further ones were not copied
	isLost   bool   // it is not known what runs in further frames
	isMet    bool   // all of them were looked at
	entries  uint64 // of its array of calls in 5.1 that are in use
}

// call is a CallInfo.
type call struct {
	key      uint64 // what frames of luaV_execute have of it: its address, in 5.1 that of its first value
	function uint64 // where its function is on the stack of values
	next     uint64 // the instruction after the one that runs, or has called
	isLua    bool
	begins   bool // a luaV_execute begins with it
}

// find returns which of the calls that no frame has had yet a frame may run that has a word.
func (t *thread) find(v uint64) int {
	begun := 0
	for i := t.next; i < len(t.calls) && begun < 2; i++ {
		c := &t.calls[i]
		if !c.isLua {
			continue
		}
		if c.key == v {
			return i
		}
		if c.begins {
			begun++ // the first may not have its frame yet
		}
	}
	return -1
}

// running returns the innermost call of the luaV_execute that a call is in.
func (t *thread) running(i int) int {
	for i > t.next && t.calls[i-1].isLua && !t.calls[i-1].begins {
		i--
	}
	return i
}

// thread returns the lua_State at an address, nil where there is none.
func (vm *machine) thread(at uint64) *thread {
	for i := range vm.threads {
		if t := &vm.threads[i]; t.at == at {
			return t
		}
	}
	if len(vm.threads) >= maxStates {
		return nil
	}
	f, head := vm.fields, vm.head[:vm.fields.state]
	isCopied := vm.Read(at, head)
	if !isCopied && !vm.ReadNow(at, head) || !isState(f, head) {
		return nil
	}
	if len(vm.threads) < cap(vm.threads) {
		vm.threads = vm.threads[:len(vm.threads)+1]
	} else {
		vm.threads = append(vm.threads, thread{})
	}
	t := &vm.threads[len(vm.threads)-1]
	*t = thread{at: at, calls: t.calls[:0], isCopied: isCopied}
	switch {
	case !isCopied:
	case f.previous == 0:
		vm.readOldCalls(t, head)
	default:
		vm.readCalls(t, binary.LittleEndian.Uint64(head[f.ci:]))
	}
	if vm.lacked == 0 && (!isCopied || t.isCut && len(t.calls) == 0) {
		vm.lacked = at
	}
	return t
}

// isState reports whether the beginning of an object is that of a lua_State.
func isState(f *fields, head []byte) bool {
	is := func(at uint64) bool {
		v := binary.LittleEndian.Uint64(head[at:])
		return v != 0 && v%8 == 0
	}
	return head[luaType] == luaStateType && is(f.global) && is(f.ci) && is(f.top)
}

// readCalls follows the calls from the one that runs.
func (vm *machine) readCalls(t *thread, at uint64) {
	f, le, b := vm.fields, binary.LittleEndian, vm.call[:vm.fields.callBytes]
	for at != 0 {
		if len(t.calls) == maxCalls || at%8 != 0 || !vm.Read(at, b) {
			t.isCut = true
			t.isLost = len(t.calls) == 0
			return
		}
		previous, status := le.Uint64(b[f.previous:]), le.Uint16(b[f.status:])
		if previous != 0 { // else it is where C has begun
			t.calls = append(t.calls, call{
				key: at, function: le.Uint64(b), next: le.Uint64(b[f.next:]),
				isLua:  status&f.isC == 0 && status&f.isLua == f.isLua,
				begins: status&f.isFresh != 0 || f.isInner != 0 && status&f.isInner == 0,
			})
		}
		at = previous
	}
}

// readOldCalls reads the calls of 5.1. Those that run in one luaV_execute are where functions of Lua have called
// each other by an instruction for that, if no hook does.
func (vm *machine) readOldCalls(t *thread, head []byte) {
	f, le, b := vm.fields, binary.LittleEndian, vm.call[:vm.fields.callBytes]
	begin, at := le.Uint64(head[luaCallBegin:]), le.Uint64(head[f.ci:])
	if head[f.hook] == 0 || at-begin > maxCalls*f.callBytes || (at-begin)%f.callBytes != 0 {
		t.isLost = true
		return
	}
	next := le.Uint64(head[luaNextNow:])
	t.entries = (at-begin)/f.callBytes + 1
	for ; at > begin; at -= f.callBytes {
		if !vm.Read(at, b) {
			t.isCut = true
			t.isLost = len(t.calls) == 0
			break
		}
		c := call{key: le.Uint64(b[luaCallBase:]), function: le.Uint64(b[f.function:]), next: le.Uint64(b[f.next:])}
		if len(t.calls) == 0 {
			c.next = next
		}
		isLua, ok := vm.isLuaCall(&c, le.Uint64(b[luaCallTop:]))
		isCall := false
		if n := len(t.calls); ok && n > 0 && isLua && t.calls[n-1].isLua {
			isCall, ok = vm.isCall(c.next)
		}
		if !ok {
			t.isCut = true
			t.isLost = len(t.calls) == 0
			return
		}
		c.isLua = isLua
		if n := len(t.calls); n > 0 {
			t.calls[n-1].begins = !isCall
		}
		t.calls = append(t.calls, c)
	}
	if n := len(t.calls); n > 0 {
		t.calls[n-1].begins = !t.isCut
	}
}

// isLuaCall tells whether a call of 5.1 is one of Lua. What its function is now may be another closure in place of one
// that has ended, so it is told by how many values the call has, too: one of C has room for LUA_MINSTACK at least, and
// the instruction of its caller or an older one.
func (vm *machine) isLuaCall(c *call, top uint64) (is, ok bool) {
	const room = 20
	values := (top - c.key) / luaValueBytes
	if p := vm.knownAt(c.next); p != nil && vm.isStill(p) {
		if has := uint64(p.head[luaOldValues]); values != has {
			return false, values >= room
		} else if has < room {
			return true, true
		}
	}
	_, is, ok = vm.closureOf(c)
	if ok && is {
		p := vm.functionOf(c)
		return true, p != nil && uint64(p.head[luaOldValues]) == values
	}
	return false, ok && values >= room && vm.knownAt(c.next) == nil
}

// closureOf returns the function that a call is of: its Proto, if it is one of Lua.
func (vm *machine) closureOf(c *call) (proto uint64, isLua, ok bool) {
	var value [luaValueBytes]byte
	if c.function%8 != 0 || !vm.Read(c.function, value[:]) && !vm.ReadNow(c.function, value[:]) {
		return 0, false, false
	}
	return vm.closure(value[:])
}

// closure is the same of a value.
func (vm *machine) closure(value []byte) (proto uint64, isLua, ok bool) {
	const kind = 0xf
	f, le := vm.fields, binary.LittleEndian
	if value[luaType]&kind != luaFunctionType {
		return 0, false, false
	}
	var closure [40]byte
	at := le.Uint64(value)
	if at%8 != 0 || !vm.ReadNow(at, closure[:]) || closure[luaType]&kind != luaFunctionType {
		return 0, false, false
	}
	if f.version == 51 && closure[luaClosureIsC] != 0 {
		return 0, false, true
	}
	return le.Uint64(closure[f.proto:]), true, true
}

// isCall reports whether the instruction before another one is a call.
func (vm *machine) isCall(next uint64) (is, ok bool) {
	if is, known := vm.calls[next]; known {
		return is, true
	}
	var b [4]byte
	if next%4 != 0 || !vm.ReadNow(next-4, b[:]) {
		return false, false
	}
	op := binary.LittleEndian.Uint32(b[:]) & (1<<vm.fields.opBits - 1)
	is = op == vm.fields.opCall || op == vm.fields.opTail
	if len(vm.calls) < maxCallSite {
		vm.calls[next] = is
	}
	return is, true
}

// Lacked returns where Lua keeps the calls of a thread, if the last walk has come to some that the capture had not
// copied. They can be of one lua_State: of the one that runs most of the time.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.walk != w.Walks() || len(vm.threads) == 0 {
		return frames, false
	}
	t, asked := &vm.threads[0], vm.asked[tid]
	isFirst, isSame := asked.state == 0, t.at == asked.state
	switch {
	case isFirst:
	case isSame:
		asked.had++
	default:
		asked.missed++
	}
	isRare := asked.missed <= asked.had
	isDue := vm.now.Sub(asked.since) >= interval
	if isDue {
		asked.since, asked.had, asked.missed = vm.now, 0, 0
	}
	lacks = vm.lacked != 0
	if vm.lacked == t.at && (isFirst || isSame && vm.now.Sub(asked.at) >= interval || !isSame && isDue && !isRare) {
		asked.state, asked.at = t.at, vm.now
		frames = vm.framesOf(t)
	}
	if asked.state != 0 {
		if isFirst && len(vm.asked) >= maxThreads {
			clear(vm.asked)
		}
		vm.asked[tid] = asked
	}
	return frames, lacks
}

// framesOf tells the kernel side where the calls of a lua_State are.
func (vm *machine) framesOf(t *thread) procstate.ThreadFrames {
	f, state := vm.fields, t.at
	if f.previous != 0 {
		return procstate.ThreadFrames{
			Current: state + f.ci, Before: int(f.ci), IsFrame: true, Previous: int(f.previous), Bytes: int(f.callBytes),
		}
	}
	// The array with the calls is copied as the frame that runs, from where it begins, and the values are the stack.
	// It has to be as much as the walk has lacked, however few calls there are by now.
	const room, most = 16, 16 << 10 / 40 // calls
	n := max(room, t.entries)
	begin, ok1 := vm.WordNow(state + luaCallBegin)
	now, ok2 := vm.WordNow(state + f.ci)
	if end, ok := vm.WordNow(state + luaCallEnd); ok && ok1 && ok2 && begin <= now && now <= end {
		n = max(n, min(2*((now-begin)/f.callBytes)+room, (end-begin)/f.callBytes))
	}
	return procstate.ThreadFrames{
		Current: state + luaCallBegin, Before: luaCallBegin, After: int(f.state - luaCallBegin - 8), IsFrame: true,
		Bounds: state, Low: luaStack, High: int(f.top), Bytes: int(min(n, most) * f.callBytes), Previous: int(f.next), // of the first that is 0
	}
}

// Knows reports whether walks of a Walker have met Lua.
func (s *Stepper) Knows(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*machine)
	return vm != nil
}
