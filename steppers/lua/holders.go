package lua

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"
)

// holders looks for what has functions: the calls that run have some, these have variables of others, and those may have
// tables; among these is that of global variables, which has the modules that were loaded (package.loaded).
type holders struct {
	*machine
	todo       []holder
	functions  map[uint64]*function // nil: it is none of Lua
	seen       map[uint64]bool      // tables, variables, and Protos
	byField    map[uint64]string    // of tables: by where a function has its Proto; "" where it is called by several
	byVariable map[uint64]string    // the same, of variables
	left       int                  // nodes of tables that may still be looked at
}

// holder is a table, or a function.
type holder struct {
	at       uint64
	depth    int       // of a table in others
	function *function // nil: it is a table
}

// Limits on what is looked at.
const (
	maxHolders   = 1 << 15
	maxNodes     = 1 << 16
	maxDepth     = 5       // of tables in others, from that of global variables on,
	moduleDepth  = 3       // where modules are in package.loaded, and tables in variables as well
	maxOfCalls   = 1 << 6  // calls of a thread
	maxVariables = 1 << 12 // of a function
	maxUpvalues  = 1 << 8
)

// globals is what functions call the table of global variables, from 5.2 on.
const globals = "_ENV"

// readHolders looks at what has functions, unless it was just done.
func (vm *machine) readHolders() {
	const part, longest = 20, 100 * time.Millisecond // one in so much of the time, and not longer
	n := &vm.names
	if vm.now.Before(n.until) {
		return
	}
	began := time.Now()
	n.held, n.read, n.found = map[uint64]protoName{}, vm.now, n.found[:0]
	h := holders{
		machine: vm, functions: map[uint64]*function{}, seen: map[uint64]bool{},
		byField: map[uint64]string{}, byVariable: map[uint64]string{}, left: maxNodes,
	}
	for i := range vm.threads {
		h.addCalls(&vm.threads[i])
	}
	for len(h.todo) > 0 && time.Since(began) < longest {
		is := h.todo[0]
		if h.todo = h.todo[1:]; is.function != nil {
			h.lookAtFunction(is.at, is.function)
		} else {
			h.lookAtTable(&is)
		}
	}
	for _, p := range n.found {
		if name := cmp.Or(h.byVariable[p.at], h.byField[p.at]); name != "" {
			n.held[p.at] = protoName{name, p.is}
		}
	}
	slices.SortFunc(n.found, func(a, b foundProto) int { return cmp.Compare(a.code.Start, b.code.Start) })
	n.until = vm.now.Add(max(learnFirst, part*time.Since(began)))
}

// addCalls adds the functions of the calls of a lua_State: those further out first, which have more.
func (h *holders) addCalls(t *thread) {
	var value [luaValueBytes]byte
	for i := len(t.calls) - 1; i >= max(0, len(t.calls)-maxOfCalls); i-- {
		if at := t.calls[i].function; at%8 == 0 && h.ReadNow(at, value[:]) {
			h.addValue(value[:], "", nil, 0)
		}
	}
}

// add adds a table or a function to what is to be looked at.
func (h *holders) add(is holder, isFirst bool) {
	switch {
	case is.at%8 != 0 || h.seen[is.at] || len(h.seen) >= maxHolders:
		return
	case isFirst:
		h.todo = append([]holder{is}, h.todo...)
	default:
		h.todo = append(h.todo, is)
	}
	h.seen[is.at] = true
}

// addValue adds a value that is called by a name, of which one of the maps takes note. Tables are so deep in others.
func (h *holders) addValue(value []byte, name string, by map[uint64]string, depth int) {
	at := binary.LittleEndian.Uint64(value)
	switch value[luaType] & kinds {
	case luaTableType:
		if depth <= maxDepth {
			h.add(holder{at: at, depth: depth}, name == "package" || name == "loaded") // there may be many others
		}
	case luaFunctionType:
		is := h.addFunction(at)
		if is == nil || name == "" {
			return
		}
		if known, ok := by[is.proto]; ok && known != name {
			name = ""
		}
		by[is.proto] = name
	}
}

// addFunction adds a function to what is to be looked at, and returns it, nil where it is none of Lua.
func (h *holders) addFunction(at uint64) *function {
	is, ok := h.functions[at]
	if !ok && len(h.functions) < maxHolders {
		is = h.readFunction(at)
		h.functions[at] = is
		if is != nil {
			h.add(holder{at: at, function: is}, false)
		}
	}
	return is
}

// function is one of Lua as a value.
type function struct {
	proto    uint64
	globals  uint64 // its table of global variables, in 5.1
	upvalues int
}

// readFunction reads a function, nil where it is none of Lua.
func (vm *machine) readFunction(at uint64) *function {
	f, le := vm.fields, binary.LittleEndian
	var b [40]byte
	if at%8 != 0 || !vm.ReadNow(at, b[:]) || b[luaType] != luaFunctionType || f.version == 51 && b[luaClosureIsC] != 0 {
		return nil
	}
	is := &function{proto: le.Uint64(b[f.proto:]), upvalues: int(b[luaClosureCount])}
	if f.version == 51 {
		is.upvalues, is.globals = int(b[luaOldClosureCount]), le.Uint64(b[luaClosureGlobals:])
	}
	return is
}

// lookAtFunction looks at the variables that a function has of those around it, and notes what those are called that are
// made in it.
func (h *holders) lookAtFunction(at uint64, is *function) {
	p := h.readHead(is.proto)
	if p == nil {
		return
	}
	if !h.seen[is.proto] {
		h.seen[is.proto] = true
		for _, is := range h.nameInner(p) {
			if len(h.names.found) < maxProtos {
				h.names.found = append(h.names.found, foundProto{is.at, is.code, h.is(is)})
			}
		}
	}
	if is.globals != 0 {
		h.add(holder{at: is.globals}, true)
	}
	of := make([]byte, 8*is.upvalues)
	if !h.ReadNow(at+h.fields.proto+8, of) {
		return
	}
	var names []byte
	for i := range is.upvalues {
		variable := binary.LittleEndian.Uint64(of[8*i:])
		if h.seen[variable] || len(h.seen) >= maxHolders {
			continue // functions share them
		}
		h.seen[variable] = true
		if names == nil {
			names = h.upvaluesOf(p)
		}
		h.lookAtVariable(variable, h.upvalue(names, i))
	}
}

// lookAtVariable looks at what a variable has that is called by a name.
func (h *holders) lookAtVariable(at uint64, name string) {
	var value [luaValueBytes]byte
	holds, ok := h.WordNow(at + h.fields.upvalueHolds)
	switch {
	case name == "" || !ok || holds%8 != 0 || !h.ReadNow(holds, value[:]):
	case name == globals:
		h.addValue(value[:], "", nil, 0)
	default:
		h.addValue(value[:], name, h.byVariable, moduleDepth)
	}
}

// lookAtTable looks at the fields of a table.
func (h *holders) lookAtTable(t *holder) {
	const most = 20 // a table has two to the power of that
	f, le := h.fields, binary.LittleEndian
	var head [maxTable]byte
	if !h.ReadNow(t.at, head[:]) || head[luaType] != luaTableType || head[luaTableNodes] > most {
		return
	}
	n := 1 << head[luaTableNodes]
	if n > h.left {
		return
	}
	h.left -= n
	nodes := make([]byte, n*f.nodeBytes)
	if !h.ReadNow(le.Uint64(head[f.nodes:]), nodes) {
		return
	}
	for ; len(nodes) > 0; nodes = nodes[f.nodeBytes:] {
		if kind := nodes[luaType] & kinds; kind != luaTableType && kind != luaFunctionType {
			continue
		}
		if name := h.nameOf(nodes[f.nodeKey:], nodes[f.nodeKeyType]); name != "" {
			h.addValue(nodes, name, h.byField, t.depth+1)
		}
	}
}
