package variables

import (
	"encoding/binary"
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
	ret := f.walk[0].PC() - f.bias
	site, err := f.fns[len(f.fns)-1].CallSite(ret)
	if err != nil {
		return nil, err
	}
	if site == nil {
		return nil, symbols.ErrOptimizedOut
	}
	fn := callee.fns[len(callee.fns)-1]
	if fn.MayReenter() {
		return nil, symbols.ErrOptimizedOut
	}
	entry := fn.Entry() + callee.bias
	if target, ok := f.directTarget(); ok {
		sameFile := f.image == callee.image && !f.inPLT(target-f.bias)
		switch {
		case target == entry:
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

// directTarget returns the run-time address that the call instruction before
// the frame's return address calls, if it is one with a fixed target.
func (f *frame) directTarget() (uint64, bool) {
	ret := f.walk[0].PC()
	switch f.arch() {
	case procstate.AMD64, procstate.I386:
		var b [5]byte
		if f.image.ReadVaddr(b[:], ret-5-f.bias) != nil || b[0] != 0xe8 {
			return 0, false
		}
		to := ret + uint64(int64(int32(binary.LittleEndian.Uint32(b[1:]))))
		if f.arch() == procstate.I386 {
			to = uint64(uint32(to))
		}
		return to, true
	case procstate.ARM64:
		var b [4]byte
		if f.image.ReadVaddr(b[:], ret-4-f.bias) != nil {
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
