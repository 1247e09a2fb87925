package procstate

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// GoStacksOf returns what GoRuntimeOf does and, of a version of Go later than those known, what
// tells of the stacks, of which the code of the runtime confirms that it is laid out as in the
// last one known: the other fields are 0 then. The error is that of GoRuntimeOf.
func GoStacksOf(im *Image) (*GoRuntime, error) {
	rt, err := GoRuntimeOf(im)
	if err == nil || !errors.Is(err, ErrGoVersion) {
		return rt, err
	}
	c := &im.goRuntime
	c.stacksOnce.Do(func() { c.stacks = findLaterGoStacks(im) })
	if c.stacks == nil {
		return nil, err
	}
	return c.stacks, nil
}

// findLaterGoStacks finds the stacks of a later version than those known, nil where they
// cannot be confirmed.
func findLaterGoStacks(im *Image) *GoRuntime {
	last := &goLayouts[len(goLayouts)-1]
	version, err := goVersion(im)
	if err != nil {
		return nil
	}
	if minor, ok := goMinor(version); !ok || minor <= last.last {
		return nil
	}
	t, err := Pclntab(im)
	if err != nil {
		return nil
	}
	l := &last.layout
	rt := &GoRuntime{
		StackLo: l.StackLo, StackHi: l.StackHi, M: l.M,
		SchedSP: l.SchedSP, SchedPC: l.SchedPC, SchedLR: l.SchedLR, SchedBP: l.SchedBP,
		G0: l.G0, GSignal: l.GSignal, CurG: l.CurG,
	}
	if funcs := rt.find(im, t, version); !rt.confirmed(im, funcs) {
		return nil
	}
	return rt
}

// goSaveFunc is what systemstack calls to note where the goroutine is.
const goSaveFunc = "gosave_systemstack_switch"

// confirmed reports whether the code of systemstack and of what it calls has the instructions
// that use the fields of rt that tell of stacks, but for the bounds of a stack, which are the
// first words of g in all versions.
func (rt *GoRuntime) confirmed(im *Image, funcs map[string]uint64) bool {
	var systemstack, save [][]byte
	switch im.arch {
	case AMD64:
		systemstack = [][]byte{
			{0x48, 0x8b, 0x58, byte(rt.M)},                                      // mov M(%rax),%rbx
			{0x48, 0x3b, 0x43, byte(rt.GSignal)},                                // cmp GSignal(%rbx),%rax
			{0x48, 0x8b, 0x13},                                                  // mov (%rbx),%rdx
			binary.LittleEndian.AppendUint32([]byte{0x48, 0x3b, 0x83}, rt.CurG), // cmp CurG(%rbx),%rax
			{0x48, 0x8b, 0x62, byte(rt.SchedSP)},                                // mov SchedSP(%rdx),%rsp
		}
		save = [][]byte{
			{0x4d, 0x89, 0x4e, byte(rt.SchedPC)}, // mov %r9,SchedPC(%r14)
			{0x4d, 0x89, 0x4e, byte(rt.SchedSP)}, // mov %r9,SchedSP(%r14)
			{0x49, 0x89, 0x6e, byte(rt.SchedBP)}, // mov %rbp,SchedBP(%r14)
		}
	case ARM64:
		access := func(op, value, base, offset uint32) []byte {
			return binary.LittleEndian.AppendUint32(nil, op|offset/8<<10|base<<5|value)
		}
		const ldr, str, g, zero = 0xf9400000, 0xf9000000, 28, 31
		systemstack = [][]byte{access(ldr, 4, g, rt.M), access(ldr, 5, 4, rt.GSignal), access(ldr, 5, 4, rt.G0), access(ldr, 6, 4, rt.CurG)}
		save = [][]byte{access(str, 0, g, rt.SchedPC), access(str, 0, g, rt.SchedSP), access(str, 29, g, rt.SchedBP), access(str, zero, g, rt.SchedLR)}
	}
	return hasInstructions(im, funcs["runtime.systemstack"], systemstack) && hasInstructions(im, funcs[goSaveFunc], save)
}

// hasInstructions reports whether the code near the entry of a function has instructions in an
// order, with others between. Without an entry, 0, it has none.
func hasInstructions(im *Image, entry uint64, instructions [][]byte) bool {
	var buf [160]byte
	if entry == 0 || len(instructions) == 0 || im.ReadVaddr(buf[:], entry) != nil {
		return false
	}
	code := buf[:]
	for _, in := range instructions {
		at := bytes.Index(code, in)
		if at < 0 {
			return false
		}
		code = code[at+len(in):]
	}
	return true
}
