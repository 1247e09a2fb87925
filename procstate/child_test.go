package procstate

import (
	"io"
	"os/exec"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// startCat starts a process that waits: what was executed is loaded whole, as
// it has answered. The result ends it, and may be called again.
func startCat(t *testing.T, cmd *exec.Cmd) (end func()) {
	t.Helper()
	in, out := testenv.Start(t, cmd)
	var b [1]byte
	if _, err := in.Write(b[:]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, b[:]); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
