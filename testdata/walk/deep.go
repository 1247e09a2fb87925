// A Go program with a stack of a known depth and some goroutines.
package main

import (
	"fmt"
	"syscall"
	"time"
)

//go:noinline
func step(n int, wait func()) int {
	var pad [20]int
	pad[n%20] = n
	if n == 0 {
		wait()
		return 0
	}
	return step(n-1, wait) + pad[n%20]
}

func main() {
	for range 3 {
		go func() {
			for {
				time.Sleep(time.Hour)
			}
		}()
	}
	step(70, func() {
		fmt.Println("ready")
		// A blocking read keeps the goroutine on its thread.
		var fds [2]int
		if err := syscall.Pipe(fds[:]); err != nil {
			panic(err)
		}
		var b [1]byte
		syscall.Read(fds[0], b[:])
	})
}
