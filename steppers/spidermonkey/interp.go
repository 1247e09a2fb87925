package spidermonkey

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// SpiderMonkey's interpreter in C++ runs what has not been called often, and what files do themselves. It is one function,
// js::Interpret, which has the places for all operations in a table, and in its frame what it is at (FrameRegs,
// in the InterpreterActivation): a stack pointer of its own, a place in the bytecode, its frame, and the outermost of those that it has:
// it calls functions without calling itself.
const (
	operations = 256 // in the table

	regsPC    = 8 // behind the stack pointer
	regsFrame = 16
	regsFirst = 24
	regsMask  = 32 // 0, or all bits of an operation's number set when it has been asked to stop
	regsBytes = 40

	interpFlags  = 0x00 // of an InterpreterFrame (32 bits): see runsInJIT,
	interpScript = 0x08 // the script,
	interpPrev   = 0x28 // the frame that it was called from by the same js::Interpret, and perhaps others,
	interpPrevPC = 0x30 // and where that is in its bytecode
	interpBytes  = 0x38

	runsInJIT = 1 << 8 // in the flags: code that was made goes on with it, which has a frame of its own

	maxInterpreted = 1 << 10 // frames of one js::Interpret
	maxInterpFrame = 4 << 10 // bytes of its frame that are looked through
	lasting        = time.Second
)

// findInterpret finds js::Interpret in the file, by its table, which is in memory once the file is loaded: most of it in one
// piece, and perhaps what is seldom executed elsewhere. The addresses are link-time addresses.
func (vm *machine) findInterpret(tables *unwind.Table, im *procstate.Image, bias uint64) []mcode.Range {
	const most = 64 << 20
	text, ok1 := im.Section(".text")
	data, ok2 := im.Section(".data.rel.ro")
	if !ok1 || !ok2 || data.Size > most {
		return nil
	}
	is := mcode.Range{Start: text.Vaddr + bias, End: text.Vaddr + text.Size + bias}
	buf := make([]byte, 64<<10)
	run := make([]uint64, 0, operations) // words that may be of one function
	var low, high uint64                 // of these
	tries := 1 << 10
	for off := uint64(0); off < data.Size; off += uint64(len(buf)) {
		part := buf[:min(uint64(len(buf)), data.Size-off)]
		if !vmread.ReadNow(vm.Mem, vm.Live, data.Vaddr+bias+off, part) {
			return nil
		}
		for ; len(part) >= 8; part = part[8:] {
			v := binary.LittleEndian.Uint64(part)
			if !is.Holds(v) {
				run = run[:0]
				continue
			}
			if len(run) == 0 || max(high, v)-min(low, v) > maxInterpret {
				run, low, high = run[:0], v, v
			}
			run = append(run, v-bias)
			low, high = min(low, v), max(high, v)
			if len(run) < operations {
				continue
			}
			if parts := partsOf(tables, run); parts != nil {
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
	maxInterpret = 256 << 10 // the most bytes that js::Interpret has, with what is between its parts,
	maxParts     = 4
)

// partsOf returns the functions that addresses are in, nil where these are many, or less than half of the addresses are in one.
// None is where a function begins.
func partsOf(tables *unwind.Table, addrs []uint64) (parts []mcode.Range) {
	var counts [maxParts]int
	most := 0
	for _, v := range addrs {
		i := 0
		for i < len(parts) && !parts[i].Holds(v) {
			i++
		}
		if i == len(parts) {
			start, end, ok := tables.FunctionAt(v)
			if !ok || i == maxParts {
				return nil
			}
			parts = append(parts, mcode.Range{Start: start, End: end})
		}
		if v == parts[i].Start {
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

// interpFrame is a frame of the interpreter.
type interpFrame struct {
	at, script, pc uint64
	inJIT          bool
}

// chain are frames of one js::Interpret, and since when they have been the same.
type chain struct {
	frames []interpFrame
	since  time.Time
}

// interprets notes what a frame of js::Interpret runs. inner is the script whose frame is next to it within code that was
// made, nil where none is.
func (s *Stepper) interprets(vm *machine, w *unwind.Walker, m *procstate.Mapping, in *unwind.Frame, inner *scriptInfo) {
	rule := s.tables.For(m.Image).Rule(in.LookupPC() - m.Bias)
	reg, off, ok := rule.CFA()
	base, known := in.Regs.Value(reg)
	cfa := base + uint64(off)
	if !ok || !known || cfa <= in.SP() || cfa-in.SP() > maxInterpFrame {
		return
	}
	frame := make([]byte, cfa-in.SP())
	if !vmread.ReadAll(vm.Mem, in.SP(), frame) {
		return
	}
	var found []interpFrame
	isCaptured := false
	le := binary.LittleEndian
	for b := frame; len(b) >= regsBytes; b = b[8:] {
		at, first, ok := interpretsAt(b)
		if !ok {
			continue
		}
		frames, captured := vm.interpreted(at, le.Uint64(b[regsPC:]), first)
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
		place := framePlace{serial: script.serial, outer: number}
		if i > 0 || in.Flags&unwind.Interrupted == 0 || f.inJIT { // else a register may have it that is further on
			vm.readLines(script)
			place.line = script.lineAt(uint32(f.pc - script.bytecode.Start))
		}
		if number = vm.codeOf(w.Codes(), script, place); number == 0 {
			return
		}
	}
	in.Code = number
}

// interpreted reads the frames of a js::Interpret, innermost first, nil where they are none. isCaptured tells that all of them
// are as they were at the moment of the capture.
func (vm *machine) interpreted(at, pc, first uint64) (frames []interpFrame, isCaptured bool) {
	le := binary.LittleEndian
	isCaptured = true
	for len(frames) < maxInterpreted {
		var raw [interpBytes]byte
		if !isCell(at) {
			return nil, false
		}
		if !vm.Read(at, raw[:]) {
			if isCaptured = false; !vm.ReadNow(at, raw[:]) {
				return nil, false
			}
		}
		script := le.Uint64(raw[interpScript:])
		s := vm.scriptAt(script)
		if s == nil || !s.bytecode.Holds(pc) {
			return nil, false
		}
		frames = append(frames, interpFrame{at, script, pc, le.Uint32(raw[interpFlags:])&runsInJIT != 0})
		if at == first {
			return frames, isCaptured
		}
		at, pc = le.Uint64(raw[interpPrev:]), le.Uint64(raw[interpPrevPC:])
	}
	return nil, false
}

// lasts reports whether these frames were the same some time ago: they are read after what else there is of the stack,
// and could be those of other calls meanwhile.
func (vm *machine) lasts(sp uint64, frames []interpFrame) bool {
	now := time.Now()
	c, known := vm.chains[sp]
	same := known && len(c.frames) == len(frames)
	for i := 0; same && i < len(frames); i++ {
		same = c.frames[i] == frames[i]
	}
	if !same {
		if len(vm.chains) >= maxChains {
			clear(vm.chains)
		}
		vm.chains[sp] = chain{frames, now}
		return false
	}
	return now.Sub(c.since) >= lasting
}

const maxChains = 1 << 8

// Collector returns a Collector of what walks need of the interpreter in C++; nil where none of the libraries of the
// process has one.
func Collector(libs procstate.LibraryState) procstate.Collector {
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image != nil && find(lib.Image).is {
			return collector{lib.Image.Arch()}.collect
		}
	}
	return nil
}

const (
	maxCollected = 256 << 10 // bytes of the stack of a thread that are looked through for what it interprets,
	maxFollowed  = 256       // and frames of the interpreter that are copied
)

type collector struct{ arch *procstate.Arch }

// collect is the Collector.
func (c collector) collect(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	sp := regs.Raw(c.arch.SP)
	left := maxFollowed
	var buf [16 << 10]byte
	for end := sp + maxCollected; sp < end && left > 0; {
		n := procstate.ReadPart(m, sp, buf[:])
		if n < regsBytes {
			return
		}
		for b := buf[:n&^7]; len(b) >= regsBytes && left > 0; b = b[8:] {
			if at, first, ok := interpretsAt(b); ok {
				left -= follow(m, at, first, left, add)
			}
		}
		sp += uint64(n&^7) - regsBytes + 8
		if n < len(buf) {
			return
		}
	}
}

// follow copies frames of the interpreter, so many at most, and returns how many it has looked at.
func follow(m procstate.Memory, at, first uint64, most int, add func(addr uint64, n int)) (looked int) {
	var raw [interpBytes]byte
	for looked < most {
		looked++
		if n, err := m.ReadMemory(at, raw[:]); err != nil || n < len(raw) {
			break
		}
		add(at, len(raw))
		if at == first {
			break
		}
		prev := binary.LittleEndian.Uint64(raw[interpPrev:])
		if !isCell(prev) {
			break
		}
		at = prev
	}
	return looked
}

// interpretsAt reports whether words of the stack may be what js::Interpret is at: the innermost and the outermost frame
// that it has.
func interpretsAt(b []byte) (at, first uint64, ok bool) {
	le := binary.LittleEndian
	sp, pc, mask := le.Uint64(b), le.Uint64(b[regsPC:]), le.Uint64(b[regsMask:])
	at, first = le.Uint64(b[regsFrame:]), le.Uint64(b[regsFirst:])
	ok = (mask == 0 || mask == 0xff) && isCell(sp) && isCell(at) && isCell(first) && sp > at && sp-at <= maxFrame && pc >= 1<<12 && pc < maxAddress
	return at, first, ok
}
