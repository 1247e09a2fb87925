package loader

import (
	"debug/elf"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// GoOffsets tells where the Go runtime of a process keeps what a stack walk
// needs. Offsets are in bytes.
type GoOffsets struct {
	GFromThreadPointer int64  // address of the pointer to the running g, from the thread pointer
	GSlot              uint64 // run-time address of the word that holds GFromThreadPointer instead; 0: none
	GStack             uint16 // of stack (lo, hi) in runtime.g
	GM                 uint16 // of m in runtime.g
	GSchedSP           uint16 // of sched.sp in runtime.g
	MG0                uint16 // of g0 in runtime.m
	MCurg              uint16 // of curg in runtime.m
	MGsignal           uint16 // of gsignal in runtime.m
	MVDSOSP            uint16 // of vdsoSP in runtime.m
	GLabels            uint16 // of labels in runtime.g; 0: they are not to be copied
	CallsC             bool   // whether the program has cgo, and C may call Go
}

type goProcess = gen.SamplerGoProcess

// GoOffsetsOf returns the offsets of a Go runtime that is mapped with a bias.
func GoOffsetsOf(rt *procstate.GoRuntime, bias uint64) GoOffsets {
	o := GoOffsets{
		GFromThreadPointer: rt.TLSOffset, GStack: uint16(rt.StackLo), GM: uint16(rt.M), GSchedSP: uint16(rt.SchedSP),
		MG0: uint16(rt.G0), MCurg: uint16(rt.CurG), MGsignal: uint16(rt.GSignal), MVDSOSP: uint16(rt.VDSOSP), CallsC: rt.CallsC,
		GLabels: uint16(rt.Labels),
	}
	if rt.TLSSlot != 0 {
		o.GSlot = bias + rt.TLSSlot
	}
	return o
}

// maxGoHead is the most that is copied of a runtime.g or runtime.m
// (MAX_GO_HEAD in bpf/record.h).
const maxGoHead = 512

// goSchedBytes is more than what is of use in a runtime.gobuf from sp on.
const goSchedBytes = 64

// inKernel returns the offsets as the kernel side has them.
func (o *GoOffsets) inKernel() (p goProcess, ok bool) {
	gHead := max(int(o.GStack)+16, int(o.GM)+8, int(o.GSchedSP)+goSchedBytes)
	mHead := int(max(o.MG0, o.MCurg, o.MGsignal)) + 8
	p = goProcess{
		G_fromTp: o.GFromThreadPointer, G_slot: o.GSlot, G_stack: o.GStack, G_m: o.GM, G_schedSp: o.GSchedSP,
		M_g0: o.MG0, M_curg: o.MCurg, M_gsignal: o.MGsignal, M_vdsoSp: o.MVDSOSP,
		G_head: uint16(gHead), M_head: uint16(mHead), G_labels: o.GLabels,
	}
	if o.CallsC {
		p.CallsC = 1
	}
	return p, gHead <= maxGoHead && mHead <= maxGoHead
}

// MaxGoRuntimes is how many runtimes of a Go process SetGoProcess tells of.
const MaxGoRuntimes = 1 + int(gen.SamplerLimitsMORE_RUNTIMES)

// SetGoProcess makes a Go process known, so that samples of it end at the end
// of the goroutine's stack, and carry the other stacks that its frames lead to:
// that of the goroutine being served, and that of the C code which called Go. Where libraries
// have runtimes of their own, others are those; from MaxGoRuntimes on they are left out.
func (s *Session) SetGoProcess(pid int, o GoOffsets, others ...GoOffsets) error {
	if s.rings == nil {
		return errNotOpen
	}
	others = others[:min(len(others), MaxGoRuntimes-1)]
	for i := len(others); i >= 0; i-- { // the first, which tells of the others, comes last
		of := &o
		if i > 0 {
			of = &others[i-1]
		}
		v, ok := of.inKernel()
		if !ok {
			return fmt.Errorf("process %d: offsets of its Go runtime are out of range", pid)
		}
		if i == 0 {
			v.Others = uint16(len(others))
		}
		if err := s.maps.GoProcesses.Put(goRuntime(pid, i), &v); err != nil {
			return fmt.Errorf("process %d: tell the kernel its Go offsets: %w", pid, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flags.set(pid, processIsGo)
}

// ForgetGoProcess undoes SetGoProcess, as after an exec.
func (s *Session) ForgetGoProcess(pid int) error {
	if s.rings == nil {
		return errNotOpen
	}
	s.mu.Lock()
	s.flags.clear(pid, processIsGo)
	s.mu.Unlock()
	var errs error
	for i := range MaxGoRuntimes {
		errs = errors.Join(errs, ignoreMissing(s.maps.GoProcesses.Delete(goRuntime(pid, i))))
	}
	return errs
}

// SetStackEnd tells where the stack of a thread ends: the CFA of the
// outermost frame of a complete walk. Later samples of the thread end there, but
// for what SetThreadEnds says.
// A main thread's end is known without. An end of 0 forgets it, as must be
// done when a walk runs past the end: the thread may be a new one, or have
// changed its stack.
func (s *Session) SetStackEnd(tid int, end uint64) error {
	if s.rings == nil {
		return errNotOpen
	}
	if end == 0 {
		return ignoreMissing(s.maps.StackEnds.Delete(uint32(tid)))
	}
	if err := s.maps.StackEnds.Put(uint32(tid), end); err != nil {
		return fmt.Errorf("thread %d: tell the kernel its stack's end: %w", tid, err)
	}
	return nil
}

// SetThreadEnds tells how far below their thread pointers the stacks of a process's
// threads end, in bytes: all but the main one's samples end there, and of those with more stack
// than Config.StackBytes from there the ones that SetStackEnd has told nothing of. 0
// forgets it, as must be done when a walk lacks what is above, and for another program
// under the number.
func (s *Session) SetThreadEnds(pid int, below uint64) error {
	if s.rings == nil {
		return errNotOpen
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if below == 0 {
		s.flags.clear(pid, processHasEnds)
		return nil
	}
	if err := s.maps.ThreadEnds.Put(uint32(pid), below); err != nil {
		return fmt.Errorf("process %d: tell the kernel where its threads' stacks end: %w", pid, err)
	}
	return s.flags.set(pid, processHasEnds)
}

// SetStartsAbove tells that the outermost frame of a process's main thread is above where the
// kernel has put its arguments, as when a program is run by its loader with many of them: a walk
// has lacked what is there. It holds until the process executes another program.
func (s *Session) SetStartsAbove(pid int) error {
	if s.rings == nil {
		return errNotOpen
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flags.set(pid, processStartsAbove)
}

// StackParts is how many parts of a thread's stack SetStackParts tells of, of at
// most StackPart bytes each.
const (
	StackParts = int(gen.SamplerLimitsSTACK_PARTS)
	StackPart  = int(gen.SamplerLimitsSTACK_PART)
)

// SetStackParts tells what a walk lacked of a thread's stack, because frames are
// larger than what is copied: where pages of 4 KiB begin, 0 for none. Later samples
// of the thread whose stack is cut before these have StackPart bytes from each on,
// or the page alone, as regions of their own, within what may be copied of a whole stack.
// Until they are told they have the last 64 KiB instead, but for goroutines.
func (s *Session) SetStackParts(tid int, parts *[StackParts]uint64) error {
	if s.rings == nil {
		return errNotOpen
	}
	if err := s.maps.StackParts.Put(uint32(tid), &gen.SamplerStackParts{From: *parts}); err != nil {
		return fmt.Errorf("thread %d: tell the kernel parts of its stack: %w", tid, err)
	}
	return nil
}

// ThreadFrames is where a runtime keeps the frames of a thread.
type ThreadFrames = procstate.ThreadFrames

// SetThreadFrames tells where a runtime keeps the frames of a thread. Samples of the thread have
// them, see Sample.FrameRegions. The zero value has those of all threads of the process
// forgotten: it runs another program.
func (s *Session) SetThreadFrames(pid, tid int, f ThreadFrames) error {
	if s.rings == nil {
		return errNotOpen
	}
	if f == (ThreadFrames{}) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.flags.clear(pid, processHasFrames)
		_ = s.maps.ThreadFrames.Delete(framesOfProcess(pid))
		return ignoreMissing(s.maps.ThreadFrames.Delete(uint32(tid)))
	}
	v := framesInKernel(f)
	if err := s.maps.ThreadFrames.Put(uint32(tid), &v); err != nil {
		return fmt.Errorf("thread %d: tell the kernel where its frames are: %w", tid, err)
	}
	if f.Own != 0 {
		countFromOwn(&v, &f)
		if err := s.maps.ThreadFrames.Put(framesOfProcess(pid), &v); err != nil {
			return fmt.Errorf("process %d: tell the kernel where frames are: %w", pid, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flags.set(pid, processHasFrames)
}

// SetProgramFrames tells where a runtime keeps the frames of a thread, the first of its process, whose program m is a
// mapping of. Processes that execute the file from now on have them with their first sample, where they are at the same
// place: in the program's memory, or as Own says. It reports whether they are. It needs Config.NewPrograms.
func (s *Session) SetProgramFrames(m *procstate.Mapping, f ThreadFrames) (isKnown bool, err error) {
	if s.rings == nil {
		return false, errNotOpen
	}
	code, low, high := ^uint64(0), ^uint64(0), uint64(0) // link-time addresses
	for _, seg := range m.Image.Segments() {
		if low, high = min(low, seg.Vaddr), max(high, seg.Vaddr+seg.Memsz); seg.Flags&elf.PF_X != 0 {
			code = min(code, seg.Vaddr)
		}
	}
	isIn := func(addr uint64) bool { return addr-m.Bias-low < high-low }
	v := framesInKernel(f)
	switch {
	case f.Own != 0:
		countFromOwn(&v, &f)
	case f.Chunk == 0 && isIn(f.Current) && (f.Bounds == 0 || isIn(f.Bounds)):
		v.From = uint8(gen.SamplerFramesFromFROM_PROGRAM)
		if v.Current -= m.Bias + code; f.Bounds != 0 {
			v.Bounds -= m.Bias + code
		}
	default:
		return false, nil
	}
	id := &m.Image.ID
	file := programFile{Inode: id.Inode, Size: uint64(m.Image.Size()), Generation: uint32(id.Generation), Dev: kernelDev(id.Dev)}
	if err := s.maps.ProgramFrames.Put(file, &v); err != nil {
		return false, fmt.Errorf("tell the kernel where processes of %s have frames: %w", m.Path, err)
	}
	return true, nil
}

// countFromOwn has the addresses in v, which are those of f, counted from f.Own.
func countFromOwn(v *gen.SamplerThreadFrames, f *ThreadFrames) {
	v.From, v.FromTp = uint8(gen.SamplerFramesFromFROM_WORD), f.FromThreadPointer
	if f.IsThreadPointer {
		v.From = uint8(gen.SamplerFramesFromFROM_THREAD)
	}
	if v.Current -= f.Own; f.Bounds != 0 {
		v.Bounds -= f.Own
	}
}

// framesInKernel returns f as the kernel side has it.
func framesInKernel(f ThreadFrames) gen.SamplerThreadFrames {
	bit := func(is bool) uint8 {
		if is {
			return 1
		}
		return 0
	}
	return gen.SamplerThreadFrames{
		Current: f.Current, Bounds: f.Bounds, Low: uint16(f.Low), High: uint16(f.High), Head: uint16(f.Head), Bytes: uint32(f.Bytes),
		First: uint16(f.First), Previous: uint16(f.Previous), IsFrame: bit(f.IsFrame), IsCounted: bit(f.IsCounted), IsDown: bit(f.IsDown),
		HasValues: bit(f.HasValues), Values: uint16(f.Values), ValuesEnd: uint16(f.ValuesEnd),
		Entry: uint16(f.Entry), Last: uint16(f.Last), Before: uint16(f.Before), After: uint16(f.After), Below: uint16(f.Below),
		Chunk: uint16(f.Chunk), Beside: f.Chunks.Beside, ChunkBase: f.Chunks.Base, ChunkShift: uint8(f.Chunks.Shift), IsWide: bit(f.Chunks.Wide), ChunkMark: uint8(f.Chunks.Mark),
		ChunkHead: uint16(f.Chunks.Head), ChunkLow: uint16(f.Chunks.Low), ChunkWords: uint16(f.Chunks.Words), ChunkOuter: uint16(f.Chunks.Outer),
		Object: uint16(f.Object), ObjectWord: uint16(f.ObjectWord),
	}
}

// SetThreadContext tells where the threads of a process have what they work on, nil that they have not: it runs another
// program. Samples of them have it, see Sample.ThreadContext.
func (s *Session) SetThreadContext(pid int, place *procstate.ThreadContextPlace) error {
	if s.rings == nil {
		return errNotOpen
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if place == nil {
		s.flags.clear(pid, processHasContexts)
		return ignoreMissing(s.maps.ThreadContexts.Delete(uint32(pid)))
	}
	v := gen.SamplerThreadContext{
		FromTp: int64(place.FromThreadPointer), Entry: place.Entry, Module: place.Module, Count: place.Count, Offset: place.Offset,
		Table: uint16(place.Map.Table), TableHead: uint16(place.Map.TableHead), Record: uint16(place.Map.Record),
	}
	if err := s.maps.ThreadContexts.Put(uint32(pid), &v); err != nil {
		return fmt.Errorf("process %d: tell the kernel where its threads have what they work on: %w", pid, err)
	}
	return s.flags.set(pid, processHasContexts)
}

func ignoreMissing(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// goRuntime is the key of the i-th runtime of a Go process.
func goRuntime(pid, i int) uint32 { return uint32(pid) + uint32(i)*uint32(gen.SamplerLimitsGO_RUNTIME) }

// framesOfProcess is the key of what leads to the frames of each thread of a process.
func framesOfProcess(pid int) uint32 { return uint32(pid) | uint32(gen.SamplerLimitsFRAMES_OF_PROCESS) }
