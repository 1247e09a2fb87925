package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/dataflow"
	"github.com/swbpf/swbpf/unwind"
)

// C code that Go's own linker has put into a program, as the race detector's, has lost
// its unwind tables on the way. The function table has its place and names. A Go function
// that calls it on another stack keeps SP in a register that C preserves, so that a walk by
// frame pointers, which knows of no other register, would end there: the data flow of
// the code tells where it saves them.

// goLinkedCode is the C code that surrounds the first function that was met of it.
type goLinkedCode struct {
	start, end uint64 // link-time addresses
	code       *dataflow.Code
	looked     bool // code is known
}

// maxLinkedC bounds what is looked through of it, which takes 100 ms. The race detector has
// 220 KB.
const maxLinkedC = 1 << 20

// linkedC walks from C that Go's linker has put in.
func (f *goFrame) linkedC() (unwind.Verdict, error) {
	vaddr := f.in.LookupPC() - f.m.Bias
	im := f.s.image(f.m.Image)
	c := &im.c
	if !c.looked {
		c.looked = true
		c.find(f.m.Image, im.table, vaddr)
	}
	if c.code == nil || vaddr-c.start >= c.end-c.start {
		return unwind.NotMe, nil
	}
	return f.s.linked.callerIn(f.w, c.code, f.m, f.in, f.out)
}

// find looks through the functions around a link-time address of which the table does not
// tell the height of the stack.
func (c *goLinkedCode) find(im *procstate.Image, t *procstate.GoTable, vaddr uint64) {
	first, end := t.FuncsAround(vaddr, func(f *procstate.GoFunc) bool { return !f.HasSPDeltas() })
	var starts []uint64
	for i := first; i < end; i++ {
		if f, ok := t.At(i); ok {
			starts = append(starts, f.Entry)
			c.end = f.End
		}
	}
	if len(starts) == 0 || c.end-starts[0] > maxLinkedC {
		return
	}
	c.start = starts[0]
	c.code, _ = dataflow.NewStarts(im, starts, c.end)
}
