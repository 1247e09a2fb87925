package loader

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	onlineCPUsPath = "/sys/devices/system/cpu/online"
	maxRatePath    = "/proc/sys/kernel/perf_event_max_sample_rate"
)

// onlineCPUs lists the CPUs that are online; their numbers may have gaps.
func onlineCPUs() ([]int, error) {
	b, err := os.ReadFile(onlineCPUsPath)
	if err != nil {
		return nil, fmt.Errorf("list of CPUs: %w", err)
	}
	return parseCPUList(string(b))
}

// OnlineCPUs lists the CPUs that are online, in order, whichever of them this process may
// run on; none when that cannot be told.
func OnlineCPUs() []int {
	online, _ := onlineCPUs()
	return online
}

// CPUs is how many OnlineCPUs there are.
func CPUs() int { return len(OnlineCPUs()) }

// MaxFrequency is the most samples a second that the kernel allows now, for each
// CPU; false when that is not known.
func MaxFrequency() (hz int, ok bool) { return readInt(maxRatePath) }

// maxCPUs bounds CPU numbers (CONFIG_NR_CPUS is 8192 at most).
const maxCPUs = 1 << 16

// parseCPUList reads a list such as "0-3,8,10-11".
func parseCPUList(list string) ([]int, error) {
	var cpus []int
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		lo, err1 := strconv.Atoi(first)
		hi, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || lo < 0 || hi < lo || hi >= maxCPUs {
			return nil, fmt.Errorf("list of CPUs: malformed %q", list)
		}
		for cpu := lo; cpu <= hi; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// ParseCPUs reads a list of CPUs such as "0-3,8", each once and in order, all of which have to be online.
func ParseCPUs(list string) ([]int, error) {
	cpus, err := parseCPUList(list)
	if err != nil {
		return nil, err
	}
	slices.Sort(cpus)
	cpus = slices.Compact(cpus)
	online, err := onlineCPUs()
	if err != nil {
		return nil, err
	}
	return cpus, checkOnline(cpus, online)
}

// checkOnline reports a CPU that is not online.
func checkOnline(cpus, online []int) error {
	for _, cpu := range cpus {
		if !slices.Contains(online, cpu) {
			return fmt.Errorf("CPU %d is not online; online: %s", cpu, FormatCPUs(online))
		}
	}
	return nil
}

// FormatCPUs writes CPUs that are in order as the kernel does: "0-3,8".
func FormatCPUs(cpus []int) string {
	var text strings.Builder
	for i := 0; i < len(cpus); {
		last := i
		for last+1 < len(cpus) && cpus[last+1] == cpus[last]+1 {
			last++
		}
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprint(&text, cpus[i])
		if last > i {
			fmt.Fprintf(&text, "-%d", cpus[last])
		}
		i = last + 1
	}
	return text.String()
}

// incarnation tells a CPU from itself before it went offline and came back,
// which may be over between two looks at the list: the kernel makes the
// directory anew. 0 when it is not known.
func incarnation(cpu int) uint64 {
	path := fmt.Appendf(nil, "/sys/devices/system/cpu/cpu%d/topology\x00", cpu)
	at := unix.AT_FDCWD
	var st unix.Statx_t
	// Raw: see monotonic.
	_, _, err := unix.RawSyscall6(unix.SYS_STATX, uintptr(at), uintptr(unsafe.Pointer(&path[0])), 0, unix.STATX_INO, uintptr(unsafe.Pointer(&st)), 0)
	if err != 0 {
		return 0
	}
	return st.Ino
}

// cpuList is the kernel's list of online CPUs, kept open.
type cpuList struct {
	fd  int
	buf [4096]byte
}

func openCPUList() (*cpuList, error) {
	fd, err := unix.Open(onlineCPUsPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("list of CPUs: %w", err)
	}
	return &cpuList{fd: fd}, nil
}

// read returns the list as it is now. It is valid until the next call.
func (l *cpuList) read() []byte {
	// Raw: see monotonic.
	n, _, err := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(l.fd), uintptr(unsafe.Pointer(&l.buf)), unsafe.Sizeof(l.buf), 0, 0, 0)
	if err != 0 {
		return nil
	}
	return l.buf[:n]
}

func (l *cpuList) close() error { return unix.Close(l.fd) }

// cpuEvents is an event opened on every CPU.
type cpuEvents struct {
	event Event
	attr  unix.PerfEventAttr
	fds   map[int]int    // by CPU
	born  map[int]uint64 // incarnation of each CPU in fds

	wanted  []int // the only CPUs that it may be on; empty: all
	list    *cpuList
	known   []byte // its contents when last looked at
	checked time.Time
}

// checkCPUsEvery is how often hot-plugged CPUs are looked for.
const checkCPUsEvery = time.Second

// openCPUEvents opens the event on the given CPUs, disabled.
func openCPUEvents(e Event, m *Sampling, cpus []int) (*cpuEvents, error) {
	c := &cpuEvents{event: e, attr: e.attr(), fds: make(map[int]int), born: make(map[int]uint64)}
	if m.Frequency > 0 {
		c.attr.Bits |= unix.PerfBitFreq
		c.attr.Sample = uint64(m.Frequency)
	} else {
		c.attr.Sample = m.Period
	}
	if e.IsTimer() {
		// A timer also ticks while the CPU idles, which is no news.
		c.attr.Bits |= unix.PerfBitExcludeIdle
	}
	err := c.checkPeriod()
	if err != nil {
		return nil, err
	}
	if c.list, err = openCPUList(); err != nil {
		return nil, err
	}
	c.known = bytes.Clone(c.list.read())
	c.checked = time.Now()
	for _, cpu := range cpus {
		if err := c.open(cpu); err != nil {
			c.close()
			return nil, err
		}
	}
	if len(c.fds) == 0 {
		c.close()
		return nil, fmt.Errorf("open event %s: no CPU is online", e.Name)
	}
	return c, nil
}

// checkPeriod reports a timer that would ring more often than the kernel allows of
// frequencies: it would let it, and the machine has no time for anything else then.
func (c *cpuEvents) checkPeriod() error {
	const second = 1_000_000_000 // ns
	most, ok := MaxFrequency()
	if !ok || most <= 0 || c.attr.Bits&unix.PerfBitFreq != 0 || !c.event.IsTimer() || c.attr.Sample >= second/uint64(most) {
		return nil
	}
	return fmt.Errorf("a sample each %d ns of %s: the kernel allows %d a second at most; sysctl kernel.perf_event_max_sample_rate sets that", c.attr.Sample, c.event.Name, most)
}

// open opens the event on a CPU; one that is offline is passed over.
func (c *cpuEvents) open(cpu int) error {
	c.born[cpu] = incarnation(cpu)
	fd, err := unix.PerfEventOpen(&c.attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if most, ok := MaxFrequency(); ok && c.attr.Bits&unix.PerfBitFreq != 0 && errors.Is(err, unix.EINVAL) && int(c.attr.Sample) > most {
		return fmt.Errorf("frequency %d Hz: the kernel allows %d at most; sysctl kernel.perf_event_max_sample_rate sets that", c.attr.Sample, most)
	}
	if c.event.pmu && errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("open event %s on CPU %d: %w: what it counts cannot be sampled, or not with these fields", c.event.Name, cpu, err)
	}
	if err != nil {
		return diagnose(err, fmt.Sprintf("open event %s on CPU %d", c.event.Name, cpu))
	}
	c.fds[cpu] = fd
	return nil
}

// attach makes prog run for the event on every CPU.
func (c *cpuEvents) attach(prog int) error {
	for cpu, fd := range c.fds {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, prog); err != nil {
			return fmt.Errorf("attach to %s on CPU %d: %w", c.event.Name, cpu, err)
		}
	}
	return nil
}

func (c *cpuEvents) enable() error {
	for cpu, fd := range c.fds {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			return fmt.Errorf("enable %s on CPU %d: %w", c.event.Name, cpu, err)
		}
	}
	return nil
}

// update opens the event on CPUs that came online and closes it on those that
// went: the kernel has taken their events out, and does not put them back
// when the CPU returns.
func (c *cpuEvents) update(prog int, enabled bool) error {
	now := time.Now()
	if now.Sub(c.checked) < checkCPUsEvery {
		return nil
	}
	c.checked = now
	list := c.list.read()
	if bytes.Equal(list, c.known) && !c.reborn() {
		return nil
	}
	cpus, err := parseCPUList(string(list))
	if err != nil {
		return err
	}
	c.known = bytes.Clone(list)
	return c.follow(cpus, prog, enabled)
}

// reborn reports whether a CPU has been offline unnoticed.
func (c *cpuEvents) reborn() bool {
	for cpu := range c.fds {
		if c.born[cpu] != incarnation(cpu) {
			return true
		}
	}
	return false
}

// follow makes cpus the set of CPUs with an event.
func (c *cpuEvents) follow(cpus []int, prog int, enabled bool) error {
	if len(c.wanted) > 0 {
		cpus = slices.DeleteFunc(cpus, func(cpu int) bool { return !slices.Contains(c.wanted, cpu) })
	}
	online := make(map[int]bool)
	for _, cpu := range cpus {
		online[cpu] = true
	}
	for cpu, fd := range c.fds {
		if !online[cpu] || c.born[cpu] != incarnation(cpu) {
			unix.Close(fd)
			delete(c.fds, cpu)
		}
	}
	for _, cpu := range cpus {
		if _, ok := c.fds[cpu]; ok {
			continue
		}
		if err := c.open(cpu); err != nil {
			return err
		}
		fd, ok := c.fds[cpu]
		if !ok {
			continue
		}
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, prog); err != nil {
			return fmt.Errorf("attach to %s on CPU %d: %w", c.event.Name, cpu, err)
		}
		if !enabled {
			continue
		}
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			return fmt.Errorf("enable %s on CPU %d: %w", c.event.Name, cpu, err)
		}
	}
	return nil
}

// close closes all events; the programs run no more.
func (c *cpuEvents) close() error {
	var err error
	for cpu, fd := range c.fds {
		err = errors.Join(err, unix.Close(fd))
		delete(c.fds, cpu)
	}
	if c.list != nil {
		err = errors.Join(err, c.list.close())
		c.list = nil
	}
	return err
}

// isUnsupportedEvent reports whether the system lacks an event.
func isUnsupportedEvent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV)
}

// openTracepoint opens the event through which a program is attached to a
// tracepoint. Programs attached so run whenever the tracepoint fires, on any
// CPU and in any process; the event itself stays disabled and costs nothing.
func openTracepoint(e Event, cpu int) (int, error) {
	attr := e.attr()
	attr.Sample = 1
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return -1, diagnose(err, "open event "+e.Name)
	}
	return fd, nil
}
