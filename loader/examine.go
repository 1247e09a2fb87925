package loader

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

const noRecording = "nothing can be recorded"

// ExamineSystem says what the kernel is and what it is set to allow: nothing
// is tried.
func ExamineSystem() []Finding {
	return []Finding{
		examineKernel(), examineBTF(), examineCaps(), examineParanoid(), examineRate(), examineDepth(),
		examineLockdown(), examineSeccomp(), examineMemlock(), examineUserNamespace(), examineNamespace(), examineCgroup(),
	}
}

// ExamineSampling tries what sampling is made of: each event is opened, each
// kind of program and map made, and given back.
func ExamineSampling() []Finding {
	cpus, err := onlineCPUs()
	if err != nil {
		return []Finding{found("CPUs", "%v", err).lacks(Missing, noRecording, "have /sys mounted").required()}
	}
	return []Finding{
		examineClock(cpus), examineCycles(cpus), examineSoftware(cpus), examineTracepoints(cpus),
		examineUprobes(cpus), examineKprobes(cpus), examineRing(), examineTaskPtRegs(), examineRunStats(), examineSideband(),
		examineOffCPU(), examineCgroups(),
	}
}

func examineClock(cpus []int) Finding {
	f := found("CPU clock", "cpu-clock opens on %d CPUs", len(cpus)).required()
	if err := tryEvent(cpuClock, cpus); err != nil {
		f.Found = causeOf(err)
		return f.lacks(Missing, noRecording, remedyOf(err, rootRemedy()))
	}
	return f
}

func examineCycles(cpus []int) Finding {
	f := found("hardware cycles", "counted")
	err := tryEvent(knownEvents[0], cpus)
	switch {
	case err == nil:
		return f
	case isUnsupportedEvent(err):
		f.Found = "not counted on this machine; cpu-clock stands in"
		return f.lacks(Limited, "no cycles, instructions or cache misses; code that runs with interrupts off is charged to where they are let in again",
			"on a virtual machine, have its host pass the PMU through")
	}
	f.Found = causeOf(err)
	return f.lacks(Missing, "no hardware events", remedyOf(err, rootRemedy()))
}

func examineSoftware(cpus []int) Finding {
	names := []string{"page-faults", "context-switches", "cpu-migrations"}
	f := found("software events", "%s open", strings.Join(names, ", "))
	for _, name := range names {
		e, err := ParseEvent(name)
		if err == nil {
			err = tryEvent(e, cpus[:1])
		}
		if err != nil {
			f.Found = name + ": " + causeOf(err)
			return f.lacks(Missing, "no -e "+name, remedyOf(err, rootRemedy()))
		}
	}
	return f
}

// tryEvent opens an event on CPUs and closes it again.
func tryEvent(e Event, cpus []int) error {
	m := Sampling{Event: e}
	if err := m.complete(); err != nil {
		return err
	}
	c, err := openCPUEvents(e, &m, cpus)
	if err != nil {
		return err
	}
	return c.close()
}

func examineTracepoints(cpus []int) Finding {
	const name, without = "sched:sched_switch", "no tracepoints for -e"
	f := found("tracepoints", "")
	names, err := tracepointNames()
	if err != nil {
		f.Found = causeOf(err)
		return f.lacks(Missing, without, remedyOf(err, "mount -t tracefs nodev /sys/kernel/tracing"))
	}
	f.Found = fmt.Sprintf("%d in tracefs", len(names))
	e, err := ParseEvent(name)
	if err == nil {
		var fd int
		if fd, err = openTracepoint(e, cpus[0]); err == nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		f.Found += "; " + name + ": " + causeOf(err)
		return f.lacks(Missing, without, remedyOf(err, rootRemedy()))
	}
	f.Found += ", and " + name + " opens"
	return f
}

// examineUprobes opens a uprobe in a file that cannot be: the kernel looks at
// the privileges first.
func examineUprobes(cpus []int) Finding {
	return examineProbes("uprobe", "no functions and static probes of programs as events", "/proc/self/exe/none", cpus)
}

// examineKprobes does the same with a function that the kernel does not have.
func examineKprobes(cpus []int) Finding {
	return examineProbes("kprobe", "no functions of the kernel as events", "swbpf_no_function", cpus)
}

func examineProbes(source, without, where string, cpus []int) Finding {
	f := found(source+"s", "allowed")
	typ, config, err := probeConfig(source, false)
	if err != nil {
		f.Found = "the kernel has none"
		return f.lacks(Missing, without, remedyOf(err, ""))
	}
	at, err := unix.BytePtrFromString(where)
	if err != nil {
		f.Found = err.Error()
		return f.lacks(Missing, without, "")
	}
	attr := Event{typ: typ, config: config, config1: uint64(uintptr(unsafe.Pointer(at)))}.attr()
	attr.Sample = 1
	fd, err := unix.PerfEventOpen(&attr, -1, cpus[0], -1, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(at)
	switch {
	case err == nil:
		unix.Close(fd)
	case !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EADDRNOTAVAIL):
		f.Found = causeOf(err)
		return f.lacks(Missing, without, "run as root, or with CAP_SYS_ADMIN: recent kernels want it for "+source+"s")
	}
	return f
}

func examineRing() Finding {
	f := found("BPF ring buffer", "made").required()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())})
	if err != nil {
		f.Found = causeOf(err)
		return f.lacks(Missing, noRecording, remedyOf(diagnose(err, "make ring"), rootRemedy()))
	}
	m.Close()
	return f
}

func examineTaskPtRegs() Finding {
	f := found("bpf_task_pt_regs", "there")
	err := features.HaveProgramHelper(ebpf.PerfEvent, asm.FnTaskPtRegs)
	switch {
	case err == nil:
	case errors.Is(err, ebpf.ErrNotSupported):
		f.Found = "not in this kernel"
		return f.lacks(Limited, "user registers are looked for at the end of the kernel stack: the same result, some nanoseconds more",
			"run Linux 5.15 or later")
	default:
		f.Found = causeOf(err)
		return f.lacks(Missing, "not known whether it is there", remedyOf(diagnose(err, "try bpf_task_pt_regs"), rootRemedy()))
	}
	return f
}

// examineOffCPU records this process for a moment.
func examineOffCPU() Finding {
	f := found("time off the CPU", "")
	s, err := Open(Config{Event: Wall, PIDs: []int{os.Getpid()}})
	if err == nil {
		defer s.Close()
		err = s.Start()
	}
	if err != nil {
		f.Found = causeOf(err)
		return f.lacks(Missing, "no --off-cpu and no --wall", remedyOf(err, rootRemedy()))
	}
	if s.waiting == nil {
		f.Found = "switches are traced"
		return f.lacks(Limited, "threads that wait since before a recording are not in it", "run Linux 5.9 or later")
	}
	f.Found = fmt.Sprintf("switches are traced, and %d threads of this process were found waiting", len(s.blocked.byTID))
	return f
}

func examineCgroups() Finding {
	const without = "cgroup, container and unit of a sample are what /proc tells of its process, unless that is gone"
	f := found("cgroups", "the unified hierarchy")
	c, err := OpenCgroups()
	if err != nil {
		f.Found = causeOf(err)
		return f.lacks(Limited, without, "mount -t cgroup2 none /sys/fs/cgroup/unified")
	}
	defer c.Close()
	if _, err := c.find(cgroupID(c)); err != nil {
		filter, _ := hasSeccompFilter()
		f.Found += ", whose directories cannot be opened by their IDs: " + causeOf(err)
		return f.lacks(Limited, without, byIDRemedy(err, hasCap(unix.CAP_DAC_READ_SEARCH), inFirstUserNamespace(), filter))
	}
	if HasOldCgroups() {
		f.Found += ", and by /proc those of version 1"
	}
	return f
}

// byIDRemedy is the remedy where open_by_handle_at fails, of a process that has
// CAP_DAC_READ_SEARCH or not, is in the machine's user namespace or not, and behind a
// seccomp filter or not; "" where none is known.
func byIDRemedy(err error, allowed, firstUserNamespace, filter bool) string {
	const seccomp = "allow open_by_handle_at in the seccomp profile of the container"
	switch {
	case errors.Is(err, unix.EMFILE):
		return filesRemedy()
	case errors.Is(err, unix.ENOSYS) && filter:
		return seccomp
	case errors.Is(err, unix.ENOSYS):
		return "run a kernel built with CONFIG_FHANDLE=y"
	case !isRefusal(err):
		return ""
	case !allowed:
		return "run as root, or with CAP_DAC_READ_SEARCH"
	case !firstUserNamespace:
		return outsideRemedy
	case filter:
		return seccomp
	}
	return securityRemedy
}

// cgroupID is the ID of the root of the hierarchy.
func cgroupID(c *Cgroups) uint64 {
	var st unix.Stat_t
	if unix.Fstat(c.root, &st) != nil {
		return 0
	}
	return st.Ino
}

func examineRunStats() Finding {
	f := found("BPF run statistics", "kept when asked for")
	c, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		f.Found = causeOf(err)
		return f.lacks(Missing, "--stats does not tell the time spent in the kernel", "run as root, or with CAP_SYS_ADMIN")
	}
	c.Close()
	return f
}

func examineSideband() Finding {
	f := found("side-band events", "mappings, forks, execs and exits of all processes").required()
	s, err := OpenSideband(SidebandConfig{})
	if err != nil {
		f.Found = causeOf(err)
		return f.lacks(Missing, noRecording, remedyOf(err, rootRemedy()))
	}
	s.Close()
	return f
}

// causeOf is what the kernel said, without what explains it.
func causeOf(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	var missing *MissingError
	if errors.As(err, &missing) && missing.Err == nil {
		return "no " + missing.What
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// remedyOf is the remedy that an error names, or else that. Where capabilities
// are lacking, they come first.
func remedyOf(err error, otherwise string) string {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		if caps, err := effectiveCaps(); err == nil && len(lackingCaps(caps)) > 0 {
			return "as for the capabilities"
		}
	}
	var missing *MissingError
	if errors.As(err, &missing) {
		return missing.Remedy
	}
	return otherwise
}
