//go:build linux && amd64

package steppers

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

func TestDebugLateARM64(t *testing.T) {
	testenv.Needs(t, "aarch64-linux-gnu-gcc")
	path := filepath.Join(t.TempDir(), "late")
	testenv.Run(t, exec.Command("aarch64-linux-gnu-gcc", "-static", "testdata/debug/late_arm64.s", "-o", path))
	everyInstructionARM64(t, path, false, NewDebug(nil))
}
