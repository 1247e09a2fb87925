package lua

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// Functions of Lua are values, and have no names. What one is called is told by where it is made: the instruction after
// that which makes the closure puts it into a variable or a field, in the code of the function around it. That code is gone
// when it has run and nothing has its closure, as that of a module's file. Then it is told by what has the function now
// (holders.go).

// names are what functions are called, by where they have their Proto.
type names struct {
	made  map[uint64]protoName // by where they are made
	held  map[uint64]protoName // by what has them,
	read  time.Time            // which was looked at then
	until time.Time            // and is not before
	found []foundProto         // then, by where their instructions begin
}

// protoName is what a function is called, "" for nothing, and which one: others may come to be where it was.
type protoName struct {
	name string
	is   protoIs
}

// protoIs is by what a function is known.
type protoIs struct {
	source, code, constants uint64
	line                    uint32
}

// foundProto is where there is a function.
type foundProto struct {
	at   uint64
	code mcode.Range
	is   protoIs
}

// is returns by what a function is known.
func (vm *machine) is(p *proto) protoIs {
	f, le := vm.fields, binary.LittleEndian
	return protoIs{le.Uint64(p.head[f.source:]), p.code.Start, p.constants, le.Uint32(p.head[f.lineDefined:])}
}

// maxSought bounds how many times it is looked for what has a function.
const maxSought = 3

// lacksName reports whether a function has no name that may still be found.
func (vm *machine) lacksName(p *proto) bool {
	return !p.isNamed && !p.isChunk && p.sought < maxSought && !vm.now.Before(p.seekAt)
}

// seek gives a function that runs and lacks a name one, if there is one.
func (vm *machine) seek(p *proto) {
	is := vm.is(p)
	if made := vm.names.made[p.at]; made.name != "" && made.is == is {
		vm.rename(p, made.name)
		return
	}
	vm.readHolders()
	if vm.names.read.Before(p.seekAt) {
		return
	}
	if held := vm.names.held[p.at]; held.name != "" && held.is == is {
		vm.rename(p, held.name)
		return
	}
	p.seekAt = vm.now.Add(interval << (2 * p.sought))
	p.sought++
}

// rename gives a function a name.
func (vm *machine) rename(p *proto, name string) {
	is := *p.CodeFunction
	is.Name, is.SystemName = name, name
	p.CodeFunction, p.isNamed, p.serial = &is, true, vm.nextSerial()
	vm.Kept += len(name)
}

// foundWith returns the function with an instruction among those that something has, nil where that is not known.
func (vm *machine) foundWith(next uint64) *proto {
	vm.readHolders()
	i, is := slices.BinarySearchFunc(vm.names.found, next, func(p foundProto, at uint64) int { return cmp.Compare(p.code.Start, at) })
	if !is {
		i--
	}
	if i < 0 || next > vm.names.found[i].code.End {
		return nil
	}
	p := vm.readProto(vm.names.found[i].at)
	if p == nil || !p.has(next) {
		return nil
	}
	vm.add(p)
	vm.addInner(p)
	return p
}

// nameInner notes what the functions are called that are made in a function, and in these. It returns all of them.
func (vm *machine) nameInner(p *proto) (all []*proto) {
	all = []*proto{p}
	for i := 0; i < len(all); i++ {
		all = append(all, vm.nameMade(all[i], maxInner-len(all))...)
	}
	return all
}

// nameMade notes what the functions are called that are made in a function, so many at most, and returns them.
func (vm *machine) nameMade(p *proto, most int) (made []*proto) {
	f, le := vm.fields, binary.LittleEndian
	n := uint64(le.Uint32(p.head[f.protoCount:]))
	if n == 0 || n > maxInner {
		return nil
	}
	list, code := make([]byte, 8*n), make([]byte, p.code.End-p.code.Start)
	if !vm.ReadNow(le.Uint64(p.head[f.protos:]), list) || !vm.ReadNow(p.code.Start, code) {
		return nil
	}
	variables := vm.variablesOf(p)
	for i := 0; i+4 <= len(code) && len(made) < most; i += 4 {
		in := f.decode(le.Uint32(code[i:]))
		if in.op != f.opClosure || uint64(in.bx) >= n {
			continue
		}
		is := vm.readHead(le.Uint64(list[8*in.bx:]))
		if is == nil {
			continue
		}
		next := i/4 + 1
		if f.version == 51 {
			next += int(is.head[luaOldUpvalues]) // as many instructions tell what these are
		}
		name := vm.variable(variables, next, in.a)
		if name == "" && 4*next+4 <= len(code) {
			name = vm.storedAs(p, f.decode(le.Uint32(code[4*next:])), in.a)
		}
		if vm.names.made == nil || len(vm.names.made) >= maxProtos {
			vm.names.made = map[uint64]protoName{}
		}
		vm.names.made[is.at] = protoName{name, vm.is(is)}
		made = append(made, is)
	}
	return made
}

// storedAs returns the name of the variable or the field that an instruction puts into what is in a register, "" where
// it does not.
func (vm *machine) storedAs(p *proto, in instruction, reg uint32) string {
	f := vm.fields
	switch {
	case in.op == f.opSetUpvalue && in.a == reg:
		return vm.upvalue(vm.upvaluesOf(p), int(in.b))
	case f.opSetGlobal != 0 && in.op == f.opSetGlobal && in.a == reg:
		return vm.constant(p, in.bx)
	case (in.op == f.opSetField || in.op == f.opSetTabUp) && in.c == reg && in.hasKey && !in.isConstant:
		return vm.constant(p, in.b)
	}
	return ""
}

// constant returns a constant of a function, "" where it is no name.
func (vm *machine) constant(p *proto, i uint32) string {
	var value [luaValueBytes]byte
	if i >= binary.LittleEndian.Uint32(p.head[vm.fields.constantCount:]) || !vm.ReadNow(p.constants+luaValueBytes*uint64(i), value[:]) {
		return ""
	}
	return vm.nameOf(value[:], value[luaType])
}

// nameOf returns the text that a value is, "" where it can be no name: what is long or not printable was given to a
// field by computing.
func (vm *machine) nameOf(value []byte, kind byte) string {
	const most = 128
	if kind&anyString != luaStringType {
		return ""
	}
	name, ok := vm.text(binary.LittleEndian.Uint64(value))
	if !ok || len(name) > most || !vmread.IsPrintable(name) {
		return ""
	}
	return name
}

// variablesOf reads what a function has of its local variables.
func (vm *machine) variablesOf(p *proto) []byte {
	f, le := vm.fields, binary.LittleEndian
	b := make([]byte, luaLocalBytes*min(uint64(le.Uint32(p.head[f.localCount:])), maxVariables))
	if !vm.ReadNow(le.Uint64(p.head[f.locals:]), b) {
		return []byte{}
	}
	return b
}

// variable returns the name of the local variable that is in a register before an instruction, "" for none
// (luaF_getlocalname).
func (vm *machine) variable(b []byte, next int, reg uint32) string {
	le := binary.LittleEndian
	for ; len(b) > 0; b = b[luaLocalBytes:] {
		start, end := int(le.Uint32(b[8:])), int(le.Uint32(b[12:]))
		if start > next {
			break
		}
		if next < end {
			if reg == 0 {
				return vm.nameOf(b, luaStringType)
			}
			reg--
		}
	}
	return ""
}

// upvaluesOf reads what a function has of the names of variables of those around it.
func (vm *machine) upvaluesOf(p *proto) []byte {
	f, le := vm.fields, binary.LittleEndian
	b := make([]byte, f.upvalueBytes*min(uint64(le.Uint32(p.head[f.upvalueCount:])), maxUpvalues))
	if !vm.ReadNow(le.Uint64(p.head[f.upvalues:]), b) {
		return nil
	}
	return b
}

// upvalue returns the name of such a variable, "" for none.
func (vm *machine) upvalue(b []byte, i int) string {
	at := i * int(vm.fields.upvalueBytes)
	if at+8 > len(b) {
		return ""
	}
	return vm.nameOf(b[at:], luaStringType)
}

// instruction is one of Lua's, taken apart.
type instruction struct {
	op, a, b, c, bx uint32
	hasKey          bool // b is the number of a constant: the key of a field
	isConstant      bool // c is that of one
}

// decode takes an instruction apart.
func (f *fields) decode(v uint32) instruction {
	if f.version >= 54 {
		return instruction{op: v & 0x7f, a: v >> 7 & 0xff, b: v >> 16 & 0xff, c: v >> 24, bx: v >> 15, hasKey: true, isConstant: v>>15&1 != 0}
	}
	const constant = 1 << 8 // else it is a register
	b, c := v>>23, v>>14&0x1ff
	return instruction{op: v & 0x3f, a: v >> 6 & 0xff, b: b &^ constant, c: c &^ constant, bx: v >> 14, hasKey: b&constant != 0, isConstant: c&constant != 0}
}
