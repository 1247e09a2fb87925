package procstate

import (
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// LiveCode reads code that a running process has made at run time, for
// Snapshots of it: no file holds such code and no capture copies it. What is
// read is as it is then, not as it was when the Snapshot was taken; code that
// can run is hardly ever changed, but it can be replaced by other code. It is read
// by pages, which are kept: one that was read after a Snapshot was taken is not read
// again for that, and the last ones serve samples of a process that has ended.
//
// A LiveCode belongs to one goroutine. The process's memory is opened when it
// is first needed, and closed when the LiveCode is garbage: it keeps a process
// from nothing.
type LiveCode struct {
	pid    int
	exe    string
	mem    io.ReaderAt // /proc/PID/mem; nil when it could not be opened
	opened bool

	kept  [keptSets][keptWays]*keptPage // by a hash of their number; what was used last comes first
	spare *keptPage                     // to read into; nil where there is none

	ended    bool // reading failed as the process has
	earlier  bool // pages that have changed are wanted as they were before
	replaced bool // there was one since this was last made false

	objects *JITObjects // nil until they are asked for
}

// Pages of code that are kept at most: 64.
const (
	keptSets = 16
	keptWays = 4
)

// codePage is the size of a page that is kept, in bytes.
const codePage = 4 << 10

// keptPage is a page of code as it was when it was read.
type keptPage struct {
	addr uint64
	read uint64 // ns of CLOCK_MONOTONIC before that
	hash uint64 // of the code; 0 when nobody has asked for it
	code [codePage]byte

	// before is what it was when it was read the time before, where that is other code:
	// samples that were taken between may be of either. Else nil.
	before *keptPage
}

var liveSeed = maphash.MakeSeed()

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
		c.ended = true
		return 0
	}
	n, err := c.mem.ReadAt(buf, int64(addr))
	if n == 0 && err == io.EOF { // of an address that is in no mapping it is EIO
		c.ended = true
	}
	return n
}

// readCode reads code at addr for a Snapshot that was taken at a time, in ns of
// CLOCK_MONOTONIC, 0 if it is not known, and returns how many bytes there were. What
// cannot be read any more is as it was when it was read last.
func (c *LiveCode) readCode(addr uint64, buf []byte, taken uint64) (n int) {
	for n < len(buf) {
		at := addr + uint64(n)
		p := c.page(at&^(codePage-1), taken)
		if p == nil {
			break
		}
		n += copy(buf[n:], p.code[at-p.addr:])
	}
	return n
}

// hashCode returns a hash of the pages that hold code [addr, addr+n), which is the same
// as long as they are. ok is false when one could never be read.
func (c *LiveCode) hashCode(addr, n, taken uint64) (hash uint64, ok bool) {
	for at := addr &^ (codePage - 1); at < addr+n; at += codePage {
		p := c.page(at, taken)
		if p == nil {
			return 0, false
		}
		if p.hash == 0 {
			p.hash = maphash.Bytes(liveSeed, p.code[:]) | 1
		}
		hash = (hash ^ p.hash) * 0x9e3779b97f4a7c15
	}
	return hash, true
}

// page returns a page of code, nil when it could never be read.
func (c *LiveCode) page(addr, taken uint64) *keptPage {
	set := &c.kept[addr/codePage*0x9e3779b97f4a7c15>>32%keptSets]
	i := 0
	for i < keptWays-1 && set[i] != nil && set[i].addr != addr {
		i++
	}
	p := set[i]
	found := p != nil && p.addr == addr
	if !found || p.read <= taken-1 { // of 0 all is earlier
		if c.spare == nil {
			c.spare = new(keptPage)
		}
		fresh := c.spare
		fresh.addr, fresh.read, fresh.hash = addr, Monotonic(), 0
		switch {
		case c.read(addr, fresh.code[:]) != codePage:
			if !found {
				return nil
			}
		case found && fresh.code != p.code:
			p.before = nil
			fresh.before, p, c.spare = p, fresh, nil
		default:
			p, c.spare = fresh, p
			if c.spare != nil {
				c.spare.before = nil
			}
		}
	}
	copy(set[1:i+1], set[:i])
	set[0] = p
	if p.before != nil {
		c.replaced = true
		if c.earlier {
			return p.before
		}
	}
	return p
}

// forget lets go of all pages.
func (c *LiveCode) forget() { c.kept, c.spare = [keptSets][keptWays]*keptPage{}, nil }

func (c *LiveCode) open() {
	task := readableTask(c.pid)
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", task))
	if err != nil {
		return
	}
	// The file stays that of the program it was opened of: look afterwards
	// which one that is.
	if !runsProgram(task, c.exe) {
		mem.Close()
		return
	}
	c.mem = mem
}

// close closes the process's memory, which is to be had no more.
func (c *LiveCode) close() {
	if mem, ok := c.mem.(io.Closer); ok {
		mem.Close()
	}
}

// runsProgram reports whether a task runs the program exe, whose path is as it sees it or
// as we do: they differ where it has another root.
func runsProgram(task ThreadID, exe string) bool {
	const gone = " (deleted)"
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", task))
	path, exe = strings.TrimSuffix(path, gone), strings.TrimSuffix(exe, gone)
	if err != nil || path == exe {
		return err == nil
	}
	root, err := os.Readlink(fmt.Sprintf("/proc/%d/root", task))
	return err == nil && path == filepath.Join(root, exe)
}
