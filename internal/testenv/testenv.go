// Package testenv is shared by the tests of all packages. It tells them what the
// machine has that they run on: they are skipped where it cannot run them, unless
// SWBPF_REQUIRE_KERNEL=1 declares that it has all: root, BPF, ptrace and the tools.
// Then they fail, as in CI.
package testenv

import (
	"os"
	"os/exec"
	"testing"
)

// Lacks ends a test that this machine cannot run.
func Lacks(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("SWBPF_REQUIRE_KERNEL") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
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
