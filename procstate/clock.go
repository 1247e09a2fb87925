package procstate

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// began is a moment of the kernel's CLOCK_MONOTONIC, at, in ns, and the same or a little
// later by package time, which reads that clock without a system call.
var began = func() (b struct {
	at   uint64
	time time.Time
}) {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail
	b.at, b.time = uint64(now.Nano()-ownClockOffset), time.Now()
	return b
}()

// Monotonic reads the kernel's CLOCK_MONOTONIC, in ns, without a system call: never
// later than it is. By that samples and events are stamped, whatever the time namespace.
func Monotonic() uint64 { return began.at + uint64(time.Since(began.time)) }

// OwnClockOffset is the ClockOffset of this process, 0 where it is not known.
func OwnClockOffset() int64 { return ownClockOffset }

var ownClockOffset = func() int64 {
	ns, _ := clockOffset("/proc/self")
	return ns
}()

// ClockOffset returns how far CLOCK_MONOTONIC is ahead for a process, in ns: its time
// namespace sets that. ok is false when it cannot be told.
func ClockOffset(pid int) (ns int64, ok bool) { return clockOffset(fmt.Sprintf("/proc/%d", pid)) }

func clockOffset(dir string) (ns int64, ok bool) {
	namespace, err := os.Readlink(dir + "/ns/time")
	if err != nil || namespace == initTimeNamespace {
		return 0, err == nil || os.IsNotExist(err) // before Linux 5.6 there is none
	}
	// The offsets are those of the namespace that its children begin in.
	children, err := os.Readlink(dir + "/ns/time_for_children")
	if err != nil || children != namespace {
		return 0, false
	}
	b, err := os.ReadFile(dir + "/timens_offsets")
	if err != nil {
		return 0, false
	}
	var seconds, nanoseconds int64
	if _, err := fmt.Sscanf(string(b), "monotonic %d %d", &seconds, &nanoseconds); err != nil {
		return 0, false
	}
	return seconds*int64(time.Second) + nanoseconds, true
}

// initTimeNamespace is the machine's first time namespace (PROC_TIME_INIT_INO).
const initTimeNamespace = "time:[4026531834]"
