package loader

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// UserState tells what a sample knows of the user part of its task.
type UserState uint8

// The states; their numbers are those of enum user_state in bpf/record.h.
const (
	UserNone     UserState = iota // a kernel thread: there is none
	UserNative                    // registers of a 64-bit program
	UserCompat32                  // registers of a 32-bit program
	UserExited                    // the task is exiting, its memory is gone
	UserPartial                   // the kernel was just saving the registers
	UserExec                      // an exec has dropped the old program's memory
)

var userStateNames = [...]string{"kernel thread", "64-bit", "32-bit", "exiting", "entering the kernel", "exec"}

// String returns the state in a word or two: "64-bit".
func (u UserState) String() string {
	if int(u) < len(userStateNames) {
		return userStateNames[u]
	}
	return fmt.Sprintf("UserState(%d)", uint8(u))
}

// StackEnd tells where and why the copy of a user stack ended.
type StackEnd uint8

// The reasons; their numbers are those of enum stack_end_kind in bpf/record.h, but for the
// last, which only samples of threads have that are off the CPU when a Session of OffCPU
// or Wall starts, or for long.
const (
	StackEndNone       StackEnd = iota // no stack was copied
	StackEndBottom                     // the stack's end: all of it is there
	StackEndLimit                      // Config.StackBytes
	StackEndUnreadable                 // a page not present, or no memory at all
	StackEndChanged                    // the thread ran while it was copied: nothing of it is there
)

var stackEndNames = [...]string{"no stack", "bottom", "limit", "unreadable page", "changed"}

// String returns the reason in a word or two: "unreadable page".
func (e StackEnd) String() string {
	if int(e) < len(stackEndNames) {
		return stackEndNames[e]
	}
	return fmt.Sprintf("StackEnd(%d)", uint8(e))
}

// Sample is one record of the sampling program. It is reused for the next
// one: neither it nor what its slices refer to may be kept after the function
// that received it returns.
type Sample struct {
	Time   uint64 // CLOCK_MONOTONIC, ns
	Weight uint64 // events it stands for, in Event.Unit
	PID    int32  // tgid, as this process sees it
	TID    int32
	CPU    uint32
	Event  int      // which of Session.Samplings it is of
	Comm   [16]byte // name of the thread, ended by a zero byte

	// Cgroup is the ID of the thread's cgroup in the unified hierarchy: the
	// number of its directory there.
	Cgroup uint64

	// Blocked tells what the thread waited for in a sample of OffCPU or Wall.
	// Time is then the end of that, Left its beginning.
	Blocked Blocked
	Left    uint64
	// Continued says that the sample goes on where the last one ended: the
	// thread has the same stack in another state. Unsampled, that of this time
	// no sample was taken: there is no stack. Neither counts as a sample.
	Continued, Unsampled bool
	// Ongoing says that what the sample is of had not ended when the Session stopped.
	Ongoing bool
	// Waker is set of samples that are of what woke up another thread. They count for nothing.
	Waker Waker
	// Bytes is how many were asked for, in a sample of Heap.
	Bytes uint64
	// Freed is set where a block of memory is given back, at Time, of which there was a sample of Heap. There is
	// nothing else then, and it counts for nothing.
	Freed BlockID

	// User tells whether Regs and Regions are there: in the states
	// UserNative and UserCompat32.
	User UserState
	// Arch is the architecture of the user code, whose numbering Regs has;
	// nil without user part, and for 32-bit Arm, which is not known.
	Arch *procstate.Arch
	// Regs are the user registers, also of a sample that fell in the kernel:
	// those with which it was entered.
	Regs procstate.Regs

	// Kernel is the kernel part of the stack, leaf first; empty when the
	// sample fell in user code. At most 127 addresses.
	Kernel []uint64

	// Probes is what uprobes and uretprobes have changed in the thread.
	Probes procstate.UserProbes

	// Regions is the user memory copied. First comes the stack, from the red
	// zone below SP (128 bytes on amd64; not in a system call, nor on a
	// goroutine's stack) up; it is more than one region where
	// pages in it could not be read, and where parts were asked for. On an alternate stack for signals there
	// follows the stack that was interrupted. For Go processes made known by
	// SetGoProcess there follow, when the thread is not on its own goroutine's
	// stack or C has called Go in it, the word that holds the running g and
	// GoOffsets.GSlot, that runtime.g, its runtime.m, the runtime.g of m.curg and
	// its live stack, and that of m.g0 and its live stack; or, when the thread
	// is about to go on with a goroutine, that runtime.g alone.
	Regions []procstate.Region
	// StackEnd tells how the stack's copy ended, LiveBytes how long it had to be:
	// the distance from SP to the stack's end, 0 when that is not known.
	StackEnd  StackEnd
	LiveBytes uint64
	// StackParts is how many of the stack's regions, the last of them, are such
	// of Session.SetStackParts, or what is there in place of them.
	StackParts int
	// FrameRegions is how many of the regions, behind those of stacks, are what SetThreadFrames is
	// for: the word, the stack of frames, or the last 16 KiB of it, and frames elsewhere.
	FrameRegions int
	// LabelRegions is how many regions, the last of all, are labels of a goroutine: see GoLabels.
	LabelRegions int
	// ContextRegions is how many regions, right before these, are what the thread works on, 0 or 1: see ThreadContext.
	ContextRegions int

	// Number is that of the sample among those of which only changes were sent,
	// of one region of stack each; 0 for others. The region is from SameFrom on as it was in
	// the sample with the number before, if SameFrom lies in it.
	Number, SameFrom uint64

	// The kernel's stack from kernelRegs.Sp up, and with 0 for words that are of no use
	// to unwinding; kernelRegs is nil when it was not copied.
	kernelRegs  *gen.SamplerKernelRegs
	kernelStack []uint64
	irqWords    int // of kernelStack, on the CPU's stack for interrupts
}

// StackRegions are the regions of stacks, and of what tells where these are.
func (s *Sample) StackRegions() []procstate.Region {
	return s.Regions[:len(s.Regions)-s.FrameRegions-s.ContextRegions-s.LabelRegions]
}

// ThreadContext returns the record of what the thread worked on, as procstate.ParseThreadContext has it, of which
// no more than 640 bytes are copied; nil where there is none. It points into the sample.
func (s *Sample) ThreadContext() []byte {
	if s.ContextRegions == 0 {
		return nil
	}
	return s.Regions[len(s.Regions)-s.LabelRegions-1].Data
}

// HasUser reports whether the sample has user registers of an architecture
// that is known.
func (s *Sample) HasUser() bool { return s.Arch != nil }

// CommString returns Comm as a string.
func (s *Sample) CommString() string { return unix.ByteSliceToString(s.Comm[:]) }

type (
	sampleHeader   = gen.SamplerSampleHeader
	regionHeader   = gen.SamplerRegionHeader
	replacedReturn = gen.SamplerReplacedReturn
)

// maxKernelWords is what is copied of a kernel stack at most: CHUNK of bpf/config.h.
const maxKernelWords = copyChunk / 8

var errBadRecord = errors.New("malformed record")

// decode loads the sample from a record as described in bpf/record.h. Slices
// point into rec, which must be aligned to 8 bytes, or into the mirror of its
// CPU; m is nil when there is none.
func (s *Sample) decode(rec []byte, m *mirror) error {
	if len(rec) < int(unsafe.Sizeof(sampleHeader{})) || uintptr(unsafe.Pointer(unsafe.SliceData(rec)))%8 != 0 {
		return fmt.Errorf("%w: %d bytes", errBadRecord, len(rec))
	}
	h := (*sampleHeader)(unsafe.Pointer(unsafe.SliceData(rec)))
	rest := rec[unsafe.Sizeof(sampleHeader{}):]

	s.Time, s.Weight = h.Time, h.Weight
	s.PID, s.TID, s.CPU, s.Comm = int32(h.Tgid), int32(h.Tid), h.Cpu, h.Comm
	if end := bytes.IndexByte(s.Comm[:], 0); end >= 0 {
		clear(s.Comm[end:])
	}
	s.User, s.StackEnd, s.LiveBytes = UserState(h.User), StackEnd(h.StackEnd), h.Live
	s.StackParts, s.FrameRegions, s.ContextRegions, s.LabelRegions = int(h.Parts), int(h.Frames), int(h.Contexts), int(h.Labels)
	s.Cgroup, s.Event = h.Cgroup, int(h.Event)
	s.Blocked, s.Continued, s.Unsampled, s.Ongoing = Blocked(h.OffCpu), false, false, false
	s.Left, s.Waker = 0, Waker{}
	s.Bytes, s.Freed = 0, BlockID{}
	s.Arch, s.Regs = nil, procstate.Regs{}
	if s.User == UserNative || s.User == UserCompat32 {
		s.decodeRegs(h)
	}

	s.Probes = procstate.UserProbes{Trampoline: h.Trampoline, Breakpoint: h.Breakpoint, Slot: h.Slot}

	n := int(h.KernelFrames)
	if n*8 > len(rest) {
		return fmt.Errorf("%w: %d kernel frames in %d bytes", errBadRecord, n, len(rest))
	}
	s.Kernel = nil
	if n > 0 {
		s.Kernel = unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(rest))), n)
		if s.Kernel[0] == perfContextKernel {
			s.Kernel = s.Kernel[1:]
		}
		rest = rest[n*8:]
	}

	s.kernelRegs = nil
	if n = int(h.KernelBytes); n > 0 {
		var err error
		if rest, err = s.decodeKernelStack(n/8, int(h.IrqBytes)/8, rest); err != nil {
			return err
		}
	}

	if n = int(h.Returns); n*int(unsafe.Sizeof(replacedReturn{})) > len(rest) {
		return fmt.Errorf("%w: %d replaced return addresses in %d bytes", errBadRecord, n, len(rest))
	}
	if n > 0 {
		// The two structs are the same, which a test checks.
		s.Probes.Returns = unsafe.Slice((*procstate.ReplacedReturn)(unsafe.Pointer(unsafe.SliceData(rest))), n)
		rest = rest[n*int(unsafe.Sizeof(replacedReturn{})):]
	}

	if int(h.Parts)+int(h.Frames)+int(h.Contexts)+int(h.Labels) > int(h.Regions) || h.Contexts > 1 {
		return fmt.Errorf("%w: %d parts of stacks, %d of frames, %d of contexts and %d of labels in %d regions",
			errBadRecord, h.Parts, h.Frames, h.Contexts, h.Labels, h.Regions)
	}
	return s.decodeRegions(h, rest, m)
}

// decodeRegions reads the copied memory, which is all that is left of the record. Of regions in m
// the record has what has changed.
func (s *Sample) decodeRegions(h *sampleHeader, rest []byte, m *mirror) error {
	s.Regions = s.Regions[:0]
	s.Number, s.SameFrom = 0, ^uint64(0)
	mirrored := false
	for range h.Regions {
		if len(rest) < int(unsafe.Sizeof(regionHeader{})) {
			return fmt.Errorf("%w: region header in %d bytes", errBadRecord, len(rest))
		}
		r := (*regionHeader)(unsafe.Pointer(unsafe.SliceData(rest)))
		rest = rest[unsafe.Sizeof(regionHeader{}):]
		if r.Mirror != noMirror {
			if !mirrored {
				mirrored = true
				if err := m.begin(h.Changes); err != nil {
					return err
				}
			}
			data, n, err := m.apply(r, rest, s.Regions)
			if err != nil {
				return err
			}
			s.Regions = append(s.Regions, procstate.Region{Addr: r.Addr, Data: data})
			rest = rest[n:]
			switch ofStack := h.Regions - h.Frames - h.Contexts - h.Labels; {
			case ofStack == 1 && len(s.Regions) == 1:
				s.Number, s.SameFrom = uint64(s.CPU)<<32|uint64(h.Changes), m.follow(r)
			case ofStack != 1 || len(m.saved) > 0: // or what is in the mirror is another's
				m.last = laid{}
			}
			continue
		}
		if r.Len > math.MaxInt32 || int(r.Len+7)&^7 > len(rest) {
			return fmt.Errorf("%w: region of %d bytes in %d", errBadRecord, r.Len, len(rest))
		}
		s.Regions = append(s.Regions, procstate.Region{Addr: r.Addr, Data: rest[:r.Len:r.Len]})
		rest = rest[(r.Len+7)&^7:]
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes too many", errBadRecord, len(rest))
	}
	return nil
}

// perfContextKernel is PERF_CONTEXT_KERNEL, by which the stack that the kernel has of a precise event begins.
const perfContextKernel = ^uint64(127)

// decodeKernelStack loads the registers and the stack, of so many words, of kernel code;
// the first irq of these are on the stack for interrupts. It returns what follows
// in the record.
func (s *Sample) decodeKernelStack(words, irq int, rest []byte) ([]byte, error) {
	head := int(unsafe.Sizeof(*s.kernelRegs))
	if words > maxKernelWords || irq >= words || len(rest) < head {
		return nil, fmt.Errorf("%w: %d words of kernel stack, %d for interrupts", errBadRecord, words, irq)
	}
	s.kernelRegs = (*gen.SamplerKernelRegs)(unsafe.Pointer(unsafe.SliceData(rest)))
	s.irqWords = irq
	masks := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(rest))), len(rest)/8)[head/8:]
	groups := (words + 63) / 64
	if groups > len(masks) {
		return nil, fmt.Errorf("%w: kernel stack", errBadRecord)
	}
	sent, n := masks[groups:], 0
	for _, mask := range masks[:groups] {
		n += bits.OnesCount64(mask)
	}
	if n > 2*len(sent) {
		return nil, fmt.Errorf("%w: kernel stack", errBadRecord)
	}
	kept := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(sent))), n)
	if s.kernelStack == nil {
		s.kernelStack = make([]uint64, 0, maxKernelWords)
	}
	s.kernelStack = s.kernelStack[:words]
	const near = uint64(gen.SamplerKernelStacksNEAR)
	task, interrupts := s.kernelRegs.TaskEnd-near/2, s.kernelRegs.Sp+8*uint64(irq)-near/2
	for i := range s.kernelStack {
		word := uint64(0)
		if masks[i/64]>>(i%64)&1 != 0 {
			switch v := uint64(kept[0]); {
			case v < near:
				word = task + v
			case v < 2*near:
				word = interrupts + v - near
			default:
				word = 0xffffffff<<32 | v
			}
			kept = kept[1:]
		}
		s.kernelStack[i] = word
	}
	return rest[8*(len(rest)/8-len(sent)+(n+1)/2):], nil
}
