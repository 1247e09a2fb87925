package loader

import (
	"runtime"
	"sync/atomic"

	"github.com/cilium/ebpf/btf"

	"github.com/swbpf/swbpf/gen"
)

// kernelStacks unwinds the kernel part of samples whose kernel stack was copied
// (bpf/kernelstack.h), with the kernel's own tables.
//
// What comes out is what bpf_get_stack gives, and that is seen to. At first samples, of
// the recorder itself (tryKernelStacks), have both; only when kernelChecks of them in a
// row were the same is the kernel not asked any more. From then on one in KERNEL_CHECKS has
// both, and with the first difference the kernel is asked again, for good.
type kernelStacks struct {
	layout <-chan kernelLayout // closed without one where the kernel is of another kind
	rings  *rings
	state  kernelState
	same   int // stacks compared since it is kernelChecked, that were the same
	mem    *kernelMemory
	orc    orcRules

	pcs [gen.SamplerLimitsMAX_KERNEL_FRAMES]uint64
}

// kernelState is what the rings are told: enum kernel_stacks; or kernelUntried.
type kernelState uint64

const (
	kernelAsked   = kernelState(gen.SamplerKernelStacksKERNEL_ASKED)
	kernelChecked = kernelState(gen.SamplerKernelStacksKERNEL_CHECKED)
	kernelCopied  = kernelState(gen.SamplerKernelStacksKERNEL_COPIED)
	kernelUntried = ^kernelState(0) // asked, as long as there is no sample in the kernel
)

// kernelChecks is how many stacks are compared at first.
const kernelChecks = 8

// A part of struct pt_regs as the kernel lays it on its stack: offsets.
const (
	ptR13, ptBP, ptR10, ptDX, ptDI = 16, 32, 56, 96, 112
	ptIP, ptSP                     = 128, 152
)

// newKernelStacks returns nil for a kernel that is too old. The rings are still to be
// set.
func newKernelStacks(types *btf.Cache) *kernelStacks {
	if runtime.GOARCH != "amd64" || !kernelSince(6, 4) {
		return nil
	}
	found := make(chan kernelLayout, 1)
	go func() { // it takes a while, and is not needed before the first sample
		defer close(found)
		kernel, err := types.Kernel()
		if err != nil {
			return
		}
		if layout, err := orcLayout(kernel); err == nil {
			found <- layout
		}
	}()
	return &kernelStacks{layout: found, state: kernelUntried}
}

// complete puts the kernel part into a sample.
func (k *kernelStacks) complete(s *Sample) {
	if s.kernelRegs == nil {
		if len(s.Kernel) > 0 && k.state == kernelUntried {
			k.begin()
		}
		return
	}
	if len(s.Kernel) == 0 {
		if k.state == kernelAsked { // from before the difference was met
			s.Kernel = append(k.pcs[:0], s.kernelRegs.Ip)
			return
		}
		var known bool
		if s.Kernel, known = k.walk(s); !known {
			k.set(kernelChecked)
		}
		return
	}
	walked, _ := k.walk(s)
	if !k.isSame(walked, s.Kernel) {
		k.orc.forget() // another module may be where one was
		if walked, _ = k.walk(s); !k.isSame(walked, s.Kernel) {
			k.set(kernelAsked)
			return
		}
	}
	s.Kernel = walked
	if k.state == kernelChecked {
		if k.same++; k.same == kernelChecks {
			k.set(kernelCopied)
		}
	}
}

// isSame compares a stack walked here with the kernel's. Kernels may leave
// out frames of code that was made at run time.
func (k *kernelStacks) isSame(walked, asked []uint64) bool {
	for _, pc := range walked {
		switch {
		case len(asked) > 0 && pc == asked[0]:
			asked = asked[1:]
		case !k.orc.isGenerated(pc):
			return false
		}
	}
	return len(asked) == 0
}

// begin finds the tables.
func (k *kernelStacks) begin() {
	k.set(kernelAsked)
	layout, ok := <-k.layout
	if !ok {
		return
	}
	mem, err := openKernelMemory()
	if err != nil {
		return
	}
	k.mem = mem
	if orc, err := findORC(k.mem, layout); err == nil {
		k.orc = orc
		k.set(kernelChecked)
	}
}

func (k *kernelStacks) set(state kernelState) {
	k.state, k.same = state, 0
	for i := range k.rings.cpus {
		atomic.StoreUint64(k.rings.cpus[i].kernelStacks, uint64(state))
	}
}

func (k *kernelStacks) close() error {
	if k.mem == nil {
		return nil
	}
	return k.mem.close()
}

// orcRules are the tables.
type orcRules interface {
	// rule returns the entry for an instruction, false where there is none.
	rule(pc uint64) (orcRule, bool)
	// isGenerated reports whether code at an address was made at run time.
	isGenerated(pc uint64) bool
	// forget drops what is known of them: they may be others now.
	forget()
	// isText reports whether there may be code at an address.
	isText(pc uint64) bool
}

// kernelFrame is the state of a walk between two frames.
type kernelFrame struct {
	ip, sp, bp uint64
	signal     bool // ip is that of an instruction, not a return address

	// Registers saved by an interrupt: where, 0 for those at which it began; what of
	// them is there; and those of the interrupt before.
	regs, before             uint64
	hasRegs, full, hasBefore bool
}

// kernelWalk is a stack that is being walked.
type kernelWalk struct {
	begin     *gen.SamplerKernelRegs
	irq, task kernelPiece // of the stack for interrupts, if it began there; and the task's
	kernelFrame
}

// kernelPiece is the part of a stack that is in use.
type kernelPiece struct {
	addr  uint64
	words []uint64
}

func (p *kernelPiece) end() uint64 { return p.addr + 8*uint64(len(p.words)) }

func (p *kernelPiece) has(addr uint64) bool {
	return addr%8 == 0 && addr >= p.addr && addr < p.end()
}

// load reads a word of the stack.
func (w *kernelWalk) load(addr uint64) (uint64, bool) {
	switch {
	case w.task.has(addr):
		return w.task.words[(addr-w.task.addr)/8], true
	case w.irq.has(addr):
		return w.irq.words[(addr-w.irq.addr)/8], true
	}
	return 0, false
}

// reg returns a register, by its offset in struct pt_regs, where it is known.
func (w *kernelWalk) reg(offset uint64) (uint64, bool) {
	at := w.regs
	if !w.hasRegs {
		return 0, false
	}
	if !w.full {
		if !w.hasBefore {
			return 0, false
		}
		at = w.before
	}
	if at != 0 {
		return w.load(at + offset)
	}
	switch offset {
	case ptBP:
		return w.begin.Bp, true
	case ptDI:
		return w.begin.Di, true
	case ptDX:
		return w.begin.Dx, true
	case ptR10:
		return w.begin.R10, true
	}
	return w.begin.R13, true
}

// walk unwinds a kernel stack, as unwind_next_frame of arch/x86/kernel/unwind_orc.c
// does. It returns the code addresses, leaf first, valid until the next call, and false if
// they may not be all for want of an entry.
func (k *kernelStacks) walk(s *Sample) (pcs []uint64, known bool) {
	regs := s.kernelRegs
	w := kernelWalk{begin: regs, task: kernelPiece{regs.Sp, s.kernelStack}}
	if n := s.irqWords; n > 0 {
		w.irq = kernelPiece{regs.Sp, s.kernelStack[:n]}
		w.task = kernelPiece{s.kernelStack[n-1], s.kernelStack[n:]}
	}
	w.ip, w.sp, w.bp, w.signal, w.hasRegs, w.full = regs.Ip, regs.Sp, regs.Bp, true, true, true
	pcs = append(k.pcs[:0], w.ip)
	known = true
	for len(pcs) < len(k.pcs) {
		pc := w.ip
		if !w.signal {
			pc--
		}
		rule, ok := k.orc.rule(pc)
		if !ok {
			known = false
			if !k.orc.isGenerated(pc) {
				return pcs, false
			}
			// As BPF's, it has frame pointers.
			rule = orcRule{typ: orcTypeCall, spReg: orcBP, spOffset: 16, bpReg: orcPrevSP, bpOffset: -16}
		}
		if rule.typ == orcTypeEndOfStack {
			return pcs, true
		}
		ended, ok := w.step(rule)
		if ended {
			return pcs, true
		}
		if !ok || !k.orc.isText(w.ip) {
			return pcs, known
		}
		pcs = append(pcs, w.ip)
	}
	return pcs, true
}

// step goes to the caller's frame. It reports whether that is user code, and
// otherwise whether there is one.
func (w *kernelWalk) step(rule orcRule) (ended, ok bool) {
	before := w.sp
	sp, ok := w.frameEnd(rule)
	if !ok {
		return false, false
	}
	bp := w.bp
	switch rule.bpReg {
	case orcUndefined:
	case orcPrevSP:
		bp, ok = w.load(sp + uint64(int64(rule.bpOffset)))
	case orcBP:
		bp, ok = w.load(bp + uint64(int64(rule.bpOffset)))
	default:
		ok = false
	}
	switch rule.typ {
	case orcTypeCall:
		w.signal = rule.signal
		ip, found := w.load(sp - 8)
		w.ip, w.sp, ok = ip, sp, ok && found
		w.hasRegs, w.hasBefore = false, false
	case orcTypeRegs, orcTypeRegsPartial:
		at := sp
		if rule.typ == orcTypeRegsPartial {
			at -= ptIP
		}
		if at == w.task.end() { // where the registers of user code are
			return true, true
		}
		ip, found := w.load(at + ptIP)
		newSP, foundSP := w.load(at + ptSP)
		w.ip, w.sp, ok = ip, newSP, ok && found && foundSP
		if rule.typ == orcTypeRegs {
			w.hasBefore = false
		} else if w.full {
			w.before, w.hasBefore = w.regs, w.hasRegs
		}
		w.regs, w.hasRegs, w.full = at, true, rule.typ == orcTypeRegs
	default:
		return false, false
	}
	if rule.bpReg == orcUndefined {
		if saved, found := w.reg(ptBP); found {
			bp = saved
		}
	}
	w.signal = rule.signal
	w.bp = bp
	return false, ok && (w.sp > before || w.irq.has(before) && !w.irq.has(w.sp))
}

// frameEnd computes the stack pointer of the caller, or where registers are saved.
func (w *kernelWalk) frameEnd(rule orcRule) (sp uint64, ok bool) {
	offset := uint64(int64(rule.spOffset))
	switch rule.spReg {
	case orcSP:
		return w.sp + offset, true
	case orcBP:
		return w.bp + offset, true
	case orcSPIndirect:
		sp, ok = w.load(w.sp)
		return sp + offset, ok
	case orcBPIndirect:
		return w.load(w.bp + offset)
	case orcR10:
		return w.reg(ptR10)
	case orcR13:
		return w.reg(ptR13)
	case orcDI:
		return w.reg(ptDI)
	case orcDX:
		return w.reg(ptDX)
	}
	return 0, false
}
