package procstate

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
)

// TestLiveCodeKept reads memory of a process while it runs, and what was read
// when it has ended.
func TestLiveCodeKept(t *testing.T) {
	cmd := exec.Command("cat")
	end := startCat(t, cmd)
	pid := cmd.Process.Pid
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		t.Fatal(err)
	}
	maps, err := ReadMaps(fmt.Sprintf("/proc/%d/maps", pid), false)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(maps, func(e MapsEntry) bool { return e.Path == "[stack]" })
	start := maps[i].End - 4*codePage
	live := NewLiveCode(pid, exe)
	defer func() { live.mem.Close() }() // not when it is garbage: other tests count descriptors
	// Across the end of a page, and a part of that again.
	at := start + codePage - 100
	var first, again [300]byte
	if n := live.readCode(at, first[:]); n != len(first) {
		t.Fatalf("%d bytes of a child", n)
	}
	end()
	if n := live.read(at, again[:]); n != 0 {
		t.Fatalf("%d bytes of a process that has ended", n)
	}
	if n := live.readCode(at, again[:]); n != len(again) || again != first {
		t.Errorf("kept %d bytes, the same: %v", n, again == first)
	}
	if n := live.readCode(at+50, again[:]); n != 250 || !bytes.Equal(again[:n], first[50:]) {
		t.Errorf("from the middle: %d bytes", n)
	}
	if n := live.readCode(at-1, again[:]); n != 0 {
		t.Errorf("%d bytes that were not read", n)
	}
	// Other pages take the places.
	for i := range uint64(8 * keptPages) {
		live.keep(start+(2+i)*codePage, first[:1])
	}
	kept := 0
	for _, p := range live.kept {
		if p != nil {
			kept++
		}
	}
	if kept > keptPages || live.readCode(start+(1+8*keptPages)*codePage, again[:]) != 1 {
		t.Errorf("%d pages are kept, and not the last", kept)
	}
}
