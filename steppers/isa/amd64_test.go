package isa

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// Instructions that hardly a library has, by what the manuals of Intel say of them. Operations
// are told as the registers that they write, by how much SP changes, and by how many bytes are
// overwritten.
func TestAMD64(t *testing.T) {
	for _, c := range []struct {
		code   string // hexadecimal
		text   string
		writes []procstate.Reg // other than SP and Temp
		sp     int64
		bytes  uint8
	}{
		{"6655", "pushw %bp", nil, -2, 2},
		{"55", "push %rbp", nil, -8, 0},
		{"66683412", "pushw $0x1234", nil, -2, 2},
		{"66ff7008", "pushw 8(%rax)", nil, -2, 2},
		{"669c", "pushfw", nil, -2, 2},
		{"665d", "popw %bp", []procstate.Reg{rbp}, 2, 0},
		{"668f4008", "popw 8(%rax)", nil, 2, 2},
		{"660f3a63c801", "pcmpistri $1,%xmm0,%xmm1", []procstate.Reg{rcx}, 0, 0},
		{"660f3a61c801", "pcmpestri $1,%xmm0,%xmm1", []procstate.Reg{rcx}, 0, 0},
		{"660f3a62c801", "pcmpistrm $1,%xmm0,%xmm1", nil, 0, 0},
		{"c4e37963c801", "vpcmpistri $1,%xmm0,%xmm1", []procstate.Reg{rcx}, 0, 0},
		{"480fb418", "lfs (%rax),%rbx", []procstate.Reg{rbx}, 0, 0},
		{"62f57d087ec3", "vmovw %xmm0,%ebx", []procstate.Reg{rbx}, 0, 0},
		{"62f57d087e442404", "vmovw %xmm0,8(%rsp)", nil, 0, 2},
		{"62f57e0811442404", "vmovsh %xmm0,8(%rsp)", nil, 0, 2},
		{"62f57e0811c0", "vmovsh %xmm0,%xmm0,%xmm0", nil, 0, 0},
		{"62f5fe082cd8", "vcvttsh2si %xmm0,%rbx", []procstate.Reg{rbx}, 0, 0},
		{"62f5fe0879d8", "vcvtsh2usi %xmm0,%rbx", []procstate.Reg{rbx}, 0, 0},
		{"62f1ff0878d8", "vcvttsd2usi %xmm0,%rbx", []procstate.Reg{rbx}, 0, 0},
		{"f30f38fad9", "encodekey128 %ecx,%ebx", []procstate.Reg{rbx}, 0, 0},
		{"c4e1fb93d9", "kmovq %k1,%rbx", []procstate.Reg{rbx}, 0, 0},
	} {
		code, err := hex.DecodeString(c.code)
		if err != nil {
			t.Fatal(err)
		}
		var in Inst
		if !DecodeAMD64(code, 0x1000, &in) || int(in.Len) != len(code) {
			t.Errorf("%s: %d bytes", c.text, in.Len)
			continue
		}
		var writes []procstate.Reg
		sp, bytes := int64(0), uint8(0)
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == Scratch:
				bytes += op.Size
			case op.Kind == Store:
			case op.Dst == rsp:
				sp += op.Imm
			case op.Dst != Temp:
				writes = append(writes, op.Dst)
			}
		}
		if !slices.Equal(writes, c.writes) || sp != c.sp || bytes != c.bytes {
			t.Errorf("%s: writes %v, SP %+d, %d bytes, want %v, %+d, %d", c.text, writes, sp, bytes, c.writes, c.sp, c.bytes)
		}
	}
}

// leave takes as much off the stack as a pop of the frame pointer does.
func TestLeave(t *testing.T) {
	for code, want := range map[string][]Op{
		"\xc9":     {{Kind: Set, Dst: rsp, Src: rbp, Imm: 8}, {Kind: Load, Dst: rbp, Src: rsp, Imm: -8}},
		"\x66\xc9": {{Kind: Set, Dst: rsp, Src: rbp, Imm: 2}, {Kind: Clobber, Dst: rbp}},
	} {
		var in Inst
		if !DecodeAMD64([]byte(code), 0, &in) || !slices.Equal(in.Ops[:in.NumOps], want) {
			t.Errorf("% x: %+v, want %+v", code, in.Ops[:in.NumOps], want)
		}
	}
}

// What APX adds is not known: push2 and pop2 change SP.
func TestAPX(t *testing.T) {
	for _, code := range []string{"\x62\xf4\x7c\x18\xff\xf3", "\x62\xf4\x64\x18\x8f\xc0", "\xd5\x18\x50"} {
		var in Inst
		if DecodeAMD64([]byte(code), 0, &in) {
			t.Errorf("% x: %+v", code, in)
		}
	}
}
