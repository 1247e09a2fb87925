package main

import (
	"cmp"
	"errors"
	"slices"

	"github.com/swbpf/swbpf/internal/perfdata"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/unwind"
)

// takeSample counts a sample of its event, and where it has values of counters, of each event whose counter has
// gone on: those of a group are read together when one of it is sampled ("{cycles,cache-misses}:S"), and stand for
// what they counted since. So does perf itself take them.
func (im *perfImport) takeSample(rec *perfdata.Record) error {
	raw := &im.raw
	if err := rec.Sample(raw); err != nil {
		return err
	}
	if len(raw.Read) == 0 {
		return im.count(rec, rec.Event, raw.Period)
	}
	key := counterKey{}
	if im.r.file.Events[rec.Event].ReadsByThread() {
		key.tid = raw.TID
	}
	var malformed error
	for _, v := range raw.Read {
		event, ok := im.r.file.EventOf(v.ID)
		key.id = v.ID
		before := im.counters[key]
		if !ok || v.Value < before {
			malformed = perfdata.ErrMalformed
			continue
		}
		im.counters[key] = v.Value
		if v.Value == before {
			continue
		}
		if err := im.count(rec, event, v.Value-before); err != nil {
			return err
		}
	}
	return malformed
}

// count counts a sample of an event, if that is asked for.
func (im *perfImport) count(rec *perfdata.Record, event int, period uint64) error {
	e := &im.events[event]
	e.samples++
	if im.only != allEvents && event != im.only {
		return nil
	}
	if e.number == notNumbered {
		if im.numbered == maxImported {
			im.leftOut++
			return nil
		}
		e.number, e.period = im.numbered, period
		im.numbered++
	}
	if im.stats.Samples == 0 {
		im.first = rec.Time
	}
	im.last = max(im.last, rec.Time)
	e.varies = e.varies || period != e.period
	const most = 1 << 62
	if period > most || im.sum > most-period {
		return errors.New("the periods of the samples add up to more than 62 bits hold")
	}
	im.sum += period
	raw, s := &im.raw, &im.sample
	*s = loader.Sample{
		Time: rec.Time, Weight: period, PID: raw.PID, TID: raw.TID, CPU: raw.CPU, Comm: im.comms[raw.TID], Cgroup: raw.Cgroup,
		Kernel: s.Kernel[:0], Event: e.number,
	}
	im.labels.withCPU = raw.HasCPU
	im.split(rec.Mode(), raw)
	im.setUser(rec, raw)
	im.add(s)
	return nil
}

// split tells apart the parts of a sample's call chain.
func (im *perfImport) split(mode perfdata.Mode, raw *perfdata.Sample) {
	s, chain := &im.sample, im.chain[:0]
	for i := 0; i < len(raw.Callchain); i++ {
		ip := raw.Callchain[i]
		switch {
		case ip == perfdata.ContextUserDeferred:
			mode = perfdata.ModeUser
			i++ // which is not here
		case ip == perfdata.ContextKernel:
			mode = perfdata.ModeKernel
		case ip == perfdata.ContextUser:
			mode = perfdata.ModeUser
		case perfdata.IsContext(ip):
			mode = perfdata.ModeUnknown
		case mode == perfdata.ModeKernel:
			s.Kernel = append(s.Kernel, ip)
		case mode == perfdata.ModeUser:
			chain = append(chain, ip)
		}
	}
	if len(s.Kernel)+len(chain) == 0 {
		switch mode {
		case perfdata.ModeKernel:
			s.Kernel = append(s.Kernel, raw.IP)
		case perfdata.ModeUser:
			chain = append(chain, raw.IP)
		}
	}
	im.chain = chain
}

// setUser sets the user part of the sample: registers and stack, where it has them.
func (im *perfImport) setUser(rec *perfdata.Record, raw *perfdata.Sample) {
	s := &im.sample
	s.Arch = im.arch
	if im.r.file.Events[rec.Event].RegsUser == 0 {
		if len(im.chain) > 0 {
			s.User = loader.UserNative
			s.Arch = cmp.Or(s.Arch, procstate.HostArch(), procstate.AMD64)
		}
		return
	}
	im.chain = im.chain[:0]
	if raw.RegsABI == perfdata.RegsNone {
		return
	}
	s.User, s.Arch = setRegs(&s.Regs, im.arch, raw)
	if s.Arch == nil {
		return
	}
	s.StackEnd = loader.StackEndUnreadable
	if len(raw.Stack) > 0 {
		im.region[0] = procstate.Region{Addr: s.Regs.Raw(s.Arch.SP), Data: raw.Stack}
		s.Regions = im.region[:]
		if uint64(len(raw.Stack)) == raw.StackAsked {
			s.StackEnd = loader.StackEndLimit
		}
		return
	}
	// In an exec the registers are the old program's when its memory is gone.
	proc := im.table.Process(s.PID)
	if rec.Mode() == perfdata.ModeKernel && proc != nil && proc.Space.MappingAt(s.Regs.Raw(s.Arch.PC)) == nil {
		s.User = loader.UserExec
	}
}

// DWARF numbers of the registers of enum perf_event_x86_regs (asm/perf_regs.h), by the numbers there:
// AX, BX, CX, DX, SI, DI, BP, SP, IP, then FLAGS and segments, which are not wanted, and R8 to R15 from 16 on.
var (
	amd64Regs = [...]procstate.Reg{0, 3, 2, 1, 4, 5, 6, 7, 16, 9: procstate.NoReg, procstate.NoReg, procstate.NoReg, procstate.NoReg,
		procstate.NoReg, procstate.NoReg, procstate.NoReg, 8, 9, 10, 11, 12, 13, 14, 15}
	i386Regs = [...]procstate.Reg{0, 3, 1, 2, 6, 7, 5, 4, 8}
)

// setRegs sets the registers of a sample of a machine, and returns what sort of program they are of.
// arch is nil where that is none that is known, as 32-bit Arm.
func setRegs(regs *procstate.Regs, machine *procstate.Arch, raw *perfdata.Sample) (user loader.UserState, arch *procstate.Arch) {
	user, arch = loader.UserNative, machine
	numbers := amd64Regs[:]
	switch {
	case machine == procstate.ARM64 && raw.RegsABI == perfdata.Regs64:
		numbers = nil // the kernel's are those of DWARF
	case machine == procstate.AMD64 && raw.RegsABI == perfdata.Regs64:
	case (machine == procstate.AMD64 || machine == procstate.I386) && raw.RegsABI == perfdata.Regs32:
		user, arch, numbers = loader.UserCompat32, procstate.I386, i386Regs[:]
	default:
		return user, nil
	}
	i := 0
	for n := range uint64(64) {
		if raw.RegsMask>>n&1 == 0 {
			continue
		}
		if i >= len(raw.Regs) {
			break
		}
		v := raw.Regs[i]
		i++
		reg := procstate.Reg(n)
		if numbers != nil {
			if n >= uint64(len(numbers)) {
				continue
			}
			reg = numbers[n]
		}
		if arch == procstate.I386 {
			v &= 1<<32 - 1
		}
		if int(reg) < arch.NumRegs {
			regs.Set(reg, v)
		}
	}
	if _, ok := regs.Value(arch.PC); !ok {
		return user, nil
	}
	return user, arch
}

// addUser makes the user part of the sample p.stack: by walking it, or as the kernel has followed it,
// up to what that took for a return address and is in no code. It is not known whether such a stack is
// whole.
func (im *perfImport) addUser(s *loader.Sample) error {
	if len(im.chain) == 0 {
		err := im.pipeline.addUser(s)
		if err == unwind.NoFile {
			im.missFile(s)
		}
		return err
	}
	wp, chain := im.process(s), im.chain
	for i, addr := range chain {
		if i > 0 && wp != nil && wp.space.MappingAt(addr&s.Arch.CodeMask) == nil {
			chain = chain[:i]
			im.strayed++
			break
		}
	}
	for i, addr := range slices.Backward(chain) {
		if i > 0 { // a return address
			addr--
		}
		if wp == nil {
			im.stack = append(im.stack, profile.Loc{Addr: addr})
		} else {
			im.stack = im.modules.appendUser(im.stack, wp, unwind.PC{Addr: addr & s.Arch.CodeMask})
		}
	}
	return nil
}

// missFile notes which file the walk of a sample has lacked.
func (im *perfImport) missFile(s *loader.Sample) {
	wp := im.process(s)
	if m := wp.space.MappingAt(im.pcs[len(im.pcs)-1].Addr); m != nil && m.ImageErr != nil {
		im.files.miss(m.Path, m.ImageErr)
	}
}

// lostByPerf is the reason for which records are missing.
const lostByPerf = "perf-too-slow"

// perfHelp explains reasons where those of other recordings do not fit.
var perfHelp = map[string]string{
	lostByPerf:                       "perf did not take records in time, which may be of mappings as well; record with a larger -m or a lower -F",
	unwind.StackCut.String():         "the stack is longer than what perf has copied of it; record with --call-graph dwarf,65528",
	unwind.NoFile.String():           "the file is not on this machine, or another one by now: 'perf archive' takes files along",
	unwind.MemoryUnreadable.String(): "memory that the walk needs is not in the recording, which has the top of one stack",
	unwind.NoUnwindInfo.String():     "no unwind information and no frame pointer for the code, or code that was made at run time, of which a recording has nothing",
}
