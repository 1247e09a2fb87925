package clr

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// processor executes what prologues and epilogues of AArch64 consist of.
type processor struct {
	regs  [procstate.MaxRegs]uint64
	stack [stackWords]uint64
}

const (
	stackAt    = 0x10000
	stackWords = 0x200
)

func (p *processor) word(addr uint64) *uint64 { return &p.stack[(addr-stackAt)/8] }

func (p *processor) run(t *testing.T, code []byte) {
	t.Helper()
	var in isa.Inst
	if !mcode.Decode(procstate.ARM64, code, 0x5000, &in) || in.Flow != isa.Next {
		t.Fatalf("%x is no such instruction", code[:4])
	}
	for _, op := range in.Ops[:in.NumOps] {
		switch op.Kind {
		case isa.Store:
			*p.word(p.regs[op.Dst] + uint64(op.Imm)) = p.regs[op.Src]
		case isa.Load:
			p.regs[op.Dst] = *p.word(p.regs[op.Src] + uint64(op.Imm))
		case isa.Set:
			p.regs[op.Dst] = p.regs[op.Src] + uint64(op.Imm)
		case isa.Scratch:
		default:
			t.Fatalf("%x does something else", code[:4])
		}
	}
}

// walk walks from a place in a function as it is then.
func (p *processor) walk(f *function, at uint64, interrupted bool) (out unwind.Frame, err error) {
	var stack []byte
	for _, v := range p.stack {
		stack = binary.LittleEndian.AppendUint64(stack, v)
	}
	snap := procstate.NewSnapshot(procstate.ARM64, 1, "", new(procstate.AddressSpace))
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: stackAt, Data: stack}})
	in := unwind.NewFrame(procstate.ARM64, f.begin+at, p.regs[procstate.ARM64.SP], p.regs[procstate.ARM64.FP])
	for r := range procstate.ARM64.PC {
		in.Regs.Set(r, p.regs[r])
	}
	if interrupted {
		in.Flags |= unwind.Interrupted
	}
	_, err = f.callerFrame(unwind.NewWalker(snap, unwind.NewGroup(), nil), &in, &out)
	return out, err
}

// What is told of methods has the caller's registers from each instruction of their prologues and epilogues on,
// as the processor has executed these. They are as .NET 10 has made them, with their unwind information.
func TestCLRAArch64(t *testing.T) {
	for name, c := range map[string]struct{ info, code string }{
		"not optimised": {"0900500807004000e181e4e4", "fd7bbfa9fd030091006889d28009bff2800ac0f2000040f900003fd6fd7bc1a8c0035fd6"},
		"two epilogues": {"2e009008250040002c004000e185e4e4", "fd7bbda9fd030091bf1300f9bf0f00f9a01700f9a01740f9001040f9011e8bd2e101bff2810ac0f2210040f920003fd6a00f00f9" +
			"a00f40f91f00c039a00f40f901218bd2e101bff2810ac0f2210040f920003fd6a01300f9a01340f9a00b00f9a01340b900000012a0010034002c8bd22008bff2" +
			"800ac0f286e3fe97a01740f901248bd2e101bff2810ac0f2210040f920003fd6fd7bc3a8c0035fd6802c8bd22008bff2800ac0f27ae3fe97a01340f9fd7bc3a8c0035fd6"},
		"all registers": {"340050182d004000e1e6e6e6e6c80c95e4e4e4e4", "fd7bb5a9f35306a9f55b07a9f76308a9f96b09a9fb730aa9fd030091a02f00f9a063009103fdff97a02b00f9e0030091a01b00f9e0031daa" +
			"a02300f9a02f40f9016a92d26103bff2810ac0f2a11700f981010010a11f00f9a12b40f9a2630091220400f9a12b40f93f100039016e92d26103bff2810ac0f2210040f9" +
			"20003fd6a02b40f9210080520110003900e398d2e015a0f2a00ac0f2000040b91f00007140000054e7fcff97a02b40f9a11340f9010400f9" +
			"fb734aa9f96b49a9f76348a9f55b47a9f35346a9fd7bcba8c0035fd6"},
	} {
		t.Run(name, func(t *testing.T) {
			const base, at = 0x400000, 0x1000
			info, _ := hex.DecodeString(c.info)
			code, _ := hex.DecodeString(c.code)
			mem := steptest.Memory{}
			mem.Put(base+at, info...)
			var f function
			if !f.readARM64(mem.Read, base, []byte{0, 0x50, 0, 0, at & 0xff, at >> 8, 0, 0}) {
				t.Fatal("not understood")
			}
			if f.begin != base+0x5000 || f.end != f.begin+uint64(len(code)) || len(f.epilogs) == 0 {
				t.Fatalf("from %#x to %#x, %d epilogues", f.begin, f.end, len(f.epilogs))
			}
			var p processor
			for r := range p.regs {
				p.regs[r] = 0xabc000 + uint64(r)
			}
			p.regs[procstate.ARM64.SP], p.regs[procstate.ARM64.FP] = stackAt+0x800, stackAt+0x900
			caller := p.regs
			check := func(at uint64, p *processor, interrupted bool) {
				t.Helper()
				out, err := p.walk(&f, at, interrupted)
				if err != nil {
					t.Fatalf("at %d: %v", at, err)
				}
				if out.PC() != caller[procstate.ARM64.LR] || out.SP() != caller[procstate.ARM64.SP] || out.FP() != caller[procstate.ARM64.FP] {
					t.Errorf("at %d: pc %#x sp %#x fp %#x", at, out.PC(), out.SP(), out.FP())
				}
				for r := procstate.Reg(19); r < 29; r++ {
					if v, known := out.Regs.Value(r); !known || v != caller[r] {
						t.Errorf("at %d: x%d is %#x, %v", at, r, v, known)
					}
				}
			}
			off := uint64(0)
			for ; off < uint64(f.prolog); off += 4 {
				check(off, &p, true)
				p.run(t, code[off:])
			}
			for r := range procstate.Reg(19) {
				p.regs[r] = 0
			}
			if len(f.ops) > 4 { // a method that saves them may change them
				for r := procstate.Reg(19); r < 29; r++ {
					p.regs[r] = 0
				}
			}
			p.regs[procstate.ARM64.LR] = 0
			check(off, &p, true)
			check(off+8, &p, false)
			for _, e := range f.epilogs {
				p := p
				check(uint64(e.begin), &p, false) // behind a call
				for at := uint64(e.begin); at < uint64(e.end)-4; at += 4 {
					check(at, &p, true)
					p.run(t, code[at:])
				}
				if check(uint64(e.end)-4, &p, true); binary.LittleEndian.Uint32(code[e.end-4:]) != 0xd65f03c0 {
					t.Errorf("there is no return at %d", e.end-4)
				}
			}
			for n := range info {
				cut := steptest.Memory{}
				cut.Put(base+at, info[:n]...)
				if f := new(function); f.readARM64(cut.Read, base, []byte{0, 0x50, 0, 0, at & 0xff, at >> 8, 0, 0}) {
					t.Errorf("cut to %d bytes it is understood", n)
				}
			}
		})
	}
}

// Operations mean what src/coreclr/unwinder/arm64/unwinder.cpp says that they do, whose largest example the first is.
func TestCLRAArch64Operations(t *testing.T) {
	at := func(from uint32, reg procstate.Reg, n uint64) unwindOp { return unwindOp{from, saveSP, reg, n} }
	allocates := func(from uint32, n uint64) unwindOp { return unwindOp{from: from, kind: alloc, n: n} }
	for codes, want := range map[string]struct {
		n   uint32
		ops []unwindOp
	}{
		"\xe1\x40\xc1\xe7\xe3\xe3\xe3\xe3\xd9\x90\xd9\x0e\xd8\x8c\xd8\x0a\xca\x08\xc9\x86\xc9\x04\xc8\x82\xcc\x19\xfc\xe4": {17 * 4, []unwindOp{
			{0, setFP, 29, 0}, at(4, 29, 0), at(4, 30, 8), allocates(8, 7792),
			at(44, 27, 64), at(44, 28, 72), at(48, 25, 48), at(48, 26, 56), at(52, 23, 32), at(52, 24, 40), at(56, 21, 16), at(56, 22, 24),
			at(60, 19, 0), at(60, 20, 8), allocates(60, 208)}},
		"\x03\x2a\xe4":                 {8, []unwindOp{allocates(0, 48), at(4, 19, 0), at(4, 20, 8), allocates(4, 80)}},
		"\xe2\x05\xe0\x01\x02\x03\xe4": {8, []unwindOp{{0, setFP, 29, 40}, allocates(4, 16*0x10203)}},
		"\xd0\x43\xd5\x05\xd6\x82\xe4": {12, []unwindOp{at(0, 20, 24), at(4, 27, 0), allocates(4, 48), at(8, 23, 16), at(8, 30, 24)}},
		"\xe6\xc8\x02\xe4":             {8, []unwindOp{at(0, 21, 32), at(0, 22, 40), at(4, 19, 16), at(4, 20, 24)}},
		"\xdb\x03\xde\x01\xdc\x05\xe4": {12, []unwindOp{allocates(0, 32), allocates(4, 16)}},
		"\xe5\xe1\x81\xe4":             {0, []unwindOp{{0, setFP, 29, 0}, at(0, 29, 0), at(0, 30, 8), allocates(0, 16)}},
		"\x01\xe5\x02\xe4":             {4, []unwindOp{allocates(0, 16), allocates(4, 32)}},
	} {
		ops, n, ok := opsARM64([]byte(codes))
		if !ok || n != want.n || !slices.Equal(ops, want.ops) {
			t.Errorf("% x: %v, %d, %v", codes, ok, n, ops)
		}
	}
	for _, codes := range []string{"", "\x01", "\xc8", "\xe0\x01\x02", "\xe6\xe4", "\xe6\x01\xe4", "\xe6\xca\x00\xe4", "\xdf\x01\xe4", "\xe7\x01\x01\xe4", "\xe8\xe4", "\xff\xe4"} {
		if ops, _, ok := opsARM64([]byte(codes)); ok {
			t.Errorf("% x: %v", codes, ops)
		}
	}
}

// Code that jumps on leaves the return address in its register.
func TestCLRAArch64Thunk(t *testing.T) {
	for code, want := range map[string]int{
		"\x8a\x00\x00\x58\x40\x01\x1f\xd6": 0, // ldr x10; br x10
		"\x69\x00\x00\x58\x2a\x01\x40\x79\x4a\x05\x00\x71\x2a\x01\x00\x79\x60\x00\x00\x54\x69\x00\x00\x58\x20\x01\x1f\xd6": 0, // counts calls
		"\xe0\x07\xc1\xa8\x20\x01\x1f\xd6": 16, // ldp x0, x1, [sp], #16; br x9
		"\xe0\x07\xbf\xa9\x20\x01\x1f\xd6": -1,
		"\x01\x00\x00\x94\xc0\x03\x5f\xd6": -1, // bl
		"\xfe\x03\x09\xaa\x20\x01\x1f\xd6": -1, // mov x30, x9
		"\x9f\x20\x03\xd5":                 -1, // nothing behind
	} {
		off, ok := thunk(procstate.ARM64, []byte(code), 0x5000)
		if ok != (want >= 0) || ok && off != uint64(want) {
			t.Errorf("% x: %d, %v", code, off, ok)
		}
	}
}
