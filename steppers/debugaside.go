package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// OCaml's compiler puts calls that are seldom made behind the code of a function, those of
// the garbage collector and of what raises the exception for an index out of bounds:
//
//	    jb   1f                  two words below where the function ends, within a try
//	2:  ...
//	    ret
//	1:  call caml_call_gc
//	    jmp  2b
//	3:  call caml_ml_array_bound_error
//
// They have the row of the function's end, though what is on the stack is that of
// where they are jumped from: within a try the row leads to the address of its handler.

// maxAside bounds the bytes of a function that are looked through for what jumps to a call.
const maxAside = 64 << 10

// maxAsideRules bounds the rules of where one call is jumped to from.
const maxAsideRules = 4

const (
	callLen     = 5 // of a direct call
	longJumpLen = 5
	jumpLen     = 2
)

// likeOCaml reports whether a rule may be one of OCaml's functions on x86-64: it has the CFA at
// a distance from SP, and no registers, as none are preserved by calls.
func likeOCaml(a *procstate.Arch, r *unwind.Rule) bool {
	reg, _, plain := r.CFA()
	return a == procstate.AMD64 && plain && reg == a.SP && r.SavesNone()
}

// mayBeAside reports whether there may be such a call at a link-time address where a frame was
// interrupted, or right before it, or one that a frame is in: one that goes on with a jump, or
// that nothing goes straight on to as it stands behind a jump, a return or a call.
func (d *Debug) mayBeAside(im *procstate.Image, vaddr uint64, interrupted bool) bool {
	const before = longJumpLen
	at := vaddr
	if !interrupted {
		at -= callLen - 1
	}
	var code = d.code[:before+callLen+1]
	if im.ReadVaddr(code, at-before) != nil {
		return true
	}
	if first := code[before]; first != 0xe8 {
		return interrupted && (first == 0xe9 || first == 0xeb)
	}
	next := code[before+callLen]
	return next == 0xe9 || next == 0xeb ||
		code[before-longJumpLen] == 0xe9 || code[before-callLen] == 0xe8 || code[before-jumpLen] == 0xeb || code[before-1] == 0xc3
}

// isAside reports whether the rule r for vaddr is not that of where is jumped to it from, or
// from it.
func (d *Debug) isAside(im *procstate.Image, vaddr uint64, r *unwind.Rule, interrupted bool) bool {
	if !likeOCaml(im.Arch(), r) || !d.mayBeAside(im, vaddr, interrupted) {
		return false
	}
	var rules [maxAsideRules]*unwind.Rule
	return d.asideRules(im, vaddr, r, interrupted, &rules) > 0
}

// asideRules finds the rules that jumps to the call at vaddr, or the jump behind it, have where
// they have another than r. It returns how many.
func (d *Debug) asideRules(im *procstate.Image, vaddr uint64, r *unwind.Rule, interrupted bool, rules *[maxAsideRules]*unwind.Rule) (n int) {
	at := vaddr
	if !interrupted {
		at -= callLen - 1
	}
	add := func(vaddr uint64) {
		_, bytes, _ := r.CFA()
		other := d.rule(im, vaddr)
		_, there, _ := other.CFA()
		if !likeOCaml(im.Arch(), other) || there == bytes || n == len(rules) {
			return
		}
		for _, known := range rules[:n] {
			if known == other {
				return
			}
		}
		rules[n] = other
		n++
	}
	var first, next isa.Inst
	if !d.instruction(im, at, &first) {
		return 0
	}
	jump := &first
	if first.Flow == isa.Call && first.Len == callLen {
		ends := !d.tables.For(im).Look(at+callLen-1, 0).Inside || !d.instruction(im, at+callLen, &next)
		if ends || next.Flow == isa.Call && next.Target == first.Target {
			d.jumpsTo(im, at, add)
			return n
		}
		jump = &next
	}
	if jump.Flow == isa.Jump {
		add(jump.Target)
	}
	return n
}

// instruction decodes the instruction at a link-time address.
func (d *Debug) instruction(im *procstate.Image, vaddr uint64, in *isa.Inst) bool {
	code := d.instructionAt(im, vaddr) // a call or a jump is no longer
	return code != nil && mcode.Decode(im.Arch(), code, vaddr, in)
}

// jumpsTo tells found of each jump to a link-time address from the code of its function before
// it.
func (d *Debug) jumpsTo(im *procstate.Image, to uint64, found func(vaddr uint64)) {
	start, _, ok := d.tables.For(im).FunctionAt(to)
	if !ok || to-start > maxAside {
		return
	}
	d.pathCode = append(d.pathCode[:0], make([]byte, to-start)...)
	if im.ReadVaddr(d.pathCode, start) != nil {
		return
	}
	var in isa.Inst
	for code, at := d.pathCode, start; len(code) > 0 && mcode.Decode(im.Arch(), code, at, &in) && int(in.Len) <= len(code); {
		if (in.Flow == isa.CondJump || in.Flow == isa.Jump) && in.Target == to {
			found(at)
		}
		code, at = code[in.Len:], at+uint64(in.Len)
	}
}

// leaveAside sets out, the caller that the rule r has for in, to the one that is behind a call
// by that or by one of the rules of jumps. It returns false where not just one is.
func (d *Debug) leaveAside(w *unwind.Walker, im *procstate.Image, vaddr uint64, r *unwind.Rule, in, out *unwind.Frame) bool {
	var rules [maxAsideRules]*unwind.Rule
	n := d.asideRules(im, vaddr, r, in.Flags&unwind.Interrupted != 0, &rules)
	called := 0
	if behindCall(w, d.buf[:], out.PC()) {
		called++
	}
	for _, other := range rules[:n] {
		var f unwind.Frame
		if v, _ := other.CallerFrame(w, in, &f); v == unwind.Success && behindCall(w, d.buf[:], f.PC()) {
			*out = f
			called++
		}
	}
	return called == 1
}
