package symbols

import (
	"debug/elf"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// mostFollowed is how many instructions of a function are followed.
const mostFollowed = 1 << 12

// mayLead reports whether the code of a file that begins at link-time address
// start may lead to the instruction that holds vaddr. Only false is certain: where
// it goes on cannot be told of an indirect jump, nor of bytes that are no
// instruction.
func mayLead(im *procstate.Image, start, vaddr uint64) bool {
	decode := isa.DecoderFor(im.Arch())
	if decode == nil {
		return true
	}
	read := codeReader(im)
	seen, todo := map[uint64]bool{}, []uint64{start}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for !seen[at] {
			var in isa.Inst
			if len(seen) == mostFollowed || !decode(read(at), at, &in) || in.Flow == isa.IndirectJump {
				return true
			}
			if vaddr-at < uint64(in.Len) {
				return true
			}
			seen[at] = true
			if (in.Flow == isa.Jump || in.Flow == isa.CondJump) && in.Target >= start {
				todo = append(todo, in.Target)
			}
			if in.Ends() {
				break
			}
			at += uint64(in.Len)
		}
	}
	return false
}

// codeReader returns what reads the code of a file at a link-time address: an
// instruction of it at least, nothing where there is no code. It is valid until the
// next is read.
func codeReader(im *procstate.Image) func(vaddr uint64) []byte {
	const longest = 16 // bytes of an instruction, or more
	var window [1 << 10]byte
	var code []byte // from base on
	var base uint64
	return func(vaddr uint64) []byte {
		if off := vaddr - base; off < uint64(len(code)) && (uint64(len(code))-off >= longest || len(code) < len(window)) {
			return code[off:]
		}
		base, code = vaddr, nil
		for _, s := range im.Segments() {
			if s.Flags&elf.PF_X != 0 && vaddr-s.Vaddr < s.Filesz {
				code = window[:min(uint64(len(window)), s.Filesz-(vaddr-s.Vaddr))]
				if im.ReadVaddr(code, vaddr) != nil {
					code = nil
				}
			}
		}
		return code
	}
}
