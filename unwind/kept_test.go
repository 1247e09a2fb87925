package unwind

import (
	"slices"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// What was read of a file is not taken for another's.
func TestWindowOfFiles(t *testing.T) {
	var w window
	a := testImage(t, procstate.AMD64, []byte("first file, "), 0, 0)
	b := testImage(t, procstate.AMD64, []byte("second file,"), 0, 0)
	for _, c := range []struct {
		img  *procstate.Image
		want string
	}{{a, "first"}, {b, "secon"}, {a, "first"}} {
		if got, ok := w.read(c.img, ehFrameAt, 5); !ok || string(got) != c.want {
			t.Errorf("%q, %t, want %q", got, ok, c.want)
		}
	}
	if _, ok := w.read(a, ehFrameAt+8, 5); ok {
		t.Error("more than the file has was read")
	}
}

// The Table that was used least recently is forgotten, but the one that has grown.
func TestTablesForgetTheOldest(t *testing.T) {
	ts := NewTablesWithBudget(100)
	var all []*Table
	for i := range 4 {
		tab := ts.For(&procstate.Image{Index: uint32(i)})
		tab.used.Store(30)
		tab.lastUse.Store([]uint64{2, 1, 3, 0}[i])
		all = append(all, tab)
	}
	ts.used.Store(120)
	left := func() (l []int64) {
		for _, tab := range all {
			l = append(l, tab.used.Load())
		}
		return l
	}
	ts.grow(all[3], 10)
	if got := left(); !slices.Equal(got, []int64{30, 0, 30, 30}) || ts.used.Load() != 100 {
		t.Errorf("left are %v, in all %d", got, ts.used.Load())
	}
	ts.grow(all[3], 1)
	if got := left(); !slices.Equal(got, []int64{0, 0, 30, 30}) {
		t.Errorf("left are %v", got)
	}
}

// Codes have an end.
func TestCodesAreBounded(t *testing.T) {
	var c Codes
	lines := []CodeLine{{CodeFunction: &CodeFunction{Name: "f"}, Line: 1}}
	for i := range uint32(maxCodes) {
		if n := c.Add(0, lines, 0); n != i+1 {
			t.Fatalf("%d is the number of code %d", n, i)
		}
	}
	if n := c.Add(0, lines, 0); n != 0 || c.Len() != maxCodes || len(c.Lines(maxCodes)) != 1 || c.Lines(maxCodes+1) != nil {
		t.Errorf("one more has number %d of %d", n, c.Len())
	}
	c.Reset()
	name := string(make([]byte, maxCodeNames/4+1))
	long := []CodeLine{{CodeFunction: &CodeFunction{Name: name}}}
	for i := range uint32(4) {
		if n := c.Add(0, long, 0); n != (i+1)%4 {
			t.Errorf("%d is the number of a function with a quarter of all names, behind %d of them", n, i)
		}
	}
	c.Reset()
	inlined := slices.Repeat(lines, maxCodeLines/4)
	for i := range uint32(5) {
		if n := c.Add(0, inlined, 0); n != (i+1)%5 {
			t.Errorf("%d is the number of a quarter of all lines, behind %d of them", n, i)
		}
	}
}

// What a number stands for has an end: a function, and what called it before.
func TestCodesEnd(t *testing.T) {
	var c Codes
	lines := []CodeLine{{CodeFunction: &CodeFunction{Name: "f"}}}
	if n := c.Add(0, append(lines, CodeLine{}), 0); n != 0 {
		t.Errorf("%d is the number of no function", n)
	}
	for _, outer := range []uint32{1, 2, 1<<32 - 1} {
		if n := c.Add(0, lines, outer); n != 0 {
			t.Errorf("%d is called by %d, which there is not", n, outer)
		}
	}
	if first := c.Add(0, lines, 0); c.Add(0, lines, first) != 2 || c.Outer(2) != first {
		t.Error("what was called by the first is not the second")
	}
}

// Children come in the order of how many walks go through them.
func TestCallTreeOrder(t *testing.T) {
	tree := NewCallTree(ByAddress)
	a := procstate.AMD64
	for _, pc := range []uint64{1, 2, 3, 2, 3, 3, 4} {
		tree.Add(Walk{Frames: []Frame{NewFrame(a, pc, 0, 0)}})
	}
	var got []uint64
	for _, n := range tree.Root().Children() {
		got = append(got, n.Frame.PC())
	}
	if !slices.Equal(got, []uint64{3, 2, 1, 4}) {
		t.Errorf("children %d", got)
	}
}
