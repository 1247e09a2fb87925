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
func parseUprobe(name string, onReturn bool, spec string, pids []int) (Event, error) {
	file, where, ok := cutLast(spec)
	if !ok || file == "" || where == "" {
		return Event{}, fmt.Errorf("event %s: should be uprobe:FILE:FUNCTION", name)
	}
	return newUprobe(name, file, onReturn, pids, func(im *procstate.Image, places []place) ([]place, error) {
		offset, err := placeInFile(im, name, where)
		if err == nil && !isCode(im, offset) {
			err = fmt.Errorf("event %s: offset %#x of %s is not code", name, offset, im.Path)
		}
		return append(places, place{offset: offset}), err
	})
}

// newUprobe returns an event in the files that file means for some processes: find appends its places in one
// of them. Files that have none do not count where another has.
func newUprobe(name, file string, onReturn bool, pids []int, find func(im *procstate.Image, places []place) ([]place, error)) (Event, error) {
	e := Event{Name: name}
	var err error
	if e.typ, e.config, err = probeConfig("uprobe", onReturn); err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	paths, err := filesOf(file, pids)
	if err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	var lacking error
	for _, path := range paths {
		places, err := e.placesIn(path, find)
		if err != nil && lacking == nil {
			lacking = err
		}
		if err == nil {
			e.places = append(e.places, places...)
		}
	}
	if len(e.places) == 0 {
		return Event{}, lacking
	}
	return e, nil
}

// placesIn finds the places of e in a file, which has to be of the architecture of those before.
func (e *Event) placesIn(path string, find func(im *procstate.Image, places []place) ([]place, error)) ([]place, error) {
	var places []place
	err := withImage(e.Name, path, func(im *procstate.Image) (err error) {
		if e.arch != nil && e.arch != im.Arch() {
			return fmt.Errorf("event %s: %s is of another architecture", e.Name, path)
		}
		if places, err = find(im, nil); err == nil {
			e.arch = im.Arch()
		}
		return err
	})
	for i := range places {
		places[i].file = path
	}
	return places, err
}

// withImage reads a file of a uprobe event.
func withImage(event, path string, read func(im *procstate.Image) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("event %s: %w", event, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("event %s: %w", event, err)
	}
	im, err := procstate.NewImage(f, fi.Size(), path)
	if err != nil {
		return fmt.Errorf("event %s: %w", event, err)
	}
	return read(im)
}

// probeConfig returns the type of events of uprobes or kprobes, which is what source is, and their configuration.
func probeConfig(source string, onReturn bool) (typ uint32, config uint64, err error) {
	dir := filepath.Join(pmuDir, source)
	n, ok := readInt(filepath.Join(dir, "type"))
	if !ok {
		return 0, 0, &MissingError{What: source + " events", Remedy: "run a kernel built with CONFIG_" + strings.ToUpper(source) + "_EVENTS=y, and have /sys mounted"}
	}
	if onReturn {
		b, err := os.ReadFile(filepath.Join(dir, "format", "retprobe"))
		if err != nil {
			return 0, 0, fmt.Errorf("probes of returns: %w", err)
		}
		bit, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(string(b), "config:")), 10, 6)
		if err != nil {
			return 0, 0, fmt.Errorf("probes of returns: their bit: %w", err)
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

// place is where the event of a uprobe occurs.
type place struct {
	file   string // absolute path
	offset uint64 // of the instruction in the file
	// Of a function of an allocator:
	program string // the program that runs there
	config  uint64 // that says whether it is at its return
	// Of a location of a static probe:
	semaphore uint64 // offset in the file of the count of those who watch it; 0: it has none
	pc        uint64 // link-time address of the instruction
	arguments string // as its note has them
}

// openUprobe opens the event of a uprobe at one of its places, for one process or for
// all (-1). As with tracepoints it is what a program is attached to, and stays disabled.
func openUprobe(e Event, p place, pid, cpu int) (int, error) {
	path, err := unix.BytePtrFromString(p.file)
	if err != nil {
		return -1, fmt.Errorf("open event %s: %w", e.Name, err)
	}
	attr := unix.PerfEventAttr{
		Type:   e.typ,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: e.config | p.config,
		Sample: 1,
		Bits:   unix.PerfBitDisabled,
		Ext1:   uint64(uintptr(unsafe.Pointer(path))),
		Ext2:   p.offset,
	}
	if p.semaphore != 0 {
		config, err := semaphoreConfig(p.semaphore)
		if err != nil {
			return -1, fmt.Errorf("open event %s: %w", e.Name, err)
		}
		attr.Config |= config
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
		return -1, fmt.Errorf("open event %s: the kernel puts no probe at offset %#x of %s: %w", e.Name, p.offset, p.file, err)
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
	points, err := openUprobes(e, []int{pid}, cpus[0])
	if err != nil {
		return nil, errors.Join(err, points.Close())
	}
	return points, nil
}

// point is an open event of a tracepoint or probe.
type point struct {
	fd    int
	place int // index in Event.places; 0 of a tracepoint
}

type points []point

// Close implements io.Closer.
func (ps points) Close() error {
	var err error
	for _, p := range ps {
		err = errors.Join(err, unix.Close(p.fd))
	}
	return err
}

// openUprobes opens a uprobe at all its places for some processes, or for all (-1).
func openUprobes(e Event, pids []int, cpu int) (ps points, err error) {
	for _, pid := range pids {
		for i, p := range e.places {
			fd, err := openUprobe(e, p, pid, cpu)
			if err != nil {
				return ps, err
			}
			ps = append(ps, point{fd, i})
		}
	}
	return ps, nil
}
