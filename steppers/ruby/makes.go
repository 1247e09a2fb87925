package ruby

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// makesFrame reports whether the thread was interrupted where it is about to put an rb_iseq_t or
// an environment in its innermost control frame: what was there before is in it still. Most code
// enters a frame once it is whole; that of YJIT to 3.1 and of CRuby 2.7, as compilers have it, does not.
func (vm *machine) makesFrame(w *unwind.Walker) bool {
	pc, code := vm.regs.Raw(vm.image.arch.PC), vm.code[:]
	switch m := w.MappingAt(pc); {
	case m == nil || !procstate.HasFile(m.Path):
		if vm.fields.jitReturn == 0 || !vm.ReadNow(pc, code) {
			return false
		}
	case m.Image != vm.file || pc-m.Bias-vm.image.exec.Start < vm.image.exec.End-vm.image.exec.Start || m.Image.ReadVaddr(code, pc-m.Bias) != nil:
		return false
	}
	a := vm.image.arch.Arch
	var in isa.Inst
	makes := false
	for len(code) > mcode.MaxInstLen && mcode.Decode(a, code, pc, &in) && in.Len > 0 && !in.Ends() && in.Flow != isa.Call && in.Flow != isa.IndirectCall {
		eachStore(a, code, &in, func(base procstate.Reg, off, bytes uint64) {
			addr, known := vm.regs.Value(base)
			for _, field := range [...]uint64{rubyCodeOf, rubyEnv} {
				makes = makes || known && vm.current+field-(addr+off) < bytes
			}
		})
		if makes {
			return true
		}
		code, pc = code[in.Len:], pc+uint64(in.Len)
	}
	return false
}

// eachStore calls what with where an instruction at the beginning of code puts words: so far behind what
// is in a register, and so many bytes.
func eachStore(a *procstate.Arch, code []byte, in *isa.Inst, what func(base procstate.Reg, off, bytes uint64)) {
	if a == procstate.AMD64 {
		if base, off, bytes, ok := storeOf(code); ok {
			what(base, off, bytes)
		}
		return
	}
	const word = 8
	for _, op := range in.Ops[:in.NumOps] {
		switch {
		case op.Kind == isa.Store:
			what(op.Dst, uint64(op.Imm), word)
		case op.Kind == isa.Scratch && op.Size >= word:
			what(op.Dst, uint64(op.Imm), uint64(op.Size))
		}
	}
}

// storeOf returns where an instruction of x86-64 at the beginning of code puts how many bytes: so far behind
// what is in a register. ok is false where it is none that does.
func storeOf(code []byte) (base procstate.Reg, off, bytes uint64, ok bool) {
	rex := byte(0)
	if code[0]&0xf0 == 0x40 {
		rex, code = code[0], code[1:]
	}
	const wide, more = 8, 1 // bits of a REX prefix
	switch {
	case rex&wide != 0 && (code[0] == 0x89 || code[0] == 0xc7): // MOVQ
		bytes, code = 8, code[1:]
	case code[0] == 0x0f && (code[1] == 0x11 || code[1] == 0x29): // MOVUPS, MOVAPS
		bytes, code = 16, code[2:]
	default:
		return 0, 0, 0, false
	}
	mod, rm := code[0]>>6, code[0]&7
	const noIndex, withSIB = 4, 4
	code = code[1:]
	if mod == 3 || mod == 0 && rm == 5 {
		return 0, 0, 0, false
	}
	if rm == withSIB {
		if code[0]>>3&7 != noIndex || mod == 0 && code[0]&7 == 5 {
			return 0, 0, 0, false
		}
		rm, code = code[0]&7, code[1:]
	}
	switch mod {
	case 1:
		off = uint64(int64(int8(code[0])))
	case 2:
		off = uint64(int64(int32(binary.LittleEndian.Uint32(code))))
	}
	if rex&more != 0 {
		return procstate.Reg(8 + rm), off, bytes, true
	}
	return [...]procstate.Reg{0, 2, 1, 3, 7, 6, 4, 5}[rm], off, bytes, true
}
