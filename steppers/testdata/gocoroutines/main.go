// Command gocoroutines changes from one goroutine to another without the scheduler, again and again.
package main

import (
	"iter"
	"os"
)

func main() {
	os.Stdout.Write([]byte("x"))
	next, _ := iter.Pull(func(yield func(int) bool) {
		for yield(1) {
		}
	})
	for {
		next()
	}
}
