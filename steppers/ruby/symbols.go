package ruby

import (
	"debug/elf"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// CRuby keeps the names of all Symbols in an Array of Arrays, which have of each a String and the
// Symbol (symbol.c). Where that is only its code tells; that it is the right one is told by each
// Symbol in it, which is made of its number.

const (
	symbolsEach = 512 // Symbols of an Array in the Array
	lastToken   = 256 // is more than the numbers of operators, and less than all others
	numberShift = 4   // of those

	symbolMark, symbolShift    = 0x0c, 8 // of a Symbol that is no object
	symbolName, symbolNumber   = 24, 32  // of one that is
	symbolBytes                = 40
	symbolsCode, symbolsBehind = 256, 16 // bytes of code that are looked at; where in what these refer to the Array may be
)

// findSymbols returns the link-time addresses of variables that may lead to the Array.
func findSymbols(im *procstate.Image) (candidates []uint64) {
	const firstCode = 64
	sym, ok := im.ExportedSymbol("rb_id2str")
	if !ok {
		return nil
	}
	starts := []uint64{sym.Value}
	var code [symbolsCode]byte
	var in isa.Inst
	if im.ReadVaddr(code[:], sym.Value) != nil {
		return nil
	}
	for n := uint64(0); n < firstCode && mcode.Decode(im.Arch(), code[n:], sym.Value+n, &in) && in.Len > 0; n += uint64(in.Len) {
		if (in.Flow == isa.Jump || in.Flow == isa.Call) && in.Target != 0 {
			starts = append(starts, in.Target)
			break
		}
	}
	for _, start := range starts {
		if im.ReadVaddr(code[:], start) != nil {
			continue
		}
		addresses := relativeAddresses
		if im.Arch() == procstate.ARM64 {
			addresses = madeAddresses
		}
		addresses(code[:], start, func(to uint64) {
			if to%8 == 0 && isVariable(im, to) {
				candidates = append(candidates, to, to+symbolsBehind)
			}
		})
	}
	return candidates
}

// relativeAddresses calls what with each address that code at one may refer to, as code of x86-64 has
// them: the distance from its end.
func relativeAddresses(code []byte, at uint64, what func(to uint64)) {
	for n := 1; n+4 <= len(code); n++ {
		what(at + uint64(n) + 4 + uint64(int64(int32(binary.LittleEndian.Uint32(code[n:])))))
	}
}

// madeAddresses is relativeAddresses of AArch64, where instructions make an address of its page and
// what is in that.
func madeAddresses(code []byte, at uint64, what func(to uint64)) {
	var in isa.Inst
	var made [procstate.MaxRegs]uint64
	for n := 0; n < len(code) && mcode.Decode(procstate.ARM64, code[n:], at+uint64(n), &in) && in.Len > 0; n += int(in.Len) {
		for i := range in.NumOps {
			op := &in.Ops[i]
			is := uint64(0)
			switch op.Kind {
			case isa.Const:
				is = uint64(op.Imm)
			case isa.Set:
				if made[op.Src] != 0 {
					is = made[op.Src] + uint64(op.Imm)
					what(is)
				}
			case isa.Load:
				if made[op.Src] != 0 {
					what(made[op.Src] + uint64(op.Imm))
				}
			case isa.Store, isa.Scratch, isa.Compare:
				continue
			}
			made[op.Dst] = is
		}
	}
}

// isVariable reports whether a link-time address is one of data that may be written.
func isVariable(im *procstate.Image, vaddr uint64) bool {
	for _, seg := range im.Segments() {
		if seg.Flags&elf.PF_W != 0 && vaddr-seg.Vaddr < seg.Memsz {
			return true
		}
	}
	return false
}

// symbol returns the name with a number.
func (vm *machine) symbol(number uint64) (name string, ok bool) {
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
func (vm *machine) symbolIn(variable, number uint64) (name string, ok bool) {
	serial := number
	if number > lastToken {
		serial = number >> numberShift
	}
	arrays, _ := vm.WordNow(variable)
	array, ok := vm.element(arrays, serial/symbolsEach)
	if !ok {
		return "", false
	}
	text, _ := vm.element(array, serial%symbolsEach*2)
	symbol, ok := vm.element(array, serial%symbolsEach*2+1)
	if !ok || symbol != number<<symbolShift|symbolMark && !vm.isSymbol(symbol, text, number) {
		return "", false
	}
	return vm.text(text)
}

// isSymbol reports whether an object is the Symbol of a name and number.
func (vm *machine) isSymbol(object, text, number uint64) bool {
	var b [symbolBytes]byte
	le := binary.LittleEndian
	return object != 0 && object%8 == 0 && vm.ReadNow(object, b[:]) && le.Uint64(b[:])&typeBits == isSymbol &&
		le.Uint64(b[symbolName:]) == text && le.Uint64(b[symbolNumber:]) == number
}

// element returns an element of an Array.
func (vm *machine) element(array, i uint64) (object uint64, ok bool) {
	const length, pointer, inside, lengthShift, lengthBits = 16, 32, 16, 15, 0x7f
	var head [40]byte
	le := binary.LittleEndian
	if array == 0 || array%8 != 0 || !vm.ReadNow(array, head[:]) {
		return 0, false
	}
	flags := le.Uint64(head[:])
	if flags&typeBits != isArray {
		return 0, false
	}
	if flags&embedded != 0 {
		if i >= flags>>lengthShift&lengthBits {
			return 0, false
		}
		return vm.WordNow(array + inside + 8*i)
	}
	if i >= le.Uint64(head[length:]) {
		return 0, false
	}
	return vm.WordNow(le.Uint64(head[pointer:]) + 8*i)
}
