// Command go allocates on several goroutines, so that the collector works all
// the time, on its own goroutines and on those that allocate.
package main

import (
	"fmt"
	"time"
)

type node struct{ l, r *node }

func build(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{build(depth - 1), build(depth - 1)}
}

// grow needs a new stack again and again.
func grow(n int) (sum int) {
	var buf [512]byte
	buf[n%len(buf)] = 1
	if n > 0 {
		sum = grow(n - 1)
	}
	return sum + int(buf[n%7])
}

var keep [4]*node

func work(i int) {
	for n := 0; ; n++ {
		keep[i] = build(12)
		done := make(chan int)
		go func() { done <- grow(100) }()
		<-done
		_ = fmt.Sprint(time.Now(), n)
	}
}

func main() {
	for i := range 3 {
		go work(i)
	}
	work(3)
}
