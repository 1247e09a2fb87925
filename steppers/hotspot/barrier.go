package hotspot

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Barriers are what code does for a garbage collector where it reads or stores the address of an object, and where a method
// is entered. When there is more to do it calls functions of C, from behind the end of a method, below what it has stored of
// registers (SaveLiveRegisters), or from a stub, below a word that takes another SP (generate_method_entry_barrier). C1 pushes
// what it asks a stub about types (Runtime1::slow_subtype_check).

// storedPlace is how many bytes of the stack a compiled method has taken beneath its frame where a call returns to.
type storedPlace struct {
	pc, begin uint64 // of the place, and of the method's code
	id        uint32 // of the method
	bytes     uint32
}

const maxBarrierInsts = 128 // that load registers

// storedForBarrier returns how many bytes of the stack there are beneath the frame of a method where it calls for a barrier,
// or with words that it has pushed: before it jumps, forks or calls again it gives them up, and the frame stays.
func (s *Stepper) storedForBarrier(w *unwind.Walker, m *procstate.Mapping, b *codeBlob, pc uint64) uint64 {
	place := &s.stored[pc*0x9e3779b97f4a7c15>>(64-8)]
	if *place != (storedPlace{pc, b.begin, b.id, place.bytes}) {
		var buf [maxBarrierInsts * 8]byte
		code := mcode.Read(w, m, pc, buf[:min(uint64(len(buf)), b.end-pc)])
		*place = storedPlace{pc, b.begin, b.id, storedBytes(w.Arch(), code, pc, b)}
	}
	return uint64(place.bytes)
}

// storedBytes is storedForBarrier by the code.
func storedBytes(a *procstate.Arch, code []byte, pc uint64, b *codeBlob) uint32 {
	var in isa.Inst
	at := mcode.FirstPathState(a, pc)
	for n := 0; n < maxBarrierInsts && mcode.Decode(a, code, at.PC, &in); n++ {
		switch in.Flow {
		case isa.Next:
		case isa.Jump, isa.CondJump, isa.Call:
			sp, fp := at.Regs[a.SP], at.Regs[a.FP]
			if sp.Base == mcode.PathSP && !sp.InMemory && sp.Off > 0 && sp.Off%8 == 0 && fp == (mcode.PathValue{Base: mcode.PathFP}) &&
				(in.Flow == isa.Call || in.Target-b.begin < b.end-b.begin) {
				return uint32(sp.Off)
			}
			return 0
		default:
			return 0
		}
		at.Apply(a, &in)
		at.PC += uint64(in.Len)
		code = code[in.Len:]
	}
	return 0
}

// entersBarrier is how the stub begins that a method calls where it is entered: it pushes a word, and makes a frame.
var entersBarrier = []byte{0x68, 0xff, 0xff, 0xff, 0xff, 0x55, 0x48, 0x8b, 0xec} // push -1; push rbp; mov rbp,rsp

// inEntryBarrier walks from a call in that stub, in b. The caller is right behind a call of it.
func (s *Stepper) inEntryBarrier(w *unwind.Walker, b *codeBlob, in, out *unwind.Frame) bool {
	const word, most = 8, 1 << 10 // bytes of its frame
	arch, mem, fp := w.Arch(), w.ProcessState(), in.FP()
	if arch != procstate.AMD64 || fp-in.SP() > most || fp%8 != 0 {
		return false
	}
	callerFP, ok1 := mem.ReadWord(fp)
	ra, ok2 := mem.ReadWord(fp + 2*word)
	if !ok1 || !ok2 || !javacode.MayReturnTo(w, ra, s.buf[:]) {
		return false
	}
	const callLen = 5
	from, to := w.MappingAt(ra-callLen), w.MappingAt(in.PC())
	if from == nil || to == nil {
		return false
	}
	call := mcode.Read(w, from, ra-callLen, s.buf[:callLen])
	if len(call) < callLen || call[0] != 0xe8 {
		return false
	}
	stub := ra + uint64(int64(int32(binary.LittleEndian.Uint32(call[1:]))))
	if stub-b.begin >= in.PC()-b.begin || in.PC()-stub > most {
		return false
	}
	if code := mcode.Read(w, to, stub, s.buf[:len(entersBarrier)]); string(code) != string(entersBarrier) {
		return false
	}
	out.SetPC(arch, ra)
	out.SetSP(arch, fp+3*word)
	out.SetFP(arch, callerFP)
	out.PCLocation, out.FPLocation = unwind.InMemory(fp+2*word), unwind.InMemory(fp)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return true
}
