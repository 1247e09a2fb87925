package loader

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SidebandConfig says how the side-band is read. The zero value is good for
// most.
type SidebandConfig struct {
	// RingBytes is the room for records per CPU; it is rounded up to a power
	// of two of pages. 0 stands for 2 MiB on small machines and less per CPU
	// on large ones. Where the limit on locked memory forbids it, all CPUs
	// have less.
	RingBytes int

	// WakeBytes is the amount of records on a CPU that ends a Wait. 0 stands
	// for 512: about what one program that starts leaves.
	WakeBytes int
}

const (
	defaultRingBytes  = 2 << 20
	maxAllRingBytes   = 64 << 20 // for all CPUs, unless RingBytes is set
	minRingBytes      = 16 << 10
	defaultWakeBytes  = 512
	dummySampleType   = unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_CPU
	sidebandEventBits = unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv | unix.PerfBitMmap |
		unix.PerfBitMmap2 | unix.PerfBitComm | unix.PerfBitCommExec | unix.PerfBitTask |
		unix.PerfBitSampleIDAll | unix.PerfBitUseClockID | unix.PerfBitWatermark | perfBitKsymbol

	perfBitKsymbol = unix.CBitFieldMaskBit29 // Linux 5.1
)

// Sideband is the kernel's news about all processes of the machine:
// executable mappings, forks, execs and exits, and about BPF code that comes and
// goes, from a perf event per CPU that counts nothing. Files are told by device,
// inode and generation and not by build ID: tools that move code within a file
// keep its build ID, and then another's file would be used.
//
// The kernel does not report munmap, mremap, or mappings that lose the right
// to be executed. Process IDs are those of the PID namespace of the opener;
// what happens outside of it is left out.
//
// Methods may be called by any goroutine; Close must be the last, and does nothing
// the second time.
type Sideband struct {
	wakeBytes int
	ringBytes int
	online    *cpuList
	epoll     int
	wake      int // eventfd that ends a Wait

	mu    sync.Mutex
	rings map[int]*sidebandRing // by CPU
	names names                 // nil when it is not open
	stats SidebandStats
}

// SidebandStats counts records since the side-band was opened.
type SidebandStats struct {
	Events    uint64 // handed out by Drain
	Lost      uint64 // not written by the kernel, for want of room
	Malformed uint64 // could not be parsed
	Foreign   uint64 // of processes outside of our PID namespace
}

// OpenSideband opens the side-band on all CPUs that are online. It needs
// CAP_PERFMON, or a kernel.perf_event_paranoid of 0 or less: the error is then
// a *MissingError.
func OpenSideband(cfg SidebandConfig) (*Sideband, error) {
	cpus, err := onlineCPUs()
	if err != nil {
		return nil, err
	}
	s := &Sideband{
		wakeBytes: cfg.WakeBytes, ringBytes: cfg.RingBytes,
		rings: make(map[int]*sidebandRing, len(cpus)), names: names{}, wake: -1,
	}
	if s.wakeBytes <= 0 {
		s.wakeBytes = defaultWakeBytes
	}
	if s.ringBytes <= 0 {
		s.ringBytes = min(defaultRingBytes, max(maxAllRingBytes/len(cpus), 128<<10))
	}
	if s.online, err = openCPUList(); err != nil {
		return nil, err
	}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		s.online.close()
		return nil, fmt.Errorf("open side-band: %w", err)
	}
	if err := s.openWake(); err != nil {
		s.Close()
		return nil, fmt.Errorf("open side-band: %w", err)
	}
	for err = s.openAll(cpus); errors.Is(err, errNoRoom) && s.ringBytes > minRingBytes; err = s.openAll(cpus) {
		s.ringBytes /= 2
	}
	if err != nil {
		s.Close()
		return nil, diagnoseSideband(err)
	}
	return s, nil
}

// errNoRoom says that there is no memory for a ring, or none that may be locked.
var errNoRoom = errors.New("no room")

// diagnoseSideband explains why the side-band could not be opened.
func diagnoseSideband(err error) error {
	if !errors.Is(err, errNoRoom) {
		return diagnose(err, "open side-band")
	}
	perCPU, _ := readInt("/proc/sys/kernel/perf_event_mlock_kb")
	return &MissingError{
		What:   fmt.Sprintf("memory that may be locked (kernel.perf_event_mlock_kb is %d)", perCPU),
		Remedy: "ulimit -l unlimited, or give the program cap_ipc_lock, or: sysctl kernel.perf_event_mlock_kb=2052",
		Err:    fmt.Errorf("open side-band: %w", err),
	}
}

// openAll starts to follow CPUs, all or none.
func (s *Sideband) openAll(cpus []int) error {
	for _, cpu := range cpus {
		if err := s.openCPU(cpu, s.ringBytes); err != nil && !errors.Is(err, unix.ENODEV) {
			s.closeRings()
			return err
		}
	}
	if len(s.rings) == 0 {
		return fmt.Errorf("no CPU could be followed: %w", unix.ENODEV)
	}
	return nil
}

func (s *Sideband) openWake() (err error) {
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	return unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, s.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.wake)})
}

// openCPU starts to follow a CPU. The error wraps ENODEV when it is offline,
// errNoRoom when there is none for a ring of that size.
func (s *Sideband) openCPU(cpu, ringBytes int) error {
	attr := unix.PerfEventAttr{
		Type:        unix.PERF_TYPE_SOFTWARE,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config:      unix.PERF_COUNT_SW_DUMMY,
		Sample_type: dummySampleType,
		Bits:        sidebandEventBits,
		Wakeup:      uint32(s.wakeBytes),
		Clockid:     unix.CLOCK_MONOTONIC,
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("perf event on CPU %d: %w", cpu, err)
	}
	ring, err := mapSidebandRing(fd, ringBytes)
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("ring of CPU %d: %w", cpu, err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		ring.close()
		return fmt.Errorf("wait for CPU %d: %w", cpu, err)
	}
	ring.born = incarnation(cpu)
	s.rings[cpu] = ring
	return nil
}

// SyncCPUs starts to follow CPUs that came online since, and gives up those
// that went offline, after their last events went to fn. Of a CPU that came fn
// gets a SidebandLost: what happened on it before is not known. It is cheap
// enough to be called every second.
func (s *Sideband) SyncCPUs(fn func(*SidebandEvent)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		return errNotOpen
	}
	cpus, err := parseCPUList(string(s.online.read()))
	if err != nil {
		return err
	}
	online := make(map[int]bool, len(cpus))
	for _, cpu := range cpus {
		online[cpu] = true
		if ring := s.rings[cpu]; ring != nil && ring.born != incarnation(cpu) {
			s.drainRing(ring, fn)
			ring.close()
			delete(s.rings, cpu)
		}
		if s.rings[cpu] == nil {
			size := s.ringBytes
			err := s.openCPU(cpu, size)
			for ; errors.Is(err, errNoRoom) && size > minRingBytes; err = s.openCPU(cpu, size) {
				size /= 2
			}
			switch {
			case err == nil:
				fn(&SidebandEvent{Kind: SidebandLost, CPU: uint32(cpu), Time: monotonic()})
			case !errors.Is(err, unix.ENODEV):
				return err
			}
		}
	}
	for cpu, ring := range s.rings {
		if !online[cpu] {
			s.drainRing(ring, fn)
			ring.close()
			delete(s.rings, cpu)
		}
	}
	return nil
}

// Drain hands all events that are in the rings to fn, those of each CPU in
// order of time. The event, except for its strings, is valid during the call.
func (s *Sideband) Drain(fn func(*SidebandEvent)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ring := range s.rings {
		s.drainRing(ring, fn)
	}
}

func (s *Sideband) drainRing(ring *sidebandRing, fn func(*SidebandEvent)) {
	var e SidebandEvent
	ok := ring.read(func(record []byte) {
		switch err := e.parse(record, s.names); {
		case err == errOtherRecord:
			return
		case err != nil:
			s.stats.Malformed++
			return
		case e.Kind == SidebandLost:
			s.stats.Lost += e.Lost
		case e.PID <= 0 && e.Kind != SidebandBPF:
			s.stats.Foreign++
			return
		}
		s.stats.Events++
		fn(&e)
	})
	if !ok {
		s.stats.Malformed++
	}
}

// Wait returns when a CPU has written WakeBytes of records since, or Wake was
// called, or the timeout has passed; woken is false after the last.
func (s *Sideband) Wait(timeout time.Duration) (woken bool, err error) {
	if s.online == nil {
		return false, errNotOpen
	}
	var events [16]unix.EpollEvent
	ms := int((timeout + time.Millisecond - 1) / time.Millisecond)
	n, err := unix.EpollWait(s.epoll, events[:], ms)
	if err != nil && err != unix.EINTR {
		return false, fmt.Errorf("wait for side-band: %w", err)
	}
	return n > 0, nil
}

// alsoWait has a Wait end as well when there is something to read at a descriptor.
func (s *Sideband) alsoWait(fd int) error {
	if s.online == nil {
		return errNotOpen
	}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("wait with the side-band: %w", err)
	}
	return nil
}

// Wake ends all Waits, those to come included.
func (s *Sideband) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names != nil && s.wake >= 0 {
		_, _ = unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // full counts as well
	}
}

// Stats returns the counters.
func (s *Sideband) Stats() SidebandStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Close gives everything back to the kernel.
func (s *Sideband) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		return nil
	}
	s.names = nil
	s.closeRings()
	if s.wake >= 0 {
		unix.Close(s.wake)
		s.wake = -1
	}
	return errors.Join(s.online.close(), unix.Close(s.epoll))
}

func (s *Sideband) closeRings() {
	for cpu, ring := range s.rings {
		ring.close()
		delete(s.rings, cpu)
	}
}

// sidebandRing is the ring of a perf event: perf_event_open(2), "MMAP layout".
type sidebandRing struct {
	fd   int
	born uint64 // incarnation of its CPU
	mem  []byte
	meta *unix.PerfEventMmapPage
	data []byte // length is a power of two
	tmp  []byte // a record that wraps around, in one piece
}

// mapSidebandRing maps a ring of size bytes.
func mapSidebandRing(fd, size int) (*sidebandRing, error) {
	page := os.Getpagesize()
	size = 1 << bits.Len(uint(max(size, page)-1))
	mem, err := unix.Mmap(fd, 0, page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	switch {
	case err == unix.EPERM || err == unix.ENOMEM: // the right to the event was had when it was opened
		return nil, fmt.Errorf("%w for %d bytes: %w", errNoRoom, size, err)
	case err != nil:
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	r := &sidebandRing{fd: fd, mem: mem, data: mem[page:]}
	r.meta = (*unix.PerfEventMmapPage)(unsafe.Pointer(unsafe.SliceData(mem)))
	return r, nil
}

// read hands each record in the ring to fn, header included. It reports
// whether the ring was in order; if not, what was in it is given up.
func (r *sidebandRing) read(fn func(record []byte)) bool {
	head := atomic.LoadUint64(&r.meta.Data_head)
	tail := r.meta.Data_tail
	defer func() { atomic.StoreUint64(&r.meta.Data_tail, head) }()
	size := uint64(len(r.data))
	if head-tail > size {
		return false
	}
	for tail != head {
		// Records are multiples of 8 bytes: a header never wraps around.
		at := tail & (size - 1)
		if size-at < recordHeaderBytes || head-tail < recordHeaderBytes {
			return false
		}
		n := recordSize(r.data[at:])
		if n < recordHeaderBytes || n > head-tail {
			return false
		}
		record := r.data[at:min(at+n, size)]
		if rest := n - uint64(len(record)); rest > 0 {
			r.tmp = append(append(r.tmp[:0], record...), r.data[:rest]...)
			record = r.tmp
		}
		fn(record)
		tail += n
	}
	return true
}

func (r *sidebandRing) close() {
	unix.Munmap(r.mem)
	unix.Close(r.fd)
}
