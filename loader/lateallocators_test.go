package loader

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// What is mapped is looked at once, also where it was deleted since; what cannot be attached to is counted, and what is
// gone may come again.
func TestLateAllocators(t *testing.T) {
	libc, err := resolveBinary("libc")
	if err != nil {
		testenv.Lacks(t, "the C library: %v", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(libc)
	if err != nil {
		t.Fatal(err)
	}
	open := func(path string) *procstate.FileRef {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return &procstate.FileRef{PID: int32(os.Getpid()), Path: path, Dev: st.Dev, Inode: st.Ino}
	}
	library := filepath.Join(t.TempDir(), "libmalloc.so")
	text := filepath.Join(t.TempDir(), "malloc.so")
	if err := errors.Join(os.WriteFile(library, code, 0o600), os.WriteFile(text, []byte("malloc"), 0o600)); err != nil {
		t.Fatal(err)
	}

	var a lateAllocators
	files := []*procstate.FileRef{open(libc), open(exe), open(library), open(text)}
	for range 2 {
		for _, f := range files {
			a.look(f)
		}
	}
	if len(a.queue) != len(files) || a.works {
		t.Errorf("%d files wait before it begins, want %d", len(a.queue), len(files))
	}
	if err := os.Remove(library); err != nil {
		t.Fatal(err)
	}
	a.begin(new(source)) // which attaches to nothing
	other := open(exe)
	other.Inode++ // the path leads to another one than that
	a.look(other)
	a.look(files[0])
	a.working.Wait()
	if n := a.numMissed(); n != 2 {
		t.Errorf("%d allocators are missed, want 2", n)
	}
	for _, f := range append(files, other) {
		if want := f != other; a.judged[mappedID{f.Dev, f.Inode, 0}] != want {
			t.Errorf("%s is known: %v, want %v", f.Path, !want, want)
		}
	}
	a.end()
	clear(a.judged)
	if a.look(files[0]); len(a.queue) > 0 || len(a.judged) > 0 {
		t.Error("it goes on when it has ended")
	}

	// One that is attached to is not looked at again, by whatever path.
	var b lateAllocators
	b.look(files[0])
	b.begin(&source{Sampling: Sampling{Event: Event{places: []place{{file: "/." + libc}}}}})
	b.working.Wait()
	if n := b.numMissed(); n != 0 {
		t.Errorf("%d allocators are missed that are known", n)
	}
}
