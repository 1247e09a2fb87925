package clr

import (
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

const (
	bytesARM64  = 8 // of a RUNTIME_FUNCTION
	instruction = 4 // bytes
	maxEpilogs  = 1 << 10
)

// readARM64 reads a RUNTIME_FUNCTION of AArch64: where it begins, and its unwind information, which tells how long it is, what
// the prologue does, last first, and what epilogues do, in order (src/coreclr/unwinder/arm64). What is packed into the
// RUNTIME_FUNCTION itself is not understood: nothing that is known makes such.
func (f *function) readARM64(read vmread.Reader, base uint64, b []byte) (ok bool) {
	const (
		mask16, mask18  = 1<<16 - 1, 1<<18 - 1
		version         = 3 << 18
		isLast          = 1 << 21 // there is one epilogue, at the end; not how many but what the first of its operations is
		countAt, mask5  = 22, 1<<5 - 1
		wordsAt, isMore = 27, 0
	)
	le := binary.LittleEndian
	f.unwindInfo = unwindInfo{}
	f.begin = base + uint64(le.Uint32(b))
	at := base + uint64(le.Uint32(b[4:]))
	word := func() (v uint32) {
		var b [4]byte
		ok = ok && read(at, b[:])
		at += uint64(len(b))
		return le.Uint32(b[:])
	}
	ok = at%4 == 0
	head := word()
	length, count, words := head&mask18, head>>countAt&mask5, head>>wordsAt
	if f.end = f.begin + uint64(instruction*length); count == isMore && words == isMore {
		more := word()
		count, words = more&mask16, more>>16&0xff
	}
	first := count
	if head&isLast != 0 {
		count = 0
	}
	if !ok || head&version != 0 || count > maxEpilogs {
		return false
	}
	scopes := make([]byte, 4*(count+words))
	if !read(at, scopes) {
		return false
	}
	codes := scopes[4*count:]
	ops, n, ok := opsARM64(codes)
	if !ok {
		return false
	}
	f.prolog, f.ops = n, ops
	for i := range ops {
		ops[i].from = n - ops[i].from
	}
	if head&isLast != 0 {
		return f.addEpilog(length, first, codes, true)
	}
	for ; count > 0; count, scopes = count-1, scopes[4:] {
		scope := le.Uint32(scopes)
		if !f.addEpilog(scope&mask18, scope>>countAt, codes, false) {
			return false
		}
	}
	return true
}

// addEpilog adds an epilogue that begins or ends at an instruction, and does what is told from a code on.
func (f *function) addEpilog(at, first uint32, codes []byte, ends bool) (ok bool) {
	if first >= uint32(len(codes)) {
		return false
	}
	ops, n, ok := opsARM64(codes[first:])
	if n += instruction; !ok || ends && n > instruction*at { // with the return
		return false
	}
	e := toldEpilog{begin: instruction * at, ops: ops}
	if ends {
		e.begin -= n
	}
	e.end = e.begin + n
	for i := range ops {
		ops[i].from += e.begin
	}
	f.epilogs = append(f.epilogs, e)
	return true
}

// operation is a kind of operation in the unwind information for AArch64: a number, and perhaps which register it is about,
// in the last bits of its bytes.
type operation struct {
	last       byte // its first byte is not more; more than that of the one before
	bytes      int
	bits       uint   // of the number
	unit, more uint64 // bytes that it is times, when so much was added
	what       effect
	regs       procstate.Reg // how many are saved, one behind the other,
	first      procstate.Reg // the first that it may be; NoReg: they are of floating point
	regBits    uint          // which it is of those, before the number
}

type effect uint8

const (
	nothing    effect = iota
	allocates         // so many bytes
	saves             // registers, so many bytes above SP
	savesAt           // registers at SP, for which so many bytes are allocated
	savesAndLR        // a register, of each second one, and X30 behind it
	setsFP            // to so many bytes above SP
)

var operations = [...]operation{
	{0x1f, 1, 5, 16, 0, allocates, 0, 0, 0},
	{0x3f, 1, 5, 8, 0, savesAt, 2, 19, 0},
	{0x7f, 1, 6, 8, 0, saves, 2, 29, 0},
	{0xbf, 1, 6, 8, 1, savesAt, 2, 29, 0},
	{0xc7, 2, 11, 16, 0, allocates, 0, 0, 0},
	{0xcb, 2, 6, 8, 0, saves, 2, 19, 4},
	{0xcf, 2, 6, 8, 1, savesAt, 2, 19, 4},
	{0xd3, 2, 6, 8, 0, saves, 1, 19, 4},
	{0xd5, 2, 5, 8, 1, savesAt, 1, 19, 4},
	{0xd7, 2, 6, 8, 0, savesAndLR, 1, 19, 3},
	{0xd9, 2, 6, 8, 0, saves, 2, procstate.NoReg, 3},
	{0xdb, 2, 6, 8, 1, savesAt, 2, procstate.NoReg, 3},
	{0xdd, 2, 6, 8, 0, saves, 1, procstate.NoReg, 3},
	{0xde, 2, 5, 8, 1, savesAt, 1, procstate.NoReg, 3},
	{0xe0, 4, 24, 16, 0, allocates, 0, 0, 0}, // 0xdf is not known
	{0xe1, 1, 0, 8, 0, setsFP, 0, 0, 0},
	{0xe2, 2, 8, 8, 0, setsFP, 0, 0, 0},
	{0xe3, 1, 0, 0, 0, nothing, 0, 0, 0},
}

// Operations of their own kinds.
const (
	opUnknown  = 0xdf
	opEnd      = 0xe4
	opEndHere  = 0xe5 // of what this part of a function does: another one has done the rest
	opSaveNext = 0xe6 // saves the registers behind those of the next operation, behind these
	opSigned   = 0xfc // the return address
)

// opsARM64 takes operations apart, up to their end. Each has the offset of its instruction, when the first is at 0; n is the
// length of all. What another part of the function has done has the offset n.
func opsARM64(codes []byte) (ops []unwindOp, n uint32, ok bool) {
	var next []uint32 // offsets of instructions that save registers behind those of the next one
	for isHere := true; len(codes) > 0; {
		from := n
		if isHere {
			n += instruction
		}
		switch code := codes[0]; code {
		case opEnd, opEndHere:
			if isHere {
				n, isHere = from, false
			}
			if codes = codes[1:]; code == opEnd {
				return ops, n, len(next) == 0
			}
			continue
		case opSaveNext:
			next, codes = append(next, from), codes[1:]
			continue
		case opSigned:
			codes = codes[1:]
			continue
		}
		i := slices.IndexFunc(operations[:], func(o operation) bool { return codes[0] <= o.last })
		if i < 0 || codes[0] == opUnknown || len(codes) < operations[i].bytes {
			return nil, 0, false
		}
		o, bits := &operations[i], uint64(0)
		for _, b := range codes[:o.bytes] {
			bits = bits<<8 | uint64(b)
		}
		codes = codes[o.bytes:]
		number := o.unit * (bits&(1<<o.bits-1) + o.more)
		which := procstate.Reg(bits >> o.bits & (1<<o.regBits - 1))
		at, isFloat := number, o.first == procstate.NoReg
		if o.what == savesAt {
			at = 0
		}
		add := func(from uint32, reg procstate.Reg, at uint64) {
			if !isFloat {
				ops = append(ops, unwindOp{from, saveSP, reg, at})
			}
		}
		for i, from := range next { // the last of these is next to the registers that this one saves
			behind := len(next) - i
			reg := o.first + which + procstate.Reg(2*behind)
			if o.regs != 2 || !isFloat && reg >= procstate.ARM64.FP {
				return nil, 0, false
			}
			add(from, reg, at+16*uint64(behind))
			add(from, reg+1, at+16*uint64(behind)+8)
		}
		next = next[:0]
		switch o.what {
		case saves, savesAt:
			for i := range o.regs {
				add(from, o.first+which+i, at+8*uint64(i))
			}
		case savesAndLR:
			add(from, o.first+2*which, at)
			add(from, procstate.ARM64.LR, at+8)
		case setsFP:
			ops = append(ops, unwindOp{from, setFP, procstate.ARM64.FP, number})
		}
		if o.what == allocates || o.what == savesAt {
			ops = append(ops, unwindOp{from: from, kind: alloc, n: number})
		}
	}
	return nil, 0, false
}
