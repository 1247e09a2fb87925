package steptest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// What the thread has started for another test before is not waited for.
func TestChildOfAnother(t *testing.T) {
	NeedPtrace(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	other := exec.Command("true")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	for ended := false; !ended; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", other.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		ended = bytes.Contains(stat, []byte(") Z "))
	}
	path, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	if tid, err := Start(t, path).ContinueToTrap(); err == nil {
		t.Errorf("thread %d has met a breakpoint", tid)
	}
	if err := other.Wait(); err != nil {
		t.Error(err)
	}
}
