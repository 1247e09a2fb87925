package lua

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"regexp"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// imageInfo is what is known of a file that may have Lua's interpreter. Addresses are link-time
// addresses.
type imageInfo struct {
	fields  *fields // nil: it has none
	arch    *procstate.Arch
	execute mcode.Range // luaV_execute
	parts   mcode.FunctionParts
	frame   unwind.RegRule // of the CFA in it,
	others  []mcode.Range  // but for these parts, in which it has no frame yet or no more
	places  []keptPlace    // where it keeps its first argument, the lua_State
}

// keptPlace is a register, or a word on the stack at a distance from the CFA.
type keptPlace struct {
	reg    procstate.Reg
	isWord bool
	offset int64
}

const (
	maxStrings = 256 << 10 // bytes of a file's .dynstr that are looked through,
	maxData    = 64 << 20
	maxText    = 16 << 20
	minExecute = 2 << 10 // and of luaV_execute, compiled for size too
	maxExecute = 256 << 10
)

// find looks for the interpreter in a file.
func find(im *procstate.Image, tables *unwind.Tables) (p imageInfo) {
	if im.Arch() != procstate.AMD64 && im.Arch() != procstate.ARM64 || !mayHaveLua(im) {
		return p
	}
	fields := versions[version(im)]
	if fields == nil {
		return p
	}
	if p.execute = execute(im, tables.For(im), fields); p.execute.End == 0 || !p.readFrame(tables.For(im)) {
		return p
	}
	if p.findPlaces(im, tables.For(im)); len(p.places) > 0 {
		p.fields, p.arch = fields, im.Arch()
	}
	return p
}

// mayHaveLua reports whether it is worth the time to look through a file: it exports Lua's interface, has
// functions of the C library that Lua needs, or is linked statically and not of Go.
func mayHaveLua(im *procstate.Image) bool {
	if _, ok := im.ExportedSymbol("lua_newstate"); ok {
		return true
	}
	s, ok := im.Section(".dynstr")
	if !ok {
		_, isGo := im.Section(".gopclntab")
		return !isGo
	}
	if s.Size > maxStrings {
		return false
	}
	names, err := im.SectionBytes(s, maxStrings)
	return err == nil && bytes.Contains(names, []byte("\x00strcoll\x00")) && bytes.Contains(names, []byte("\x00localeconv\x00"))
}

// ident is how Lua says which release it is, and name what _VERSION is in a program without that.
var (
	ident = regexp.MustCompile(`\$Lua(?:Version)?: Lua 5\.([1-5])\.([0-9]+) `)
	name  = regexp.MustCompile(`\x00Lua 5\.([1-5])\x00`)
)

// version returns the version of Lua in a file, 0 where there is none.
func version(im *procstate.Image) (version int) {
	data, ok := im.Section(".rodata")
	if !ok {
		return 0
	}
	const overlap = 64
	buf := make([]byte, 256<<10)
	for off := uint64(0); off < min(data.Size, maxData); off += uint64(len(buf) - overlap) {
		n, _ := im.ReadAt(buf[:min(uint64(len(buf)), data.Size-off)], int64(data.Off+off))
		if n <= 0 {
			break
		}
		b := buf[:n]
		if !bytes.Contains(b, []byte("Lua")) {
			continue
		}
		if m := ident.FindSubmatch(b); m != nil {
			version = 50 + int(m[1][0]-'0')
			if version == 53 && len(m[2]) == 1 && m[2][0] < '3' {
				return 0 // whose calls have other marks
			}
			return version
		}
		if bytes.Contains(b, []byte("LuaJIT 2.")) {
			return 0
		}
		if m := name.FindSubmatch(b); m != nil {
			version = 50 + int(m[1][0]-'0')
		}
	}
	return version
}

// execute finds luaV_execute: by its name, or as the largest function that jumps by the number of an
// instruction.
func execute(im *procstate.Image, t *unwind.Table, f *fields) (execute mcode.Range) {
	im.EachSymbol(func(sym *procstate.ELFSymbol) bool {
		if string(sym.Name) == "luaV_execute" && sym.Size >= minExecute && sym.Size <= maxExecute {
			execute = mcode.Range{Start: sym.Value, End: sym.Value + sym.Size}
		}
		return execute.End == 0
	})
	if execute.End != 0 {
		return execute
	}
	take := func(is mcode.Range) {
		if n := is.End - is.Start; n >= max(minExecute, execute.End-execute.Start) && n <= maxExecute && jumpsByLuaOp(im, is, f.opBits) {
			execute = is
		}
	}
	starts := im.FuncStarts()
	for i := 1; i < len(starts); i++ {
		take(mcode.Range{Start: starts[i-1], End: starts[i]})
	}
	if text, ok := im.Section(".text"); ok && len(starts) == 0 && text.Size <= maxText {
		// A program that is linked statically has no index of its functions.
		const apart = 16
		for at := text.Vaddr; at < text.Vaddr+text.Size; {
			start, end, ok := t.FunctionAt(at)
			if !ok || end <= at {
				at = at&^(apart-1) + apart
				continue
			}
			take(mcode.Range{Start: start, End: end})
			at = end
		}
	}
	return execute
}

// jumpsByLuaOp reports whether a function takes the lowest bits of a word and soon after jumps to an address that it
// has computed.
func jumpsByLuaOp(im *procstate.Image, f mcode.Range, bits uint) bool {
	const soon = 32 // instructions
	code := make([]byte, f.End-f.Start)
	if im.ReadVaddr(code, f.Start) != nil {
		return false
	}
	var in isa.Inst
	left := 0
	for n := 0; n < len(code); n += int(in.Len) {
		if !mcode.Decode(im.Arch(), code[n:], f.Start+uint64(n), &in) || in.Len == 0 {
			return false
		}
		switch {
		case takesLowest(im.Arch(), code[n:n+int(in.Len)], bits):
			left = soon
		case left > 0 && in.Flow == isa.IndirectJump:
			return true
		case left > 0:
			left--
		}
	}
	return false
}

// takesLowest reports whether an instruction is an and that leaves so many of the lowest bits of a register.
func takesLowest(a *procstate.Arch, inst []byte, bits uint) bool {
	if a == procstate.ARM64 {
		const and, wide, place, registers = 0x12000000, 1<<31 | 1<<22, 10, 1<<10 - 1
		return binary.LittleEndian.Uint32(inst)&^(wide|registers) == and|uint32(bits-1)<<place
	}
	const group1, and, direct = 0x83, 0xe0, 0xf8
	if inst[0]&0xf0 == 0x40 {
		inst = inst[1:]
	}
	return len(inst) == 3 && inst[0] == group1 && inst[1]&direct == and && inst[2] == 1<<bits-1
}

// readFrame finds out where luaV_execute has its frame.
func (p *imageInfo) readFrame(t *unwind.Table) bool {
	const most = 1 << 10 // rows
	type row struct {
		cfa unwind.RegRule
		at  mcode.Range
	}
	var rows []row
	bytes := map[unwind.RegRule]uint64{}
	for at := p.execute.Start; at < p.execute.End; {
		r, _, end, err := t.Row(at)
		if err != nil || end <= at || len(rows) == most {
			break // padding, or what follows is another function
		}
		end = min(end, p.execute.End)
		rows = append(rows, row{r.CFA, mcode.Range{Start: at, End: end}})
		if bytes[r.CFA] += end - at; bytes[r.CFA] > bytes[p.frame] {
			p.frame = r.CFA
		}
		at = end
	}
	for _, r := range rows {
		if r.cfa != p.frame {
			p.others = append(p.others, r.at)
		}
	}
	return p.frame.Kind == unwind.InReg
}

// findPlaces finds where luaV_execute puts its first argument, which is the lua_State.
func (p *imageInfo) findPlaces(im *procstate.Image, t *unwind.Table) {
	const most = 128 // bytes
	var code [most]byte
	if im.ReadVaddr(code[:], p.execute.Start) != nil {
		return
	}
	a := im.Arch()
	holds := mcode.Holding{Regs: 1 << mcode.FirstArgument(a)}
	var in isa.Inst
	for n := 0; n < most-mcode.MaxInstLen; n += int(in.Len) {
		at := p.execute.Start + uint64(n)
		if !mcode.Decode(a, code[n:], at, &in) || in.Len == 0 || in.Flow != isa.Next {
			break
		}
		row, _, _, _ := t.Row(at)
		holds.Apply(a, &in, row.CFA)
	}
	for regs := holds.Regs & a.CalleeSaved; regs != 0; regs &= regs - 1 {
		p.places = append(p.places, keptPlace{reg: procstate.Reg(bits.TrailingZeros64(regs))})
	}
	for words := holds.Words; words != 0; words &= words - 1 {
		p.places = append(p.places, keptPlace{isWord: true, offset: mcode.WordOffset(bits.TrailingZeros64(words))})
	}
}

// hasFrame reports whether luaV_execute has its frame where it was interrupted at a link-time address.
func (p *imageInfo) hasFrame(vaddr uint64) bool {
	for _, r := range p.others {
		if vaddr-r.Start < r.End-r.Start {
			return false
		}
	}
	return true
}
