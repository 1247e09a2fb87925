package loader

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/swbpf/swbpf/gen"
)

// maxStack is what a BPF program may use of its stack, in bytes, with all
// functions that are on it at once (MAX_BPF_STACK), and stackUnit what the
// verifier rounds each up to.
const maxStack, stackUnit = 512, 32

// Programs keep to the stack that all kernels give them, whatever the loader
// sets. Functions that the kernel calls later are left out: Linux 6.18, which
// can, rounds up by less, and other tests load them there.
func TestProgramStacks(t *testing.T) {
	for _, arch := range []string{"x86", "arm64"} {
		spec, err := ebpf.LoadCollectionSpec(fmt.Sprintf("../gen/sampler_%s_bpfel.o", arch))
		if err != nil {
			t.Fatal(err)
		}
		constants := []string{
			gen.SamplerVarSendChanges, gen.SamplerVarWithOnCpu, gen.SamplerVarHaveTaskPtRegs,
			gen.SamplerVarFilterProcesses, gen.SamplerVarPidNamespace,
		}
		const changes, onCPU = 1 << 0, 1 << 1
		for set := range 1 << len(constants) {
			on := ""
			for i, name := range constants {
				value := make([]byte, spec.Variables[name].Size())
				value[0] = byte(set >> i & 1)
				if err := spec.Variables[name].Set(value); err != nil {
					t.Fatal(err)
				}
				if value[0] != 0 {
					on += " " + name
				}
			}
			for name, prog := range spec.Programs {
				if set&changes != 0 && (set&onCPU != 0 || name == gen.SamplerProgOnSwitch) {
					continue // time off the CPU is never sent as changes
				}
				functions := stacks(t, spec, withoutCallbacks(prog.Instructions))
				if functions[name].bytes == 0 {
					t.Errorf("%s: %s uses no stack, set are%s", arch, name, on)
				}
				if n := functions[name].deepest(functions, 0); n > maxStack {
					t.Errorf("%s: %s takes %d bytes of stack, more than %d, set are%s", arch, name, n, maxStack, on)
				}
			}
		}
	}
}

// stackUse is what a function of a program uses of the stack.
type stackUse struct {
	bytes int
	calls []string
}

// stacks returns the functions of a program by name. As the verifier does, it
// looks at each, counts the stack of what is reached in it, and all calls.
func stacks(t *testing.T, spec *ebpf.CollectionSpec, insns asm.Instructions) map[string]*stackUse {
	t.Helper()
	called := map[string]bool{}
	for i := range insns {
		if insns[i].IsFunctionCall() {
			called[insns[i].Reference()] = true
		}
	}
	starts := []int{0}
	for i := range insns {
		if called[insns[i].Symbol()] {
			starts = append(starts, i)
		}
	}
	before := reached(t, spec, insns, starts...)
	functions := map[string]*stackUse{}
	var f *stackUse
	var frame [asm.RFP + 1]bool // the registers that hold the frame pointer
	for i := range insns {
		ins := &insns[i]
		if s := ins.Symbol(); i == 0 || called[s] {
			f, frame = new(stackUse), [asm.RFP + 1]bool{asm.RFP: true}
			functions[s] = f
		}
		if ins.IsFunctionCall() {
			f.calls = append(f.calls, ins.Reference())
		}
		if _, ok := before[i]; !ok {
			continue
		}
		use := func(offset int64) { f.bytes = max(f.bytes, int(-offset)) }
		op, copied := ins.OpCode, false
		class := op.Class()
		switch {
		case class == asm.LdXClass && frame[ins.Src], (class == asm.StClass || class == asm.StXClass) && frame[ins.Dst]:
			use(int64(ins.Offset))
		case class == asm.ALU64Class && op.ALUOp() == asm.Mov && op.Source() == asm.RegSource:
			copied = frame[ins.Src]
		case class == asm.ALU64Class && op.ALUOp() == asm.Add && op.Source() == asm.ImmSource && frame[ins.Dst]:
			use(ins.Constant)
		}
		if class != asm.StClass && class != asm.StXClass && !class.IsJump() {
			frame[ins.Dst] = copied
		}
	}
	return functions
}

// deepest is what a function and those that it calls take at most.
func (f *stackUse) deepest(functions map[string]*stackUse, depth int) int {
	if depth > len(functions) {
		return maxStack + 1 // it calls itself
	}
	callee := 0
	for _, name := range f.calls {
		callee = max(callee, functions[name].deepest(functions, depth+1))
	}
	return (max(f.bytes, 1)+stackUnit-1)/stackUnit*stackUnit + callee
}
