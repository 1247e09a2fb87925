package steppers

import (
	"bytes"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
)

const threadMain = `#include <pthread.h>
#include <unistd.h>
static void *f(void *a) { return a; }
int main(void) {
	pthread_t t;
	pthread_create(&t, 0, f, 0);
	pthread_join(t, 0);
	if (fork() == 0) _exit(0);
	if (vfork() == 0) _exit(0);
	return 0;
}
`

// Behind the system call that makes a thread, the new one is at the bottom of
// its stack; a child of fork or vfork is not.
func TestCloneChild(t *testing.T) {
	for _, tc := range []struct {
		name    string
		cc      []string
		threads []string
		forks   []string
	}{
		{"glibc", []string{"gcc", "-static", "-pthread"}, []string{"__clone", "__clone3"}, []string{"__libc_fork", "__vfork"}},
		{"musl", []string{"musl-gcc", "-static"}, []string{"__clone"}, []string{"_Fork", "vfork"}},
		{"aarch64", []string{"aarch64-linux-gnu-gcc", "-static", "-pthread"}, []string{"__clone"}, []string{"__libc_fork", "__vfork"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := steptest.Compile(t, tc.cc, "thread.c", threadMain)
			img := steptest.OpenImage(t, path)
			for _, name := range tc.threads {
				if got := cloneChildren(t, img, path, name); got < 2 {
					t.Errorf("%s: %d instructions are a new thread's, want at least 2", name, got)
				}
			}
			for _, name := range tc.forks {
				if got := cloneChildren(t, img, path, name); got != 0 {
					t.Errorf("%s: %d instructions are a new thread's, want none", name, got)
				}
			}
		})
	}
}

// cloneChildren counts the instructions of a function at which a thread whose
// last system call returned 0 has just been made. All of them must lie behind
// a system call.
func cloneChildren(t *testing.T, img *procstate.Image, path, name string) (n int) {
	t.Helper()
	start, end := symbolAndNext(t, path, name)
	call := syscall64
	if img.Arch() == procstate.ARM64 {
		call = svcARM64
	}
	code := mcode.ReadFile(img, start, end+64) // a thread may start in the next function
	first := bytes.Index(code, call)
	for pc := range code {
		if !isCloneChild(img.Arch(), code[:pc], code[pc:]) {
			continue
		}
		if n++; pc < first+len(call) {
			t.Errorf("%s+%#x: a new thread before the system call", name, pc)
		}
	}
	return n
}
