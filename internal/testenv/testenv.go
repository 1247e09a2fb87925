// Package testenv is shared by the tests of all packages. It tells them what the
// machine has that they run on: they are skipped where it cannot run them, unless
// SWBPF_REQUIRE_KERNEL=1 declares that it has all: root, BPF, ptrace and the tools.
// Then they fail, as in CI.
//
// With SWBPF_LONG set tests take all programs, versions and settings, and longer runs; without, what
// differs little from another is left out.
package testenv

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Lacks ends a test that this machine cannot run.
func Lacks(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("SWBPF_REQUIRE_KERNEL") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Long reports whether tests take all that there is.
func Long() bool { return os.Getenv("SWBPF_LONG") != "" }

// Some returns what a test takes of several that differ little: all, or the last alone.
func Some[T any](all []T) []T {
	if Long() || len(all) == 0 {
		return all
	}
	return all[len(all)-1:]
}

// Needs ends a test where one of these programs is not installed.
func Needs(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			Lacks(t, "%s is not installed", program)
		}
	}
}

// CPUTime is how much CPU time the process has taken. A test that something comes to an end takes this for it, as it
// is the same on a busy machine.
func CPUTime(t testing.TB) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// NoPanic calls f, and says it where f panics.
func NoPanic(t testing.TB, what string, f func()) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s: %v", what, r)
		}
	}()
	f()
}

// Start starts a program with pipes for its input and its output. It is killed, if
// need be, when the test ends.
func Start(t testing.TB, cmd *exec.Cmd) (in io.WriteCloser, out io.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err = cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return in, out
}

// Pprof returns the program that "go tool pprof" runs. To run it that way takes longer than it runs: each
// time, go finds out whether it has to be built.
func Pprof(t testing.TB) string {
	t.Helper()
	path, err := pprof()
	if err != nil {
		t.Fatalf("go tool -n pprof: %v", err)
	}
	return path
}

var pprof = sync.OnceValues(func() (string, error) {
	path, err := exec.Command("go", "tool", "-n", "pprof").Output()
	return strings.TrimSpace(string(path)), err
})

// Run runs a program that must succeed.
func Run(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
