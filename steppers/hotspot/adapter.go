package hotspot

import (
	"bytes"

	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Instructions of x86-64's adapters.
var (
	popsReturn   = []byte{0x58}                   // pop rax
	pushesReturn = []byte{0x50}                   // push rax
	storesReturn = []byte{0x48, 0x89, 0x04, 0x24} // mov [rsp],rax
)

const (
	maxAdapterInsts = 96 // from an instruction of an adapter to its jump
	maxAdapterCode  = 4 << 10
	maxAdapterPaths = 32
)

// adapterPlace is how far an adapter is at an instruction.
type adapterPlace struct {
	popped bool // the return address is in a register, and will be stored
	noted  bool // the caller's SP is in a register, if it is compiled
}

// adaptedByWord is where execution goes back to from b, an adapter between interpreted and compiled callers and callees or
// of method handles, in which f was interrupted on x86-64 (SharedRuntime::gen_i2c_adapter, gen_c2i_adapter,
// MethodHandles::generate_method_handle_dispatch). It takes the return address into a register while it moves SP for the
// arguments, and jumps to what is called. The frame pointer stays. What it calls in between is not followed.
func (s *Stepper) adaptedByWord(w *unwind.Walker, vm *machine, b *codeBlob, f *unwind.Frame) (caller javaRegs, ok bool) {
	var buf [maxAdapterCode]byte
	begin, end, pc := b.begin, b.end, f.PC()
	code := mcode.Read(w, w.MappingAt(pc), pc, buf[:min(maxAdapterCode, end-pc)])
	place, ok := adapterAt(w, code, pc, begin, end)
	if !ok {
		return caller, false
	}
	regs := codeRegsOf(w.Arch())
	caller = javaRegs{sp: f.SP(), fp: f.FP()}
	if place.popped {
		caller.pc, ok = f.Regs.Value(regs.popped)
		caller.pcAt = unwind.InRegister(regs.popped)
	} else {
		caller.pc, ok = w.ProcessState().ReadWord(f.SP())
		caller.pcAt = unwind.InMemory(f.SP())
		caller.sp += 8
	}
	from := vm.blobAt(caller.pc - 1)
	if !ok || from == nil || !javacode.MayReturnTo(w, caller.pc, s.buf[:]) {
		return caller, false
	}
	if place.noted && !from.interpreter {
		sender, known := f.Regs.Value(regs.sender)
		if !known || sender-caller.sp > javacode.MaxLocals || sender%8 != 0 {
			return caller, false
		}
		caller.sp = sender
	}
	return caller, true
}

// adapterAt follows code of an adapter [begin, end) from pc to the jump to what is called, by way of a register: the first
// way without a call. The others are those on which an adapter is not entered.
func adapterAt(w *unwind.Walker, code []byte, pc, begin, end uint64) (place adapterPlace, ok bool) {
	a, sender := w.Arch(), codeRegsOf(w.Arch()).sender
	ways, from, seen := [maxAdapterPaths]uint64{pc}, 0, 1
	for ; from < seen; from++ {
		place = adapterPlace{noted: true}
		told := false // where the return address is
		var in isa.Inst
		for at, n := ways[from], 0; n < maxAdapterInsts && at-pc < uint64(len(code)); n++ {
			rest := code[at-pc:]
			if !mcode.Decode(a, rest, at, &in) {
				break
			}
			switch inst := rest[:in.Len]; {
			case bytes.Equal(inst, popsReturn):
				told = true
			case !told && (bytes.Equal(inst, pushesReturn) || bytes.Equal(inst, storesReturn)):
				told, place.popped = true, true
			}
			for i := range in.Ops[:in.NumOps] {
				switch op := &in.Ops[i]; {
				case op.Kind == isa.Set && op.Dst == a.SP && op.Src != a.SP:
					n = maxAdapterInsts // behind such a call, whose registers are still on the stack
				case op.Kind == isa.Set && op.Dst == sender && op.Src == a.SP:
					place.noted = false
				}
			}
			next := at + uint64(in.Len)
			switch {
			case n == maxAdapterInsts:
			case in.Flow == isa.IndirectJump:
				return place, true
			case in.Flow == isa.Jump:
				if next = in.Target; next-begin >= end-begin {
					n = maxAdapterInsts // nothing is called
				}
			case in.Flow == isa.CondJump:
				if seen < len(ways) {
					ways[seen] = in.Target
					seen++
				}
			case in.Flow != isa.Next:
				n = maxAdapterInsts
			}
			at = next // which may be further than is read, or back
		}
	}
	return place, false
}
