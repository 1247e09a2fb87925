package variables

import (
	"errors"
	"fmt"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// frame is what the expressions of one frame are evaluated with.
type frame struct {
	r     *Reader
	walk  []unwind.Frame // the frame's own is the first
	fns   []*symbols.Function
	image *procstate.Image
	bias  uint64
	steps int // that may still be done
	nest  int
}

func (f *frame) arch() *procstate.Arch { return f.r.w.Arch() }

func (f *frame) regs() *procstate.Regs { return &f.walk[0].Regs }

// vaddr is the link-time address at which the frame's variables are looked up.
func (f *frame) vaddr() uint64 { return f.walk[0].LookupPC() - f.bias }

// register returns the value of a register of DWARF's numbering.
func (f *frame) register(n uint64) (uint64, error) {
	if n < uint64(f.arch().NumRegs) {
		if v, ok := f.regs().Value(procstate.Reg(n)); ok {
			return v, nil
		}
	}
	return 0, ErrNotSaved
}

// registerBytes returns the bytes of a register, those for floating point
// and vectors included where the frame is the one that runs: calls do not
// preserve them.
func (f *frame) registerBytes(n uint64) ([]byte, error) {
	if n < uint64(f.arch().NumRegs) {
		v, err := f.register(n)
		return number{kind: unsigned, size: f.arch().AddressWidth, bits: v}.bytes(), err
	}
	s, ok := f.r.w.ProcessState().(procstate.FloatState)
	if !ok || !f.walk[0].IsTop() {
		return nil, ErrNotSaved
	}
	b, err := s.FloatRegister(f.walk[0].Thread, n)
	switch {
	case errors.Is(err, procstate.ErrDetached):
		return nil, ErrLate
	case err != nil:
		return nil, ErrNotSaved
	}
	return b, nil
}

// caller returns the frame of the caller, found anew where the walk does not
// go on.
func (f *frame) caller() (*frame, error) {
	c := *f
	if c.walk = f.walk[1:]; len(c.walk) == 0 {
		c.walk = make([]unwind.Frame, 1)
		in := f.walk[0]
		if v, err := f.r.w.Step(&in, &c.walk[0]); v != unwind.Success {
			if err == nil {
				err = symbols.ErrNoDebugInfo
			}
			return nil, err
		}
	}
	if err := c.locate(); err != nil {
		return nil, err
	}
	return &c, nil
}

// locate finds the image and functions of the frame.
func (f *frame) locate() error {
	lib, _, _ := f.r.w.Library(&f.walk[0])
	f.image, f.bias, f.fns = lib.Image, lib.Bias, nil
	if lib.Image == nil {
		return symbols.ErrNoDebugInfo
	}
	var err error
	f.fns, err = f.r.functionsAt(f.image, f.vaddr())
	return err
}

// cfa returns the canonical frame address.
func (f *frame) cfa() (uint64, error) {
	next := f.walk[1:]
	var found [1]unwind.Frame
	if len(next) == 0 {
		in := f.walk[0]
		v, err := f.r.w.Step(&in, &found[0])
		if err != nil {
			return 0, err
		}
		if v != unwind.Success {
			return 0, fmt.Errorf("the frame has no caller: %w", ErrNotSaved)
		}
		next = found[:]
	}
	if next[0].Flags&unwind.StackSwitched != 0 {
		return 0, fmt.Errorf("the caller is on another stack: %w", ErrNotSaved)
	}
	return next[0].SP(), nil
}

// frameBase returns the address that the function's frame base expression
// gives.
func (f *frame) frameBase() (uint64, error) {
	x, err := f.fns[len(f.fns)-1].FrameBase(f.vaddr())
	if err != nil {
		return 0, err
	}
	pieces, err := f.locations(x, nil)
	if err != nil {
		return 0, err
	}
	if len(pieces) == 1 {
		switch p := &pieces[0]; p.kind {
		case inMemory:
			return p.addr, nil
		case inRegister:
			return f.register(p.addr)
		}
	}
	return 0, fmt.Errorf("frame base: %w", symbols.ErrUnsupported)
}
