// Command goticks has timers interrupt a Go program's thread anywhere: in
// goroutines, in the scheduler and the garbage collector, in switches between
// their stacks.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
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

func recovered(n int) (err error) {
	defer func() { err, _ = recover().(error) }()
	return fmt.Errorf("%d", []int{1}[n])
}

// every has a signal sent to the running thread again and again.
func every(s syscall.Signal, microseconds int64) {
	event := [16]int32{2: int32(s), 3: 4 /* SIGEV_THREAD_ID */, 4: int32(syscall.Gettid())}
	var id int32
	_, _, e := syscall.Syscall(syscall.SYS_TIMER_CREATE, 1 /* CLOCK_MONOTONIC */, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&id)))
	if e == 0 {
		spec := [4]int64{0, microseconds * 1000, 0, microseconds * 1000}
		_, _, e = syscall.Syscall6(syscall.SYS_TIMER_SETTIME, uintptr(id), 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	}
	if e != 0 {
		panic(e)
	}
}

func main() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR2)
	every(syscall.SIGURG, 40000) // a handler takes milliseconds under the oracle
	every(syscall.SIGUSR2, 170000)
	syscall.Getppid()
	c := make(chan int)
	go func() {
		for i := 0; ; i++ {
			c <- grow(i % 60)
		}
	}()
	for i := 0; i < 5000; i++ {
		n := <-c + grow(i%40)
		s := strings.Repeat("x", n%9) + fmt.Sprint(n, recovered(2))
		go func() { _ = s + s }()
		runtime.Gosched()
		if i%50 == 10 {
			runtime.GC()
		}
	}
}
