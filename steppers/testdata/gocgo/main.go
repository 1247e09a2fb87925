// Command gocgo calls C, which calls back into Go, three times over. It writes a byte first.
package main

/*
extern int goCallback(int);
static __attribute__((noinline)) int spin(int n) {
	volatile int x = 0;
	for (int i = 0; i < n; i++) x += i;
	return x;
}
static __attribute__((noinline)) int callGo(int depth) {
	int r = spin(2000) + goCallback(depth);
	return r + spin(1000);
}
*/
import "C"

import (
	"os"
	"runtime"
)

// The main thread calls C, and nothing else.
func init() { runtime.LockOSThread() }

func spin(n int) (sum C.int) {
	for i := range n {
		sum += C.int(i)
	}
	return sum
}

//export goCallback
func goCallback(depth C.int) C.int {
	n := spin(2000)
	if depth > 0 {
		n += C.callGo(depth - 1)
	}
	return n
}

var sink C.int

func main() {
	os.Stdout.Write([]byte{'.'})
	go func() {
		for {
			_ = make([]byte, 100_000)
		}
	}()
	for {
		sink += C.callGo(2)
	}
}
