package pypy

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// What the compiler makes at a time is noted for PyPy's own profiler: where the code is, and which functions are
// inlined in which part of it (rpython/jit/backend/llsupport/codemap.py). The notes are in a skip list by address
// (src/skiplist.c), whose head is in memory that the file has no data for:
//
//	 0  address of the code, 0 in the head
//	 8  where the data is, behind the node; 0 in the head
//	16  the next node, and up to seven more that are further on
//
// The data are the bytes of the code, how many words tell of it, and where these are (src/codemap.c); of each call
// there are four: the number of the code object, where its code begins and ends, and which words come after its own.
const (
	nodeNext   = 16
	maxHeight  = 8
	partWords  = 4
	maxWords   = 1 << 16
	maxBlocks  = 1 << 14
	maxSteps   = 1 << 10 // of a search
	maxChecked = 16      // nodes by which the head is known

	retryInterval = time.Second
)

// block is code that the compiler has made at a time.
type block struct {
	mcode.Range
	words  []uint64 // what is noted of it
	serial uint32   // of these
	valid  vmread.Valid
}

// calls returns the functions that are known to run at an address of the block: their numbers, outermost first, and
// where in what is noted the innermost is.
//
// Where code was made for what a guard of other code does not let pass, it is noted to begin with the functions that
// were inlined there; but it may go on from an earlier guard, with others. The outermost is the same, and those that
// are inlined in the code itself are; what is between these is part of the outermost.
func (b *block) calls(dst []uint64, addr uint64) (calls []uint64, place int) {
	rel := addr - b.Start
	for at := 0; at < len(b.words); at += partWords {
		switch number, start, end := b.words[at], b.words[at+1], b.words[at+2]; {
		case start == 0 && at == 0, start != 0 && start <= rel && rel < end:
			dst, place = append(dst, number), at
		}
	}
	return dst, place
}

// block returns the code around an address as it was when the memory was captured; nil where there is none, or it is not
// known.
func (vm *machine) block(addr uint64) *block {
	at := vm.Times()
	i, found := slices.BinarySearchFunc(vm.blocks, addr, func(b *block, addr uint64) int { return cmp.Compare(b.Start, addr) })
	if !found {
		i--
	}
	if i >= 0 && vm.blocks[i].Holds(addr) {
		b := vm.blocks[i]
		if b.valid.IsDue(at) {
			now := vm.readBlock(addr)
			switch {
			case now == nil: // it is gone, or the process is
			case now.Range == b.Range && slices.Equal(now.words, b.words):
				b.valid.Read(at, true)
			default:
				vm.remove(now.Range)
				now.valid = b.valid
				now.valid.Read(at, false)
				vm.insert(now)
				b = now
			}
		}
		if !b.Holds(addr) || !b.valid.Holds(at) {
			return nil
		}
		return b
	}
	if last, ok := vm.others[addr]; ok && time.Since(last) < retryInterval {
		return nil
	}
	b := vm.readBlock(addr)
	if b == nil {
		if len(vm.others) >= maxBlocks {
			clear(vm.others)
		}
		vm.others[addr] = time.Now()
		return nil
	}
	b.valid.Read(at, true)
	vm.remove(b.Range)
	vm.insert(b)
	return b
}

// remove forgets blocks that have something in common with a range.
func (vm *machine) remove(r mcode.Range) {
	vm.blocks = slices.DeleteFunc(vm.blocks, func(b *block) bool { return b.Start < r.End && r.Start < b.End })
}

// insert adds a block.
func (vm *machine) insert(b *block) {
	if len(vm.blocks) >= maxBlocks || vm.Kept >= vmread.MaxKept {
		vm.blocks = vm.blocks[:0]
		vm.Kept = 0
	}
	vm.Kept += word * len(b.words)
	vm.serial++
	b.serial = vm.serial
	i, _ := slices.BinarySearchFunc(vm.blocks, b.Start, func(b *block, addr uint64) int { return cmp.Compare(b.Start, addr) })
	vm.blocks = slices.Insert(vm.blocks, i, b)
}

// readBlock looks for code around an address in PyPy's list; nil where that has none.
func (vm *machine) readBlock(addr uint64) *block {
	if vm.head == 0 && !vm.findHead() {
		return nil
	}
	node := vm.head
	for level, steps := maxHeight-1, 0; level >= 0 && steps < maxSteps; steps++ {
		next, ok := vm.WordNow(node + nodeNext + uint64(word*level))
		key, ok2 := vm.WordNow(next)
		switch {
		case !ok || next != 0 && !ok2:
			return nil
		case next != 0 && key != 0 && key <= addr:
			node = next
		default:
			level--
		}
	}
	if node == vm.head {
		return nil
	}
	if b, _, ok := vm.readNode(node); ok && b.Holds(addr) {
		return b
	}
	return nil
}

// readNode reads a node, and where the next is.
func (vm *machine) readNode(node uint64) (b *block, next uint64, ok bool) {
	const most = 1 << 24 // bytes of code
	var head [nodeNext + word]byte
	var data [2 * word]byte
	le := binary.LittleEndian
	if !vm.ReadNow(node, head[:]) {
		return nil, 0, false
	}
	start, at := le.Uint64(head[:]), le.Uint64(head[word:])
	height := at - node - nodeNext
	if height%word != 0 || height < word || height > maxHeight*word || !vm.ReadNow(at, data[:]) {
		return nil, 0, false
	}
	size, n := le.Uint32(data[:]), le.Uint32(data[4:])
	if size == 0 || size > most || n%partWords != 0 || n > maxWords || start+uint64(size) < start {
		return nil, 0, false
	}
	words := make([]byte, n*word)
	if n > 0 && !vm.ReadNow(le.Uint64(data[word:]), words) {
		return nil, 0, false
	}
	b = &block{Range: mcode.Range{Start: start, End: start + uint64(size)}}
	for ; len(words) > 0; words = words[word:] {
		b.words = append(b.words, le.Uint64(words))
	}
	for i := 0; i < len(b.words); i += partWords {
		part := b.words[i : i+partWords]
		if part[0] != 0 && !isNumber(part[0]) || part[1] > part[2] || part[2] > uint64(size) || part[3] <= uint64(i) || part[3] > uint64(n) {
			return nil, 0, false
		}
	}
	return b, le.Uint64(head[nodeNext:]), true
}

// findHead looks for the head of the list in what the file has no data for: its nodes are of code, which they are
// sorted by.
func (vm *machine) findHead() bool {
	if time.Since(vm.searched) < retryInterval {
		return false
	}
	vm.searched = time.Now()
	const most = 1 << 24
	if vm.zeroed.End-vm.zeroed.Start > most {
		return false
	}
	memory := make([]byte, vm.zeroed.End-vm.zeroed.Start)
	from := vm.zeroed.Start + vm.module.Bias
	if !vm.ReadNow(from, memory) {
		return false
	}
	le := binary.LittleEndian
	for at := 0; at+nodeNext+maxHeight*word <= len(memory); at += word {
		if le.Uint64(memory[at:]) != 0 || le.Uint64(memory[at+word:]) != 0 || le.Uint64(memory[at+nodeNext:]) == 0 {
			continue
		}
		if vm.isList(le.Uint64(memory[at+nodeNext:])) {
			vm.head = from + uint64(at)
			return true
		}
	}
	return false
}

// isList reports whether a node is the first of a list of code.
func (vm *machine) isList(node uint64) bool {
	var end uint64
	functions := 0
	for range maxChecked {
		b, next, ok := vm.readNode(node)
		if !ok || b.Start < end {
			return false
		}
		if end = b.End; len(b.words) > 0 {
			functions++
		}
		if node = next; node == 0 {
			break
		}
	}
	return functions > 0
}
