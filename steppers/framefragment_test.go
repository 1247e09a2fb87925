//go:build linux && amd64

package steppers

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Debug walks through libc, and knows nothing of the program.
func TestFragmentsARM64(t *testing.T) {
	testenv.Needs(t, "aarch64-linux-gnu-gcc")
	path := filepath.Join(t.TempDir(), "fragments")
	testenv.Run(t, exec.Command("aarch64-linux-gnu-gcc", "-static", "testdata/debug/fragments_arm64.s", "-o", path))
	everyInstructionARM64(t, path, true, NewDebug(nil), NewFrameFunc(nil))
}
