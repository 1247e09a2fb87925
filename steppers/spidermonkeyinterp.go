package steppers

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// SpiderMonkey's interpreter in C++ runs what has not been called often, and what files do themselves. It is one function,
// js::Interpret, which has the places for all operations in a table, and in its frame what it is at (FrameRegs,
// in the InterpreterActivation): a stack pointer of its own, a place in the bytecode, its frame, and the outermost of those that it has:
// it calls functions without calling itself.
const (
	smOperations = 256 // in the table

	smRegsPC    = 8 // behind the stack pointer
	smRegsFrame = 16
	smRegsFirst = 24
	smRegsMask  = 32 // 0, or all bits of an operation's number set when it has been asked to stop
	smRegsBytes = 40

	smInterpFlags  = 0x00 // of an InterpreterFrame (32 bits): see smRunsInJIT,
	smInterpScript = 0x08 // the script,
	smInterpPrev   = 0x28 // the frame that it was called from by the same js::Interpret, and perhaps others,
	smInterpPrevPC = 0x30 // and where that is in its bytecode
	smInterpBytes  = 0x38

	smRunsInJIT = 1 << 8 // in the flags: code that was made goes on with it, which has a frame of its own

	maxSMInterpreted = 1 << 10 // frames of one js::Interpret
	maxSMInterpFrame = 4 << 10 // bytes of its frame that are looked through
	smLasting        = time.Second
)

// findInterpret finds js::Interpret in the file, by its table, which is in memory once the file is loaded: most of it in one
// piece, and perhaps what is seldom executed elsewhere. The addresses are link-time addresses.
func (vm *smVM) findInterpret(tables *unwind.Table, im *procstate.Image, bias uint64) []vaddrRange {
	const most = 64 << 20
	text, ok1 := im.Section(".text")
	data, ok2 := im.Section(".data.rel.ro")
	if !ok1 || !ok2 || data.Size > most {
		return nil
	}
	is := vaddrRange{text.Vaddr + bias, text.Vaddr + text.Size + bias}
	buf := make([]byte, 64<<10)
	run := make([]uint64, 0, smOperations) // words that may be of one function
	var low, high uint64                   // of these
	tries := 1 << 10
	for off := uint64(0); off < data.Size; off += uint64(len(buf)) {
		part := buf[:min(uint64(len(buf)), data.Size-off)]
		if !readNow(vm.mem, vm.live, data.Vaddr+bias+off, part) {
			return nil
		}
		for ; len(part) >= 8; part = part[8:] {
			v := binary.LittleEndian.Uint64(part)
			if !is.holds(v) {
				run = run[:0]
				continue
			}
			if len(run) == 0 || max(high, v)-min(low, v) > maxSMInterpret {
				run, low, high = run[:0], v, v
			}
			run = append(run, v-bias)
			low, high = min(low, v), max(high, v)
			if len(run) < smOperations {
				continue
			}
			if parts := smParts(tables, run); parts != nil {
				return parts
			}
			if tries--; tries == 0 {
				return nil
			}
			run = append(run[:0], run[1:]...) // it may begin with the next
		}
	}
	return nil
}

const (
	maxSMInterpret = 256 << 10 // the most bytes that js::Interpret has, with what is between its parts,
	maxSMParts     = 4
)

// smParts returns the functions that addresses are in, nil where these are many, or less than half of the addresses are in one.
// None is where a function begins.
func smParts(tables *unwind.Table, addrs []uint64) (parts []vaddrRange) {
	var counts [maxSMParts]int
	most := 0
	for _, v := range addrs {
		i := 0
		for i < len(parts) && !parts[i].holds(v) {
			i++
		}
		if i == len(parts) {
			start, end, ok := tables.FunctionAt(v)
			if !ok || i == maxSMParts {
				return nil
			}
			parts = append(parts, vaddrRange{start, end})
		}
		if v == parts[i].start {
			return nil
		}
		counts[i]++
		most = max(most, counts[i])
	}
	if most < len(addrs)/2 {
		return nil
	}
	return parts
}

// smInterpFrame is a frame of the interpreter.
type smInterpFrame struct {
	at, script, pc uint64
	inJIT          bool
}

// smChain are frames of one js::Interpret, and since when they have been the same.
type smChain struct {
	frames []smInterpFrame
	since  time.Time
}

// interprets notes what a frame of js::Interpret runs. inner is the script whose frame is next to it within code that was
// made, nil where none is.
func (s *SpiderMonkey) interprets(vm *smVM, w *unwind.Walker, m *procstate.Mapping, in *unwind.Frame, inner *smScript) {
	rule := s.tables.For(m.Image).Rule(in.LookupPC() - m.Bias)
	reg, off, ok := rule.CFA()
	base, known := in.Regs.Value(reg)
	cfa := base + uint64(off)
	if !ok || !known || cfa <= in.SP() || cfa-in.SP() > maxSMInterpFrame {
		return
	}
	frame := make([]byte, cfa-in.SP())
	if !readAll(vm.mem, in.SP(), frame) {
		return
	}
	var found []smInterpFrame
	isCaptured := false
	le := binary.LittleEndian
	for b := frame; len(b) >= smRegsBytes; b = b[8:] {
		at, first, ok := smInterpretsAt(b)
		if !ok {
			continue
		}
		frames, captured := vm.interpreted(at, le.Uint64(b[smRegsPC:]), first)
		if frames == nil {
			continue
		}
		if found != nil {
			return // one of them is old
		}
		found, isCaptured = frames, captured
	}
	if found == nil || !isCaptured && !vm.lasts(in.SP(), found) {
		return
	}
	if found[0].inJIT {
		if inner == nil || inner.at != found[0].script {
			return
		}
		found = found[1:]
	}
	number := uint32(0)
	for i := len(found) - 1; i >= 0; i-- {
		f := &found[i]
		script := vm.scriptAt(f.script)
		if script == nil {
			return
		}
		place := smPlace{serial: script.serial, outer: number}
		if i > 0 || in.Flags&unwind.Interrupted == 0 || f.inJIT { // else a register may have it that is further on
			vm.readLines(script)
			place.line = script.lineAt(uint32(f.pc - script.bytecode.start))
		}
		if number = vm.codeOf(w.Codes(), script, place); number == 0 {
			return
		}
	}
	in.Code = number
}

// interpreted reads the frames of a js::Interpret, innermost first, nil where they are none. isCaptured tells that all of them
// are as they were at the moment of the capture.
func (vm *smVM) interpreted(at, pc, first uint64) (frames []smInterpFrame, isCaptured bool) {
	le := binary.LittleEndian
	isCaptured = true
	for len(frames) < maxSMInterpreted {
		var raw [smInterpBytes]byte
		if !isSMCell(at) {
			return nil, false
		}
		if !vm.read(at, raw[:]) {
			if isCaptured = false; !vm.readNow(at, raw[:]) {
				return nil, false
			}
		}
		script := le.Uint64(raw[smInterpScript:])
		s := vm.scriptAt(script)
		if s == nil || !s.bytecode.holds(pc) {
			return nil, false
		}
		frames = append(frames, smInterpFrame{at, script, pc, le.Uint32(raw[smInterpFlags:])&smRunsInJIT != 0})
		if at == first {
			return frames, isCaptured
		}
		at, pc = le.Uint64(raw[smInterpPrev:]), le.Uint64(raw[smInterpPrevPC:])
	}
	return nil, false
}

// lasts reports whether these frames were the same some time ago: they are read after what else there is of the stack,
// and could be those of other calls meanwhile.
func (vm *smVM) lasts(sp uint64, frames []smInterpFrame) bool {
	now := time.Now()
	c, known := vm.chains[sp]
	same := known && len(c.frames) == len(frames)
	for i := 0; same && i < len(frames); i++ {
		same = c.frames[i] == frames[i]
	}
	if !same {
		if len(vm.chains) >= maxSMChains {
			clear(vm.chains)
		}
		vm.chains[sp] = smChain{frames, now}
		return false
	}
	return now.Sub(c.since) >= smLasting
}

const maxSMChains = 1 << 8

// SpiderMonkeyCollector returns a Collector of what walks need of the interpreter in C++; nil where none of the libraries of the
// process has one.
func SpiderMonkeyCollector(libs procstate.LibraryState) procstate.Collector {
	for _, lib := range libs.Libraries() {
		if lib.Image != nil && findSM(lib.Image).is {
			return collectSM
		}
	}
	return nil
}

const (
	maxSMCollected = 256 << 10 // bytes of the stack of a thread that are looked through for what it interprets,
	maxSMFollowed  = 256       // and frames of the interpreter that are copied
)

// collectSM is the Collector.
func collectSM(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	sp := regs.Raw(procstate.AMD64.SP)
	left := maxSMFollowed
	var buf [16 << 10]byte
	for end := sp + maxSMCollected; sp < end && left > 0; {
		n, _ := m.ReadMemory(sp, buf[:])
		if n < smRegsBytes {
			return
		}
		for b := buf[:n&^7]; len(b) >= smRegsBytes && left > 0; b = b[8:] {
			if at, first, ok := smInterpretsAt(b); ok {
				left -= smFollow(m, at, first, left, add)
			}
		}
		sp += uint64(n&^7) - smRegsBytes + 8
		if n < len(buf) {
			return
		}
	}
}

// smFollow copies frames of the interpreter, so many at most, and returns how many it has looked at.
func smFollow(m procstate.Memory, at, first uint64, most int, add func(addr uint64, n int)) (looked int) {
	var raw [smInterpBytes]byte
	for looked < most {
		looked++
		if n, err := m.ReadMemory(at, raw[:]); err != nil || n < len(raw) {
			break
		}
		add(at, len(raw))
		if at == first {
			break
		}
		prev := binary.LittleEndian.Uint64(raw[smInterpPrev:])
		if !isSMCell(prev) {
			break
		}
		at = prev
	}
	return looked
}

// smInterpretsAt reports whether words of the stack may be what js::Interpret is at: the innermost and the outermost frame
// that it has.
func smInterpretsAt(b []byte) (at, first uint64, ok bool) {
	le := binary.LittleEndian
	sp, pc, mask := le.Uint64(b), le.Uint64(b[smRegsPC:]), le.Uint64(b[smRegsMask:])
	at, first = le.Uint64(b[smRegsFrame:]), le.Uint64(b[smRegsFirst:])
	ok = (mask == 0 || mask == 0xff) && isSMCell(sp) && isSMCell(at) && isSMCell(first) && sp > at && sp-at <= maxSMFrame && pc >= 1<<12 && pc < maxSMAddress
	return at, first, ok
}
