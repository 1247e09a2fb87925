// A Go program whose goroutines never rest: they are born and die, are
// preempted, hand things to each other, grow their stacks, and garbage is
// collected meanwhile.
package main

import (
	"fmt"
	"runtime"
	"sync"
)

//go:noinline
func grow(n int) int {
	var pad [64]byte
	if n == 0 {
		return 0
	}
	pad[n%64] = byte(n)
	return grow(n-1) + int(pad[n%64])
}

//go:noinline
func spinCalls(n int) int {
	if n == 0 {
		return 0
	}
	return spinCalls(n-1) + 1
}

var sink [8][]byte

func main() {
	var mu sync.Mutex
	for range 3 {
		ping, pong := make(chan int), make(chan int)
		go func() {
			for {
				ping <- <-pong
			}
		}()
		go func() {
			for {
				pong <- 1
				<-ping
			}
		}()
		go func() {
			for {
				mu.Lock()
				spinCalls(10)
				mu.Unlock()
			}
		}()
		go func() {
			for n := uint64(0); ; n++ {
				_ = n
			}
		}()
		go func() {
			for {
				spinCalls(100)
			}
		}()
	}
	go func() {
		for {
			runtime.GC()
			runtime.Gosched()
		}
	}()
	go func() {
		for n := 0; ; n++ {
			done := make(chan int)
			go func() { done <- grow(n % 300) }()
			<-done
			sink[n%8] = make([]byte, 10000)
		}
	}()
	fmt.Println("ready")
	select {}
}
