package loader

import (
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// startTimes tells the kernel side when the Session starts.
func (s *Session) startTimes() {
	s.startedAt = monotonic()
	for i := range s.rings.cpus {
		c := s.rings.cpus[i].counters
		c.Started, c.OnCpuSince = s.startedAt, s.startedAt
	}
}

// attachSwitches has the program run at each switch from one thread to another.
func (s *Session) attachSwitches() error {
	s.startTimes()
	for _, hook := range s.hooks {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: hook.tracepoint, Program: hook.prog})
		if err != nil {
			return diagnose(err, "attach to "+hook.tracepoint)
		}
		s.switches = append(s.switches, l)
	}
	if s.waiting == nil {
		return nil
	}
	return s.readWaiting(s.blocked.byTID)
}

// How long a thread has been off the CPU, at least, when it gets a late sample; and how
// often such threads are looked for, at most.
const (
	lateWait     = 50 * time.Millisecond
	lateInterval = 50 * time.Millisecond
)

// readLate takes samples of threads that have been off the CPU for long and were not
// sampled when they left it, as they switch too often: of long times none shall be
// without a stack. It takes a twentieth of a CPU at most.
func (s *Session) readLate() {
	now := monotonic()
	if now < s.nextLate || !s.isThinned() {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadCPU()
	s.readLateBefore(now - uint64(lateWait))
	s.nextLate = now + max(uint64(lateInterval), 20*(threadCPU()-before))
}

// threadCPU is the CPU time of this thread in ns.
func threadCPU() uint64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return uint64(t.Nano())
}

// isThinned reports whether there were times off the CPU without a sample.
func (s *Session) isThinned() bool {
	for i := range s.rings.cpus {
		if s.rings.cpus[i].counters.SkippedRate != 0 {
			return true
		}
	}
	return false
}

// readLateBefore takes samples of threads that left the CPU by a time and were not
// sampled then. Where the kernel does not let it, for want of memory or of descriptors,
// these times are without a stack, as others are, and counted so.
func (s *Session) readLateBefore(ns uint64) {
	if s.waiting == nil {
		return
	}
	for i := range s.rings.cpus {
		s.rings.cpus[i].counters.LateBefore = ns
	}
	_ = s.readWaiting(s.blocked.late)
}

// waitingThread is a thread that was found off the CPU.
type waitingThread struct {
	pid  uint32 // in the first PID namespace
	tid  uint32
	left uint64 // when it left the CPU, or else when the Session started
}

// readWaiting takes samples of threads while they are off the CPU: when the Session
// starts of all, later as readLateBefore says. Their user stacks are read from here: a
// thread that has not run since still has the one it had, for which the kernel side
// vouches afterwards.
func (s *Session) readWaiting(in map[uint32]*blockedRecord) error {
	all, err := s.listWaiting()
	if err != nil {
		return err
	}
	w := waitingStack{s: s, page: make([]byte, 4096), left: maxCollected}
	var threads []waitingThread
	for len(all) > 0 {
		if len(all) < 8 {
			return fmt.Errorf("%w: %d bytes", errBadRecord, len(all))
		}
		pid := uint32(binary.NativeEndian.Uint64(all))
		all = all[8:]
		n, err := waitingRecordBytes(all)
		if err != nil {
			return err
		}
		rec := w.complete(all[:n])
		all = all[n:]
		h := (*sampleHeader)(unsafe.Pointer(unsafe.SliceData(rec)))
		if int(h.Tid) == s.cfg.Held && h.Time == s.startedAt {
			_ = s.maps.Times.Delete(pid) // it waits to be let go, and has no life before
			continue
		}
		if err := s.blocked.hold(in, rec); err != nil {
			return err
		}
		threads = append(threads, waitingThread{pid, h.Tid, h.Time})
		if h.Frames > 0 && s.cfg.OnWaiting != nil && w.sample.decode(in[h.Tid].bytes(), nil) == nil {
			s.cfg.OnWaiting(&w.sample)
		}
	}
	var t threadTimes
	for _, thread := range threads {
		r := in[thread.tid]
		if r.time == thread.left && (s.maps.Times.Lookup(thread.pid, &t) != nil || t.Left != thread.left) {
			if err := r.dropUserStack(); err != nil {
				return err
			}
		}
	}
	return nil
}

// listWaiting returns what on_waiting_task writes of all threads.
func (s *Session) listWaiting() ([]byte, error) {
	it, err := link.AttachIter(link.IterOptions{Program: s.waiting})
	if err != nil {
		return nil, diagnose(err, "list threads")
	}
	defer it.Close()
	r, err := it.Open()
	if err != nil {
		return nil, diagnose(err, "list threads")
	}
	defer r.Close()
	all, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	return all, nil
}

// dropUserStack takes the user stack back of a thread that has run meanwhile.
func (r *blockedRecord) dropUserStack() error {
	n, err := waitingRecordBytes(r.bytes())
	if err != nil {
		return err
	}
	h := (*sampleHeader)(unsafe.Pointer(unsafe.SliceData(r.words)))
	if h.Regions > 0 {
		r.words = append(r.words[:n/8], stackPointer(h), regionWord(0))
		h = (*sampleHeader)(unsafe.Pointer(unsafe.SliceData(r.words)))
		h.Regions, h.Parts, h.Frames, h.StackEnd = 1, 0, 0, uint8(StackEndChanged)
	}
	return nil
}

// waitingRecordBytes is the length of the first record of on_waiting_task, without its
// PID: a sample without regions.
func waitingRecordBytes(b []byte) (int, error) {
	n := int(unsafe.Sizeof(sampleHeader{}))
	if len(b) >= n {
		h := (*sampleHeader)(unsafe.Pointer(unsafe.SliceData(b)))
		n += int(h.KernelFrames)*8 + int(h.Returns)*int(unsafe.Sizeof(replacedReturn{}))
	}
	if len(b) < n {
		return 0, fmt.Errorf("%w: %d bytes", errBadRecord, len(b))
	}
	return n, nil
}

// belowSP is what is copied of a stack below SP, in bytes.
var belowSP = procstate.HostArch().BelowSP

// waitingStack adds user stacks to the records of threads that wait.
type waitingStack struct {
	s      *Session
	page   []byte
	rec    []byte        // the record in the making
	left   int           // bytes that may still be copied of frames that runtimes keep, of all threads,
	spent  time.Duration // and the time that this took
	sample Sample        // of the record, or its registers alone
}

// Limits on what is copied of the frames that runtimes keep, in bytes and regions.
const (
	maxCollected     = 16 << 20
	maxCollectedEach = 256 << 10 // of a thread
	maxCollectedMany = 128       // the same; there are up to 255 regions in a record

	// maxCollecting is the time after which no more of them are looked for: memory may be made so that it takes long.
	maxCollecting = 500 * time.Millisecond
)

// complete returns the record with the regions that a sample of the thread has.
// It is valid until the next call.
func (w *waitingStack) complete(rec []byte) []byte {
	w.rec = append(w.rec[:0], rec...)
	h := w.header()
	if u := UserState(h.User); u != UserNative && u != UserCompat32 {
		return w.rec
	}
	sp := stackPointer(h)
	limit, end := uint64(w.s.cfg.StackBytes), uint8(StackEndLimit)
	if live := h.Live; live != 0 && live <= uint64(w.s.cfg.whole) {
		limit, end = live, uint8(StackEndBottom)
	}
	n := w.add(sp-belowSP, limit+belowSP)
	if n == 0 {
		n = w.add(sp, limit) + belowSP
	}
	if n < limit+belowSP {
		end = uint8(StackEndUnreadable)
	}
	if goProc := (gen.SamplerGoProcess{}); w.s.maps.GoProcesses.Lookup(h.Tgid, &goProc) == nil {
		w.addGoroutine(&goProc)
	} else {
		if end == uint8(StackEndLimit) {
			w.addOuterParts(sp + limit)
		}
		w.addFrames()
	}
	h = w.header()
	h.StackEnd = end
	if h.Regions == 0 { // as the kernel side has it: an empty stack
		w.rec = binary.NativeEndian.AppendUint64(w.rec, sp)
		w.rec = binary.NativeEndian.AppendUint64(w.rec, regionWord(0))
		w.header().Regions = 1
	}
	return w.rec
}

// regionWord is the second word of the header of a region of n bytes.
func regionWord(n uint64) uint64 { return n | uint64(noMirror)<<32 }

func (w *waitingStack) header() *sampleHeader {
	return (*sampleHeader)(unsafe.Pointer(unsafe.SliceData(w.rec)))
}

// add adds memory of the thread as a region, up to n bytes at addr. It returns
// how many there are before some that cannot be read.
func (w *waitingStack) add(addr, n uint64) uint64 {
	tid, header := w.header().Tid, len(w.rec)
	w.rec = binary.NativeEndian.AppendUint64(w.rec, addr)
	w.rec = binary.NativeEndian.AppendUint64(w.rec, 0)
	got := uint64(0)
	for got < n {
		piece := min(n-got, uint64(len(w.page))-(addr+got)%uint64(len(w.page)))
		if !readMemory(tid, addr+got, w.page[:piece]) {
			break
		}
		w.rec = append(w.rec, w.page[:piece]...)
		got += piece
	}
	if got == 0 {
		w.rec = w.rec[:header]
		return 0
	}
	binary.NativeEndian.PutUint64(w.rec[header+8:], regionWord(got))
	for len(w.rec)%8 != 0 {
		w.rec = append(w.rec, 0)
	}
	w.header().Regions++
	return got
}

// addOuterParts adds the outermost frames of a stack that was copied up to an address, as
// bpf/stack.h does: a single large one may be before them.
func (w *waitingStack) addOuterParts(copied uint64) {
	const page, part = 4 << 10, uint64(gen.SamplerLimitsSTACK_PART)
	h := w.header()
	end := stackPointer(h) + h.Live
	if h.Live == 0 {
		if h.Tid == h.Tgid {
			return
		}
		end = h.ThreadPointer // likely
	}
	for n := uint64(gen.SamplerLimitsOUTER_PARTS); n > 0; n-- {
		from := (end + page - 1 - n*part) &^ (page - 1)
		if from >= copied && from < end && w.add(from, min(part, end-from)) != 0 {
			w.header().Parts++
		}
	}
}

// addFrames adds the frames that runtimes keep of the thread.
func (w *waitingStack) addFrames() {
	h := w.header()
	if w.s.cfg.Collect == nil || h.Regions == 0 || w.spent > maxCollecting {
		return
	}
	begin := time.Now()
	defer func() { w.spent += time.Since(begin) }()
	collect := w.s.cfg.Collect(int(h.Tgid))
	if collect == nil {
		return
	}
	p := &w.sample
	p.User, p.Arch, p.Regs = UserState(h.User), nil, procstate.Regs{}
	if p.decodeRegs(h); p.Arch == nil || p.Arch.AddressWidth != 8 {
		return
	}
	tid, left, many := h.Tid, maxCollectedEach, maxCollectedMany
	collect(procstate.ProcessMemory(int(tid)), procstate.ThreadID(tid), &p.Regs, func(addr uint64, n int) {
		if n <= 0 || n > min(left, w.left) || many == 0 {
			return
		}
		if w.add(addr, uint64(n)) == 0 {
			return
		}
		w.header().Frames++
		left, w.left, many = left-n, w.left-n, many-1
	})
}

// readMemory reads all of b from a thread: its process gives nothing when its
// first thread has ended before the others.
func readMemory(tid uint32, addr uint64, b []byte) bool {
	return procstate.ReadProcess(int(tid), addr, b) == len(b)
}

// word reads a word of the thread's memory, 0 when it cannot be read.
func (w *waitingStack) word(addr uint64) uint64 {
	var b [8]byte
	if !readMemory(w.header().Tid, addr, b[:]) {
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}

// addGoroutine adds what leads from the runtime's stack to that of the
// goroutine being served, as bpf/goroutine.h does.
func (w *waitingStack) addGoroutine(p *gen.SamplerGoProcess) {
	h := w.header()
	sp, offset := stackPointer(h), uint64(p.G_fromTp)
	if p.G_slot != 0 {
		offset = w.word(p.G_slot)
	}
	at := h.ThreadPointer + offset
	g := w.word(at)
	if h.ThreadPointer == 0 || g == 0 {
		return
	}
	m := w.word(g + uint64(p.G_m))
	curg := w.word(m + uint64(p.M_curg))
	if lo, hi := w.word(g+uint64(p.G_stack)), w.word(g+uint64(p.G_stack)+8); curg == 0 || g == curg && sp-lo < hi-lo {
		return
	}
	w.add(at, 8)
	if p.G_slot != 0 {
		w.add(p.G_slot, 8)
	}
	w.add(g, uint64(p.G_head))
	w.add(m, uint64(p.M_head))
	if curg != g {
		w.add(curg, uint64(p.G_head))
	}
	from, lo, hi := w.word(curg+uint64(p.G_schedSp)), w.word(curg+uint64(p.G_stack)), w.word(curg+uint64(p.G_stack)+8)
	if from-lo < hi-lo {
		n := hi - from
		if n > uint64(w.s.cfg.whole) {
			n = uint64(w.s.cfg.StackBytes)
		}
		w.add(from, n)
	}
}
