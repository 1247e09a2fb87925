package lua

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// proto is a function of Lua, or a chunk: what a file or a text does itself.
type proto struct {
	*unwind.CodeFunction
	serial    uint32 // changes with it
	at        uint64
	head      [maxLuaProto]byte // as it was
	code      mcode.Range
	constants uint64  // where its constants are; 0: it has none
	lines     []int32 // by instruction; nil: they are not known
	checked   time.Time

	place   string // what it is called that has no name: where it is defined
	isChunk bool
	isNamed bool
	sought  int       // so many times it was looked for what has it,
	seekAt  time.Time // and it is not again before
}

// others is what stands for calls that were not copied, and notRead for a function that was gone before it was
// looked at.
var (
	others  = proto{CodeFunction: &unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: runtime}}
	notRead = proto{CodeFunction: &unwind.CodeFunction{Name: "[not read]", SystemName: "[not read]", Runtime: runtime}, serial: 1}
)

// functionOf returns the function of a call, nil when it is not known any more: what the call's function is now has
// to have the instruction that ran.
func (vm *machine) functionOf(c *call) *proto {
	if p := vm.knownAt(c.next); p != nil && vm.isStill(p) {
		return p
	}
	at, isLua, ok := vm.closureOf(c)
	if !ok || !isLua {
		return nil
	}
	p := vm.readProto(at)
	if p == nil || !p.has(c.next) {
		return nil
	}
	vm.add(p)
	vm.addInner(p)
	return p
}

// addInner adds the functions that are defined in a function, and in these: they stay as long as that, where their
// closures end.
func (vm *machine) addInner(p *proto) {
	f, le := vm.fields, binary.LittleEndian
	vm.nameInner(p)
	all := []*proto{p}
	for i := 0; i < len(all); i++ {
		list, n := le.Uint64(all[i].head[f.protos:]), uint64(le.Uint32(all[i].head[f.protoCount:]))
		for j := range min(n, uint64(maxInner-len(all))) {
			at, ok := vm.WordNow(list + 8*j)
			if !ok {
				return
			}
			inner := vm.readProto(at)
			if inner == nil {
				continue
			}
			if vm.isKnown(inner) {
				continue
			}
			vm.add(inner)
			all = append(all, inner)
		}
	}
}

// knownAt returns the function that has an instruction, as far as it is known.
func (vm *machine) knownAt(next uint64) *proto {
	i, is := slices.BinarySearchFunc(vm.known, next, func(p *proto, at uint64) int { return cmp.Compare(p.code.Start, at) })
	if !is {
		i--
	}
	if i < 0 || !vm.known[i].has(next) {
		return nil
	}
	return vm.known[i]
}

// forget forgets a function.
func (vm *machine) forget(p *proto) {
	vm.known = slices.DeleteFunc(vm.known, func(is *proto) bool { return is == p })
	if vm.byConstants[p.constants] == p {
		delete(vm.byConstants, p.constants)
	}
}

// add keeps a function, in place of those whose instructions were where its own are.
func (vm *machine) add(p *proto) {
	if len(vm.known) >= maxProtos || vm.Kept >= vmread.MaxKept {
		vm.known, vm.Kept = nil, 0
		clear(vm.byConstants)
	}
	if p.constants != 0 {
		vm.byConstants[p.constants] = p
	}
	vm.Kept += len(p.Name) + len(p.File) + 4*len(p.lines)
	i, _ := slices.BinarySearchFunc(vm.known, p.code.Start, func(p *proto, at uint64) int { return cmp.Compare(p.code.End, at) })
	end := i
	for end < len(vm.known) && vm.known[end].code.Start <= p.code.End {
		end++
	}
	vm.known = slices.Replace(vm.known, i, end, p)
}

// has reports whether an instruction may come next in the function.
func (p *proto) has(next uint64) bool {
	return next%4 == 0 && next >= p.code.Start && next <= p.code.End
}

// isStill reports whether a function is what it was, and forgets it where it is not.
func (vm *machine) isStill(p *proto) bool {
	if vm.now.Sub(p.checked) < interval {
		return true
	}
	f := vm.fields
	var head [maxLuaProto]byte
	if !vm.ReadNow(p.at, head[:]) {
		return true // the process may have ended
	}
	is := head[luaType] == f.protoType
	for _, at := range [...]uint64{f.source, f.code, f.lines, f.constants} {
		is = is && [8]byte(head[at:]) == [8]byte(p.head[at:])
	}
	for _, at := range [...]uint64{f.codeCount, f.lineCount, f.lineDefined} {
		is = is && [4]byte(head[at:]) == [4]byte(p.head[at:])
	}
	if p.checked = vm.now; !is {
		vm.forget(p)
	}
	return is
}

// readHead reads of a Proto what does not lead elsewhere, nil when it is none.
func (vm *machine) readHead(at uint64) *proto {
	f, le := vm.fields, binary.LittleEndian
	p := &proto{at: at, checked: vm.now}
	if at == 0 || at%8 != 0 || !vm.ReadNow(at, p.head[:]) || p.head[luaType] != f.protoType {
		return nil
	}
	start, n := le.Uint64(p.head[f.code:]), uint64(le.Uint32(p.head[f.codeCount:]))
	line := int32(le.Uint32(p.head[f.lineDefined:]))
	if start == 0 || start%4 != 0 || n == 0 || n > maxOps || line < 0 {
		return nil
	}
	p.code = mcode.Range{Start: start, End: start + 4*n}
	if le.Uint32(p.head[f.constantCount:]) > 0 {
		p.constants = le.Uint64(p.head[f.constants:])
	}
	return p
}

// readProto reads a Proto, nil when it is none.
func (vm *machine) readProto(at uint64) *proto {
	f, le := vm.fields, binary.LittleEndian
	p := vm.readHead(at)
	if p == nil {
		return nil
	}
	source := ""
	if text := le.Uint64(p.head[f.source:]); text != 0 {
		var ok bool
		if source, ok = vm.text(text); !ok {
			return nil
		}
	}
	name, file := sourceOf(source)
	line := int(le.Uint32(p.head[f.lineDefined:]))
	switch {
	case line != 0:
		p.place = fmt.Sprintf("%s:%d", name, line)
	case file != "":
		p.place, p.isChunk = "<file "+name+">", true
	default:
		p.place, p.isChunk = "<chunk "+name+">", true
	}
	p.CodeFunction = &unwind.CodeFunction{Name: p.place, SystemName: p.place, File: file, StartLine: line, Runtime: runtime}
	if p.lines = vm.readLines(p); p.lines == nil {
		p.StartLine = 0 // it has been stripped
	}
	p.serial = vm.nextSerial()
	return p
}

// nextSerial returns a number that no function has had.
func (vm *machine) nextSerial() uint32 {
	vm.serial = max(vm.serial, notRead.serial) + 1
	return vm.serial
}

// sourceOf returns how a source is called for short, and its file if it is one: it begins with what says so.
func sourceOf(source string) (name, file string) {
	switch {
	case source == "":
		return "?", ""
	case source[0] == '@':
		return path.Base(source[1:]), source[1:]
	case source[0] == '=':
		return source[1:], ""
	}
	const most = 45 // bytes of a text, as Lua has it (LUA_IDSIZE)
	line, _, isMore := strings.Cut(source, "\n")
	if len(line) > most {
		line, isMore = strings.ToValidUTF8(line[:most], ""), true
	}
	if isMore {
		line += "..."
	}
	return `[string "` + line + `"]`, ""
}

// text reads a string, of a long one its beginning; ok is false when it is none that is as usual.
func (vm *machine) text(at uint64) (text string, ok bool) {
	const kind = 0xf
	var head [luaStringData]byte
	if at%8 != 0 || !vm.ReadNow(at, head[:]) || head[luaType]&kind != luaStringType {
		return "", false
	}
	n := binary.LittleEndian.Uint64(head[luaStringSize:])
	if vm.fields.version >= 53 && head[luaType] == luaStringType {
		n = uint64(head[luaShortSize])
	}
	data := at + luaStringData
	if vm.fields.version >= 55 && head[luaType] != luaStringType {
		if data, ok = vm.WordNow(at + luaLongData); !ok {
			return "", false
		}
	}
	b := make([]byte, min(n, maxName))
	if n == 0 || !vm.ReadNow(data, b) {
		return "", n == 0
	}
	text = vmread.ValidText(b)
	line, _, _ := strings.Cut(text, "\n")
	return text, vmread.IsPrintable(strings.ReplaceAll(line, "\t", " "))
}

// readLines reads the lines of the instructions, nil where there are none.
func (vm *machine) readLines(p *proto) []int32 {
	f, le := vm.fields, binary.LittleEndian
	n := (p.code.End - p.code.Start) / 4
	if at := le.Uint64(p.head[f.lines:]); at == 0 || uint64(le.Uint32(p.head[f.lineCount:])) != n {
		return nil
	}
	lines := make([]int32, n)
	at := le.Uint64(p.head[f.lines:])
	if f.absolute == 0 {
		b := make([]byte, 4*n)
		if !vm.ReadNow(at, b) {
			return nil
		}
		for i := range lines {
			lines[i] = int32(le.Uint32(b[4*i:]))
		}
		return lines
	}
	// Each is a difference to the one before, or in a table of those that differ much.
	const absolute = -0x80
	b, known := make([]byte, n), make([]byte, 8*min(uint64(le.Uint32(p.head[f.absoluteNum:])), n))
	if !vm.ReadNow(at, b) || len(known) > 0 && !vm.ReadNow(le.Uint64(p.head[f.absolute:]), known) {
		return nil
	}
	line := int32(le.Uint32(p.head[f.lineDefined:]))
	for i := range lines {
		if d := int8(b[i]); d != absolute {
			line += int32(d)
		}
		if len(known) > 0 && le.Uint32(known) == uint32(i) {
			line = int32(le.Uint32(known[4:]))
			known = known[8:]
		}
		lines[i] = line
	}
	return lines
}

// line returns the line of the instruction before another one, 0 when it is not known.
func (p *proto) line(next uint64) int {
	i := (next - p.code.Start) / 4
	if !p.has(next) || p.lines == nil {
		return 0
	}
	return int(max(p.lines[max(i, 1)-1], 0))
}

// lineNow returns the line that a frame of luaV_execute runs of the function, 0 when it is not known: it has the
// address of the next instruction in a register, and maybe that of this one.
func (p *proto) lineNow(a *procstate.Arch, in *unwind.Frame) int {
	low, high := ^uint64(0), uint64(0)
	for saved := a.CalleeSaved &^ (1 << a.SP); saved != 0; saved &= saved - 1 {
		if v, ok := in.Regs.Value(procstate.Reg(bits.TrailingZeros64(saved))); ok && p.has(v) {
			low, high = min(low, v), max(high, v)
		}
	}
	if high == 0 || high-low > 4 && p.line(low) != p.line(high) {
		return 0
	}
	return p.line(high)
}
