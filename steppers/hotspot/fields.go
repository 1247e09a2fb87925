package hotspot

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
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
	oneHeap                       bool   // it is CodeCache::_heap, of JDK 8
	arrayLen, arrayData           uint64
	heapMemory, heapMap, heapLog2 uint64
	spaceLow, spaceHigh           uint64
	blobComplete, blobFrame       uint64
	blobCodeBegin, blobCodeEnd    uint64
	codeByOffset                  bool // these are offsets from it, of 32 bits; else addresses
	narrowComplete                bool // blobComplete has 16 bits; else 32
	blobName                      uint64
	blobEnd                       uint64 // of a CodeBlob, as much as holds the last of them

	blockBytes, blockUsed, blockLength uint64 // of a HeapBlock, in which it is

	interp *javacode.Frame
	method *methodFields // nil when one is missing
	object *objectFields // the same
}

// scopesLayout is where an nmethod has its scopes.
type scopesLayout uint8

const (
	scopesByAddress scopesLayout = iota // in it: what scopesData tells is an address,
	scopesByOffset                      // or, in JDK 8, an offset
	scopesApart                         // in memory of their own, from JDK 25 on
)

// deoptLayout is how an nmethod has where it goes on when it is given up.
type deoptLayout uint8

const (
	deoptUnknown deoptLayout = iota
	deoptByAddress
	deoptByOffset // from its header
)

// methodFields are those that lead from code to the names of methods.
type methodFields struct {
	compiled, compileID  uint64 // of an nmethod: its Method, and its number
	layout               scopesLayout
	metadata             uint64 // offsets: pointers, from 1 on,
	scopesPCs, scopesEnd uint64 // an array of PcDescs, to the end of all,
	scopesData           uint64 // and what they refer to
	// What these are offsets in, with scopesApart, and the size of what has the pointers.
	immutable, mutable, mutableBytes uint64

	// Of an nmethod: where it goes on when it is given up, by address or offset, and where in the frame it is noted
	// to what it would have returned.
	deopts        deoptLayout
	deopt, origPC uint64

	pcOffset, pcScope uint64 // of a PcDesc
	pcBytes           uint64

	constMethod                    uint64 // of a Method
	constants, constFlags          uint64 // of a ConstMethod
	constWords, codeSize           uint64
	nameIndex, signature           uint64
	constBytes                     uint64 // its size, where bytecodes begin
	poolHolder, poolLen, poolBytes uint64 // of a ConstantPool, whose entries follow it
	sourceFile                     uint64 // 0: not there, but in the class, before JDK 15
	classSourceFile                uint64
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
// when it has none, or has not filled them in yet, or lacks a field, as those of other versions may.
func findVMFields(im *procstate.Image, bias uint64, read func(addr uint64, buf []byte) bool) *vmFields {
	var structsAt, typesAt uint64
	im.EachSymbol(vmTablesAt(&structsAt, &typesAt))
	t := vmTables{im: im, bias: bias, read: read, texts: map[uint64]string{}}
	structs, types := t.table(structsAt, vmStructBytes), t.table(typesAt, vmTypeBytes)
	f := t.blobFields(structs, types)
	if f == nil || f.spaceLow == f.spaceHigh { // JDK 21 fills in where fields are when it begins
		return nil
	}
	if f.method = t.methodFields(structs, types); f.method != nil {
		if f.method.flags != 0 && f.method.flagName == f.method.flagAddr {
			return nil // the same
		}
		f.blobEnd = max(f.blobEnd, f.method.compiled+8, f.method.compileID+4)
		if f.method.deopts != deoptUnknown {
			f.blobEnd = max(f.blobEnd, f.method.deopt+8, f.method.origPC+4)
		}
	}
	f.object = t.objectFields(structs)
	return f
}

// vmTablesAt takes from the symbols of libjvm where its tables are.
func vmTablesAt(structs, types *uint64) func(s *procstate.ELFSymbol) (more bool) {
	return func(s *procstate.ELFSymbol) bool {
		switch string(s.Name) {
		case "gHotSpotVMStructs":
			*structs = s.Value
		case "gHotSpotVMTypes":
			*types = s.Value
		}
		return *structs == 0 || *types == 0
	}
}

// blobFields finds the fields of the code cache; nil when one is missing.
func (t *vmTables) blobFields(structs, types []byte) *vmFields {
	f := &vmFields{interp: javacode.Frame9(t.im.Arch())}
	var heap, codeOffset, dataOffset uint64
	array := map[string]*uint64{"_len": &f.arrayLen, "_data": &f.arrayData}
	has := t.fields(structs, map[string]map[string]*uint64{
		"CodeCache":            {"_heaps": &f.heaps, "_heap": &heap},
		"GrowableArrayBase":    array,
		"GenericGrowableArray": array, // before JDK 15
		"GrowableArray<int>":   array,
		"CodeHeap":             {"_memory": &f.heapMemory, "_segmap": &f.heapMap, "_log2_segment_size": &f.heapLog2},
		"VirtualSpace":         {"_low": &f.spaceLow, "_high": &f.spaceHigh},
		"HeapBlock::Header":    {"_used": &f.blockUsed, "_length": &f.blockLength},
		"CodeBlob": {"_frame_complete_offset": &f.blobComplete, "_frame_size": &f.blobFrame, "_name": &f.blobName,
			"_code_begin": &f.blobCodeBegin, "_code_end": &f.blobCodeEnd, "_code_offset": &codeOffset, "_data_offset": &dataOffset},
	})
	sized := t.sizes(types, map[string]*uint64{"HeapBlock": &f.blockBytes})
	if f.oneHeap = has.all(&heap); f.oneHeap {
		f.heaps, f.interp = heap, &javacode.Frame8
	} else if !has.all(&f.heaps, &f.arrayLen, &f.arrayData) {
		return nil
	}
	if f.codeByOffset = !has.all(&f.blobCodeBegin, &f.blobCodeEnd); f.codeByOffset {
		f.blobCodeBegin, f.blobCodeEnd = codeOffset, dataOffset
		if !has.all(&codeOffset, &dataOffset) {
			return nil
		}
	}
	f.narrowComplete = t.typeOf(structs, "CodeBlob", "_frame_complete_offset") == "int16_t"
	last := max(f.blobComplete, f.blobFrame, f.blobCodeBegin, f.blobCodeEnd, f.blobName)
	f.blobEnd = last + 8
	if !has.all(&f.heapMemory, &f.heapMap, &f.heapLog2, &f.spaceLow, &f.spaceHigh, &f.blobComplete, &f.blobFrame, &f.blobName, &f.blockUsed) ||
		!sized.all(&f.blockBytes) || f.blockUsed >= f.blockBytes || f.blockBytes > maxBlockHeader || last > maxBlobHeader-8 {
		return nil
	}
	return f
}

// methodFields finds the fields that names of methods take; nil when one is missing.
func (t *vmTables) methodFields(structs, types []byte) *methodFields {
	m := &methodFields{}
	var deoptOffset, metadata, relocations, scopesOffset, scopesAddress, dependencies, immutableEnd, refCount uint64
	compiled := map[string]*uint64{
		"_deopt_handler_begin": &m.deopt, "_deopt_handler_offset": &deoptOffset, "_orig_pc_offset": &m.origPC,
		"_method": &m.compiled, "_compile_id": &m.compileID, "_metadata_offset": &metadata,
		"_scopes_data_begin": &scopesAddress, "_scopes_data_offset": &scopesOffset,
		"_scopes_pcs_offset": &m.scopesPCs, "_dependencies_offset": &dependencies,
		"_immutable_data": &m.immutable, "_immutable_data_size": &immutableEnd, "_immutable_data_ref_count_offset": &refCount,
	}
	flags := map[string]*uint64{"flags": &m.flags, "numFlags": &m.numFlags, "_name": &m.flagName, "_addr": &m.flagAddr}
	has := t.fields(structs, map[string]map[string]*uint64{
		"nmethod":        compiled,
		"CompiledMethod": compiled, // JDK 9 to 22
		"CodeBlob":       {"_mutable_data": &m.mutable, "_mutable_data_size": &m.mutableBytes, "_relocation_size": &relocations},
		"PcDesc":         {"_pc_offset": &m.pcOffset, "_scope_decode_offset": &m.pcScope},
		"Method":         {"_constMethod": &m.constMethod},
		"ConstMethod": { // whose flags are named so from JDK 21 on
			"_constants": &m.constants, "_flags": &m.constFlags, "_flags._flags": &m.constFlags, "_constMethod_size": &m.constWords,
			"_code_size": &m.codeSize, "_name_index": &m.nameIndex, "_signature_index": &m.signature},
		"ConstantPool":        {"_pool_holder": &m.poolHolder, "_length": &m.poolLen, "_source_file_name_index": &m.sourceFile},
		"InstanceKlass":       {"_source_file_name_index": &m.classSourceFile},
		"Klass":               {"_name": &m.className},
		"Symbol":              {"_length": &m.symbolLen, "_body": &m.symbolBody},
		"Abstract_VM_Version": {"_vm_major_version": &m.version},
		"JVMFlag":             flags,
		"Flag":                flags, // JDK 8
	})
	sized := t.sizes(types, map[string]*uint64{
		"PcDesc": &m.pcBytes, "ConstMethod": &m.constBytes, "ConstantPool": &m.poolBytes, "JVMFlag": &m.flagBytes, "Flag": &m.flagBytes,
	})
	switch {
	case !has.all(&m.origPC):
	case has.all(&m.deopt):
		m.deopts = deoptByAddress
	case has.all(&deoptOffset):
		m.deopt, m.deopts = deoptOffset, deoptByOffset
	}
	switch {
	case has.all(&m.immutable, &immutableEnd, &m.mutable, &m.mutableBytes, &relocations, &scopesOffset):
		m.layout, m.metadata, m.scopesData, m.scopesEnd = scopesApart, relocations, scopesOffset, immutableEnd
		if has.all(&refCount) {
			m.scopesEnd = refCount
		}
	case has.all(&m.immutable), !has.all(&metadata, &dependencies): // the former is of JDK 23 and 24
		return nil
	case has.all(&scopesAddress):
		m.layout, m.metadata, m.scopesData, m.scopesEnd = scopesByAddress, metadata, scopesAddress, dependencies
	case has.all(&scopesOffset):
		m.layout, m.metadata, m.scopesData, m.scopesEnd = scopesByOffset, metadata, scopesOffset, dependencies
	default:
		return nil
	}
	if !has.all(&m.compiled, &m.compileID, &m.scopesPCs, &m.pcOffset, &m.pcScope, &m.constMethod, &m.constants, &m.constFlags, &m.constWords,
		&m.codeSize, &m.nameIndex, &m.signature, &m.poolHolder, &m.poolLen, &m.className, &m.symbolLen, &m.symbolBody, &m.version) ||
		!sized.all(&m.pcBytes, &m.constBytes, &m.poolBytes) || !m.areSane() {
		return nil
	}
	if !has.all(&m.flags, &m.numFlags, &m.flagName, &m.flagAddr) || !sized.all(&m.flagBytes) ||
		max(m.flagName, m.flagAddr)+8 > m.flagBytes || m.flagBytes > 64 {
		m.flags = 0
	}
	return m
}

// areSane reports whether structures have a size that they may have.
func (m *methodFields) areSane() bool {
	const most = 1 << 10
	return max(m.compiled, m.compileID, m.metadata, m.scopesPCs, m.scopesEnd, m.scopesData,
		m.immutable, m.mutable, m.mutableBytes, m.deopt, m.origPC) <= maxBlobHeader-8 &&
		m.pcBytes <= 64 && max(m.pcOffset, m.pcScope)+4 <= m.pcBytes &&
		max(m.constants, m.constFlags, m.constWords, m.codeSize, m.nameIndex, m.signature) <= m.constBytes && m.constBytes <= most &&
		max(m.poolHolder, m.poolLen, m.sourceFile) <= m.poolBytes && m.poolBytes <= most &&
		max(m.constMethod, m.className, m.classSourceFile) <= most && max(m.symbolLen, m.symbolBody) <= 64
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

// found are the fields, or sizes, that a table has.
type found map[*uint64]bool

func (f found) all(fields ...*uint64) bool {
	for _, to := range fields {
		if !f[to] {
			return false
		}
	}
	return true
}

// fields finds the fields of types in the table of these, by their names.
func (t *vmTables) fields(table []byte, wanted map[string]map[string]*uint64) found {
	has, le := found{}, binary.LittleEndian
	for entry := range slices.Chunk(table, vmStructBytes) {
		fields := wanted[t.typeName(le.Uint64(entry))]
		if fields == nil {
			continue
		}
		if to := fields[t.text(le.Uint64(entry[8:]))]; to != nil {
			has[to] = true
			if *to = le.Uint64(entry[32:]); le.Uint32(entry[24:]) != 0 {
				*to = le.Uint64(entry[40:]) - t.bias
			}
		}
	}
	return has
}

// typeOf returns the type of a field, "" where it is not there.
func (t *vmTables) typeOf(table []byte, of, field string) string {
	le := binary.LittleEndian
	for entry := range slices.Chunk(table, vmStructBytes) {
		if t.typeName(le.Uint64(entry)) == of && t.text(le.Uint64(entry[8:])) == field {
			return t.text(le.Uint64(entry[16:]))
		}
	}
	return ""
}

// sizes finds the sizes of types in the table of these.
func (t *vmTables) sizes(table []byte, wanted map[string]*uint64) found {
	has := found{}
	for entry := range slices.Chunk(table, vmTypeBytes) {
		if to := wanted[t.typeName(binary.LittleEndian.Uint64(entry))]; to != nil {
			has[to] = true
			*to = binary.LittleEndian.Uint64(entry[32:])
		}
	}
	return has
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
	var b [48]byte
	if addr == 0 || t.im.ReadVaddr(b[:], addr-t.bias) != nil {
		return ""
	}
	n := bytes.IndexByte(b[:], 0)
	return string(b[:max(n, 0)])
}
