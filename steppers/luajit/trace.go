package luajit

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// A trace is the code of a path through several functions. Of the calls that it has inlined the stack of Lua has no
// frames. But where it is left, they are put there: for each exit there is a snapshot of the slots that are to be
// written, and where in the code it begins to hold (SnapShot, lj_jit.h), by which LuaJIT itself goes for an error in a
// function that the trace has called (lj_trace_unwind). Functions and links to callers are mostly constants. The code
// that follows may call or return until the next snapshot begins to hold: what both have runs there.

// traces are the traces of a global_State.
type traces struct {
	list    []*trace // by address of their code
	checked time.Time
}

// trace is a GCtrace.
type trace struct {
	at        uint64
	code      mcode.Range // run-time addresses
	head      [ljTraceBytes]byte
	snapshots []snapshot // by where they begin to hold; nil: they are not known
	isRead    bool
	slots     []constantSlot // of all snapshots
}

// snapshot is where the frames of inlined calls are in a part of a trace.
type snapshot struct {
	from       uint32 // offset in the code
	pc         uint64 // the instruction that goes on
	base       uint64 // of the innermost frame, behind that which the trace began in
	slots, end int
	tail       bool // it is the last one
}

// constantSlot is a slot of the stack that is a constant, by its number, of which 0 is the function that the trace began
// in. value is 0 where it is none.
type constantSlot struct {
	slot   uint64
	value  uint64
	isLink bool
}

// Fields of a GCtrace and of a snapshot, and bounds on what there is of them.
const (
	ljTraceSnaps    = 10 // 16 bits: how many
	ljTraceIR       = 32 // of an instruction by its number
	ljTraceLowest   = 40 // 32 bits: number of the first constant
	ljTraceMapSize  = 44 // 32 bits
	ljTraceSnap     = 48
	ljTraceMap      = 56
	ljTraceCodeSize = 84 // 32 bits
	ljTraceCode     = 88
	ljTraceBytes    = 96
	ljTraceKind     = 9

	ljSnapBytes = 12
	ljSnapMap   = 0 // 32 bits: of the first of its entries
	ljSnapFrom  = 6 // 16 bits
	ljSnapCount = 10

	ljSnapLink  = 1 << 16            // of an entry: the slot is a link,
	ljSnapFrame = ljSnapLink | 1<<17 // or one of the words before a continuation
	ljFirstIR   = 0x8000             // constants have lower numbers
	ljNil       = ljFirstIR - 1

	maxLuaJITTraces    = 1 << 16
	maxLuaJITTraceCode = 1 << 20
	maxLuaJITEntries   = 1 << 16

	luajitTraceInterval = 100 * time.Millisecond
)

// tracesOf returns the traces of a global_State, which may be to be read yet.
func (vm *machine) tracesOf(g *global) *traces {
	t := vm.traces[g.at]
	if t == nil {
		t = &traces{}
		vm.traces[g.at] = t
	}
	return t
}

// find returns the trace whose code has an address, nil where there is none.
func (t *traces) find(pc uint64) *trace {
	i, _ := slices.BinarySearchFunc(t.list, pc, func(t *trace, pc uint64) int { return cmp.Compare(t.code.Start, pc+1) })
	if i == 0 || !t.list[i-1].code.Holds(pc) {
		return nil
	}
	return t.list[i-1]
}

// isIn reports whether an address is in a trace, or in what there is between traces: code by which they are left.
func (t *traces) isIn(vm *machine, g *global, m *procstate.Mapping, pc uint64) bool {
	holds := func() bool {
		if t.find(pc) != nil {
			return true
		}
		i, _ := slices.BinarySearchFunc(t.list, m.Start, func(t *trace, start uint64) int { return cmp.Compare(t.code.Start, start) })
		return i < len(t.list) && t.list[i].code.Start < m.End
	}
	age := vm.now.Sub(t.checked)
	if age < interval && (t.find(pc) != nil || age < luajitTraceInterval) {
		return holds()
	}
	t.read(vm, g)
	return holds()
}

// read reads the traces that there are.
func (t *traces) read(vm *machine, g *global) {
	t.checked = vm.now
	var b [16]byte
	le := binary.LittleEndian
	if !vm.ReadNow(g.at+vm.imageInfo.traces, b[:]) {
		return
	}
	n := le.Uint32(b[12:])
	if n == 0 || n > maxLuaJITTraces {
		return
	}
	array := make([]byte, 8*n)
	if !vm.ReadNow(le.Uint64(b[:]), array) {
		return
	}
	known := map[uint64]*trace{}
	for _, is := range t.list {
		known[is.at] = is
	}
	t.list = t.list[:0]
	for ; len(array) > 0; array = array[8:] {
		at := le.Uint64(array)
		if at == 0 || at%8 != 0 {
			continue
		}
		is := &trace{at: at}
		if !vm.ReadNow(at, is.head[:]) || is.head[ljKind] != ljTraceKind {
			continue
		}
		start, size := le.Uint64(is.head[ljTraceCode:]), uint64(le.Uint32(is.head[ljTraceCodeSize:]))
		if start == 0 || size == 0 || size > maxLuaJITTraceCode {
			continue
		}
		is.code = mcode.Range{Start: start, End: start + size}
		if old := known[at]; old != nil && bytes.Equal(old.head[ljTraceSnaps:], is.head[ljTraceSnaps:]) {
			is = old
		}
		t.list = append(t.list, is)
	}
	slices.SortFunc(t.list, func(a, b *trace) int { return cmp.Compare(a.code.Start, b.code.Start) })
}

// snapshotsAt returns the one that holds at an address of the trace, and the next one, nil where that is not known or
// there is none.
func (t *trace) snapshotsAt(vm *machine, pc uint64) (at, next *snapshot) {
	if !t.isRead {
		t.isRead = true
		if !t.readSnapshots(vm) {
			t.snapshots, t.slots = nil, nil
		}
	}
	for i := range t.snapshots { // of those that begin at one place the last one holds
		s := &t.snapshots[i]
		if uint64(s.from) > pc-t.code.Start {
			return at, s
		}
		at = s
	}
	return at, nil
}

// common returns how many of the slots of a snapshot are the same in the one that follows, which of them is the link of
// the innermost frame that both have, and where that goes on, 0 where that is not known.
func (t *trace) common(s, next *snapshot) (slots []constantSlot, link, pc uint64) {
	link, pc, slots = s.base/8+1, s.pc+4, t.slots[s.slots:s.end]
	if next == nil {
		return slots, link, pc
	}
	others := t.slots[next.slots:next.end]
	n := 0
	for n < len(slots) && n < len(others) && (slots[n] == others[n] || slots[n].slot == 0 && others[n].slot == 0) {
		n++
	}
	if n == len(slots) && (n == len(others) || !slices.ContainsFunc(others[n:], func(o constantSlot) bool { return o.slot <= link })) {
		return slots, link, pc
	}
	in := uint64(1)
	for _, o := range slots[:n] {
		if o.isLink && o.slot > in {
			in = o.slot
		}
	}
	if in == link {
		return slots, link, pc
	}
	pc = 0
	for _, o := range slots[n:] {
		if o.isLink {
			if o.value&3 == ljFromLua {
				pc = o.value
			}
			break
		}
	}
	return slots[:n], in, pc
}

// readSnapshots reads the snapshots. ok is false where they do not fit together, as in versions that do not tell where
// they begin to hold.
func (t *trace) readSnapshots(vm *machine) (ok bool) {
	le := binary.LittleEndian
	n, entries := int(le.Uint16(t.head[ljTraceSnaps:])), le.Uint32(t.head[ljTraceMapSize:])
	lowest := le.Uint32(t.head[ljTraceLowest:])
	if n == 0 || entries == 0 || entries > maxLuaJITEntries || lowest > ljFirstIR {
		return false
	}
	snaps, list := make([]byte, n*ljSnapBytes), make([]byte, 4*entries)
	if !vm.ReadNow(le.Uint64(t.head[ljTraceSnap:]), snaps) || !vm.ReadNow(le.Uint64(t.head[ljTraceMap:]), list) {
		return false
	}
	constants := make([]byte, 8*(ljFirstIR+1-lowest))
	if !vm.ReadNow(le.Uint64(t.head[ljTraceIR:])+8*uint64(lowest), constants) {
		return false
	}
	constant := func(number uint32) uint64 { // it is in the slot behind
		if number < lowest || number >= ljFirstIR {
			return 0
		}
		return le.Uint64(constants[8*(number+1-lowest):])
	}
	before := snapshot{}
	last := uint32(0)
	for i := range n {
		b := snaps[i*ljSnapBytes:]
		first, count := le.Uint32(b[ljSnapMap:]), uint32(b[ljSnapCount])
		s := snapshot{from: uint32(le.Uint16(b[ljSnapFrom:])) * uint32(vm.arch.instruction), slots: len(t.slots), tail: i == n-1}
		if first < last || i == 0 && (first != 0 || s.from != 0) || s.from < before.from || uint64(s.from) > t.code.End-t.code.Start || first+count+2 > entries || first+count+2 < first {
			return false
		}
		last = first + count + 2
		entry := func(i uint32) uint32 { return le.Uint32(list[4*(first+i):]) }
		for k := range count {
			e := entry(k)
			slot, ref := uint64(e>>24), e&0xffff
			isFrame := e&ljSnapFrame != 0
			if ref == ljNil && isFrame {
				continue // the link stays as it is
			}
			isFunction := slot == 0 || k+1 < count && entry(k+1)>>24 == e>>24+1 && entry(k+1)&ljSnapFrame != 0
			switch {
			case isFrame:
				t.slots = append(t.slots, constantSlot{slot, constant(ref), e&ljSnapLink != 0})
			case isFunction && slot == 0 && ref >= ljFirstIR: // it was loaded from there
			case isFunction:
				if v := constant(ref); v != 0 {
					t.slots = append(t.slots, constantSlot{slot, v | funcTag<<47, false})
				} else {
					t.slots = append(t.slots, constantSlot{slot, 0, false})
				}
			}
		}
		where := uint64(entry(count)) | uint64(entry(count+1))<<32
		s.pc, s.base, s.end = where>>8, 8*(where&0xff), len(t.slots)
		if s.pc%4 != 0 {
			return false
		}
		t.snapshots = append(t.snapshots, s)
		before = s
	}
	vm.Kept += len(t.slots) * 16
	return true
}

// overlay is what a trace would put on the stack.
type overlay struct {
	isSet bool
	first uint64 // address of slot 0
	slots []constantSlot
}

// begin finds the innermost function of a trace, or of one that is being left, and where it goes on in its bytecode, 0
// where that is not known. The thread's link is then that of its frame.
func (o *overlay) begin(vm *machine, in *unwind.Frame, g *global, t *thread) (pc uint64) {
	*o = overlay{isSet: true, first: t.link - 8}
	trace := vm.tracesOf(g).find(in.LookupPC())
	if trace == nil {
		return 0
	}
	s, next := trace.snapshotsAt(vm, in.LookupPC())
	if s == nil || s.tail && s.base != 0 && o.isMoved(vm, trace, in.PC()) {
		return 0
	}
	slots, link, pc := trace.common(s, next)
	o.slots, t.link = slots, o.first+8*link
	return pc
}

// isMoved reports whether a trace has put down its frames already, at its end, and set the base for the one that
// follows.
func (o *overlay) isMoved(vm *machine, t *trace, pc uint64) bool {
	code := make([]byte, t.code.End-pc)
	if !vm.ReadNow(pc, code) {
		return true
	}
	sets := vm.arch.setsBase(vm.imageInfo)
	if bytes.Contains(code, sets) {
		return false
	}
	code = make([]byte, pc-t.code.Start)
	return !vm.ReadNow(t.code.Start, code) || bytes.Contains(code, sets)
}

// word returns what the trace would put at an address; is tells whether it would put anything there.
func (o *overlay) word(at uint64) (v uint64, is bool) {
	for i := range o.slots {
		if o.first+8*o.slots[i].slot == at {
			return o.slots[i].value, true
		}
	}
	return 0, false
}
