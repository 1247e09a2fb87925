package steppers

import "encoding/binary"

// originAt returns the CodeOrigin of a call, by what the frame has of that.
func (vm *jscVM) originAt(c *jscCode, site uint32) (origin uint64, ok bool) {
	var raw [jscPoolSize + 4]byte
	if !isJSCCell(c.pool) || !vm.readNow(c.pool, raw[:]) {
		return 0, false
	}
	le := binary.LittleEndian
	if site >= le.Uint32(raw[jscPoolSize:]) {
		return 0, false
	}
	return vm.wordNow(le.Uint64(raw[jscPoolAt:]) + 8*uint64(site))
}

// inlined returns the functions that a call is in, by its CodeOrigin, innermost first, without the one that
// they were inlined into. It reports false where something is not as it should be. As in stacks of the language's own,
// functions are not among them whose last act is the call of the next.
func (vm *jscVM) inlined(origin uint64) (functions []*jscFunction, ok bool) {
	le := binary.LittleEndian
	for isTail := false; ; {
		if origin&jscOriginNone != 0 {
			return nil, false
		}
		frame := origin & (maxJSCAddress - 1) &^ jscOriginFlags
		if origin&jscOriginApart != 0 {
			if frame, ok = vm.wordNow(frame); !ok {
				return nil, false
			}
		}
		if frame == 0 {
			return functions, true
		}
		var raw [jscInlineBytes]byte
		if len(functions) >= maxJSCInlined || !isJSCCell(frame) || !vm.readNow(frame, raw[:]) {
			return nil, false
		}
		var block [jscBlockBytes]byte
		cell := le.Uint64(raw[jscInlineBlock:])
		if vm.classOf(cell) != jscFunctionBlock || !vm.readNow(cell, block[:]) {
			return nil, false
		}
		f := vm.functionAt(le.Uint64(block[jscBlockOwner:]), le.Uint64(block[jscBlockUnlinked:]))
		if f == nil {
			return nil, false
		}
		if !isTail {
			functions = append(functions, f)
		}
		kind := jscCallKind(raw[jscInlineKind+3] >> 4)
		isTail = kind == jscTailCall || kind == jscTailCallVarargs
		origin = le.Uint64(raw[jscInlineFrom:])
	}
}
