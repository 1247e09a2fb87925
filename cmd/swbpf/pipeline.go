package main

import (
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// pipeline turns samples, in order of time, into stacks of a profile: while they are recorded, or
// when a recording of perf's is read. It belongs to one goroutine.
type pipeline struct {
	procs   processTable
	past    bool        // the processes are not those that run now
	kernel  kernelHints // nil before connect, and of what is past
	group   *unwind.AddressRangeGroup
	builder *profile.Builder
	sink    sampleSink // counts the stacks: builder, unless another is set
	modules *modules
	labels  *labeller
	stats   recordStats

	stackBytes uint64 // at most are copied of a thread's stacks; 0: that is not known

	sampled  *pidSet // with a sample
	fleeting bool    // samples needed what is gone with their process
	lost     bool    // samples needed code, or what it is called, that had been given up

	goPIDs   map[int32][]loader.GoOffsets // Go processes that the kernel side is told of; for onImage and connect alone
	forgetGo int                          // size of goPIDs at which those that have ended are forgotten

	keepers keepers // programs whose next processes have what their runtimes keep of frames with their first samples

	sharers       map[int32]bool // processes whose threads tell what they work on, that the kernel side is told of
	forgetSharers int            // their number at which those that have ended are forgotten

	user      func(*loader.Sample) error // makes the user part of a sample p.stack, as addUser does
	pcs       []unwind.PC
	again     []unwind.PC   // of a second walk
	stack     []profile.Loc // callers first
	same      int           // of them, those of the stack that was added with the path last
	path      *profile.Path
	truncated string // why the stack is

	states     [numStates]profile.Loc // remarks that tell why a thread is off the CPU
	state      int                    // where in stack that remark is
	wakers     *wakers                // nil where they are not sampled
	heap       *heap                  // nil where it is not what is sampled
	atReturn   [loader.MaxEvents]bool // by event: whether it is where a function has returned to, the end of a call
	notSampled profile.Loc
	memos      [256]threadMemo // by the low bits of the thread's ID
	other      []profile.Loc   // memory for stacks that have none
	otherPath  profile.Path
}

// threadMemo is what the last walk of a thread has left.
type threadMemo struct {
	of     *walkedProcess
	tid    int32
	used   bool   // since the last forgetIdle
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
	m.used = true
	return m
}

// forgetIdle gives back the memos of threads that have no sample since the last call,
// most of which have ended.
func (p *pipeline) forgetIdle() {
	p.wakers.forget()
	for i := range p.memos {
		if m := &p.memos[i]; m.used {
			m.used = false
		} else if m.of != nil {
			*m = threadMemo{}
		}
	}
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

// processTable tells of processes at the time of a sample: *loader.Processes and *loader.Recorded.
type processTable interface {
	// Process returns a process, nil when nothing is known of it.
	Process(pid int32) *loader.Process
	// Refresh looks for mappings of a process that no event told of. It reports whether there
	// are more then.
	Refresh(*loader.Process) bool
}

// walkedProcess is what walks the stacks of a process until its next exec.
type walkedProcess struct {
	space      *procstate.AddressSpace
	snapshot   *procstate.Snapshot
	walker     *unwind.Walker
	isGo       bool
	jit        uint32 // module of the code that it generates, in a part of the recording; 0 until there is some
	jitPart    uint32 // that part
	parts      map[int32]*stackParts
	ends       map[int32]uint64 // where threads' stacks end, as the kernel side was told
	threadEnds threadEnds
	above      bool   // the kernel side was told that the main thread's first frame is
	slack      uint64 // what is needed above the SP of threads' outermost frames
	forget     int    // size of ends or parts at which threads that have ended are forgotten
	hasFrames  bool   // samples had frames that a runtime keeps

	shared *sharedContext

	unpackLooks int    // that were made for a program that was unpacked into memory
	unpackNext  uint64 // when the next one may be, CLOCK_MONOTONIC ns
}

// newPipeline makes one for samples of processes that run.
func newPipeline(names symbols.Options) *pipeline {
	b := profile.NewBuilder()
	return makePipeline(b, names, newLabeller(b))
}

func makePipeline(b *profile.Builder, names symbols.Options, labels *labeller) *pipeline {
	p := &pipeline{
		group:   steppers.ForSampling(unwind.NewTablesWithBudget(tableBudget)),
		builder: b, sink: b, modules: newModules(b, names), labels: labels,
		stats: recordStats{
			figures: figures{TruncatedByReason: map[string]uint64{}, LostByReason: map[string]uint64{}},
			detail:  detail{OffCPUNSByState: map[string]uint64{}, OffCPUNSByWaker: map[string]uint64{}},
		},
		sampled: new(pidSet),
		goPIDs:  map[int32][]loader.GoOffsets{}, forgetGo: maxEnded,
		sharers: map[int32]bool{}, forgetSharers: maxEnded,

		notSampled: b.Marker("[not sampled]"),
	}
	p.user = p.addUser
	for state := range p.states {
		p.states[state] = b.Marker("[" + loader.Blocked(state).String() + "]")
	}
	return p
}

// pidLimit is above all PIDs (PID_MAX_LIMIT).
const pidLimit = 1 << 22

// pidSet is a set of PIDs. It does not grow with time: of its 512 KB those pages are
// taken that have a PID.
type pidSet struct {
	bits [pidLimit / 64]uint64
	n    int // of the PIDs
}

func (s *pidSet) add(pid int32) {
	word, bit := &s.bits[uint32(pid)%pidLimit/64], uint64(1)<<(uint32(pid)%64)
	if *word&bit == 0 {
		*word |= bit
		s.n++
	}
}

// add counts a sample. It uses the sample only until it returns. The stack of a
// thread off the CPU ends in a remark that tells why it is.
func (p *pipeline) add(s *loader.Sample) {
	if s.Waker.TID != 0 {
		p.addWaker(s)
		return
	}
	if s.Blocked != loader.NotBlocked {
		p.stats.OffCPUNSByState[s.Blocked.String()] += s.Weight
	}
	if p.heap != nil {
		if s.Freed != (loader.BlockID{}) {
			p.heap.freed(s)
			return
		}
		s.Event = allocatedEvent
	}
	count := int64(0)
	switch {
	case s.Continued: // the stack is that of the sample before
		p.stack = append(p.stack[:p.state], p.states[s.Blocked])
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
	thread := profile.Thread{PID: s.PID, TID: s.TID, Comm: s.Comm, Labels: p.labels.of(s, p.sharedBy(s)), Event: uint8(s.Event)}
	if thread.Comm[0] == 0 {
		thread.Comm = p.programOf(s)
	}
	p.sink.AddAlong(p.path, thread, p.stack, p.same, p.truncated, count, int64(s.Weight))
	if p.heap != nil {
		p.addBlock(s, thread)
	}
	if p.path == &p.otherPath {
		p.other = p.stack
	}
}

// programOf returns the name of the program of a sample's thread, which has taken its own
// away, as mod_perl does: it is what the thread would be called by itself.
func (p *pipeline) programOf(s *loader.Sample) (name [16]byte) {
	if proc := p.procs.Process(s.PID); proc != nil && proc.Exe != "" {
		name = profile.Comm(filepath.Base(proc.Exe))
	}
	return name
}

// begin begins a stack that has nothing to do with another.
func (p *pipeline) begin() {
	p.stack, p.same, p.path, p.truncated = p.other[:0], 0, &p.otherPath, ""
}

// addStack makes p.stack the stack of a sample.
func (p *pipeline) addStack(s *loader.Sample) {
	p.stats.Samples++
	p.stats.samplesOf[s.Event%loader.MaxEvents]++
	p.sampled.add(s.PID)
	p.begin()
	switch s.User {
	case loader.UserNone, loader.UserExited, loader.UserExec:
		p.stats.KernelOnlySamples++
	default:
		p.stats.UserSamples++
		p.countEnd(p.user(s))
	}
	p.addKernel(s)
}

// countEnd counts how the user part of a stack ends.
func (p *pipeline) countEnd(err error) {
	if err == nil {
		p.stats.Complete++
		return
	}
	p.truncated = unwind.ReasonOf(err).String()
	p.stats.Truncated++
	p.stats.TruncatedByReason[p.truncated]++
}

// addKernel adds the kernel part of a stack, and what a thread waits for, to p.stack.
func (p *pipeline) addKernel(s *loader.Sample) {
	for _, pc := range slices.Backward(s.Kernel) {
		p.stack = append(p.stack, p.modules.ofKernel(pc))
	}
	if s.Blocked != loader.NotBlocked {
		p.state = len(p.stack)
		p.stack = append(p.stack, p.states[s.Blocked])
		p.appendWaker(s)
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
	wp.snapshot.SetTime(s.Time)
	m, sameFrom := p.memo(wp, s.TID), ^uint64(0)
	if m.sample+1 == s.Number {
		sameFrom = s.SameFrom
	}
	m.sample = s.Number
	pcs, same, err := wp.walker.WalkPCsAgain(p.pcs[:0], &s.Regs, &m.memo, sameFrom)
	if err != nil && (wp.isMadeCode(pcs[len(pcs)-1].Addr) || wp.walker.Guessed()) && wp.snapshot.UseEarlierCode() {
		if again, e := wp.walker.WalkPCs(p.again[:0], &s.Regs); e == nil {
			pcs, p.again = again, pcs
			same, err = 0, nil
		} else {
			p.again = again
		}
	}
	p.pcs = pcs
	p.stats.UnwindNS += uint64(time.Since(start))
	p.stats.Frames += uint64(len(pcs))
	inner := pcs[:len(pcs)-same]
	if len(inner) > 0 && p.atReturn[s.Event%loader.MaxEvents] {
		inner[0].Addr--
	}
	p.stack, p.same, p.path = m.user[:same], same, &m.path
	for _, pc := range slices.Backward(inner) {
		p.stack = p.modules.appendUser(p.stack, wp, pc)
	}
	m.user = p.stack
	p.fleeting = p.fleeting || wp.jit != 0
	p.lost = p.lost || p.isLate(wp) || err == unwind.NoUnwindInfo && wp.isMadeCode(pcs[len(pcs)-1].Addr)
	if err == nil {
		p.stats.addLive(s, inner, wp.walker.LastSP())
	}
	reason := reasonOfEnd(wp.snapshot, s, p.stackBytes, err)
	if p.past {
		return reason
	}
	if wp.jit != 0 {
		p.lookUnpacked(wp, s)
	}
	p.learnStackEnd(wp, s, err)
	p.learnFrames(wp, s)
	p.learnStackParts(wp, s, err)
	p.learnShared(wp, s)
	return reason
}

// lateKeeper is a stepper for a runtime that may give up what it knows before its process ends.
type lateKeeper interface {
	IsLate(w *unwind.Walker) bool
}

// isLate reports whether the last walk lacked what the process, or a runtime in it, had given up by then.
func (p *pipeline) isLate(wp *walkedProcess) bool {
	if wp.snapshot.IsLate() {
		return true
	}
	for stepper := range wp.walker.Keepers() {
		if keeper, ok := stepper.(lateKeeper); ok && keeper.IsLate(wp.walker) {
			return true
		}
	}
	return false
}

// isMadeCode reports whether code is in no file.
func (wp *walkedProcess) isMadeCode(addr uint64) bool {
	m := wp.space.MappingAt(addr)
	return m != nil && m.Image == nil
}

// reasonOfEnd tells a stack that is longer than the limit, and one that changed while it
// was copied, from memory that could not be read.
func reasonOfEnd(snap *procstate.Snapshot, s *loader.Sample, limit uint64, err error) error {
	if err != unwind.StackCut && err != unwind.MemoryUnreadable {
		return err
	}
	if s.StackEnd == loader.StackEndChanged {
		return unwind.StackChanged
	}
	missed, ok := snap.Missed()
	if ok && missed+8 > copiedTo(s) && (s.StackEnd == loader.StackEndLimit || isFull(s, limit)) {
		return unwind.StackCut
	}
	return unwind.MemoryUnreadable
}

// isFull reports whether as much was copied of a thread's stacks as may be, but for a page: StackEnd is that of the one
// which it was on, as a Go thread's own when it works for a goroutine.
func isFull(s *loader.Sample, limit uint64) bool {
	const page = 4096
	copied := uint64(page)
	for _, r := range s.StackRegions() {
		copied += uint64(len(r.Data))
	}
	return limit != 0 && len(s.StackRegions()) > 1 && copied >= limit
}

// copiedTo returns where the copy of the stack ends, the parts of it that were asked
// for left out.
func copiedTo(s *loader.Sample) uint64 {
	n := len(s.StackRegions()) - s.StackParts
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
		forget:   maxEnded,
		shared:   new(sharedContext),
	}
	if !p.past {
		wp.snapshot.SetLiveCode(procstate.NewLiveCode(int(s.PID), proc.Exe))
	}
	wp.walker = unwind.NewWalker(wp.snapshot, p.group, nil)
	wp.walker.ShareCodes(&p.modules.codes)
	wp.setGo()
	proc.Data = wp
	return wp
}

func (wp *walkedProcess) setGo() {
	for _, m := range wp.space.Mappings() {
		wp.isGo = wp.isGo || isGoProgram(m.Image)
	}
}

// Code of no file may be a program's that a packer has unpacked, which is looked for so many times, so far apart, in ns.
const (
	maxUnpackLooks = 3
	unpackEvery    = 1_100_000_000
)

// lookUnpacked looks whether the process of a sample, in which there is code of no file, is a program that was unpacked
// into memory.
func (p *pipeline) lookUnpacked(wp *walkedProcess, s *loader.Sample) {
	if wp.unpackLooks >= maxUnpackLooks || s.Time < wp.unpackNext {
		return
	}
	wp.unpackLooks++
	wp.unpackNext = s.Time + unpackEvery
	if proc := p.procs.Process(s.PID); proc != nil && p.procs.Refresh(proc) {
		wp.setGo()
	}
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
