package loader

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// getpriorityInKernel is the function of that system call.
var getpriorityInKernel = map[string]string{"amd64": "__x64_sys_getpriority", "arm64": "__arm64_sys_getpriority"}[runtime.GOARCH]

// Each call of a function of the kernel is a sample with the stack that led to it, and each return; where the
// kernel has no such events, that is said.
func TestKprobe(t *testing.T) {
	kernelTest(t)
	const calls = 100
	for _, kind := range []string{"kprobe", "kretprobe"} {
		e, err := ParseEvent(kind + ":" + getpriorityInKernel)
		if _, ok := readInt(pmuDir + "/kprobe/type"); !ok {
			var missing *MissingError
			if !errors.As(err, &missing) || missing.What != "kprobe events" {
				t.Errorf("%s: %v", kind, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Event: e, PIDs: []int{unix.Getpid()}, Kernel: true, StackBytes: 4096, RingBytes: 4 << 20}
		if kind == "kretprobe" {
			if cfg.Filter, err = ParseFilter(e, "ret == -EINVAL"); err != nil {
				t.Fatal(err)
			}
		}
		s := startSession(t, cfg)
		for range calls {
			unix.Getpriority(17, 0)
			unix.Getpriority(unix.PRIO_PROCESS, 0)
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		want, left := uint64(2*calls), uint64(0)
		if kind == "kretprobe" {
			want, left = calls, calls
		}
		if st := stats(t, s); st.Samples != want || st.SkippedNumbers != left || st.Lost() != 0 {
			t.Errorf("%s: %+v", kind, st)
		}
		drain(t, s, func(p *Sample) {
			if len(p.Kernel) == 0 || !p.HasUser() || p.Arch != procstate.HostArch() {
				t.Fatalf("%s: %d frames of the kernel, user %v", kind, len(p.Kernel), p.HasUser())
			}
		})
	}
}

// What is no function, or none that can be probed, is said with what may have been meant.
func TestKprobeErrors(t *testing.T) {
	for name, want := range map[string]string{
		"kprobe:":              "should be kprobe:FUNCTION",
		"kprobe:+4":            "should be kprobe:FUNCTION",
		"kretprobe:vfs_read+4": "should be kprobe:FUNCTION",
		"kprobe:vfs_read+x":    `"x" is not an offset`,
	} {
		if _, err := ParseEvent(name); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	kernelTest(t)
	var unknown *UnknownEventError
	if err := notProbed(Event{Name: "kprobe:vfs_raed", function: "vfs_raed"}, unix.ENOENT); !errors.As(err, &unknown) || unknown.Near[0] != "kprobe:vfs_read" {
		t.Errorf("%v", err)
	}
	if err := notProbed(Event{Name: "kprobe:vfs_read", function: "vfs_read"}, unix.EINVAL); !errors.Is(err, unix.EINVAL) {
		t.Errorf("%v", err)
	}
	if err := notProbed(Event{Name: "kprobe:vfs_read+1", function: "vfs_read"}, unix.EILSEQ); !strings.Contains(err.Error(), "no instruction begins there") {
		t.Errorf("%v", err)
	}
}
