package unwind

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// In the .debug_frame of code that Mono has compiled ahead of time, the instructions
// of a function's epilogue follow those of its prologue without the distance between
// the two:
//
//	sub $0x38,%rsp          LOC: CFA rsp+64
//	mov %r15,(%rsp)         LOC: r15 at cfa-64, remember_state
//	mov %rdi,%r15           LOC: r15 same value
//	call ...                LOC: CFA rsp+8, restore_state; in the middle of the call
//	...
//	mov (%rsp),%r15         what all of that is of
//	add $0x38,%rsp
//	ret
//
// What the rows tell of is known to the last byte, and is looked for.

// maxFunction bounds the code of a function that is looked through for its epilogue,
// in bytes. Of Mono 6.8's own library the longest has 74,523.
const maxFunction = 1 << 18

// epilogue is the code that the instructions from DW_CFA_remember_state to
// DW_CFA_restore_state are of.
type epilogue struct {
	late uint64 // how far on it is from where they are, in bytes
	code []byte // what it must be
	read []byte // what is read
}

// toEpilogue is called behind DW_CFA_remember_state. When the instructions up to the next
// DW_CFA_restore_state, the last of all, are those of an epilogue by Mono that is
// further on, the next one to advance the location goes there.
func (p *program) toEpilogue() {
	e, img := &p.epilogue, p.thunk.img
	if img == nil || p.arch != procstate.AMD64 || !p.expectEpilogue() {
		return
	}
	if cap(e.read) == 0 {
		e.read = make([]byte, 1024)
	}
	for at, end := p.loc, p.loc+min(p.end-p.loc, maxFunction); end-at >= uint64(len(e.code)); {
		b := e.read[:min(end-at, uint64(cap(e.read)))]
		if img.ReadVaddr(b, at) != nil {
			return
		}
		if i := bytes.Index(b, e.code); i >= 0 {
			e.late = at + uint64(i) - p.loc
			return
		}
		at += uint64(len(b) - len(e.code) + 1)
	}
}

// expectEpilogue reads ahead the instructions of an epilogue and makes the code that
// has just the rows that they make. It returns false when there is no such code.
func (p *program) expectEpilogue() bool {
	const fp, sp, ret = 6, 7, 0xc3
	e, c, cfa := &p.epilogue, p.cursor, p.row.CFA
	e.code = e.code[:0]
	size := uint64(0)
	for c.more() && len(e.code) < 256 {
		switch op := c.u8(); {
		case op&0xc0 == cfaAdvanceLoc:
			size += uint64(op&0x3f) * p.cie.codeAlign
		case op == cfaSameValue:
			reg := c.uleb()
			if reg == fp && cfa.Reg == fp {
				continue // by leave, see below
			}
			if reg >= uint64(p.arch.NumRegs) || p.row.Regs[reg].Kind != AtOffset || p.arch.CalleeSaved>>reg&1 == 0 {
				return false
			}
			e.code = appendLoad(e.code, reg, cfa.Reg, cfa.Offset+p.row.Regs[reg].Offset)
			if size != uint64(len(e.code)) {
				return false
			}
		case op == cfaDefCFA:
			if c.uleb() != sp || c.uleb() != 8 || cfa.Kind != InReg {
				return false
			}
			switch n := cfa.Offset - 8; {
			case cfa.Reg == fp:
				e.code = append(e.code, 0xc9) // leave
			case n == int64(int8(n)):
				e.code = append(e.code, 0x48, 0x83, 0xc4, byte(n))
			default:
				e.code = binary.LittleEndian.AppendUint32(append(e.code, 0x48, 0x81, 0xc4), uint32(n))
			}
			if size != uint64(len(e.code)) {
				return false
			}
			e.code = append(e.code, ret)
		case op == cfaRestoreState:
			if n := len(e.code); n == 0 || e.code[n-1] != ret || size != uint64(n) {
				return false
			}
			return len(bytes.TrimLeft(c.b[c.i:], "\x00")) == 0 // DW_CFA_nop
		default:
			return false
		}
	}
	return false
}

// appendLoad appends mov disp(base),reg, where base is RBP or RSP, and reg one that calls
// preserve.
func appendLoad(code []byte, reg uint64, base procstate.Reg, disp int64) []byte {
	const fp, sp = 6, 7
	if reg == fp {
		reg = 5 // to the processor
	}
	modrm, sib := byte(reg&7<<3|5), []byte(nil)
	if base == sp {
		modrm, sib = byte(reg&7<<3|4), []byte{0x24}
	}
	code = append(code, 0x48|byte(reg>>3<<2), 0x8b)
	switch {
	case disp == 0 && base == sp:
		return append(append(code, modrm), sib...)
	case disp == int64(int8(disp)):
		return append(append(append(code, modrm|0x40), sib...), byte(disp))
	}
	return binary.LittleEndian.AppendUint32(append(append(code, modrm|0x80), sib...), uint32(disp))
}
