package luajit

import (
	"bytes"
	"encoding/binary"
	"strings"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Lua's functions are values without a name. What they are called is told by where they are made: the instruction that
// makes a closure (FNEW) is in the function around it, and what follows puts it in a variable, a field or a local
// variable. Where that function is not known, as of a module that was loaded, it is told by the fields of modules.

// madeName is what a function is called by where it is made, "" for none, and its head then.
type madeName struct {
	name string
	head [8]byte // its lines
}

// nameOf returns what a function is called, "" where that is not known.
func (vm *machine) nameOf(global, at uint64, head *[ljProtoBytes]byte) string {
	if name := vm.madeAs(at, head); name != "" {
		return name
	}
	vm.readNames(global)
	if name := vm.madeAs(at, head); name != "" {
		return name
	}
	return vm.names[at]
}

// madeAs returns what a function is called where it is made, "" where that is not known, or nothing.
func (vm *machine) madeAs(at uint64, head *[ljProtoBytes]byte) string {
	if is, ok := vm.made[at]; ok && bytes.Equal(is.head[:], head[ljProtoFirst:ljProtoFirst+8]) {
		return is.name
	}
	return ""
}

// madeWith returns the function that has an instruction before an address, of those that are made by others; nil where
// none of these does.
func (vm *machine) madeWith(global, pc uint64) *proto {
	at := uint64(0)
	for made := range vm.made {
		if made+ljProtoBytes < pc && made > at {
			at = made
		}
	}
	if p := vm.protoBy(global, at); p != nil && p.has(pc) {
		return p
	}
	return nil
}

// nameChildren notes what the functions are called that a function makes, and those that they make.
func (vm *machine) nameChildren(start uint64, code []byte, head *[ljProtoBytes]byte, depth int) {
	const most = 16 // functions in one another
	if head[ljProtoFlags]&ljHasChildren == 0 || depth == most || vm.children <= 0 {
		return
	}
	le := binary.LittleEndian
	n := le.Uint32(head[ljProtoNumber:])
	if n == 0 || n > maxConstants {
		return
	}
	if code == nil {
		if count := le.Uint32(head[ljProtoBytecode:]); count > 0 && count <= maxBytecode {
			code = make([]byte, 4*count)
		}
		if !vm.ReadNow(start, code) {
			return
		}
	}
	constants := make([]byte, 8*n)
	if !vm.ReadNow(le.Uint64(head[ljProtoConstants:])-8*uint64(n), constants) {
		return
	}
	constant := func(i uint32) uint64 { // they are counted downward
		if i >= n {
			return 0
		}
		return le.Uint64(constants[8*(n-1-i):])
	}
	var variables, upvalues []byte
	for i := 0; i+8 <= len(code) && vm.children > 0; i += 4 {
		if code[i] != ljFNew {
			continue
		}
		vm.children--
		at := constant(uint32(le.Uint16(code[i+2:])))
		var child [ljProtoBytes]byte
		if at == 0 || at%8 != 0 || !vm.ReadNow(at, child[:]) || child[ljKind] != ljProtoKind {
			continue
		}
		slot, next := code[i+1], code[i+4:i+8]
		if variables == nil {
			variables = vm.textsAt(le.Uint64(head[ljProtoVariables:]))
			upvalues = vm.textsAt(le.Uint64(head[ljProtoUpvalues:]))
		}
		if !vm.Pace.May(len(variables) + len(upvalues)) {
			return
		}
		name := variable(variables, uint32(i/4)+1, slot)
		switch {
		case name != "":
		case next[0] == ljTSetS && next[1] == slot:
			name, _ = vm.stringAt(constant(uint32(next[2])))
		case next[0] == ljGSet && next[1] == slot:
			name, _ = vm.stringAt(constant(uint32(le.Uint16(next[2:]))))
		case next[0] == ljUSetV && next[2] == slot:
			name = upvalue(upvalues, int(next[1]))
		}
		if !isLuaName(name) {
			name = ""
		}
		if len(vm.made) >= maxFunctions {
			clear(vm.made)
		}
		is := madeName{name: name}
		copy(is.head[:], child[ljProtoFirst:])
		vm.made[at] = is
		vm.nameChildren(at+ljProtoBytes, nil, &child, depth+1)
	}
}

// isLuaName reports whether a text can be a name: what is long or not printable was given to a field by computing.
func isLuaName(name string) bool {
	const most = 128
	return len(name) <= most && vmread.IsPrintable(name) // and not empty
}

// textsAt reads the names of a function's variables, as much of them as there is up to a bound.
func (vm *machine) textsAt(at uint64) []byte {
	if at == 0 {
		return []byte{}
	}
	const page = 4 << 10
	var b []byte
	for len(b) < maxVariables {
		part := make([]byte, page-(at+uint64(len(b)))%page)
		if !vm.ReadNow(at+uint64(len(b)), part) {
			break
		}
		b = append(b, part...)
		if len(b) > 4*page {
			break // of so large a function the first ones are enough
		}
	}
	return b
}

// variable returns the name of the local variable that a slot has for an instruction (debug_varname), "" where
// there is none.
func variable(b []byte, pc uint32, slot byte) string {
	const end, known = 0, 7 // no name, and those of loops, which have a number
	number := func() (v uint32, ok bool) {
		for shift := 0; shift < 35 && len(b) > 0; shift += 7 {
			c := b[0]
			b = b[1:]
			v |= uint32(c&0x7f) << shift
			if c < 0x80 {
				return v, true
			}
		}
		return 0, false
	}
	last, left := uint32(0), int(slot)
	for len(b) > 0 && b[0] != end {
		name := ""
		if b[0] < known {
			b = b[1:]
		} else {
			n := bytes.IndexByte(b, 0)
			if n < 0 {
				return ""
			}
			name, b = string(b[:n]), b[n+1:]
		}
		start, ok1 := number()
		length, ok2 := number()
		last += start
		if !ok1 || !ok2 || last > pc {
			return ""
		}
		if pc < last+length {
			if left == 0 {
				return name
			}
			left--
		}
	}
	return ""
}

// upvalue returns the name of an upvalue by its number.
func upvalue(b []byte, n int) string {
	for range n {
		_, b, _ = bytes.Cut(b, []byte{0})
	}
	name, _, ok := bytes.Cut(b, []byte{0})
	if !ok {
		return ""
	}
	return string(name)
}

// search looks for names from global variables and the modules that were loaded on.
type search struct {
	*machine
	todo   []found
	seen   map[uint64]bool
	fields map[uint64]string // by address of a prototype; "" where there are several
	locals map[uint64]string // the same, by variables of others
	left   int               // nodes of tables that may still be looked at
}

// found is a table or a function of Lua.
type found struct {
	at         uint64
	name       string // what is in a table is called by this, "" for global variables
	depth      int    // of a table
	isFunction bool
}

// loaded is the name of the table of modules.
const loaded = "package.loaded"

// readNames reads what functions are called by fields of global variables and of modules that were loaded, by the
// variables that these functions have of the functions around them, and by the functions on the stacks.
func (vm *machine) readNames(global uint64) {
	if vm.names != nil && vm.now.Before(vm.namesUntil) {
		return
	}
	const part = 20 // one in so much of the time
	began := time.Now()
	vm.called, vm.names = map[native]string{}, map[uint64]string{}
	vm.children = maxFunctions
	if g := vm.globalAt(global); g != nil {
		s := search{machine: vm, seen: map[uint64]bool{}, fields: map[uint64]string{}, locals: map[uint64]string{}, left: maxNodes}
		env, _ := vm.WordNow(g.main + ljStateEnv)
		s.addStack(g.main)
		for i := range vm.threads {
			s.addStack(vm.threads[i].at)
		}
		s.addTable(found{at: env})
		for len(s.todo) > 0 {
			f := s.todo[0]
			if s.todo = s.todo[1:]; f.isFunction {
				s.look(f.at)
			} else {
				s.lookInto(&f)
			}
		}
		for _, of := range []map[uint64]string{s.fields, s.locals} {
			for at, name := range of {
				if name != "" {
					vm.names[at] = name
				}
			}
		}
	}
	vm.namesUntil = vm.now.Add(max(interval, part*time.Since(began)))
}

// addStack adds the functions on the stack of a lua_State.
func (s *search) addStack(state uint64) {
	const most = 16 << 10
	stack, ok1 := s.WordNow(state + ljStack)
	top, ok2 := s.WordNow(state + ljTop)
	if !ok1 || !ok2 || top <= stack {
		return
	}
	b := make([]byte, min(top-stack, most)&^7)
	if !s.ReadNow(stack, b) {
		return
	}
	for ; len(b) >= 8; b = b[8:] {
		if v := binary.LittleEndian.Uint64(b); v>>47 == funcTag {
			s.addFunction(v & ljObject)
		}
	}
}

func (s *search) addFunction(at uint64) {
	if !s.seen[at] && len(s.seen) < maxModules+maxFunctions {
		s.seen[at] = true
		s.todo = append(s.todo, found{at: at, isFunction: true})
	}
}

func (s *search) addTable(t found) {
	if !s.seen[t.at] && len(s.seen) < maxModules {
		s.seen[t.at] = true
		s.todo = append(s.todo, t)
	}
}

// call notes what a function is called, by one of the maps.
func (s *search) call(function uint64, key, name string, by map[uint64]string) {
	is, ok := s.readClosure(function)
	if !ok || !isLuaName(name) {
		return
	}
	if is.proto == 0 {
		if known, ok := s.called[is.native]; by != nil && (!ok || len(name) < len(known) || len(name) == len(known) && name < known) {
			s.called[is.native] = name
		}
		return
	}
	if known, ok := by[is.proto]; ok && known != key {
		key = ""
	}
	by[is.proto] = key
	s.addFunction(function)
}

// lookInto looks at the fields of a table.
func (s *search) lookInto(t *found) {
	const depth = 3
	s.eachField(t.at, &s.left, func(key string, value uint64) {
		object, name := value&ljObject, key
		if t.name != "" {
			name = t.name + "." + key
		}
		switch {
		case value>>47 == funcTag:
			s.call(object, key, name, s.fields)
		case t.name == loaded:
			s.addTable(found{at: object, name: key, depth: 1})
		case t.depth < depth:
			s.addTable(found{at: object, name: name, depth: t.depth + 1})
		}
	})
}

// look looks at what a function of Lua has of the variables of those around it, and at the functions that it makes.
func (s *search) look(function uint64) {
	const variables, number, value = 40, 11, 32 // of a function; and where a variable has its value
	var b [ljFuncBytes]byte
	var head [ljProtoBytes]byte
	le := binary.LittleEndian
	if !s.ReadNow(function, b[:]) || b[ljKind] != ljFuncKind || b[ljFuncNumber] != 0 {
		return
	}
	proto := le.Uint64(b[ljFuncPC:]) - ljProtoBytes
	if !s.seen[proto] {
		s.seen[proto] = true
		if proto%8 == 0 && s.ReadNow(proto, head[:]) && head[ljKind] == ljProtoKind {
			s.nameChildren(proto+ljProtoBytes, nil, &head, 0)
		}
	}
	n := int(b[number])
	of := make([]byte, 8*n)
	if n == 0 || head[ljKind] != ljProtoKind || !s.ReadNow(function+variables, of) {
		return
	}
	names := s.textsAt(le.Uint64(head[ljProtoUpvalues:]))
	for i := range n {
		name := upvalue(names, i)
		at, ok := s.WordNow(le.Uint64(of[8*i:]) + value)
		if !ok || name == "" {
			continue
		}
		v, ok := s.WordNow(at)
		if !ok {
			continue
		}
		switch v >> 47 {
		case funcTag:
			if is, ok := s.readClosure(v & ljObject); ok && is.proto != 0 {
				s.call(v&ljObject, name, name, s.locals)
			}
		case ljTableTag:
			s.addTable(found{at: v & ljObject, name: name, depth: 2})
		}
	}
}

// eachField calls visit for the fields of a table that have a text as their key, and takes the nodes that there are off
// those that may be looked at.
func (vm *machine) eachField(table uint64, left *int, visit func(key string, value uint64)) {
	var head [ljTableBytes]byte
	le := binary.LittleEndian
	if table%8 != 0 || !vm.ReadNow(table, head[:]) || head[ljKind] != ljTableKind {
		return
	}
	n := int(le.Uint32(head[ljTableMask:])) + 1
	if n > *left || n&(n-1) != 0 {
		return
	}
	*left -= n
	nodes := make([]byte, n*ljNodeBytes)
	if !vm.ReadNow(le.Uint64(head[ljTableNode:]), nodes) {
		return
	}
	for ; len(nodes) > 0; nodes = nodes[ljNodeBytes:] {
		value, key := le.Uint64(nodes), le.Uint64(nodes[8:])
		if key>>47 != ljStringTag || value>>47 != funcTag && value>>47 != ljTableTag {
			continue
		}
		if name, ok := vm.stringAt(key & ljObject); ok && name != "_G" && !strings.Contains(name, "\n") {
			visit(name, value)
		}
	}
}

// nativeOf returns a function of C: it has a name where a field of a module has it.
func (vm *machine) nativeOf(global uint64, is *closure) *proto {
	p, known := vm.natives[is.native]
	if known && (p.CodeFunction != nil || vm.now.Sub(p.checked) < interval) {
		return p
	}
	vm.readNames(global)
	p = &proto{isNative: true, enters: is.enters, checked: vm.now}
	if name := vm.called[is.native]; name != "" {
		vm.serial++
		p.serial = vm.serial
		p.CodeFunction = &unwind.CodeFunction{Name: name, SystemName: name, Runtime: runtime}
	}
	if len(vm.natives) >= maxFunctions {
		clear(vm.natives)
	}
	vm.natives[is.native] = p
	return p
}
