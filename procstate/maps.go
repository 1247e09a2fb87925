package procstate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
)

// Prot is the protection of a mapping.
type Prot uint8

// Protections, with the values of <sys/mman.h>.
const (
	ProtRead  Prot = 1
	ProtWrite Prot = 2
	ProtExec  Prot = 4
)

// MapsEntry is one line of /proc/PID/maps: proc_pid_maps(5).
type MapsEntry struct {
	Start, End uint64 // run-time addresses
	Prot       Prot
	Offset     uint64 // file offset of Start
	Major      uint32 // device of the file's superblock, 0:0 without a file
	Minor      uint32
	Inode      uint64
	Path       string // "" for anonymous memory; line ends are unescaped
}

// maxMaps bounds what is read of one maps file: some 600,000 mappings.
const maxMaps = 64 << 20

var errBadMaps = errors.New("malformed maps line")

// ReadMaps reads a maps file, such as /proc/self/maps. With execOnly, only
// executable mappings are returned. A process that has exited or is a kernel
// thread has no mappings, which is no error. A line that cannot be parsed is
// left out.
func ReadMaps(name string, execOnly bool) ([]MapsEntry, error) {
	entries, _, err := readMaps(name, execOnly)
	return entries, err
}

// readMaps is ReadMaps, with where the anonymous memory begins that ends where an entry does begin, 0 where none does.
func readMaps(name string, execOnly bool) (entries []MapsEntry, below []uint64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMaps))
	if err != nil {
		// The process exited between two reads: what came is still true.
		if len(b) == 0 {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	var last anonMemory
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		e, path, err := parseMapsLine(line)
		if err != nil {
			continue
		}
		from := last.below(&e, len(path) == 0)
		if execOnly && e.Prot&ProtExec == 0 {
			continue
		}
		e.Path = unescapeMaps(path)
		entries, below = append(entries, e), append(below, from)
	}
	return entries, below, nil
}

// anonMemory is the anonymous memory that the last entry of a maps file told of.
type anonMemory struct{ start, end uint64 }

// below returns where that begins if it ends where the next entry begins, else 0, and goes on to that.
func (a *anonMemory) below(e *MapsEntry, anonymous bool) (start uint64) {
	if a.end == e.Start {
		start = a.start
	}
	*a = anonMemory{}
	if anonymous {
		*a = anonMemory{e.Start, e.End}
	}
	return start
}

// ParseMapsLine parses one line of a maps file, without its line end.
func ParseMapsLine(line []byte) (MapsEntry, error) {
	e, path, err := parseMapsLine(line)
	if err != nil {
		return MapsEntry{}, fmt.Errorf("%w: %q", err, line[:min(len(line), 80)])
	}
	e.Path = unescapeMaps(path)
	return e, nil
}

func parseMapsLine(line []byte) (e MapsEntry, path []byte, err error) {
	var ok [6]bool
	e.Start, line, ok[0] = cutUint(line, '-', 16)
	e.End, line, ok[1] = cutUint(line, ' ', 16)
	if !ok[0] || !ok[1] || e.End < e.Start || len(line) < 5 || line[4] != ' ' {
		return e, nil, errBadMaps
	}
	for i, p := range []Prot{ProtRead, ProtWrite, ProtExec} {
		if line[i] == "rwx"[i] {
			e.Prot |= p
		}
	}
	line = line[5:]
	var major, minor uint64
	e.Offset, line, ok[2] = cutUint(line, ' ', 16)
	major, line, ok[3] = cutUint(line, ':', 16)
	minor, line, ok[4] = cutUint(line, ' ', 16)
	e.Inode, line, ok[5] = cutUint(line, ' ', 10)
	if !ok[2] || !ok[3] || !ok[4] || !ok[5] || major>>32 != 0 || minor>>32 != 0 {
		return e, nil, errBadMaps
	}
	e.Major, e.Minor = uint32(major), uint32(minor)
	return e, bytes.TrimLeft(line, " "), nil
}

// cutUint parses the number in front of sep; the end of the line also ends it.
func cutUint(b []byte, sep byte, base int) (v uint64, rest []byte, ok bool) {
	num, rest, _ := bytes.Cut(b, []byte{sep})
	v, err := strconv.ParseUint(string(num), base, 64)
	return v, rest, err == nil
}

// unescapeMaps undoes the kernel's escape of a line end in a path, \012. A
// backslash itself is not escaped there, so that a name that holds these four
// characters reads as one with a line end; the identity of the file, not its
// path, decides which is opened.
func unescapeMaps(path []byte) string {
	return string(bytes.ReplaceAll(path, []byte(`\012`), []byte{'\n'}))
}
