package loader

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tracefsPlaces are where distributions mount tracefs.
var tracefsPlaces = []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"}

func tracefsRemedy() string {
	return "run as root, or give the program cap_dac_read_search: " + setcapRemedy()
}

// tracefsReader reads files of tracefs by their path in it.
type tracefsReader func(path string) ([]byte, error)

// openTracefs finds tracefs. Where it is mounted nowhere, it is mounted
// without a place: only the descriptor knows it, and with the descriptor it
// goes away. The caller must call done when it has read enough. Of a kernel that is
// locked down it gets nothing: it would not let one read, and where nothing else has
// mounted tracefs, to give that back can take forever.
func openTracefs() (read tracefsReader, done func(), err error) {
	if locked := lockedDown(lockdownMode()); locked != nil {
		return nil, nil, locked
	}
	for _, dir := range tracefsPlaces {
		if _, err := os.Stat(dir + "/events"); err == nil {
			return func(path string) ([]byte, error) { return os.ReadFile(dir + "/" + path) }, func() {}, nil
		} else if errors.Is(err, fs.ErrPermission) {
			return nil, nil, &MissingError{
				What:   "permission to read " + dir,
				Remedy: tracefsRemedy(),
			}
		}
	}
	dir, err := mountDetached("tracefs")
	if err != nil {
		return nil, nil, &MissingError{
			What:   "tracefs, where the kernel describes its tracepoints (" + err.Error() + ")",
			Remedy: "mount it: mount -t tracefs nodev /sys/kernel/tracing",
		}
	}
	read = func(path string) ([]byte, error) {
		fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		f := os.NewFile(uintptr(fd), path)
		defer f.Close()
		return io.ReadAll(f)
	}
	return read, func() { unix.Close(dir) }, nil
}

// mountDetached mounts a file system without attaching it anywhere (Linux 5.2)
// and returns a descriptor of its root. Files can be opened by handles there, which
// takes one that is open: that of the mount is a place only.
func mountDetached(fstype string) (int, error) {
	fsfd, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, fmt.Errorf("fsconfig: %w", err)
	}
	mount, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(mount)
	dir, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the mount: %w", err)
	}
	return dir, nil
}

// parseTracepoint looks up the tracepoint sys:tp, called name.
func parseTracepoint(name, sys, tp string) (Event, error) {
	read, done, err := openTracefs()
	if err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	defer done()
	if plainName(sys) && plainName(tp) {
		b, err := read("events/" + sys + "/" + tp + "/id")
		switch {
		case err == nil:
			id, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
			if err != nil {
				return Event{}, fmt.Errorf("event %s: number in tracefs: %w", name, err)
			}
			return Event{Name: name, typ: unix.PERF_TYPE_TRACEPOINT, config: id}, nil
		case errors.Is(err, fs.ErrPermission):
			return Event{}, fmt.Errorf("event %s: %w", name, &MissingError{
				What:   "permission to read tracefs",
				Remedy: tracefsRemedy(),
			})
		case !errors.Is(err, fs.ErrNotExist):
			return Event{}, fmt.Errorf("event %s: %w", name, err)
		}
	}
	b, err := read("available_events")
	if err != nil {
		return Event{}, fmt.Errorf("list of tracepoints: %w", err)
	}
	all := strings.Fields(string(b))
	near := nearNames(name, all)
	if len(near) == 0 { // of a subsystem that exists, any
		near = slices.DeleteFunc(all, func(n string) bool { return !strings.HasPrefix(n, sys+":") })
		near = near[:min(len(near), maxNear)]
	}
	return Event{}, &UnknownEventError{Name: name, Near: near}
}

// plainName reports whether s can be a file name of tracefs and nothing else.
func plainName(s string) bool {
	return s != "" && s[0] != '.' && !strings.ContainsAny(s, "/\x00")
}

// tracepointNames lists all tracepoints as subsystem:name.
func tracepointNames() ([]string, error) {
	read, done, err := openTracefs()
	if err != nil {
		return nil, err
	}
	defer done()
	b, err := read("available_events")
	if err != nil {
		return nil, fmt.Errorf("list of tracepoints: %w", err)
	}
	return strings.Fields(string(b)), nil
}
