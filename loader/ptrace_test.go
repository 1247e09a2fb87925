package loader

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ptraceRegs stops a process and reads its registers.
func ptraceRegs(t *testing.T, pid int) (regs unix.PtraceRegs) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceAttach(pid); err != nil {
		t.Fatal(err)
	}
	defer unix.PtraceDetach(pid)
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	if err := unix.PtraceGetRegs(pid, &regs); err != nil {
		t.Fatal(err)
	}
	return regs
}

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
