// Library golibrary is called by C, from several threads, and calls C.
package main

/*
typedef long (*function)(long);
static long call(function f, long n) { return f(n); }
*/
import "C"

//go:noinline
func grow(n int) int {
	var pad [256]byte
	if n == 0 {
		return 0
	}
	pad[n%256] = byte(n)
	return grow(n-1) + int(pad[n%256])
}

//export GoWork
func GoWork(n C.long, f C.function) C.long {
	c := make(chan int)
	go func() { c <- grow(int(n) % 60) }()
	sum := <-c
	for range 50 {
		sum += grow(30)
	}
	return C.long(sum) + C.call(f, n)
}

func main() {}
