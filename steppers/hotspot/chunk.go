package hotspot

import (
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// What a virtual thread has of its stack in the heap is in StackChunks, of which each refers to the next outer one
// (stackChunkOop.hpp): the words of frames as they were on the stack. But what is told of places in an interpreted
// frame, and where it is, is told in words from where that stands.

// javaChunk is a StackChunk: where the words of its innermost frame begin and those of its outermost one end.
type javaChunk struct{ sp, end uint64 }

// javaStack is the stack of a virtual thread in the heap.
type javaStack struct {
	chunks []javaChunk // innermost first; none is empty
	walk   uint64      // in which that is so
	yields uint64      // the walk in which frames were found to be taken to the heap: they are here and there
	thread bool        // the thread is on one of the system's, where its stack goes on with
	next   javaRegs    // this frame
	isCut  bool        // there are more chunks, which could not be read
	stub   javaRegs    // what returns to the frames in the heap
}

const (
	maxChunks     = 1 << 12
	maxChunkWords = 1 << 24
	heapRoom      = 1 << 10 // bytes of objects that a walk reads

	continuationClass = "jdk/internal/vm/Continuation"
	chunkClass        = "jdk/internal/vm/StackChunk"
)

// chunks appends the StackChunks of a Continuation that have frames, and tells whether all could be read. seen and each,
// which may be nil, get the objects, and those that are StackChunks.
func (o *javaObjects) chunks(dst []javaChunk, continuation uint64, seen func(addr uint64, n int), each func(*javaObject)) ([]javaChunk, bool) {
	c, ok := o.object(continuation)
	if !ok || !c.class.extends(continuationClass) {
		return dst, false
	}
	if seen != nil {
		seen(c.addr, len(c.data))
	}
	at := o.refTo(&c, "tail")
	for n := 0; at != 0; n++ {
		c, ok := o.object(at)
		if !ok || c.class.name != chunkClass || n == maxChunks {
			return dst, false
		}
		if each != nil {
			each(&c)
		}
		size, ok1 := c.int("size")
		sp, ok2 := c.int("sp")
		bottom, ok3 := c.int("bottom") // of the outermost frame, above which there are arguments
		if !ok3 {
			var arguments int32
			arguments, ok3 = c.int("argsize") // before JDK 22
			bottom = size - arguments
		}
		if !ok1 || !ok2 || !ok3 || sp < 0 || bottom < 0 || bottom > size || size > maxChunkWords {
			return dst, false
		}
		words := c.addr + c.class.size()
		const link = 2 // words below a frame: the return address and the frame pointer
		if sp < bottom {
			if sp < link {
				return dst, false
			}
			dst = append(dst, javaChunk{words + 8*uint64(sp), words + 8*uint64(bottom)})
		}
		if seen != nil {
			n := int(c.class.size())
			if sp < bottom {
				n += 8 * int(bottom)
			}
			seen(c.addr, n)
		}
		at = o.refTo(&c, "parent")
	}
	return dst, true
}

// chunkAt returns the number of the StackChunk that an address is in; -1 where it is in none of the stack's.
func (s *javaStack) chunkAt(w *unwind.Walker, addr uint64) int {
	if s.walk == w.Walks() {
		for i, c := range s.chunks {
			if addr-c.sp < c.end-c.sp {
				return i
			}
		}
	}
	return -1
}

// top returns the innermost frame of a StackChunk.
func (vm *machine) top(mem procstate.Memory, c javaChunk) (f javaRegs, ok bool) {
	pc, ok := mem.ReadWord(c.sp - 8)
	return javaRegs{pc, c.sp, vm.chunkFP(mem, c.sp-16, pc), unwind.InMemory(c.sp - 8)}, ok
}

// chunkFP returns the frame pointer that a word of a StackChunk has, of a frame with a PC; 0 where it is of no use.
func (vm *machine) chunkFP(mem procstate.Memory, at, pc uint64) uint64 {
	if b := vm.blobAt(pc - 1); b == nil || !b.interpreter {
		return 0
	}
	v, _ := mem.ReadWord(at)
	return at + 8*v
}

// readerOf returns what reads mem as it was at the moment of a capture, or as it is where it is none.
func readerOf(mem procstate.Memory) vmread.Reader {
	if captured, ok := mem.(procstate.CapturedMemory); ok {
		return captured.ReadCaptured
	}
	return func(addr uint64, buf []byte) bool { return vmread.ReadAll(mem, addr, buf) }
}

// inChunk walks from a frame in the StackChunk of a number.
func (s *Stepper) inChunk(w *unwind.Walker, vm *machine, b *codeBlob, number int, in, out *unwind.Frame) (unwind.Verdict, error) {
	c, mem := vm.stack.chunks[number], w.ProcessState()
	cfa, saved, end := in.SP()+b.frame, in.SP()+b.frame-16, in.SP()+b.frame
	switch {
	case b.interpreter:
		fp := in.FP()
		sender, words, ok := javacode.SenderSP(w, in.SP(), fp)
		if !ok || fp-c.sp >= c.end-c.sp {
			return unwind.Failed, unwind.NoUnwindInfo
		}
		locals, _ := mem.ReadWord(fp - words.Locals)
		cfa, saved, end = sender, fp, javacode.InFrame(fp, locals)+8
	case b.frame < 16:
		return unwind.Failed, unwind.NoUnwindInfo
	}
	pc, ok := mem.ReadWord(saved + 8)
	var f javaRegs
	switch {
	case vm.stack.thread && (!ok || end >= c.end && number+1 == len(vm.stack.chunks) && vm.stack.isCut):
		vm.stack.yields = w.Walks() // it is not gone to the heap from there again
		f = vm.stack.stub
		out.Flags |= unwind.StackSwitched
	case !ok:
		return unwind.Failed, unwind.ReadFailure(mem, saved+8)
	case end < c.end:
		if cfa >= c.end {
			return unwind.Failed, unwind.NoProgress
		}
		f = javaRegs{pc, cfa, vm.chunkFP(mem, saved, pc), unwind.InMemory(saved + 8)}
	case number+1 < len(vm.stack.chunks):
		if f, ok = vm.top(mem, vm.stack.chunks[number+1]); !ok {
			return unwind.Failed, unwind.MemoryUnreadable
		}
		out.Flags |= unwind.StackSwitched
	case vm.stack.thread:
		f = vm.stack.next
		out.Flags |= unwind.StackSwitched
	default:
		return unwind.StackBottom, nil
	}
	f.load(w, out)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return unwind.Success, nil
}

// layOut finds how objects are laid out; where that cannot be known it is said that they are not read.
func (vm *machine) layOut() {
	if vm.layout == nil {
		if vm.layout = vm.newLayout(); vm.layout == nil {
			vm.layout = &javaLayout{marked: true}
		}
	}
}

// enterHeap makes of the frame of the stub that puts more frames on the stack the first of these, which are in the heap.
func (vm *machine) enterHeap(w *unwind.Walker, continuation uint64, in, back *unwind.Frame) bool {
	mem, o := w.ProcessState(), &vm.objects
	if o.read == nil {
		o.read, o.now, o.vm, o.room = readerOf(mem), vm.read, vm, make([]byte, 0, heapRoom)
	}
	if continuation == 0 || vm.stack.yields == w.Walks() {
		return false
	}
	vm.layOut()
	isThere := o.read(continuation, o.buf[:16])
	if !isThere && vm.layout.z == nil {
		return false
	}
	o.javaLayout, o.room, o.late, o.end = vm.layout, o.room[:0], false, time.Now().Add(maxObjectTime)
	if z := vm.layout.z; z != nil {
		z.refresh(vm)
		z.asCaptured(o.read)
		if !isThere {
			// The stack has it as it was before it was moved, until the thread looks at that frame itself.
			if continuation = z.whereCaptured(o.read, z.movedFrom(o.now, continuation)); continuation == 0 {
				return false
			}
		}
	}
	chunks, ok := o.chunks(vm.stack.chunks[:0], continuation, nil, nil)
	vm.stack.stub = javaRegs{pc: in.PC(), sp: in.SP(), fp: in.FP()}
	vm.stack.chunks, vm.stack.walk, vm.stack.thread, vm.stack.isCut = chunks, w.Walks(), true, !ok
	vm.stack.next = javaRegs{pc: back.PC(), sp: back.SP(), fp: back.FP()}
	var f javaRegs
	if ok = len(chunks) > 0; ok {
		f, ok = vm.top(mem, chunks[0])
	}
	if !ok {
		vm.stack.chunks = chunks[:0]
		return false
	}
	pointer := in.Regs.ThreadPointer
	in.Regs = procstate.Regs{ThreadPointer: pointer}
	in.SPLocation, in.FPLocation = unwind.Location{}, unwind.Location{}
	f.load(w, in)
	in.Flags |= unwind.StackSwitched
	return true
}
