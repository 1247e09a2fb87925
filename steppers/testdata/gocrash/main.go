// Command gocrash ends by a nil pointer, with the collector at work, so that
// the runtime prints its stacks and the kernel writes a core.
package main

import (
	"runtime"
	"runtime/debug"
)

type node struct{ l, r *node }

func build(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{build(depth - 1), build(depth - 1)}
}

var keep [2]*node

//go:noinline
func deep(n int) int {
	if n == 0 {
		var p *int
		return *p
	}
	return deep(n-1) + 1
}

func main() {
	debug.SetTraceback("crash")
	for i := range keep {
		go func() {
			for {
				keep[i] = build(10)
			}
		}()
	}
	for range 5 {
		runtime.GC()
	}
	println(deep(5))
}
