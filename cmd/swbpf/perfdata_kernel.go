package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/perfdata"
	"github.com/swbpf/swbpf/symbols"
)

// pastKernel names code of the kernel of a recording: of the one that runs here, if it is that; of
// the same build at another place, as after the next boot; or of one of which perf has kept the
// symbols (~/.debug).
type pastKernel struct {
	files *pastFiles
	id    []byte // build ID; nil when not told

	symbol string // that tells where the kernel was: "_text"
	addr   uint64 // its address; 0 when not told

	looked bool
	runs   bool            // it is the one that runs, since the same boot
	names  *symbols.Kernel // else; nil where there is none
	shift  uint64          // what is to be added to an address to have that of names
	text   [2]uint64       // the kernel proper in names: its modules may be elsewhere
}

func newPastKernel(files *pastFiles) *pastKernel {
	k := &pastKernel{files: files}
	for _, b := range files.r.file.BuildIDs {
		if b.Kernel && strings.HasPrefix(b.Path, kernelMapping) && !isZero(b.ID) {
			k.id = b.ID
		}
	}
	return k
}

// kernelMapping is what perf calls the mapping of the kernel. The symbol follows by which it tells
// where that is.
const kernelMapping = "[kernel.kallsyms]"

// mapped takes in a mapping of the kernel, or of a module.
func (k *pastKernel) mapped(m *perfdata.Mmap) {
	symbol, ok := strings.CutPrefix(string(m.Path), kernelMapping)
	if !ok {
		return
	}
	if !isZero(m.BuildID) {
		k.id = bytes.Clone(m.BuildID)
	}
	if symbol != "" {
		k.symbol, k.addr = symbol, m.Offset
	}
}

// isRunning reports whether the kernel is the one that runs now.
func (k *pastKernel) isRunning() bool {
	k.look()
	return k.runs
}

// name returns the name of the function at an address, "" where that is not known.
func (k *pastKernel) name(addr uint64) string {
	k.look()
	if addr += k.shift; k.names == nil || addr-k.text[0] >= k.text[1]-k.text[0] {
		return ""
	}
	s, _ := k.names.Lookup(addr)
	return s.Name
}

// look finds out, once, where names are to be had.
func (k *pastKernel) look() {
	if k.looked {
		return
	}
	k.looked = true
	if k.isSameBuild() {
		if k.read("/proc/kallsyms") && k.shift == 0 && k.isSameBoot() {
			k.runs, k.names = true, nil
		}
		return
	}
	if len(k.id) > 0 {
		for _, path := range k.files.elsewhere(k.id, "kallsyms") {
			if k.read(path) {
				return
			}
		}
	}
}

// isSameBuild reports whether the kernel that runs here was built with the one of the recording.
func (k *pastKernel) isSameBuild() bool {
	if len(k.id) > 0 {
		return sameBuildID(kernelBuildID(), k.id)
	}
	return k.files.isHere() && k.files.r.file.Release == kernelVersion()
}

// isSameBoot reports whether this machine has run without a break since the recording: modules are
// where they were then.
func (k *pastKernel) isSameBoot() bool {
	var up unix.Timespec
	written := k.files.r.written
	if !k.files.isHere() || written.IsZero() || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return false
	}
	then := time.Duration(up.Nano()) - time.Since(written) // since boot, when the recording was written
	const late = 2 * time.Second                           // between the clocks
	return then > 0 && k.files.r.file.Last <= uint64(then+late)
}

// read reads the symbols of a kernel. It reports whether they tell of the kernel of the recording.
func (k *pastKernel) read(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	at := map[string]uint64{k.symbol: 0, "_stext": 0, "_etext": 0}
	if err := findSymbols(f, at); err != nil || k.symbol == "" || at[k.symbol] == 0 || at["_stext"] == 0 || at["_etext"] <= at["_stext"] {
		return false
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false
	}
	names, err := symbols.ReadKernel(f)
	if err != nil {
		return false
	}
	k.names, k.shift, k.text = names, at[k.symbol]-k.addr, [2]uint64{at["_stext"], at["_etext"]}
	return true
}

// findSymbols finds the addresses of some symbols in the format of /proc/kallsyms.
func findSymbols(r io.Reader, at map[string]uint64) error {
	lines := bufio.NewScanner(r)
	for left := len(at); left > 0 && lines.Scan(); {
		// address, type, name
		line := lines.Bytes()
		i := bytes.IndexByte(line, ' ')
		if i < 0 || len(line) < i+3 {
			continue
		}
		if _, wanted := at[string(line[i+3:])]; !wanted {
			continue
		}
		addr, err := strconv.ParseUint(string(line[:i]), 16, 64)
		if err != nil {
			return err
		}
		at[string(line[i+3:])] = addr
		left--
	}
	return lines.Err()
}

// note says why functions of the kernel have no names, "" where they have some.
func (k *pastKernel) note() string {
	switch {
	case !k.looked || k.runs || k.names != nil:
		return ""
	case k.files.r.file.Release == "":
		return "functions of the kernel have no names: which one it was is not in the recording"
	case k.isSameBuild():
		return "functions of the kernel have no names: where it was is not in the recording, or not told here (kernel.kptr_restrict)"
	}
	return fmt.Sprintf("functions of the kernel have no names: it was another one (%s)", k.files.r.file.Release)
}

// kernelVersion is the release of the kernel that runs: "6.12.3".
func kernelVersion() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// kernelBuildID returns that of the kernel that runs, nil when it has none.
func kernelBuildID() []byte {
	b, err := os.ReadFile("/sys/kernel/notes")
	if err != nil {
		return nil
	}
	id, _ := buildIDOfNotes(b)
	return id
}

var errNoBuildID = errors.New("no build ID")

// buildIDOfNotes finds the build ID among notes of ELF.
func buildIDOfNotes(b []byte) ([]byte, error) {
	const typeBuildID, align = 3, 3
	le := binary.LittleEndian
	for len(b) >= 12 {
		name, desc, typ := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
		at := 12 + (name+align)&^align
		next := at + (desc+align)&^align
		if at+desc > uint64(len(b)) {
			break
		}
		if typ == typeBuildID && string(b[12:12+name]) == "GNU\x00" {
			return b[at : at+desc], nil
		}
		b = b[min(next, uint64(len(b))):]
	}
	return nil, errNoBuildID
}
