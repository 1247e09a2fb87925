// Command goleaves has goroutines leave where they are without the scheduler, again and again: for
// another that is a coroutine, or for where a panic is recovered. It writes a byte first.
package main

import (
	"iter"
	"os"
)

func recovered(n int) {
	defer func() { recover() }()
	panic(n)
}

func main() {
	os.Stdout.Write([]byte{'.'})
	next, _ := iter.Pull(func(yield func(int) bool) {
		for yield(1) {
		}
	})
	for {
		next()
		recovered(1)
	}
}
