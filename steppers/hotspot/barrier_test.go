package hotspot

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// What a method takes of the stack around a call for a barrier is told by its way back, as JDK 25 compiles it.
func TestStoredForBarrier(t *testing.T) {
	const pc = 0x1018
	load := []byte{
		0x48, 0x8b, 0x44, 0x24, 0x08, // mov rax,[rsp+8]
		0xc5, 0xfa, 0x6f, 0x44, 0x24, 0x10, // vmovdqu xmm0,[rsp+16]
	}
	back := []byte{0xe9, 0x00, 0xff, 0xff, 0xff} // jmp into the method
	code := func(parts ...[]byte) (code []byte) {
		for _, p := range parts {
			code = append(code, p...)
		}
		return append(code, 0x90, 0x90)
	}
	for name, c := range map[string]struct {
		code []byte
		want uint32
	}{
		"barrier":           {code(load, []byte{0x48, 0x83, 0xc4, 0x50}, back), 0x50},                              // add rsp,80
		"large":             {code(load, []byte{0x48, 0x81, 0xc4, 0x80, 0, 0, 0}, back), 0x80},                     // add rsp,128
		"nothing stored":    {code(load, back), 0},                                                                 //
		"elsewhere":         {code(load, []byte{0x48, 0x83, 0xc4, 0x50}, []byte{0xe9, 0, 0, 0x10, 0}), 0},          // jmp out of it
		"end of the method": {code(load, []byte{0x48, 0x83, 0xc4, 0x50, 0x5d}, []byte{0xc3}), 0},                   // pop rbp; ret
		"with its frame":    {code(load, []byte{0x48, 0x83, 0xc4, 0x50, 0x5d}, back), 0},                           // pop rbp
		"fork":              {code(load, []byte{0x85, 0xc0, 0x74, 0x10}, []byte{0x48, 0x83, 0xc4, 0x50}, back), 0}, // test eax,eax; je
		"calls again":       {code(load, []byte{0xe8, 0, 0, 0, 0}, []byte{0x48, 0x83, 0xc4, 0x50}, back), 0},       // call
		"takes more":        {code(load, []byte{0x48, 0x83, 0xec, 0x50}, back), 0},                                 // sub rsp,80
		"pops":              {code(load, []byte{0x58, 0x59}, back), 16},                                            // pop rax; pop rcx
		"asked of types":    {code([]byte{0x58, 0x59, 0x85, 0xc9, 0x74, 0x02}), 16},                                // pop rax; pop rcx; test ecx,ecx; je
		"calls with less":   {code([]byte{0x58, 0x59, 0xe8, 0, 0, 0, 0}), 16},                                      // pop rax; pop rcx; call
		"cut":               {code(load)[:7], 0},
	} {
		b := &codeBlob{begin: 0x800, end: 0x1100}
		if got := storedBytes(procstate.AMD64, c.code, pc, b); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
}

// The stub that a method calls where it is entered has a word between its frame and the address that it returns to.
func TestEntryBarrier(t *testing.T) {
	const base, size, ra, stub, sp, fp, callerFP = 0x7000, 0x800, 0x7085, 0x7100, 0x7300, 0x7400, 0x7480
	walk := func(change func(memory []byte)) (unwind.Frame, bool) {
		memory := make([]byte, size)
		memory[ra-base-5] = 0xe8
		binary.LittleEndian.PutUint32(memory[ra-base-4:], stub-ra)
		copy(memory[stub-base:], entersBarrier)
		for at, v := range map[int]uint64{fp: callerFP, fp + 8: 1<<64 - 1, fp + 16: ra} {
			binary.LittleEndian.PutUint64(memory[at-base:], v)
		}
		change(memory)
		words := make([]uint64, size/8)
		for i := range words {
			words[i] = binary.LittleEndian.Uint64(memory[8*i:])
		}
		snap := steptest.MadeUp(procstate.AMD64, &procstate.Mapping{Start: base, End: base + size}, words...)
		w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
		in := unwind.NewFrame(procstate.AMD64, stub+0x80, sp, fp)
		var out unwind.Frame
		ok := New(nil).inEntryBarrier(w, &codeBlob{begin: stub, end: stub + 0x100}, &in, &out)
		return out, ok
	}
	out, ok := walk(func([]byte) {})
	if !ok || out.PC() != ra || out.SP() != fp+24 || out.FP() != callerFP {
		t.Errorf("%v: PC %#x, SP %#x, FP %#x", ok, out.PC(), out.SP(), out.FP())
	}
	for name, change := range map[string]func(memory []byte){
		"another stub":         func(m []byte) { m[stub-base] = 0x90 },
		"no call":              func(m []byte) { m[ra-base-5] = 0x90 },
		"calls another":        func(m []byte) { m[ra-base-4]++ },
		"calls what is behind": func(m []byte) { binary.LittleEndian.PutUint32(m[ra-base-4:], stub+0x90-ra) },
		"returns to nothing":   func(m []byte) { binary.LittleEndian.PutUint64(m[fp+16-base:], 0x123456) },
	} {
		if out, ok := walk(change); ok {
			t.Errorf("%s: PC %#x", name, out.PC())
		}
	}
}
