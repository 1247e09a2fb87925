package loader

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Releases on which a seccomp filter and a probe of a return end a process.
func TestKillsFiltered(t *testing.T) {
	for release, want := range map[string]bool{
		"6.10.14": false, "6.11.0-9-generic": true, "6.11.11": true, "6.12.0": true, "6.12-rc3": true, "6.12.13-amd64": true, "6.12.14": false, "6.12.74+deb13": false,
		"6.13.2": true, "6.13.3": false, "6.14.0-rc1": false, "6.18.44": false, "5.10.0-46-amd64": false, "7.11.0": false, "": false, "6": false,
	} {
		if got := killsFiltered("amd64", release); got != want {
			t.Errorf("%q: %t", release, got)
		}
		if killsFiltered("arm64", release) {
			t.Errorf("%q on arm64, which has no such system call", release)
		}
	}
}

func TestHasFilter(t *testing.T) {
	status := func(text string) string {
		path := filepath.Join(t.TempDir(), "status")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		text, name string
		ok         bool
	}{
		{"Name:\tsystemd-journal\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t18\n", "systemd-journal", true},
		{"Name:\tbash\nSeccomp:\t0\nSeccomp_filters:\t0\n", "bash", false},
		{"Name:\tstrict\nSeccomp:\t1\n", "strict", false},
		{"", "", false},
	} {
		if name, ok := hasFilter(status(c.text)); name != c.name || ok != c.ok {
			t.Errorf("%q: %q, %t", c.text, name, ok)
		}
	}
	if _, ok := hasFilter(filepath.Join(t.TempDir(), "status")); ok {
		t.Error("a process that is not there has a filter")
	}
}

// Where a process with a filter would be ended, no probe of a return is put into it.
func TestReturnProbesOfFiltered(t *testing.T) {
	assumedRelease = "6.11.2"
	defer func() { assumedRelease = "" }()
	pid := filteredProcess(t)
	var missing *MissingError
	if err := checkReturnProbes([]int{os.Getpid(), pid}); killsFiltered(runtime.GOARCH, assumedRelease) && (!errors.As(err, &missing) || !strings.Contains(err.Error(), "sleep")) {
		t.Errorf("%v", err)
	}
	assumedRelease = "6.14.0"
	if err := checkReturnProbes([]int{pid}); err != nil {
		t.Error(err)
	}
}

// filteredProcess starts a sleep with a seccomp filter that allows everything.
func filteredProcess(t *testing.T) int {
	t.Helper()
	sleep := exec.Command("sleep", "100")
	started := make(chan error)
	var start func()
	start = func() {
		runtime.LockOSThread()            // it ends with the goroutine
		if unix.Gettid() == os.Getpid() { // but the first one never does, and its filter is the process's
			go start() // in another thread
			time.Sleep(100 * time.Millisecond)
			runtime.UnlockOSThread()
			return
		}
		filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); err == nil && errno != 0 {
			err = errno
		}
		if err == nil {
			err = sleep.Start()
		}
		started <- err
	}
	go start()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	})
	return sleep.Process.Pid
}
