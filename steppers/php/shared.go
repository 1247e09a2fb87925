package php

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// sharedFiles are what files do themselves as it was found in any process. The workers of a server have the instructions in
// memory that they share, at the same addresses, and each runs a file for a moment, of which its function is gone
// with the request: what was found in one of them is known in the others, where they have the same there.
type sharedFiles struct{ list []sharedFile }

// sharedFile is one of them, and the sum of its instructions.
type sharedFile struct {
	fn  *function
	sum uint32
}

// Limits on what is shared.
const (
	maxShared      = 1 << 10
	maxSharedBytes = 4 << 10 // of the instructions of each that are compared
)

// share notes what a file does itself for other processes.
func (vm *machine) share(fn *function) {
	sum, ok := vm.sumOf(fn)
	s := vm.shared
	if s == nil || !ok || slices.ContainsFunc(s.list, func(o sharedFile) bool { return o.sum == sum && o.fn.opcodes == fn.opcodes }) {
		return
	}
	if len(s.list) >= maxShared {
		s.list = slices.Delete(s.list, 0, maxShared/2)
	}
	s.list = append(s.list, sharedFile{fn, sum})
}

// sharedAt returns what a file does itself that an instruction is of, nil when it was found in no other process.
func (vm *machine) sharedAt(opline uint64) *function {
	if vm.shared == nil || opline == 0 {
		return nil
	}
	for _, o := range vm.shared.list {
		if !o.fn.has(opline) || vm.looks <= 0 {
			continue
		}
		vm.looks--
		if sum, ok := vm.sumOf(o.fn); !ok || sum != o.sum || vm.text(binary.LittleEndian.Uint64(o.fn.head[vm.fields.fileName:])) != o.fn.File {
			continue
		}
		fn := *o.fn
		fn.serial, fn.checked, fn.period = vm.nextSerial(), vm.now, 0
		vm.Kept += fn.bytes()
		vm.addInner(&fn)
		return &fn
	}
	return nil
}

// sumOf returns the sum of the first instructions of a function, without what each is executed by, which may change.
func (vm *machine) sumOf(fn *function) (sum uint32, ok bool) {
	const handler = 8
	b := make([]byte, min(fn.opcodes.End-fn.opcodes.Start, maxSharedBytes))
	if !vm.ReadNow(fn.opcodes.Start, b) {
		return 0, false
	}
	for ; len(b) >= phpOpSize; b = b[phpOpSize:] {
		sum = crc32.Update(sum, crc32.IEEETable, b[handler:phpOpSize])
	}
	return sum, true
}
