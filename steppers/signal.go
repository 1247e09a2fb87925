package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// SigHandler walks from a signal trampoline to the frame that the
// signal interrupted. It knows a trampoline by its instructions, so that it
// needs neither names nor CFI: the restorers of glibc, musl and the Go
// runtime, and those of the vdso, are all the same system call. Every
// register of the interrupted frame is read from the kernel's signal frame.
type SigHandler struct {
	seen mcode.VaddrCache
	buf  [32]byte
}

// NewSigHandler makes a SigHandler.
func NewSigHandler() *SigHandler { return &SigHandler{} }

// Name implements unwind.FrameStepper.
func (s *SigHandler) Name() string { return "signal" }

// Priority implements unwind.FrameStepper.
func (s *SigHandler) Priority() unwind.Priority { return unwind.PrioritySignalHandler }

// trampoline tells which system call a trampoline makes, and so which frame
// the kernel built.
type trampoline = uint8

const (
	noTrampoline  trampoline = iota
	rtSigreturn              // rt_sigreturn
	sigreturn                // sigreturn of i386, the signal number on top of the stack
	sigreturnLate            // the same, the signal number popped

	// inSyscall is set behind the system call, which never returns: a thread is
	// there while the kernel carries it out.
	inSyscall trampoline = 0x80
)

// CallerFrame implements unwind.FrameStepper.
func (s *SigHandler) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	arch := w.Arch()
	mem := w.ProcessState()
	// The stack is in the cache already, the code is not: look there first.
	// A kernel frame starts with small flags and a nil link, on AArch64 behind
	// a struct siginfo that is filled only for a handler with SA_SIGINFO, and
	// on i386 with a signal number.
	sp := in.SP()
	switch arch {
	case procstate.AMD64:
		if flags, ok := mem.ReadWord(sp); !ok || flags > 0xff {
			return unwind.NotMe, nil
		}
		if link, ok := mem.ReadWord(sp + 8); !ok || link != 0 {
			return unwind.NotMe, nil
		}
	case procstate.ARM64:
		if flags, ok := mem.ReadWord(sp + 128); !ok || flags > 0xff {
			return unwind.NotMe, nil
		}
		if link, ok := mem.ReadWord(sp + 128 + 8); !ok || link != 0 {
			return unwind.NotMe, nil
		}
	case procstate.I386:
		if sig, ok := mem.ReadWord(sp); !ok || (sig-1 >= 64 && in.Flags&unwind.Interrupted == 0) {
			return unwind.NotMe, nil
		}
	default:
		return unwind.NotMe, nil
	}
	t, _ := s.trampolineAt(w, in.PC())
	if t&inSyscall != 0 && !isInSyscall(w, in, t) {
		return unwind.NotMe, nil
	}
	switch t &^ inSyscall {
	case rtSigreturn:
	case sigreturn:
		return sigreturnI386(w, in, out, sp+4)
	case sigreturnLate:
		return sigreturnI386(w, in, out, sp)
	default:
		return unwind.NotMe, nil
	}
	switch arch {
	case procstate.AMD64:
		return ucontextFrame(w, in, out, sp, &ucontextAMD64)
	case procstate.ARM64:
		return ucontextFrame(w, in, out, sp+128, &ucontextARM64)
	}
	uc, ok := mem.ReadWord(sp + 8)
	if !ok {
		return unwind.Failed, unwind.MemoryUnreadable
	}
	return ucontextFrame(w, in, out, uc, &ucontextI386)
}

// isInSyscall reports whether a frame right behind a trampoline is in its system
// call, and not in a function that begins there: the code segment in the
// kernel's frame is that of user code, or, on AArch64, the call's number is in
// its register. The kernel may have restored some of the other registers.
func isInSyscall(w *unwind.Walker, in *unwind.Frame, t trampoline) bool {
	if in.Flags&unwind.Interrupted == 0 {
		return false
	}
	mem, at := w.ProcessState(), in.SP()
	switch w.Arch() {
	case procstate.ARM64:
		return in.Regs.Raw(8) == 139
	case procstate.AMD64:
		at += ucontextAMD64.regs + 8*18
	case procstate.I386:
		if t&^inSyscall == rtSigreturn {
			uc, _ := mem.ReadWord(at + 8)
			at = uc + 20
		}
		at += 4 * 15
	}
	cs, ok := mem.ReadWord(at)
	// __USER_CS, __USER32_CS, and __USER_CS of 32-bit kernels
	return ok && (cs&0xffff == 0x33 || cs&0xffff == 0x23 || cs&0xffff == 0x73)
}

// trampolineAt tells what the code at pc is; known is false when it cannot be
// read now. The handler returns to the very
// start of the trampoline, so pc itself is looked at, never the byte before.
func (s *SigHandler) trampolineAt(w *unwind.Walker, pc uint64) (t trampoline, known bool) {
	m := w.MappingAt(pc)
	if m == nil {
		return noTrampoline, false
	}
	if m.Image != nil {
		if !maybeEntry(m.Image, pc-m.Bias) {
			return noTrampoline, true
		}
		if t, ok := s.seen.Get(m.Image, pc-m.Bias); ok {
			return t, true
		}
	}
	// Some bytes before pc, for a thread that was interrupted between the
	// instructions of the trampoline or in its system call.
	before := min(trampolineBefore, pc-m.Start)
	code := mcode.Read(w, m, pc-before, s.buf[:])
	if uint64(len(code)) <= before {
		return noTrampoline, false // perhaps later
	}
	t = classifyTrampoline(w.Arch(), code[:before], code[before:])
	if m.Image != nil {
		s.seen.Put(m.Image, pc-m.Bias, t)
	}
	return t, true
}

// The instructions of a trampoline that load the number of the system call,
// each followed by the call itself.
var (
	movRt64Long  = []byte{0x48, 0xc7, 0xc0, 15, 0, 0, 0}    // mov $15,%rax
	movRt64      = []byte{0xb8, 15, 0, 0, 0}                // mov $15,%eax
	syscall64    = []byte{0x0f, 0x05}                       // syscall
	movRtARM64   = []byte{0x68, 0x11, 0x80, 0xd2}           // mov x8,#139
	svcARM64     = []byte{0x01, 0x00, 0x00, 0xd4}           // svc #0
	movRtI386    = []byte{0xb8, 173, 0, 0, 0}               // mov $173,%eax
	movSigI386   = []byte{0xb8, 119, 0, 0, 0}               // mov $119,%eax
	popEAX       = []byte{0x58}                             // pop %eax
	int80        = []byte{0xcd, 0x80}                       // int $0x80
	popMovI386   = append(popEAX[:1:1], movSigI386...)      // pop %eax; mov $119,%eax
	trampolineOf = map[*procstate.Arch][]trampolinePattern{ // read only
		procstate.AMD64: {{movRt64Long, syscall64, rtSigreturn}, {movRt64, syscall64, rtSigreturn}},
		procstate.ARM64: {{movRtARM64, svcARM64, rtSigreturn}},
		procstate.I386:  {{movRtI386, int80, rtSigreturn}},
	}
)

// trampolineBefore is the most that a trampoline has before a PC in it, in bytes.
const trampolineBefore = 9

type trampolinePattern struct {
	load, call []byte
	kind       trampoline
}

// classifyTrampoline looks at the code on both sides of a PC.
func classifyTrampoline(arch *procstate.Arch, before, at []byte) trampoline {
	for _, p := range trampolineOf[arch] {
		if rest, ok := bytes.CutPrefix(at, p.load); ok && bytes.HasPrefix(rest, p.call) {
			return p.kind
		}
		if bytes.HasPrefix(at, p.call) && bytes.HasSuffix(before, p.load) {
			return p.kind
		}
		if rest, ok := bytes.CutSuffix(before, p.call); ok && bytes.HasSuffix(rest, p.load) {
			return p.kind | inSyscall
		}
	}
	if arch == procstate.I386 {
		if rest, ok := bytes.CutPrefix(at, popMovI386); ok && bytes.HasPrefix(rest, int80) {
			return sigreturn
		}
		if rest, ok := bytes.CutPrefix(at, movSigI386); ok && bytes.HasPrefix(rest, int80) && bytes.HasSuffix(before, popEAX) {
			return sigreturnLate
		}
		if bytes.HasPrefix(at, int80) && bytes.HasSuffix(before, popMovI386) {
			return sigreturnLate
		}
		if rest, ok := bytes.CutSuffix(before, int80); ok && bytes.HasSuffix(rest, popMovI386) {
			return sigreturnLate | inSyscall
		}
	}
	return noTrampoline
}

// ucontextLayout describes the kernel's struct ucontext of an architecture.
type ucontextLayout struct {
	stack uint64          // offset of uc_stack
	regs  uint64          // offset of the first of slots
	slots []procstate.Reg // the register in each word from there on; NoReg to skip
}

// From arch/*/include/uapi/asm/{ucontext,sigcontext}.h of the kernel.
var (
	ucontextAMD64 = ucontextLayout{16, 40, []procstate.Reg{
		8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16}}
	ucontextARM64 = ucontextLayout{16, 184, []procstate.Reg{
		0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
		21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}}
	ucontextI386 = ucontextLayout{8, 20 + 16, sigcontextI386}

	// sigcontextI386 is struct sigcontext_32 after its four segment registers.
	sigcontextI386 = []procstate.Reg{7, 6, 5, 4, 3, 2, 1, 0, procstate.NoReg, procstate.NoReg, 8}
)

// ucontextFrame fills out from the struct ucontext at run-time address uc.
func ucontextFrame(w *unwind.Walker, in, out *unwind.Frame, uc uint64, l *ucontextLayout) (unwind.Verdict, error) {
	v, err := sigcontextFrame(w, in, out, uc+l.regs, l.slots)
	if v != unwind.Success {
		return v, err
	}
	// uc_stack is the alternate stack as it was set when the signal came.
	width := uint64(w.Arch().AddressWidth)
	mem := w.ProcessState()
	base, ok1 := mem.ReadWord(uc + l.stack)
	size, ok2 := mem.ReadWord(uc + l.stack + 2*width)
	if ok1 && ok2 && in.SP()-base < size && out.SP()-base >= size {
		out.Flags |= unwind.StackSwitched
	}
	return v, nil
}

// sigreturnI386 fills out from the struct sigcontext of a frame without
// siginfo.
func sigreturnI386(w *unwind.Walker, in, out *unwind.Frame, sc uint64) (unwind.Verdict, error) {
	v, err := sigcontextFrame(w, in, out, sc+16, sigcontextI386)
	if v == unwind.Success && out.SP() <= in.SP() {
		out.Flags |= unwind.StackSwitched // such a frame does not tell of the alternate stack
	}
	return v, err
}

// sigcontextFrame fills out with the registers stored from run-time address
// addr on.
func sigcontextFrame(w *unwind.Walker, in, out *unwind.Frame, addr uint64, slots []procstate.Reg) (unwind.Verdict, error) {
	arch := w.Arch()
	mem := w.ProcessState()
	width := uint64(arch.AddressWidth)
	for i, r := range slots {
		if r == procstate.NoReg {
			continue
		}
		at := addr + uint64(i)*width
		v, ok := mem.ReadWord(at)
		if !ok {
			return unwind.Failed, unwind.ReadFailure(mem, at)
		}
		switch r {
		case arch.PC:
			out.SetPC(arch, v)
			out.PCLocation = unwind.InMemory(at)
		case arch.SP:
			out.SetSP(arch, v)
			out.SPLocation = unwind.InMemory(at)
		case arch.FP:
			out.SetFP(arch, v)
			out.FPLocation = unwind.InMemory(at)
		default:
			out.Regs.Set(r, v)
		}
	}
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	out.Flags = unwind.Interrupted
	in.Flags |= unwind.Signal
	return unwind.Success, nil
}
