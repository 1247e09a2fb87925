package steppers

import (
	"debug/elf"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// CRuby keeps the names of all Symbols in an Array of Arrays, which have of each a String and the
// Symbol (symbol.c). Where that is only its code tells; that it is the right one is told by each
// Symbol in it, which is made of its number.

const (
	rubySymbolsEach = 512 // Symbols of an Array in the Array
	rubyLastToken   = 256 // is more than the numbers of operators, and less than all others
	rubyNumberShift = 4   // of those

	rubySymbolMark, rubySymbolShift    = 0x0c, 8 // of a Symbol that is no object
	rubySymbolName, rubySymbolNumber   = 24, 32  // of one that is
	rubySymbolBytes                    = 40
	rubySymbolsCode, rubySymbolsBehind = 256, 16 // bytes of code that are looked at; where in what these refer to the Array may be
)

// findRubySymbols returns the link-time addresses of variables that may lead to the Array.
func findRubySymbols(im *procstate.Image) (candidates []uint64) {
	const firstCode = 64
	sym, ok := im.ExportedSymbol("rb_id2str")
	if !ok {
		return nil
	}
	starts := []uint64{sym.Value}
	var code [rubySymbolsCode]byte
	var in isa.Inst
	if im.ReadVaddr(code[:], sym.Value) != nil {
		return nil
	}
	for n := uint64(0); n < firstCode && decode(im.Arch(), code[n:], sym.Value+n, &in) && in.Len > 0; n += uint64(in.Len) {
		if (in.Flow == isa.Jump || in.Flow == isa.Call) && in.Target != 0 {
			starts = append(starts, in.Target)
			break
		}
	}
	for _, start := range starts {
		if im.ReadVaddr(code[:], start) != nil {
			continue
		}
		for n := 1; n+4 <= len(code); n++ {
			to := start + uint64(n) + 4 + uint64(int64(int32(binary.LittleEndian.Uint32(code[n:]))))
			if to%8 == 0 && isRubyVariable(im, to) {
				candidates = append(candidates, to, to+rubySymbolsBehind)
			}
		}
	}
	return candidates
}

// isRubyVariable reports whether a link-time address is one of data that may be written.
func isRubyVariable(im *procstate.Image, vaddr uint64) bool {
	for _, seg := range im.Segments() {
		if seg.Flags&elf.PF_W != 0 && vaddr-seg.Vaddr < seg.Memsz {
			return true
		}
	}
	return false
}

// symbol returns the name with a number.
func (vm *rubyVM) symbol(number uint64) (name string, ok bool) {
	if vm.symbols != 0 {
		return vm.symbolIn(vm.symbols, number)
	}
	for _, at := range vm.image.symbols {
		if name, ok = vm.symbolIn(at+vm.bias, number); ok {
			vm.symbols = at + vm.bias
			return name, true
		}
	}
	return "", false
}

// symbolIn returns the name with a number, in the Array that a variable leads to.
func (vm *rubyVM) symbolIn(variable, number uint64) (name string, ok bool) {
	serial := number
	if number > rubyLastToken {
		serial = number >> rubyNumberShift
	}
	arrays, _ := vm.wordNow(variable)
	array, ok := vm.element(arrays, serial/rubySymbolsEach)
	if !ok {
		return "", false
	}
	text, _ := vm.element(array, serial%rubySymbolsEach*2)
	symbol, ok := vm.element(array, serial%rubySymbolsEach*2+1)
	if !ok || symbol != number<<rubySymbolShift|rubySymbolMark && !vm.isSymbol(symbol, text, number) {
		return "", false
	}
	return vm.text(text)
}

// isSymbol reports whether an object is the Symbol of a name and number.
func (vm *rubyVM) isSymbol(object, text, number uint64) bool {
	var b [rubySymbolBytes]byte
	le := binary.LittleEndian
	return object != 0 && object%8 == 0 && vm.readNow(object, b[:]) && le.Uint64(b[:])&rubyTypeBits == rubyIsSymbol &&
		le.Uint64(b[rubySymbolName:]) == text && le.Uint64(b[rubySymbolNumber:]) == number
}

// element returns an element of an Array.
func (vm *rubyVM) element(array, i uint64) (object uint64, ok bool) {
	const length, pointer, inside, lengthShift, lengthBits = 16, 32, 16, 15, 0x7f
	var head [40]byte
	le := binary.LittleEndian
	if array == 0 || array%8 != 0 || !vm.readNow(array, head[:]) {
		return 0, false
	}
	flags := le.Uint64(head[:])
	if flags&rubyTypeBits != rubyIsArray {
		return 0, false
	}
	if flags&rubyEmbedded != 0 {
		if i >= flags>>lengthShift&lengthBits {
			return 0, false
		}
		return vm.wordNow(array + inside + 8*i)
	}
	if i >= le.Uint64(head[length:]) {
		return 0, false
	}
	return vm.wordNow(le.Uint64(head[pointer:]) + 8*i)
}
