package wazero

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of wazero in a process.
type machine struct {
	*imageInfo
	image *procstate.Image // nil: there is none
	bias  uint64
	vmread.Memory
	vmread.Found

	// Of the walk:
	entries   []entry
	isSought  bool // for those
	isWhole   bool // all of the goroutine's stack was looked through
	goroutine mcode.Range
	other     entry // one that is none of these
	stack     []byte
	pcs       []uint64

	stacks map[uint64]mcode.Range // of call engines as they were last, by their execution contexts

	names
}

// entry is where a goroutine has gone over to compiled code.
type entry struct {
	context uint64 // address of the execution context
	sp      uint64 // on the goroutine's stack: where the return address is
	way     *way
	given   uint64         // on the stack of compiled code: where it began, or goes on
	isSure  bool           // it is not what is left of an earlier call
	stacks  [2]mcode.Range // that compiled code runs on, as it is now and as it was when it was last met
}

// Where the execution context, and a call engine, which is around it, have what (wazevo/call_engine.go): alike since
// wazero 1.8, and some of it known to compiled code and assembly.
const (
	engineContext = 96

	engineStack  = 16 // a slice of bytes
	engineParent = 64 // address of the moduleEngine

	contextExitCode = 0
	contextGoSP     = 24
	contextBottom   = 40   // the low end of the stack
	contextReturn   = 48   // where compiled code that has called Go goes on,
	contextSP       = 56   // its SP then,
	contextFP       = 1152 // and RBP
)

const (
	// maxGoStack is how much of a goroutine's stack is looked through, in bytes: what is innermost.
	maxGoStack = 1 << 20
	// maxStack bounds the stack of compiled code, in bytes: it is 400 MB in wazero, and twice that for what comes last.
	maxStack   = 1 << 30
	maxEntries = 1 << 10
)

// machine returns what is known of wazero in the process that w walks, nil where there is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, isNew := vmread.MachineOf(w, s, s.findMachine)
	if vm.image == nil {
		return nil
	}
	if isNew {
		vm.entries, vm.isSought = vm.entries[:0], false
		vm.begin(w)
	}
	return vm
}

// findMachine looks for wazero, which may be the one that is known. What it returns has no image where there is none.
func (s *Stepper) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	if libs == nil {
		return &machine{}
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.rt == nil {
			continue
		}
		if known != nil && known.image == lib.Image && known.bias == lib.Bias {
			known.modulesUntil = time.Time{}
			return known
		}
		return &machine{
			imageInfo: p, image: lib.Image, bias: lib.Bias, Memory: vmread.MemoryOf(w), stacks: map[uint64]mcode.Range{}, names: newNames(),
		}
	}
	return &machine{}
}

// entryOf returns where the goroutine of a frame has gone over to the code that runs in it, nil where that is not known.
// The only place is that one, where all of the goroutine's stack was looked through.
// Where there are several it is one that leads nowhere.
func (vm *machine) entryOf(w *unwind.Walker, f *unwind.Frame) *entry {
	if !vm.isSought {
		vm.isSought = true
		vm.seek(w, f)
	}
	sp := f.SP()
	isGo := vm.goroutine.Holds(sp)
	for i := range vm.entries {
		if e := &vm.entries[i]; isGo && sp == e.sp || !isGo && e.isSure && e.holds(sp) {
			return e
		}
	}
	if len(vm.entries) == 1 && vm.isWhole && !isGo && vm.Captured != nil {
		return &vm.entries[0]
	}
	if len(vm.entries) > 0 && !isGo {
		vm.other = entry{}
		return &vm.other
	}
	return nil
}

// between returns the entry of a frame that is still on the goroutine's stack, or there again: its return address leads to
// the wrapper. It is nil for others.
func (vm *machine) between(f *unwind.Frame) *entry {
	if f.Flags&unwind.Interrupted == 0 || vm.calls.bytes == 0 {
		return nil
	}
	ra, _ := vm.Word(f.SP())
	for i := range vm.ways {
		if way := &vm.ways[i]; ra == vm.bias+way.ret {
			vm.other = entry{sp: f.SP(), way: way}
			return &vm.other
		}
	}
	return nil
}

// byTop returns the only entry whose code may have begun at an SP, nil where there are several: what was given a stack
// began there, and of those that have called Go since it is another one.
func (vm *machine) byTop(sp uint64) (found *entry) {
	for i := range vm.entries {
		e := &vm.entries[i]
		if e.way == &vm.ways[0] && e.given != sp || e.stacks[0].End != 0 && !e.holds(sp) {
			continue
		}
		if found != nil || !e.isSure {
			return nil
		}
		found = e
	}
	return found
}

// holds reports whether an SP is in the stack of compiled code, as far as that is known.
func (e *entry) holds(sp uint64) bool {
	for _, s := range e.stacks {
		if s.End != 0 && sp-s.Start <= s.End-s.Start {
			return true
		}
	}
	return false
}

// seek looks through the stack of the goroutine that the frame's thread runs for where it has gone over to compiled code.
// What is left of earlier calls may look the same.
func (vm *machine) seek(w *unwind.Walker, f *unwind.Frame) {
	vm.goroutine, vm.isWhole = mcode.Range{}, false
	if vm.calls.bytes == 0 {
		return
	}
	data, at := vm.goroutineStack(f)
	ret0, ret1 := vm.bias+vm.ways[0].ret, vm.bias+vm.ways[1].ret
	for i := 0; i+8 <= len(data) && len(vm.entries) < maxEntries; i += 8 {
		word := binary.LittleEndian.Uint64(data[i:])
		if word != ret0 && word != ret1 {
			continue
		}
		way := &vm.ways[0]
		if word == ret1 {
			way = &vm.ways[1]
		}
		if context, ok := vm.entered(w, data, i, at, way); ok {
			given := binary.LittleEndian.Uint64(data[uint64(i)+way.stack:])
			vm.entries = append(vm.entries, entry{context: context, sp: at + uint64(i), way: way, given: given})
		}
	}
	vm.entries = slices.DeleteFunc(vm.entries, func(e entry) bool {
		return vm.others(&e) > 0 && !vm.isCalled(data, at, &e)
	})
	for i := range vm.entries {
		vm.judge(&vm.entries[i])
	}
}

// others counts the other entries of a call engine.
func (vm *machine) others(e *entry) (n int) {
	for i := range vm.entries {
		if o := &vm.entries[i]; o.sp != e.sp && o.context == e.context {
			n++
		}
	}
	return n
}

// goroutineStack returns what there is of the stack of the goroutine that runs, and its address. The bytes are valid until the
// next walk.
func (vm *machine) goroutineStack(f *unwind.Frame) (data []byte, at uint64) {
	var b [8]byte
	word := func(addr uint64) (v uint64) {
		if vm.Read(addr, b[:]) {
			v = binary.LittleEndian.Uint64(b[:])
		}
		return v
	}
	g := uint64(0)
	if at, ok := vm.rt.GAddr(vm.Mem, vm.bias, f.Regs.ThreadPointer); ok {
		g = word(at)
	}
	if g == 0 {
		return nil, 0
	}
	curg := word(word(g+uint64(vm.rt.M)) + uint64(vm.rt.CurG))
	if curg == 0 {
		return nil, 0
	}
	low, high := word(curg+uint64(vm.rt.StackLo)), word(curg+uint64(vm.rt.StackHi))
	if high <= low || high%8 != 0 {
		return nil, 0
	}
	vm.goroutine = mcode.Range{Start: low, End: high}
	if s, ok := vm.Mem.(*procstate.Snapshot); ok {
		r := s.RegionAt(high - 8) // the largest, if one is a part of another
		for _, o := range s.Regions() {
			if len(o.Data) > len(r.Data) && high-8-o.Addr < uint64(len(o.Data)) {
				r = o
			}
		}
		if r.Addr > high-8 || len(r.Data) == 0 {
			return nil, 0
		}
		skip := -r.Addr % 8
		if r.Addr < low {
			skip = low - r.Addr
		}
		end := min(high-r.Addr, uint64(len(r.Data)))
		vm.isWhole = r.Addr <= low
		return r.Data[min(skip, end):end], r.Addr + skip
	}
	from := max(low, high-min(high, maxGoStack))
	vm.stack = append(vm.stack[:0], make([]byte, high-from)...)
	if !vm.Read(from, vm.stack) {
		return nil, 0
	}
	vm.isWhole = from == low
	return vm.stack, from
}

// entered returns the execution context where the return address at data[i], which begins at an address, is that of a way
// into compiled code: around it there is all that callWithStack and the wrapper that it calls have there, and from there
// frame pointers lead on to the end of the stack.
func (vm *machine) entered(w *unwind.Walker, data []byte, i int, at uint64, way *way) (context uint64, ok bool) {
	word := func(off uint64) uint64 {
		if off > uint64(len(data)) || uint64(len(data))-off < 8 {
			return 0
		}
		return binary.LittleEndian.Uint64(data[off:])
	}
	calls := uint64(i) + 8 + way.bytes + 8 // SP of callWithStack
	above := calls + vm.calls.bytes + 8    // and of its caller, where it has put its receiver
	context = word(uint64(i) + way.context)
	isCalled := vm.calls.Holds(word(calls-8) - 1 - vm.bias)
	isItsFrame := word(calls-16) == at+above-16 // the frame pointer, which the wrapper has pushed
	if !isCalled || !isItsFrame || context%8 != 0 || context == 0 || word(above) != context-engineContext {
		return 0, false
	}
	for frame := above - 16; ; {
		outer := word(frame)
		if outer == 0 {
			return context, true
		}
		if m := w.MappingAt(word(frame+8) - 1); m == nil || m.Image == nil || outer-at <= frame || outer-at >= uint64(len(data)) {
			return 0, false
		}
		frame = outer - at
	}
}

// judge finds out whether an entry is of a call that is under way, and on which stack its code runs. It is the one that
// the execution context has, where that was copied. In a sample it was not, and by now it can be of a later call: there it is
// the only one of its call engine, where all of the goroutine's stack was looked through, or the context still has it. Call
// engines are read as they are now then, and when the process has ended as they were last.
func (vm *machine) judge(e *entry) {
	isOnly := vm.isWhole && vm.Captured != nil && vm.others(e) == 0
	e.isSure = isOnly
	e.stacks[1] = vm.stacks[e.context]
	var c callEngine
	at := e.context - engineContext
	isThen := vm.Read(at, c[:])
	if !isThen && !vm.ReadNow(at, c[:]) {
		return
	}
	stack, ok := c.stack()
	if !ok || e.given-stack.Start > stack.End-stack.Start {
		return // it is no more, or another
	}
	if isLast := c.word(engineContext+contextGoSP) == e.sp; isThen {
		e.isSure = isLast
	} else {
		e.isSure = isOnly || isLast && vm.others(e) == 0
	}
	e.stacks[0] = stack
	if len(vm.stacks) >= maxEntries {
		clear(vm.stacks)
	}
	vm.stacks[e.context] = stack
	vm.addEngine(c.word(engineParent))
}
