package hotspot

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// codeHeap is a heap of the code cache: its memory [low, high), of segments of
// 1<<log2 bytes, and the map with a byte for each: 0 where a block begins, else
// a number of segments to go back by, 0xff where there is none.
type codeHeap struct {
	low, high uint64
	segments  uint64
	log2      uint32
}

// codeBlob is a compiled method or stub. Its frame, where it is complete, has
// frame bytes above SP, the return address and below it the caller's frame
// pointer last.
type codeBlob struct {
	header     uint64 // address of the CodeBlob
	begin, end uint64 // its code
	complete   int32  // offset in the code from which the frame is; negative: nowhere for sure
	frame      uint64
	name       uint64 // address of what kind it is
	// fixed says that SP stays where it is between prologue and epilogue.
	fixed, interpreter bool
	// adapts says that it is an adapter between interpreted and compiled methods, and links that it is how the interpreter
	// goes on from a method handle to what that calls.
	adapts, links bool
	// jumps says that it is jumps to other methods, which leave the stack and
	// the frame pointer alone.
	jumps bool
	// thaws says that it has the stubs by which frames of virtual threads are put back, and yields that it
	// is the method by which they are taken away.
	thaws, yields bool

	returned uint64 // an address in it that was found to be one that is returned to; 0: none

	// Of an nmethod its Method and number, which change with it; else 0.
	method uint64
	id     uint32

	deopt  uint64 // where it goes on when it is given up while it calls; 0: not known
	origPC uint32 // of an nmethod: bytes above SP where there is then where it would have gone on
}

// machine is what is known of a virtual machine.
type machine struct {
	fields  *vmFields        // nil: there is none
	image   *procstate.Image // libjvm
	bias    uint64           // of libjvm
	array   uint64           // where the list of heaps is
	mem     procstate.Memory
	live    procstate.LiveMemory // nil where mem is live
	heaps   []codeHeap
	blobs   [blobSets][blobWays]codeBlob // by a hash of the PC; what was used last comes first
	buf     [maxBlockHeader + maxBlobHeader]byte
	names   methodNames
	enters  thawFrame
	layout  *javaLayout // nil: not read, or not known
	stack   javaStack
	objects javaObjects // as walks read them

	lacked      lackedChunks
	thread      javaThreadAt
	entryField  entryField
	asked       vmread.FramesAsked
	chunkFrames procstate.ThreadFrames // but for Current; Chunk is 0 as long as it is not known

	walk       uint64 // the last for which it was known to be there
	generation uint32 // of the mappings then
}

// stays reports whether the process still runs the virtual machine, or still none:
// libjvm is where it was, and so is its list of heaps, if it can be read.
func (vm *machine) stays(libs procstate.LibraryState) bool {
	generation, ok := vmread.GenerationOf(libs)
	if ok && generation == vm.generation {
		return true
	}
	if vm.fields == nil || libs == nil {
		return false
	}
	vm.generation = generation
	m := libs.MappingAt(mcode.Begin(vm.image) + vm.bias)
	array, read := vm.word(vm.fields.heaps + vm.bias)
	return m != nil && m.Image == vm.image && m.Bias == vm.bias && (!read || array == vm.array)
}

// What is kept of blobs also serves samples of a process that has ended, whose list of blobs cannot
// be read any more.
const (
	blobSets = 64
	blobWays = 4
)

// noFrameSize is what a stub has for the size of its frame that has none (Runtime1).
const noFrameSize = 1<<32 - 1

const (
	maxHeaps       = 8
	maxSegmentHops = 1 << 16
	maxBlockHeader = 16 // of a HeapBlock
)

// read reads memory of the process as it is now.
func (vm *machine) read(addr uint64, buf []byte) bool {
	return vmread.ReadNow(vm.mem, vm.live, addr, buf)
}

func (vm *machine) word(addr uint64) (uint64, bool) {
	ok := vm.read(addr, vm.buf[:8])
	return binary.LittleEndian.Uint64(vm.buf[:]), ok
}

// readHeaps reads where the heaps are: they grow.
func (vm *machine) readHeaps() {
	f := vm.fields
	vm.heaps = vm.heaps[:0]
	n, data := uint64(1), f.heaps+vm.bias
	if !f.oneHeap {
		array, ok1 := vm.word(f.heaps + vm.bias)
		count, ok2 := vm.word(array + f.arrayLen)
		addr, ok3 := vm.word(array + f.arrayData)
		if n, data = count&0xffffffff, addr; !ok1 || !ok2 || !ok3 || n > maxHeaps {
			return
		}
	}
	for i := range n {
		heap, ok := vm.word(data + 8*i)
		low, ok1 := vm.word(heap + f.heapMemory + f.spaceLow)
		high, ok2 := vm.word(heap + f.heapMemory + f.spaceHigh)
		segments, ok3 := vm.word(heap + f.heapMap + f.spaceLow)
		log2, ok4 := vm.word(heap + f.heapLog2)
		if log2 &= 0xffffffff; ok && ok1 && ok2 && ok3 && ok4 && low < high && log2 < 32 {
			vm.heaps = append(vm.heaps, codeHeap{low, high, segments, uint32(log2)})
		}
	}
}

// heapAt returns the heap that holds an address, nil when there is none.
func (vm *machine) heapAt(addr uint64) *codeHeap {
	for i := range vm.heaps {
		if h := &vm.heaps[i]; addr-h.low < h.high-h.low {
			return h
		}
	}
	return nil
}

// blobAt returns what holds the code at pc, nil when nothing is known to. What
// was found before is checked: the memory of code is used again.
func (vm *machine) blobAt(pc uint64) *codeBlob {
	set := &vm.blobs[pc*0x9e3779b97f4a7c15>>32%blobSets]
	for i := range set {
		b := &set[i]
		if b.header == 0 || pc-b.begin >= b.end-b.begin {
			continue
		}
		if now, ok := vm.readBlob(b.header); ok {
			now.fixed, now.interpreter, now.adapts, now.links, now.jumps, now.thaws, now.yields, now.returned = b.fixed, b.interpreter, b.adapts, b.links, b.jumps, b.thaws, b.yields, b.returned
			if b.method == 0 {
				now.method, now.id, now.deopt, now.origPC = 0, 0, 0, 0
			}
			if now == *b {
				copy(set[1:i+1], set[:i])
				set[0] = now
				return &set[0]
			}
		}
	}
	h := vm.heapAt(pc)
	if h == nil {
		vm.readHeaps()
		if h = vm.heapAt(pc); h == nil {
			return nil
		}
	}
	segment := (pc - h.low) >> h.log2
	first := segment + 1 // of the bytes of the map that were read
	for range maxSegmentHops {
		if segment < first {
			first = segment - min(segment, uint64(len(vm.buf)-1))
			if !vm.read(h.segments+first, vm.buf[:segment-first+1]) {
				return nil
			}
		}
		back := uint64(vm.buf[segment-first])
		if back == 0xff || back > segment {
			return nil
		}
		if back == 0 {
			break
		}
		segment -= back
	}
	now, ok := vm.readBlob(h.low + segment<<h.log2 + vm.fields.blockBytes)
	if !ok || pc-now.begin >= now.end-now.begin {
		return nil
	}
	vm.classify(&now)
	copy(set[1:], set[:])
	set[0] = now
	return &set[0]
}

// classify tells from the name of a blob whether it is a compiled method, a
// stub that C2 has compiled, those by which exceptions pass and by which methods are
// given up for the interpreter, or those by which virtual methods are called. Other
// stubs are written by hand and push before they call.
func (vm *machine) classify(b *codeBlob) {
	buf := vm.buf[:64]
	if !vm.read(b.name, buf) {
		clear(buf)
	}
	name := buf[:max(bytes.IndexByte(buf, 0), 0)]
	if !bytes.HasSuffix(name, []byte("nmethod")) {
		b.method, b.id, b.deopt, b.origPC = 0, 0, 0, 0
	}
	switch {
	case bytes.Equal(name, []byte("Interpreter")):
		b.interpreter = true
	case bytes.Equal(name, []byte("I2C/C2I adapters")):
		b.adapts = true
	case bytes.Equal(name, []byte("MethodHandles adapters")):
		b.links = true
	case bytes.Equal(name, []byte("vtable chunks")):
		b.jumps = true
	case bytes.HasPrefix(name, []byte("StubRoutines (continuation")), bytes.HasPrefix(name, []byte("Stub Generator continuation")):
		b.thaws = true
	case bytes.Equal(name, []byte("nmethod")), bytes.Equal(name, []byte("native nmethod")), bytes.Equal(name, []byte("ExceptionBlob")),
		bytes.Equal(name, []byte("UncommonTrapBlob")), isC2Stub(name):
		b.fixed = true
		b.jumps = b.frame == 0 // by method handles
		if b.method != 0 && bytes.Equal(name, []byte("native nmethod")) {
			m := vm.methodAt(b.method)
			b.yields = m == nil || m.function.Name == doYield // or may be
		}
	}
}

// isC2Stub reports whether that is the name of a stub that C2 has compiled: "_rethrow_Java", from
// JDK 25 on "C2 Runtime rethrow", from 27 on "rethrow_blob (C2 runtime)".
func isC2Stub(name []byte) bool {
	return bytes.HasPrefix(name, []byte("_")) && bytes.HasSuffix(name, []byte("_Java")) ||
		bytes.HasPrefix(name, []byte("C2 Runtime ")) || bytes.HasSuffix(name, []byte(" (C2 runtime)"))
}

// readBlob reads a CodeBlob, if the block that it is in holds code: one that does
// not still has the header of what it held, also when its end has been given to
// another method.
func (vm *machine) readBlob(header uint64) (b codeBlob, ok bool) {
	f := vm.fields
	buf := vm.buf[:f.blockBytes+f.blobEnd]
	if n, err := vm.mem.ReadMemory(header-f.blockBytes, buf); err != nil || n < len(buf) || buf[f.blockUsed] != 1 {
		return b, false
	}
	buf = buf[f.blockBytes:]
	b = codeBlob{
		header:   header,
		name:     binary.LittleEndian.Uint64(buf[f.blobName:]),
		complete: int32(binary.LittleEndian.Uint32(buf[f.blobComplete:])),
	}
	if f.narrowComplete {
		b.complete = int32(int16(b.complete))
	}
	if f.codeByOffset {
		b.begin = header + uint64(binary.LittleEndian.Uint32(buf[f.blobCodeBegin:]))
		b.end = header + uint64(binary.LittleEndian.Uint32(buf[f.blobCodeEnd:]))
	} else {
		b.begin, b.end = binary.LittleEndian.Uint64(buf[f.blobCodeBegin:]), binary.LittleEndian.Uint64(buf[f.blobCodeEnd:])
	}
	words := binary.LittleEndian.Uint32(buf[f.blobFrame:])
	if words == noFrameSize {
		words = 0
	}
	b.frame = 8 * uint64(words)
	if m := f.method; m != nil {
		b.method = binary.LittleEndian.Uint64(buf[m.compiled:])
		b.id = binary.LittleEndian.Uint32(buf[m.compileID:])
		switch m.deopts {
		case deoptByAddress:
			b.deopt = binary.LittleEndian.Uint64(buf[m.deopt:])
		case deoptByOffset:
			b.deopt = header + uint64(binary.LittleEndian.Uint32(buf[m.deopt:]))
		}
		if m.deopts != deoptUnknown {
			b.origPC = binary.LittleEndian.Uint32(buf[m.origPC:])
		}
	}
	return b, b.begin > header && b.begin <= b.end && words < 1<<20
}
