package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// Go walks through Go code by the function table that every Go program
// carries, stripped or not: it gives the exact height of the stack at every
// instruction. It also crosses from one stack of a thread to another, as the
// runtime does with systemstack, mcall, morestack, calls of C and calls back.
//
// It runs before the Debug stepper: the .debug_frame section of a Go program
// says the same of ordinary functions, but is often stripped, and describes
// the functions that switch stacks as if they did not.
//
// The current g of a thread is found through its thread pointer. Where that,
// or the memory that it leads to, is not at hand, frame pointers lead across
// systemstack and calls of C; the other switches fail.
type Go struct {
	images mcode.PerImage[goImage]
	rules  [1 << 12]goRule
	linked Analysis // of C that Go's linker has put in
	kept   int64    // bytes of function tables that have been read
	code   [mcode.MaxCallLen]byte

	walk goWalk
}

// goImage is what the stepper knows of a file; table is nil when it holds no
// Go code and rt when its runtime is not known.
type goImage struct {
	table *procstate.GoTable
	rt    *procstate.GoRuntime
	c     goLinkedCode
}

// goTableBudget bounds what is kept of all function tables, in bytes: those of
// programs that came and went would add up.
const goTableBudget = 3 << 20

// goWalk is what has been seen since the top of the stack. It only narrows
// choices: without it, as when a walk starts in the middle, the first is
// taken.
type goWalk struct {
	walker *unwind.Walker
	number uint64 // as of Walker.Walks

	// scheduling is set below a frame of runtime.schedule, as is Walker.Noted
	// when that went by a rule: the m has let go of the goroutine that entered
	// the scheduler, and its curg may already be the next.
	scheduling bool

	callbacks []goCallback // of each runtime that has been met
}

// goCallback is where C has called Go.
type goCallback struct {
	g0 uint64 // of the runtime's, on this thread
	sp uint64 // that g0 had in the next frame of cgocallback to come; before the first it is in g0.sched.sp
}

// NewGo makes a Go.
func NewGo() *Go { return &Go{} }

// Name implements unwind.FrameStepper.
func (s *Go) Name() string { return "go" }

// Priority implements unwind.FrameStepper.
func (s *Go) Priority() unwind.Priority { return unwind.PriorityGo }

// CallerFrame implements unwind.FrameStepper.
func (s *Go) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if s.walk.walker != w || s.walk.number != w.Walks() {
		s.walk = goWalk{walker: w, number: w.Walks(), callbacks: s.walk.callbacks[:0]}
	}
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil {
		return unwind.NotMe, nil
	}
	im := s.image(m.Image)
	if im.table == nil {
		return unwind.NotMe, nil
	}
	f := goFrame{s: s, w: w, arch: w.Arch(), mem: w.ProcessState(), rt: im.rt, m: m, in: in, out: out}
	f.rule = s.rule(m.Image, im.table, in.LookupPC()-m.Bias)
	v, err := s.step(&f)
	if _, captured := f.mem.(*procstate.Snapshot); captured && err == unwind.MemoryUnreadable {
		// Not to be read now: what would have to prove that the call goes on is the
		// same in each call from there, as all that are made on g0 have the same place.
		err = unwind.StackCut
	}
	return v, err
}

// image returns what is known of a file.
func (s *Go) image(img *procstate.Image) *goImage {
	im := s.images.Get(img)
	if im != nil {
		return im
	}
	im = &goImage{}
	// Whatever is missing, other steppers may still know the code.
	if t, err := procstate.Pclntab(img); err == nil {
		im.table = t
		if img.Arch() != procstate.I386 {
			im.rt, _ = procstate.GoStacksOf(img)
		}
		s.kept += t.Memory()
	}
	s.images.Put(img, im)
	return im
}

// step walks through one frame by its rule.
func (s *Go) step(f *goFrame) (unwind.Verdict, error) {
	kind := f.rule.kind
	if kind == goAsmcgocall && f.in.Flags&unwind.Interrupted != 0 {
		kind = f.rule.met
	}
	switch kind {
	case goForeign:
		return unwind.NotMe, nil
	case goLinkedC:
		return f.linkedC()
	case goTop:
		return unwind.StackBottom, nil
	case goMstart:
		return f.mstart()
	case goRt0:
		return f.rt0()
	case goSchedule:
		s.walk.scheduling = true
	case goAsm:
		if f.rule.base == callbackOnG0 {
			f.ownCallback(&s.walk)
		}
	case goSystemstack:
		return f.systemstack()
	case goMcall, goMorestack:
		return f.neverReturns(s.walk.scheduling || f.w.Noted())
	case goGogo:
		return f.gogo()
	case goAsmcgocall:
		return f.asmcgocall()
	case goCgocallback:
		return f.cgocallback(&s.walk)
	case goSavedSP:
		return f.savedSP()
	case goCrosscall2:
		return f.crosscall2()
	case goPoppedRA:
		return f.poppedRA()
	case goInjected:
		return f.injected()
	case goLeaving:
		return f.leaving()
	case goStoredSP:
		return f.storedSP()
	case goElsewhere:
		return unwind.Failed, unwind.UnsupportedUnwind
	case goClone:
		if f.newThread() {
			return unwind.StackBottom, nil
		}
	case goCrashStack:
		if f.in.Flags&unwind.Interrupted == 0 {
			return f.byFramePointer(unwind.UnsupportedUnwind)
		}
	}
	return f.plain(f.in.SP(), f.in.FP())
}
