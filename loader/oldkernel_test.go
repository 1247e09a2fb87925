package loader

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// lastHelper58 is the last helper of Linux 5.8 (enum bpf_func_id of its
// uapi/linux/bpf.h).
const lastHelper58 = asm.FnCsumLevel

// What every recording loads consists of what Linux 5.8 knows: types of maps
// and programs, instructions, and the helpers that are reached with the
// constants that the loader sets there.
func TestProgramsForLinux58(t *testing.T) {
	// Threads that wait since before a recording are listed since Linux 5.9;
	// see Session.wantedPrograms.
	optional := map[string][]asm.BuiltinFunc{"on_waiting_task": {asm.FnGetTaskStack}}
	for _, arch := range []string{"x86", "arm64"} {
		for _, object := range []string{"sampler", "probes"} {
			spec, err := ebpf.LoadCollectionSpec(fmt.Sprintf("../gen/%s_%s_bpfel.o", object, arch))
			if err != nil {
				t.Fatal(err)
			}
			for name, m := range spec.Maps {
				switch m.Type {
				case ebpf.Array, ebpf.ProgramArray, ebpf.PerCPUArray, ebpf.Hash, ebpf.LRUHash, ebpf.RingBuf:
				default:
					t.Errorf("%s, %s: map %s is of type %v", object, arch, name, m.Type)
				}
			}
			for name, prog := range spec.Programs {
				switch prog.Type {
				case ebpf.PerfEvent, ebpf.TracePoint, ebpf.Kprobe, ebpf.RawTracepoint:
				case ebpf.Tracing:
					if prog.AttachType != ebpf.AttachTraceIter || prog.AttachTo != "task" {
						t.Errorf("%s, %s: %s is attached to %v %s", object, arch, name, prog.AttachType, prog.AttachTo)
					}
				default:
					t.Errorf("%s, %s: %s is of type %v", object, arch, name, prog.Type)
				}
				insns := withoutCallbacks(prog.Instructions)
				iter := insns.Iterate()
				for iter.Next() {
					if !knownTo58(iter.Ins) {
						t.Errorf("%s, %s: %s has %v", object, arch, name, iter.Ins)
					}
				}
				newer := helpersReached(t, spec, insns)
				newer = slices.DeleteFunc(newer, func(f asm.BuiltinFunc) bool { return f <= lastHelper58 })
				if !slices.Equal(newer, optional[name]) {
					t.Errorf("%s, %s: %s calls %v, want of those after Linux 5.8 %v", object, arch, name, newer, optional[name])
				}
			}
		}
	}
}

// A function of the kernel that is left out is neither called nor asked for; all else
// stays where it is.
func TestWithoutFunction(t *testing.T) {
	const name = "bpf_task_work_schedule_resume_impl"
	refers := func(ins asm.Instruction) bool { return ins.Reference() == name }
	spec, err := ebpf.LoadCollectionSpec("../gen/sampler_x86_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	insns := spec.Programs["on_perf_event"].Instructions
	before := slices.Clone(insns)
	if !slices.ContainsFunc(before, func(ins asm.Instruction) bool { return refers(ins) && ins.IsKfuncCall() }) {
		t.Fatalf("%s is not called", name)
	}
	insns = withoutFunction(insns, name)
	if len(insns) != len(before) {
		t.Fatalf("%d instructions of %d", len(insns), len(before))
	}
	for i := range insns {
		was, is := before[i], insns[i]
		if refers(is) || is.Symbol() != was.Symbol() || is.OpCode.IsDWordLoad() != was.OpCode.IsDWordLoad() ||
			!refers(was) && is.OpCode != was.OpCode {
			t.Errorf("%v in place of %v", is, was)
		}
	}
}

// The newer helpers are found where they are reached.
func TestHelpersReached(t *testing.T) {
	spec, err := ebpf.LoadCollectionSpec("../gen/sampler_x86_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	insns := spec.Programs["on_perf_event"].Instructions
	for _, have := range []bool{false, true} {
		if err := spec.Variables["have_task_pt_regs"].Set(have); err != nil {
			t.Fatal(err)
		}
		reached := helpersReached(t, spec, insns)
		for _, f := range []asm.BuiltinFunc{asm.FnGetCurrentTaskBtf, asm.FnTaskPtRegs} {
			if slices.Contains(reached, f) != have {
				t.Errorf("have_task_pt_regs is %v: reached %v", have, reached)
			}
		}
		if !slices.Contains(reached, asm.FnProbeReadUser) {
			t.Errorf("have_task_pt_regs is %v: no stack is copied: reached %v", have, reached)
		}
	}
}

// knownTo58 reports whether the verifier of Linux 5.8 knows an instruction,
// which it asks of those too that are never reached.
func knownTo58(ins *asm.Instruction) bool {
	op := ins.OpCode
	switch op.Class() {
	case asm.LdClass:
		return op.IsDWordLoad() && (ins.Src == asm.R0 || ins.Src == asm.PseudoMapFD || ins.Src == asm.PseudoMapValue)
	case asm.LdXClass, asm.StClass:
		return op.Mode() == asm.MemMode
	case asm.StXClass:
		return op.Mode() == asm.MemMode || op.AtomicOp() == asm.AddAtomic && op.Size() >= asm.Word
	case asm.ALUClass, asm.ALU64Class:
		switch op.ALUOp() {
		case asm.SDiv, asm.SMod, asm.MovSX8, asm.MovSX16, asm.MovSX32:
			return false
		case asm.Swap:
			return op.Class() == asm.ALUClass
		}
		return true
	case asm.JumpClass:
		return true // calls of what the kernel lacks are looked at where they are reached
	case asm.Jump32Class:
		return op.JumpOp() != asm.Ja
	}
	return false
}

// value is what is known of a register: nothing, a number, or an address in
// .rodata.
type value struct {
	kind kind
	n    int64 // the number, or the offset in .rodata
}

type kind uint8

const (
	unknown kind = iota
	number
	constant
)

type registers [asm.RFP + 1]value

// kfunc stands for all functions of the kernel that are called by name, which
// programs like these can do since 5.18.
const kfunc = asm.BuiltinFunc(math.MaxInt32)

// helpersReached lists the helpers that a program can call, sorted, given the
// values of .rodata.
func helpersReached(t *testing.T, spec *ebpf.CollectionSpec, insns asm.Instructions) []asm.BuiltinFunc {
	t.Helper()
	helpers := map[asm.BuiltinFunc]bool{}
	for i := range reached(t, spec, insns, 0) {
		switch ins := &insns[i]; {
		case ins.OpCode.JumpOp() != asm.Call || ins.IsFunctionCall():
		case ins.IsBuiltinCall():
			helpers[asm.BuiltinFunc(ins.Constant)] = true
		default:
			helpers[kfunc] = true
		}
	}
	return slices.Sorted(maps.Keys(helpers))
}

// reached returns the instructions, by number, that a program can come to from
// some, given the values of .rodata, and what holds before each. As the verifier
// does, it follows a branch on a constant only to where it goes.
func reached(t *testing.T, spec *ebpf.CollectionSpec, insns asm.Instructions, starts ...int) map[int]registers {
	t.Helper()
	rodata := slices.Clone(spec.Maps[".rodata"].Contents[0].Value.([]byte))
	for _, v := range spec.Variables {
		if v.SectionName == ".rodata" {
			copy(rodata[v.Offset:], v.Value)
		}
	}
	at := map[asm.RawInstructionOffset]int{} // index by offset
	offset := make([]asm.RawInstructionOffset, len(insns))
	functions := map[string]int{}
	for iter := insns.Iterate(); iter.Next(); {
		at[iter.Offset], offset[iter.Index] = iter.Index, iter.Offset
		if s := iter.Ins.Symbol(); s != "" {
			functions[s] = iter.Index
		}
	}
	before := map[int]registers{} // what holds before an instruction
	var todo []int
	reach := func(i int, r registers) {
		old, seen := before[i]
		for reg := range r {
			if seen && r[reg] != old[reg] {
				r[reg] = value{}
			}
		}
		if !seen || r != old {
			before[i] = r
			todo = append(todo, i)
		}
	}
	for _, i := range starts {
		reach(i, registers{})
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		ins, r := &insns[i], before[i]
		op := ins.OpCode
		target := func() int {
			to, ok := at[offset[i]+1+asm.RawInstructionOffset(ins.Offset)]
			if !ok {
				t.Fatalf("instruction %d jumps nowhere: %v", i, ins)
			}
			return to
		}
		switch {
		case op.JumpOp() == asm.Exit:
			continue
		case op.JumpOp() == asm.Ja:
			reach(target(), r)
			continue
		case op.JumpOp() == asm.Call:
			if ins.IsFunctionCall() {
				reach(functions[ins.Reference()], registers{})
			}
			for reg := asm.R0; reg <= asm.R5; reg++ {
				r[reg] = value{}
			}
		case op.Class().IsJump():
			taken, decided := branch(ins, r)
			if taken || !decided {
				reach(target(), r)
			}
			if taken && decided {
				continue
			}
		default:
			if op.Class() != asm.StClass && op.Class() != asm.StXClass {
				r[ins.Dst] = result(ins, r, rodata)
			}
		}
		reach(i+1, r)
	}
	return before
}

// result is what an instruction puts into its destination.
func result(ins *asm.Instruction, r registers, rodata []byte) value {
	op := ins.OpCode
	switch {
	case op.IsDWordLoad() && ins.Src == asm.PseudoMapValue && ins.Reference() == ".rodata":
		return value{constant, ins.Constant >> 32}
	case op.IsDWordLoad() && ins.Src == asm.R0:
		return value{number, ins.Constant}
	case op.Class() == asm.LdXClass && op.Mode() == asm.MemMode && r[ins.Src].kind == constant:
		var word [8]byte
		copy(word[:op.Size().Sizeof()], rodata[r[ins.Src].n+int64(ins.Offset):])
		return value{number, int64(binary.LittleEndian.Uint64(word[:]))}
	case op.Class() == asm.ALU64Class && op.ALUOp() == asm.Mov && op.Source() == asm.RegSource:
		return r[ins.Src]
	case asksOfVerifier(ins):
		return value{number, 0}
	case op.Class() == asm.ALU64Class && op.ALUOp() == asm.Mov:
		return value{number, ins.Constant}
	}
	return value{}
}

// asksOfVerifier reports whether an instruction asks for a field of the verifier's, of later kernels (bpf/uprobe.h).
func asksOfVerifier(ins *asm.Instruction) bool {
	relocation := btf.CORERelocationMetadata(ins)
	return relocation != nil && strings.Contains(relocation.String(), `"bpf_subprog_info"`)
}

// Programs on uprobes see to it that their stack is not the CPU's, and that no other thread's run of them comes in
// between, before they do anything else.
func TestUprobeProgramsAreAlone(t *testing.T) {
	for _, arch := range []string{"x86", "arm64"} {
		spec, err := ebpf.LoadCollectionSpec(fmt.Sprintf("../gen/sampler_%s_bpfel.o", arch))
		if err != nil {
			t.Fatal(err)
		}
		programs := 0
		for name, prog := range spec.Programs {
			if prog.SectionName != "uprobe" {
				continue
			}
			programs++
			var calls []string
			for i := range prog.Instructions {
				switch ins := &prog.Instructions[i]; {
				case ins.IsKfuncCall():
					calls = append(calls, ins.Reference())
				case ins.IsBuiltinCall():
					calls = append(calls, asm.BuiltinFunc(ins.Constant).String())
				case ins.IsFunctionCall():
					calls = append(calls, "")
				}
			}
			if want := []string{"FnTailCall", "bpf_preempt_disable"}; len(calls) < 3 || !slices.Equal(calls[:2], want) {
				t.Errorf("%s, %s: the first calls are %q, want %q", arch, name, calls[:min(2, len(calls))], want)
			}
			if !slices.Contains(calls, "bpf_preempt_enable") {
				t.Errorf("%s, %s: cannot be preempted any more", arch, name)
			}
		}
		if programs != 8 {
			t.Errorf("%s: %d programs on uprobes", arch, programs)
		}
	}
}

// branch says whether a conditional jump is taken, where that is decided.
func branch(ins *asm.Instruction, r registers) (taken, decided bool) {
	v := r[ins.Dst]
	if ins.OpCode.Class() != asm.JumpClass || ins.OpCode.Source() != asm.ImmSource || v.kind != number {
		return false, false
	}
	switch ins.OpCode.JumpOp() {
	case asm.JEq:
		return v.n == ins.Constant, true
	case asm.JNE:
		return v.n != ins.Constant, true
	}
	return false, false
}

// Linux 7.2 has made a byte of a field of a task that was an int, with others close behind:
// it is read in the size that it has.
func TestOnCPUIsReadAsItIs(t *testing.T) {
	at := func(name string, byte uint32, typ btf.Type) btf.Member {
		return btf.Member{Name: name, Type: typ, Offset: btf.Bits(byte * 8)}
	}
	u8 := &btf.Int{Name: "u8", Size: 1}
	for _, c := range []struct {
		target *btf.Struct
		want   []string
	}{
		{&btf.Struct{Name: "task_struct", Size: 16, Members: []btf.Member{at("on_cpu", 9, u8), at("on_rq", 10, u8), at("is_blocked", 11, u8)}},
			[]string{"byte_sz 1", "lshift_u64 56", "rshift_u64 56"}},
		{&btf.Struct{Name: "task_struct", Size: 16, Members: []btf.Member{at("on_cpu", 8, &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed})}},
			[]string{"byte_sz 4", "lshift_u64 32", "rshift_u64 32"}},
	} {
		b, err := btf.NewBuilder([]btf.Type{c.target}, nil)
		if err != nil {
			t.Fatal(err)
		}
		kernel, err := b.Spec()
		if err != nil {
			t.Fatal(err)
		}
		for _, arch := range []string{"x86", "arm64"} {
			spec, err := ebpf.LoadCollectionSpec(fmt.Sprintf("../gen/sampler_%s_bpfel.o", arch))
			if err != nil {
				t.Fatal(err)
			}
			var relos []*btf.CORERelocation
			insns := spec.Programs["on_waiting_task"].Instructions
			for i := range insns {
				if r := btf.CORERelocationMetadata(&insns[i]); r != nil {
					relos = append(relos, r)
				}
			}
			fixups, err := btf.CORERelocate(relos, []*btf.Spec{kernel}, binary.LittleEndian, func(btf.Type) (btf.TypeID, error) { return 0, nil })
			if err != nil {
				t.Fatal(err)
			}
			found := make(map[string]bool)
			for i := range fixups {
				kind, values, _ := strings.Cut(fixups[i].String(), "=")
				_, value, _ := strings.Cut(values, "->")
				found[kind+" "+value] = true
			}
			for _, want := range c.want {
				if !found[want] {
					t.Errorf("%s, of %d bytes: no %s", arch, c.target.Members[0].Type.(*btf.Int).Size, want)
				}
			}
		}
	}
}
