package steptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// Compile builds a program from one source file with a compiler command and
// returns its path, the base of which starts with the name of the compiler.
func Compile(t testing.TB, cc []string, name, source string) string {
	t.Helper()
	testenv.Needs(t, cc[0])
	dir := t.TempDir()
	src := filepath.Join(dir, name)
	if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, filepath.Base(cc[0])+"-"+strings.TrimSuffix(name, filepath.Ext(name)))
	args := append(append([]string{}, cc[1:]...), "-o", out, src)
	testenv.Run(t, exec.Command(cc[0], args...))
	return out
}

// OpenImage opens a file for a test.
func OpenImage(t testing.TB, path string) *procstate.Image {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	im, err := procstate.NewImageBytes(b, path)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

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
