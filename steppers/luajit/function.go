package luajit

import (
	"bytes"
	"encoding/binary"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// proto is a function of Lua by its prototype (GCproto), whatever closures there are of it; or one of C.
type proto struct {
	*unwind.CodeFunction
	serial     uint32
	at         uint64
	start, end uint64 // the bytecode, run-time addresses
	code       []byte // the same
	lines      []byte // of the instructions but the first, from firstLine on
	width      int    // bytes of each
	head       [ljProtoBytes]byte
	checked    time.Time

	isNative bool
	enters   uint64 // its only instruction
}

// closure is what a GCfunc is, as it was.
type closure struct {
	native  native
	proto   uint64 // 0: it is one of C
	enters  uint64
	checked time.Time
}

// native is a function of C: by its address, or by its number, for those that LuaJIT has itself.
type native struct {
	function uint64
	number   byte
}

// Fields of a GCfunc, a GCproto, a GCstr and a GCtab, and instructions (lj_obj.h, lj_bc.h).
const (
	ljFuncNumber = 10 // 0: one of Lua; 1: one of C
	ljFuncPC     = 32
	ljFuncC      = 40
	ljFuncBytes  = 48

	ljProtoBytecode  = 12 // 32 bits: how many instructions
	ljProtoConstants = 32 // address of where those are that garbage collection knows, downward
	ljProtoNumber    = 48 // 32 bits, of these
	ljProtoFlags     = 61
	ljProtoChunk     = 64
	ljProtoFirst     = 72 // 32 bits: the line,
	ljProtoLines     = 76 // and how many there are
	ljProtoLineInfo  = 80
	ljProtoUpvalues  = 88 // names
	ljProtoVariables = 96
	ljProtoBytes     = 104

	ljHasChildren = 1

	ljStringBytes = 24 // and then the text

	ljTableArray = 16
	ljTableNode  = 40
	ljTableMask  = 52
	ljTableBytes = 56
	ljNodeBytes  = 24
	ljTableKind  = 11
	ljStateEnv   = 72

	ljStringTag = 0x1fffb
	ljTableTag  = 0x1fff4
	ljObject    = 1<<47 - 1

	ljFNew  = 51
	ljUSetV = 46
	ljGSet  = 55
	ljTSetS = 61
)

// runtime is the CodeFunction.Runtime of Lua.
const runtime = "lua"

// What stands for functions whose frames were not copied, and for one that was gone before it was looked at.
var (
	notCopied = proto{CodeFunction: &unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: runtime}}
	notRead   = proto{CodeFunction: &unwind.CodeFunction{Name: "[not read]", SystemName: "[not read]", Runtime: runtime}, serial: 1}
)

// has reports whether an address is behind an instruction of the function.
func (p *proto) has(pc uint64) bool { return pc-4-p.start < p.end-p.start && pc%4 == 0 }

// line returns the line of the instruction before an address (lj_debug_line), 0 where that is not known.
func (p *proto) line(pc uint64) int {
	i := int((pc-4-p.start)/4) - 1
	switch {
	case i < 0:
		return p.StartLine
	case p.width == 0 || (i+1)*p.width > len(p.lines):
		return 0 // it was compiled without lines
	}
	b := p.lines[i*p.width:]
	switch p.width {
	case 1:
		return p.StartLine + int(b[0])
	case 2:
		return p.StartLine + int(binary.LittleEndian.Uint16(b))
	}
	return p.StartLine + int(binary.LittleEndian.Uint32(b))
}

// functionOf returns what is known of the function of a frame, and the line that it is in, 0 where that is not known.
// It is nil for one of C without a name.
func (vm *machine) functionOf(c *runningCall) (*proto, int) {
	if c.isAbsent {
		return &notCopied, 0
	}
	if c.isUnread {
		return &notRead, 0
	}
	p := vm.protoOf(c)
	switch {
	case p == nil:
		return &notRead, 0
	case p.isNative:
		if p.CodeFunction == nil {
			return nil, 0
		}
		return p, 0
	case p.has(c.pc):
		return p, p.line(c.pc)
	case c.isEntered, c.pc == p.start:
		return p, p.StartLine
	case c.pc == 0:
		return p, 0
	}
	return &notRead, 0
}

// protoOf returns the function of a frame, nil where that is gone.
func (vm *machine) protoOf(c *runningCall) *proto {
	if c.isExact || c.function == 0 {
		if p := vm.protoAt(c.pc); p != nil {
			return p
		}
	}
	if c.function != 0 {
		if p := vm.protoOfClosure(c); p != nil {
			return p
		}
	}
	if c.isExact || c.function == 0 {
		return vm.madeWith(c.global, c.pc) // of the closure nothing is left
	}
	return nil
}

// protoOfClosure returns the function that a GCfunc is of, nil where that is gone.
func (vm *machine) protoOfClosure(c *runningCall) *proto {
	is, known := vm.functions[c.function]
	for range 2 {
		if !known || vm.now.Sub(is.checked) >= interval {
			now, ok := vm.readClosure(c.function)
			if _, readable := vm.WordNow(c.function); !ok && (readable || is.checked.IsZero()) {
				return nil
			} else if ok {
				is = now
			}
			if len(vm.functions) >= maxFunctions {
				clear(vm.functions)
			}
			vm.functions[c.function] = is
		}
		if is.proto == 0 {
			if c.isExact {
				known = false
				continue
			}
			return vm.nativeOf(c.global, &is)
		}
		if p := vm.protoBy(c.global, is.proto); p != nil && (p.has(c.pc) || c.pc == p.start || c.pc == 0 || c.isEntered) {
			return p
		}
		known = false // there is another one in its place, or was
	}
	return nil
}

// readClosure reads a GCfunc.
func (vm *machine) readClosure(at uint64) (c closure, ok bool) {
	var b [ljFuncBytes]byte
	if at%8 != 0 || !vm.ReadNow(at, b[:]) || b[ljKind] != ljFuncKind {
		return c, false
	}
	le := binary.LittleEndian
	c.checked, c.enters = vm.now, le.Uint64(b[ljFuncPC:])
	switch number := b[ljFuncNumber]; number {
	case 0:
		c.proto = c.enters - ljProtoBytes
	case 1:
		c.native = native{function: le.Uint64(b[ljFuncC:])}
	default:
		c.native = native{number: number}
	}
	return c, true
}

// protoAt returns the function that has an instruction before an address, nil where none is known.
func (vm *machine) protoAt(pc uint64) *proto {
	i, found := slices.BinarySearchFunc(vm.order, pc-4, func(p *proto, pc uint64) int {
		switch {
		case pc < p.start:
			return 1
		case pc >= p.end:
			return -1
		}
		return 0
	})
	if !found || pc%4 != 0 {
		return nil
	}
	return vm.protoBy(0, vm.order[i].at)
}

// protoBy returns the prototype at an address, nil where there is none. global is 0 where it is known.
func (vm *machine) protoBy(global, at uint64) *proto {
	p := vm.protos[at]
	if p != nil && vm.now.Sub(p.checked) < interval {
		return p
	}
	var head [ljProtoBytes]byte
	if at%8 != 0 || !vm.ReadNow(at, head[:]) {
		return p // the process has ended, likely
	}
	if head[ljKind] != ljProtoKind {
		return nil
	}
	if p != nil && isSameProto(&head, &p.head) {
		p.checked = vm.now
		return p
	}
	if p != nil {
		vm.forget(p)
	}
	if global == 0 {
		return nil
	}
	if p = vm.readProto(global, at, &head); p == nil {
		return nil
	}
	if len(vm.protos) >= maxFunctions || vm.Kept >= vmread.MaxKept {
		clear(vm.protos)
		clear(vm.natives)
		vm.order, vm.Kept = nil, 0
	}
	i, _ := slices.BinarySearchFunc(vm.order, p.start, func(p *proto, start uint64) int {
		if p.start < start {
			return -1
		}
		return 1
	})
	end := i // of those that are no more
	for end < len(vm.order) && vm.order[end].start < p.end {
		end++
	}
	for i > 0 && vm.order[i-1].end > p.start {
		i--
	}
	for _, old := range vm.order[i:end] {
		delete(vm.protos, old.at)
	}
	vm.order = slices.Replace(vm.order, i, end, p)
	vm.protos[at] = p
	return p
}

// forget lets go of a prototype.
func (vm *machine) forget(p *proto) {
	delete(vm.protos, p.at)
	if i := slices.Index(vm.order, p); i >= 0 {
		vm.order = slices.Delete(vm.order, i, i+1)
	}
}

// isSameProto reports whether two headers are those of one prototype, at one address.
func isSameProto(a, b *[ljProtoBytes]byte) bool {
	const sizes = 56 // what is before is in the bytecode's place, what follows may change
	return bytes.Equal(a[ljKind:24], b[ljKind:24]) && bytes.Equal(a[ljProtoConstants:sizes+5], b[ljProtoConstants:sizes+5]) && bytes.Equal(a[ljProtoChunk:], b[ljProtoChunk:])
}

// readProto reads a prototype, whose head is known.
func (vm *machine) readProto(global, at uint64, head *[ljProtoBytes]byte) *proto {
	le := binary.LittleEndian
	n := le.Uint32(head[ljProtoBytecode:])
	if n == 0 || n > maxBytecode {
		return nil
	}
	p := &proto{at: at, start: at + ljProtoBytes, end: at + ljProtoBytes + 4*uint64(n), head: *head, checked: vm.now}
	p.code = make([]byte, 4*n)
	if !vm.ReadNow(p.start, p.code) {
		return nil
	}
	first, lines := int(int32(le.Uint32(head[ljProtoFirst:]))), le.Uint32(head[ljProtoLines:])
	hasLines := le.Uint64(head[ljProtoLineInfo:]) != 0
	if hasLines {
		p.width = 4
		if lines < 1<<8 {
			p.width = 1
		} else if lines < 1<<16 {
			p.width = 2
		}
		p.lines = make([]byte, p.width*int(n-1))
		if !vm.ReadNow(le.Uint64(head[ljProtoLineInfo:]), p.lines) {
			return nil
		}
	}
	chunk, ok := vm.stringAt(le.Uint64(head[ljProtoChunk:]))
	if !ok {
		return nil
	}
	file, base := fileOf(chunk)
	vm.serial++
	p.serial = vm.serial
	name := ""
	switch {
	case hasLines && first == 0:
		name = "<chunk " + base + ">"
	default:
		if name = vm.nameOf(global, at, head); name != "" {
			break
		}
		name = "(anonymous) " + base
		if hasLines {
			name += ":" + strconv.Itoa(first)
		}
	}
	p.CodeFunction = &unwind.CodeFunction{Name: name, SystemName: name, File: file, StartLine: first, Runtime: runtime}
	vm.children = maxFunctions
	vm.nameChildren(p.start, p.code, head, 0)
	vm.Kept += len(name) + len(file) + len(p.code) + len(p.lines)
	return p
}

// fileOf returns the file of a chunk by its name, and what that is called for short. The name of a text is the
// text, unless the program has given it one.
func fileOf(chunk string) (file, base string) {
	switch {
	case strings.HasPrefix(chunk, "@"):
		return chunk[1:], path.Base(chunk[1:])
	case strings.HasPrefix(chunk, "="):
		return chunk[1:], chunk[1:]
	}
	const most = 40 // characters
	line, _, isCut := strings.Cut(chunk, "\n")
	if r := []rune(line); len(r) > most {
		line, isCut = string(r[:most]), true
	}
	if isCut {
		line += "..."
	}
	line = `[string "` + line + `"]`
	return line, line
}

// stringAt reads a GCstr. Its length is in one of two places, by version: it ends with a zero.
func (vm *machine) stringAt(at uint64) (string, bool) {
	var head [ljStringBytes]byte
	if at == 0 || at%8 != 0 || !vm.ReadNow(at, head[:]) {
		return "", false
	}
	for _, length := range [...]int{20, 16} {
		n := binary.LittleEndian.Uint32(head[length:])
		if n == 0 || n > maxString {
			continue
		}
		b := make([]byte, n+1)
		if vm.ReadNow(at+ljStringBytes, b) && bytes.IndexByte(b, 0) == int(n) {
			s := strings.ToValidUTF8(string(b[:n]), "?")
			return s, vmread.IsPrintable(strings.ReplaceAll(s, "\n", " "))
		}
	}
	const textBytes = 64 // a chunk's text may be longer than any name
	b := make([]byte, textBytes)
	if !vm.ReadNow(at+ljStringBytes, b) || bytes.IndexByte(b, 0) >= 0 {
		return "", false
	}
	s := strings.ToValidUTF8(string(b), "?")
	return s, vmread.IsPrintable(strings.NewReplacer("\n", " ", "\t", " ").Replace(s))
}
