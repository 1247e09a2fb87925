// A Go program whose goroutines wait for all sorts of things, for Go 1.20 and
// later. Its argument is how many more of one sort it shall start.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type pair[A, B any] struct {
	a A
	b B
}

//go:noinline
func (p *pair[A, B]) wait(c chan B) { p.b = <-c }

//go:noinline
func deep(n int, wait func()) int {
	var pad [20]int
	pad[n%20] = n
	if n == 0 {
		wait()
		return 0
	}
	return deep(n-1, wait) + pad[n%20]
}

type waiter interface{ wait(chan string) }

func inlined(mu *sync.RWMutex) { mu.RLock() }

var spins uint64

func main() {
	many, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	var (
		never   = make(chan int)
		strs    = make(chan string)
		mu      sync.Mutex
		rw      sync.RWMutex
		wg      sync.WaitGroup
		cond    = sync.NewCond(&sync.Mutex{})
		through [2]int
	)
	mu.Lock()
	rw.Lock()
	wg.Add(1)
	polled, writer, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	if err := syscall.Pipe(through[:]); err != nil {
		panic(err)
	}
	go func() { <-never }()
	go func() { never2 := make(chan int); never2 <- 1 }()
	go func() { var none chan int; <-none }()
	go func() { var none chan int; none <- 1 }()
	go func() {
		select {
		case <-make(chan int):
		case make(chan int) <- 1:
		}
	}()
	go func() { select {} }()
	go func() { mu.Lock() }()
	go func() { rw.Lock() }()
	go inlined(&rw)
	go func() { wg.Wait() }()
	go func() { cond.L.Lock(); cond.Wait() }()
	go func() { time.Sleep(time.Hour) }()
	go func() { polled.Read(make([]byte, 1)) }()
	go func() { syscall.Read(through[0], make([]byte, 1)) }()
	go func() { runtime.LockOSThread(); <-never }()
	go func() { runtime.LockOSThread(); syscall.Read(through[0], make([]byte, 1)) }()
	go deep(30, func() { <-never })
	go deep(3000, func() { <-never })
	go new(pair[int, string]).wait(strs)
	go waiter(new(pair[[3]uint64, string])).wait(strs)
	go pull(never)
	go func() {
		defer func() { recover(); <-never }()
		panic("caught")
	}()
	go func() {
		defer func() { recover(); <-never }()
		var p *int
		*p = 1 // a signal
	}()
	go func() {
		for {
			spins++
		}
	}()
	for i := 0; i < many; i++ {
		go deep(3, mu.Lock)
	}
	time.AfterFunc(0, func() { <-never })
	var finalizing atomic.Bool
	runtime.SetFinalizer(&pair[[3]uint64, *int]{}, func(*pair[[3]uint64, *int]) {
		finalizing.Store(true)
		deep(2, func() { <-never })
	})
	for {
		time.Sleep(20 * time.Millisecond)
		runtime.GC()
		b := make([]byte, 4096*(many+100))
		if finalizing.Load() && settled(string(b[:runtime.Stack(b, true)])) {
			break
		}
	}
	runtime.GC()
	fmt.Println("ready")
	syscall.Read(0, make([]byte, 1))
	runtime.KeepAlive(writer)
}

// settled reports whether no goroutine but that which spins has yet to come to
// where it waits.
func settled(text string) bool {
	_, others, _ := strings.Cut(text, "\n\n") // without this one
	return strings.Count(others, "[runnable")+strings.Count(others, "[running") == 1
}
