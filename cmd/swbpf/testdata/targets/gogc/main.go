// Command gogc allocates linked structures from several goroutines, so that
// the garbage collector is always at work, until the process has used SECONDS of
// CPU time. Usage: gogc SECONDS [ROUNDS]
package main

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

type node struct {
	left, right *node
	payload     [4]int
}

//go:noinline
func tree(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{left: tree(depth - 1), right: tree(depth - 1)}
}

//go:noinline
func count(n *node) int {
	if n == nil {
		return 0
	}
	return 1 + count(n.left) + count(n.right)
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
	seconds := 1.0
	if len(os.Args) > 1 {
		seconds, _ = strconv.ParseFloat(os.Args[1], 64)
	}
	rounds := math.MaxInt
	if len(os.Args) > 2 {
		rounds, _ = strconv.Atoi(os.Args[2])
	}
	end := time.Duration(seconds * float64(time.Second))
	keep := tree(16)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for n := 0; n < rounds && cpuTime() < end; n++ {
				if c := count(tree(12)); c != 1<<13-1 {
					panic(fmt.Sprintf("tree has %d nodes", c))
				}
			}
		})
	}
	wg.Wait()
	if count(keep) != 1<<17-1 {
		panic("kept tree has changed")
	}
}
