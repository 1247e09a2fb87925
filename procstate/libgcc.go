package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"iter"
	"slices"
)

// Where libgcc keeps what it has been told of call frame information is told by symbols
// only in a program that libgcc is linked into, and that has all its symbols. Up to GCC 12
// there are two lists, of what exceptions have looked at and what not. What takes an
// object from either of them, __deregister_frame_info_bases, reads the places where they
// begin, and takes their addresses too. From GCC 13 on there is a tree
// (unwind-dw2-btree.h): what finds code in it, _Unwind_Find_FDE, reads its root, and again
// and again its version, which is two words behind, and writes neither, as it does with
// lists; and __deregister_frame_info_bases takes its address.
//
// In a program without symbols that libgcc is linked into, these functions are behind
// __register_frame_info_bases, which sets the flags of an object to a number that little
// else needs. It adds objects to one of the lists; the address of a tree is taken there,
// or a little before.

// frameRoots are the link-time addresses at which libgcc's lists begin, and that of its
// tree, 0 when there is none.
type frameRoots struct {
	lists []uint64
	tree  uint64
}

const (
	treeLockAt     = 16       // the version of a tree, behind its root
	maxFrameCode   = 8 << 10  // bytes of a function of libgcc that are looked at
	maxFrameSearch = 64 << 20 // bytes of code that are searched for libgcc

	newObject       = 0x7f8   // flags of an object: nothing is known of it
	maxNewObjects   = 64      // instructions with that number
	newObjectBefore = 64      // bytes of code before such an instruction,
	newObjectCode   = 256     // around it, of which the function is,
	linkedCode      = 2 << 10 // of which those functions are that find and remove objects,
	linkedBefore    = 4 << 10 // and before it, where the address of a tree may be taken
)

// frameRoots returns what there is in the file.
func (im *Image) frameRoots() frameRoots {
	im.jit.rootsOnce.Do(func() { im.jit.roots = im.findFrameRoots() })
	return im.jit.roots
}

func (im *Image) findFrameRoots() (roots frameRoots) {
	if im.arch != AMD64 && im.arch != ARM64 {
		return roots
	}
	if at, size := im.symbolNamed("__deregister_frame_info_bases", elf.STT_FUNC, ".dynsym"); at != 0 {
		remove := im.variableUses(at, size)
		at, size = im.symbolNamed("_Unwind_Find_FDE", elf.STT_FUNC, ".dynsym")
		if tree, ok := im.treeIn(im.variableUses(at, size), remove); ok {
			return frameRoots{tree: tree}
		}
		return frameRoots{lists: im.listsIn(remove)}
	}
	if names, ok := im.Section(".dynstr"); ok {
		for range im.findName(names, "libgcc_s.so.1") {
			return roots // libgcc is in that file
		}
	}
	if roots.tree, _ = im.symbolNamed("registered_frames", elf.STT_OBJECT, ".symtab"); roots.tree != 0 {
		return roots
	}
	for _, list := range []string{"seen_objects", "unseen_objects"} {
		if at, _ := im.symbolNamed(list, elf.STT_OBJECT, ".symtab"); at != 0 {
			roots.lists = append(roots.lists, at)
		}
	}
	slices.Sort(roots.lists)
	if _, ok := im.Section(".symtab"); ok {
		return roots
	}
	return im.linkedFrameRoots()
}

// linkedFrameRoots finds libgcc in a program that it is linked into by its code.
func (im *Image) linkedFrameRoots() frameRoots {
	for at := range im.newObjects() {
		behind := im.variableUses(at-newObjectBefore, linkedCode)
		tree, ok := im.treeIn(behind, behind)
		if ok && (behind[tree].taken > 0 || im.variableUses(at-linkedBefore, linkedBefore)[tree].taken > 0) {
			return frameRoots{tree: tree}
		}
		register, lists := im.variableUses(at-newObjectBefore, newObjectCode), im.listsIn(behind)
		if len(lists) == 2 && lists[1]-lists[0] <= 16 && register[lists[0]].stored+register[lists[1]].stored > 0 {
			return frameRoots{lists: lists}
		}
	}
	return frameRoots{}
}

// treeIn returns the tree in which code is found by a function with some uses of
// variables; another function uses it too.
func (im *Image) treeIn(find, other variableUses) (tree uint64, ok bool) {
	for to, use := range find {
		lock := find[to+treeLockAt]
		if other[to] == (variableUse{}) || use.loaded == 0 || lock.loaded < 2 || use.stored+lock.stored > 0 || !im.isVariable(to) {
			continue
		}
		if ok {
			return 0, false
		}
		tree, ok = to, true
	}
	return tree, ok
}

// listsIn returns the lists that a function takes objects from.
func (im *Image) listsIn(remove variableUses) (lists []uint64) {
	for to, use := range remove {
		if use.loaded > 0 && use.taken > 0 && im.isVariable(to) {
			lists = append(lists, to)
		}
	}
	slices.Sort(lists)
	return lists
}

// newObjects finds the link-time addresses of instructions with the flags of a new object.
func (im *Image) newObjects() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		const overlap = 8
		searched, found := uint64(0), 0
		var buf [64 << 10]byte
		for _, s := range im.segs {
			for off := uint64(0); s.Flags&elf.PF_X != 0 && off+overlap <= s.Filesz && searched < maxFrameSearch; off += uint64(len(buf)) - overlap {
				code := buf[:min(uint64(len(buf)), s.Filesz-off)]
				if im.ReadVaddr(code, s.Vaddr+off) != nil {
					break
				}
				searched += uint64(len(code))
				for from := 0; ; from += 4 {
					i := newObjectIn(im.arch, code[from:])
					if i < 0 {
						break
					}
					from += i
					if found++; found > maxNewObjects || !yield(s.Vaddr+off+uint64(from)) {
						return
					}
				}
			}
		}
	}
}

// newObjectIn returns where code has an instruction with the flags of a new object, less
// than 0 where there is none.
func newObjectIn(a *Arch, code []byte) int {
	if a == ARM64 {
		for at := 0; at+4 <= len(code); at += 4 {
			if binary.LittleEndian.Uint32(code[at:])&^31 == 0xd2800000|newObject<<5 { // MOV
				return at
			}
		}
		return -1
	}
	const flagsAt = 32
	number := []byte{flagsAt, newObject & 0xff, newObject >> 8, 0, 0}
	for at := 0; ; at++ {
		i := bytes.Index(code[at:], number)
		if i < 0 {
			return -1
		}
		at += i
		if at >= 3 && code[at-3]&^1 == 0x48 && code[at-2] == 0xc7 && code[at-1]&^7 == 0x40 { // MOVQ $number, flagsAt(register)
			return at - 3
		}
	}
}

// isVariable reports whether a link-time address may be that of a pointer that the program
// writes.
func (im *Image) isVariable(vaddr uint64) bool {
	return vaddr%8 == 0 && slices.ContainsFunc(im.segs, func(s Segment) bool {
		return s.Flags&elf.PF_W != 0 && vaddr-s.Vaddr < s.Memsz
	})
}

// variableUse tells how often instructions load eight bytes from an address, store them,
// and take the address.
type variableUse struct{ loaded, stored, taken int }

// variableUses are the uses of link-time addresses.
type variableUses map[uint64]variableUse

func (u variableUses) add(addr uint64, n variableUse) {
	was := u[addr]
	u[addr] = variableUse{was.loaded + n.loaded, was.stored + n.stored, was.taken + n.taken}
}

// variableUses returns what instructions of a function do with link-time addresses. It may
// have some that are none.
func (im *Image) variableUses(at, size uint64) variableUses {
	code := make([]byte, min(size, maxFrameCode))
	if at == 0 || im.ReadVaddr(code, at) != nil {
		return nil
	}
	uses := variableUses{}
	switch im.arch {
	case AMD64:
		usesAMD64(code, at, uses)
	case ARM64:
		usesARM64(code, at, uses)
	}
	return uses
}

// usesAMD64 finds instructions with REX.W that have an address relative to RIP.
func usesAMD64(code []byte, at uint64, uses variableUses) {
	for i := range max(len(code), 7) - 7 { // REX.W, operation, [RIP+disp]
		if code[i]&^4 != 0x48 || code[i+2]&0xc7 != 5 {
			continue
		}
		to := at + uint64(i) + 7 + uint64(int64(int32(binary.LittleEndian.Uint32(code[i+3:]))))
		switch code[i+1] {
		case 0x8b: // MOV
			uses.add(to, variableUse{loaded: 1})
		case 0x89:
			uses.add(to, variableUse{stored: 1})
		case 0x8d: // LEA
			uses.add(to, variableUse{taken: 1})
		}
	}
}

// usesARM64 follows addresses from ADRP on, through the code in the order in which it
// lies. A register is believed to keep its address when other instructions write to it, as
// those do that restore it on a way out.
func usesARM64(code []byte, at uint64, uses variableUses) {
	const sp = 31
	var regs [32]uint64 // 0: not known
	for ; len(code) >= 4; code, at = code[4:], at+4 {
		in := binary.LittleEndian.Uint32(code)
		to, base := in&31, in>>5&31
		addr, offset := regs[base], uint64(in>>10&0xfff)
		var use variableUse
		switch {
		case in&0x9f000000 == 0x90000000: // ADRP
			pages := int64(int32(in<<8)>>13)<<2 | int64(in>>29&3)
			regs[to] = at&^0xfff + uint64(pages<<12)
			continue
		case in&0xfc000000 == 0x94000000: // BL
			regs[0] = 0
			continue
		case in&0xffc00000 == 0x91000000: // ADD with a number
			use.taken = 1
		case in&0xffc00000 == 0xf9400000: // LDR
			use.loaded, offset = 1, 8*offset
		case in&0xfffffc00 == 0xc8dffc00: // LDAR
			use.loaded, offset = 1, 0
		case in&0xffc00000 == 0xf9000000: // STR
			use.stored, offset = 1, 8*offset
		default:
			continue
		}
		if use.stored == 0 && base != sp {
			regs[to] = 0
		}
		if addr != 0 {
			uses.add(addr+offset, use)
		}
		if addr != 0 && use.taken != 0 {
			regs[to] = addr + offset
		}
	}
}
