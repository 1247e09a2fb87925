// Command goswitches changes from one stack to another without an end: it
// starts goroutines, waits for them, and grows their stacks. It writes a byte
// first.
package main

import "os"

//go:noinline
func grow(n int) int {
	var pad [256]byte
	if n == 0 {
		return 0
	}
	pad[n%256] = byte(n)
	return grow(n-1) + int(pad[n%256])
}

func main() {
	os.Stdout.Write([]byte{'.'})
	c := make(chan int)
	for n := 0; ; n++ {
		go func() { c <- grow(n % 100) }()
		<-c
	}
}
