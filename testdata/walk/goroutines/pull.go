//go:build go1.23

package main

import "iter"

// pull waits for a coroutine that waits.
func pull(never chan int) {
	next, _ := iter.Pull(func(yield func(int) bool) { yield(1); <-never })
	next()
	next()
}
