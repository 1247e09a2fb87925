package procstate

import (
	"debug/elf"
	"encoding/binary"
	"slices"
)

// Where libgcc keeps what it has been told of call frame information is told by no
// symbol, unless it is part of a program that has all its symbols. Up to GCC 12 there are
// two lists, of what exceptions have looked at and what not. What takes an object from
// either of them, __deregister_frame_info_bases, reads the places where they begin, and
// takes their addresses too. From GCC 13 on there is a tree (unwind-dw2-btree.h): what
// finds code in it, _Unwind_Find_FDE, reads its root, and again and again its version,
// which is two words behind, and writes neither, as it does with lists; and
// __deregister_frame_info_bases takes its address.

// frameRoots are the link-time addresses at which libgcc's lists begin, and that of its
// tree, 0 when there is none.
type frameRoots struct {
	lists []uint64
	tree  uint64
}

const (
	treeLockAt   = 16      // the version of a tree, behind its root
	maxFrameCode = 8 << 10 // bytes of a function of libgcc that are looked at
)

// frameRoots returns what there is in the file.
func (im *Image) frameRoots() frameRoots {
	im.jit.rootsOnce.Do(func() { im.jit.roots = im.findFrameRoots() })
	return im.jit.roots
}

func (im *Image) findFrameRoots() (roots frameRoots) {
	remove := im.variableUses("__deregister_frame_info_bases")
	if len(remove) == 0 {
		return roots
	}
	var trees []uint64
	find := im.variableUses("_Unwind_Find_FDE")
	for to, use := range find {
		lock := find[to+treeLockAt]
		if remove[to] != (variableUse{}) && use.loaded > 0 && lock.loaded > 1 && use.stored+lock.stored == 0 && im.isVariable(to) {
			trees = append(trees, to)
		}
	}
	if len(trees) == 1 {
		roots.tree = trees[0]
	}
	for to, use := range remove {
		if len(trees) == 0 && use.loaded > 0 && use.taken > 0 && im.isVariable(to) {
			roots.lists = append(roots.lists, to)
		}
	}
	slices.Sort(roots.lists)
	return roots
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

// variableUses returns what instructions of an exported function do with link-time
// addresses. It may have some that are none.
func (im *Image) variableUses(function string) variableUses {
	at, size := im.symbolNamed(function, elf.STT_FUNC, ".dynsym")
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
