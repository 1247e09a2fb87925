package steppers

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Of a Go program of i386 the stacks of goroutines, threads and the scheduler are whole,
// with and without symbols. What runs on a thread's own stack for a goroutine ends where it
// has changed over, with a reason and without a frame that is none.
func TestGo386(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.Needs32Bit(t)
	t.Setenv("GOARCH", "386")
	t.Setenv("CGO_ENABLED", "0")
	elsewhere := map[string]bool{"runtime.systemstack": true, "runtime.mcall": true, "runtime.morestack": true, "gogo": true}
	for _, flags := range [][]string{nil, {"-ldflags=-s -w"}} {
		cmd := exec.Command(buildGo(t, "go", flags...))
		testenv.Start(t, cmd)
		group := Default(unwind.NewTables())
		bottoms := map[string]int{}
		cut, unread, total := 0, 0, 0
		for n := 0; n < 100 || n < 1000 && bottoms["runtime.mcall"] == 0; n++ {
			time.Sleep(2 * time.Millisecond)
			c, err := procstate.CaptureProcess(cmd.Process.Pid, procstate.CaptureOptions{})
			if err != nil {
				t.Fatal(err)
			}
			w := unwind.NewWalker(c, group, nil)
			tids, _ := c.Threads()
			for _, tid := range tids {
				frames, err := w.WalkStack(nil, tid)
				last, _ := goName(c, frames[len(frames)-1].LookupPC())
				total++
				switch {
				case err == nil:
					bottoms[last]++
				case err == unwind.MemoryUnreadable: // as the stack that a signal has interrupted, which takes another capture
					unread++
				case err != unwind.UnsupportedUnwind || !elsewhere[last]:
					t.Errorf("%v: %v\n%s", flags, err, describe(c, frames))
				default:
					cut++
				}
				if err := checkLinks(c, frames); err != nil {
					t.Errorf("%v: %v\n%s", flags, err, describe(c, frames))
				}
			}
		}
		t.Logf("%v: %d stacks, %d cut at a switch, bottoms %v", flags, total, cut, bottoms)
		for name := range bottoms {
			switch {
			case name == "runtime.goexit", name == "runtime.clone", name == "runtime.rt0_go", name == "runtime.mcall", name == "runtime.morestack":
			case !strings.HasPrefix(name, "_rt0_386"):
				t.Errorf("%v: %s is a bottom", flags, name)
			}
		}
		if unread > total/50 {
			t.Errorf("%v: %d of %d stacks need memory that is not there", flags, unread, total)
		}
		if bottoms["runtime.goexit"] == 0 || bottoms["runtime.clone"] == 0 || bottoms["runtime.mcall"] == 0 {
			t.Errorf("%v: bottoms %v", flags, bottoms)
		}
	}
}

// Where the new thread goes on in runtime.clone of i386, and where the old one is.
func TestCloneKind386(t *testing.T) {
	code := []byte{0xb8, 0x78, 0, 0, 0, 0xcd, 0x80, 0x83, 0xf8, 0, 0x74, 5, 0x89, 0x44, 0x24, 0x18, 0xc3, 0x8b, 0x6c, 0x24, 0x0c}
	for at, want := range map[uint64]goKind{0: goAsm, 5: goAsm, 7: goClone, 10: goClone, 16: goClone, 17: goTop, 20: goTop} {
		if got := cloneKind386(code, at); got != want {
			t.Errorf("at %d: %d, want %d", at, got, want)
		}
	}
}
