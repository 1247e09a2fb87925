package loader

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

// load puts maps and programs into the kernel. Where its verifier finds the
// program that sends changes too much, all is sent; those of 5.10 and 6.1 do not.
func (s *Session) load() error {
	err := s.loadAll()
	if err != nil && s.cfg.Changes {
		for _, prog := range s.programs() {
			prog.Close()
		}
		s.maps.Close()
		s.cfg.Changes, s.mirrors = false, nil
		for _, src := range s.sources {
			src.prog, src.copies, src.heap = nil, nil, nil
		}
		err = s.loadAll()
	}
	return err
}

func (s *Session) loadAll() error {
	spec, err := loadSampler()
	if err != nil {
		return err
	}
	possible, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	for _, name := range []string{gen.SamplerMapRings, gen.SamplerMapMirrors} {
		spec.Maps[name].MaxEntries = uint32(possible)
	}
	spec.Maps[gen.SamplerMapDeferredSamples].MaxEntries *= uint32(possible)
	spec.Maps[gen.SamplerMapNews].MaxEntries = uint32(os.Getpagesize())
	if !s.hasOffCPU() {
		spec.Maps[gen.SamplerMapTimes].MaxEntries = 1
		spec.Maps[gen.SamplerMapLengths].MaxEntries = 1
	}
	if err := s.prepareBlocks(spec); err != nil {
		return err
	}
	cgroups := spec.Maps[gen.SamplerMapWantedCgroups]
	cgroups.MaxEntries = uint32(max(1, len(s.cfg.Cgroups)))
	for _, id := range s.cfg.Cgroups {
		cgroups.Contents = append(cgroups.Contents, ebpf.MapKV{Key: id, Value: byte(0)})
	}
	if s.cfg.Changes {
		s.cfg.whole = max(s.cfg.StackBytes, min(s.cfg.whole, mirrorBytes(possible)))
		s.mirrors = newMirrors(possible, s.cfg.StackBytes)
		spec.Maps[gen.SamplerMapMirrors].ValueSize = uint32(len(s.mirrors[0].bytes))
	} else {
		spec.Maps[gen.SamplerMapMirrors].MaxEntries, spec.Maps[gen.SamplerMapMirrors].ValueSize = 1, 8
	}
	if err := s.setVariables(spec, possible); err != nil {
		return err
	}
	for s.cpuRing = s.cfg.ringBytes(possible); s.ringValueBytes() > maxValue() && s.cpuRing/2 >= minCPURing; {
		s.cpuRing /= 2
	}
	if err := s.fitMemory(spec, memoryLimit()); err != nil {
		return err
	}
	for ; ; s.cpuRing /= 2 {
		spec.Maps[gen.SamplerMapRings].ValueSize = uint32(s.ringValueBytes())
		if err := spec.Variables[gen.SamplerVarRingBytes].Set(uint64(s.cpuRing)); err != nil {
			return err
		}
		err := spec.LoadAndAssign(&s.maps, nil)
		if err == nil {
			return s.loadPrograms(spec)
		}
		if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.E2BIG) || s.cpuRing/2 < minCPURing {
			return err
		}
	}
}

// testRejectChanges has the verifier reject the program that sends changes.
var testRejectChanges bool

// ringValueBytes is the size of a ring with its state and the room that a
// record has which begins at its end.
func (s *Session) ringValueBytes() int {
	n := int(unsafe.Sizeof(ringLayout{})) + s.cpuRing + s.cfg.recordLimit() + copyChunk
	page := os.Getpagesize()
	return (n + page - 1) &^ (page - 1)
}

// setVariables sets the constants of bpf/config.h. possible is the number of
// CPUs that there can be.
func (s *Session) setVariables(spec *ebpf.CollectionSpec, possible int) error {
	ns, err := pidNamespace()
	if err != nil {
		return err
	}
	user := uint32(0)
	if s.cfg.User != nil {
		user = *s.cfg.User
	}
	tellsState := false
	if s.hasOffCPU() {
		if tellsState, err = switchTellsState(s.types); err != nil {
			return err
		}
	}
	if s.cfg.Kernel && s.usesCPUs() && s.blocked == nil {
		s.kernel = newKernelStacks(s.types)
	}
	mirror := uint64(mirrorBytes(possible))
	if testRejectChanges {
		mirror = 1 << 40 // more than there is
	}
	for name, value := range map[string]any{
		gen.SamplerVarStackLimit:      uint64(s.cfg.StackBytes),
		gen.SamplerVarWholeLimit:      uint64(s.cfg.whole),
		gen.SamplerVarRecordLimit:     uint64(s.cfg.recordLimit()),
		gen.SamplerVarSendChanges:     s.cfg.Changes,
		gen.SamplerVarMirrorBytes:     mirror,
		gen.SamplerVarWantKernel:      s.cfg.Kernel,
		gen.SamplerVarCopyKernel:      s.kernel != nil,
		gen.SamplerVarFilterProcesses: s.cfg.filters(),
		gen.SamplerVarFilterThreads:   len(s.cfg.Threads) > 0,
		gen.SamplerVarFilterCgroups:   len(s.cfg.Cgroups) > 0,
		gen.SamplerVarFollowChildren:  s.cfg.FollowChildren,
		gen.SamplerVarFilterUser:      s.cfg.User != nil,
		gen.SamplerVarWantedUser:      user,
		gen.SamplerVarPidNamespace:    ns,
		gen.SamplerVarHaveTaskPtRegs:  haveNewHelpers(),
		gen.SamplerVarThreadSize:      uint64(kernelStackBytes()),
		gen.SamplerVarMinOffCpu:       uint64(s.cfg.MinOffCPU),
		gen.SamplerVarWithOnCpu:       s.Event().IsWall(),
		gen.SamplerVarHaveSwitchState: tellsState,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// initPIDNamespace is the inode of the machine's first PID namespace
// (PROC_PID_INIT_INO).
const initPIDNamespace = 0xEFFFFFFC

// pidNamespace returns the inode of our PID namespace, 0 for the first one.
func pidNamespace() (uint32, error) {
	fi, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0, fmt.Errorf("PID namespace: %w", err)
	}
	ino := uint32(fi.Sys().(*syscall.Stat_t).Ino)
	if ino == initPIDNamespace {
		return 0, nil
	}
	return ino, nil
}

// kernelStackBytes is THREAD_SIZE of the running kernel: 16 KiB, or a page
// where that is larger.
func kernelStackBytes() int { return max(16<<10, os.Getpagesize()) }

// loadPrograms loads those programs that this Session needs.
func (s *Session) loadPrograms(spec *ebpf.CollectionSpec) error {
	first := s.sources[0]
	for _, src := range s.sources {
		for i, r := range src.readings {
			if src == first && i == 0 {
				continue // it is loaded with the others
			}
			prog, err := s.loadCopy(spec, src.programName(), &r)
			if err != nil {
				return err
			}
			if i == 0 {
				src.prog = prog
			} else {
				src.copies = append(src.copies, prog)
			}
		}
	}
	if err := first.readings[0].put(spec); err != nil {
		return err
	}
	if first.many != nil {
		for _, name := range heapPrograms() {
			spec.Programs[name].AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	coll, err := s.loadCollection(spec, s.wantedPrograms()...)
	if err != nil {
		return err
	}
	defer coll.Close()
	first.prog = coll.DetachProgram(first.programName())
	if first.Event.IsHeap() {
		first.heap = map[string]*ebpf.Program{}
		for _, name := range heapPrograms() {
			first.heap[name] = coll.DetachProgram(name)
		}
	}
	for _, h := range offCPUHooks {
		if prog := coll.DetachProgram(h.program); prog != nil {
			s.hooks = append(s.hooks, hook{h.tracepoint, prog})
		}
	}
	s.waiting = coll.DetachProgram(gen.SamplerProgOnWaitingTask)
	if exec := coll.Programs[gen.SamplerProgOnExec]; exec != nil {
		if s.execs, err = newNewPrograms(&s.maps, exec); err != nil {
			return err
		}
	}
	s.forkProg = coll.DetachProgram(gen.SamplerProgOnFork)
	return nil
}

// loadCopy loads a program another time, with constants of its own.
func (s *Session) loadCopy(spec *ebpf.CollectionSpec, name string, r *reading) (*ebpf.Program, error) {
	own := spec.Copy()
	if err := r.put(own); err != nil {
		return nil, err
	}
	coll, err := s.loadCollection(own, name)
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	return coll.DetachProgram(name), nil
}

// loadCollection loads the named programs, with the maps that are there and constants of
// their own.
func (s *Session) loadCollection(spec *ebpf.CollectionSpec, names ...string) (*ebpf.Collection, error) {
	wanted := *spec
	wanted.Programs = make(map[string]*ebpf.ProgramSpec)
	hasTaskWork, isNew := haveTaskWork(), hasNewTaskWork(s.types)
	for _, name := range names {
		prog := spec.Programs[name]
		if !hasTaskWork {
			prog.Instructions = withoutCallbacks(prog.Instructions)
		}
		if isNew {
			prog.Instructions = withoutFunction(prog.Instructions, "bpf_task_work_schedule_resume_impl")
		}
		putConstants(spec, prog.Instructions)
		wanted.Programs[name] = prog
	}
	return ebpf.NewCollectionWithOptions(&wanted, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{
			gen.SamplerMapRings: s.maps.Rings, gen.SamplerMapMirrors: s.maps.Mirrors, gen.SamplerMapWaitingRecords: s.maps.WaitingRecords,
			gen.SamplerMapProcesses: s.maps.Processes, gen.SamplerMapTimes: s.maps.Times, gen.SamplerMapLengths: s.maps.Lengths,
			gen.SamplerMapStackEnds: s.maps.StackEnds, gen.SamplerMapStackParts: s.maps.StackParts,
			gen.SamplerMapThreadEnds:      s.maps.ThreadEnds,
			gen.SamplerMapThreadFrames:    s.maps.ThreadFrames,
			gen.SamplerMapThreadContexts:  s.maps.ThreadContexts,
			gen.SamplerMapWantedCgroups:   s.maps.WantedCgroups,
			gen.SamplerMapGoProcesses:     s.maps.GoProcesses,
			gen.SamplerMapDeferredSamples: s.maps.DeferredSamples,
			gen.SamplerMapKnownPrograms:   s.maps.KnownPrograms, gen.SamplerMapNews: s.maps.News,
			gen.SamplerMapProgramFrames: s.maps.ProgramFrames,
			gen.SamplerMapBlockRequests: s.maps.BlockRequests, gen.SamplerMapBlocks: s.maps.Blocks,
		},
		Cache:    s.types,
		Programs: ebpf.ProgramOptions{LogDisabled: s.cfg.Changes}, // which takes another attempt
	})
}

// offCPUHooks are the programs for time off the CPU, and where they run.
var offCPUHooks = []struct{ tracepoint, program string }{
	{"sched_waking", gen.SamplerProgOnWaking}, {"sched_waking", gen.SamplerProgOnWaker}, {"sched_switch", gen.SamplerProgOnSwitch},
}

// wantedPrograms names the programs that this Session needs, with that of its first event.
func (s *Session) wantedPrograms() (names []string) {
	if name := s.sources[0].programName(); name != "" {
		names = append(names, name)
	}
	if s.hasOffCPU() {
		waking := gen.SamplerProgOnWaking
		if s.cfg.Wakers {
			waking = gen.SamplerProgOnWaker
		}
		names = append(names, waking, gen.SamplerProgOnSwitch)
		if haveTaskStacks() { // otherwise threads are met at their first switch
			names = append(names, gen.SamplerProgOnWaitingTask)
		}
	}
	if s.Event().IsHeap() {
		names = append(names, heapPrograms()...)
	}
	if s.cfg.NewPrograms {
		names = append(names, gen.SamplerProgOnExec)
	}
	if s.cfg.filters() || s.cfg.NewPrograms {
		names = append(names, gen.SamplerProgOnFork)
	}
	return names
}
