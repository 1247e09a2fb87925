package beam

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
)

// runtime is what is known of Erlang's runtime system in a process. Its structures are not the same
// in all releases: what is needed of them is taken from the code that BeamAsm makes, and from what they
// hold, where it is the only thing that fits.
type runtime struct {
	arch       *arch
	code       code
	paths      pathFinder
	descriptor uint64      // __jit_debug_descriptor; 0: not known yet
	schedulers uint64      // erts_aligned_scheduler_data, 0: not known
	count      uint64      // erts_no_schedulers, 0: not known
	main       mcode.Range // of the function of C process_main; 0: not known yet
	text, data mcode.Range // the file's code, and what it writes to

	isLaidOut bool
	looked    uint64 // the entry that the list began with when that was looked for
	registers uint64 // where Erlang's registers are from where the scheduler's stack goes on, which is what RBX has
	frame     uint64 // bytes that process_main takes off the stack, before it aligns it to align
	stop      uint64 // where a process has its stack pointer

	// Where the structure of a scheduler has the process that runs, and that of a process the end of
	// its stack, behind where its heap begins; 0: not known yet.
	current, end uint64

	byStack map[uint64]uint64 // the structures of schedulers by where their stacks go on,
	stacks  []uint64          // and these, in order

	sought   time.Time // when the list of code was last looked for that is not known,
	searched time.Time // and schedulers

	pace vmread.Pace // of what is read for a Collector
}

const (
	align = 64

	maxData       = 8 << 20 // bytes of what the runtime system writes to
	maxSchedulers = 1024
	maxScheduler  = 64 << 10 // bytes of the structure of one
	maxSearched   = 16 << 20 // bytes of all
	maxStacks     = 1 << 14  // of these and of what looks like one
	structBytes   = 1 << 10  // of structures, where fields are
	processHead   = 256      // of a process, with all that walks need
	maxStack      = 1 << 20  // bytes of an Erlang stack that are copied
)

// layOut finds out how process_main sets up its frame:
//
//	sub $n,%rsp
//	and $-64,%rsp
//	mov %rsp,(%rdi)
//	lea n(%rsp),%rbx
//
// or, where the return address is put down first:
//
//	stp x29, x30, [sp, #-16]!
//	mov x8, sp
//	sub x8, x8, #n
//	and x8, x8, #-64
//	mov sp, x8
//	str x8, [x0]
//	add x19, sp, #n
//
// and where a process has its stack pointer: by the code that collects garbage, which goes over to
// another stack and comes back.
func (rt *runtime) layOut(read vmread.Reader) {
	const shared, collects, most, mostCollects = "global", "global::garbage_collect", 16, 1 << 10 // instructions
	var main, collect *codeRange
	for _, m := range rt.code.modules {
		if m.name != shared { // there is a module of Erlang of that name, too
			continue
		}
		rt.code.at(read, m.start)
		for i := range m.ranges {
			switch r := &m.ranges[i]; r.name {
			case processMain:
				main, rt.code.shared = r, m.start
			case collects:
				collect = r
			}
		}
	}
	if main == nil || collect == nil {
		return
	}
	var in isa.Inst
	var offsets, aligned [procstate.MaxRegs]uint64 // from the stack pointer at first, and where the stack goes on, with 1 for being known
	a := rt.arch
	offsets[a.SP] = 1
	found := false
	for pc, n := main.start, 0; n < most && !found; n++ {
		code := rt.paths.codeAt(pc)
		if !mcode.Decode(a.Arch, code, pc, &in) || in.Flow != isa.Next {
			return
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Align && op.Imm == -align && offsets[op.Dst] != 0:
				rt.frame = -(offsets[op.Dst] - 1)
				offsets, aligned = [procstate.MaxRegs]uint64{}, [procstate.MaxRegs]uint64{}
				aligned[op.Dst] = 1
			case op.Kind == isa.Set && op.Dst == a.registers && aligned[op.Src] != 0:
				rt.registers, found = aligned[op.Src]-1+uint64(op.Imm), true
			case op.Kind == isa.Set:
				for _, from := range []*[procstate.MaxRegs]uint64{&offsets, &aligned} {
					if from[op.Dst] = from[op.Src]; from[op.Src] != 0 {
						from[op.Dst] += uint64(op.Imm)
					}
				}
			}
		}
		if slices.ContainsFunc(in.Ops[:in.NumOps], func(op isa.Op) bool { return op.Kind == isa.Store }) && offsets[a.SP] != 0 {
			offsets[a.SP] = 1 // what is put there with the return address does not count
		}
		pc += uint64(in.Len)
	}
	const plausible = 1 << 17
	if !found || rt.registers >= plausible || rt.frame <= rt.registers || rt.frame >= plausible {
		return
	}
	for pc, n := collect.start, 0; pc < collect.end && n < mostCollects; n++ {
		code := rt.paths.codeAt(pc)
		if !mcode.Decode(a.Arch, code, pc, &in) {
			return
		}
		for _, op := range in.Ops[:in.NumOps] {
			if op.Kind == isa.Load && op.Dst == a.stack && op.Src == a.process && op.Imm > 0 && op.Imm < processHead/2 {
				rt.stop, rt.isLaidOut = uint64(op.Imm), true
				return
			}
		}
		pc += uint64(in.Len)
	}
}

// update looks at what the process tells of its code. It reports whether all is known that walks need.
func (rt *runtime) update(read vmread.Reader) bool {
	if rt.descriptor == 0 && !rt.findDescriptor(read) {
		return false
	}
	rt.code.update(read, rt.descriptor)
	rt.paths.arch, rt.paths.code, rt.paths.read = rt.arch, &rt.code, read
	if !rt.isLaidOut && rt.looked != rt.code.first {
		rt.looked = rt.code.first
		rt.layOut(read)
	}
	return rt.isLaidOut
}

// findSchedulers finds the structures of schedulers, each of which has in its first word where its stack
// goes on below Erlang's registers.
func (rt *runtime) findSchedulers(read vmread.Reader) {
	if rt.byStack != nil {
		return
	}
	if rt.schedulers == 0 || rt.count == 0 || rt.main.Start == 0 {
		rt.searchSchedulers(read)
		return
	}
	var n [4]byte
	first, ok := read.Word(rt.schedulers)
	if !ok || first == 0 || !read(rt.count, n[:]) {
		return
	}
	le := binary.LittleEndian
	size := min(uint64(min(le.Uint32(n[:]), maxSchedulers))*maxScheduler, maxSearched)
	buf := make([]byte, maxScheduler)
	rt.byStack = map[uint64]uint64{}
	for at := first; at < first+size && read(at, buf); at += uint64(len(buf)) {
		for i := 0; i < len(buf) && len(rt.byStack) < maxStacks; i += align {
			if stack := le.Uint64(buf[i:]); stack != 0 && stack%align == 0 {
				if _, known := rt.byStack[stack]; !known {
					rt.byStack[stack] = at + uint64(i)
				}
			}
		}
	}
	rt.stacks = slices.Sorted(maps.Keys(rt.byStack))
}

// findDescriptor looks for where the list of code begins, which is told by its first two entries, among what the file
// writes to.
func (rt *runtime) findDescriptor(read vmread.Reader) bool {
	const version, actions, first, size = 1, 3, 16, 24
	if time.Since(rt.sought) < interval {
		return false
	}
	rt.sought = time.Now()
	le := binary.LittleEndian
	buf := make([]byte, rt.data.End-rt.data.Start)
	if !read(rt.data.Start, buf) {
		return false
	}
	for i := 0; i+size <= len(buf); i += 8 {
		if at := le.Uint64(buf[i+first:]); at != 0 && at%8 == 0 && le.Uint32(buf[i:]) == version && le.Uint32(buf[i+4:]) < actions && rt.code.isList(read, at) {
			rt.descriptor = rt.data.Start + uint64(i)
			return true
		}
	}
	return false
}

// searchSchedulers looks for the structures of schedulers where they are not exported, among what the file has
// addresses of; and for process_main, which all of them have called.
func (rt *runtime) searchSchedulers(read vmread.Reader) {
	if !rt.isLaidOut || time.Since(rt.searched) < interval {
		return
	}
	rt.searched = time.Now()
	le := binary.LittleEndian
	buf := make([]byte, rt.data.End-rt.data.Start)
	if !read(rt.data.Start, buf) {
		return
	}
	first, main := uint64(0), uint64(0)
	for i := 0; i+8 <= len(buf); i += 8 {
		at := le.Uint64(buf[i:])
		if at == 0 || at%align != 0 || at == first {
			continue
		}
		if target := rt.calledFrom(read, at); target != 0 {
			if first != 0 {
				return
			}
			first, main = at, target
		}
	}
	if first == 0 {
		return
	}
	rt.main, rt.byStack = mcode.Range{Start: main, End: main + 1}, map[uint64]uint64{}
	for at, last := first, first; at-last < maxScheduler && len(rt.byStack) < maxSchedulers; at += align {
		if rt.calledFrom(read, at) == main {
			stack, _ := read.Word(at)
			rt.byStack[stack], last = at, at
		}
	}
	rt.stacks = slices.Sorted(maps.Keys(rt.byStack))
}

// calledFrom returns which function of C like process_main has been called where the stack goes on by the structure of a
// scheduler; 0 where it is none, or there are several that may be.
func (rt *runtime) calledFrom(read vmread.Reader, scheduler uint64) (target uint64) {
	stack, ok := read.Word(scheduler)
	if !ok || stack == 0 || stack%align != 0 {
		return 0
	}
	var code [mcode.MaxCallLen]byte
	for at := stack + rt.frame + 8; at < stack+rt.frame+align; at += 16 {
		ra, ok := read.Word(at)
		if !ok || !rt.text.Holds(ra-mcode.MaxCallLen) || !read(ra-mcode.MaxCallLen, code[:]) {
			continue
		}
		if to, direct, ok := mcode.CallBefore(rt.arch.Arch, code[:], ra); ok && direct && rt.text.Holds(to) && rt.jumpsOn(read, to) {
			if target != 0 {
				return 0
			}
			target = to
		}
	}
	return target
}

// jumpsOn reports whether a function of C ends with a jump to where it has found out, as process_main does to the code
// that BeamAsm has made (erts/emulator/beam/jit/beam_jit_main.cpp).
func (rt *runtime) jumpsOn(read vmread.Reader, at uint64) bool {
	const most, ofPLT = 32, 17 // instructions; and what AArch64's PLT jumps by
	var code [16 * most]byte
	if !read(at, code[:]) {
		return false
	}
	var in isa.Inst
	for b, n := code[:], 0; n < most && mcode.Decode(rt.arch.Arch, b, at, &in); n++ {
		if in.Flow != isa.Next && in.Flow != isa.Call {
			isPLT := in.Target != 0 || rt.arch.isLinked && in.Reg == ofPLT
			return in.Flow == isa.IndirectJump && !isPLT
		}
		b, at = b[in.Len:], at+uint64(in.Len)
	}
	return false
}

// knowsFields reports whether it is known where a scheduler has the process that runs, and that its stack.
func (rt *runtime) knowsFields(read vmread.Reader, scheduler uint64) bool {
	if rt.current == 0 {
		rt.findFields(read, scheduler)
	}
	return rt.current != 0
}

// findFields finds out where a scheduler has the process that runs: that has the scheduler in a word. And
// where the process has the bounds of its heap, with the stack at its end: the stack pointer is between
// them or, where the stack has just been moved, the heap is filled up to between them; and three words behind
// the first is how many words it has.
func (rt *runtime) findFields(read vmread.Reader, scheduler uint64) {
	var s, p [structBytes]byte
	if !read(scheduler, s[:]) {
		return
	}
	le := binary.LittleEndian
	current, end := uint64(0), uint64(0)
	for i := 8; i < len(s); i += 8 {
		process := le.Uint64(s[i:])
		if process == 0 || process%8 != 0 || !read(process, p[:]) || !hasWord(p[:], scheduler) {
			continue
		}
		for at := rt.stop + 8; at+32 < processHead; at += 8 {
			heap, e, words := le.Uint64(p[at:]), le.Uint64(p[at+8:]), le.Uint64(p[at+24:])
			top, stop := le.Uint64(p[rt.stop-8:]), le.Uint64(p[rt.stop:])
			if heap != 0 && (heap < stop && stop < e || heap <= top && top < e) && words == (e-heap)/8 && (heap|e|stop)%8 == 0 {
				if current != 0 && (current != uint64(i) || end != at+8) {
					return
				}
				current, end = uint64(i), at+8
			}
		}
	}
	rt.current, rt.end = current, end
}

// hasWord reports whether bytes have a word.
func hasWord(b []byte, word uint64) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b) == word {
			return true
		}
	}
	return false
}

// find returns the runtime system among libraries, nil where there is none.
func find(libs procstate.LibraryState, image func(*procstate.Image) *imageInfo) *runtime {
	if libs == nil {
		return nil
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		if p := image(lib.Image); p.data != (mcode.Range{}) {
			run := func(vaddr uint64) uint64 {
				if vaddr == 0 {
					return 0
				}
				return vaddr + lib.Bias
			}
			area := func(r mcode.Range) mcode.Range { return mcode.Range{Start: run(r.Start), End: run(r.End)} }
			rt := &runtime{
				arch:       archOf(lib.Image.Arch()),
				descriptor: run(p.descriptor), schedulers: run(p.schedulers), count: run(p.count),
				main: area(p.main), text: area(p.code), data: area(p.data),
			}
			rt.paths.known = map[uint64]bool{}
			return rt
		}
	}
	return nil
}
