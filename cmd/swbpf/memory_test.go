package main

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"
)

// Garbage has a room of its own and an eighth of what is live, half of it where much
// is, and a heap that grows does not have the collector run without end.
func TestLimitGarbage(t *testing.T) {
	const child = "SWBPF_TEST_LIMIT_GARBAGE"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLimitGarbage$", "-test.v")
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, "GOGC=") && !strings.HasPrefix(v, "GOMEMLIMIT=") {
				cmd.Env = append(cmd.Env, v)
			}
		}
		cmd.Env = append(cmd.Env, child+"=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	const mb = 1 << 20
	limitGarbage()
	metric := func(name string) int {
		s := []metrics.Sample{{Name: name}}
		metrics.Read(s)
		return int(s[0].Value.Uint64())
	}
	var live [][]byte
	// check allocates so much that stays, and as much again that does not, and checks
	// how often the collector runs for that and when it is to run next.
	check := func(keep, allowed, part int) {
		before := metric("/gc/cycles/total:gc-cycles")
		for range keep / (8 << 10) {
			live = append(live, make([]byte, 8<<10))
			garbage = make([]byte, 8<<10)
		}
		n := metric("/gc/cycles/total:gc-cycles") - before
		t.Logf("%d collections for %d MB and as much garbage", n, keep/mb)
		if n > 60 {
			t.Error("the collector runs without end while the heap grows")
		}
		deadline := time.Now().Add(10 * time.Second)
		for {
			runtime.GC()
			time.Sleep(time.Millisecond)
			live := metric("/gc/heap/live:bytes")
			got, want := metric("/gc/heap/goal:bytes")-live, live/part+allowed
			if live < 4*mb { // Go has a heap grow to that by itself: limitGarbage
				want -= live
			}
			if got > want*3/4 && got < want*5/4 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("beside %d KB that are live there may be %d KB of garbage, not some %d", live>>10, got>>10, want>>10)
				return
			}
		}
	}
	check(0, allowedGarbage, 8)
	check(12*mb, allowedGarbage, 8)
	check(18*mb, allowedGarbage/2, 16)
	check(200*mb, allowedGarbage/2, 16)
	runtime.KeepAlive(live)
}

var garbage []byte // so that it is in the heap
