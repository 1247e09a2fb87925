package isa

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// What is an instruction of i386 alone, or another one than on x86-64. Operations are told
// as the registers that they write, and by how much SP changes.
func TestI386(t *testing.T) {
	const eax, ecx, edx, ebx, esp, ebp, esi, edi = 0, 1, 2, 3, 4, 5, 6, 7
	for _, c := range []struct {
		code   string // hexadecimal, the instruction alone
		flow   Flow
		writes []procstate.Reg // other than SP and Temp
		sp     int64
		target uint64
	}{
		{"41", Next, []procstate.Reg{ecx}, 0, 0},                                   // inc %ecx
		{"4d", Next, []procstate.Reg{ebp}, 0, 0},                                   // dec %ebp
		{"55", Next, nil, -4, 0},                                                   // push %ebp
		{"6655", Next, nil, -2, 0},                                                 // push %bp
		{"5d", Next, []procstate.Reg{ebp}, 4, 0},                                   // pop %ebp
		{"6658", Next, []procstate.Reg{eax}, 2, 0},                                 // pop %ax
		{"60", Next, nil, -32, 0},                                                  // pusha
		{"61", Next, []procstate.Reg{ebx, ebp, esi, edi}, 32, 0},                   // popa, as far as there is room
		{"06", Next, nil, -4, 0},                                                   // push %es
		{"1f", Next, nil, 4, 0},                                                    // pop %ds
		{"6a01", Next, nil, -4, 0},                                                 // push $1
		{"666800ff", Next, nil, -2, 0},                                             // pushw $0xff00
		{"ff7508", Next, nil, -4, 0},                                               // push 8(%ebp)
		{"c9", Next, []procstate.Reg{ebp}, 0, 0},                                   // leave
		{"c50418", Next, []procstate.Reg{eax}, 0, 0},                               // lds (%eax,%ebx,1),%eax
		{"c5f877", Next, nil, 0, 0},                                                // vzeroupper
		{"620424", Next, nil, 0, 0},                                                // bound %eax,(%esp)
		{"62f17c482805" + "00000000", Next, nil, 0, 0},                             // vmovaps 0,%zmm0
		{"c4e27bf6c1", Next, []procstate.Reg{eax}, 0, 0},                           // mulx %ecx,%eax,%eax
		{"8d642404", Next, nil, 4, 0},                                              // lea 4(%esp),%esp
		{"678d4604", Next, []procstate.Reg{eax}, 0, 0},                             // lea 4(%bp),%eax
		{"678b060010", Next, []procstate.Reg{eax}, 0, 0},                           // mov 0x1000,%eax
		{"a100100000", Next, []procstate.Reg{eax}, 0, 0},                           // mov 0x1000,%eax
		{"9a00000000" + "0800", Trap, nil, 0, 0},                                   // lcall $8,$0
		{"e8fbefffff", Call, nil, 0, 0},                                            // call 0
		{"66e8fcef", Call, nil, 0, 0},                                              // callw 0
		{"ff2500c00408", IndirectJump, nil, 0, 0x804c000},                          // jmp *0x804c000
		{"ff2500c0f4f7", IndirectJump, nil, 0, 0xf7f4c000},                         // jmp *0xf7f4c000
		{"65ff1510000000", IndirectCall, nil, 0, 0},                                // call *%gs:0x10
		{"0f34", Syscall, []procstate.Reg{eax, ecx, edx}, 0, 0},                    // sysenter
		{"cd80", Syscall, []procstate.Reg{eax}, 0, 0},                              // int $0x80
		{"0fa2", Next, []procstate.Reg{eax, ecx, edx, ebx}, 0, 0},                  // cpuid
		{"8ce0", Next, []procstate.Reg{eax}, 0, 0},                                 // mov %fs,%eax
		{"89fe", Next, []procstate.Reg{esi}, 0, 0},                                 // mov %edi,%esi
		{"c20400", Return, nil, 0, 0},                                              // ret $4
		{"8d3d00100000", Next, []procstate.Reg{edi}, 0, 0},                         // lea 0x1000,%edi
		{"f30f1efb", Next, nil, 0, 0},                                              // endbr32
		{"d40a", Next, []procstate.Reg{eax}, 0, 0},                                 // aam
		{"6690", Next, nil, 0, 0},                                                  // xchg %ax,%ax
		{"83c4f0", Next, nil, -16, 0},                                              // add $-16,%esp
		{"3e" + strings.Repeat("2e", 10) + "41", Next, []procstate.Reg{ecx}, 0, 0}, // with prefixes
	} {
		code, err := hex.DecodeString(c.code)
		if err != nil {
			t.Fatal(err)
		}
		var in Inst
		if !DecodeI386(append(code, 0xff, 0xff), 0x1000, &in) || int(in.Len) != len(code) || DecodeI386(code[:len(code)-1], 0x1000, &in) {
			t.Errorf("%s: %d bytes, or less are enough", c.code, in.Len)
			continue
		}
		DecodeI386(code, 0x1000, &in)
		var writes []procstate.Reg
		sp := int64(0)
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case Store, StoreIndexed, Scratch, Compare:
				continue
			}
			switch {
			case op.Dst != esp && op.Dst != Temp:
				writes = append(writes, op.Dst)
			case op.Dst == esp && op.Src == esp:
				sp += op.Imm
			}
		}
		slices.Sort(writes)
		if in.Flow != c.flow || !slices.Equal(slices.Compact(writes), c.writes) || sp != c.sp || in.Target != c.target {
			t.Errorf("%s: %+v", c.code, in)
		}
	}
}
