package loader

import (
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

// tryKernelStacks has kernel stacks of this thread compared before there are others,
// which then need not wait for the kernel's own unwinder. They are those of system calls
// that write where there is no memory yet: the program runs for the page faults. Where
// this does not work, the first samples will be compared. The fork hook is not in place yet,
// which would take what this process starts meanwhile for children to sample.
func (s *Session) tryKernelStacks() {
	i := slices.IndexFunc(s.sources, func(src *source) bool { return src.cpus != nil })
	prog := s.sources[i].prog
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Config: unix.PERF_COUNT_SW_PAGE_FAULTS,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: 1,
		Bits:   unix.PerfBitDisabled | unix.PerfBitExcludeUser,
	}
	event, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return
	}
	defer unix.Close(event)
	if unix.IoctlSetInt(event, unix.PERF_EVENT_IOC_SET_BPF, prog.FD()) != nil {
		return
	}
	self := os.Getpid()
	if len(s.cfg.Threads) > 0 {
		self = unix.Gettid()
	}
	if s.flags.set(self, processSampled) != nil {
		return
	}
	defer s.flags.clear(self, processSampled)
	s.kernel.begin()
	if unix.IoctlSetInt(event, unix.PERF_EVENT_IOC_ENABLE, 0) != nil {
		return
	}
	faultInKernel()
	_ = unix.IoctlSetInt(event, unix.PERF_EVENT_IOC_DISABLE, 0)
	_ = s.readRings(^uint64(0), func(*Sample) error { return nil })
	for i := range s.rings.cpus {
		*s.rings.cpus[i].counters = gen.SamplerCounters{} // these were no samples
	}
}

// faultInKernel makes more than kernelChecks system calls of many kinds, each of which is
// to write its answer to a page that is not there yet.
func faultInKernel() {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 16*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return
	}
	all := mem
	defer unix.Munmap(all)
	fresh := func() (b []byte) {
		b, mem = mem[:page], mem[page:]
		return b
	}
	at := func() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(fresh())) }
	for _, name := range []string{"/proc/self/stat", "/proc/self/maps", "/dev/zero"} {
		if fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			_, _ = unix.Read(fd, fresh())
			_ = unix.Fstat(fd, (*unix.Stat_t)(at()))
			_ = unix.Close(fd)
		}
	}
	_, _ = unix.Getcwd(fresh())
	_, _ = unix.Getrandom(fresh()[:64], 0)
	_, _ = unix.Times((*unix.Tms)(at()))
	_ = unix.Uname((*unix.Utsname)(at()))
	_ = unix.Sysinfo((*unix.Sysinfo_t)(at()))
	_ = unix.Getrusage(unix.RUSAGE_SELF, (*unix.Rusage)(at()))
	_ = unix.SchedGetaffinity(0, (*unix.CPUSet)(at()))
	_ = unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, (*unix.Rlimit)(at()))
}
