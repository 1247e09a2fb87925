package dataflow

import (
	"debug/elf"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// The CFA, by instruction, of code of AArch64.
func TestCFAsARM64(t *testing.T) {
	const fp, sp = 29, 31
	type cfa struct {
		at  int // bytes
		reg procstate.Reg
		off int32
	}
	for name, c := range map[string]struct {
		code string
		want []cfa
	}{
		// One of the cases lowers SP, and all come back to the jump.
		"a switch that lowers SP": {"\xfd\x7b\xbe\xa9" + // stp x29, x30, [sp, #-32]!
			"\xfd\x03\x00\x91" + // mov x29, sp
			"\x04\x14\x40\x38" + // 8: ldrb w4, [x0], #1
			"\x24\x01\x00\x34" + // cbz w4, 30
			"\x61\x00\x00\x10" + // adr x1, 1c
			"\x24\xa8\x24\x8b" + // add x4, x1, w4, sxth #2
			"\x80\x00\x1f\xd6" + // br x4
			"\xe2\x03\x00\xaa" + // 1c: mov x2, x0
			"\xfa\xff\xff\x17" + // b 8
			"\x22\xff\xff\xb5" + // 24: cbnz x2, 8
			"\xff\x03\x01\xd1" + // sub sp, sp, #0x40
			"\xf7\xff\xff\x17" + // b 8
			"\xbf\x03\x00\x91" + // 30: mov sp, x29
			"\xfd\x7b\xc2\xa8" + // ldp x29, x30, [sp], #32
			"\xc0\x03\x5f\xd6", // ret
			[]cfa{{0, sp, 0}, {8, fp, 32}, {0x18, fp, 32}, {0x1c, fp, 32}, {0x20, fp, 32}, {0x24, fp, 32}, {0x2c, fp, 32}, {0x34, sp, 32}, {0x38, sp, 0}}},
		"functions behind calls that do not return": {"\xfd\x7b\xbe\xa9" + // stp x29, x30, [sp, #-32]!
			"\xfd\x03\x00\x91" + // mov x29, sp
			"\x0a\x00\x00\x94" + // bl 30
			"\x1f\x20\x03\xd5" + // nop
			"\x00\x78\x40\xf9" + // 10: ldr x0, [x0, #240]
			"\x60\x00\x00\xb4" + // cbz x0, 20
			"\x10\x00\x40\xf9" + // ldr x16, [x0]
			"\x00\x02\x1f\xd6" + // br x16
			"\xfd\x7b\xbf\xa9" + // 20: stp x29, x30, [sp, #-16]!
			"\xfd\x03\x00\x91" + // mov x29, sp
			"\x02\x00\x00\x94" + // bl 30
			"\x1f\x20\x03\xd5" + // nop
			"\xfd\x7b\xbf\xa9" + // 30: stp x29, x30, [sp, #-16]!
			"\x00\x00\x00\x14" + // b 34
			"\x1f\x20\x03\xd5" + // nop
			"\x1f\x20\x03\xd5" + // nop
			"\x1f\x20\x03\xd5" + // 40: nop, of the function
			"\xe0\x03\x01\xaa" + // mov x0, x1
			"\x10\x00\x40\xf9" + // ldr x16, [x0]
			"\x00\x02\x1f\xd6", // br x16
			[]cfa{{8, sp, 32}, {0x10, sp, 0}, {0x1c, sp, 0}, {0x20, sp, 0}, {0x28, sp, 16}, {0x30, sp, 0}, {0x34, sp, 16}, {0x40, sp, 0}, {0x4c, sp, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := New(codeImage(t, elf.EM_AARCH64, []byte(c.code)))
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range c.want {
				r, ok := code.RuleAt(0x1000 + uint64(w.at))
				if !ok {
					t.Errorf("at %#x: no rule", w.at)
				} else if r.Reg != w.reg || r.Off != w.off || r.Deref {
					t.Errorf("at %#x: CFA x%d%+d, want x%d%+d", w.at, r.Reg, r.Off, w.reg, w.off)
				}
			}
		})
	}
}
