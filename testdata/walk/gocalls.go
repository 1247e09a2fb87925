// A Go program whose goroutines wait in C, and in Go that C has called.
package main

/*
#include <unistd.h>
extern void wait(int);
static void waitInC(void) { pause(); }
static int callBack(int n) { wait(n); return n; }
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
)

var (
	never   = make(chan int)
	waiting = make(chan bool)
)

//export wait
func wait(n C.int) {
	if n > 0 {
		C.callBack(n - 1)
		return
	}
	waiting <- true
	<-never
}

//go:noinline
func inC() {
	waiting <- true
	C.waitInC()
}

//go:noinline
func calledBack(n C.int) { C.callBack(n) }

func main() {
	go inC()
	go calledBack(0)
	go calledBack(3)
	go func() { runtime.LockOSThread(); calledBack(1) }()
	for range 4 {
		<-waiting
	}
	time.Sleep(100 * time.Millisecond)
	fmt.Println("ready")
	syscall.Read(int(os.Stdin.Fd()), make([]byte, 1))
}
