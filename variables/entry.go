package variables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

// entryValue returns the value that a register had when the function was
// entered, if the caller knows what it passed.
func (f *frame) entryValue(x *symbols.Expression) (number, error) {
	o, next, err := x.Operation(0)
	if err != nil {
		return number{}, err
	}
	if o.Op != symbols.OpReg || next != len(x.Code) {
		return number{}, fmt.Errorf("value on entry: %w", symbols.ErrOptimizedOut)
	}
	return f.passed(func(p *symbols.CallParameter, _ *frame) bool {
		if p.Where == nil {
			return false
		}
		q, next, err := p.Where.Operation(0)
		return err == nil && q.Op == symbols.OpReg && q.A == o.A && next == len(p.Where.Code)
	})
}

// passed evaluates, in the caller's frame, the value of the parameter that is
// meant.
func (f *frame) passed(meant func(*symbols.CallParameter, *frame) bool) (number, error) {
	caller, err := f.caller()
	if err != nil {
		return number{}, fmt.Errorf("value on entry: %w", symbols.ErrOptimizedOut)
	}
	site, err := caller.callSite(f)
	if err != nil {
		return number{}, fmt.Errorf("value on entry: %w", err)
	}
	for i := range site.Parameters {
		p := &site.Parameters[i]
		if !meant(p, caller) {
			continue
		}
		caller.steps, caller.nest = f.steps, f.nest
		n, err := caller.value(p.Value)
		f.steps = caller.steps
		if errors.Is(err, errTooDeep) || errors.Is(err, errTooLong) { // a recursion, each value of which is of the next
			err = fmt.Errorf("value on entry: %w", symbols.ErrOptimizedOut)
		}
		return n, err
	}
	return number{}, fmt.Errorf("value on entry: %w", symbols.ErrOptimizedOut)
}

// callSite returns the call that f, the caller, is in, once it is sure that
// callee was entered by that very call and not by a jump at the end of the
// function that f called.
func (f *frame) callSite(callee *frame) (*symbols.CallSite, error) {
	if f.walk[0].NonCall() {
		return nil, symbols.ErrOptimizedOut
	}
	c := f.call()
	site := c.site
	switch {
	case c.err != nil:
		return nil, c.err
	case site == nil:
		return nil, symbols.ErrOptimizedOut
	}
	fn := callee.fns[len(callee.fns)-1]
	if fn.MayReenter() {
		return nil, symbols.ErrOptimizedOut
	}
	entry := fn.Entry() + callee.bias
	if c.direct {
		sameFile := f.image == callee.image && !c.plt
		switch {
		case c.target+f.bias == entry:
			return site, nil
		case !sameFile && fn.External() && site.Callee != "" && site.Callee == fn.SystemName:
			return site, nil
		}
		return nil, symbols.ErrOptimizedOut
	}
	if site.Target != nil {
		f.steps, f.nest = callee.steps, callee.nest
		if n, err := f.value(site.Target); err == nil && n.bits == entry {
			return site, nil
		}
	} else if fn.External() && site.Callee != "" && site.Callee == fn.SystemName {
		return site, nil // through a pointer that the linker fills in
	}
	return nil, symbols.ErrOptimizedOut
}

// call is what is known of a call wherever it is met: recursion returns to the
// same ones over and over.
type call struct {
	site *symbols.CallSite // nil where the debug information has none
	err  error

	direct bool   // the instruction has a fixed target
	target uint64 // its link-time address
	plt    bool   // target lies in a procedure linkage table
}

// call returns the call that f, the caller, is in. It is read once.
func (f *frame) call() *call {
	at := place{f.image, f.walk[0].PC() - f.bias}
	if c := f.r.calls[at]; c != nil {
		return c
	}
	if len(f.r.calls) >= maxPlaces {
		clear(f.r.calls)
	}
	c := &call{}
	c.site, c.err = f.fns[len(f.fns)-1].CallSite(at.vaddr)
	if c.target, c.direct = f.directTarget(at.vaddr); c.direct {
		c.plt = f.inPLT(c.target)
	}
	f.r.calls[at] = c
	return c
}

// directTarget returns the link-time address that the call instruction before a
// return address calls, if it is one with a fixed target.
func (f *frame) directTarget(ret uint64) (uint64, bool) {
	switch f.arch() {
	case procstate.AMD64, procstate.I386:
		var b [5]byte
		if f.image.ReadVaddr(b[:], ret-5) != nil || b[0] != 0xe8 {
			return 0, false
		}
		to := ret + uint64(int64(int32(binary.LittleEndian.Uint32(b[1:]))))
		if f.arch() == procstate.I386 {
			to = uint64(uint32(to))
		}
		return to, true
	case procstate.ARM64:
		var b [4]byte
		if f.image.ReadVaddr(b[:], ret-4) != nil {
			return 0, false
		}
		op := binary.LittleEndian.Uint32(b[:])
		if op>>26 != 0x25 { // BL
			return 0, false
		}
		return ret - 4 + uint64(int64(int32(op<<6))>>4), true
	}
	return 0, false
}

// inPLT reports whether a link-time address lies in a procedure linkage table.
func (f *frame) inPLT(vaddr uint64) bool {
	for _, name := range []string{".plt", ".plt.sec", ".plt.got"} {
		if s, ok := f.image.Section(name); ok && vaddr >= s.Vaddr && vaddr-s.Vaddr < s.Size {
			return true
		}
	}
	return false
}
