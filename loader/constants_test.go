package loader

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/swbpf/swbpf/gen"
)

// What instructions load of constants becomes part of them, as the loader has set it; all
// else stays as it is, and where it is.
func TestPutConstants(t *testing.T) {
	for _, file := range []string{"../gen/sampler_x86_bpfel.o", "../gen/sampler_arm64_bpfel.o"} {
		spec, err := ebpf.LoadCollectionSpec(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{gen.SamplerVarRingBytes, gen.SamplerVarStackLimit, gen.SamplerVarRecordLimit, gen.SamplerVarPidNamespace, gen.SamplerVarThreadSize} {
			v := spec.Variables[name]
			value := make([]byte, v.Size())
			binary.NativeEndian.PutUint32(value, uint32(0x1234567+i))
			if err := v.Set(value); err != nil {
				t.Fatal(err)
			}
		}
		constantAt := func(offset uint64) *ebpf.VariableSpec {
			for _, v := range spec.Variables {
				if v.SectionName == constantsSection && offset-uint64(v.Offset) < uint64(len(v.Value)) {
					return v
				}
			}
			return nil
		}
		for name, prog := range spec.Programs {
			before := slices.Clone(prog.Instructions)
			putConstants(spec, prog.Instructions)
			put := 0
			for i, is := range prog.Instructions {
				was := before[i]
				if is.Symbol() != was.Symbol() || is.Size() != was.Size() {
					t.Fatalf("%s: %v in place of %v", name, is, was)
				}
				if is.OpCode == was.OpCode && is.Constant == was.Constant {
					continue
				}
				load := was // and where the address is loaded is the instruction before
				address := before[max(i-1, 0)]
				if was.IsLoadFromMap() {
					load, address = before[i+1], was
				}
				offset := uint64(address.Constant>>32) + uint64(load.Offset)
				v := constantAt(offset)
				if address.Reference() != constantsSection || load.OpCode.Class() != asm.LdXClass || v == nil {
					t.Fatalf("%s: %v in place of %v", name, is, was)
				}
				if is.OpCode.Class() == asm.JumpClass { // it does nothing: the address has become the value
					if is.OpCode.JumpOp() != asm.Ja || is.Offset != 0 {
						t.Errorf("%s: %v in place of %v", name, is, was)
					}
					continue
				}
				want := make([]byte, 8)
				copy(want, v.Value[offset-uint64(v.Offset):][:load.OpCode.Size().Sizeof()])
				if is.Dst != load.Dst || uint64(is.Constant) != binary.NativeEndian.Uint64(want) {
					t.Errorf("%s: %s of % x became %v", name, v.Name, v.Value, is)
				}
				put++
			}
			if name == gen.SamplerProgOnPerfEvent && put < 10 {
				t.Errorf("%s: %s has %d constants put in", file, name, put)
			}
		}
	}
}

// A load that another instruction jumps to may be of another address.
func TestPutConstantsBehindJump(t *testing.T) {
	spec := &ebpf.CollectionSpec{Variables: map[string]*ebpf.VariableSpec{
		"a": {SectionName: constantsSection, Offset: 0, Value: []byte{1, 0, 0, 0, 0, 0, 0, 0}},
		"b": {SectionName: constantsSection, Offset: 8, Value: []byte{2, 0, 0, 0, 0, 0, 0, 0}},
	}}
	address := func(offset uint32) asm.Instruction {
		return asm.LoadMapValue(asm.R1, 0, offset).WithReference(constantsSection)
	}
	jump := func(op asm.JumpOp, over int16) asm.Instruction {
		return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(op), Dst: asm.R2, Offset: over}
	}
	for _, dst := range []asm.Register{asm.R1, asm.R3} {
		load := asm.LoadMem(dst, asm.R1, 0, asm.DWord)
		for _, c := range []struct {
			over int16 // addresses take two units
			put  bool
		}{{2, false}, {3, true}, {0, true}} {
			insns := asm.Instructions{address(0), jump(asm.JEq, c.over), address(8), load, asm.Return()}
			putConstants(spec, insns)
			if put := insns[3].OpCode != load.OpCode; put != c.put {
				t.Errorf("into %v, jump over %d: put in is %v, want %v: %v", dst, c.over, put, c.put, insns)
			}
		}
	}
}
