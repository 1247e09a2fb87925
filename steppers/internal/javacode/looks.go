package javacode

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// looks is how code looks on an architecture that is not called, and yet returned to.
type looks struct {
	// isReturnEntry reports whether code is what the interpreter has where methods return to.
	isReturnEntry func(code []byte) bool
	// isPoll reports whether code begins with a poll for a safepoint.
	isPoll func(code []byte) bool
	// isDeoptHandler is IsDeoptHandler.
	isDeoptHandler func(code []byte, pc uint64) bool
}

var (
	looksAMD64 = looks{isReturnEntryAMD64, isPollAMD64, isDeoptHandlerAMD64}
	looksARM64 = looks{isReturnEntryARM64, isPollARM64, isDeoptHandlerARM64}
)

// looksOf returns how code looks on an architecture, nil where that is not known.
func looksOf(a *procstate.Arch) *looks {
	switch a {
	case procstate.AMD64:
		return &looksAMD64
	case procstate.ARM64:
		return &looksARM64
	}
	return nil
}

// returnEntriesAMD64 are the ways in which the code begins that methods return to;
// the displacement, at returnDisp, may be any that is negative.
var returnEntriesAMD64 = [][]byte{
	{0x48, 0x8b, 0x65, 0},                               // mov -n(%rbp),%rsp
	{0x48, 0x8b, 0x4d, 0, 0x48, 0x8d, 0x64, 0xcd, 0x00}, // mov -n(%rbp),%rcx; lea (%rbp,%rcx,8),%rsp
	{0x4c, 0x8b, 0x55, 0, 0x4a, 0x8d, 0x64, 0xd5, 0x00}, // the same by %r10
	{0x48, 0xc7, 0x45, 0, 0x00, 0x00, 0x00, 0x00},       // movq $0,-n(%rbp)
}

const returnDisp = 3

func isReturnEntryAMD64(code []byte) bool {
	if len(code) <= returnDisp || code[returnDisp] < 0x80 {
		return false
	}
	for _, e := range returnEntriesAMD64 {
		if len(code) >= len(e) && bytes.Equal(code[:returnDisp], e[:returnDisp]) &&
			bytes.Equal(code[returnDisp+1:len(e)], e[returnDisp+1:]) {
			return true
		}
	}
	return false
}

// isPollAMD64 reports whether code begins with test %eax, (register).
func isPollAMD64(code []byte) bool {
	if len(code) > 0 && code[0]&0xf0 == 0x40 {
		code = code[1:]
	}
	return len(code) > 1 && code[0] == 0x85 && code[1] < 0xc0
}

func isDeoptHandlerAMD64(code []byte, pc uint64) bool {
	var own [DeoptHandlerLen]byte // mov $pc,%r10; push %r10
	copy(own[:], "\x49\xba")
	binary.LittleEndian.PutUint64(own[2:], pc)
	copy(own[10:], "\x41\x52")
	return bytes.HasPrefix(code, own[:]) ||
		bytes.HasPrefix(code, []byte("\xe8\x00\x00\x00\x00\x48\x83\x2c\x24\x05")) || // call 1f; 1: subq $5,(%rsp)
		bytes.HasPrefix(code, []byte("\x4c\x8d\x15\xf9\xff\xff\xff\x41\x52")) // lea 0(%rip)-7,%r10; push %r10
}

// returnEntriesARM64 are the same for AArch64, where they begin with the operands (x20) or, behind what is
// deoptimised, with the bytecode and the variables of the method.
var returnEntriesARM64 = [][2]uint32{
	{0xf85f03b4, 0xf81f03bf}, // ldur x20,[x29,#-16]; stur xzr,[x29,#-16]
	{0xf85f03a8, 0x8b286fb4}, // ldur x8,[x29,#-16]; add x20,x29,x8,uxtx #3
	{0xa97be3b6, 0xf85c83ba}, // ldp x22,x24,[x29,#-72]; ldur x26,[x29,#-56]
	{0xa97be3b6, 0x8b386fb8}, // ldp x22,x24,[x29,#-72]; add x24,x29,x24,uxtx #3
}

func isReturnEntryARM64(code []byte) bool {
	if len(code) < 8 {
		return false
	}
	first, second := binary.LittleEndian.Uint32(code), binary.LittleEndian.Uint32(code[4:])
	for _, e := range returnEntriesARM64 {
		if first == e[0] && second == e[1] {
			return true
		}
	}
	return false
}

// isPollARM64 reports whether code begins with ldr wzr, [register].
func isPollARM64(code []byte) bool {
	return len(code) >= 4 && binary.LittleEndian.Uint32(code)&^(31<<5) == 0xb940001f
}

func isDeoptHandlerARM64(code []byte, _ uint64) bool {
	return len(code) >= 4 && binary.LittleEndian.Uint32(code) == 0x1000001e // adr x30,.
}
