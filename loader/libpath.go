package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
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
