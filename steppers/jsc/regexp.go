package jsc

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// regExpCode is code that was made of a regular expression.
type regExpCode struct {
	made    mcode.Range
	refers  uint64 // where the YarrCodeBlock refers to it
	serial  uint32
	checked time.Time
}

const (
	regExpBlock = 0x30  // of a RegExp: the YarrCodeBlock,
	regExpCodes = 0x100 // and bytes of that which refer to code: where it begins, and its memory

	// The RegExp whose code runs is in a register that this has saved or left alone, or in the frame that has called it: so
	// far from the frame pointer, or before that is set from SP.
	regExpBefore = 0x80
	regExpBehind = 0x180

	maxRegExps = 1 << 8
)

// noteRegExp notes that a frame runs code of a regular expression, if it does.
func (vm *machine) noteRegExp(w *unwind.Walker, f *unwind.Frame) {
	c := vm.regExpAt(w, f)
	if c == nil {
		return
	}
	f.Code = vm.codeOf(w.Codes(), regExp, nil, codePlace{serial: c.serial, start: c.made.Start}, true)
}

var regExp = &function{CodeFunction: unwind.CodeFunction{Name: "RegExp", SystemName: "RegExp", Runtime: vmread.JavaScript}}

// regExpAt returns the code of a regular expression that a frame runs, nil where it runs none that is found.
func (vm *machine) regExpAt(w *unwind.Walker, f *unwind.Frame) *regExpCode {
	pc, now := f.LookupPC(), time.Now()
	i := slices.IndexFunc(vm.regExps, func(c regExpCode) bool { return c.made.Holds(pc) })
	if i >= 0 {
		c := &vm.regExps[i]
		if vm.stands(c.checked, now) {
			return c
		}
		if made, ok := vm.regExpMade(c.refers, pc); ok && made == c.made {
			c.checked = now
			return c
		}
		vm.regExps = slices.Delete(vm.regExps, i, i+1)
	}
	for reg := range vm.arch.NumRegs {
		if vm.arch.CalleeSaved>>reg&1 == 0 {
			continue
		}
		if v, ok := f.Regs.Value(procstate.Reg(reg)); ok {
			if c := vm.regExpOf(v, pc); c != nil {
				return c
			}
		}
	}
	sp, fp := f.SP(), f.FP()
	for _, at := range [...]mcode.Range{{Start: max(sp, fp-regExpBefore), End: fp + regExpBehind}, {Start: sp, End: sp + regExpBehind}} {
		for addr := at.Start &^ 7; addr < at.End; addr += 8 {
			v, ok := w.ProcessState().ReadWord(addr)
			if !ok {
				break
			}
			if c := vm.regExpOf(v, pc); c != nil {
				return c
			}
		}
	}
	return nil
}

// regExpOf returns the code of a RegExp that a PC is in, nil where it is in none.
func (vm *machine) regExpOf(cell, pc uint64) *regExpCode {
	if vm.classOf(cell) != regExpCell {
		return nil
	}
	block, ok := vm.WordNow(cell + regExpBlock)
	if !ok || !isCell(block) {
		return nil
	}
	for off := uint64(0); off < regExpCodes; off += 8 {
		made, ok := vm.regExpMade(block+off, pc)
		if !ok {
			continue
		}
		if len(vm.regExps) >= maxRegExps {
			vm.regExps = vm.regExps[:0]
		}
		vm.serial++
		vm.regExps = append(vm.regExps, regExpCode{made: made, refers: block + off, serial: vm.serial, checked: time.Now()})
		return &vm.regExps[len(vm.regExps)-1]
	}
	return nil
}

// regExpMade returns the code that is referred to at an address, if a PC is in it.
func (vm *machine) regExpMade(refers, pc uint64) (made mcode.Range, ok bool) {
	var raw [16]byte
	if !vm.ReadNow(refers, raw[:]) {
		return made, false
	}
	start := binary.LittleEndian.Uint64(raw[:])
	if start > pc || !vm.made.Holds(start) {
		return made, false
	}
	made = vm.memoryAt(binary.LittleEndian.Uint64(raw[8:]), start)
	return made, made.Holds(pc)
}
