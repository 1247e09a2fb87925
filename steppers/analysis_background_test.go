//go:build linux

package steppers

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// TestAnalysisInBackground asks about frames of a file: it is looked through when that
// is worth it, and meanwhile they are nobody's.
func TestAnalysisInBackground(t *testing.T) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(exe, &st); err != nil {
		t.Fatal(err)
	}
	images := procstate.NewImages(0)
	defer images.Close()
	im, err := images.Open(&procstate.FileRef{Path: exe, Dev: st.Dev, Inode: st.Ino})
	if err != nil {
		t.Fatal(err)
	}
	size := codeBytes(im)
	if size <= 2*codePerFrame || size > maxBackground {
		t.Fatalf("the test has %d bytes of code", size)
	}
	a := &Analysis{InBackground: true}
	at := im.Entry()
	for i := uint64(1); i*codePerFrame < size; i++ {
		if a.codeAt(im, at) != nil || a.code.get(im).pending != nil {
			t.Fatalf("looked through after %d frames of %d bytes", i, size)
		}
	}
	if a.codeAt(im, at) != nil || a.code.get(im).pending == nil {
		t.Fatal("not looked through in the background when it was worth it")
	}
	for end := time.Now().Add(time.Minute); a.codeAt(im, at) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not looked through after a minute")
		}
	}
	if c := NewAnalysis().codeAt(im, at); c == nil {
		t.Error("not looked through at once where nobody has to keep up")
	}
}
