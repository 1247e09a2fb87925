package hotspot

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

func armCode(words ...uint32) (code []byte) {
	for _, w := range words {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	return code
}

// Where the interpreter is with the frame of a method on AArch64 its instructions tell, as those of JDK 17 and 25 do.
func TestLinkedPlaces(t *testing.T) {
	type inst struct {
		word uint32
		want linkedState
	}
	const leaf, left, leaving, entering, building = linkedLeaf, linkedLeft, linkedLeaving, linkedEntering, linkedBuilding
	for name, code := range map[string][]inst{
		"entry, 17": {
			{0xf9400583, entering}, // ldr x3,[x12,#8]
			{0x927cec1f, entering}, // and sp,x0,#0xfffffffffffffff0
			{0xa9ba5bf4, entering}, // stp x20,x22,[sp,#-96]!
			{0xa9057bfd, entering}, // stp x29,x30,[sp,#80]
			{0x910143fd, entering}, // add x29,sp,#0x50
			{0xa90437ff, building}, // stp xzr,x13,[sp,#64]
			{0xf9400588, linkedNot},
			{0xd61f0100, linkedNot}, // br x8
		},
		"entry, 25": {
			{0xa9057bfd, entering},
			{0x910143fd, entering},
			{0xf94004ab, building}, // ldr x11,[x5,#8]
			{0xa9044fff, building}, // stp xzr,x19,[sp,#64]
			{0xd61f0100, linkedNot},
		},
		"exit": {
			{0xaa0903f4, linkedNot}, // mov x20,x9
			{0x910003bf, linkedNot}, // mov sp,x29
			{0xa8c17bfd, leaving},   // ldp x29,x30,[sp],#16
			{0x927cee9f, left},      // and sp,x20,#0xfffffffffffffff0
			{0xd65f03c0, leaf},      // ret
		},
		"handler of a result": {
			{0x93403c00, leaf}, // sxth x0,w0
			{0xd65f03c0, leaf},
		},
		"template": {
			{0xb4000048, linkedNot}, // cbz x8,.+8
			{0xd61f0100, linkedNot},
			{0xd65f03c0, leaf},
		},
	} {
		var words []uint32
		for _, in := range code {
			words = append(words, in.word)
		}
		all := armCode(words...)
		for i, in := range code {
			got := linkedEntry(all[4*i:], 0x1000+4*uint64(i))
			if got == linkedNot {
				got, _ = linkedWay(procstate.ARM64, all[4*i:], 0x1000+4*uint64(i))
			}
			if got != in.want {
				t.Errorf("%s, instruction %d: %d, want %d", name, i, got, in.want)
			}
		}
	}
}

// The frame of a compiled method on AArch64 is found at each instruction of its ways in and out.
func TestCompiledFrameARM64(t *testing.T) {
	const addr, stack = 0x7f0000000000, 0x7000
	const nop = 0xd503201f
	// Of each instruction: how far SP is below the CFA, and whether the frame pointer and the link register are saved.
	type inst struct {
		word  uint32
		down  uint64
		saved bool
	}
	body := make([]inst, 30)
	for name, of := range map[string]struct {
		frame, complete uint64
		in, out         []inst
	}{
		"small": {frame: 48, complete: 16,
			in: []inst{
				{nop, 0, false},
				{0xd1404fe9, 0, false},  // sub x9,sp,#0x13,lsl #12
				{0xd100c3ff, 0, false},  // sub sp,sp,#0x30
				{0xa9027bfd, 48, false}, // stp x29,x30,[sp,#32]
			},
			out: []inst{
				{0xa9427bfd, 48, true},   // ldp x29,x30,[sp,#32]
				{0x9100c3ff, 48, true},   // add sp,sp,#0x30; they are in memory as well
				{0xf9402788, 0, false},   // ldr x8,[x28,#72]
				{0xeb2863ff, 0, false},   // cmp sp,x8
				{0x54000048, 0, false},   // b.hi .+8
				{0xd65f03c0, 0, false}}}, // ret
		"large": {frame: 1040, complete: 8,
			in: []inst{
				{0xa9bf7bfd, 0, false}, // stp x29,x30,[sp,#-16]!
				{0xd11003ff, 16, true}, // sub sp,sp,#0x400
			},
			out: []inst{
				{0x911003ff, 1040, true}, // add sp,sp,#0x400
				{0xa8c17bfd, 16, true},   // ldp x29,x30,[sp],#16
				{0xd65f03c0, 0, false}}},
	} {
		for i := range body {
			body[i] = inst{nop, of.frame, true}
		}
		var all []inst
		all = append(append(append(all, of.in...), body...), of.out...)
		var words []uint32
		for _, in := range all {
			words = append(words, in.word)
		}
		code := armCode(words...)
		mem := procstate.NewSnapshot(procstate.ARM64, 1, "", nil)
		mem.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: addr, Data: code}})
		w := unwind.NewWalker(mem, unwind.NewGroup(), nil)
		m := &procstate.Mapping{Start: addr, End: addr + uint64(len(code))}
		b := codeBlob{begin: addr, end: m.End, complete: int32(of.complete), frame: of.frame, fixed: true}
		for i, in := range all {
			f := unwind.NewFrame(procstate.ARM64, addr+4*uint64(i), stack, 0x8000)
			cfa, saved, ok := New(nil).interrupted(w, &machine{mem: mem, fields: &vmFields{}}, m, &f, &b)
			if !ok || cfa != stack+in.down || saved != in.saved {
				t.Errorf("%s, instruction %d: CFA SP+%d, saved %v, %v; want %d, %v", name, i, cfa-stack, saved, ok, in.down, in.saved)
			}
		}
	}
}

// Memory may hold anything by the time it is read, and end anywhere.
func TestLinkedPlacesOfAnything(t *testing.T) {
	const pc = 0x4000
	known := armCode(armSavesLink, armSetsFrame, armNotesSender, armNotesSender21, 0xd65f03c0, 0xa8c17bfd, 0x910003bf)
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		code := make([]byte, r.IntN(64))
		for i := range code {
			code[i] = byte(r.Uint32())
		}
		for i := 0; i+4 <= len(code); i += 4 {
			if r.IntN(2) == 0 {
				copy(code[i:], known[4*r.IntN(len(known)/4):][:4])
			}
		}
		switch state := linkedEntry(code, pc); state {
		case linkedNot, linkedEntering, linkedBuilding:
		default:
			t.Fatalf("%x: %d at an entry", code, state)
		}
		if state, off := linkedWay(procstate.ARM64, code, pc); off < 0 || off != 0 && state != linkedLeaf {
			t.Fatalf("%x: %d, %d bytes", code, state, off)
		}
	}
}
