package main

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// kernelHints is what user space teaches the kernel side about where stacks
// end: *loader.Session.
type kernelHints interface {
	SetStackEnd(tid int, end uint64) error
	SetThreadEnds(pid int, below uint64) error
	SetStartsAbove(pid int) error
	SetStackParts(tid int, parts *[loader.StackParts]uint64) error
	SetThreadFrames(pid, tid int, f loader.ThreadFrames) error
	SetProgramFrames(m *procstate.Mapping, f loader.ThreadFrames) (isKnown bool, err error)
	SetThreadContext(pid int, place *procstate.ThreadContextPlace) error
	SetGoProcess(pid int, o loader.GoOffsets, others ...loader.GoOffsets) error
	ForgetGoProcess(pid int) error
}

// connect gives the pipeline its kernel side, and tells that of the Go processes
// that were met before.
func (p *pipeline) connect(kernel kernelHints) {
	p.kernel = kernel
	for pid, all := range p.goPIDs {
		kernel.SetGoProcess(int(pid), all[0], all[1:]...)
	}
}

func isGoProgram(im *procstate.Image) bool {
	if im == nil {
		return false
	}
	_, err := procstate.GoStacksOf(im)
	return err == nil
}

// onImage looks at each file that a process maps, as soon as it does: the
// kernel side must know a Go program before it is sampled. The calls come from
// several goroutines, one at a time.
func (p *pipeline) onImage(pid int32, im *procstate.Image, bias uint64) {
	rt, err := procstate.GoStacksOf(im)
	if err == nil && rt.Samplable() {
		o := loader.GoOffsetsOf(rt, bias)
		if len(p.goPIDs) >= p.forgetGo {
			p.forgetGoPIDs()
		}
		all := p.goPIDs[pid]
		switch {
		case im.IsProgram():
			all = []loader.GoOffsets{o}
		case !slices.Contains(all, o) && len(all) < loader.MaxGoRuntimes:
			all = append(all, o) // a library has a runtime of its own
		}
		p.goPIDs[pid] = all
		if p.kernel != nil {
			p.kernel.SetGoProcess(int(pid), all[0], all[1:]...)
		}
		return
	}
	// Another program under the number of a Go process: its successor by
	// exec, or by chance.
	if _, was := p.goPIDs[pid]; was && im.IsProgram() {
		p.forgetGoPID(pid)
	}
}

// maxEnded is how many processes or threads are remembered before those are looked for
// that have ended.
const maxEnded = 1 << 10

// hasEnded reports whether there is no thread of a number in a process.
func hasEnded(pid, tid int32) bool { return unix.Tgkill(int(pid), int(tid), 0) == unix.ESRCH }

// forgetGoPIDs forgets the Go processes that have ended.
func (p *pipeline) forgetGoPIDs() {
	for pid := range p.goPIDs {
		if hasEnded(pid, pid) {
			p.forgetGoPID(pid)
		}
	}
	p.forgetGo = max(maxEnded, 2*len(p.goPIDs))
}

func (p *pipeline) forgetGoPID(pid int32) {
	delete(p.goPIDs, pid)
	if p.kernel != nil {
		p.kernel.ForgetGoProcess(int(pid))
	}
}

// learnStackEnd tells the kernel side where the stack of a thread other than
// the main one ends, after its first complete walk: whatever lies beyond need
// not be copied again. When a walk then runs past that end, it was that of
// another stack, or the walk has to look farther up for where it ends, and is forgotten.
// Go threads are not learned: they run on many stacks, whose ends the kernel side reads itself.
func (p *pipeline) learnStackEnd(wp *walkedProcess, s *loader.Sample, walk error) {
	if wp.isGo {
		return
	}
	if s.TID == s.PID {
		p.learnStart(wp, s, walk)
		return
	}
	known := wp.ends[s.TID]
	switch {
	case walk == nil && known == 0:
		end := wp.walker.LastSP() + max(wp.slack, minStackSlack)
		if t := &wp.threadEnds; t.told && end == s.Regs.ThreadPointer-t.below {
			break // those of its process do
		}
		if isCopied(s.Regions, end) && p.kernel.SetStackEnd(int(s.TID), end) == nil {
			wp.setEnd(s.TID, end)
			p.learnThreadEnds(wp, s, end)
		}
	case walk != nil && known != 0 && s.StackEnd == loader.StackEndBottom:
		missed, ok := wp.snapshot.Missed()
		if needed := missed + 8 - wp.walker.LastSP(); ok && missed+8 > known && needed <= maxStackSlack {
			wp.slack = max(wp.slack, needed)
		}
		if p.kernel.SetStackEnd(int(s.TID), 0) == nil {
			delete(wp.ends, s.TID)
		}
	case walk != nil && s.StackEnd == loader.StackEndBottom:
		p.doubtThreadEnds(wp, s)
	}
}

// maxStart bounds the bytes above the copy of a main thread's stack in which its first frame
// may be.
const maxStart = 512

// learnStart tells the kernel side of a main thread that begins above where it is taken to,
// when a walk has lacked what is there.
func (p *pipeline) learnStart(wp *walkedProcess, s *loader.Sample, walk error) {
	if walk == nil || wp.above || s.StackEnd != loader.StackEndBottom {
		return
	}
	if missed, ok := wp.snapshot.Missed(); ok && missed+8 > copiedTo(s) && missed-copiedTo(s) < maxStart {
		wp.above = p.kernel.SetStartsAbove(int(s.PID)) == nil
	}
}

// threadEnds is where the stacks of a process's threads end, as one of them did; once that
// was wrong, as two.
type threadEnds struct {
	below uint64 // their thread pointers
	first int32  // thread
	told  bool   // whether the kernel side was
	wrong int    // how often there were others
}

// maxBelow is more than what there mostly is of thread-local storage and the C library's
// own frames above a thread's stack.
const maxBelow = 64 << 10

// learnThreadEnds tells the kernel side where the stacks of threads end of which it
// knows nothing yet.
func (p *pipeline) learnThreadEnds(wp *walkedProcess, s *loader.Sample, end uint64) {
	below, t := s.Regs.ThreadPointer-end, &wp.threadEnds
	switch {
	case t.wrong > 1 || below == 0 || below > maxBelow || t.told && below >= t.below:
	case t.told || t.wrong == 0 || below == t.below && s.TID != t.first:
		t.below, t.told = below, p.kernel.SetThreadEnds(int(s.PID), below) == nil
	case below != t.below:
		t.below, t.first = below, s.TID
	}
}

// doubtThreadEnds forgets where the stacks of threads end, after a walk that lacked what
// is above. It may have been another program's.
func (p *pipeline) doubtThreadEnds(wp *walkedProcess, s *loader.Sample) {
	end := copiedTo(s)
	missed, ok := wp.snapshot.Missed()
	if below := s.Regs.ThreadPointer - end; ok && missed+8 > end && below > 0 && below <= maxBelow {
		p.kernel.SetThreadEnds(int(s.PID), 0)
		wrong := wp.threadEnds.wrong
		if wp.threadEnds.told {
			wrong++
		}
		wp.threadEnds = threadEnds{wrong: wrong}
	}
}

// setEnd notes where a thread's stack ends.
func (wp *walkedProcess) setEnd(tid int32, end uint64) {
	wp.forgetThreads()
	wp.ends[tid] = end
}

// forgetThreads forgets threads that have ended, when many are known.
func (wp *walkedProcess) forgetThreads() {
	if max(len(wp.ends), len(wp.parts)) < wp.forget {
		return
	}
	pid := int32(wp.snapshot.PID())
	maps.DeleteFunc(wp.ends, func(tid int32, _ uint64) bool { return hasEnded(pid, tid) })
	maps.DeleteFunc(wp.parts, func(tid int32, _ *stackParts) bool { return hasEnded(pid, tid) })
	wp.forget = max(maxEnded, 2*max(len(wp.ends), len(wp.parts)))
}

// stackParts are parts of a thread's stack, as the kernel side was told.
type stackParts struct {
	from [loader.StackParts]uint64
	next int // to be replaced
}

// learnStackParts has the kernel side copy, with later samples of a thread, what a
// walk lacks behind a frame that is larger than what is copied: outer frames stay
// where they are. How the walk goes on from there is found out in the stack as it is
// now. What follows the copy at once is not asked for, as there is no end to that
// where frames are many. The first time, which of the outermost frames are needed
// is found out as well: there are more of them than mostly are.
func (p *pipeline) learnStackParts(wp *walkedProcess, s *loader.Sample, walk error) {
	const page = 4096
	if wp.isGo {
		return
	}
	regions, to := slices.Clip(s.Regions), copiedTo(s)
	parts, learned := wp.parts[s.TID], false
	again := func() {
		wp.snapshot.Reset(procstate.ThreadID(s.TID), &s.Regs, regions)
		wp.snapshot.SetUserProbes(s.Probes)
		wp.snapshot.SetTime(s.Time)
		p.pcs, walk = wp.walker.WalkPCs(p.pcs[:0], &s.Regs)
	}
	if parts == nil && s.StackParts > 0 {
		parts, learned = wp.newParts(s.TID), true // none at least
		end := len(s.StackRegions())
		regions = slices.Concat(regions[:end-s.StackParts], regions[end:])
		again()
	}
	for range loader.StackParts {
		missed, ok := wp.snapshot.Missed()
		if !ok || walk != unwind.StackCut && walk != unwind.MemoryUnreadable || missed < to || missed-to < page || missed-to > maxPartReach {
			break
		}
		if parts == nil {
			parts = wp.newParts(s.TID)
		}
		from := missed &^ (page - 1)
		if slices.Contains(parts.from[:], from) {
			break // it cannot be read, or not yet
		}
		parts.from[parts.next%len(parts.from)] = from
		parts.next++
		learned = true
		now := make([]byte, loader.StackPart)
		now = now[:procstate.ReadProcess(int(s.TID), from, now)]
		regions = append(regions, procstate.Region{Addr: from, Data: now})
		again()
	}
	if learned {
		p.kernel.SetStackParts(int(s.TID), &parts.from) // without it later samples are cut as well
	}
}

// framesKeeper is a stepper for a runtime that keeps frames of its own, which stores what it knows of
// a process with its Walker.
type framesKeeper interface {
	// Lacked returns where those of a thread are, if the last walk has lacked them.
	Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool)
	// Knows reports whether walks of a Walker have met the runtime.
	Knows(w *unwind.Walker) bool
}

// learnFrames has the kernel side copy, with later samples of a thread, the frames that a runtime
// keeps of it, where the walk has lacked them.
func (p *pipeline) learnFrames(wp *walkedProcess, s *loader.Sample) {
	known := false
	for stepper := range wp.walker.Keepers() {
		keeper, ok := stepper.(framesKeeper)
		if !ok {
			continue
		}
		f, lacks := keeper.Lacked(wp.walker, int(s.TID))
		if f.Current != 0 {
			p.kernel.SetThreadFrames(int(s.PID), int(s.TID), f) // without it functions have no names
			if m := wp.program(); m != nil && s.TID == s.PID {
				isKnown, _ := p.kernel.SetProgramFrames(m, f) // without it the first ones of the next process have none
				p.keepers.set(m.Image, isKnown)
				p.tellParent(s.PID, m, f)
			}
		}
		p.fleeting = p.fleeting || lacks
		known = known || keeper.Knows(wp.walker)
	}
	switch {
	case s.FrameRegions == 0:
	case !known:
		if m := wp.program(); m == nil || !p.keepers[m.Image] { // else its runtime has not begun
			p.kernel.SetThreadFrames(int(s.PID), int(s.TID), loader.ThreadFrames{})
		}
	case !wp.hasFrames: // with its first samples: what its functions are called is to be read while it lives
		wp.hasFrames, p.fleeting = true, true
	}
}

// tellParent has the kernel side take a process's frames to be where its parent has them as well, from whose program it was
// forked: what that forks from now on has them there, too. A server may fork and run nothing itself.
func (p *pipeline) tellParent(pid int32, program *procstate.Mapping, f loader.ThreadFrames) {
	parent, err := loader.ParentOf(pid)
	if err != nil {
		return
	}
	proc := p.procs.Process(parent)
	if proc == nil {
		return
	}
	if wp, ok := proc.Data.(*walkedProcess); ok && wp.hasFrames {
		return // it is known
	}
	for _, m := range proc.Space.Mappings() {
		if m.Image == program.Image && m.Bias == program.Bias {
			p.kernel.SetThreadFrames(int(parent), int(parent), f)
			return
		}
	}
}

// keepers are programs of which the kernel side knows where their next processes have frames.
type keepers map[*procstate.Image]bool

// maxKeepers is how many of them are known: as many as the kernel side knows of.
const maxKeepers = 256

func (k *keepers) set(im *procstate.Image, is bool) {
	if len(*k) >= maxKeepers || *k == nil {
		*k = make(keepers)
	}
	(*k)[im] = is
}

// program returns a mapping of the process's program, nil where its file is not known.
func (wp *walkedProcess) program() *procstate.Mapping {
	for _, m := range wp.space.Mappings() {
		if m.Image != nil && m.Image.IsProgram() {
			return m
		}
	}
	return nil
}

// rehearse has the kernel side copy, with later samples of a thread that waits, the frames that a runtime keeps of it: it walks
// without those that this sample has. Else the thread's next time off the CPU would have no functions, however long that is.
func (p *pipeline) rehearse(s *loader.Sample) {
	wp := p.process(s)
	if wp == nil {
		return
	}
	wp.snapshot.Reset(procstate.ThreadID(s.TID), &s.Regs, s.StackRegions())
	wp.snapshot.SetUserProbes(s.Probes)
	wp.snapshot.SetTime(s.Time)
	p.pcs, _ = wp.walker.WalkPCs(p.pcs[:0], &s.Regs)
	p.learnFrames(wp, s)
}

// newParts begins to note the parts of a thread's stack.
func (wp *walkedProcess) newParts(tid int32) *stackParts {
	wp.forgetThreads()
	parts := &stackParts{}
	wp.parts[tid] = parts
	return parts
}

// maxPartReach is how far behind a copy parts of the same stack may be.
const maxPartReach = 128 << 20

// What is copied above the SP of a thread's outermost frame: what walks have lacked, within
// bounds. That of a C library's thread needs nothing; where a null return address ends a stack, it
// is above the frame.
const (
	minStackSlack = 8
	maxStackSlack = 4 << 10
)

// isCopied reports whether the bytes below addr are in a region.
func isCopied(regions []procstate.Region, addr uint64) bool {
	for _, r := range regions {
		if n := addr - r.Addr; n > 0 && n <= uint64(len(r.Data)) {
			return true
		}
	}
	return false
}
