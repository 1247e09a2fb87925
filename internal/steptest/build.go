package steptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
