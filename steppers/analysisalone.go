package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/dataflow"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
)

// aloneCode is what an Analysis knows of the functions of a file that it has looked at each
// by itself: those that a symbol gives the size of, and those whose own code tells where it ends,
// as long as it leaves nothing open. They do not have to wait for the file to be looked
// through.
type aloneCode struct {
	functions *dataflow.Functions
	looked    []aloneFunction
	between   []mcode.Range       // what lies between functions that something tells of
	without   map[uint64]struct{} // addresses of which nothing was found
	left      uint64              // bytes of tables that may still be looked through
	tries     int                 // how often code between functions may still be
}

// aloneFunction is the code in a range by itself, nil where that does not suffice.
type aloneFunction struct {
	mcode.Range
	code *dataflow.Code
}

// Bounds on what is done for single functions of a file: bytes of its tables that are read,
// as many of those of a small file as maxAlone looks, and looks at code that nothing tells of, of a
// millisecond each or less, that find nothing.
const (
	maxAloneBytes = 256 << 20
	maxAlone      = 128
	maxAloneTries = 32
)

// at returns the code of the function at a link-time address if it can be looked at by itself,
// else nil.
func (f *aloneCode) at(im *procstate.Image, vaddr uint64) *dataflow.Code {
	for i := range f.looked {
		if fn := &f.looked[i]; fn.Holds(vaddr) {
			return fn.code
		}
	}
	if _, known := f.without[vaddr]; known {
		return nil
	}
	if f.functions == nil {
		f.functions = dataflow.NewFunctions(im)
		f.without = map[uint64]struct{}{}
		f.left, f.tries = maxAloneBytes, maxAloneTries
	}
	fn, ok := f.look(im, vaddr)
	if ok {
		f.looked = append(f.looked, fn)
	} else if len(f.without) < maxAlone {
		f.without[vaddr] = struct{}{}
	}
	return fn.code
}

// look looks for the function at a link-time address.
func (f *aloneCode) look(im *procstate.Image, vaddr uint64) (fn aloneFunction, ok bool) {
	near := mcode.Range{}
	for _, r := range f.between {
		if r.Holds(vaddr) {
			near = r
		}
	}
	if near.End == 0 {
		cost := max(tableBytes(im), maxAloneBytes/maxAlone)
		if f.left < cost {
			return fn, false
		}
		f.left -= cost
		lo, hi, alone := im.FunctionAround(vaddr)
		near = mcode.Range{Start: lo, End: hi}
		if alone {
			code, _ := f.functions.Function(lo, hi)
			return aloneFunction{near, code}, true
		}
		f.between = append(f.between, near)
	}
	if f.tries == 0 {
		return fn, false
	}
	code, lo, hi := f.functions.Around(near.Start, vaddr, near.End)
	if code == nil {
		f.tries--
	}
	return aloneFunction{mcode.Range{Start: lo, End: hi}, code}, code != nil && len(f.looked) < 2*maxAlone
}
