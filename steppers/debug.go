package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Debug walks through code that has DWARF call frame information, in
// .eh_frame or .debug_frame. It keeps no state of a process and can serve many
// Walkers of one goroutine, each with its own address space. The zero value has
// tables of its own.
type Debug struct {
	tables   *unwind.Tables
	cache    []debugEntry
	kept     keptRegs
	returns  mcode.VaddrCache // facts about return addresses
	doubts   mcode.VaddrCache // what there is against the row of an instruction
	resuming resuming
	sizes    mcode.VaddrCache // from SP to the CFA, in words
	paths    framePaths
	pathCode []byte          // code on them
	code     [maxSilent]byte // room for what is read
	buf      [mcode.MaxCallLen]byte
	calls    mcode.VaddrCache // whether a return address follows a call, of i386
	thunks   mcode.VaddrCache // whether that is one of a thunk
}

// debugEntry is a slot of the cache: the rule for a link-time address of an
// image.
type debugEntry struct {
	key  uint64 // packed image and address; 0 when the slot is empty
	rule *unwind.Rule
}

const (
	debugSlotBits = 14
	// A key holds 44 bits of a link-time address and 20 bits of 1 + the
	// index of the image. What does not fit is not cached.
	debugVaddrBits = 44
)

// NewDebug makes a Debug stepper that finds rules in tables, which other
// steppers may share; nil are tables of its own.
func NewDebug(tables *unwind.Tables) *Debug { return &Debug{tables: tables} }

// begin makes what a Debug needs from its first frame on.
func (d *Debug) begin() {
	d.cache = make([]debugEntry, 1<<debugSlotBits)
	if d.tables == nil {
		d.tables = unwind.NewTables()
	}
}

// Name implements unwind.FrameStepper.
func (d *Debug) Name() string { return "debug" }

// Priority implements unwind.FrameStepper.
func (d *Debug) Priority() unwind.Priority { return unwind.PriorityDebug }

// CallerFrame implements unwind.FrameStepper. Code without CFI is NotMe, and
// so is code whose CFI tells of where it is about to jump to, or not of where
// it is about to return to, or nothing of what it has done to SP; an undefined
// return address is StackBottom, and so is a null where the ABIs end a stack; Failed tells that the CFI that covers the code
// is malformed or uses what is not supported, or that a register or memory it
// needs is not known.
func (d *Debug) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	addr := in.LookupPC()
	m := w.MappingAt(addr)
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	if d.cache == nil {
		d.begin()
	}
	r := d.rule(m.Image, addr-m.Bias)
	if in.Flags&unwind.Interrupted == 0 && d.putThere(m, in.PC()) {
		in.Flags |= unwind.Instrumentation | unwind.Interrupted // its first instruction is the next
		return unwind.Failed, unwind.ReturnReplaced
	}
	doubt := d.doubt(m.Image, addr-m.Bias, r, in.Flags&unwind.Interrupted != 0)
	switch doubt {
	case doubtThunk:
		return d.leaveThunk(w, m, r, in, out)
	case doubtLeaf:
		return d.leaveLeaf(w, in, out)
	case doubtRaises:
		return d.leaveRaise(w, m, in, out)
	case doubtLeaves:
		off, ok := d.takenOff(m.Image, addr-m.Bias, r)
		if !ok {
			return unwind.NotMe, nil
		}
		r = off
	}
	v, err := r.CallerFrame(w, in, out)
	if err == unwind.NoRegister && d.takeSP(w, m, r, in) {
		v, err = r.CallerFrame(w, in, out)
	}
	if doubt == doubtSilent && v != unwind.StackBottom || v == unwind.Success && !d.mend(w, m.Image, addr-m.Bias, doubt, r, in, out) {
		*out = unwind.Frame{}
		return unwind.NotMe, nil
	}
	if v == unwind.Success && d.misleads(w, m.Image, in.PC()-m.Bias, in, out) {
		*out = unwind.Frame{}
		return unwind.NotMe, nil
	}
	if v == unwind.Success && in.Flags&unwind.Signal != 0 && d.wasCalled(w, m, in, out.PC()) {
		in.Flags &^= unwind.Signal
		out.Flags &^= unwind.Interrupted
	}
	if v == unwind.Success && in.Flags&unwind.Interrupted != 0 {
		d.carry(w, in, out)
	}
	if v == unwind.Success && r.SwitchesStack(w.Arch()) {
		out.Flags |= unwind.StackSwitched
	}
	switch {
	case v != unwind.Success || !r.SavesResults():
	case !behindCall(w, d.buf[:], out.PC()):
		out.Flags |= unwind.Interrupted // it goes on at a landing pad
	case r.CFARegister() != w.Arch().SP && r.CFARegister() != w.Arch().FP: // there already
	case d.resuming.at(m, in.PC()):
		d.resuming.distrust(w, d, in, out)
	}
	if r.Jumps(w.Arch()) && (err == unwind.MemoryUnreadable || v == unwind.Success && out.SP()-in.SP() > uint64(w.Arch().AddressWidth)) {
		*out = unwind.Frame{}
		return unwind.NotMe, nil // not there yet, or not on this stack, as code by GHC: the frame that SP is in is still the truth
	}
	if v == unwind.Success && (out.PC() == 0 || d.returnsToItself(m, in, out)) && d.endsStack(w, in, out) {
		return unwind.StackBottom, nil
	}
	return v, err
}

// takeSP gives a frame in a call the register that the next instruction makes of SP, which the call does not preserve, if its rule is
// then the same: as in Wine's dispatcher of calls, it is the same before the call, where SP was made of it.
func (d *Debug) takeSP(w *unwind.Walker, m *procstate.Mapping, r *unwind.Rule, in *unwind.Frame) bool {
	var next isa.Inst
	if in.Flags&unwind.Interrupted != 0 || m.Image.ReadVaddr(d.buf[:], in.PC()-m.Bias) != nil || !mcode.Decode(w.Arch(), d.buf[:], in.PC(), &next) {
		return false
	}
	op := &next.Ops[0]
	if next.NumOps != 1 || op.Kind != isa.Set || op.Src != w.Arch().SP || op.Dst == w.Arch().SP || d.rule(m.Image, in.PC()+uint64(next.Len)-m.Bias) != r {
		return false
	}
	if _, known := in.Regs.Value(op.Dst); known {
		return false
	}
	in.Regs.Set(op.Dst, in.SP()+uint64(op.Imm))
	return true
}

// wasCalled reports whether a return address is behind a call of the function that a frame runs. No trampoline of a signal is
// called: OCaml 5 marks all assembly of its runtime as such (runtime/amd64.S), so that debuggers expect other stacks there.
func (d *Debug) wasCalled(w *unwind.Walker, m *procstate.Mapping, in *unwind.Frame, ra uint64) bool {
	from := w.MappingAt(ra - 1)
	if from == nil || from.Image == nil || from.Image.ReadVaddr(d.buf[:], ra-from.Bias-mcode.MaxCallLen) != nil {
		return false
	}
	target, direct, ok := mcode.CallBefore(w.Arch(), d.buf[:], ra)
	start, _, known := d.tables.For(m.Image).FunctionAt(in.LookupPC() - m.Bias)
	return ok && direct && known && target == start+m.Bias
}

// returnsToItself reports whether a frame's return address is where its function begins. Whoever switches
// to a new stack by a return has the link register say so then, as coroutines of Ruby do from 3.3 on
// (coroutine/arm64/Context.S).
func (d *Debug) returnsToItself(m *procstate.Mapping, in, out *unwind.Frame) bool {
	const far = 4 << 10
	if m.Image.Arch().LR == procstate.NoReg || in.PC()-out.PC() > far {
		return false
	}
	start, _, known := d.tables.For(m.Image).FunctionAt(in.LookupPC() - m.Bias)
	return known && out.PC() == start+m.Bias
}

// endsStack reports whether a frame whose return address is null, or where it begins, is the first of its
// stack, as the ABIs have it: whoever makes a stack, as valgrind does for its threads, puts
// a null there and clears the frame pointer. GCC's runtime of Go leaves that as it is
// (libgo/runtime/go-context.S), but its stacks end where a page does, whatever is behind that. Where a walk has
// gone astray there are many nulls. So all frames up to there must be known by rule, and this one must be in a
// call, with both words as its CFI says.
func (d *Debug) endsStack(w *unwind.Walker, in, out *unwind.Frame) bool {
	const no = unwind.Interrupted | unwind.Heuristic | unwind.Signal | unwind.Instrumentation
	const page = 4096
	fp, known := out.Regs.Value(w.Arch().FP)
	return (known && fp == 0 || out.PC() == 0 && out.SP()%page == 0) && in.Flags&no == 0 && !w.Guessed() && out.PCLocation.Kind == unwind.LocationAddress &&
		behindCall(w, d.buf[:], in.PC())
}

// putThere reports whether no call can have left a return address, and it is
// the start of a function: instrumentation, such as a function tracer that
// wants to see functions return, has put it in place of the original. Its rule
// has been asked for before, which mostly tells enough.
func (d *Debug) putThere(m *procstate.Mapping, pc uint64) bool {
	const ordinary, put = 1, 2
	vaddr := pc - m.Bias
	fact, ok := d.returns.Get(m.Image, vaddr)
	if !ok {
		fact = ordinary
		code, table := d.buf[:], d.tables.For(m.Image)
		if !table.IsInside(vaddr) && m.Image.ReadVaddr(code, vaddr-mcode.MaxCallLen) == nil {
			if _, _, call := mcode.CallBefore(m.Image.Arch(), code, vaddr); !call {
				if start, _, known := table.FunctionAt(vaddr); known && start == vaddr {
					fact = put
				}
			}
		}
		d.returns.Put(m.Image, vaddr, fact)
	}
	return fact == put
}

// carry gives the caller of an interrupted frame the register that its CFA is found
// from, where a call does not preserve it but the callee has left it alone.
func (d *Debug) carry(w *unwind.Walker, in, out *unwind.Frame) {
	m := w.MappingAt(out.PC() - 1)
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() || !m.Contains(in.PC()) {
		return // a callee in another file is not looked at
	}
	reg := d.rule(m.Image, out.PC()-1-m.Bias).CFARegister()
	if _, known := out.Regs.Value(reg); !known && reg != procstate.NoReg && reg != w.Arch().SP {
		d.kept.carry(w, m, in, out, reg)
	}
}

// rule finds the rule for a link-time address of an image.
func (d *Debug) rule(img *procstate.Image, vaddr uint64) *unwind.Rule {
	image := uint64(img.Index) + 1
	if vaddr>>debugVaddrBits != 0 || image >= 1<<(64-debugVaddrBits) {
		return d.tables.For(img).Rule(vaddr)
	}
	key := image<<debugVaddrBits | vaddr
	e := &d.cache[key*0x9e3779b97f4a7c15>>(64-debugSlotBits)]
	if e.key == key {
		return e.rule
	}
	e.key, e.rule = key, d.tables.For(img).Rule(vaddr)
	return e.rule
}
