// A Go program that burns CPU time in a goroutine and keeps the garbage
// collector busy. It writes one byte when it is about to begin.
package main

import "os"

type node struct{ left, right *node }

func tree(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{tree(depth - 1), tree(depth - 1)}
}

//go:noinline
func spin(depth int) (n int) {
	if depth > 0 {
		return spin(depth-1) + 1
	}
	for {
		n++
	}
}

var keep *node

func main() {
	os.Stdout.Write([]byte("."))
	go spin(50)
	for {
		keep = tree(16)
	}
}
