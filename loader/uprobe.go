package loader

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// parseUprobe looks up the event "uprobe:FILE:PLACE" or "uretprobe:...",
// called name. PLACE is a function's symbol, SYMBOL+OFFSET or a file offset
// in hexadecimal.
func parseUprobe(name string, onReturn bool, spec string) (Event, error) {
	colon := strings.LastIndexByte(spec, ':')
	if colon <= 0 || colon == len(spec)-1 {
		return Event{}, fmt.Errorf("event %s: should be uprobe:FILE:FUNCTION", name)
	}
	e := Event{Name: name}
	var err error
	if e.typ, e.config, err = uprobeConfig(onReturn); err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	path, err := resolveBinary(spec[:colon])
	if err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	if e.file, err = filepath.Abs(path); err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	im, err := procstate.NewImage(f, fi.Size(), path)
	if err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	e.offset, err = placeInFile(im, name, spec[colon+1:])
	if err == nil && !isCode(im, e.offset) {
		err = fmt.Errorf("event %s: offset %#x of %s is not code", name, e.offset, path)
	}
	if err != nil {
		return Event{}, err
	}
	return e, nil
}

// uprobeConfig returns the type of uprobe events and their configuration.
func uprobeConfig(onReturn bool) (typ uint32, config uint64, err error) {
	n, ok := readInt(uprobePMU)
	if !ok {
		return 0, 0, &MissingError{What: "uprobe events", Remedy: "run a kernel built with CONFIG_UPROBE_EVENTS=y, and have /sys mounted"}
	}
	if onReturn {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(uprobePMU), "format", "retprobe"))
		if err != nil {
			return 0, 0, fmt.Errorf("uretprobe: %w", err)
		}
		bit, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(string(b), "config:")), 10, 6)
		if err != nil {
			return 0, 0, fmt.Errorf("uretprobe: its bit: %w", err)
		}
		config = 1 << bit
	}
	return uint32(n), config, nil
}

// placeInFile returns the file offset of a place in code. event names the
// event in errors.
func placeInFile(im *procstate.Image, event, place string) (uint64, error) {
	if hex, ok := strings.CutPrefix(place, "0x"); ok {
		off, err := strconv.ParseUint(hex, 16, 63)
		if err != nil {
			return 0, fmt.Errorf("event %s: %q is not an offset", event, place)
		}
		return off, nil
	}
	symbol, plus, hasPlus := strings.Cut(place, "+")
	var add uint64
	if hasPlus {
		var err error
		if add, err = strconv.ParseUint(plus, 0, 32); err != nil {
			return 0, fmt.Errorf("event %s: %q is not an offset", event, plus)
		}
	}
	var found *procstate.ELFSymbol
	why := im.Path + " names no functions; give the place by its offset in the file, 0xBYTES"
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		if isFunction(s) && s.Value != 0 {
			why = im.Path + " has no function " + symbol
		}
		if isFunction(s) && string(s.Name) == symbol {
			copied := *s
			found = &copied
		}
		return found == nil
	})
	switch {
	case found == nil:
		return 0, &UnknownEventError{Name: event, Why: why, Near: nearSymbols(im, strings.TrimSuffix(event, place), symbol)}
	case found.Type == elf.STT_GNU_IFUNC:
		return 0, fmt.Errorf("event %s: %s is chosen among several functions when programs start; name one of those", event, symbol)
	case hasPlus && found.Size > 0 && add >= found.Size:
		return 0, fmt.Errorf("event %s: %s has %d bytes only", event, symbol, found.Size)
	}
	off, ok := im.OffsetOfVaddr(found.Value+add, 1)
	if !ok {
		return 0, fmt.Errorf("event %s: %s is not in the file", event, symbol)
	}
	return off, nil
}

func isFunction(s *procstate.ELFSymbol) bool {
	return s.Type == elf.STT_FUNC || s.Type == elf.STT_GNU_IFUNC || s.Type == elf.STT_NOTYPE && s.Value != 0
}

// nearSymbols returns events of functions whose names are much like symbol.
func nearSymbols(im *procstate.Image, prefix, symbol string) []string {
	seen := make(map[string]bool)
	var names []string
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		if name := string(s.Name); isFunction(s) && s.Type != elf.STT_GNU_IFUNC && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
		return true
	})
	near := nearNames(symbol, names)
	for i := range near {
		near[i] = prefix + near[i]
	}
	return near
}

// isCode reports whether a file offset is in an executable segment.
func isCode(im *procstate.Image, off uint64) bool {
	for _, s := range im.Segments() {
		if s.Flags&elf.PF_X != 0 && off-s.Off < s.Filesz {
			return true
		}
	}
	return false
}

// openUprobe opens the event of a uprobe, for one process or for all (-1). As
// with tracepoints it is what a program is attached to, and stays disabled.
func openUprobe(e Event, pid, cpu int) (int, error) {
	path, err := unix.BytePtrFromString(e.file)
	if err != nil {
		return -1, fmt.Errorf("open event %s: %w", e.Name, err)
	}
	attr := unix.PerfEventAttr{
		Type:   e.typ,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: e.config,
		Sample: 1,
		Bits:   unix.PerfBitDisabled,
		Ext1:   uint64(uintptr(unsafe.Pointer(path))),
		Ext2:   e.offset,
	}
	if pid >= 0 {
		cpu = -1
	}
	fd, err := unix.PerfEventOpen(&attr, pid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(path)
	switch {
	case errors.Is(err, unix.ESRCH):
		return -1, fmt.Errorf("process %d: no such process", pid)
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP):
		return -1, fmt.Errorf("open event %s: the kernel puts no probe at offset %#x of %s: %w", e.Name, e.offset, e.file, err)
	case errors.Is(err, unix.EACCES) && !hasCap(unix.CAP_SYS_ADMIN):
		return -1, &MissingError{
			What:   "CAP_SYS_ADMIN, which this kernel wants for uprobes",
			Remedy: "run as root, or: " + setcap("cap_sys_admin,cap_sys_ptrace,cap_dac_read_search"),
			Err:    fmt.Errorf("open event %s: %w", e.Name, err),
		}
	case err != nil:
		return -1, diagnose(err, "open event "+e.Name)
	}
	return fd, nil
}

// PutProbe puts the probe of a uprobe event into a process, or all (-1), until
// it is closed. It takes no samples.
func PutProbe(e Event, pid int) (io.Closer, error) {
	cpus, err := onlineCPUs()
	if err != nil {
		return nil, err
	}
	fd, err := openUprobe(e, pid, cpus[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), e.Name), nil
}

// openUprobes opens a uprobe for the processes asked for. One that is to be
// followed into its children is opened for all: the sampling program chooses.
func openUprobes(e Event, cfg *Config, cpu int) (fds []int, err error) {
	pids := cfg.PIDs
	if len(pids) == 0 || cfg.FollowChildren {
		pids = []int{-1}
	}
	for _, pid := range pids {
		fd, err := openUprobe(e, pid, cpu)
		if err != nil {
			return fds, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}
