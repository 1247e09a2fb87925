package loader

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// parseKprobe makes the event "kprobe:FUNCTION", "kprobe:FUNCTION+BYTES" or "kretprobe:FUNCTION",
// called name. Whether there is such a function the kernel says when it is opened.
func parseKprobe(name string, onReturn bool, spec string) (Event, error) {
	function, plus, hasPlus := strings.Cut(spec, "+")
	if function == "" || onReturn && hasPlus {
		return Event{}, fmt.Errorf("event %s: should be kprobe:FUNCTION, kprobe:FUNCTION+BYTES or kretprobe:FUNCTION", name)
	}
	e := Event{Name: name, arch: procstate.HostArch(), function: function}
	p := place{}
	var err error
	if hasPlus {
		if p.offset, err = strconv.ParseUint(plus, 0, 32); err != nil {
			return Event{}, fmt.Errorf("event %s: %q is not an offset", name, plus)
		}
	}
	e.places = []place{p}
	if e.typ, e.config, err = probeConfig("kprobe", onReturn); err != nil {
		return Event{}, fmt.Errorf("event %s: %w", name, err)
	}
	return e, nil
}

// openKprobe opens the event of a kprobe. As with tracepoints it is what a program is attached
// to, for all CPUs and processes, and stays disabled.
func openKprobe(e Event, cpu int) (points, error) {
	function, err := unix.BytePtrFromString(e.function)
	if err != nil {
		return nil, fmt.Errorf("open event %s: %w", e.Name, err)
	}
	attr := e.attr()
	attr.Sample, attr.Ext1, attr.Ext2 = 1, uint64(uintptr(unsafe.Pointer(function))), e.places[0].offset
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(function)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EILSEQ) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EOPNOTSUPP):
		return nil, notProbed(e, err)
	case errors.Is(err, unix.EACCES) && !hasCap(unix.CAP_SYS_ADMIN):
		return nil, &MissingError{
			What:   "CAP_SYS_ADMIN, which this kernel wants for kprobes",
			Remedy: "run as root, or: " + setcap("cap_sys_admin,cap_sys_ptrace,cap_dac_read_search"),
			Err:    fmt.Errorf("open event %s: %w", e.Name, err),
		}
	case err != nil:
		return nil, diagnose(err, "open event "+e.Name)
	}
	return points{{fd: fd}}, nil
}

// notProbed explains why the kernel has put no probe at a function.
func notProbed(e Event, err error) error {
	kind, _, _ := strings.Cut(e.Name, ":")
	all := kernelFunctions()
	n := 0
	for _, name := range all {
		if name == e.function {
			n++
		}
	}
	switch {
	case errors.Is(err, unix.EILSEQ):
		return fmt.Errorf("event %s: no instruction begins there", e.Name)
	case n > 1:
		return fmt.Errorf("event %s: the kernel has %d functions %s, and does not tell them apart: %w", e.Name, n, e.function, err)
	case n == 1:
		return fmt.Errorf("event %s: the kernel puts no probe there: %w", e.Name, err)
	case len(all) == 0:
		return fmt.Errorf("event %s: the kernel puts no probe there, if it has such a function: %w", e.Name, err)
	}
	near := nearNames(e.function, all)
	for i := range near {
		near[i] = kind + ":" + near[i]
	}
	return &UnknownEventError{Name: e.Name, Why: "the kernel has no function " + e.function, Near: near}
}

// kernelFunctions lists the functions of the kernel and of its modules, as far as it tells.
func kernelFunctions() (names []string) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// Address, type and name; behind that a module. __pfx_ is room in front of a function.
		if fields := strings.Fields(lines.Text()); len(fields) >= 3 && strings.EqualFold(fields[1], "t") && !strings.HasPrefix(fields[2], "__pfx_") {
			names = append(names, fields[2])
		}
	}
	return names
}
