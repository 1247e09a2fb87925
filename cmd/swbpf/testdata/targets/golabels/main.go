// Command golabels answers requests in two goroutines, which label each with its number and more (runtime/pprof), and
// collects garbage, until the process has used SECONDS of CPU time. Usage: golabels SECONDS
package main

import (
	"context"
	"os"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type node struct {
	next    *node
	payload [6]int
}

var keep [2]*node

//go:noinline
func work(worker int) {
	for range 2000 {
		var list *node
		for range 20 {
			list = &node{next: list}
		}
		keep[worker] = list
	}
}

//go:noinline
func even(worker int) { work(worker) }

//go:noinline
func odd(worker int) { work(worker) }

//go:noinline
func unlabelled(worker int) { work(worker) }

// cpuTime is what the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func main() {
	seconds, _ := strconv.ParseFloat(os.Args[1], 64)
	long := strings.Repeat("long ", 100)
	for n := range 3 { // which have one label in common
		labels := pprof.Labels("group", "waits", "number", strconv.Itoa(n))
		go pprof.Do(context.Background(), labels, func(context.Context) { select {} })
	}
	var wg sync.WaitGroup
	for worker := range keep {
		wg.Go(func() {
			for n := 0; cpuTime().Seconds() < seconds; n++ {
				f, name := even, "even"
				if n%2 == 1 {
					f, name = odd, "odd"
				}
				labels := pprof.Labels("function", name, "request", strconv.Itoa(n), "pid", "mine", "text", long, "empty", "")
				pprof.Do(context.Background(), labels, func(context.Context) { f(worker) })
				unlabelled(worker)
			}
		})
	}
	wg.Wait()
}
