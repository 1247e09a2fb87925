package perl

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// A run is what one call of the loop runs. Its outermost context is one behind which the
// loop ends: it has no op to go on with. Runs are listed from the contexts, and each call of the loop
// on the C stack has the next one. What they are called by is on both sides, and has to be the same:
//
//	perl_run           the run of the program, which is all that is in no other
//	call_sv, eval_sv,  a subroutine, or the text of an eval. Runs of these have a loop
//	amagic_call
//	others             a block of sort, a sub that C calls again and again (MULTICALL), constants
//	                   that are folded. Their run is there also between two calls of the loop
//	docatch            none: for an eval it begins a loop that goes on for the one that called it,
//	                   to the end of the run
//
// Where one of this is not so, no loop further out has functions.

// loopKind is what a loop and its run are called by.
type loopKind uint8

const (
	perlUnknown loopKind = iota
	perlMain
	perlCalled
	perlEvaluated
	perlOverloaded
	perlOther
)

// run is what one call of the loop runs: subs[first:end], innermost first.
type run struct {
	kind       loopKind
	first, end int
	base       int    // its outermost context
	cop        uint64 // where it was called
	inner      bool   // its last op may have been called by what the next run is, in one loop
}

// sub is what a context runs: a subroutine, or, where sub is 0, an eval or a file.
type sub struct {
	sub, cop uint64
	mayBegin bool // the statement may be the one that has called it
	isText   bool // an eval of text
	isAbsent bool // it stands for contexts that were not copied
}

// runReader puts the runs of a thread together, innermost first.
type runReader struct {
	*machine
	cop   uint64 // the statement at which what comes next goes on
	first int    // of subs, the first of the run
	begun int    // of runs, the first of the stack of contexts
}

// readRuns lists the runs of the thread. isPushing tells that the innermost context may be one that is
// being begun, of which some is that of one before in its place.
func (vm *machine) readRuns(isPushing bool) bool {
	f, le := vm.fields, binary.LittleEndian
	info, context := vm.info[:], vm.cx[:f.contextBytes]
	r := runReader{machine: vm, cop: vm.head.curcop}
	si, left := vm.head.si, maxContexts
	for n := 0; si != 0 && n < maxInfos; n++ {
		if !vm.Read(si, info) {
			if n == 0 {
				vm.lacks = vm.Captured != nil
				return false
			}
			return r.cut()
		}
		contexts, last, kind := le.Uint64(info[siContexts:]), int(int32(le.Uint32(info[siLast:]))), le.Uint32(info[f.siType:])
		if last < -1 || last >= left {
			return false
		}
		left -= last + 1
		r.begun = len(vm.runs)
		if n == 0 {
			vm.top = last
		}
		for i := last; i >= 0; i-- {
			if !vm.Read(contexts+uint64(i)*f.contextBytes, context) {
				vm.lacks = vm.lacks || vm.Captured != nil && n == 0 && i == last
				return r.cut()
			}
			if len(vm.subs) >= maxSubs {
				return false
			}
			if n == 0 && i == last && isPushing && vm.isHalf(context, contexts, i) {
				vm.top--
			} else if !r.add(context, i, kind) {
				return false
			}
		}
		before := le.Uint64(info[siPrevious:])
		switch {
		case before == 0 && kind == siMain:
			if r.cop != 0 {
				vm.subs = append(vm.subs, sub{cop: r.cop})
			}
			r.end(perlMain, -1)
			return true
		case before == 0:
			return false
		case r.first != len(vm.subs):
			r.end(perlUnknown, -1)
		}
		si = before
	}
	return false
}

// add adds a context, number i of a stack of a kind, and reports whether it is one that is known.
func (r *runReader) add(context []byte, i int, kind uint32) bool {
	f, le := r.fields, binary.LittleEndian
	flags, before, goesOn := context[cxType], le.Uint64(context[cxCop:]), le.Uint64(context[cxReturn:]) != 0
	switch flags & cxKind {
	case cxSub, cxFormat:
		if flags&cxKind == cxFormat || flags&cxFake == 0 {
			if of := le.Uint64(context[f.sub:]); of != 0 { // else it is being begun, or left
				r.call(sub{sub: of}, before)
			}
			r.cop = before
		}
		switch {
		case goesOn:
		case flags&cxKind == cxSub && flags&cxMulti != 0:
			if flags&cxIsCode != 0 {
				r.inner(r.begun)
			}
			r.end(perlOther, i)
		case kind == siOverload && i == 0:
			r.end(perlOverloaded, i)
		default:
			r.end(perlCalled, i)
		}
	case cxEval:
		if flags&cxTry == 0 {
			op := uint32(le.Uint16(context[cxOp:]) >> 7)
			r.call(sub{isText: op == f.leaveEval-1}, before)
			if !goesOn {
				r.end(perlEvaluated, i)
			}
		} else if called := len(r.runs) - 1; !goesOn && (called < r.begun || r.runs[called].base != i+1 || r.runs[called].kind != perlCalled || r.first != len(r.subs)) {
			r.end(perlOther, i) // else it is that of call_sv, around what that calls
		}
	case cxNull:
		if kind == siSort && i == 0 {
			r.inner(r.begun)
			r.end(perlOther, i)
		}
	case cxDefer:
		if !f.hasDefer {
			return false
		}
		r.inner(r.begun)
		r.end(perlOther, i)
	case 14, 15:
		return false
	}
	return true
}

// call adds what a context runs, which the statement before has called.
func (r *runReader) call(s sub, before uint64) {
	s.cop, s.mayBegin = r.cop, r.cop == before && len(r.subs) == 0
	r.subs, r.cop = append(r.subs, s), before
}

// end ends a run, with its outermost context.
func (r *runReader) end(kind loopKind, base int) {
	r.runs = append(r.runs, run{kind: kind, first: r.first, end: len(r.subs), base: base, cop: r.cop})
	r.first = len(r.subs)
}

// cut ends the last run: the rest was not copied.
func (r *runReader) cut() bool {
	r.subs = append(r.subs, sub{isAbsent: true})
	r.end(perlUnknown, -1)
	return true
}

// isHalf reports whether the innermost context, number i, is not the one in which the op runs that does, nor one
// that this has begun. Of one that is being begun the statement may be that of one before, too.
func (vm *machine) isHalf(context []byte, contexts uint64, i int) bool {
	le := binary.LittleEndian
	root, ok := vm.rootOf(vm.head.op)
	before := le.Uint64(context[cxCop:])
	switch flags := context[cxType]; flags & cxKind {
	case cxSub, cxFormat:
		next, known := vm.WordNow(vm.head.op + opNext)
		of, isSub := vm.rootOfSub(le.Uint64(context[vm.fields.sub:]))
		begun := known && next == le.Uint64(context[cxReturn:]) && before == vm.head.curcop
		if begun || ok && isSub && root == of {
			return false
		}
		caller, known := vm.rootOf(before) // else it is a closure that has ended since
		return !ok || !known || root == caller || vm.isOuter(root, contexts, i)
	case cxEval:
		of, known := vm.rootOf(before)
		return flags&cxTry != 0 || !ok || !known || root == of || vm.isOuter(root, contexts, i)
	}
	return false
}

// isOuter reports whether a root is that of the subroutine which the context number i is in.
func (vm *machine) isOuter(root, contexts uint64, i int) bool {
	const most = 16
	b := vm.outer[:vm.fields.contextBytes]
	for j := i - 1; j >= max(0, i-most); j-- {
		if !vm.Read(contexts+uint64(j)*vm.fields.contextBytes, b) {
			return false
		}
		switch flags := b[cxType]; flags & cxKind {
		case cxSub:
			of := binary.LittleEndian.Uint64(b[vm.fields.sub:])
			if flags&cxFake != 0 || of == 0 {
				continue
			}
			is, ok := vm.rootOfSub(of)
			return ok && is == root
		case cxEval:
			if flags&cxTry == 0 {
				return false
			}
		}
	}
	return false
}

// inner marks the run before the one that ends, in the same PERL_SI, as one whose base may be called
// by that in the same loop: where the last op of a block calls, there is none to go on with.
func (vm *machine) inner(begun int) {
	if n := len(vm.runs); n > begun && (vm.runs[n-1].kind == perlCalled || vm.runs[n-1].kind == perlEvaluated) {
		vm.runs[n-1].inner = true
	}
}

// isSettled reports whether the innermost run has its loop, or needs none. Where a run has just
// begun or ended it may be that there is one without the other.
func (vm *machine) isSettled(isPushing bool) bool {
	f, le := vm.fields, binary.LittleEndian
	info, b := vm.info[:], vm.cx[:f.contextBytes]
	if len(vm.runs) == 0 || !vm.Read(vm.head.si, info) {
		return false
	}
	run := &vm.runs[0]
	switch run.kind {
	case perlCalled, perlEvaluated, perlOverloaded:
		if run.base == vm.top && run.cop == vm.head.curcop {
			return false // no statement has begun
		}
	}
	if isPushing {
		return true
	}
	op := uint32(0)
	if vm.head.op != 0 {
		var ok bool
		if op, ok = vm.opKindOf(vm.head.op); !ok || op != f.leaveSub && op != f.leaveSub+1 && op != f.ret && op != f.leaveEval {
			return ok
		}
	}
	if vm.top < 0 {
		return false
	}
	contexts := le.Uint64(info[siContexts:])
	if op == f.leaveSub || op == f.leaveSub+1 {
		if !vm.Read(contexts+uint64(vm.top)*f.contextBytes, b) {
			return false
		}
		if b[cxType]&cxKind == cxSub {
			if root, ok := vm.rootOfSub(le.Uint64(b[f.sub:])); ok && root == vm.head.op {
				return true
			}
		}
	}
	if !vm.Read(contexts+uint64(vm.top+1)*f.contextBytes, b) {
		return false
	}
	kind := b[cxType] & cxKind // of what was there before
	ends := (kind == cxSub && b[cxType]&cxMulti == 0 || kind == cxEval && b[cxType]&cxTry == 0) && le.Uint64(b[cxReturn:]) == 0
	return !ends
}

// take returns the subs of the run that the next loop has, further out than those before. goesOn
// tells that the loop goes on for another one.
func (vm *machine) take(kind loopKind, goesOn bool) (first, end int) {
	i := vm.next
	isOther := func(i int) bool { return i < len(vm.runs) && vm.runs[i].kind == perlOther }
	if kind != perlOther {
		for isOther(i) {
			i++ // between two calls
		}
	}
	if i == len(vm.runs) {
		vm.lost = true
		return 0, 0
	}
	last := i
	switch run := &vm.runs[i]; {
	case run.kind == perlUnknown:
		vm.lost = true // of what is further out nothing is known
	case kind != perlOther:
		vm.lost = run.kind != kind
	default:
		for vm.runs[last].inner && last+1 < len(vm.runs) {
			last++
		}
		switch {
		case !isOther(last):
			vm.lost = true
		case last == i && isOther(i+1) && (i == 0 && vm.head.op == 0 || i > 0 && vm.runs[i-1].kind != perlOther):
			return 0, 0 // it may be the one behind it
		}
	}
	run := vm.runs[i]
	if vm.lost && run.kind != perlUnknown {
		return 0, 0
	}
	first, end = run.first, vm.runs[last].end
	if vm.shared {
		end = first // the loop that went on for it has them
	}
	if vm.shared = goesOn; !goesOn {
		vm.next = last + 1
	} else {
		vm.next = i
	}
	return first, end
}

// loopKind tells what a loop was called by, and whether it goes on for another: then it is what
// that was called by.
func (vm *machine) loopKind(w *unwind.Walker, in *unwind.Frame) (kind loopKind, goesOn bool) {
	const most = 8 // loops that go on for others
	a, b := &vm.frames[0], &vm.frames[1]
	*a = *in
	for range most {
		if !vm.caller(w, a, b) {
			return perlUnknown, false
		}
		start, isMine := vm.functionAt(w, b.LookupPC())
		if isMine {
			for k := perlMain; k <= perlOverloaded; k++ {
				if start == vm.callers[k].Start {
					return k, goesOn
				}
			}
		}
		if !vm.caller(w, b, a) {
			return perlOther, goesOn // which has to fit
		}
		if start, mine := vm.functionAt(w, a.LookupPC()); mine {
			if start == vm.callers[perlMain].Start {
				return perlMain, goesOn
			}
			if vm.readOps(); vm.catching[start] {
				*b = *a
				if !vm.caller(w, b, a) {
					return perlUnknown, false
				}
				start, mine = vm.functionAt(w, a.LookupPC())
			}
			if mine && start == vm.loop.Start {
				if !isMine {
					return perlUnknown, false // a module's own
				}
				goesOn = true
				continue
			}
		}
		return perlOther, goesOn
	}
	return perlUnknown, false
}

// caller finds the caller of a frame by tables alone.
func (vm *machine) caller(w *unwind.Walker, in, out *unwind.Frame) bool {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return false
	}
	*out = unwind.Frame{}
	v, err := vm.tables.For(m.Image).Rule(in.LookupPC()-m.Bias).CallerFrame(w, in, out)
	return v == unwind.Success && err == nil
}

// functionAt returns where the function begins that a run-time address is in, if it is the interpreter's.
func (vm *machine) functionAt(w *unwind.Walker, pc uint64) (start uint64, ok bool) {
	m := w.MappingAt(pc)
	if m == nil || m.Image != vm.image || m.Bias != vm.bias {
		return 0, false
	}
	start, _, ok = vm.tables.For(m.Image).FunctionAt(pc - m.Bias)
	return start, ok
}

// readOps finds functions of ops, if that was not done before.
func (vm *machine) readOps() {
	if vm.catching != nil {
		return
	}
	read := func(numbers []uint32) map[uint64]bool {
		functions := map[uint64]bool{}
		for _, n := range numbers {
			if at, ok := vm.WordNow(vm.ops + vm.bias + 8*uint64(n)); ok && n != 0 {
				functions[at-vm.bias] = true
			}
		}
		return functions
	}
	vm.catching, vm.pushing, vm.leaving = read(vm.fields.catching()), read(vm.fields.pushing()), read(vm.fields.leaving())
}

// isOrdinary reports whether contexts are left as those of blocks are, by what runs in them: else it
// is by an exception, or the end of the program, and loops are left too.
func (vm *machine) isOrdinary(w *unwind.Walker, in *unwind.Frame) bool {
	out := &vm.frames[0]
	if !vm.caller(w, in, out) {
		return false
	}
	vm.readOps()
	start, ok := vm.functionAt(w, out.LookupPC())
	return ok && vm.leaving[start]
}

// isPushing reports whether the function runs of an op that begins a context.
func (vm *machine) isPushing(w *unwind.Walker, tid procstate.ThreadID) bool {
	regs := &vm.regs
	if w.ProcessState().Registers(tid, regs) != nil {
		return true
	}
	vm.readOps()
	start, ok := vm.functionAt(w, regs.Raw(w.Arch().PC))
	return ok && vm.pushing[start]
}
