package procstate

import (
	"fmt"
	"os"
)

// LiveCode reads code that a running process has made at run time, for
// Snapshots of it: no file holds such code and no capture copies it. What is
// read is as it is then, not as it was when the Snapshot was taken; code that
// can run is hardly ever changed, but it can be replaced by other code. What
// was read of some pages is kept, for the last samples of a process.
//
// A LiveCode belongs to one goroutine. The process's memory is opened when it
// is first needed, and closed when the LiveCode is garbage: it keeps a process
// from nothing.
type LiveCode struct {
	pid    int
	exe    string
	mem    *os.File
	opened bool

	kept [keptPages]*keptPage // by a hash of their number

	objects *JITObjects // nil until they are asked for
}

// keptPages is how many pages of code are kept at most, for samples that are
// looked at when the process has ended.
const keptPages = 64

// codePage is the size of a page that is kept, in bytes.
const codePage = 4 << 10

// keptPage is what was read of a page of code.
type keptPage struct {
	addr  uint64
	known [codePage / 64]uint64 // a bit for each byte that was read
	code  [codePage]byte
}

// NewLiveCode makes a LiveCode of a process that runs the program exe; it
// reads nothing if another program is found under the number.
func NewLiveCode(pid int, exe string) *LiveCode { return &LiveCode{pid: pid, exe: exe} }

// LiveMemory is implemented by a ProcessState that can read memory as it is
// now, which is not that of the moment that it describes.
type LiveMemory interface {
	// ReadLive reads memory at addr and returns how many bytes there were.
	ReadLive(addr uint64, buf []byte) int
}

// read reads code at addr and returns how many bytes there were.
func (c *LiveCode) read(addr uint64, buf []byte) int {
	if !c.opened {
		c.opened = true
		c.open()
	}
	if c.mem == nil {
		return 0
	}
	n, _ := c.mem.ReadAt(buf, int64(addr))
	return n
}

// readCode is read of code: what cannot be read any more is as it was when it
// was read last.
func (c *LiveCode) readCode(addr uint64, buf []byte) int {
	n := c.read(addr, buf)
	if n == 0 {
		return c.recall(addr, buf)
	}
	c.keep(addr, buf[:n])
	return n
}

// page returns the place of the page that holds an address.
func (c *LiveCode) page(addr uint64) (p **keptPage, start uint64) {
	start = addr &^ (codePage - 1)
	h := start / codePage * 0x9e3779b97f4a7c15
	return &c.kept[h>>32%keptPages], start
}

// keep keeps code; another page may give way to it.
func (c *LiveCode) keep(addr uint64, code []byte) {
	for len(code) > 0 {
		p, start := c.page(addr)
		switch {
		case *p == nil:
			*p = &keptPage{addr: start}
		case (*p).addr != start:
			**p = keptPage{addr: start}
		}
		off := addr - start
		n := copy((*p).code[off:], code)
		for i := off; i < off+uint64(n); i++ {
			(*p).known[i/64] |= 1 << (i % 64)
		}
		addr, code = addr+uint64(n), code[n:]
	}
}

// recall returns how many bytes at addr are kept.
func (c *LiveCode) recall(addr uint64, buf []byte) (n int) {
	for n < len(buf) {
		p, start := c.page(addr)
		off := addr - start
		if *p == nil || (*p).addr != start || (*p).known[off/64]&(1<<(off%64)) == 0 {
			break
		}
		buf[n] = (*p).code[off]
		n, addr = n+1, addr+1
	}
	return n
}

func (c *LiveCode) open() {
	task := readableTask(c.pid)
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", task))
	if err != nil {
		return
	}
	// The file stays that of the program it was opened of: look afterwards
	// which one that is.
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", task)); err != nil || exe != c.exe {
		mem.Close()
		return
	}
	c.mem = mem
}
