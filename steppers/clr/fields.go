package clr

import (
	"encoding/binary"
	"encoding/json"
	"strconv"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// fields are where CoreCLR has what is read of it: offsets in bytes, unless something else is said
// (src/coreclr/vm: codeman.h, method.hpp, methodtable.h, ceeload.h, readytoruninfo.h, peassembly.h, peimage.h).
type fields struct {
	tokenBits uint // of a method's number that its MethodDesc has; its chunk has the others
	quickMap  bool // the map of code has addresses, too, where code is longer than a word of it tells of

	sectionFlags, sectionHeap, sectionModule uint64 // RangeSection

	module      uint64 // MethodTable: the module that defines it
	dynamicName uint64 // DynamicMethodDesc

	assembly   uint64 // Module: its PEAssembly
	readyToRun uint64 // and its ReadyToRunInfo
	peImage    uint64 // PEAssembly
	loaded     uint64 // PEImage: how it is loaded, before which is how it is as a file
	layoutBase uint64 // PEImageLayout
	composite  uint64 // ReadyToRunInfo: that of all modules that were compiled together; the others are its
	functions  uint64
	count      uint64
	splits     uint64 // how many functions have cold parts
	entries    uint64 // map of MethodDescs by where the code begins
	header     uint64 // of the image, where its parts are
	path       uint64 // Module: the name of its file; where isTold is not, PEImage

	debug    form   // of code that is made at run time
	isTold   bool   // by the descriptor
	rangeMap uint64 // which of its addresses is that of the map of all code
}

// Offsets that are the same in all versions.
const (
	clrSectionLow, clrSectionHigh   = 0, 8
	clrHeapBase, clrHeapMap         = 32, 40
	clrFragmentNext, clrFragmentLow = 0, 8
	clrFragmentHigh                 = 16
	clrFragmentSection              = 24
	clrFragmentBytes                = 32

	clrHeaderBytes    = 36 // RealCodeHeader, up to where its functions are
	clrHeaderDebug    = 0
	clrHeaderMethod   = 24
	clrHeaderCount    = 32
	clrMethodBytes    = 8 // MethodDesc, the part that is read
	clrMethodChunk    = 2
	clrMethodFlags    = 6
	clrMethodKinds    = 7 // of the flags
	clrMethodArray    = 4
	clrMethodDynamic  = 7
	clrChunkBytes     = 24 // MethodDescChunk
	clrChunkTokens    = 18
	clrMethodAlign    = 8
	clrTokenBits      = 24
	clrBuckets        = 16 // HashMap
	clrBucketBytes    = 64
	clrBucketSlots    = 4
	clrLastStub       = 15 // the greatest that stands for a header of code that is no method's
	clrSectionIsHeap  = 2  // of a RangeSection's flags
	clrSectionIsStubs = 4
)

// fields8 are those of .NET 8 on x86-64.
var fields8 = fields{
	tokenBits:    12,
	sectionFlags: 16, sectionHeap: 40, sectionModule: 32,
	module:      24,
	dynamicName: 24,
	assembly:    0x110, readyToRun: 0x480, peImage: 8, loaded: 0x78, layoutBase: 8,
	composite: 40, functions: 80, count: 88, splits: 104, entries: 0x1b0, header: 16,
	debug: formNibbles,
}

// The descriptor (docs/design/datacontracts/contract-descriptor.md): a word that tells it, flags, the length
// of its text and where that is, how many addresses go with it, and where these are.
const (
	descriptorIs                       = "DNCCDAC\x00"
	descriptorBytes                    = 40
	descriptorText, descriptorPointers = 16, 32
	maxDescriptor                      = 1 << 18
	maxField                           = 1 << 14 // an offset
)

// readFields reads what the descriptor at an address says; nil where that is not all. It reports whether the
// descriptor could be read. A RUNTIME_FUNCTION has so many bytes.
func readFields(read vmread.Reader, at, functionBytes uint64) (f *fields, ok bool) {
	var head [descriptorBytes]byte
	le := binary.LittleEndian
	if !read(at, head[:]) || string(head[:8]) != descriptorIs {
		return nil, false
	}
	text := make([]byte, min(le.Uint32(head[12:]), maxDescriptor))
	if !read(le.Uint64(head[descriptorText:]), text) {
		return nil, false
	}
	return fieldsIn(text, uint64(le.Uint32(head[24:])), functionBytes), true
}

// fieldsIn takes the fields from the text of a descriptor with so many addresses; nil where they are not all
// there.
func fieldsIn(text []byte, pointers, functionBytes uint64) *fields {
	var told struct {
		Types     map[string]map[string]any `json:"types"`
		Globals   map[string]any            `json:"globals"`
		Contracts map[string]any            `json:"contracts"`
	}
	if json.Unmarshal(text, &told) != nil {
		return nil
	}
	all := true
	get := func(typ, field string) uint64 {
		n, ok := number(told.Types[typ][field])
		all = all && ok && n <= maxField
		return n
	}
	same := func(typ, field string, at uint64) { all = all && get(typ, field) == at }
	f := &fields{
		sectionFlags: get("RangeSection", "Flags"), sectionHeap: get("RangeSection", "HeapList"), sectionModule: get("RangeSection", "R2RModule"),
		module:      get("MethodTable", "Module"),
		dynamicName: get("DynamicMethodDesc", "MethodName"),
		assembly:    get("Module", "PEAssembly"), readyToRun: get("Module", "ReadyToRunInfo"),
		peImage: get("PEAssembly", "PEImage"), loaded: get("PEImage", "LoadedImageLayout"), layoutBase: get("PEImageLayout", "Base"),
		composite: get("ReadyToRunInfo", "CompositeInfo"), functions: get("ReadyToRunInfo", "RuntimeFunctions"), count: get("ReadyToRunInfo", "NumRuntimeFunctions"),
		splits: get("ReadyToRunInfo", "NumHotColdMap"), entries: get("ReadyToRunInfo", "EntryPointToMethodDescMap"),
		isTold: true,
	}
	same("RangeSectionMap", "TopLevelData", 0)
	same("RangeSection", "RangeBegin", clrSectionLow)
	same("RangeSection", "RangeEndOpen", clrSectionHigh)
	same("RangeSectionFragment", "Next", clrFragmentNext)
	same("RangeSectionFragment", "RangeBegin", clrFragmentLow)
	same("RangeSectionFragment", "RangeEndOpen", clrFragmentHigh)
	same("RangeSectionFragment", "RangeSection", clrFragmentSection)
	same("CodeHeapListNode", "MapBase", clrHeapBase)
	same("CodeHeapListNode", "HeaderMap", clrHeapMap)
	same("RealCodeHeader", "MethodDesc", clrHeaderMethod)
	same("RealCodeHeader", "NumUnwindInfos", clrHeaderCount)
	same("RealCodeHeader", "UnwindInfos", clrHeaderBytes)
	same("RuntimeFunction", "!", functionBytes)
	same("MethodDesc", "Flags3AndTokenRemainder", 0)
	same("MethodDesc", "ChunkIndex", clrMethodChunk)
	same("MethodDesc", "Flags", clrMethodFlags)
	same("MethodDescChunk", "!", clrChunkBytes)
	same("MethodDescChunk", "MethodTable", 0)
	same("MethodDescChunk", "FlagsAndTokenRange", clrChunkTokens)
	same("HashMap", "Buckets", clrBuckets)
	same("Bucket", "!", clrBucketBytes)
	same("Bucket", "Values", clrBucketBytes/2)
	bits, _ := number(told.Globals["MethodDescTokenRemainderBitCount"])
	version, _ := number(told.Contracts["ExecutionManager"])
	f.tokenBits, f.quickMap = uint(bits), version >= 2
	f.readDebug(told.Types, told.Contracts)
	index, ok := indexOf(told.Globals["ExecutionManagerCodeRangeMapAddress"])
	if !all || !ok || bits == 0 || bits >= clrTokenBits || index >= pointers {
		return nil
	}
	f.rangeMap = index
	return f
}

// readDebug takes from the types of a descriptor where it is told which lines code has. .NET 10 has no contract for what that
// looks like.
func (f *fields) readDebug(types map[string]map[string]any, contracts map[string]any) {
	const gcInfo = 16 // the third pointer, of which the first is that of debug information
	gc, _ := number(types["RealCodeHeader"]["GCInfo"])
	header, ok := number(types["ReadyToRunInfo"]["ReadyToRunHeader"])
	path, ok2 := number(types["Module"]["Path"])
	if _, isOther := contracts["DebugInfo"]; gc == gcInfo && ok && ok2 && !isOther && max(header, path) < maxField {
		f.header, f.path, f.debug = header, path, formPacked
	}
}

// number returns a number of a descriptor: by itself, as text, or with its type behind it.
func number(v any) (n uint64, ok bool) {
	switch v := v.(type) {
	case float64:
		return uint64(v), v >= 0 && v < 1<<53
	case string:
		n, err := strconv.ParseUint(v, 0, 64)
		return n, err == nil
	case []any:
		if len(v) > 0 {
			if _, nested := v[0].([]any); !nested {
				return number(v[0])
			}
		}
	}
	return 0, false
}

// indexOf returns which of the addresses that go with a descriptor stands for something: a number in a
// list of its own, with or without a type.
func indexOf(v any) (n uint64, ok bool) {
	list, _ := v.([]any)
	if len(list) == 0 {
		return 0, false
	}
	if inner, typed := list[0].([]any); typed {
		list = inner
	}
	if len(list) != 1 {
		return 0, false
	}
	return number(list[0])
}
