package php

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// How execute_ex of Debian's PHP begins and ends on AArch64: up to where it has taken its argument, and
// from where it gives the register back.
func TestPHPRegisterARM64(t *testing.T) {
	const start, size = 0x1000, 4
	for version, c := range map[string]struct {
		begins, ends []uint32
		want         kept
	}{
		"7.4": {
			[]uint32{
				0xa9b47bfd, 0xd0000b21, 0x910003fd, 0xf946ec21, 0xa90153f3, 0xa9025bf5, 0xaa1b03f6, 0xaa0003fb,
			}, []uint32{
				0xaa1603fb, 0xaa1703fc, 0xf946ec00, 0xf9405fe1, 0xf9400002, 0xeb020021, 0xd2800002, 0x5404a3e1,
				0xa94153f3, 0xa9425bf5, 0xa94363f7, 0xa9446bf9, 0xa8cc7bfd, 0xd65f03c0,
			}, kept{reg: 22},
		},
		"8.2": {
			[]uint32{
				0xd10243ff, 0x90000fe1, 0xf946c421, 0xa9047bfd, 0x910103fd, 0xa90553f3, 0xa9065bf5, 0xf9400022,
				0xf9001fe2, 0xd2800002, 0xa901effc, 0xaa0003fb,
			}, []uint32{
				0xa941effc, 0xf9401fe2, 0xf9400001, 0xeb010042, 0xd2800001, 0x54050981, 0xa9447bfd, 0xa94553f3,
				0xa9465bf5, 0x910243ff, 0xd65f03c0,
			}, kept{29, 1<<64 - 32, true},
		},
		"8.4": {
			[]uint32{
				0xd503233f, 0xd10343ff, 0xd00010c1, 0xf942e821, 0xa9047bfd, 0x910103fd, 0xa90553f3, 0xa9065bf5,
				0xa90763f7, 0xa9086bf9, 0x6d0927e8, 0x6d0a2fea, 0x6d0b37ec, 0x6d0c3fee, 0xf9400022, 0xf81f83a2,
				0xd2800002, 0xa93defbc, 0xaa0003fb,
			}, []uint32{
				0xa97defbc, 0xf85f83a2, 0xf9400001, 0xeb010042, 0xd2800001, 0x54050781, 0xa9447bfd, 0xa94553f3,
				0xa9465bf5, 0xa94763f7, 0xa9486bf9, 0x6d4927e8, 0x6d4a2fea, 0x6d4b37ec, 0x6d4c3fee, 0x910343ff,
				0xd50323bf, 0xd65f03c0,
			}, kept{29, 1<<64 - 32, true},
		},
	} {
		const before, other, behind = 0xf940037b, 0xa97bf39b, 0xf9400380 // ldr x27,[x27]; ldp x27,x28,[x28,#-72]; ldr x0,[x28]
		words := append(append(append([]uint32{}, c.begins...), before, other), c.ends...)
		var code []byte
		for _, w := range append(words, behind) {
			code = binary.LittleEndian.AppendUint32(code, w)
		}
		e, ok := findARM64(code, start)
		entered := uint64(start + size*len(c.begins))
		leaves := mcode.Range{Start: start + size*uint64(len(c.begins)+2), End: start + size*uint64(len(words))}
		if !ok || e.entered != entered || e.kept != c.want || len(e.leaves) != 1 || e.leaves[0] != leaves {
			t.Errorf("%s: %+v, %v, want %#x, %+v, %+v", version, e, ok, entered, leaves, c.want)
		}
		if e, ok := findARM64(code[:size*(len(c.begins)+2)], start); ok {
			t.Errorf("%s: without its end %+v", version, e)
		}
		if e, ok := findARM64(code[size*(len(c.begins)-1):], start); ok {
			t.Errorf("%s: without its beginning %+v", version, e)
		}
	}
}

// What a frame of the C stack runs is told by its register, or by what the frame before has kept of it,
// where no function in between has.
func TestPHPKeptRegister(t *testing.T) {
	m := newMemoryOf(procstate.ARM64, 20220829)
	const fp, stack = 29, testBase + 0x7000
	m.vm.kept = kept{fp, 8, true}
	m.put(stack+8, testFrame(testMap))
	for _, c := range []struct{ register, want uint64 }{
		{testFrame(testStrlen), testFrame(testStrlen)}, {testFrame(testStrlen), testFrame(testMap)}, {0, testFrame(testMap)}, {testFrame(testOuter), testFrame(testOuter)},
	} {
		in := unwind.NewFrame(procstate.ARM64, 1, stack, 0)
		if c.register != 0 {
			in.Regs.Set(m.vm.arch.frame, c.register)
		}
		in.Regs.Set(fp, stack)
		if got := m.vm.frameOf(&in); got != c.want {
			t.Errorf("%#x, want %#x", got, c.want)
		}
	}
}

// Code that is none of execute_ex's is not taken for that, wherever it ends.
func TestPHPRegisterOfAnything(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		code := make([]byte, r.IntN(64))
		for i := range code {
			code[i] = byte(r.Uint32())
		}
		for _, a := range architectures {
			if e, ok := a.find(code, 0x1000); ok && (e.entered <= 0x1000 || len(e.leaves) == 0) {
				t.Fatalf("%s, %x: %+v", a.Name, code, e)
			}
		}
	}
}
