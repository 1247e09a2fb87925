package loader

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// readMainStack returns where the kernel put SP at the start of a program:
// field startstack of /proc/PID/stat.
func readMainStack(t *testing.T, pid int) uint64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	v, err := strconv.ParseUint(fields[28-3], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// processState returns the letter of a process's state in /proc/PID/stat.
func processState(t *testing.T, pid int) byte {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[0]
}
