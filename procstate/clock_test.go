package procstate

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
)

// TestClockOfTimeNamespace has a process in a time namespace of its own read the kernel's
// clock, and tells how far its own is ahead.
func TestClockOfTimeNamespace(t *testing.T) {
	const child = "SWBPF_TEST_CLOCK"
	if os.Getenv(child) != "" {
		fmt.Println(Monotonic())
		time.Sleep(time.Minute)
	}
	testenv.Needs(t, "unshare")
	if ns, ok := ClockOffset(os.Getpid()); ns != OwnClockOffset() || !ok {
		t.Errorf("own offset %d, %v", ns, ok)
	}
	for _, seconds := range []int64{-7, 5000} {
		// It forks, since before Linux 6.3 only children are in the new namespace.
		cmd := exec.Command("unshare", "--time", "--monotonic", fmt.Sprint(seconds), "--fork", "--kill-child", os.Args[0], "-test.run=^TestClockOfTimeNamespace$")
		cmd.Env = append(os.Environ(), child+"=1")
		_, out := testenv.Start(t, cmd)
		before := Monotonic() - uint64(time.Second) // each is a little early
		var clock uint64
		if _, err := fmt.Fscanln(bufio.NewReader(out), &clock); err != nil {
			testenv.Lacks(t, "no time namespaces: %v", err)
		}
		if after := Monotonic() + uint64(time.Second); clock < before || clock > after {
			t.Errorf("%d s ahead: %d is not between %d and %d", seconds, clock, before, after)
		}
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		var pid int
		if _, scanErr := fmt.Sscan(string(children), &pid); err != nil || scanErr != nil {
			t.Fatal(err, scanErr)
		}
		if ns, ok := ClockOffset(pid); ns != OwnClockOffset()+seconds*int64(time.Second) || !ok {
			t.Errorf("%d s ahead: offset %d, %v", seconds, ns, ok)
		}
	}
}
