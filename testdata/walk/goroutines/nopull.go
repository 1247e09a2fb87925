//go:build !go1.23

package main

// pull only waits: there are no coroutines.
func pull(never chan int) { <-never }
