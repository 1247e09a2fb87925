package symbols

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestForget names addresses of a program with a split unit and a debug file,
// forgets all, and gets the same names again.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.c", fuzzSource)
	run(t, dir, "gcc", "-g", "-O2", "-gsplit-dwarf", "-shared", "-fPIC", "-o", "a.so", "a.c")
	run(t, dir, "objcopy", "--only-keep-debug", "a.so", "a.debug")
	run(t, dir, "objcopy", "--strip-all", "--add-gnu-debuglink=a.debug", "a.so")
	im := open(t, dir+"/a.so")
	addrs := textAddresses(im, 50)
	s := newSymbolizer(t, Options{DebugDirs: []string{}})
	held := func() (n int) { // of the files that belong to it
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(link, dir+"/") && link != im.Path {
				n++
			}
		}
		return n
	}
	name := func() (all []Line) {
		for _, a := range addrs {
			all = s.Lines(all, im, a)
		}
		return all
	}
	first := name()
	if len(first) == 0 || first[0].StartLine == 0 || held() != 2 {
		t.Fatalf("%d lines, %d files: not all was read", len(first), held())
	}
	s.Forget()
	if n := held(); n != 0 || s.budget.total != 0 {
		t.Errorf("%d files are held, %d bytes", n, s.budget.total)
	}
	if again := name(); !reflect.DeepEqual(first, again) {
		t.Errorf("other names after Forget:\n%v\n%v", first, again)
	}
	for _, err := range s.Errors() {
		t.Error(err)
	}
}
