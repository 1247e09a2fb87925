package procstate

import "encoding/binary"

// Indices of the tables of a function, the same in all versions read here.
const (
	pcdataInlTreeIndex = 2
	funcdataInlTree    = 3
)

// maxGoInline bounds the depth of inlined calls at one address.
const maxGoInline = 64

// GoLine is one logical frame at an address of a Go function.
type GoLine struct {
	Name      string // as the linker wrote it; see [GoName]
	File      string // "" when not known
	Line      int32  // 0 when not known
	StartLine int32  // line of the func keyword, 0 when not known
	Inlined   bool   // inlined into the next GoLine
}

// Lines appends the logical frames at a link-time address to dst: inlined
// calls innermost first, the function itself last. The strings may share
// the memory of the table. Without its inline tree a function still has its line.
func (t *GoTable) Lines(dst []GoLine, f *GoFunc, vaddr uint64) []GoLine {
	if f.t != t {
		return dst
	}
	tree, ok := f.inlineTree()
	for range maxGoInline {
		file, line := f.fileLine(vaddr)
		index := int32(-1)
		if ok {
			index = f.inlineIndex(vaddr)
		}
		call, found := f.inlinedCall(tree, index)
		if !found {
			return append(dst, GoLine{f.Name(), file, line, f.StartLine, false})
		}
		dst = append(dst, GoLine{t.cstring(t.funcNames + uint64(call.name)), file, line, call.startLine, true})
		vaddr = f.Entry + uint64(call.parentPC)
	}
	return append(dst, GoLine{Name: f.Name(), StartLine: f.StartLine})
}

// fileLine returns the source position of the instruction at vaddr.
func (f *GoFunc) fileLine(vaddr uint64) (file string, line int32) {
	t := f.t
	fileno, ok := f.pcvalue(f.field(4), vaddr)
	if !ok || fileno < 0 {
		return "", 0
	}
	line, ok = f.pcvalue(f.field(5), vaddr)
	if !ok || line < 0 {
		return "", 0
	}
	off, ok := t.word(t.cutab+(uint64(f.field(7))+uint64(fileno))*4, 4)
	if !ok || off == 1<<32-1 {
		return "", 0
	}
	return t.cstring(t.filetab + off), line
}

// inlineIndex returns the innermost inlined call at vaddr, -1 for none.
func (f *GoFunc) inlineIndex(vaddr uint64) int32 {
	npcdata := f.field(6)
	if npcdata <= pcdataInlTreeIndex {
		return -1
	}
	off, ok := f.t.word(f.rec+f.t.fixedSize()+4*pcdataInlTreeIndex, 4)
	if !ok {
		return -1
	}
	index, ok := f.pcvalue(uint32(off), vaddr)
	if !ok {
		return -1
	}
	return index
}

// inlineTree returns the link-time address of the function's inline tree.
func (f *GoFunc) inlineTree() (vaddr uint64, ok bool) {
	t := f.t
	fixed := t.fixedSize()
	if last := t.data.from(f.rec + fixed - 1); len(last) == 0 || last[0] <= funcdataInlTree { // nfuncdata
		return 0, false
	}
	at := fixed + 4*uint64(f.field(6))
	if t.magic == pclntab116 { // pointers, aligned
		// The record is aligned in pcln, which is aligned in memory.
		if t.ptrSize == 8 && (t.vaddr+f.rec+at)%8 != 0 {
			at += 4
		}
		v, ok := t.word(f.rec+at+t.ptrSize*funcdataInlTree, t.ptrSize)
		return v, ok && v != 0
	}
	off, ok := t.word(f.rec+at+4*funcdataInlTree, 4)
	if !ok || off == 1<<32-1 || t.gofunc == 0 {
		return 0, false
	}
	return t.gofunc + off, true
}

type goInlinedCall struct {
	name      uint32 // offset in funcNames
	startLine int32
	parentPC  uint32 // of the call, from the function's entry
}

// inlinedCall reads entry index of the inline tree at link-time address tree
// (runtime.inlinedCall).
func (f *GoFunc) inlinedCall(tree uint64, index int32) (c goInlinedCall, ok bool) {
	if index < 0 || index >= 1<<20 {
		return c, false
	}
	size := uint64(20) // parent i16, funcID u8, pad, file, line, func, parentPc
	if f.t.magic == pclntab120 {
		size = 16 // funcID u8, pad, name, parentPc, startLine
	}
	b, ok := f.t.bytesAt(tree+size*uint64(index), size)
	if !ok {
		return c, false
	}
	le := binary.LittleEndian
	if size == 16 {
		c = goInlinedCall{le.Uint32(b[4:]), int32(le.Uint32(b[12:])), le.Uint32(b[8:])}
	} else {
		c = goInlinedCall{le.Uint32(b[12:]), 0, le.Uint32(b[16:])}
	}
	return c, uint64(c.name) < f.t.data.size-f.t.funcNames && uint64(c.parentPC) < f.End-f.Entry
}

// bytesAt returns n bytes of the file at a link-time address, at most
// chunkOverlap: a part of the table where that holds them, as since Go 1.26.
func (t *GoTable) bytesAt(vaddr, n uint64) ([]byte, bool) {
	if vaddr >= t.vaddr {
		if b := t.data.from(vaddr - t.vaddr); uint64(len(b)) >= n {
			return b[:n], true
		}
	}
	b := make([]byte, n)
	return b, t.img.ReadVaddr(b, vaddr) == nil
}
