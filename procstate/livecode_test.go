package procstate

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
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
	defer func() { live.close() }() // not when it is garbage: other tests count descriptors
	// Across the end of a page, and a part of that again.
	at := start + codePage - 100
	var first, again [300]byte
	if n := live.readCode(at, first[:], 0); n != len(first) {
		t.Fatalf("%d bytes of a child", n)
	}
	s := NewSnapshot(nil, pid, exe, nil)
	s.SetLiveCode(live)
	if n := s.ReadLive(start-1<<30, again[:]); n != 0 || s.IsLate() {
		t.Errorf("%d bytes where nothing is, too late: %v", n, s.IsLate())
	}
	end()
	if s.ReadLive(at, again[:]); !s.IsLate() {
		t.Error("it is not too late when the process has ended")
	}
	if s.Reset(1, &Regs{}, nil); s.IsLate() {
		t.Error("it is too late before anything is read")
	}
	if ended := NewSnapshot(nil, pid, exe, nil); ended.ReadLive(at, again[:]) != 0 || ended.IsLate() {
		t.Error("what reads no process is too late")
	} else if ended.SetLiveCode(NewLiveCode(pid, exe)); ended.ReadLive(at, again[:]) != 0 || !ended.IsLate() {
		t.Error("it is not too late for a process that had ended before")
	}
	if n := live.read(at, again[:]); n != 0 {
		t.Fatalf("%d bytes of a process that has ended", n)
	}
	if n := live.readCode(at, again[:], 0); n != len(again) || again != first {
		t.Errorf("kept %d bytes, the same: %v", n, again == first)
	}
	if n := live.readCode(at+50, again[:], 0); n != len(again) || !bytes.Equal(again[:250], first[50:]) {
		t.Errorf("from the middle: %d bytes", n)
	}
	if n := live.readCode(start-1, again[:], 0); n != 0 {
		t.Errorf("%d bytes that were not read", n)
	}
}

// TestLiveCodeTime reads memory that changes, for Snapshots of before and after that.
func TestLiveCodeTime(t *testing.T) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	live := NewLiveCode(os.Getpid(), exe)
	defer func() { live.close() }()
	b, err := unix.Mmap(-1, 0, 256*codePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	addr := uint64(uintptr(unsafe.Pointer(&b[0])))
	is := func(what string, page int, taken uint64, want byte) {
		t.Helper()
		var got [2]byte
		if n := live.readCode(addr+uint64(page)*codePage+7, got[:], taken); n != 2 || got != [2]byte{want, want} {
			t.Errorf("%s: %d bytes, %d", what, n, got)
		}
	}
	set := func(page int, to byte) {
		for i := range codePage {
			b[page*codePage+i] = to
		}
	}
	set(3, 1)
	before := Monotonic()
	is("first", 3, before, 1)
	set(3, 2)
	is("of before the change", 3, before, 1)
	is("of an unknown time", 3, 0, 2)
	is("the latest", 3, before, 2)
	set(3, 3)
	after := Monotonic()
	is("of after the change", 3, after, 3)
	live.earlier, live.replaced = true, false
	is("before the change", 3, after, 2)
	if !live.replaced {
		t.Error("a page that has changed is not told of")
	}
	live.earlier, live.replaced = false, false
	is("since it is known", 3, Monotonic(), 3)
	live.earlier = true
	is("there is no other since", 3, 0, 3)
	if live.replaced {
		t.Error("a page that has not changed is told of")
	}
	live.earlier = false
	// All pages in turn: what is kept is bounded.
	for page := range 256 {
		set(page, byte(page))
		is("one of many", page, Monotonic(), byte(page))
	}
	kept := 0
	for _, set := range live.kept {
		for _, p := range set {
			if p != nil {
				kept++
			}
		}
	}
	set(255, 1)
	is("the last of many", 255, before, 255)
	if kept < keptSets || kept > keptSets*keptWays {
		t.Errorf("%d pages are kept", kept)
	}
	hash, _ := live.hashCode(addr+5*codePage-10, 20, 0)
	same, ok := live.hashCode(addr+5*codePage-20, 40, before)
	b[6*codePage-1]++
	changed, _ := live.hashCode(addr+5*codePage-10, 20, 0)
	b[6*codePage-1]--
	again, _ := live.hashCode(addr+5*codePage-10, 20, 0)
	if !ok || hash != same || hash == changed || hash != again {
		t.Errorf("hashes %#x, %#x and %#x of the same, %#x of other code", hash, same, again, changed)
	}
	if _, ok := live.hashCode(codePage, 1, 0); ok {
		t.Error("a hash of what is not there")
	}
	live.forget()
	is("forgotten", 255, before, 1)
}

// A program is known by its path, as it is seen from outside of its root or from within.
func TestRunsProgram(t *testing.T) {
	testenv.Needs(t, "gcc", "unshare")
	root := t.TempDir()
	build := exec.Command("gcc", "-static", "-x", "c", "-o", filepath.Join(root, "waits"), "-")
	build.Stdin = strings.NewReader("#include <unistd.h>\nint main(void) { write(1, \"!\", 1); pause(); }")
	testenv.Run(t, build)
	cmd := exec.Command("unshare", "--root="+root, "/waits")
	_, out := testenv.Start(t, cmd)
	if n, err := out.Read(make([]byte, 1)); n != 1 {
		testenv.Lacks(t, "no root of its own: %v", err)
	}
	task := ThreadID(cmd.Process.Pid)
	for exe, want := range map[string]bool{
		"/waits": true, filepath.Join(root, "waits"): true, "/waits (deleted)": true, "/other": false, "": false,
	} {
		if got := runsProgram(task, exe); got != want {
			t.Errorf("%q: %v", exe, got)
		}
	}
	if runsProgram(1<<30, "/waits") {
		t.Error("a task that is none runs it")
	}
}
