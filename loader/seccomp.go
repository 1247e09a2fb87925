package loader

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// killsFiltered reports whether a kernel, by its release, has the return of a probed function be a system call that a
// process's seccomp filter may not allow, which ends the process: x86 from Linux 6.11 on, until filters were passed by
// (CVE-2025-21834; 6.12.14, 6.13.3, 6.14).
func killsFiltered(arch, release string) bool {
	major, minor, ok := parseRelease(release)
	if arch != "amd64" || !ok || major != 6 {
		return false
	}
	fixed, isAffected := map[int]int{11: 1 << 30, 12: 14, 13: 3}[minor]
	return isAffected && patchLevel(release) < fixed
}

// patchLevel is the third number of a release such as 6.12.9-amd64, 0 where there is none.
func patchLevel(release string) int {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 3 {
		return 0
	}
	digits := strings.IndexFunc(parts[2], func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(parts[2])
	}
	n, _ := strconv.Atoi(parts[2][:digits])
	return n
}

// checkReturnProbes reports a kernel on which probes of returns would end some of the processes (-1: all that run)
// that they are put into.
func checkReturnProbes(pids []int) error {
	release := kernelRelease()
	if !killsFiltered(runtime.GOARCH, release) {
		return nil
	}
	if len(pids) == 1 && pids[0] == -1 {
		pids = runningProcesses()
	}
	for _, pid := range pids {
		if name, ok := hasFilter(fmt.Sprintf("/proc/%d/status", pid)); ok {
			return &MissingError{
				What:   fmt.Sprintf("probes of returns that leave processes with a seccomp filter alive, as process %d (%s)", pid, name),
				Remedy: "Linux 6.12.14, 6.13.3 or later; or choose processes that have no such filter by -p",
				Err:    fmt.Errorf("this one, %s, would end them", release),
			}
		}
	}
	return nil
}

// hasFilter reports whether a process has a seccomp filter, by its status file, and what it is called.
func hasFilter(status string) (name string, ok bool) {
	b, err := os.ReadFile(status)
	if err != nil {
		return "", false
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		switch key, value, _ := strings.Cut(lines.Text(), ":"); key {
		case "Name":
			name = strings.TrimSpace(value)
		case "Seccomp":
			ok = strings.TrimSpace(value) == "2" // SECCOMP_MODE_FILTER
		}
	}
	return name, ok
}
