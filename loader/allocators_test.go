package loader

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// What is mapped is looked at once, whatever it is; what cannot be attached to is counted, and what is gone may come again.
func TestLateAllocators(t *testing.T) {
	libc, err := resolveBinary("libc")
	if err != nil {
		testenv.Lacks(t, "the C library: %v", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "libmalloc.so")
	if err := os.WriteFile(text, []byte("malloc free"), 0o600); err != nil {
		t.Fatal(err)
	}
	ref := func(path string, inode uint64) *procstate.FileRef {
		return &procstate.FileRef{PID: int32(os.Getpid()), Path: path, Start: 1 << 12, End: 2 << 12, Inode: inode}
	}
	var a lateAllocators
	files := []*procstate.FileRef{ref(libc, 1), ref(exe, 2), ref(text, 3), ref(filepath.Dir(text), 4), ref("/nothing/malloc.so", 5), ref("", 6)}
	for range 2 {
		for _, f := range files {
			a.mapped(f)
		}
	}
	if len(a.queue) != len(files) || a.works {
		t.Errorf("%d files wait before it begins, want %d", len(a.queue), len(files))
	}
	a.begin(new(source)) // which attaches to nothing
	a.mapped(ref(libc, 7))
	a.working.Wait()
	if n := a.numMissed(); n != 2 {
		t.Errorf("%d allocators are missed, want 2", n)
	}
	for _, f := range files {
		if want := f.Path != "" && f.Path != "/nothing/malloc.so"; a.judged[idOf(f)] != want {
			t.Errorf("%q is known: %v, want %v", f.Path, !want, want)
		}
	}
	a.end()
	a.mapped(ref(exe, 8))
	if len(a.queue) > 0 || a.judged[mappedID{inode: 8}] {
		t.Error("it goes on when it has ended")
	}

	// One that is attached to is not looked at again, by whatever path.
	var b lateAllocators
	b.begin(&source{Sampling: Sampling{Event: Event{places: []place{{file: libc}}}}})
	b.mapped(ref("/."+libc, 1))
	b.working.Wait()
	if n := b.numMissed(); n != 0 {
		t.Errorf("%d allocators are missed that are known", n)
	}
}
