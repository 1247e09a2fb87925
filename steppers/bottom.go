package steppers

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"path/filepath"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Bottom recognises the first frame of a stack by its code: the entry point
// of a program or a loader, a thread that clone has just made, and what a
// coroutine's function returns to: makecontext's, Boost's. It walks through no
// frame. Bottoms that say so themselves are left to the stepper that reads
// it: an undefined return address to Debug, goexit and its like to Go.
type Bottom struct {
	entries mcode.PerImage[mcode.Range]
	seen    mcode.VaddrCache
	buf     [bottomBefore + bottomAfter]byte
}

// bottomBefore and bottomAfter are how much code before a PC, and from it on, is
// looked at, in bytes.
const (
	bottomBefore = 48
	bottomAfter  = 80
)

// NewBottom makes a Bottom stepper.
func NewBottom() *Bottom { return &Bottom{} }

// Name implements unwind.FrameStepper.
func (b *Bottom) Name() string { return "bottom" }

// Priority implements unwind.FrameStepper.
func (b *Bottom) Priority() unwind.Priority { return unwind.PriorityBottom }

// CallerFrame implements unwind.FrameStepper. It never succeeds.
func (b *Bottom) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil {
		return unwind.NotMe, nil
	}
	if b.isEntry(m.Image, in.LookupPC()-m.Bias) {
		return unwind.StackBottom, nil
	}
	if in.IsTop() && in.Regs.Raw(syscallResult) == 0 {
		if start, _ := b.isStart(w, m, in.PC(), in.LookupPC(), fromSyscall); start {
			return unwind.StackBottom, nil
		}
	}
	// A system call leaves the PC behind it in RCX.
	if in.IsTop() && w.Arch() == procstate.AMD64 && in.Regs.Raw(rcx) == in.PC() {
		if start, _ := b.isStart(w, m, in.PC(), in.LookupPC(), inExit); start {
			return unwind.StackBottom, nil
		}
	}
	// The other bottoms leave marks in the registers, which are at hand,
	// whereas the code is not: a thread starts with a frame pointer of zero.
	// A coroutine has the address of its uc_link, close by on its stack, in a
	// register that calls preserve, or in the frame pointer that of the code where
	// it ends.
	link := uint64(0)
	switch w.Arch() {
	case procstate.AMD64:
		if v, known := in.Regs.Value(rbx); known {
			link = v - in.SP()
		}
	case procstate.ARM64:
		link = 1 // it holds uc_link itself; but its frame pointer is zero too
	}
	if in.FP() != 0 && (link > 1<<10 || link&7 != 0) && in.FP()-in.PC() > uint64(len(startCoroutine)) {
		return unwind.NotMe, nil
	}
	if start, _ := b.isStart(w, m, in.PC(), in.LookupPC(), 0); start {
		return unwind.StackBottom, nil
	}
	return unwind.NotMe, nil
}

// isEntry reports whether a link-time address is in the code at the entry
// point of a file, or in what runs a greenlet.
func (b *Bottom) isEntry(im *procstate.Image, vaddr uint64) bool {
	e := b.entries.Get(im)
	if e == nil {
		e = new(mcode.Range)
		if strings.Contains(filepath.Base(im.Path), "greenlet") {
			*e = greenletStart(im)
		} else {
			*e = entryRange(im)
		}
		b.entries.Put(im, e)
	}
	return vaddr-e.Start < e.End-e.Start
}

// greenletStart returns the function that runs a greenlet in the module of that name, from 2.0 on. A greenlet is on its
// thread's stack from there on: what is further out belongs to others, and is what the last one of these has left there.
func greenletStart(im *procstate.Image) (r mcode.Range) {
	im.EachSymbol(func(sym *procstate.ELFSymbol) bool {
		if sym.Size == 0 || !bytes.HasPrefix(sym.Name, []byte("_ZN8greenlet12UserGreenlet15inner_bootstrapE")) || bytes.HasSuffix(sym.Name, []byte(".cold")) {
			return true
		}
		r = mcode.Range{Start: sym.Value, End: sym.Value + sym.Size}
		return false
	})
	return r
}

// entryRange returns where the code at the entry point of a file lies; it is
// empty for one that is not a program or a loader.
func entryRange(img *procstate.Image) (r mcode.Range) {
	entry := img.Entry()
	if entry == 0 {
		return r
	}
	code := mcode.ReadFile(img, entry, entry+256)
	if _, interp := img.Prog(elf.PT_INTERP); !interp && img.Type() != elf.ET_EXEC && !startsLikeEntry(img.Arch(), code) {
		return r // linkers used to give libraries an entry of no meaning
	}
	// It ends where execution cannot go on, with a call of what follows it
	// directly, with a call right behind another: that of abort, or with one
	// that another function follows.
	var in isa.Inst
	r.Start, r.End = entry, entry
	called := false
	for mcode.Decode(img.Arch(), code, r.End, &in) {
		r.End += uint64(in.Len)
		code = code[in.Len:]
		if in.Ends() || in.Flow == isa.Call && (called || in.Target-r.End < 16 || beginsFunction(img.Arch(), code)) {
			break
		}
		called = in.Flow == isa.Call
	}
	return r
}

// beginsFunction reports whether what stands behind a call begins another function, or fills
// the gap before it: on AArch64, whether it makes room for a frame or signs a return address.
func beginsFunction(a *procstate.Arch, code []byte) bool {
	if a != procstate.ARM64 || len(code) < 4 {
		return startsFunction(a, code)
	}
	w := binary.LittleEndian.Uint32(code)
	return w&0xffc07fff == 0xa9807bfd || w&0xff8003ff == 0xd10003ff || // stp x29,x30,[sp,#n]!; sub sp,sp,#n
		w == 0xd503233f || w&^0xc0 == 0xd503241f // paciasp; bti
}

// startsLikeEntry reports whether code first takes the stack pointer, as the
// kernel left it, or clears the frame pointer: what entry points do and
// functions never.
func startsLikeEntry(a *procstate.Arch, code []byte) bool {
	var in isa.Inst
	for i := 0; i < 3 && mcode.Decode(a, code, 0, &in); i++ {
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Set && op.Src == a.SP && op.Dst != a.SP && op.Dst != a.FP:
				return true
			case op.Dst == a.FP && (op.Kind == isa.Const && op.Imm == 0):
				return true
			}
		}
		if in.Ends() || in.Flow != isa.Next {
			return false
		}
		code = code[in.Len:]
	}
	return false
}

// syscallResult is the register that a system call returns its result in: RAX, EAX or X0.
const syscallResult procstate.Reg = 0

// These mark the facts of an mcode.VaddrCache that hold only when the last system call
// returned 0, and when the thread is in one. Link-time addresses of user code do
// not reach them.
const (
	fromSyscall = 1 << 63
	inExit      = 1 << 62
)

// isStart looks at the code around a frame's PC, once. known is false when it
// cannot be read now. With fromSyscall it is asked whether the PC is in the start
// of a thread that clone has just returned to, with inExit whether it is behind
// the system call that ends one. Interrupted frames, whose lookup address is the PC itself, and
// others that are in a call never share a fact: the former are known by PC, the
// latter by the byte before it.
func (b *Bottom) isStart(w *unwind.Walker, m *procstate.Mapping, pc, lookup, when uint64) (start, known bool) {
	if !maybeEntry(m.Image, pc-m.Bias) {
		return false, true
	}
	key := (lookup - m.Bias) | when
	if fact, ok := b.seen.Get(m.Image, key); ok {
		return fact != 0, true
	}
	before := min(bottomBefore, pc-m.Start)
	code := mcode.Read(w, m, pc-before, b.buf[:])
	if uint64(len(code)) <= before {
		return false, false // perhaps later
	}
	switch when {
	case fromSyscall:
		start = isCloneChild(w.Arch(), code[:before], code[before:])
	case inExit:
		start = isThreadEnd(w.Arch(), code[:before])
	default:
		start = isThreadStart(w.Arch(), code[:before], code[before:], lookup == pc) ||
			inContextStart(w.Arch(), code, int(before)) || inCoroutineStart(w.Arch(), code[:before], code[before:], lookup == pc)
	}
	fact := uint8(0)
	if start {
		fact = 1
	}
	b.seen.Put(m.Image, key, fact)
	return start, true
}
