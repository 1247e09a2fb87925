// Command gosignals does what changes the stacks of a Go program's thread:
// signals, handled on a stack of their own, met by Go code and by the
// runtime on the thread's own stack, and faults that become panics.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
)

func init() { runtime.LockOSThread() }

type node struct{ next *node }

//go:noinline
func fault(n *node) (err error) {
	defer func() { err, _ = recover().(error) }()
	return fmt.Errorf("%v", n.next.next)
}

//go:noinline
func deep(n int) int {
	var pad [512]byte
	if n == 0 {
		return len(make([]*node, 1000))
	}
	pad[n%512] = byte(n)
	return deep(n-1) + int(pad[n%512])
}

func main() {
	syscall.Getppid()
	c := make(chan os.Signal, 16)
	signal.Notify(c, syscall.SIGUSR1, syscall.SIGWINCH)
	pid, tid := syscall.Getpid(), syscall.Gettid()
	n := 0
	for i := 0; i < 6; i++ {
		// SIGURG asks for preemption, as the runtime does of its threads.
		for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGURG, syscall.SIGWINCH} {
			_ = syscall.Tgkill(pid, tid, s)
		}
		n += deep(20 * i)
		if fault(&node{}) == nil {
			panic("no fault")
		}
		go func() { runtime.Gosched() }()
		runtime.Gosched()
	}
	debug.FreeOSMemory()
	time.Sleep(time.Millisecond)
	for len(c) > 0 {
		<-c
		n++
	}
	signal.Reset()
	fmt.Println(n)
}
