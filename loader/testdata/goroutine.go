// A Go program that burns CPU time in a goroutine, below a recursion of so many
// levels as its argument says, and keeps the garbage collector busy. It writes
// one byte when it is about to begin.
package main

import (
	"os"
	"strconv"
)

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
	depth, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	os.Stdout.Write([]byte("."))
	go spin(depth)
	for {
		keep = tree(16)
	}
}
