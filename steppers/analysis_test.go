package steppers

import (
	"os"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
)

// A library with tables is not looked through for registers, one without is.
func TestIsBare(t *testing.T) {
	a, n := NewAnalysis(), 0
	for path, want := range map[string]bool{
		"/lib/x86_64-linux-gnu/libc.so.6": false, "/lib64/libc.so.6": false, "/usr/lib/x86_64-linux-musl/libc.so": true,
	} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		n++
		im := steptest.OpenImage(t, path)
		for range 2 {
			if got := a.isBare(im); got != want {
				t.Errorf("%s: %v", path, got)
			}
		}
	}
	if n == 0 {
		t.Skip("no C library for amd64")
	}
}
