package steppers

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/dataflow"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// FrameAnalyzer is the FrameFuncHelper that decodes the code: it follows each
// path through a function from its first instruction and keeps account of
// the stack pointer, the frame pointer and where the latter is saved. What it
// learns of a file is kept for all processes that map it.
//
// Functions start where the file says so, else at the nearest prologue before
// the address that pushes the frame pointer and sets it. In a file without
// symbols, the paths from the address to a return are looked at too.
type FrameAnalyzer struct {
	images mcode.PerImage[imageFrames]
	kept   int // bytes of images, about
	seen   [1 << seenBits]seenLayout

	made madeFrames

	// For the functions of files:
	flow    frameFlow
	paths   framePaths
	windows [mcode.MaxWindows][]byte // code that paths are in
	before  []byte                   // code that prologues are looked for in
}

// maxFramesKept bounds what is kept of all files, in bytes. Past it all is
// forgotten.
const maxFramesKept = 8 << 20

// seenBits is the logarithm of the number of slots of the cache.
const seenBits = 11

// seenLayout is a slot of the direct-mapped cache by link-time address.
type seenLayout struct {
	vaddr  uint64
	image  uint32 // Image.Index + 1
	layout FrameLayout
}

// NewFrameAnalyzer makes a FrameAnalyzer.
func NewFrameAnalyzer() *FrameAnalyzer { return &FrameAnalyzer{} }

// Limits on the code that is analysed for one address: the length of a
// function, and how far back a prologue is looked for in code that is in no file.
const (
	maxFuncCode     = 64 << 10
	maxPrologueScan = 4 << 10
)

// prologueScans are the bytes before an address of a file in which a prologue is
// looked for, one after the other: a function is rarely long. When so many
// prologues as manyPrologues were none of a function that comes to the address,
// one further away is none.
var prologueScans = [...]uint64{1 << 10, 4 << 10, 16 << 10, maxFuncCode}

const manyPrologues = 8

// Forget lets go of what was learned of files, but for some of their addresses.
func (a *FrameAnalyzer) Forget() {
	a.images, a.kept, a.flow.layouts = mcode.PerImage[imageFrames]{}, 0, nil
}

// AllocatesFrame implements FrameFuncHelper.
func (a *FrameAnalyzer) AllocatesFrame(w *unwind.Walker, f *unwind.Frame) FrameLayout {
	addr := f.LookupPC()
	m := w.MappingAt(addr)
	if m == nil || isa.DecoderFor(w.Arch()) == nil {
		return unknownLayout
	}
	if m.Image == nil {
		return a.made.layoutAt(w, m, f)
	}
	if m.Image.Arch() != w.Arch() {
		return unknownLayout
	}
	vaddr := addr - m.Bias
	h := (vaddr ^ uint64(m.Image.Index)<<48) * 0x9e3779b97f4a7c15
	s := &a.seen[h>>(64-seenBits)]
	if s.vaddr != vaddr || s.image != m.Image.Index+1 {
		s.vaddr, s.image = vaddr, m.Image.Index+1
		s.layout = a.analyzeFile(m.Image, f.PC()-m.Bias, f.Flags&unwind.Interrupted == 0)
	}
	return s.layout
}

// analyzeFile finds the layout at a link-time address of a file; returned
// tells that it is a return address.
func (a *FrameAnalyzer) analyzeFile(img *procstate.Image, pc uint64, returned bool) FrameLayout {
	im := a.framesOf(img)
	defer a.forgetMany(im, im.kept)
	return a.layout(im, img, pc, returned)
}

// framesOf returns what is known of a file.
func (a *FrameAnalyzer) framesOf(img *procstate.Image) *imageFrames {
	im := a.images.Get(img)
	if im == nil {
		whole := hasAllSymbols(img)
		im = &imageFrames{img: img, whole: whole, funcs: map[uint64]*funcFrames{}, behind: map[uint64]foundLayout{}, fragments: fragments{img: img}}
		if !whole && !hasTables(img) {
			im.nops, im.rare = dataflow.NopsBehindCalls(img), framesAreRare(img)
		}
		if !whole {
			im.cold = map[uint64]uint64{}
		}
		if tableBytes(img) > maxLooked {
			im.looks = fewLooks
		}
		a.images.Put(img, im)
	}
	return im
}

// hasAllSymbols reports whether all functions of a file have symbols: stripping some
// programs leaves in .symtab what .dynsym has.
func hasAllSymbols(img *procstate.Image) bool {
	symtab, ok := img.Section(".symtab")
	dynsym, _ := img.Section(".dynsym")
	return ok && symtab.Size > dynsym.Size
}

// forgetMany counts what was learnt of a file, of which so many bytes were known,
// and forgets all when it is too much.
func (a *FrameAnalyzer) forgetMany(im *imageFrames, known int) {
	if a.kept += im.kept - known; a.kept > maxFramesKept {
		a.Forget()
	}
}

// layout finds the layout at a link-time address of the file.
func (a *FrameAnalyzer) layout(im *imageFrames, img *procstate.Image, pc uint64, returned bool) FrameLayout {
	vaddr := pc
	if returned {
		vaddr--
		if im.fragments.isCalled(pc) {
			vaddr = im.fragments.state(pc)
		}
	}
	start, end := im.bounds(vaddr)
	var before foundLayout
	if start != 0 {
		before = a.function(im, img, start, end).at(vaddr)
		if before.ok && im.whole {
			return before.layout
		}
	}
	if !before.ok { // the symbol, if any, was of another function
		before = a.afterPrologue(im, img, start, vaddr, end)
	}
	behind := a.forward(im, img, pc, returned)
	if !before.ok && !behind.ok {
		if at, ok := afterFill(img, start, vaddr); ok {
			before = a.function(im, img, at, end).guessedAt(vaddr)
		}
	}
	return agreed(&before, behind)
}

// afterFill returns the nearest address between lowest and vaddr at which a function
// begins by what stands before: linkers fill the room up to an aligned address with
// int3.
func afterFill(img *procstate.Image, lowest, vaddr uint64) (start uint64, ok bool) {
	return beginsBehind(img, codeAlign, lowest, vaddr, func(before []byte, first byte) bool {
		n := len(before)
		return n >= 2 && isFill(img.Arch(), before[n-2:]) && first != mcode.BreakpointAMD64
	})
}

// afterZeros is afterFill of Free Pascal, whose assembler fills that room with zeros, behind a return.
func afterZeros(img *procstate.Image, lowest, vaddr uint64) (start uint64, ok bool) {
	return beginsBehind(img, codeAlign, lowest, vaddr, func(before []byte, first byte) bool {
		code := bytes.TrimRight(before, "\x00")
		zeros := len(before) - len(code)
		return zeros > 0 && zeros < codeAlign && isReturn(code[max(len(code)-1, 0):]) && first != 0
	})
}

// afterTable is afterFill of GHC, whose code has a table before it: of functions, how they are called, then how the
// closure is laid out, of which kind it is and what it refers to (InfoTables.h). Before that is a jump, with which all
// code of GHC ends, or what assemblers fill room with. Local functions have no symbols.
func afterTable(img *procstate.Image, lowest, vaddr uint64) (start uint64, ok bool) {
	const (
		functions, thunks, end = 7, 15, 64 // kinds
		large                  = 1 << 16   // more words than a closure has
	)
	return beginsBehind(img, 8, lowest, vaddr, func(before []byte, first byte) bool {
		at := len(before) - 16
		if at < 8 || first == 0 {
			return false
		}
		le := binary.LittleEndian
		layout, kind := le.Uint64(before[at:]), le.Uint32(before[at+8:])
		if layout>>32 >= large || kind < functions || kind >= end {
			return false
		}
		if kind < thunks {
			if at -= 8; le.Uint32(before[at:]) >= end || le.Uint32(before[at+4:]) >= end {
				return false
			}
		}
		return endsInJump(before[:at])
	})
}

// endsInJump reports whether code ends with a jump or an instruction that does nothing, by the bytes that these may be.
func endsInJump(code []byte) bool {
	for _, nop := range []string{"\x90", "\x0f\x1f\x00", "\x0f\x1f\x40\x00", "\x0f\x1f\x44\x00\x00", "\x0f\x1f\x80\x00\x00\x00\x00", "\x0f\x1f\x84\x00\x00\x00\x00\x00"} {
		if bytes.HasSuffix(code, []byte(nop)) {
			return true
		}
	}
	n := len(code)
	jumps := func(operand int, by byte) bool { // by way of a register, or what it points to
		i := n - operand - 2
		return i >= 0 && code[i] == 0xff && code[i+1]&^7 == by
	}
	return n > 6 && (code[n-5] == 0xe9 || code[n-2] == 0xeb) || jumps(0, 0xe0) || jumps(0, 0x20) || jumps(1, 0x60) || jumps(4, 0xa0)
}

// codeAlign is what compilers align functions of x86 to, in bytes.
const codeAlign = 16

// beginsBehind returns the nearest aligned address between lowest and vaddr at which a function begins, by the code
// before it and its first byte.
func beginsBehind(img *procstate.Image, align, lowest, vaddr uint64, begins func(before []byte, first byte) bool) (start uint64, ok bool) {
	const most = 1 << 10 // bytes
	s, ok := segmentAt(img, vaddr)
	if !ok || !x86Prologues(img.Arch()) {
		return 0, false
	}
	from := max(lowest, s.Vaddr, vaddr-min(vaddr, most))
	var buf [most + 1]byte
	code := buf[:vaddr+1-from]
	if img.ReadVaddr(code, from) != nil {
		return 0, false
	}
	for at := vaddr &^ (align - 1); at > from; at -= align {
		if i := at - from; begins(code[:i], code[i]) {
			return at, true
		}
	}
	return 0, false
}

// afterPrologue finds the layout by the nearest prologue between lowest and
// vaddr from which paths come there.
func (a *FrameAnalyzer) afterPrologue(im *imageFrames, img *procstate.Image, lowest, vaddr, end uint64) (l foundLayout) {
	tried := 0
	a.prologuesBefore(img, im.rare, lowest, vaddr, func(at uint64) bool {
		l = a.function(im, img, at, end).guessedAt(vaddr)
		tried++
		return !l.ok && tried < manyPrologues
	})
	return l
}

// FunctionStart returns where the function at a link-time address of a file begins:
// where the file says so, or else at the nearest prologue or behind what linkers fill
// gaps with or GHC's tables, if paths lead from there to the address.
func (a *FrameAnalyzer) FunctionStart(img *procstate.Image, vaddr uint64) (start uint64, ok bool) {
	if isa.DecoderFor(img.Arch()) == nil {
		return 0, false
	}
	im := a.framesOf(img)
	defer a.forgetMany(im, im.kept)
	lowest, end := im.bounds(vaddr)
	if lowest != 0 && a.function(im, img, lowest, end).at(vaddr).ok {
		return lowest, true
	}
	tried := 0
	a.prologuesBefore(img, im.rare, lowest, vaddr, func(at uint64) bool {
		start, ok = at, a.function(im, img, at, end).guessedAt(vaddr).ok
		tried++
		return !ok && tried < manyPrologues
	})
	for _, after := range []func(*procstate.Image, uint64, uint64) (uint64, bool){afterFill, afterZeros, afterTable} {
		if ok {
			break
		}
		if start, ok = after(img, lowest, vaddr); ok {
			ok = a.function(im, img, start, end).guessedAt(vaddr).ok
		}
	}
	return start, ok
}

// prologuesBefore calls visit for the prologues between lowest and vaddr, the
// nearest first, until it returns false; only for the near ones where they are rare.
func (a *FrameAnalyzer) prologuesBefore(img *procstate.Image, rare bool, lowest, vaddr uint64, visit func(at uint64) bool) {
	const longest = 128 // bytes of a prologue
	segment, ok := segmentAt(img, vaddr)
	if !ok {
		return
	}
	lowest = max(lowest, segment.Vaddr)
	seen := vaddr + 1 // the lowest address that was looked at
	for _, scan := range prologueScans {
		from := max(lowest, (vaddr-min(vaddr, scan))&^(img.Arch().PCAlign-1))
		to := min(seen+longest, vaddr+16, segment.Vaddr+segment.Filesz)
		a.before = slices.Grow(a.before[:0], int(to-from))[:to-from]
		if img.ReadVaddr(a.before, from) != nil {
			return
		}
		for p := lastPrologue(img.Arch(), a.before); p >= 0; p = lastPrologue(img.Arch(), a.before[:p]) {
			if at := from + uint64(firstPush(img.Arch(), a.before, p)); at < seen && !visit(at) {
				return
			}
		}
		if seen = from; from == lowest || rare {
			return
		}
	}
}

// segmentAt returns the segment that holds a link-time address of a file.
func segmentAt(img *procstate.Image, vaddr uint64) (procstate.Segment, bool) {
	for _, s := range img.Segments() {
		if vaddr-s.Vaddr < s.Filesz {
			return s, true
		}
	}
	return procstate.Segment{}, false
}

// forward is layoutBehind for code of a file.
func (a *FrameAnalyzer) forward(im *imageFrames, img *procstate.Image, pc uint64, returned bool) *foundLayout {
	key := pc
	if returned {
		key-- // never an instruction's start
	}
	l, ok := im.behind[key]
	if !ok {
		n, at := 0, pc
		if returned {
			at = im.fragments.state(pc)
		}
		a.paths.nops, a.paths.fragments = im.nops, &im.fragments
		l = a.paths.layoutBehind(img.Arch(), func(start, addr, end uint64) ([]byte, uint64) {
			s, ok := segmentAt(img, addr)
			if !ok || n == mcode.MaxWindows {
				return nil, addr
			}
			start, end = max(start, s.Vaddr), min(end, s.Vaddr+s.Filesz)
			a.windows[n] = slices.Grow(a.windows[n][:0], int(end-start))[:end-start]
			if img.ReadVaddr(a.windows[n], start) != nil {
				return nil, addr
			}
			n++
			return a.windows[n-1], start
		}, at, returned, nil, false)
		im.behind[key] = l
		im.kept += 64
	}
	return &l
}

// function returns the analysis of the function, or of the split-off part of
// one, at [start, end).
func (a *FrameAnalyzer) function(im *imageFrames, img *procstate.Image, start, end uint64) *funcFrames {
	if f := im.funcs[start]; f != nil {
		return f
	}
	entry := entryState(img.Arch())
	if parent, ok := im.part(start); ok {
		// It starts with the state of the branch that leads there.
		known := false
		if at, parentEnd := im.bounds(parent); parent != 0 && at == parent {
			for _, e := range a.function(im, img, parent, parentEnd).exits {
				if parent+e.off == start {
					entry, known = e.state, true
				}
			}
		}
		if !known {
			end = start
		}
	}
	a.flow.code.ofFile(img, start, end)
	a.flow.nops, a.flow.fragments = im.nops, &im.fragments
	f := a.flow.analyze(img.Arch(), start, entry, im.whole)
	if im.cold == nil || len(im.cold) > 0 {
		f.exits = slices.Clone(a.flow.exits)
	}
	im.keep(start, f)
	return f
}

// x86Prologues reports whether an architecture is x86, of 64 or 32 bits: functions begin
// alike there, and linkers fill gaps with the same.
func x86Prologues(a *procstate.Arch) bool { return a == procstate.AMD64 || a == procstate.I386 }

// beginsFrame reports whether code begins with mov %rsp,%rbp, or what that is on i386.
func beginsFrame(a *procstate.Arch, code []byte) bool {
	if a == procstate.I386 {
		return len(code) > 1 && (code[0] == 0x89 && code[1] == 0xe5 || code[0] == 0x8b && code[1] == 0xec)
	}
	return movesSPToFP(code)
}

// rexW is the prefix of x86-64 instructions with operands of 64 bits.
const rexW = 0x48

// movesSPToFP reports whether code begins with mov %rsp,%rbp, in one of its encodings.
func movesSPToFP(code []byte) bool {
	return len(code) > 2 && code[0] == rexW && (code[1] == 0x89 && code[2] == 0xe5 || code[1] == 0x8b && code[2] == 0xec)
}

// setsFPARM64 reports whether an instruction of AArch64 is add x29,sp,#n; with 0 it is mov.
func setsFPARM64(w uint32) bool { return w&0xffc003ff == 0x910003fd }

// lastPrologue returns the offset of the last prologue in code that sets a
// frame pointer, -1 when there is none.
func lastPrologue(a *procstate.Arch, code []byte) int {
	switch a {
	case procstate.AMD64, procstate.I386:
		for i := len(code) - 2; i > 0; i-- {
			if b := code[i]; a == procstate.AMD64 && b != rexW {
				continue
			}
			if beginsFrame(a, code[i:]) {
				if p := pushBefore(a, code, i); p >= 0 {
					return p
				}
			}
		}
	case procstate.ARM64:
		for i := len(code)&^3 - 4; i > 0; i -= 4 {
			if setsFPARM64(binary.LittleEndian.Uint32(code[i:])) {
				if p := lowerBefore(code, i); p >= 0 {
					return p
				}
			}
		}
	}
	return -1
}

// lowerBefore returns the offset of the instruction that begins an AArch64
// function whose frame pointer is set at offset at of code, -1 when it does
// not: it lowers SP, x29 and x30 are stored, and nothing but the work of the
// function comes between.
func lowerBefore(code []byte, at int) int {
	const most = 16
	start, stored := -1, uint64(0)
	var in isa.Inst
	p := at - 4
	for ; p >= max(0, at-4*most); p -= 4 {
		if !isa.DecodeARM64(code[p:], 0, &in) || in.Flow != isa.Next {
			break
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Store && op.Dst == procstate.ARM64.SP:
				stored |= 1 << op.Src
			case op.Kind == isa.Set && op.Dst == procstate.ARM64.SP && op.Src == procstate.ARM64.SP && op.Imm < 0:
				start = p
			}
		}
	}
	if stored>>29&3 != 3 || start < 0 {
		return -1
	}
	if start >= 4 && bytes.Equal(code[start-4:start], []byte{0x3f, 0x23, 0x03, 0xd5}) { // paciasp
		start -= 4
	}
	return start
}

// pushBefore returns the offset of the push %rbp that begins a function of x86 whose
// mov %rsp,%rbp is at offset at of code, -1 when it does not: nothing but the
// work of the function comes between them.
func pushBefore(a *procstate.Arch, code []byte, at int) int {
	const most = 4 // instructions
	for p := at - 1; p >= max(0, at-24); p-- {
		if code[p] != 0x55 || !goesStraight(a, code[:at], p, most) || repushesReturn(a, code[:p]) {
			continue
		}
		return behindEndbr(a, code, p)
	}
	return -1
}

// behindEndbr returns the offset of the endbr that stands right before offset p of code, p
// where there is none.
func behindEndbr(a *procstate.Arch, code []byte, p int) int {
	if n := p - 4; n >= 0 && isEndbr(a, code[n:]) {
		return n
	}
	return p
}

// firstPush returns where the function of a file begins whose prologue, of lastPrologue, is at
// offset p of code: it may save other registers before the frame pointer. No other function
// ends like that, but by a jump through a table, jmp *0x50(%rax), with the distance that its
// last byte is. What is made at run time may go on from other code.
func firstPush(a *procstate.Arch, code []byte, p int) int {
	const push, rexB = 0x50, 0x41
	if !x86Prologues(a) || isEndbr(a, code[p:]) {
		return p
	}
	for p > 0 && code[p-1]&^7 == push && (p < 3 || code[p-3] != 0xff) {
		if p--; p > 0 && a == procstate.AMD64 && code[p-1] == rexB {
			p--
		}
	}
	return behindEndbr(a, code, p)
}

// goesStraight reports whether so many instructions at most, from an offset on, lead to the
// end of code.
func goesStraight(a *procstate.Arch, code []byte, at, most int) bool {
	var in isa.Inst
	for ; at < len(code) && most > 0 && mcode.Decode(a, code[at:], 0, &in) && in.Flow == isa.Next; most-- {
		at += int(in.Len)
	}
	return at == len(code)
}

// repushesReturn reports whether code of x86 ends with a push of the return address, which is
// the word below where a register points, and what compilers move in behind it. The stack has
// been aligned before, and no frame that follows tells where the CFA is:
//
//	lea  8(%rsp),%r10    or %r13; on i386 4(%esp),%ecx, or %edi
//	and  $-32,%rsp
//	push -8(%r10)
//	push %rbp
//	mov  %rsp,%rbp
func repushesReturn(a *procstate.Arch, code []byte) bool {
	const most = 64 // bytes that are looked at
	for p := len(code) - 3; p >= max(0, len(code)-most); p-- {
		if code[p] == 0xff && code[p+1]&^7 == 0x70 && int(int8(code[p+2])) == -a.AddressWidth && goesStraight(a, code, p+3, most) {
			return true
		}
	}
	return false
}

// IsFrameSet implements hotspot.FrameStates.
func (a *FrameAnalyzer) IsFrameSet(w *unwind.Walker, f *unwind.Frame) (set, known bool) {
	state := a.AllocatesFrame(w, f).State
	return state == SetFrame, state != UnknownState
}
