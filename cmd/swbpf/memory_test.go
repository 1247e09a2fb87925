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
			live, goal := metric("/gc/heap/live:bytes"), metric("/gc/heap/goal:bytes")
			want := live + live/part + allowed
			if live < 4*mb { // Go has a heap grow to that by itself: limitGarbage
				want -= live
			}
			if goal > want*9/10 && goal < want*11/10+mb {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("with %d KB live the heap may grow to %d KB, not some %d", live>>10, goal>>10, want>>10)
				return
			}
		}
	}
	check(0, recordingGarbage, 8)
	check(30*mb, recordingGarbage/2, 16)
	check(200*mb, recordingGarbage/2, 16)
	runtime.KeepAlive(live)
	live = nil
	collectForNames()
	check(0, namingGarbage, 8)
	check(30*mb, namingGarbage, 8)
}

var garbage []byte // so that it is in the heap
