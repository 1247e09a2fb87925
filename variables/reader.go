package variables

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// Errors of reading a variable, besides those of package symbols and
// procstate.ErrUnreadable.
var (
	ErrNotVariable = errors.New("not a variable of the frame's function")
	ErrShortBuffer = errors.New("the value does not fit into the buffer")
	ErrNotSaved    = errors.New("not saved")
	ErrSynthetic   = errors.New("a pointer to something that has no address")
	ErrLate        = errors.New("not read in time")
)

// Reader reads the variables of the frames of one Walker.
type Reader struct {
	w     *unwind.Walker
	s     *symbols.Symbolizer
	ctx   context.Context
	known map[place]functions
	calls map[place]*call             // by the address that they return to
	types map[*procstate.Image]uint64 // of Go programs: see goTypes
	left  int                         // bytes that may still be read
}

// place is a link-time address of a file.
type place struct {
	image *procstate.Image
	vaddr uint64
}

type functions struct {
	list []*symbols.Function
	err  error
}

// New makes a Reader of the frames of w, with the debug information that s
// finds.
func New(w *unwind.Walker, s *symbols.Symbolizer) *Reader {
	return &Reader{w: w, s: s, ctx: context.Background(), known: make(map[place]functions), calls: make(map[place]*call), types: make(map[*procstate.Image]uint64), left: math.MaxInt}
}

// Until makes reading end with a context: what is asked for when it is done is
// ErrLate. So a process need not stand still for longer than it may, whatever
// its variables and its debug information are.
func (r *Reader) Until(ctx context.Context) { r.ctx = ctx }

// late returns ErrLate when the time for reading is over.
func (r *Reader) late() error {
	if r.ctx.Err() != nil {
		return ErrLate
	}
	return nil
}

// Functions returns the functions that a frame is in: calls inlined there,
// innermost first, then the function that has the code; each with the
// variables in scope. The error wraps symbols.ErrNoDebugInfo where nothing is
// known.
func (r *Reader) Functions(f *unwind.Frame) ([]*symbols.Function, error) {
	if r.w == nil || r.s == nil {
		return nil, symbols.ErrNoDebugInfo
	}
	fr := frame{r: r, walk: []unwind.Frame{*f}}
	if err := fr.locate(); err != nil {
		return nil, err
	}
	return fr.fns, nil
}

// maxPlaces bounds the addresses that are remembered, of code and of calls.
const maxPlaces = 1 << 14

func (r *Reader) functionsAt(im *procstate.Image, vaddr uint64) ([]*symbols.Function, error) {
	if err := r.late(); err != nil {
		return nil, err
	}
	at := place{im, vaddr}
	if f, ok := r.known[at]; ok {
		return f.list, f.err
	}
	if len(r.known) >= maxPlaces {
		clear(r.known)
	}
	list, err := r.s.Functions(im, vaddr)
	if err == nil && len(list) == 0 {
		err = symbols.ErrNoDebugInfo
	}
	r.known[at] = functions{list, err}
	return list, err
}

// Value returns the value of a variable in frame i of a walk. What lies in
// memory is read when the Value is asked for it, so it is true as long as the
// process stands where it stood when it was walked. The errors are
// ErrNotVariable, ErrLate, symbols.ErrOutOfScope, symbols.ErrOptimizedOut, ErrNotSaved,
// symbols.ErrUnsupported, procstate.ErrUnreadable, with context.
func (r *Reader) Value(walk []unwind.Frame, i int, v *symbols.Variable) (*Value, error) {
	if i < 0 || i >= len(walk) || v == nil || v.Function() == nil {
		return nil, ErrNotVariable
	}
	f := &frame{r: r, walk: walk[i:], steps: maxSteps}
	if err := f.locate(); err != nil {
		return nil, err
	}
	if !f.fns[len(f.fns)-1].Same(v.Function().Physical()) {
		return nil, ErrNotVariable
	}
	x, err := v.Location(f.vaddr())
	if err != nil {
		return nil, err
	}
	return f.object(v.Type(), x)
}

// object makes the Value of a type at what an expression describes.
func (f *frame) object(t *symbols.Type, x *symbols.Expression) (*Value, error) {
	pieces, err := f.locations(x, nil)
	if err != nil {
		return nil, err
	}
	v := &Value{Type: t, f: f}
	v.size, v.sized = f.sizeOf(t)
	if p := &pieces[0]; len(pieces) == 1 && p.bits == 0 && p.kind == inMemory {
		v.memory, v.addr = true, p.addr
		return v, nil
	}
	if !v.sized || v.size > maxPieces {
		return nil, fmt.Errorf("%s in pieces: %w", t, symbols.ErrUnsupported)
	}
	v.assemble(pieces)
	return v, nil
}

// maxPieces bounds a value that is put together of pieces, in bytes.
const maxPieces = 1 << 16

// sizeOf returns the size of a type, that of an array with bounds that the
// program computes included.
func (f *frame) sizeOf(t *symbols.Type) (uint64, bool) {
	if n, ok := t.Size(); ok {
		return n, true
	}
	if t = t.Strip(); t.Kind != symbols.KindArray || f.nest >= maxNest {
		return 0, false
	}
	f.nest++ // an array of a damaged file can hold itself, or its own bound
	defer func() { f.nest-- }()
	n, ok := f.sizeOf(t.Elem())
	for _, d := range t.Dimensions() {
		count := f.count(&d)
		if !ok || count < 0 || count > 0 && n > maxArray/uint64(count) {
			return 0, false
		}
		n *= uint64(count)
	}
	return n, ok
}

// maxArray bounds the size of an array, in bytes.
const maxArray = 1 << 47

// count returns the number of elements of a dimension; -1 when not known.
func (f *frame) count(d *symbols.Dimension) int64 {
	x := d.Upper
	if d.Count >= 0 {
		return d.Count
	}
	if f.steps--; f.steps < 0 {
		return -1
	}
	switch {
	case d.Bound != nil:
		at, typ, err := d.Bound.Bound(f.vaddr())
		if err != nil {
			return -1
		}
		v, err := f.object(typ, at)
		if err != nil || !v.sized || v.size > 8 {
			return -1
		}
		b, why := v.bytes(0, int(v.size))
		if why != nil {
			return -1
		}
		return int64(decode(signed, b).bits) - d.Lower + 1
	case x != nil:
		n, err := f.value(x)
		if err != nil || n.kind == opaque || n.kind == float {
			return -1
		}
		return n.signedBits() - d.Lower + 1
	}
	return -1
}

// read reads memory of the process.
func (r *Reader) read(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := r.late(); err != nil {
		return err
	}
	if r.left -= len(b) + readCost; r.left <= 0 {
		return errTooMuch
	}
	n, err := r.w.ProcessState().ReadMemory(addr, b)
	if errors.Is(err, procstate.ErrDetached) {
		return ErrLate
	}
	if n < len(b) {
		if err == nil {
			err = procstate.ErrUnreadable
		}
		return &memoryError{addr, err}
	}
	return nil
}

// memoryError tells that memory cannot be read.
type memoryError struct {
	addr uint64
	err  error
}

func (e *memoryError) Error() string {
	return fmt.Sprintf("cannot access memory at address %#x", e.addr)
}
func (e *memoryError) Unwrap() error { return e.err }
