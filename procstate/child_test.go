package procstate

import (
	"io"
	"os/exec"
	"testing"
)

// startCat starts a process that waits: what was executed is loaded whole, as
// it has answered. The result ends it, and may be called again.
func startCat(t *testing.T, cmd *exec.Cmd) (end func()) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	var b [1]byte
	if _, err := in.Write(b[:]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, b[:]); err != nil {
		t.Fatal(err)
	}
	return end
}
