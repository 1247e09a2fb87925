// Gorace calls the race detector again and again, with stacks of 50 KB, most of which are
// deeper than where the goroutine was when it last waited.
package main

import (
	"os"
	"time"
)

var (
	shared []*int
	sum    int
)

//go:noinline
func down(n int, f func()) {
	var room [64]int
	room[n%len(room)] = n
	if n == 0 {
		f()
	} else {
		down(n-1, f)
	}
	sum += room[(n+1)%len(room)]
}

func wait() { time.Sleep(time.Millisecond) }

func compute() {
	for i := range 20000 {
		shared = append(shared[:1:1], new(i))
	}
}

func new(i int) *int { return &i }

func run() {
	shared = make([]*int, 1)
	for {
		down(3, wait)
		down(80, compute)
	}
}

func main() {
	os.Stdout.Write([]byte{'\n'})
	go run()
	time.Sleep(time.Hour)
}
