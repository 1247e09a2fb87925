package lua

import (
	"encoding/binary"
	"slices"
	"time"
)

// learning is when functions were looked for among the calls that run now.
type learning struct {
	walk   uint64
	at     time.Time
	wait   time.Duration // so long it is not done again
	states []uint64      // of this walk
}

// Limits on that.
const (
	learnFirst   = 10 * time.Millisecond
	learnLast    = time.Second
	maxLearned   = 4       // lua_States of a walk
	maxLearnedOf = 1 << 10 // calls of one
	maxOuter     = 1 << 6  // functions that these are of, outermost first
)

// learn looks for functions among the calls that run now in a lua_State, and for those that are defined in these, and
// reports whether it has. A call that was copied tells its function only where its values are still in their
// place, and a program that recurses has Lua move them each time it collects garbage.
func (vm *machine) learn(state uint64) bool {
	l := &vm.learning
	if l.walk != vm.walk {
		if vm.now.Sub(l.at) < l.wait {
			return false
		}
		*l = learning{walk: vm.walk, at: vm.now, wait: min(max(2*l.wait, learnFirst), learnLast), states: l.states[:0]}
	}
	if len(l.states) == maxLearned || slices.Contains(l.states, state) {
		return false
	}
	l.states = append(l.states, state)
	seen := map[uint64]bool{}
	for _, function := range slices.Backward(vm.functionsNow(state)) {
		var value [luaValueBytes]byte
		if !vm.ReadNow(function, value[:]) {
			continue
		}
		proto, isLua, ok := vm.closure(value[:])
		if !ok || !isLua || seen[proto] {
			continue
		}
		if len(seen) == maxOuter {
			break
		}
		seen[proto] = true
		if p := vm.readProto(proto); p != nil && !vm.isKnown(p) {
			vm.add(p)
			vm.addInner(p)
			l.wait = learnFirst
		}
	}
	return true
}

// functionsNow returns where the functions of the calls that run now are on the stack of values, innermost first.
func (vm *machine) functionsNow(state uint64) (functions []uint64) {
	f, le, head, b := vm.fields, binary.LittleEndian, vm.head[:vm.fields.state], vm.call[:vm.fields.callBytes]
	if f.previous == 0 || !vm.ReadNow(state, head) || !isState(f, head) {
		return nil // the values of 5.1 are copied
	}
	for at := le.Uint64(head[f.ci:]); at != 0 && at%8 == 0 && len(functions) < maxLearnedOf && vm.ReadNow(at, b); {
		functions = append(functions, le.Uint64(b))
		at = le.Uint64(b[f.previous:])
	}
	return functions
}

// isKnown reports whether a function that was read is known.
func (vm *machine) isKnown(p *proto) bool {
	known := vm.knownAt(p.code.Start)
	return known != nil && known.at == p.at && known.code == p.code && known.place == p.place && known.File == p.File
}
