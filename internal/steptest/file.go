package steptest

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// OpenFile opens a file as one that is mapped.
func OpenFile(t testing.TB, images *procstate.Images, path string) *procstate.Image {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	im, err := images.Open(&procstate.FileRef{Path: path, Dev: st.Dev, Inode: st.Ino})
	if err != nil {
		t.Fatal(err)
	}
	return im
}
