// Command gocallbacks burns CPU in Go that C has called and in C that such Go
// has called, on the main thread and on one that C has made, until it has used
// as much CPU time as its argument says.
package main

/*
#include <pthread.h>
#include <stdlib.h>

extern long goBurn(long);

static __attribute__((noinline)) long burnC(long n) {
	volatile long x = 0;
	for (long i = 0; i < n; i++) x += i;
	return x;
}

static __attribute__((noinline)) long level(long n) {
	long r = burnC(3000) + goBurn(n);
	return r + burnC(3000);
}

static void *inThread(void *p) {
	for (;;) level(1);
	return p;
}

static void startThread(void) {
	pthread_t t;
	if (pthread_create(&t, NULL, inThread, NULL)) abort();
}
*/
import "C"

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

//go:noinline
func burn(n int) (sum int) {
	for i := range n {
		sum += i * i
	}
	return sum
}

//export goBurn
func goBurn(n C.long) C.long {
	r := C.long(burn(20000))
	if n > 0 {
		r += C.level(n - 1)
	}
	return r + C.long(burn(10000))
}

// cpuTime is what the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func main() {
	d, err := time.ParseDuration(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	C.startThread()
	for cpuTime() < d {
		C.level(2)
	}
}
