// Command gohello is a small Go program whose .debug_frame the tests compare.
package main

import "fmt"

func main() { fmt.Println("hello") }
