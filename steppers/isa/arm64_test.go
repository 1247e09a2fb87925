package isa

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// Instructions that hardly a library has, by what the Arm ARM says of them. Operations are
// told as the registers that they write, and by how much SP changes; anySP where nothing
// tells.
func TestARM64(t *testing.T) {
	const anySP = 1 << 20
	for _, c := range []struct {
		word   uint32
		text   string
		flow   Flow
		writes []procstate.Reg // other than SP
		sp     int64
	}{
		{0x043f57df, "addvl sp, sp, #-2", Next, nil, anySP},
		{0x047d503d, "addpl x29, x29, #1", Next, []procstate.Reg{29}, 0},
		{0x043f5033, "addvl x19, sp, #1", Next, []procstate.Reg{19}, 0},
		{0x04bf5033, "rdvl x19, #1", Next, []procstate.Reg{19}, 0},
		{0x0420e3f3, "cntb x19", Next, []procstate.Reg{19}, 0},
		{0x04e3e3f4, "cntd x20, all, mul #4", Next, []procstate.Reg{20}, 0},
		{0x0430e3f3, "incb x19", Next, []procstate.Reg{19}, 0},
		{0x04f0e7f5, "decd x21", Next, []procstate.Reg{21}, 0},
		{0x0420f3f3, "sqincb x19, w19", Next, []procstate.Reg{19}, 0},
		{0x04e0fff3, "uqdecd w19", Next, []procstate.Reg{19}, 0},
		{0x25208033, "cntp x19, p0, p1.b", Next, []procstate.Reg{19}, 0},
		{0x252c8813, "incp x19, p0.b", Next, []procstate.Reg{19}, 0},
		{0x252a8813, "sqdecp x19, p0.b, w19", Next, []procstate.Reg{19}, 0},
		{0x0520a033, "lasta w19, p0, z1.b", Next, []procstate.Reg{19}, 0},
		{0x05f1a033, "clastb x19, p0, x19, z1.d", Next, []procstate.Reg{19}, 0},
		{0x25f42260, "ctermeq x19, x20", Next, nil, 0},
		{0x25341e60, "whilelo p0.b, x19, x20", Next, nil, 0},
		{0xd92027ff, "stg sp, [sp], #32", Next, nil, 32},
		{0xd93fffff, "stg sp, [sp, #-16]!", Next, nil, -16},
		{0xd9a027ff, "st2g sp, [sp], #32", Next, nil, 32},
		{0xd9601660, "stzg x0, [x19], #16", Next, []procstate.Reg{19}, 0},
		{0xd9201a60, "stg x0, [x19, #16]", Next, nil, 0},
		{0xd9600013, "ldg x19, [x0]", Next, []procstate.Reg{19}, 0},
		{0x9adf1013, "irg x19, x0", Next, []procstate.Reg{19}, 0},
		{0x918107ff, "addg sp, sp, #16, #1", Next, nil, anySP},
		{0x48347f16, "casp x20, x21, x22, x23, [x24]", Next, []procstate.Reg{20, 21, 22}, 0}, // and what is stored
		{0xc87f52b3, "ldxp x19, x20, [x21]", Next, []procstate.Reg{19, 20}, 0},
		{0xc8b37eb4, "cas x19, x20, [x21]", Next, []procstate.Reg{19, 20}, 0},
		{0xc89ffe93, "stlr x19, [x20]", Next, nil, 0},
		{0x1d1406b3, "cpyp [x19]!, [x20]!, x21!", Next, []procstate.Reg{19, 20, 21}, 0},
		{0x195406b3, "cpyfm [x19]!, [x20]!, x21!", Next, []procstate.Reg{19, 20, 21}, 0},
		{0xd9408293, "ldapur x19, [x20, #8]", Next, []procstate.Reg{19}, 0},
		{0xd9540ab3, "ldiapp x19, x20, [x21], #16", Next, []procstate.Reg{19, 20, 21}, 0},
		{0xd9140bf3, "stilp x19, x20, [sp, #-16]!", Next, []procstate.Reg{19, 20}, anySP}, // it need not say what
		{0x193412b3, "ldclrp x19, x20, [x21]", Next, []procstate.Reg{19, 20, 21}, 0},
		{0xf8338296, "swp x19, x22, [x20]", Next, []procstate.Reg{22}, 0},
		{0xf8201e93, "ldraa x19, [x20, #8]!", Next, []procstate.Reg{19, 20}, 0},
		{0xd65f0bff, "retaa", Return, nil, 0},
		{0x5500001f, "retaasppc 0", Return, nil, 0},
		{0x5400006e, "b.al 12", Jump, nil, 0},
		{0x5400006d, "b.le 12", CondJump, nil, 0},
		{0xd71f0a74, "braa x19, x20", IndirectJump, nil, 0},
		{0xd4000001, "svc #0", Syscall, []procstate.Reg{0}, 0},
	} {
		var code [4]byte
		binary.LittleEndian.PutUint32(code[:], c.word)
		var in Inst
		if !DecodeARM64(code[:], 0x1000, &in) {
			t.Errorf("%s: no instruction", c.text)
			continue
		}
		var writes []procstate.Reg
		sp := int64(0)
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == Store || op.Kind == Scratch || op.Kind == Compare:
			case op.Dst != armSP:
				writes = append(writes, op.Dst)
			case op.Kind == Set && op.Src == armSP:
				sp += op.Imm
			default:
				sp = anySP
			}
		}
		slices.Sort(writes)
		if in.Flow != c.flow || !slices.Equal(slices.Compact(writes), c.writes) || sp != c.sp {
			t.Errorf("%s: flow %d, writes %v, SP %+d, want %d, %v, %+d", c.text, in.Flow, writes, sp, c.flow, c.writes, c.sp)
		}
	}
}

// Where code goes on behind a word that no processor knew when this was written, nothing
// tells: 0x74000000 was to become a branch.
func TestARM64UnknownBranch(t *testing.T) {
	var in Inst
	if DecodeARM64([]byte{0, 0, 0, 0x74}, 0x1000, &in) {
		t.Errorf("an unknown branch: %+v", in)
	}
}

// flowARM64 is the flow of an instruction by its mnemonic.
func flowARM64(m string) Flow {
	switch m {
	case "b":
		return Jump
	case "bl":
		return Call
	case "br", "braa", "brab", "braaz", "brabz":
		return IndirectJump
	case "blr", "blraa", "blrab", "blraaz", "blrabz":
		return IndirectCall
	case "ret", "retaa", "retab":
		return Return
	case "cbz", "cbnz", "tbz", "tbnz":
		return CondJump
	case "svc":
		return Syscall
	case "brk", "hlt", "udf", "hvc", "smc":
		return Trap
	}
	if strings.HasPrefix(m, "b.") {
		return CondJump
	}
	return Next
}

// generalARM64 gives the general register that an operand names.
func generalARM64(operand string) procstate.Reg {
	operand = strings.TrimSpace(operand)
	if operand == "sp" || operand == "wsp" {
		return armSP
	}
	for n := range procstate.Reg(31) {
		if name := procstate.ARM64.RegName(n); operand == name || operand == "w"+name[1:] {
			return n
		}
	}
	return procstate.NoReg
}

// writtenARM64 gives the registers that an instruction writes by its text.
func writtenARM64(m, operands string) (regs []procstate.Reg) {
	add := func(operand string) {
		if r := generalARM64(operand); r != procstate.NoReg {
			regs = append(regs, r)
		}
	}
	before, memory, isMemory := strings.Cut(operands, "[")
	isMemory = isMemory && !strings.HasSuffix(m, "mov") // else it is an element of a vector
	list := strings.Split(before, ",")
	switch {
	case isMemory && strings.HasPrefix(m, "prf"):
	case isMemory && (strings.HasPrefix(m, "ldx") || strings.HasPrefix(m, "ldax") || strings.HasPrefix(m, "ldar") || strings.HasPrefix(m, "ldp") || strings.HasPrefix(m, "ldnp") || strings.HasPrefix(m, "ldr") || strings.HasPrefix(m, "ldur")):
		for _, operand := range list {
			add(operand)
		}
	case isMemory && (strings.HasPrefix(m, "stx") || strings.HasPrefix(m, "stlx") || strings.HasPrefix(m, "cas")):
		add(list[0])
	case isMemory && (strings.HasPrefix(m, "swp") || strings.HasPrefix(m, "lda") || strings.HasPrefix(m, "ldc") || strings.HasPrefix(m, "lds") || strings.HasPrefix(m, "lde")):
		add(list[1])
	case isMemory, flowARM64(m) != Next:
	case strings.HasPrefix(m, "cm"), strings.HasPrefix(m, "cc"), strings.HasPrefix(m, "tst"), m == "msr", m == "at", m == "dc", m == "ic", m == "tlbi", m == "sys":
	default:
		add(list[0])
	}
	if base, after, ok := strings.Cut(memory, "]"); ok && isMemory && after != "" {
		base, _, _ = strings.Cut(base, ",")
		add(base) // [x0, #8]! or [x0], #8
	}
	return regs
}

// Every instruction of whole libraries has the flow, and writes the registers, that objdump
// shows.
func TestARM64AgainstObjdump(t *testing.T) {
	names := []string{"libc.so.6", "libm.so.6", "libgcc_s.so.1"}
	if testenv.Long() {
		names = append(names, "libstdc++.so.6")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			n, bad := 0, 0
			listing(t, "aarch64-linux-gnu-objdump", "/usr/aarch64-linux-gnu/lib/"+name, func(d disassembled) {
				m, operands, _ := strings.Cut(d.text, " ")
				if strings.HasPrefix(m, ".") || len(d.code) != 4 {
					return // data
				}
				slices.Reverse(d.code) // objdump shows the word
				n++
				var in Inst
				ok := DecodeARM64(d.code, d.addr, &in)
				wrong := !ok || in.Flow != flowARM64(m)
				want := writtenARM64(m, operands)
				for _, r := range want {
					wrong = wrong || !writesReg(&in, r)
				}
				for r := range procstate.Reg(31) {
					if procstate.ARM64.CalleeSaved>>r&1 != 0 && writesReg(&in, r) && !slices.Contains(want, r) && ok {
						wrong = wrong || !strings.Contains(m, "x") // exclusive accesses may clobber what they store
					}
				}
				if bad++; !wrong {
					bad--
				} else if bad <= 20 {
					t.Errorf("%#x: %s: flow %d, %+v, want %v", d.addr, d.text, in.Flow, in.Ops[:in.NumOps], want)
				}
			})
			if n < 1000 {
				t.Errorf("objdump listed %d instructions", n)
			}
			t.Logf("%d instructions, %d differ", n, bad)
		})
	}
}
