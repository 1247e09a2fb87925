package steptest

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// NeedPtrace skips a test where programs cannot be traced, unless that is
// said to be a failure.
func NeedPtrace(t *testing.T) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the program is for amd64")
	}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		testenv.Lacks(t, "ptrace: %v", err)
	}
	_ = cmd.Process.Kill()
	_, _ = cmd.Process.Wait()
}
