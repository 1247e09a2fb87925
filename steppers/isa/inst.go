package isa

import "github.com/swbpf/swbpf/procstate"

// Flow tells where execution goes on after an instruction.
type Flow uint8

// The flows.
const (
	Next         Flow = iota // at the next instruction
	Jump                     // at Target
	CondJump                 // at Target or at the next instruction
	Call                     // at Target, and later at the next instruction
	IndirectJump             // at an address in a register or in memory
	IndirectCall             // the same for a call
	Return                   // at the return address
	Trap                     // nowhere: the instruction faults
	Syscall                  // in the kernel, and later at the next instruction
)

// OpKind is what an operation does.
type OpKind uint8

// The kinds of operation. Memory operands are addressed by a register and an
// offset, words of memory on x86 also with an index; operands addressed in
// other ways are left out (stores) or make a Clobber (loads).
const (
	Set     OpKind = iota // Dst = Src + Imm
	Const                 // Dst = Imm
	Load                  // Dst = the word at Src + Imm
	Store                 // the word at Dst + Imm = Src
	Scratch               // Size bytes at Dst + Imm = anything
	Add                   // Dst = Dst + Src
	Sub                   // Dst = Dst - Src
	Align                 // Dst = Dst & Imm
	Swap                  // Dst and Src change places
	Compare               // sets the flags by Dst - Src
	Clobber               // Dst = anything
	Sign                  // Dst is given, or freed of, a pointer authentication code

	SetIndexed   // Dst = Src + Index*Scale + Imm
	LoadIndexed  // Dst = the word at Src + Index*Scale + Imm
	StoreIndexed // the word at Dst + Index*Scale + Imm = Src
)

// Temp is no register of x86: it stands for the value that an instruction
// moves from one word of memory to another.
const Temp procstate.Reg = procstate.MaxRegs - 1

// Op is one operation of an instruction.
type Op struct {
	Kind     OpKind
	Dst, Src procstate.Reg
	Size     uint8         // bytes, for Scratch
	Index    procstate.Reg // of the kinds with an index
	Scale    uint8
	Imm      int64
}

// MaxOps is the largest number of operations of an instruction.
const MaxOps = 5

// Inst is a decoded instruction.
type Inst struct {
	Len    uint8 // bytes
	Flow   Flow
	Equal  bool          // a CondJump that is taken when Compare found inequality, or falls through on equality
	Reg    procstate.Reg // register of an indirect jump or call; NoReg for one through memory
	Base   procstate.Reg // register that the address of a memory operand counts from; NoReg when there is none
	NumOps uint8
	Pop    uint16 // bytes that a Return takes off the stack beyond the return address

	// Target is the address that a direct branch goes to, in the address
	// space of pc; for an indirect one through memory at a fixed address,
	// the address of that word. 0 is neither.
	Target uint64
	Table  uint64 // of an IndirectJump to one of several words of memory: the address of the first; 0 is none
	Word   bool   // of an IndirectJump through memory: at a register and a distance, which may be 0
	Member bool   // the same, and the distance is one as in no table
	Kernel bool   // of an IndirectCall: it is how i386 enters the kernel, which leaves all registers but EAX
	Ops    [MaxOps]Op
}

func (in *Inst) add(op Op) {
	if in.NumOps < MaxOps {
		in.Ops[in.NumOps] = op
		in.NumOps++
	}
}

// Ends reports whether the instruction after this one is not executed next.
func (in *Inst) Ends() bool {
	switch in.Flow {
	case Jump, IndirectJump, Return, Trap:
		return true
	}
	return false
}

// Decoder decodes the first instruction of code, which is at address pc, into
// in. It reports whether there is a whole valid instruction; in is undefined
// when there is not.
type Decoder func(code []byte, pc uint64, in *Inst) bool

// DecoderFor returns the decoder of an architecture, or nil when there is none.
func DecoderFor(a *procstate.Arch) Decoder {
	switch a {
	case procstate.AMD64:
		return DecodeAMD64
	case procstate.ARM64:
		return DecodeARM64
	case procstate.I386:
		return DecodeI386
	}
	return nil
}
