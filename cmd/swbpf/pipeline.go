package main

import (
	"debug/elf"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// pipeline turns samples, in order of time, into stacks of a profile while
// they are recorded. It belongs to one goroutine.
type pipeline struct {
	procs   *loader.Processes
	kernel  kernelHints // nil before connect
	group   *unwind.AddressRangeGroup
	builder *profile.Builder
	sink    sampleSink // counts the stacks: builder, unless another is set
	modules *modules
	labels  *labeller
	stats   recordStats

	sampled  map[int32]struct{} // PIDs with a sample
	fleeting bool               // samples needed what is gone with their process

	goPIDs map[int32]loader.GoOffsets // Go processes that the kernel side is told of; for onImage and connect alone

	pcs       []unwind.PC
	stack     []profile.Loc // callers first
	same      int           // of them, those of the stack that was added with the path last
	path      *profile.Path
	truncated string // why the stack is

	states     [numStates]profile.Loc // remarks that tell why a thread is off the CPU
	notSampled profile.Loc
	memos      [256]threadMemo // by the low bits of the thread's ID
	other      []profile.Loc   // memory for stacks that have none
	otherPath  profile.Path
}

// threadMemo is what the last walk of a thread has left.
type threadMemo struct {
	of     *walkedProcess
	tid    int32
	sample uint64 // its Sample.Number
	memo   unwind.Memo
	user   []profile.Loc // the user part of the stack, callers first
	path   profile.Path  // of the stack
}

// memo returns the memo of a thread.
func (p *pipeline) memo(wp *walkedProcess, tid int32) *threadMemo {
	m := &p.memos[uint32(tid)%uint32(len(p.memos))]
	if m.of != wp || m.tid != tid {
		m.of, m.tid = wp, tid
		m.memo.Reset()
	}
	return m
}

// numStates is the number of states of threads.
const numStates = int(loader.BlockedRunnable) + 1

// tableBudget is what compiled unwind tables may take, in bytes: millions of
// rows.
const tableBudget = 16 << 20

// sampleSink takes the stacks of samples: see profile.Builder.AddAlong.
type sampleSink interface {
	AddAlong(path *profile.Path, t profile.Thread, stack []profile.Loc, same int, truncated string, count, value int64)
}

// kernelHints is what user space teaches the kernel side about where stacks
// end: *loader.Session.
type kernelHints interface {
	SetStackEnd(tid int, end uint64) error
	SetStackParts(tid int, parts *[loader.StackParts]uint64) error
	SetGoProcess(pid int, o loader.GoOffsets) error
	ForgetGoProcess(pid int) error
}

// walkedProcess is what walks the stacks of a process until its next exec.
type walkedProcess struct {
	space    *procstate.AddressSpace
	snapshot *procstate.Snapshot
	walker   *unwind.Walker
	isGo     bool
	jit      uint32 // module of the code that it generates; 0 until there is some
	parts    map[int32]*stackParts
	ends     map[int32]uint64 // where threads' stacks end, as the kernel side was told
}

func newPipeline(names symbols.Options) *pipeline {
	b := profile.NewBuilder()
	p := &pipeline{
		group:   steppers.ForSampling(unwind.NewTablesWithBudget(tableBudget)),
		builder: b, sink: b, modules: newModules(b, names), labels: newLabeller(b),
		stats: recordStats{
			figures{TruncatedByReason: map[string]uint64{}, LostByReason: map[string]uint64{}},
			detail{OffCPUNSByState: map[string]uint64{}},
		},
		sampled: map[int32]struct{}{},
		goPIDs:  map[int32]loader.GoOffsets{},

		notSampled: b.Marker("[not sampled]"),
	}
	for state := range p.states {
		p.states[state] = b.Marker("[" + loader.Blocked(state).String() + "]")
	}
	return p
}

// connect gives the pipeline its kernel side, and tells that of the Go processes
// that were met before.
func (p *pipeline) connect(kernel kernelHints) {
	p.kernel = kernel
	for pid, o := range p.goPIDs {
		kernel.SetGoProcess(int(pid), o)
	}
}

// add counts a sample. It uses the sample only until it returns. The stack of a
// thread off the CPU ends in a remark that tells why it is.
func (p *pipeline) add(s *loader.Sample) {
	if s.Blocked != loader.NotBlocked {
		p.stats.OffCPUNSByState[s.Blocked.String()] += s.Weight
	}
	count := int64(0)
	switch {
	case s.Continued: // the stack is that of the sample before
		p.stack[len(p.stack)-1] = p.states[s.Blocked]
		p.same = 0
	case s.Unsampled:
		p.stats.UnsampledNS += s.Weight
		p.begin()
		p.stack = append(p.stack, p.notSampled)
		if s.Blocked != loader.NotBlocked {
			p.stack = append(p.stack, p.states[s.Blocked])
		}
	default:
		count = 1
		p.addStack(s)
	}
	p.builder.SetTime(int64(s.Time))
	thread := profile.Thread{PID: s.PID, TID: s.TID, Comm: s.Comm, Labels: p.labels.of(s)}
	p.sink.AddAlong(p.path, thread, p.stack, p.same, p.truncated, count, int64(s.Weight))
	if p.path == &p.otherPath {
		p.other = p.stack
	}
}

// begin begins a stack that has nothing to do with another.
func (p *pipeline) begin() {
	p.stack, p.same, p.path, p.truncated = p.other[:0], 0, &p.otherPath, ""
}

// addStack makes p.stack the stack of a sample.
func (p *pipeline) addStack(s *loader.Sample) {
	p.stats.Samples++
	p.sampled[s.PID] = struct{}{}
	p.begin()
	switch s.User {
	case loader.UserNone, loader.UserExited, loader.UserExec:
		p.stats.KernelOnlySamples++
	default:
		p.stats.UserSamples++
		if err := p.addUser(s); err == nil {
			p.stats.Complete++
		} else {
			p.truncated = unwind.ReasonOf(err).String()
			p.stats.Truncated++
			p.stats.TruncatedByReason[p.truncated]++
		}
	}
	for _, pc := range slices.Backward(s.Kernel) {
		p.stack = append(p.stack, p.modules.ofKernel(pc))
	}
	if s.Blocked != loader.NotBlocked {
		p.stack = append(p.stack, p.states[s.Blocked])
	}
}

// addUser walks the user part of the sample and makes it p.stack. A nil error says
// that it is complete.
func (p *pipeline) addUser(s *loader.Sample) error {
	if !s.HasUser() {
		return unwind.NoRegister
	}
	wp := p.process(s)
	if wp != nil && wp.space.MappingAt(s.Regs.Raw(s.Arch.PC)) == nil {
		wp = p.refresh(s)
	}
	if wp == nil {
		p.stack = append(p.stack, profile.Loc{Addr: s.Regs.Raw(s.Arch.PC)})
		return unwind.ProcessUnknown
	}
	start := time.Now()
	wp.snapshot.Reset(procstate.ThreadID(s.TID), &s.Regs, s.Regions)
	wp.snapshot.SetUserProbes(s.Probes)
	m, sameFrom := p.memo(wp, s.TID), ^uint64(0)
	if m.sample+1 == s.Number {
		sameFrom = s.SameFrom
	}
	m.sample = s.Number
	pcs, same, err := wp.walker.WalkPCsAgain(p.pcs[:0], &s.Regs, &m.memo, sameFrom)
	p.pcs = pcs
	p.stats.UnwindNS += uint64(time.Since(start))
	p.stats.Frames += uint64(len(pcs))
	inner := pcs[:len(pcs)-same]
	p.stack, p.same, p.path = m.user[:same], same, &m.path
	for _, pc := range slices.Backward(inner) {
		p.stack = append(p.stack, p.modules.user(wp, wp.space.MappingAt(pc.Addr), pc.Addr))
	}
	m.user = p.stack
	p.fleeting = p.fleeting || wp.jit != 0
	if err == nil {
		p.stats.addLive(s, inner, wp.walker.LastSP())
	}
	p.learnStackEnd(wp, s, err)
	reason := reasonOfEnd(wp.snapshot, s, err)
	p.learnStackParts(wp, s, err)
	return reason
}

// reasonOfEnd tells a stack that is longer than the limit from memory that
// could not be read.
func reasonOfEnd(snap *procstate.Snapshot, s *loader.Sample, err error) error {
	if err != unwind.StackCut && err != unwind.MemoryUnreadable {
		return err
	}
	missed, ok := snap.Missed()
	if ok && s.StackEnd == loader.StackEndLimit && missed+8 > copiedTo(s) {
		return unwind.StackCut
	}
	return unwind.MemoryUnreadable
}

// copiedTo returns where the copy of the stack ends, the parts of it that were asked
// for left out.
func copiedTo(s *loader.Sample) uint64 {
	n := len(s.Regions) - s.StackParts
	if n <= 0 {
		return math.MaxUint64
	}
	last := s.Regions[n-1]
	return last.Addr + uint64(len(last.Data))
}

// process returns what walks the process of a sample, nil when the process is
// not known.
func (p *pipeline) process(s *loader.Sample) *walkedProcess {
	proc := p.procs.Process(s.PID)
	if proc == nil {
		return nil
	}
	if wp, ok := proc.Data.(*walkedProcess); ok && wp.snapshot.Arch() == s.Arch {
		return wp
	}
	wp := &walkedProcess{
		space:    proc.Space,
		snapshot: procstate.NewSnapshot(s.Arch, int(s.PID), proc.Exe, proc.Space),
		parts:    map[int32]*stackParts{},
		ends:     map[int32]uint64{},
	}
	wp.snapshot.SetLiveCode(procstate.NewLiveCode(int(s.PID), proc.Exe))
	wp.walker = unwind.NewWalker(wp.snapshot, p.group, nil)
	for _, m := range proc.Space.Mappings() {
		wp.isGo = wp.isGo || isGoProgram(m.Image)
	}
	proc.Data = wp
	return wp
}

// refresh reads the mappings of a sample's process anew, since the sample is in
// none that is known: mremap is not reported.
func (p *pipeline) refresh(s *loader.Sample) *walkedProcess {
	p.fleeting = true
	if proc := p.procs.Process(s.PID); proc != nil {
		p.procs.Refresh(proc)
	}
	return p.process(s)
}

func isGoProgram(im *procstate.Image) bool {
	if im == nil {
		return false
	}
	_, err := procstate.GoRuntimeOf(im)
	return err == nil
}

// onImage looks at each file that a process maps, as soon as it does: the
// kernel side must know a Go program before it is sampled. The calls come from
// several goroutines, one at a time.
func (p *pipeline) onImage(pid int32, im *procstate.Image, bias uint64) {
	rt, err := procstate.GoRuntimeOf(im)
	if err == nil && rt.Samplable() {
		o := loader.GoOffsetsOf(rt, bias)
		p.goPIDs[pid] = o
		if p.kernel != nil {
			p.kernel.SetGoProcess(int(pid), o)
		}
		return
	}
	// Another program under the number of a Go process: its successor by
	// exec, or by chance.
	if _, was := p.goPIDs[pid]; was && isProgram(im) {
		delete(p.goPIDs, pid)
		if p.kernel != nil {
			p.kernel.ForgetGoProcess(int(pid))
		}
	}
}

// isProgram reports whether a file is a program, not a library. A loader that
// it asks for does not tell: glibc's libc.so.6 asks for one as well.
func isProgram(im *procstate.Image) bool {
	if im.Type() == elf.ET_EXEC {
		return true
	}
	_, interpreted := im.Prog(elf.PT_INTERP)
	dyn, ok := im.Prog(elf.PT_DYNAMIC)
	if !interpreted || !ok || dyn.Filesz > 1<<16 {
		return false
	}
	b := make([]byte, dyn.Filesz)
	if n, _ := im.ReadAt(b, int64(dyn.Off)); n < len(b) {
		return false
	}
	for ; len(b) >= 16; b = b[16:] {
		if elf.DynTag(binary.LittleEndian.Uint64(b)) == elf.DT_FLAGS_1 {
			return elf.DynFlag1(binary.LittleEndian.Uint64(b[8:]))&elf.DF_1_PIE != 0
		}
	}
	return false
}

// learnStackEnd tells the kernel side where the stack of a thread other than
// the main one ends, after its first complete walk: whatever lies beyond need
// not be copied again. When a walk then runs past that end, it was that of
// another stack, and is forgotten. Go threads are not learned: they run on
// many stacks, whose ends the kernel side reads itself.
func (p *pipeline) learnStackEnd(wp *walkedProcess, s *loader.Sample, walk error) {
	if s.TID == s.PID || wp.isGo {
		return
	}
	known := wp.ends[s.TID]
	switch {
	case walk == nil && known == 0:
		end := wp.walker.LastSP() + stackEndSlack
		if isCopied(s.Regions, end) && p.kernel.SetStackEnd(int(s.TID), end) == nil {
			wp.ends[s.TID] = end
		}
	case walk != nil && known != 0 && s.StackEnd == loader.StackEndBottom:
		if p.kernel.SetStackEnd(int(s.TID), 0) == nil {
			delete(wp.ends, s.TID)
		}
	}
}

// stackParts are parts of a thread's stack, as the kernel side was told.
type stackParts struct {
	from [loader.StackParts]uint64
	next int // to be replaced
}

// learnStackParts has the kernel side copy, with later samples of a thread, what a
// walk lacked behind a frame that is larger than what is copied: outer frames stay
// where they are. How the walk goes on from there is found out in the stack as it is
// now. What follows the copy at once is not asked for, as there is no end to that
// where frames are many.
func (p *pipeline) learnStackParts(wp *walkedProcess, s *loader.Sample, walk error) {
	const page = 4096
	to, learned := copiedTo(s), 0
	regions := slices.Clip(s.Regions)
	for ; !wp.isGo && learned < loader.StackParts; learned++ {
		missed, ok := wp.snapshot.Missed()
		if !ok || walk != unwind.StackCut && walk != unwind.MemoryUnreadable || missed < to || missed-to < page || missed-to > maxPartReach {
			break
		}
		parts := wp.parts[s.TID]
		if parts == nil {
			parts = &stackParts{}
			wp.parts[s.TID] = parts
		}
		from := missed &^ (page - 1)
		if slices.Contains(parts.from[:], from) {
			break // it cannot be read, or not yet
		}
		parts.from[parts.next%len(parts.from)] = from
		parts.next++
		now := make([]byte, loader.StackPart)
		now = now[:procstate.ReadProcess(int(s.TID), from, now)]
		regions = append(regions, procstate.Region{Addr: from, Data: now})
		wp.snapshot.Reset(procstate.ThreadID(s.TID), &s.Regs, regions)
		wp.snapshot.SetUserProbes(s.Probes)
		p.pcs, walk = wp.walker.WalkPCs(p.pcs[:0], &s.Regs)
	}
	if learned > 0 {
		p.kernel.SetStackParts(int(s.TID), &wp.parts[s.TID].from) // without it later samples are cut as well
	}
}

// maxPartReach is how far behind a copy parts of the same stack may be.
const maxPartReach = 128 << 20

// stackEndSlack is what is copied above the SP of a thread's outermost frame.
const stackEndSlack = 16

// isCopied reports whether the bytes below addr are in a region.
func isCopied(regions []procstate.Region, addr uint64) bool {
	for _, r := range regions {
		if n := addr - r.Addr; n > 0 && n <= uint64(len(r.Data)) {
			return true
		}
	}
	return false
}
