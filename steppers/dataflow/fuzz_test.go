package dataflow

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// codeImage makes an ELF file that has nothing but code at 0x1000.
func codeImage(t testing.TB, machine elf.Machine, code []byte) *procstate.Image {
	t.Helper()
	const off = 0x1000
	if machine == elf.EM_386 {
		return codeImage32(t, code)
	}
	b := make([]byte, off, off+len(code))
	copy(b, "\x7fELF\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(machine))
	le.PutUint64(b[24:], off) // entry
	le.PutUint64(b[32:], 64)  // phoff
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 1)
	p := b[64:]
	le.PutUint32(p, uint32(elf.PT_LOAD))
	le.PutUint32(p[4:], uint32(elf.PF_X|elf.PF_R))
	le.PutUint64(p[8:], off)
	le.PutUint64(p[16:], off)
	le.PutUint64(p[24:], off)
	le.PutUint64(p[32:], uint64(len(code)))
	le.PutUint64(p[40:], uint64(len(code)))
	im, err := procstate.NewImage(bytes.NewReader(append(b, code...)), int64(off+len(code)), "code")
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// codeImage32 is codeImage for i386.
func codeImage32(t testing.TB, code []byte) *procstate.Image {
	t.Helper()
	const off = 0x1000
	b := make([]byte, off, off+len(code))
	copy(b, "\x7fELF\x01\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(elf.EM_386))
	le.PutUint32(b[24:], off) // entry
	le.PutUint32(b[28:], 52)  // phoff
	le.PutUint16(b[40:], 52)
	le.PutUint16(b[42:], 32)
	le.PutUint16(b[44:], 1)
	for i, v := range [...]uint32{uint32(elf.PT_LOAD), off, off, off, uint32(len(code)), uint32(len(code)), uint32(elf.PF_X | elf.PF_R)} {
		le.PutUint32(b[52+4*i:], v)
	}
	im, err := procstate.NewImage(bytes.NewReader(append(b, code...)), int64(off+len(code)), "code")
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// Whatever the bytes are, analysis ends, and a rule is one that can be used.
func FuzzRuleAt(f *testing.F) {
	f.Add([]byte("\x55\x48\x89\xe5\x48\x83\xec\x10\xe8\x00\x00\x00\x00\xc9\xc3"), false)
	f.Add([]byte("\xeb\xfe\x74\xfc\x75\xfa\xff\xe0\xc2\x08\x00\x54\x5c\xc3"), false)
	f.Add([]byte("\x53\xe8\x0b\x00\x00\x00\xff\xd0\x83\xec\x04\x58\x5b\xc2\x04\x00\x90\x8b\x1c\x24\xc3"), false) // of i386
	f.Add([]byte("\xfd\x7b\xbf\xa9\xfd\x03\x00\x91\xfd\x7b\xc1\xa8\xc0\x03\x5f\xd6"), true)
	f.Fuzz(func(t *testing.T, code []byte, arm bool) {
		if len(code) == 0 || len(code) > 4096 {
			return
		}
		machine := elf.EM_X86_64
		if arm {
			machine = elf.EM_AARCH64
		}
		check := func(machine elf.Machine) {
			im := codeImage(t, machine, code)
			fs := NewFunctions(im)
			whole, _ := New(im)
			all, _ := fs.Function(0x1000, 0x1000+uint64(len(code)))
			around, _, _ := fs.Around(0, 0x1000+uint64(len(code)/2), ^uint64(0))
			for _, c := range [...]*Code{whole, all, around} {
				if c == nil {
					continue
				}
				for i := range len(code) {
					if r, ok := c.RuleAt(0x1000 + uint64(i)); ok && (int(r.Reg) >= c.arch.NumRegs || r.RA.Kind == Unknown) {
						t.Errorf("%#x: rule %+v", 0x1000+i, r)
					}
				}
			}
		}
		if check(machine); !arm {
			check(elf.EM_386)
		}
	})
}

// Code that is nothing but branches into each other's middle, calls and moves
// of the stack pointer takes the work that is allowed, and no more.
func TestHostileCode(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	code := make([]byte, 0, 256<<10)
	for len(code) < 256<<10-16 {
		near := func(op ...byte) { // a branch to somewhere within 32 KB
			code = binary.LittleEndian.AppendUint32(append(code, op...), uint32(r.IntN(64<<10)-32<<10))
		}
		switch r.IntN(8) {
		case 0, 1, 2:
			near(0x0f, 0x84+byte(r.IntN(8)))
		case 3:
			near(0xe8)
		case 4:
			near(0xe9)
		case 5:
			code = append(code, 0x50+byte(r.IntN(16)))
		case 6:
			code = append(code, 0x48, 0x83, 0xc4+byte(r.IntN(2)*40), 8)
		case 7:
			code = append(code, 0xc3)
		}
	}
	c, err := New(codeImage(t, elf.EM_X86_64, code))
	if err != nil {
		t.Fatal(err)
	}
	c.budget = 200_000
	for i := range code {
		c.RuleAt(0x1000 + uint64(i))
	}
	if c.spent < c.budget || c.spent > c.budget+maxCallDepth*maxReturnSteps+maxCallee+len(code)/openBytes {
		t.Errorf("%d instructions carried out, %d allowed", c.spent, c.budget)
	}
}
