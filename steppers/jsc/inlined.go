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

// call is where a function has called the next.
type call struct {
	function         *function
	global, unlinked uint64     // its global object and UnlinkedCodeBlock
	at               bytecodeAt // in that
}

// Bits of places in bytecode that tell how far an instruction has come.
const progressBits = 2

// inlined returns the calls that another is in, by its CodeOrigin, innermost first, and where the function that
// they were inlined into has called. It reports false where something is not as it should be. As in stacks of the language's own,
// functions are not among them whose last act is the call of the next.
func (vm *machine) inlined(origin uint64) (calls []call, outer bytecodeAt, ok bool) {
	le := binary.LittleEndian
	for isTail := false; ; {
		if origin&originNone != 0 {
			return nil, 0, false
		}
		frame := origin & (maxAddress - 1) &^ originFlags
		at := bytecodeAt(origin>>48>>progressBits) + 1
		if origin&originApart != 0 {
			var apart [originApartBytes]byte
			if !vm.ReadNow(frame, apart[:]) {
				return nil, 0, false
			}
			frame, at = le.Uint64(apart[:]), bytecodeAt(le.Uint32(apart[8:])>>progressBits)+1
		}
		if frame == 0 {
			if isTail || origin == 0 {
				at = 0
			}
			return calls, at, true
		}
		var raw [inlineBytes]byte
		if len(calls) >= maxInlined || !isCell(frame) || !vm.ReadNow(frame, raw[:]) {
			return nil, 0, false
		}
		var block [blockBytes]byte
		cell := le.Uint64(raw[inlineBlock:])
		if vm.classOf(cell) != functionBlock || !vm.ReadNow(cell, block[:]) {
			return nil, 0, false
		}
		unlinked := le.Uint64(block[blockUnlinked:])
		f := vm.functionAt(le.Uint64(block[blockOwner:]), unlinked)
		if f == nil {
			return nil, 0, false
		}
		if !isTail {
			calls = append(calls, call{f, le.Uint64(block[blockGlobal:]), unlinked, at})
		}
		kind := callKind(raw[inlineKind+3] >> 4)
		isTail = kind == tailCall || kind == tailCallVarargs
		origin = le.Uint64(raw[inlineFrom:])
	}
}
