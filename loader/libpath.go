package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

// ldCachePath is the dynamic loader's list of libraries.
const ldCachePath = "/etc/ld.so.cache"

// resolveBinary finds the file that a name in an event means: a path with a
// slash is taken as it is; another name is that of a library as the dynamic
// loader finds it ("libc.so.6", "libc"), or else of a program in $PATH.
func resolveBinary(name string) (string, error) {
	if strings.Contains(name, "/") {
		if _, err := os.Stat(name); err != nil {
			return "", err
		}
		return name, nil
	}
	if cache, err := os.ReadFile(ldCachePath); err == nil {
		if path := findInLDCache(cache, name); path != "" {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("no library or program is called %q", name)
	}
	return path, err
}

// filesOf finds the files that a name in an event means for some processes, each once: a path as they see
// it, or what they have mapped of a library or program of another name. Where none of them has such
// a file, or there are no processes, it is what the name means here.
func filesOf(name string, pids []int) ([]string, error) {
	var paths []string
	var files []os.FileInfo
	for _, pid := range pids {
		for _, path := range filesSeenBy(pid, name) {
			fi, err := os.Stat(path)
			if err != nil || slices.ContainsFunc(files, func(other os.FileInfo) bool { return os.SameFile(fi, other) }) {
				continue
			}
			paths, files = append(paths, path), append(files, fi)
		}
	}
	if len(paths) > 0 {
		return paths, nil
	}
	path, err := resolveBinary(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, err
	}
	return []string{path}, nil
}

// filesSeenBy returns what may be the files of a name for a process, by paths of ours.
func filesSeenBy(pid int, name string) (paths []string) {
	proc := fmt.Sprintf("/proc/%d", pid)
	if filepath.IsAbs(name) {
		return []string{rootOf(proc) + name}
	}
	if strings.Contains(name, "/") {
		return nil // counts from where we are
	}
	mapped, err := procstate.ReadMaps(proc+"/maps", true)
	if err != nil {
		return nil
	}
	root := rootOf(proc)
	for _, m := range mapped {
		path := strings.TrimSuffix(m.Path, " (deleted)")
		if filepath.IsAbs(path) && isCalled(filepath.Base(path), name) {
			paths = append(paths, mappedFile(proc, root, m.Start, m.End, path))
		}
	}
	return paths
}

// rootOf is what goes before paths of a process, by its directory in /proc, so that they are ours.
func rootOf(proc string) string {
	if seesOurFiles(proc) {
		return ""
	}
	return proc + "/root"
}

// mappedFile returns which path of ours leads to the file of a mapping of a process, by its directory in /proc and its
// rootOf: the one that was mapped, from where we are or it is, or the mapping itself, if that may be looked at, also where
// no other does.
func mappedFile(proc, root string, start, end uint64, path string) string {
	mapping := fmt.Sprintf("%s/map_files/%x-%x", proc, start, end)
	is, err := os.Stat(mapping)
	if err != nil {
		return root + path
	}
	for _, path := range []string{path, root + path} {
		if fi, err := os.Stat(path); err == nil && os.SameFile(fi, is) {
			return path
		}
	}
	return mapping
}

// seesOurFiles reports whether a process, by its directory in /proc, has the files where we have them.
func seesOurFiles(proc string) bool {
	theirs, err1 := os.Readlink(proc + "/ns/mnt")
	ours, err2 := os.Readlink("/proc/self/ns/mnt")
	their, err3 := os.Stat(proc + "/root")
	our, err4 := os.Stat("/")
	return errors.Join(err1, err2, err3, err4) == nil && theirs == ours && os.SameFile(their, our)
}

// isCalled reports whether a file is what a name in an event means: libc is libc.so.6, and was libc-2.31.so.
func isCalled(file, name string) bool {
	rest, ok := strings.CutPrefix(file, name)
	return ok && (rest == "" || strings.HasPrefix(rest, ".so") || rest[0] == '-' && len(rest) > 1 && rest[1] >= '0' && rest[1] <= '9' && strings.HasSuffix(rest, ".so"))
}

// The format of ld.so.cache since glibc 2.2 (sysdeps/generic/dl-cache.h): a
// header, entries, and strings, whose places count from the header's start.
// Older versions write it behind a table of an older format.
const (
	ldCacheMagic  = "glibc-ld.so.cache1.1"
	ldCacheHeader = 48
	ldCacheEntry  = 24
)

// ldCacheFlags are the flags of libraries for the 64-bit programs of x86-64
// and AArch64 (FLAG_ELF_LIBC6 with FLAG_X8664_LIB64, FLAG_AARCH64_LIB64).
var ldCacheFlags = []uint32{0x0303, 0x0a03} // read only

// findInLDCache returns the path of the first 64-bit library whose name is
// name or starts with name.so, "" when there is none.
func findInLDCache(b []byte, name string) string {
	start := bytes.Index(b, []byte(ldCacheMagic))
	if start < 0 {
		return ""
	}
	b = b[start:]
	if len(b) < ldCacheHeader {
		return ""
	}
	le := binary.LittleEndian
	text := func(at uint32) string {
		if uint64(at) >= uint64(len(b)) {
			return ""
		}
		s, _, _ := bytes.Cut(b[at:], []byte{0})
		return string(s)
	}
	n := uint64(le.Uint32(b[len(ldCacheMagic):]))
	for i := range min(n, uint64(len(b)-ldCacheHeader)/ldCacheEntry) {
		e := b[ldCacheHeader+i*ldCacheEntry:]
		if flags := le.Uint32(e); flags != ldCacheFlags[0] && flags != ldCacheFlags[1] {
			continue
		}
		if lib := text(le.Uint32(e[4:])); lib == name || strings.HasPrefix(lib, name+".so") {
			return text(le.Uint32(e[8:]))
		}
	}
	return ""
}
