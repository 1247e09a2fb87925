package steppers

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// HotSpot, the Java virtual machine, describes its own structures in tables
// that it exports for debuggers (vmStructs.cpp): the type and name of each
// field, and its offset, or its address when it is static; and the sizes of types.
// The code cache is found by them, and what methods are called:
//
//	CodeCache::_heaps    a GrowableArray of CodeHeaps
//	CodeHeap             its memory, and a map of it with a byte for each segment
//	CodeBlob             a compiled method or stub: where its code is, and the
//	                     size of its frame
//	nmethod              a CodeBlob with the Method that was compiled, and what was
//	                     inlined where
//	Method, ConstMethod  bytecodes, lines, and where in the ConstantPool the name is

// vmFields are the offsets of fields in HotSpot's structures.
type vmFields struct {
	heaps                         uint64 // link-time address of CodeCache::_heaps
	arrayLen, arrayData           uint64
	heapMemory, heapMap, heapLog2 uint64
	spaceLow, spaceHigh           uint64
	blobComplete, blobFrame       uint64
	blobCodeBegin, blobCodeEnd    uint64
	blobName                      uint64
	blobEnd                       uint64 // of a CodeBlob, as much as holds the last of them

	method *methodFields // nil when one is missing
}

// methodFields are those that lead from code to the names of methods.
type methodFields struct {
	compiled, compileID  uint64 // of an nmethod: its Method, and its number
	metadata             uint64 // offsets from it: pointers, from 1 on,
	scopesPCs, scopesEnd uint64 // and an array of PcDescs
	scopesData           uint64 // address of what they refer to

	pcOffset, pcScope uint64 // of a PcDesc
	pcBytes           uint64

	constMethod                    uint64 // of a Method
	constants, constFlags          uint64 // of a ConstMethod
	constWords, codeSize           uint64
	nameIndex, signature           uint64
	constBytes                     uint64 // its size, where bytecodes begin
	poolHolder, poolLen, poolBytes uint64 // of a ConstantPool, whose entries follow it
	sourceFile                     uint64 // 0: not there
	className                      uint64 // of a Klass
	symbolLen, symbolBody          uint64 // of a Symbol
	version                        uint64 // link-time address of the number of the release

	flags, numFlags    uint64 // link-time addresses of where the flags are, and how many; 0: not there
	flagName, flagAddr uint64 // of a JVMFlag
	flagBytes          uint64
}

const (
	// vmStructBytes and vmTypeBytes are the sizes of entries of the tables.
	vmStructBytes = 48
	vmTypeBytes   = 40

	maxVMEntries = 20000

	// maxBlobHeader bounds what is read of a CodeBlob.
	maxBlobHeader = 512
)

// vmTables reads the tables of libjvm, which is mapped with a bias.
type vmTables struct {
	im    *procstate.Image
	bias  uint64
	read  func(addr uint64, buf []byte) bool
	texts map[uint64]string // of types, which follow one another
}

// findVMFields reads the tables of libjvm, which is mapped with a bias; nil
// when it has none, or lacks a field, as those of other versions may.
func findVMFields(im *procstate.Image, bias uint64, read func(addr uint64, buf []byte) bool) *vmFields {
	var structsAt, typesAt uint64
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		switch string(s.Name) {
		case "gHotSpotVMStructs":
			structsAt = s.Value
		case "gHotSpotVMTypes":
			typesAt = s.Value
		}
		return structsAt == 0 || typesAt == 0
	})
	t := vmTables{im: im, bias: bias, read: read, texts: map[uint64]string{}}
	structs, types := t.table(structsAt, vmStructBytes), t.table(typesAt, vmTypeBytes)
	var f vmFields
	array := map[string]*uint64{"_len": &f.arrayLen, "_data": &f.arrayData}
	wanted := map[string]map[string]*uint64{
		"CodeCache":            {"_heaps": &f.heaps},
		"GrowableArrayBase":    array,
		"GenericGrowableArray": array, // before JDK 15
		"GrowableArray<int>":   array,
		"CodeHeap":             {"_memory": &f.heapMemory, "_segmap": &f.heapMap, "_log2_segment_size": &f.heapLog2},
		"VirtualSpace":         {"_low": &f.spaceLow, "_high": &f.spaceHigh},
		"CodeBlob": {"_frame_complete_offset": &f.blobComplete, "_frame_size": &f.blobFrame,
			"_code_begin": &f.blobCodeBegin, "_code_end": &f.blobCodeEnd, "_name": &f.blobName},
	}
	m := &methodFields{}
	compiled := map[string]*uint64{
		"_method": &m.compiled, "_compile_id": &m.compileID, "_metadata_offset": &m.metadata,
		"_scopes_data_begin": &m.scopesData, "_scopes_pcs_offset": &m.scopesPCs, "_dependencies_offset": &m.scopesEnd,
	}
	ofMethods := map[string]map[string]*uint64{
		"nmethod":        compiled,
		"CompiledMethod": compiled, // JDK 9 to 22
		"PcDesc":         {"_pc_offset": &m.pcOffset, "_scope_decode_offset": &m.pcScope},
		"Method":         {"_constMethod": &m.constMethod},
		"ConstMethod": { // whose flags are named so from JDK 21 on
			"_constants": &m.constants, "_flags": &m.constFlags, "_flags._flags": &m.constFlags, "_constMethod_size": &m.constWords,
			"_code_size": &m.codeSize, "_name_index": &m.nameIndex, "_signature_index": &m.signature},
		"ConstantPool":        {"_pool_holder": &m.poolHolder, "_length": &m.poolLen},
		"Klass":               {"_name": &m.className},
		"Symbol":              {"_length": &m.symbolLen, "_body": &m.symbolBody},
		"Abstract_VM_Version": {"_vm_major_version": &m.version},
	}
	sizes := map[string]*uint64{"PcDesc": &m.pcBytes, "ConstMethod": &m.constBytes, "ConstantPool": &m.poolBytes}
	const all, allOfMethods = 13, 21
	last := func() uint64 {
		return max(f.blobComplete, f.blobFrame, f.blobCodeBegin, f.blobCodeEnd, f.blobName)
	}
	if t.fields(structs, wanted) != all || last() > maxBlobHeader-8 {
		return nil
	}
	f.blobEnd = last() + 8
	flags := map[string]*uint64{"flags": &m.flags, "numFlags": &m.numFlags, "_name": &m.flagName, "_addr": &m.flagAddr}
	if t.fields(structs, map[string]map[string]*uint64{"JVMFlag": flags}) != len(flags) ||
		t.sizes(types, map[string]*uint64{"JVMFlag": &m.flagBytes}) != 1 || max(m.flagName, m.flagAddr)+8 > m.flagBytes || m.flagBytes > 64 {
		m.flags = 0
	}
	t.fields(structs, map[string]map[string]*uint64{"ConstantPool": {"_source_file_name_index": &m.sourceFile}}) // JDK 15 and later
	if t.fields(structs, ofMethods) == allOfMethods && t.sizes(types, sizes) == len(sizes) && m.areSane() {
		f.method = m
		f.blobEnd = max(f.blobEnd, m.compiled+8, m.compileID+4)
	}
	return &f
}

// areSane reports whether structures have a size that they may have.
func (m *methodFields) areSane() bool {
	const most = 1 << 10
	return max(m.compiled, m.compileID, m.metadata, m.scopesPCs, m.scopesEnd, m.scopesData) <= maxBlobHeader-8 &&
		m.pcBytes <= 64 && max(m.pcOffset, m.pcScope)+4 <= m.pcBytes &&
		max(m.constants, m.constFlags, m.constWords, m.codeSize, m.nameIndex, m.signature) <= m.constBytes && m.constBytes <= most &&
		max(m.poolHolder, m.poolLen, m.sourceFile) <= m.poolBytes && m.poolBytes <= most &&
		max(m.constMethod, m.className) <= most && max(m.symbolLen, m.symbolBody) <= 64
}

// table reads a table, whose address is at a link-time address, of entries of so many bytes.
func (t *vmTables) table(at uint64, size int) (table []byte) {
	const step = 64 // entries
	var first [8]byte
	if at == 0 || !t.read(at+t.bias, first[:]) {
		return nil
	}
	addr, n := binary.LittleEndian.Uint64(first[:]), step
	for len(table) < maxVMEntries*size {
		more := make([]byte, n*size)
		switch {
		case t.read(addr+uint64(len(table)), more):
		case n == 1:
			return table
		default: // memory may end there
			n = 1
			continue
		}
		for entry := range slices.Chunk(more, size) {
			if binary.LittleEndian.Uint64(entry) == 0 {
				return table
			}
			table = append(table, entry...)
		}
	}
	return table
}

// fields finds the fields of types in the table of these, by their names, and returns how
// many there are.
func (t *vmTables) fields(table []byte, wanted map[string]map[string]*uint64) int {
	seen, le := map[*uint64]bool{}, binary.LittleEndian
	for entry := range slices.Chunk(table, vmStructBytes) {
		fields := wanted[t.typeName(le.Uint64(entry))]
		if fields == nil {
			continue
		}
		if to := fields[t.text(le.Uint64(entry[8:]))]; to != nil {
			seen[to] = true
			if *to = le.Uint64(entry[32:]); le.Uint32(entry[24:]) != 0 {
				*to = le.Uint64(entry[40:]) - t.bias
			}
		}
	}
	return len(seen)
}

// sizes finds the sizes of types in the table of these, and returns how many there are.
func (t *vmTables) sizes(table []byte, wanted map[string]*uint64) int {
	seen := map[*uint64]bool{}
	for entry := range slices.Chunk(table, vmTypeBytes) {
		if to := wanted[t.typeName(binary.LittleEndian.Uint64(entry))]; to != nil {
			seen[to] = true
			*to = binary.LittleEndian.Uint64(entry[32:])
		}
	}
	return len(seen)
}

// typeName is text for the name of a type.
func (t *vmTables) typeName(addr uint64) string {
	name, ok := t.texts[addr]
	if !ok {
		name = t.text(addr)
		t.texts[addr] = name
	}
	return name
}

// text returns a short string of libjvm.
func (t *vmTables) text(addr uint64) string {
	var b [32]byte
	if addr == 0 || t.im.ReadVaddr(b[:], addr-t.bias) != nil {
		return ""
	}
	n := bytes.IndexByte(b[:], 0)
	return string(b[:max(n, 0)])
}
