package procstate

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxCommandLine bounds what is read of a process's arguments, in bytes.
const maxCommandLine = 128 << 10

// CommandLine returns the arguments that a process was started with, its program's name first, or what it has
// put in their place to tell what it is at, as servers do; of very many the first. There are none of a process that has ended, nor
// of a thread of the kernel.
func CommandLine(pid int) []string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxCommandLine))
	return splitCommandLine(b)
}

// splitCommandLine takes arguments apart. Behind what a process has put there may be what is left of the room for it.
func splitCommandLine(b []byte) []string {
	b = bytes.TrimRight(b, "\x00 ")
	if len(b) == 0 {
		return nil
	}
	return strings.Split(string(b), "\x00")
}
