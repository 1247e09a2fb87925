package procstate

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadProcess reads memory of another process from addr on, through the ID of any
// thread that has not exited, with process_vm_readv, which neither stops it nor
// faults; by /proc/PID/mem where that is refused. It returns how many bytes could
// be read.
func ReadProcess(tid int, addr uint64, buf []byte) int {
	done := 0
	for done < len(buf) {
		local := unix.Iovec{Base: &buf[done]}
		local.SetLen(len(buf) - done)
		remote := remoteIovec{base: addr + uint64(done), len: uint64(len(buf) - done)}
		n, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(tid),
			uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
		if isRefused(errno) {
			return done + readMemFile(tid, addr+uint64(done), buf[done:])
		}
		if errno != 0 || n == 0 {
			break
		}
		done += int(n)
	}
	return done
}

// isRefused reports whether there is no such system call here, or a seccomp
// filter says so.
func isRefused(errno unix.Errno) bool {
	return errno == unix.EPERM || errno == unix.EACCES || errno == unix.ENOSYS
}

// readMemFile is ReadProcess by /proc/PID/mem, for where process_vm_readv is refused.
func readMemFile(tid int, addr uint64, buf []byte) int {
	fd, err := unix.Open("/proc/"+strconv.Itoa(tid)+"/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	done := 0
	for done < len(buf) {
		n, err := unix.Pread(fd, buf[done:], int64(addr)+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		done += n
	}
	return done
}

// remoteIovec is struct iovec of the 64-bit hosts, for addresses that are not
// pointers of this process.
type remoteIovec struct{ base, len uint64 }

const (
	cachePage  = 4096
	cachePages = 512 // 2 MiB; a walk needs more only on stacks deeper than that
)

// pageCache reads memory that stands still a page at a time and keeps the
// pages. While it is not active, because the process runs, it keeps nothing.
type pageCache struct {
	source memorySource
	width  int // bytes in a pointer
	active bool
	pages  map[uint64]*[cachePage]byte

	hotAddr uint64 // page of the last word
	hot     *[cachePage]byte
}

// freePages are for all processes: of many that are attached few are walked at a time.
var freePages = sync.Pool{New: func() any { return new([cachePage]byte) }}

// memorySource is what a pageCache reads.
type memorySource interface {
	// readAt fills buf from addr on, as far as it can, and returns how far.
	readAt(addr uint64, buf []byte) int
}

// liveProcess is the memory of the process of the thread with this ID.
type liveProcess int

func (p liveProcess) readAt(addr uint64, buf []byte) int { return ReadProcess(int(p), addr, buf) }

// ProcessMemory returns the memory of another process, of 64 bits, as it is each time; see ReadProcess.
func ProcessMemory(tid int) Memory { return &pageCache{source: liveProcess(tid), width: 8} }

// reset forgets what was read and starts or ends the keeping.
func (c *pageCache) reset(active bool) {
	c.active = active
	for _, p := range c.pages {
		freePages.Put(p)
	}
	clear(c.pages)
	c.hot = nil
}

// page returns the page at a page-aligned address, nil when not all of it is
// readable.
func (c *pageCache) page(at uint64) *[cachePage]byte {
	if c.hot != nil && c.hotAddr == at {
		return c.hot
	}
	p := c.pages[at]
	if p == nil {
		if len(c.pages) >= cachePages {
			c.reset(true)
		}
		p = freePages.Get().(*[cachePage]byte)
		if c.source.readAt(at, p[:]) < cachePage {
			freePages.Put(p)
			return nil
		}
		if c.pages == nil {
			c.pages = make(map[uint64]*[cachePage]byte)
		}
		c.pages[at] = p
	}
	c.hotAddr, c.hot = at, p
	return p
}

// ReadMemory implements Memory.
func (c *pageCache) ReadMemory(addr uint64, buf []byte) (int, error) {
	done := 0
	for c.active && done < len(buf) {
		a := addr + uint64(done)
		p := c.page(a &^ (cachePage - 1))
		if p == nil {
			break
		}
		done += copy(buf[done:], p[a&(cachePage-1):])
	}
	if done < len(buf) {
		if c.source != nil {
			done += c.source.readAt(addr+uint64(done), buf[done:])
		}
	}
	if done < len(buf) {
		return done, fmt.Errorf("memory at %#x: %w", addr+uint64(done), ErrUnreadable)
	}
	return done, nil
}

// ReadWord implements Memory.
func (c *pageCache) ReadWord(addr uint64) (uint64, bool) {
	off := addr & (cachePage - 1)
	var p *[cachePage]byte
	if c.width == 0 {
		return 0, false
	}
	if c.active && off+uint64(c.width) <= cachePage {
		p = c.page(addr - off)
	}
	if p == nil {
		var b [8]byte
		if n, _ := c.ReadMemory(addr, b[:c.width]); n < c.width {
			return 0, false
		}
		return binary.LittleEndian.Uint64(b[:]), true
	}
	if c.width == 4 {
		return uint64(binary.LittleEndian.Uint32(p[off:])), true
	}
	return binary.LittleEndian.Uint64(p[off:]), true
}
