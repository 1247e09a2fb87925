package procstate

import (
	"bytes"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mappedBefore is what is known of a process's mappings before it stands: the kernel
// takes half a microsecond to write a line of a maps file, and some processes have
// thousands.
type mappedBefore struct {
	text  []byte // of the maps file
	areas []area // that are readable
	code  []mappedCode
}

// mappedCode is an executable mapping.
type mappedCode struct {
	start, end, offset, inode uint64
	major, minor              uint32
}

// newMappedBefore takes apart the text of a maps file.
func newMappedBefore(text []byte) *mappedBefore {
	b := &mappedBefore{text: text, areas: scanAreas(text)}
	for rest := text; len(rest) > 0; {
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		if e, err := ParseMapsLine(line); err == nil && e.Prot&ProtExec != 0 && e.Start < kernelHalf {
			b.code = append(b.code, mappedCode{e.Start, e.End, e.Offset, e.Inode, e.Major, e.Minor})
		}
	}
	return b
}

// kernelHalf is where the addresses of the kernel begin, among them the vsyscall page, which
// is no mapping of the process's own.
const kernelHalf = 1 << 63

// procmapQuery is struct procmap_query of <linux/fs.h>, since Linux 6.11.
type procmapQuery struct {
	size, flags, addr                          uint64
	start, end, vmaFlags, pageSize, off, inode uint64
	major, minor, nameSize, buildIDSize        uint32
	name, buildID                              uint64
}

const (
	procmapExecutable     = 0x04 // PROCMAP_QUERY_VMA_EXECUTABLE
	procmapCoveringOrNext = 0x10 // PROCMAP_QUERY_COVERING_OR_NEXT_VMA

	// procmapQueryNumber is PROCMAP_QUERY: _IOWR('f', 17, struct procmap_query).
	procmapQueryNumber = 3<<30 | unsafe.Sizeof(procmapQuery{})<<16 | 'f'<<8 | 17
)

// codeMaps asks the kernel for executable mappings.
type codeMaps struct {
	fd int
	q  procmapQuery
}

func openCodeMaps(pid int, tid ThreadID) (m codeMaps, err error) {
	m.fd, err = unix.Open(mapsName(pid, tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return m, err
}

func (m *codeMaps) close() { unix.Close(m.fd) }

// at returns the executable mapping that holds an address, or the next with that flag.
func (m *codeMaps) at(addr, flag uint64) (mappedCode, error) {
	q := &m.q
	*q = procmapQuery{size: uint64(unsafe.Sizeof(*q)), flags: procmapExecutable | flag, addr: addr}
	if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(m.fd), procmapQueryNumber, uintptr(unsafe.Pointer(q))); errno != 0 {
		return mappedCode{}, errno
	}
	return mappedCode{q.start, q.end, q.off, q.inode, q.major, q.minor}, nil
}

// isMapped reports whether the code of a process, which stands, is still where it was; false
// also where the kernel cannot be asked. It takes no longer for mappings without code, of
// which there may be thousands; there may be more code by now.
func (b *mappedBefore) isMapped(pid int, tid ThreadID) bool {
	m, err := openCodeMaps(pid, tid)
	if err != nil {
		return false
	}
	defer m.close()
	for _, c := range b.code {
		if got, err := m.at(c.start, 0); err != nil || got != c {
			return false
		}
	}
	return len(b.code) > 0
}

// isAll reports whether a process, which may go on, has no other code than was known.
func (b *mappedBefore) isAll(pid int, tid ThreadID) bool {
	m, err := openCodeMaps(pid, tid)
	if err != nil {
		return false
	}
	defer m.close()
	addr := uint64(0)
	for _, c := range b.code {
		got, err := m.at(addr, procmapCoveringOrNext)
		if err != nil || got != c {
			return false
		}
		addr = c.end
	}
	_, err = m.at(addr, procmapCoveringOrNext)
	return err == unix.ENOENT
}

// withNew returns the mappings of a process that stood with space and goes on: code that
// is there by now beside may have been there already. Where it was not, nothing leads to it.
func (b *mappedBefore) withNew(space *AddressSpace, pid int, tid ThreadID) *AddressSpace {
	if b.isAll(pid, tid) {
		return space
	}
	all := space.Clone()
	for _, m := range spaceFromMaps(pid, tid, readMapsText(pid, tid)).Mappings() {
		if !slices.ContainsFunc(b.code, func(c mappedCode) bool { return m.Start < c.end && c.start < m.End }) {
			all.Insert(m)
		}
	}
	return all
}
