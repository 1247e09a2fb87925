package loader

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// For a process in a root of its own, a uprobe is in the files that it sees there, and has mapped; for several
// processes it is in all of theirs.
func TestUprobeOfProcesses(t *testing.T) {
	kernelTest(t)
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "chroot needs root")
	}
	program := probesProgram(t, "probes-static", "-static")
	var roots [2]string
	var pids [2]int
	for i := range roots {
		roots[i] = t.TempDir()
		b, err := os.ReadFile(program)
		if err == nil {
			err = os.WriteFile(filepath.Join(roots[i], "libcount-3.2.so"), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/libcount-3.2.so", "watch")
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: roots[i]}
		_, told := testenv.Start(t, cmd)
		readByte(t, told)
		pids[i] = cmd.Process.Pid
	}
	for _, name := range []string{"uprobe:/libcount-3.2.so:main", "uprobe:libcount:main", "usdt:libcount:guarded"} {
		if _, err := ParseEvent(name); err == nil {
			t.Errorf("%s is there for everyone", name)
		}
		e, err := ParseEventOf(name, pids[:1])
		if err != nil || len(e.places) != 1 {
			t.Errorf("%s: %+v, %v", name, e.places, err)
			continue
		}
		if fi, err := os.Stat(e.places[0].file); err != nil || !sameAs(fi, filepath.Join(roots[0], "libcount-3.2.so")) {
			t.Errorf("%s: %s, %v", name, e.places[0].file, err)
		}
		if e, err = ParseEventOf(name, pids[:]); err != nil || len(e.places) != 2 || e.places[0].file == e.places[1].file {
			t.Errorf("%s of two: %+v, %v", name, e.places, err)
		}
		if e.isStaticProbe() {
			if w, err := ParseWeight(e, "arg1"); err != nil || len(w.at) != 2 {
				t.Errorf("%s: weight %+v, %v", name, w, err)
			}
		}
	}
	// One whose file has been replaced has the one that it has mapped.
	path := filepath.Join(roots[0], "libcount-3.2.so")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	e, err := ParseEventOf("uprobe:libcount:main", pids[:1])
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(e.places[0].file); err != nil || !os.SameFile(fi, before) {
		t.Errorf("of a file that is gone: %s, %v", e.places[0].file, err)
	}
	// What they do not have means what it means here.
	ours, err := ParseEventOf("uprobe:libc.so.6:malloc", []int{os.Getpid(), pids[1]})
	everyones := mustParse(t, "uprobe:libc.so.6:malloc")
	if err != nil || len(ours.places) != 1 || ours.places[0].offset != everyones.places[0].offset || strings.HasPrefix(ours.places[0].file, "/proc") {
		t.Errorf("%+v, %v; want %+v", ours.places, err, everyones.places)
	}
}

func sameAs(fi os.FileInfo, path string) bool {
	other, err := os.Stat(path)
	return err == nil && os.SameFile(fi, other)
}

func TestIsCalled(t *testing.T) {
	for file, is := range map[string]bool{
		"libc": true, "libc.so": true, "libc.so.6": true, "libc-2.31.so": true, "libcap.so.2": false, "libc-": false, "libc-client.so.2": false, "libc-2.txt": false, "lib": false, "": false,
	} {
		if got := isCalled(file, "libc"); got != is {
			t.Errorf("%q is libc: %v", file, got)
		}
	}
}
