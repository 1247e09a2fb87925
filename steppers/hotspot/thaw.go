package hotspot

import (
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// A virtual thread runs on the stack of its carrier, on top of Continuation.enterSpecial. When it is mounted, the last
// frames of it alone are put there again, and the others stay in the heap until they are returned to: the outermost one
// that is there has the address of a stub for return address, which puts back some more (continuationFreezeThaw.cpp). Below
// it, where the frame of enterSpecial begins, there is a ContinuationEntry: the words that a stack is entered with.

// thawFrame is the frame of Continuation.enterSpecial.
type thawFrame struct {
	header uint64 // of its nmethod
	back   uint64 // where it goes on when all frames of a virtual thread have returned
	frame  uint64 // bytes above SP, the return address last
	looked time.Time
	run    runPlace
}

// runPlace is a place in compiled code, of an nmethod of a number, that was looked at last: whether it is in
// Continuation.run.
type runPlace struct {
	ra uint64
	id uint32
	is bool
}

const (
	enterSpecial    = "jdk.internal.vm.Continuation.enterSpecial"
	doYield         = "jdk.internal.vm.Continuation.doYield"
	runContinuation = "jdk.internal.vm.Continuation.run"
	thawInterval    = time.Second // after which it is looked for again
	maxThawBlocks   = 1 << 17
	maxThawStub     = 4 << 10 // bytes of enterSpecial
	maxThawArgs     = 2 << 10 // bytes that the outermost frame may have as arguments on the stack, or as local variables
	maxThawRoom     = 8 << 10 // bytes of the frames that are put back at a time

	// Of a ContinuationEntry, which have not moved since JDK 21.
	entryContinuation = 16 // an object
	entryFlags        = 32 // of 32 bits: whether it is of a virtual thread; and as many for the words of arguments on the stack
	entryBytes        = 40 // at least
)

// thawed walks from the stubs that put frames of a virtual thread on the stack. From where the outermost one that is
// there returns to it goes on in the heap, where that can be read, and else, as from a call in a stub, to the frame of
// enterSpecial, below which they are put.
func (s *Stepper) thawed(w *unwind.Walker, vm *machine, in, out *unwind.Frame) (unwind.Verdict, error) {
	if in.Flags&unwind.Interrupted != 0 {
		return unwind.NotMe, nil
	}
	isBarrier := !javacode.MayReturnTo(w, in.PC(), s.buf[:])
	most := uint64(maxThawRoom)
	if isBarrier {
		most = maxThawArgs
	}
	entry, ok := s.enteredBy(w, vm, most, in, out)
	switch {
	case ok && isBarrier && vm.enterHeap(w, entry.continuation, in, out):
		return unwind.Mended, nil
	case ok: // or those that are being put back are here and there
		if isBarrier && vm.stack.yields != w.Walks() {
			vm.lacked = lackedChunks{w.Walks(), entry.at - entryContinuation}
		}
		in.Code = vm.notCopied(w)
		return unwind.Success, nil
	case isBarrier:
		return unwind.Failed, unwind.NoUnwindInfo
	}
	return unwind.NotMe, nil
}

// enteredBy finds the frame of enterSpecial at most so many bytes above the SP of a frame, and which Continuation was
// entered there.
func (s *Stepper) enteredBy(w *unwind.Walker, vm *machine, most uint64, in, out *unwind.Frame) (entry thawEntry, ok bool) {
	e := vm.enterSpecial()
	if e == nil {
		return entry, false
	}
	const align = 16
	mem, arch := w.ProcessState(), w.Arch()
	for at := (in.SP() + align - 1) &^ (align - 1); at-in.SP() < most; at += align {
		fp, ok1 := mem.ReadWord(at + e.frame - 16)
		ra, ok2 := mem.ReadWord(at + e.frame - 8)
		if !ok1 || !ok2 {
			break
		}
		if entry, ok = thawEntryAt(mem, at); !ok || !vm.isRun(ra, fp) {
			continue
		}
		out.SetPC(arch, e.back)
		out.SetSP(arch, at)
		out.SetFP(arch, at+e.frame-16)
		out.Regs.ThreadPointer = in.Regs.ThreadPointer
		out.Flags |= unwind.StackSwitched // other frames are in the heap; SP may be the same
		return entry, true
	}
	return entry, false
}

// endsThawed walks from an interpreted method that is the outermost frame of a virtual thread on the stack, and others
// are in the heap: what it returns to follows no call.
func (s *Stepper) endsThawed(w *unwind.Walker, vm *machine, in, out *unwind.Frame) (ok bool) {
	fp, arch, mem := in.FP(), w.Arch(), w.ProcessState()
	sender, _, ok := javacode.SenderSP(w, in.SP(), fp)
	ra, read := mem.ReadWord(fp + 8)
	callerFP, known := mem.ReadWord(fp)
	if !ok || !read || !known {
		return false
	}
	if b := vm.blobAt(ra); b == nil || !b.thaws || javacode.MayReturnTo(w, ra, s.buf[:]) ||
		in.Flags&unwind.Interrupted != 0 && !s.hasFrame(w, vm, in) {
		return false
	}
	out.SetPC(arch, ra)
	out.SetSP(arch, sender)
	out.SetFP(arch, callerFP)
	out.PCLocation, out.FPLocation = unwind.InMemory(fp+8), unwind.InMemory(fp)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return true
}

// thawEntry is what a ContinuationEntry refers to, and where that is in it.
type thawEntry struct{ continuation, at uint64 }

// thawEntryAt returns the ContinuationEntry that there may be at an address.
func thawEntryAt(mem procstate.Memory, at uint64) (e thawEntry, ok bool) {
	words, ok1 := mem.ReadWord(at + entryFlags)
	e.at = at + entryContinuation
	continuation, ok2 := mem.ReadWord(e.at)
	e.continuation = continuation
	return e, ok1 && ok2 && continuation != 0 && uint32(words) <= 1 && words>>32 <= maxThawArgs/8
}

// isRun reports whether a return address is in Continuation.run, which alone calls enterSpecial. Where it is interpreted
// fp is its frame pointer.
func (vm *machine) isRun(ra, fp uint64) bool {
	b := vm.blobAt(ra - 1)
	if b == nil {
		return false
	}
	if b.interpreter {
		method, _ := vm.mem.ReadWord(fp - javacode.MethodWord)
		return method != 0 && vm.isMethod(method, runContinuation)
	}
	if b.method == 0 {
		return false
	}
	if e := &vm.enters; e.run.ra != ra || e.run.id != b.id {
		lines := vm.compiledLines(b, ra, false) // it may be inlined
		e.run = runPlace{ra, b.id, len(lines) > 0 && lines[0].Name == runContinuation}
	}
	return vm.enters.run.is
}

// isMethod reports whether a Method has a name.
func (vm *machine) isMethod(method uint64, name string) bool {
	m := vm.methodAt(method)
	return m != nil && m.function.Name == name
}

// enterSpecial returns what is known of its frame, which stays as it is, nil where it is not found.
func (vm *machine) enterSpecial() *thawFrame {
	e := &vm.enters
	if e.header != 0 {
		return e
	}
	if now := time.Now(); vm.fields.method != nil && now.Sub(e.looked) >= thawInterval {
		e.looked = now
		vm.readHeaps() // they grow
		for i := range vm.heaps {
			if vm.findEnterSpecial(&vm.heaps[i]) {
				return e
			}
		}
	}
	return nil
}

// findEnterSpecial looks for it among the blocks of a heap of the code cache.
func (vm *machine) findEnterSpecial(h *codeHeap) bool {
	at := h.low
	for range maxThawBlocks {
		length, ok := vm.word(at + vm.fields.blockLength)
		if length &= 1<<32 - 1; !ok || length == 0 || at >= h.high || !vm.names.pace.May(1) {
			return false
		}
		b, ok := vm.readBlob(at + vm.fields.blockBytes)
		if at += length << h.log2; !ok || b.method == 0 || vm.blobName(&b) != "native nmethod" {
			continue
		}
		if !vm.isMethod(b.method, enterSpecial) {
			continue
		}
		back := vm.callsThaw(&b)
		if back == 0 || b.frame < 16+entryBytes {
			return false
		}
		vm.enters.header, vm.enters.back, vm.enters.frame = b.header, back, b.frame
		return true
	}
	return false
}

// callsThaw returns where enterSpecial goes on behind its call of the stub that puts frames back; 0 where there is none.
func (vm *machine) callsThaw(b *codeBlob) (back uint64) {
	code := make([]byte, min(b.end-b.begin, maxThawStub))
	if n := procstate.ReadPart(vm.mem, b.begin, code); n < len(code) {
		return 0
	}
	var in isa.Inst
	for pc := b.begin; len(code) > 0 && mcode.Decode(vm.image.Arch(), code, pc, &in) && in.Len > 0; code = code[in.Len:] {
		if pc += uint64(in.Len); in.Flow == isa.Call {
			if to := vm.blobAt(in.Target); to != nil && to.thaws {
				back = pc
			}
		}
	}
	return back
}
