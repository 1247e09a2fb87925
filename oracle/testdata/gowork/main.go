// Command gowork does what makes the stacks of a Go program: maps and strings,
// closures, interfaces, growing stacks, deferred calls and panics, channels,
// and the garbage collector.
package main

import (
	"fmt"
	"runtime"
	"sort"
	"strings"
	"syscall"
)

type shape interface{ area() float64 }

type square float64

//go:noinline
func (s square) area() float64 { return float64(s) * float64(s) }

//go:noinline
func fib(n int) int {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}

//go:noinline
func grow(n int) int {
	var pad [256]byte
	if n == 0 {
		return 0
	}
	pad[n%256] = byte(n)
	return grow(n-1) + int(pad[n%256])
}

//go:noinline
func risky(n int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("recovered %v", r)
		}
	}()
	var a []int
	return fmt.Errorf("%d", a[n])
}

// The oracle looks at the thread that the program starts with.
func init() { runtime.LockOSThread() }

func main() {
	syscall.Getppid()
	runtime.UnlockOSThread()
	m := map[string]int{}
	for i := 0; i < 20; i++ {
		m[fmt.Sprintf("key%d", i%7)] += fib(i % 6)
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i] < keys[j] })
	var sum float64
	for _, s := range []shape{square(2), square(3)} {
		sum += s.area()
	}
	c := make(chan int)
	go func() {
		for i := 0; i < 4; i++ {
			c <- grow(30 * i)
		}
		close(c)
	}()
	n := grow(100)
	for v := range c {
		n += v
	}
	runtime.GC()
	fmt.Println(strings.Join(keys, ","), sum, n, risky(3))
}
