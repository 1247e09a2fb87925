//go:build ignore

// Frames full of variables of Go's types, standing still in read(). It prints
// what they are.
package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

type point struct {
	X, Y int32
}

type record struct {
	Name string
	At   point
	Tags []string
	Next *record
}

type loop []loop

type box struct{ p *point }

type shape interface{ Area() float64 }

func (p point) Area() float64 { return float64(p.X) * float64(p.Y) }

type number interface{ ~int | ~float64 }

//go:noinline
func stand(why string) int {
	var b [1]byte
	fmt.Println("ready")
	n, _ := syscall.Read(0, b[:])
	return n + len(why)
}

//go:noinline
func show(name string, format string, v any) { fmt.Printf("%s\t"+format+"\n", name, v) }

//go:noinline
func sum[T number](values []T, extra T) T {
	total := extra
	for _, v := range values {
		total += v
	}
	show("total", "%v", total)
	show("extra", "%v", extra)
	if stand("generic") < 0 {
		return extra
	}
	return total + extra
}

//go:noinline
func scalars(i int, u uint8, f32 float32, f64 float64, yes bool, r rune, s string, e error) int {
	small := int16(-7)
	var big uint64 = 1<<63 + 1
	c := complex(1.5, -2)
	name := "a \"quoted\" string\n"
	numbers := []int{3, 1, 4, 1, 5}
	var none []string
	array := [3]uint16{1, 2, 3}
	p := point{int32(i), 9}
	ptr := &p
	var sh shape = p
	var empty any
	var any5 any = 5
	m := map[string]int{"one": 1}
	var noMap map[string]int
	squares := map[int]point{}
	for i := 0; i < 1500; i++ {
		squares[i] = point{int32(i), int32(i) * int32(i)}
	}
	for i := 1000; i < 1500; i++ {
		delete(squares, i)
	}
	queue := make(chan string, 3)
	queue <- "first"
	fn := func(x int) int { return x + i }
	rec := record{Name: "rec", At: p, Tags: []string{"x", "y"}}
	rec.Next = &rec
	var anyMap any = m
	var anyBox any = box{ptr}
	var anyRec any = &rec
	var anyNil any = (*record)(nil)
	list := []any{1, nil, ptr}
	wrapped := fmt.Errorf("wrapped: %w", e)
	failures := []error{e, wrapped}
	cycle := make(loop, 3)
	cycle[0], cycle[2] = cycle, cycle
	show("i", "%v", i)
	show("u", "%v", u)
	show("f32", "%v", f32)
	show("f64", "%v", f64)
	show("yes", "%v", yes)
	show("r", "%v", r)
	show("s", "%q", s)
	show("small", "%v", small)
	show("big", "%v", big)
	show("name", "%q", name)
	show("ptr", "%p", ptr)
	n := sum(numbers, 100)
	show("n", "%v", n)
	_, _, _, _ = none, array, sh, empty
	keep(none, array, p, ptr, sh, empty, any5, m, noMap, squares, queue, fn, rec, c, e, anyMap, anyBox, anyRec, anyNil, list, cycle, wrapped, failures)
	return n + int(small) + int(big) + len(name)
}

//go:noinline
func keep(v ...any) { fmt.Fprint(os.Stderr, len(v)) }

func main() {
	n := scalars(42, 200, 0.1, 2.5, true, 'x', "hello", errors.New("an error"))
	fmt.Fprintln(os.Stderr, n)
}
