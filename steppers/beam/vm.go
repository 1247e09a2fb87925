package beam

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
)

// runtime is what is known of Erlang's runtime system in a process. Its structures are not the same
// in all releases: what is needed of them is taken from the code that BeamAsm makes, and from what they
// hold, where it is the only thing that fits.
type runtime struct {
	code       code
	paths      pathFinder
	descriptor uint64      // __jit_debug_descriptor
	schedulers uint64      // erts_aligned_scheduler_data
	count      uint64      // erts_no_schedulers
	main       mcode.Range // of the function of C process_main

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

	pace vmread.Pace // of what is read for a Collector
}

const (
	align = 64

	maxSchedulers = 1024
	maxScheduler  = 64 << 10 // bytes of the structure of one
	maxSearched   = 16 << 20 // bytes of all
	maxStacks     = 1 << 14  // of these and of what looks like one
	structBytes   = 1 << 10  // of structures, where fields are
	processHead   = 256      // of a process, with all that walks need
	maxStack      = 1 << 20  // bytes of an Erlang stack that are copied
	below         = 256      // and so many below where the process has its stack pointer, which it updates at times
)

// layOut finds out how process_main sets up its frame:
//
//	sub $n,%rsp
//	and $-64,%rsp
//	mov %rsp,(%rdi)
//	lea n(%rsp),%rbx
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
	aligned := false
	for pc, n := main.start, 0; n < most && rt.registers == 0; n++ {
		code := rt.paths.codeAt(pc)
		if !isa.DecodeAMD64(code, pc, &in) || in.Flow != isa.Next {
			return
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Set && op.Dst == beamSP && op.Src == beamSP:
				rt.frame = uint64(-op.Imm)
			case op.Kind == isa.Align && op.Dst == beamSP:
				aligned = op.Imm == -align
			case op.Kind == isa.Set && op.Dst == beamRegisters && op.Src == beamSP:
				rt.registers = uint64(op.Imm)
			}
		}
		pc += uint64(in.Len)
	}
	const plausible = 1 << 17
	if !aligned || rt.registers == 0 || rt.registers >= plausible || rt.frame <= rt.registers || rt.frame >= plausible {
		return
	}
	for pc, n := collect.start, 0; pc < collect.end && n < mostCollects; n++ {
		code := rt.paths.codeAt(pc)
		if !isa.DecodeAMD64(code, pc, &in) {
			return
		}
		for _, op := range in.Ops[:in.NumOps] {
			if op.Kind == isa.Load && op.Dst == beamSP && op.Src == beamProcess && op.Imm > 0 && op.Imm < processHead/2 {
				rt.stop, rt.isLaidOut = uint64(op.Imm), true
				return
			}
		}
		pc += uint64(in.Len)
	}
}

// update looks at what the process tells of its code. It reports whether all is known that walks need.
func (rt *runtime) update(read vmread.Reader) bool {
	rt.code.update(read, rt.descriptor)
	rt.paths.code, rt.paths.read = &rt.code, read
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
		if p := image(lib.Image); p.descriptor != 0 {
			rt := &runtime{descriptor: p.descriptor + lib.Bias, schedulers: p.schedulers + lib.Bias, count: p.count + lib.Bias}
			rt.main = mcode.Range{Start: p.main.Start + lib.Bias, End: p.main.End + lib.Bias}
			rt.paths.known = map[uint64]bool{}
			return rt
		}
	}
	return nil
}
