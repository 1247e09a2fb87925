package jsc

import "encoding/binary"

// originAt returns the CodeOrigin of a call, by what the frame has of that.
func (vm *machine) originAt(c *code, site uint32) (origin uint64, ok bool) {
	var raw [poolSize + 4]byte
	if !isCell(c.pool) || !vm.ReadNow(c.pool, raw[:]) {
		return 0, false
	}
	le := binary.LittleEndian
	if site >= le.Uint32(raw[poolSize:]) {
		return 0, false
	}
	return vm.WordNow(le.Uint64(raw[poolAt:]) + 8*uint64(site))
}

// inlined returns the functions that a call is in, by its CodeOrigin, innermost first, without the one that
// they were inlined into. It reports false where something is not as it should be. As in stacks of the language's own,
// functions are not among them whose last act is the call of the next.
func (vm *machine) inlined(origin uint64) (functions []*function, ok bool) {
	le := binary.LittleEndian
	for isTail := false; ; {
		if origin&originNone != 0 {
			return nil, false
		}
		frame := origin & (maxAddress - 1) &^ originFlags
		if origin&originApart != 0 {
			if frame, ok = vm.WordNow(frame); !ok {
				return nil, false
			}
		}
		if frame == 0 {
			return functions, true
		}
		var raw [inlineBytes]byte
		if len(functions) >= maxInlined || !isCell(frame) || !vm.ReadNow(frame, raw[:]) {
			return nil, false
		}
		var block [blockBytes]byte
		cell := le.Uint64(raw[inlineBlock:])
		if vm.classOf(cell) != functionBlock || !vm.ReadNow(cell, block[:]) {
			return nil, false
		}
		f := vm.functionAt(le.Uint64(block[blockOwner:]), le.Uint64(block[blockUnlinked:]))
		if f == nil {
			return nil, false
		}
		if !isTail {
			functions = append(functions, f)
		}
		kind := callKind(raw[inlineKind+3] >> 4)
		isTail = kind == tailCall || kind == tailCallVarargs
		origin = le.Uint64(raw[inlineFrom:])
	}
}
