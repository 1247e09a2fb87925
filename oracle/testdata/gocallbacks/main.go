// Command gocallbacks calls C that calls Go back, several levels deep, grows
// and moves the goroutine's stack meanwhile, collects garbage there, and
// leaves callbacks by panics.
package main

/*
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern long goLevel(long, void *);

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

// sorts, so that there are frames of libc, before and after it calls Go.
static long level(long n, void *p) {
	int numbers[16];
	for (int i = 0; i < 16; i++) numbers[i] = (int)((i * 7 + n) % 16);
	qsort(numbers, 16, sizeof(int), compare);
	long r = n > 0 ? goLevel(n - 1, p) : 0;
	qsort(numbers, 16, sizeof(int), compare);
	return r + numbers[3];
}

static void *thread(void *p) { return (void *)level(2, p); }

static long in_thread(void) {
	pthread_t t;
	void *r;
	if (pthread_create(&t, NULL, thread, NULL)) abort();
	pthread_join(t, &r);
	return (long)r;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

func init() { runtime.LockOSThread() }

//go:noinline
func grow(n int) int {
	var pad [256]byte
	if n == 0 {
		return 0
	}
	pad[n%256] = byte(n)
	return grow(n-1) + int(pad[n%256])
}

//export goLevel
func goLevel(n C.long, p unsafe.Pointer) C.long {
	r := C.long(grow(20 * int(n)))
	if n == 2 {
		runtime.GC()
	}
	if n == 0 && p != nil {
		panic("out of a callback")
	}
	return r + C.level(n, p)
}

func caught(n int) (r any) {
	defer func() { r = recover() }()
	var one C.char
	C.level(C.long(n), unsafe.Pointer(&one))
	return nil
}

func main() {
	syscall.Getppid()
	if len(os.Args) > 1 { // the stack of a thread that C has made
		fmt.Println(C.in_thread())
		return
	}
	fmt.Println(C.level(3, nil), caught(1), caught(3), C.level(0, nil))
}
