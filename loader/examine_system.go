package loader

import (
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func examineKernel() Finding {
	f := found("kernel", "").required()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.Found = err.Error()
		return f.lacks(Missing, "its version is not known", "")
	}
	f.Found = kernelRelease() + " " + unix.ByteSliceToString(u.Machine[:])
	major, minor, ok := parseRelease(f.Found)
	if ok && (major < minMajor || major == minMajor && minor < minMinor) {
		return f.lacks(Missing, noRecording, fmt.Sprintf("run Linux %d.%d or later", minMajor, minMinor))
	}
	return f
}

func examineBTF() Finding {
	f := found("BTF", "%s", btfPath).required()
	if _, err := os.Stat(btfPath); err != nil {
		f.Found = causeOf(err)
		return f.lacks(Missing, noRecording, "run a kernel built with CONFIG_DEBUG_INFO_BTF=y, and have /sys mounted")
	}
	return f
}

// usefulCaps are the capabilities that make a difference, and to what.
var usefulCaps = []struct {
	bit     uint
	name    string
	without string
}{
	{unix.CAP_BPF, "CAP_BPF", noRecording},
	{unix.CAP_PERFMON, "CAP_PERFMON", noRecording},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "processes of other users may not be known, and cannot be walked"},
	{unix.CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH", "programs that this user may not read are not unwound or named"},
	{unix.CAP_SYSLOG, "CAP_SYSLOG", "kernel functions may have no names"},
	{unix.CAP_SYS_NICE, "CAP_SYS_NICE", "on an overloaded machine the recorder may come too late"},
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "no --stats of the time in the kernel, nor files deleted while mapped"},
}

func examineCaps() Finding {
	f := found("capabilities", "").required()
	caps, err := effectiveCaps()
	if err != nil {
		f.Found = err.Error()
		return f.lacks(Missing, "not known what is allowed", "")
	}
	return f.ofCaps(caps)
}

// ofCaps completes the finding on capabilities.
func (f Finding) ofCaps(caps uint64) Finding {
	var have, costs []string
	for _, c := range usefulCaps {
		switch {
		case caps&(1<<c.bit) != 0:
			have = append(have, c.name)
		case c.without != noRecording:
			costs = append(costs, c.name+": "+c.without)
		}
	}
	f.Found = strings.Join(have, " ")
	if len(have) == 0 {
		f.Found = "none of use"
	}
	if lacking := lackingCaps(caps); len(lacking) > 0 {
		return f.lacks(Missing, strings.Join(lacking, " and ")+": "+noRecording, rootRemedy())
	}
	if len(costs) > 0 {
		return f.lacks(Limited, strings.Join(costs, "; "), "run as root, or add what is missing to setcap")
	}
	return f
}

func examineParanoid() Finding {
	f := found("perf_event_paranoid", "")
	level, ok := readInt(paranoidPath)
	if !ok {
		f.Found = "not there"
		return f.lacks(Missing, noRecording, "run a kernel built with CONFIG_PERF_EVENTS=y, and have /proc mounted").required()
	}
	caps, err := effectiveCaps()
	if err != nil || !inFirstUserNamespace() {
		caps = 0
	}
	return f.ofParanoid(level, caps)
}

// ofParanoid completes the finding on perf_event_paranoid. caps are the capabilities that
// count for it.
func (f Finding) ofParanoid(level int, caps uint64) Finding {
	f.Found = strconv.Itoa(level)
	switch {
	case caps&(1<<unix.CAP_PERFMON|1<<unix.CAP_SYS_ADMIN) == 0:
		if level > -1 {
			return f.lacks(Limited, "no events of the whole machine", "have CAP_PERFMON, which overrides it, or: sysctl kernel.perf_event_paranoid=-1")
		}
	case wantsAdmin(level, caps):
		return f.lacks(Limited, adminAbove2+" above 2: no events there", adminRemedy)
	default:
		f.Found += ", overridden by the capabilities"
	}
	return f
}

func examineRate() Finding {
	f := found("sampling rate", "")
	rate, ok := MaxFrequency()
	if !ok {
		f.Found = "no limit known"
		return f
	}
	f.Found = fmt.Sprintf("up to %d Hz", rate)
	if rate < 1000 {
		return f.lacks(Limited, fmt.Sprintf("-F goes to %d", rate), "sysctl kernel.perf_event_max_sample_rate=100000 (the kernel lowers it when interrupts take long: see kernel.perf_cpu_time_max_percent)")
	}
	return f
}

// kernelDepth is the most kernel frames that a sample has (MAX_KERNEL_FRAMES in
// bpf/record.h), and perf's default.
const kernelDepth = 127

func examineDepth() Finding {
	f := found("kernel stacks", "")
	depth, ok := readInt("/proc/sys/kernel/perf_event_max_stack")
	if !ok {
		f.Found = "depth not known"
		return f
	}
	f.Found = fmt.Sprintf("up to %d frames", min(depth, kernelDepth))
	if depth < kernelDepth {
		return f.lacks(Limited, "deeper kernel stacks are cut", fmt.Sprintf("sysctl kernel.perf_event_max_stack=%d", kernelDepth))
	}
	return f
}

func examineLockdown() Finding {
	mode := lockdownMode()
	switch mode {
	case "":
		return found("lockdown", "none")
	case "confidentiality":
		return found("lockdown", "%s", mode).lacks(Missing, noRecording, "boot with lockdown=integrity, or turn off Secure Boot").required()
	}
	return found("lockdown", "%s", mode)
}

func examineSeccomp() Finding {
	f := found("seccomp", "no filter")
	filter, err := hasSeccompFilter()
	if err != nil {
		f.Found = causeOf(err)
		return f.lacks(Limited, "no /proc, no profile", "mount -t proc proc /proc")
	}
	if filter {
		f.Found = "a filter is active, as in containers"
		return f.lacks(Limited, "system calls may be refused whatever the capabilities", "where something below is refused, allow bpf, perf_event_open, ptrace and process_vm_readv in the profile")
	}
	return f
}

func examineMemlock() Finding {
	f := found("locked memory", "")
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		f.Found = causeOf(err)
		return f
	}
	if l.Cur == unix.RLIM_INFINITY {
		f.Found = "no limit"
		return f
	}
	f.Found = bytesText(l.Cur)
	// What raises the limit, and what it does not bind: that of perf's rings,
	// but not that of BPF maps, which count before Linux 5.11.
	caps, err := effectiveCaps()
	above, name := uint64(1<<unix.CAP_SYS_RESOURCE), "cap_sys_resource"
	if kernelSince(5, 11) {
		above, name = above|1<<unix.CAP_IPC_LOCK, "cap_ipc_lock"
	}
	switch {
	case err == nil && caps&above != 0:
		f.Found += ", overridden by the capabilities"
	case l.Cur < 64<<20:
		return f.lacks(Limited, "small rings for side-band events, which overflow when many programs start at once; before Linux 5.11, no room for samples either",
			"ulimit -l unlimited, or add "+name+" to setcap")
	}
	return f
}

func examineUserNamespace() Finding {
	if inFirstUserNamespace() {
		return found("user namespace", "the machine's")
	}
	return found("user namespace", "not the machine's first").lacks(Limited, "its capabilities do not count for BPF and performance events, nor for processes outside of it", outsideRemedy)
}

func examineNamespace() Finding {
	ns, err := pidNamespace()
	if err == nil {
		err = checkProc()
	}
	switch {
	case err != nil:
		return found("PID namespace", "%s", causeOf(err)).lacks(Missing, noRecording, "mount -t proc proc /proc").required()
	case ns != 0:
		return found("PID namespace", "not the machine's first").lacks(Limited, "only processes of this namespace are recorded; the others count as lost (foreign)",
			"run on the host, or start the container with --pid=host")
	}
	return found("PID namespace", "the machine's")
}

func examineCgroup() Finding {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return found("cgroup limits", "%s", causeOf(err))
	}
	memory, cpus := cgroupLimits("/sys/fs/cgroup", string(b))
	f := found("cgroup limits", "none")
	var has []string
	if memory > 0 {
		has = append(has, bytesText(memory)+" of memory")
	}
	if cpus > 0 {
		has = append(has, fmt.Sprintf("%.2g CPUs", cpus))
	}
	if len(has) > 0 {
		f.Found = strings.Join(has, ", ")
	}
	if memory > 0 && memory < 512<<20 || cpus > 0 && cpus < 1 {
		return f.lacks(Limited, "rings and names may not fit, or be served too late", "give this cgroup 512 MiB and one CPU, or use -o profile.pb.gz alone and a lower -F")
	}
	return f
}

// cgroupLimits returns the tightest limits on memory (bytes) and CPU time
// (CPUs) of the cgroups that a /proc/PID/cgroup lists, and of those above
// them; 0 is no limit. root is where cgroups are mounted, of either version.
func cgroupLimits(root, list string) (memory uint64, cpus float64) {
	for line := range strings.Lines(list) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		dir, memoryFile := root, "memory.max"
		switch f[1] {
		case "":
		case "memory":
			dir, memoryFile = root+"/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for p := path.Clean("/" + f[2]); ; p = path.Dir(p) {
			if n, err := strconv.ParseUint(readWord(dir+p+"/"+memoryFile), 10, 64); err == nil && n < 1<<62 && (memory == 0 || n < memory) {
				memory = n
			}
			if c, ok := cpuMax(readLine(dir + p + "/cpu.max")); ok && (cpus == 0 || c < cpus) {
				cpus = c
			}
			if p == "/" {
				break
			}
		}
	}
	return memory, cpus
}

// cpuMax reads a cpu.max: "QUOTA PERIOD", both in µs, or "max PERIOD".
func cpuMax(s string) (cpus float64, ok bool) {
	quota, period, _ := strings.Cut(s, " ")
	q, err1 := strconv.ParseFloat(quota, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err1 != nil || err2 != nil || p <= 0 {
		return 0, false
	}
	return q / p, true
}

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}

func readWord(path string) string {
	word, _, _ := strings.Cut(readLine(path), " ")
	return word
}

// bytesText writes a number of bytes in the largest unit that leaves a whole
// part.
func bytesText(n uint64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v /= 1024
		u++
	}
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) + " " + units[u]
}
