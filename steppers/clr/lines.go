package clr

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// pdbs are the PDBs that were read, of all processes.
type pdbs struct {
	byID map[pdbID]*pdb
	size int // bytes of all
}

// Limits on PDBs.
const (
	maxPDB      = 16 << 20 // bytes of one,
	maxPDBs     = 32 << 20 // of those that are kept,
	maxPDBCount = 1 << 10  // and how many these are
	maxPath     = 1 << 12  // bytes of a path
	maxEntries  = 1 << 4   // of a debug directory
)

// symbols is what an assembly tells of its PDB.
type symbols struct {
	id       pdbID // all zero: it has none
	name     string
	embedded stream // in memory, compressed; of no size where it is none
	isAbsent bool   // it was looked for
}

// readSymbols reads a debug directory in memory; at tells where there the rest of the image is.
func readSymbols(read vmread.Reader, directory stream, at func(rva uint64) uint64) (s symbols) {
	const (
		entryBytes         = 28
		codeView, embedded = 2, 17
		isPortable         = 0x504d // a minor version
		guid, guidEnd      = 4, 20  // in an entry of that kind
		nameAt             = 24
	)
	le := binary.LittleEndian
	entries := make([]byte, min(directory.size/entryBytes, maxEntries)*entryBytes)
	if len(entries) == 0 || !read(directory.addr, entries) {
		return s
	}
	for e := entries; len(e) > 0; e = e[entryBytes:] {
		data := stream{at(uint64(le.Uint32(e[20:]))), uint64(le.Uint32(e[16:]))}
		switch kind := le.Uint32(e[12:]); {
		case kind == codeView && le.Uint16(e[10:]) == isPortable && s.id == pdbID{}:
			b := make([]byte, min(data.size, nameAt+maxPath))
			if len(b) <= nameAt || !read(data.addr, b) || string(b[:4]) != "RSDS" {
				continue
			}
			n := copy(s.id[:], b[guid:guidEnd])
			copy(s.id[n:], e[4:8])
			name, _, _ := bytes.Cut(b[nameAt:], []byte{0})
			s.name = vmread.ValidText(name[bytes.LastIndexAny(name, `/\`)+1:])
		case kind == embedded:
			s.embedded = data
		}
	}
	return s
}

// pdbOf returns the PDB of a module, nil where there is none that can be had.
func (vm *machine) pdbOf(m *module) *pdb {
	s := &m.symbols
	if s.isAbsent || s.id == (pdbID{}) {
		return nil
	}
	if p := vm.pdbs.byID[s.id]; p != nil {
		return p
	}
	p := vm.readPDBFile(m)
	if p == nil {
		p = vm.readEmbedded(s)
	}
	if p == nil {
		s.isAbsent = true
		return nil
	}
	all := vm.pdbs
	if all.byID == nil || all.size+p.size > maxPDBs || len(all.byID) >= maxPDBCount {
		all.byID, all.size = map[pdbID]*pdb{}, 0
	}
	all.byID[s.id] = p
	all.size += p.size
	return p
}

// readPDBFile reads the PDB beside an assembly, where .NET looks for it first.
func (vm *machine) readPDBFile(m *module) *pdb {
	f := vm.open(path.Join(m.dir, m.symbols.name))
	if f == nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() > maxPDB || !vm.Memory.Pace.May(int(st.Size())) {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, st.Size()))
	if err != nil {
		return nil
	}
	return readPDB(data, m.symbols.id)
}

// rootOf returns the directory that a process has for root.
func rootOf(p procstate.ProcessState) string {
	if _, isCore := p.(*procstate.Core); isCore {
		return "/"
	}
	return fmt.Sprintf("/proc/%d/root", p.PID())
}

// open opens a regular file as the process sees it; nil where it cannot be had. What else it may be, as the process tells its
// name, is not opened: of a device that alone may do something.
func (vm *machine) open(name string) *os.File {
	root, err := unix.Open(vm.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(root)
	const flags = unix.O_PATH | unix.O_CLOEXEC
	name = strings.TrimPrefix(name, "/")
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		fd, err = unix.Openat(root, name, flags|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil
	}
	return f
}

// readEmbedded reads a PDB within an assembly, compressed by deflate.
func (vm *machine) readEmbedded(s *symbols) *pdb {
	const head = 8 // what it is, and its size
	if s.embedded.size <= head || s.embedded.size > maxPDB {
		return nil
	}
	var b []byte
	for n := uint64(0); n < s.embedded.size; n = uint64(len(b)) { // as far as there is memory
		b = append(b, make([]byte, min(s.embedded.size-n, 1<<16))...)
		if !vm.ReadNow(s.embedded.addr+n, b[n:]) || string(b[:4]) != "MPDB" {
			return nil
		}
	}
	size := binary.LittleEndian.Uint32(b[4:])
	if size > maxPDB || !vm.Memory.Pace.May(int(size)) {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(b[head:])), int64(size)))
	if err != nil {
		return nil
	}
	return readPDB(data, s.id)
}
