package loader

import (
	"encoding/binary"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// constantsSection is where programs read the constants of bpf/config.h.
const constantsSection = ".rodata"

// putConstants puts the values of constants into the instructions of a program of spec that
// would load them. Their memory is a page more that is in no cache at the time
// of a sample.
func putConstants(spec *ebpf.CollectionSpec, insns asm.Instructions) {
	var values []byte // of all constants, as they lie in memory
	for _, v := range spec.Variables {
		if v.SectionName == constantsSection {
			values = append(values, make([]byte, max(0, int(v.Offset)+len(v.Value)-len(values)))...)
			copy(values[v.Offset:], v.Value)
		}
	}
	targets := jumpTargets(insns)
	for i := 1; i < len(insns); i++ {
		address, load := &insns[i-1], &insns[i]
		if !address.IsLoadFromMap() || address.Reference() != constantsSection ||
			load.OpCode.Class() != asm.LdXClass || load.Src != address.Dst || targets[i] {
			continue
		}
		at, size := address.Constant>>32+int64(load.Offset), int64(load.OpCode.Size().Sizeof())
		if at < 0 || at+size > int64(len(values)) {
			continue
		}
		var bytes [8]byte
		copy(bytes[:], values[at:at+size])
		n := binary.NativeEndian.Uint64(bytes[:])
		switch {
		case load.Dst == load.Src && btf.FuncMetadata(address) == nil:
			// All stays where it is: other instructions jump over it.
			*address = asm.LoadImm(load.Dst, int64(n), asm.DWord).WithSymbol(address.Symbol()).WithSource(address.Source())
			*load = asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja)}.WithSource(load.Source())
		case n < 1<<31: // others may use the address as well
			*load = asm.Mov.Imm(load.Dst, int32(n)).WithSource(load.Source())
		}
	}
}

// jumpTargets are the indices of the instructions that others jump to, with what they
// have in registers.
func jumpTargets(insns asm.Instructions) map[int]bool {
	at := make(map[asm.RawInstructionOffset]int)
	for iter := insns.Iterate(); iter.Next(); {
		at[iter.Offset] = iter.Index
	}
	targets := make(map[int]bool)
	for iter := insns.Iterate(); iter.Next(); {
		op := iter.Ins.OpCode
		if op.Class().IsJump() && op.JumpOp() != asm.Call && op.JumpOp() != asm.Exit {
			to := int64(iter.Offset) + 1 + int64(iter.Ins.Offset)
			targets[at[asm.RawInstructionOffset(to)]] = true
		}
	}
	return targets
}
