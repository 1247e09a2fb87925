// A goroutine that recurses as deep as it is told, and waits there.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
)

//go:noinline
func step(n int, deep, forever chan int) int {
	if n == 0 {
		deep <- 1
		return <-forever
	}
	return step(n-1, deep, forever) + n
}

func main() {
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	deep := make(chan int)
	go step(n, deep, make(chan int))
	<-deep
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
}
