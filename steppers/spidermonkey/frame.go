package spidermonkey

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// madeFrame is a frame of code that SpiderMonkey has made.
type madeFrame struct {
	vm          *machine
	w           *unwind.Walker
	m           *procstate.Mapping
	in          *unwind.Frame
	interrupted bool
	buf         []byte
	pc, sp      uint64 // of the frame: pc in the call, where it is in one, and the stack pointer as the code has it
	linked      bool   // the return address is in the link register: the frame is not there

	frame uint64    // where its frame pointer is saved, or would be, if what it has called has told so; else 0
	kind  frameType // that it is then

	script *scriptInfo // that it runs; nil: not known
	err    error       // why the walk fails
}

// tier is what code of a script runs in a frame.
type tier uint8

const (
	notRun tier = iota
	interpreter
	baseline
	ion
)

// word reads a word of the stack.
func (at *madeFrame) word(addr uint64) uint64 {
	v, _ := at.w.ProcessState().ReadWord(addr)
	return v
}

// callerFrame walks from the frame, and notes what it runs.
func (at *madeFrame) callerFrame(out *unwind.Frame) (unwind.Verdict, caller) {
	at.pc = at.in.LookupPC()
	if at.sp = at.in.SP(); at.interrupted {
		at.sp = at.vm.arch.stackPointer(at.in)
	}
	at.learnAhead()
	if frame, s, how := at.find(); how != notRun {
		at.script = s
		at.name(frame, s, how)
		at.learnFrames(frame)
		return at.leave(frame, how, out)
	}
	switch {
	case at.frame != 0 && at.kind < lastFrame && at.kind != entryFrame && at.vm.frames != framesLinked:
		return at.leave(at.frame, notRun, out)
	case !at.interrupted && at.vm.frames == framesLinked: // it has a frame pointer
		fp := at.in.FP()
		return unwind.NotMe, caller{pc: at.word(fp + smReturn), sp: fp + smDescriptor, frame: at.word(fp), kind: frameType(at.word(fp+smDescriptor) & typeMask)}
	}
	return at.leaveCode(out)
}

// find finds the frame, of which it can be told what it runs.
func (at *madeFrame) find() (frame uint64, s *scriptInfo, how tier) {
	in := at.in
	fp, fpKnown := in.Regs.Value(at.w.Arch().FP)
	if !at.interrupted {
		if at.frame != 0 {
			if s, how = at.runs(at.frame); how != notRun {
				return at.frame, s, how
			}
		}
		if fpKnown {
			if s, how = at.runs(fp); how != notRun {
				return fp, s, how
			}
		}
		return at.findSized()
	}
	code := mcode.Read(at.w, at.m, in.PC()-stageBefore, at.buf[:stageBefore+stageBehind])
	before := code[:min(stageBefore, len(code))]
	code = code[len(before):]
	for _, stage := range [...]stage{onlyCalled, returnPushed, framePushed} {
		if at.linked = stage == onlyCalled; at.linked && at.w.Arch().LR == procstate.NoReg {
			continue
		}
		frame = at.sp - stage.below()
		if s, how = at.runs(frame); how >= baseline && at.vm.arch.stage(before, code, in.PC()-s.made(how).Start) == stage {
			return frame, s, how
		}
	}
	at.linked = false
	if frame, s, how = at.findSized(); how != notRun {
		return frame, s, how
	}
	if fpKnown {
		if s, how = at.runs(fp); how != notRun && (how != ion || at.vm.frames != framesSized) {
			return fp, s, how
		}
	}
	return 0, nil, notRun
}

// made returns the code of a script.
func (s *scriptInfo) made(how tier) madeCode {
	if how == baseline {
		return s.baseline
	}
	return s.ion
}

// runs tells what runs in a frame with its frame pointer saved there, if that is sure.
func (at *madeFrame) runs(frame uint64) (s *scriptInfo, how tier) {
	from := at.sp - returnPushed.below()
	if at.linked {
		from = at.sp - onlyCalled.below()
	}
	if frame%8 != 0 || frame-from > maxFrame {
		return nil, notRun
	}
	token, ok := at.w.ProcessState().ReadWord(frame + smToken)
	if !ok || token < 1<<12 || token >= maxAddress {
		return nil, notRun
	}
	if s = at.vm.scriptOf(token); s == nil {
		return nil, notRun
	}
	switch {
	case s.baseline.Holds(at.pc):
		return s, baseline
	case s.ion.Holds(at.pc):
		return s, ion
	case at.word(below(frame, smFrameScript)) == s.at && at.word(below(frame, smFrameFlags))&smInterpreted != 0 &&
		s.bytecode.Holds(at.word(below(frame, smFramePC))) && at.interprets(frame):
		return s, interpreter
	}
	return nil, notRun
}

// below is where a part of a frame is that is below its frame pointer.
func below(frame uint64, off int64) uint64 { return frame + uint64(off) }

// interprets reports whether the PC is in the baseline interpreter, in a frame that says so.
func (at *madeFrame) interprets(frame uint64) bool {
	vm, pc := at.vm, at.pc
	if vm.interpreter.End == 0 && at.frame == frame && at.kind == baselineFrame && vm.searches < maxSearches {
		vm.searches++ // what it has called says that it is a function's, and the compiler has not made it
		if code := vm.codeAround(pc); code.End-code.Start >= interpreterBytes {
			vm.interpreter = code
		}
	}
	return vm.interpreter.Holds(pc)
}

const (
	interpreterBytes = 8 << 10 // fewer than it has
	maxSearches      = 64
	maxAround        = 256 << 10 // bytes of code before an address that are looked through for where it begins
)

// codeAround returns the instructions that an address is in, by the JitCode that stands before them. It is empty where
// none is found.
func (vm *machine) codeAround(pc uint64) mcode.Range {
	var page [4 << 10]byte
	for end := pc &^ 7; pc-end < maxAround; {
		start := (end - 1) &^ (uint64(len(page)) - 1)
		part := page[:end-start]
		if start > end || !vm.ReadNow(start, part) {
			break
		}
		for n := len(part) - 8; n >= 0; n -= 8 {
			cell := binary.LittleEndian.Uint64(part[n:])
			if first := start + uint64(n) + codeCell; !isCell(cell) || first > pc {
				continue
			} else if code := vm.codeAt(cell); code.Start == first {
				if code.Holds(pc) {
					return code
				}
				return mcode.Range{}
			}
		}
		end = start
	}
	return mcode.Range{}
}

// name notes what runs in the frame.
func (at *madeFrame) name(frame uint64, s *scriptInfo, how tier) {
	place := framePlace{serial: s.serial, isCompiled: how != interpreter}
	switch how {
	case interpreter:
		pc := at.word(below(frame, smFramePC))
		if at.interrupted {
			pc, _ = at.in.Regs.Value(at.vm.arch.pc)
		}
		if s.bytecode.Holds(pc) {
			at.vm.readLines(s)
			place.line = s.lineAt(uint32(pc - s.bytecode.Start))
		}
	case baseline:
		at.vm.readLines(s)
		place.start, place.line = s.baseline.Start, s.baselineLine(at.in.PC(), at.interrupted)
	case ion:
		place.start = s.ion.Start
	}
	at.in.Code = at.vm.codeOf(at.w.Codes(), s, place)
}

// learnFrames learns from the frame of a function what frames have.
func (at *madeFrame) learnFrames(frame uint64) {
	vm := at.vm
	descriptor := at.word(frame + smDescriptor)
	if vm.frames != framesUnknown || at.word(frame+smToken)&smTokenScript != 0 {
		return
	}
	const most = 1 << 17 // arguments
	caller := at.word(frame)
	switch {
	case descriptor>>headerShift&headerMask == jsHeader && descriptor>>sizeShift >= 8 && at.word(frame+smArguments) < most:
		vm.frames = framesSized
	case descriptor < 1<<32 && caller > frame && caller%8 == 0 && at.w.MappingAt(at.word(caller+smReturn)) != nil:
		vm.frames = framesLinked
	}
}

// learnAhead learns from frames further out, as far as frame pointers lead there, what frames have and where the baseline
// interpreter is, for what this one and others before these have in common with them.
func (at *madeFrame) learnAhead() {
	vm := at.vm
	fp, ok := at.in.Regs.Value(at.w.Arch().FP)
	if vm.frames != framesUnknown || !ok || vm.looks >= maxSearches {
		return
	}
	vm.looks++
	const most = 64
	for range most {
		caller := at.word(fp)
		if fp%8 != 0 || caller <= fp || caller-fp > maxFrame {
			return
		}
		if token := at.word(fp + smToken); token >= 1<<12 && token < maxAddress && vm.scriptOf(token) != nil {
			at.learnFrames(fp)
		}
		if vm.frames != framesUnknown {
			return
		}
		fp = caller
	}
}

// leave walks from a frame with its frame pointer saved there, or where that would be.
func (at *madeFrame) leave(frame uint64, how tier, out *unwind.Frame) (unwind.Verdict, caller) {
	arch, mem := at.w.Arch(), at.w.ProcessState()
	pc, ok1 := uint64(0), false
	if out.PCLocation = unwind.InMemory(frame + smReturn); at.linked {
		pc, ok1 = at.in.Regs.Value(arch.LR)
		out.PCLocation = unwind.InRegister(arch.LR)
	} else {
		pc, ok1 = mem.ReadWord(frame + smReturn)
	}
	descriptor, ok2 := mem.ReadWord(frame + smDescriptor)
	saved, ok3 := mem.ReadWord(frame)
	if !ok1 || !ok2 || !ok3 && !at.linked && at.vm.frames == framesLinked {
		at.err = unwind.ReadFailure(mem, frame+smReturn)
		*out = unwind.Frame{}
		return unwind.Failed, caller{}
	}
	next := caller{kind: frameType(descriptor & typeMask)}
	switch {
	case at.vm.frames == framesUnknown && at.frame == 0:
		return unwind.NotMe, caller{}
	case at.vm.frames == framesLinked:
		out.SetFP(arch, saved)
		out.FPLocation = unwind.InMemory(frame)
		next.frame = saved
		if at.unsaved(frame) {
			out.SetFP(arch, at.in.FP())
			out.FPLocation = at.in.FPLocation
			next.frame = at.in.FP()
		}
	default:
		var ok bool
		if next, ok = sized(frame, descriptor); !ok {
			return unwind.NotMe, caller{}
		}
		if next.kind == baselineFrame {
			out.SetFP(arch, next.frame)
		}
	}
	out.SetPC(arch, pc)
	out.SetSP(arch, frame+smDescriptor)
	out.Regs.ThreadPointer = at.in.Regs.ThreadPointer
	return unwind.Success, next
}

// sized tells where the frame is that has called one of known size, by the descriptor of the latter.
func sized(frame, descriptor uint64) (next caller, ok bool) {
	header, size := descriptor>>headerShift&headerMask, descriptor>>sizeShift
	next.kind = frameType(descriptor & typeMask)
	if header < otherHeader || header > jsHeader || size > maxFrame || size%8 != 0 || next.kind >= lastFrame {
		return caller{}, false
	}
	next.frame = frame + 8*header + size
	return next, true
}

// unsaved reports whether the frame, which was interrupted, has not saved its caller's frame pointer yet, or no more.
func (at *madeFrame) unsaved(frame uint64) bool {
	return at.interrupted && (at.linked || frame == at.sp-returnPushed.below())
}

// findSized finds a frame of Ion where these have no frame pointer: its code tells how large they are, and what it may have
// put on the stack since is little.
func (at *madeFrame) findSized() (frame uint64, s *scriptInfo, how tier) {
	if at.vm.frames != framesSized && at.vm.frames != framesUnknown {
		return 0, nil, notRun
	}
	const most = 24 // words
	for n := range uint64(maxIonFrame) {
		frame := at.sp - 8 + 8*n
		if s, how := at.runs(frame); how == ion {
			size, end, ok := at.frameSize(s.ion.Start)
			if !ok {
				return 0, nil, notRun
			}
			if at.interrupted && at.in.PC() < end {
				size = 0
			}
			above := frame + 8 - at.sp
			if above < size {
				continue // an older frame, in this one
			}
			if _, is := sized(frame, at.word(frame+smDescriptor)); !is && at.vm.frames == framesSized {
				continue // the function as a value
			}
			if above-size > 8*most {
				return 0, nil, notRun
			}
			return frame, s, how
		}
	}
	return 0, nil, notRun
}

// maxIonFrame is how many words of the stack are looked at for where a frame ends.
const maxIonFrame = 64

// frameSize returns by how much the code that begins at start makes room on the stack first, and where it goes on then. A
// frame pointer is not saved before.
func (at *madeFrame) frameSize(start uint64) (size, end uint64, ok bool) {
	code := mcode.Read(at.w, at.m, start, at.buf)
	return at.vm.arch.makesRoom(code, start)
}
