package procstate

import (
	"fmt"
	"os"
)

// LiveCode reads code that a running process has made at run time, for
// Snapshots of it: no file holds such code and no capture copies it. What is
// read is as it is then, not as it was when the Snapshot was taken; code that
// can run is hardly ever changed, but it can be replaced by other code.
//
// A LiveCode belongs to one goroutine. The process's memory is opened when it
// is first needed, and closed when the LiveCode is garbage: it keeps a process
// from nothing.
type LiveCode struct {
	pid    int
	exe    string
	mem    *os.File
	opened bool
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

func (c *LiveCode) open() {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", c.pid))
	if err != nil {
		return
	}
	// The file stays that of the program it was opened of: look afterwards
	// which one that is.
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.pid)); err != nil || exe != c.exe {
		mem.Close()
		return
	}
	c.mem = mem
}
