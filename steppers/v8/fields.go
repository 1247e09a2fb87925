package v8

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
)

// image is what is known of a file that may hold V8.
type image struct {
	fields      *fields       // nil: it does not
	interpreter []mcode.Range // the code that runs bytecode

	blob      *blob       // where there are no symbols of that,
	names     []string    // what that has, by number; nil: that is not known yet,
	asked     time.Time   // and was asked then
	lazy      mcode.Range // of these, what has functions of WebAssembly compiled when they are called: it takes a word off the stack first
	builtins  mcode.Range // code that V8 has compiled when it was built
	generator generator
	linked    *linkedCode // of that, where calls leave the return address in a register,
	entries   []entry     // and without symbols: what calls JavaScript from C++

	prologues []setup // that set up frames for what the baseline compilers have made, of JavaScript and of WebAssembly

	// Where frames go on that were made anew as their optimised code was given up: code that
	// begins there, by what it is called.
	resumes map[uint64]string
}

// setup is code that sets up the frame of what has called it, and what is known of each byte of that.
type setup struct {
	start  uint64
	places []unframed
}

// fields are where V8 has what is read of it: offsets in bytes, unless something else is
// said. Most are from the variables by which it tells debuggers (v8dbg_, gen-postmortem-metadata.py).
type fields struct {
	shared uint64 // JSFunction: its SharedFunctionInfo
	name   uint64 // SharedFunctionInfo: name, or ScopeInfo
	script uint64

	scriptFunctions uint64 // Script: its functions

	// Instance types.
	sharedType, bytecodeType, codeType, streamType uint16
	scopeType, scriptType, listType, arrayType     uint16
	interpreterDataType                            uint16

	plainLengths bool // those of arrays are no small integers, but have 32 bits

	split     bool   // Code is not in the object that has the instructions, but that points to it
	header    uint64 // of that object
	codeStart uint64 // Code: address of the first instruction, where it is split
	codeSize  uint64
	codeFlags uint64
	codeData  uint64 // its DeoptimizationData or, of baseline code, bytecode
	positions uint64 // its table of source positions
	baseline  uint32 // kind of code of the baseline compiler; the next two are of the optimising ones
	regExp    uint32 // how far before that the kind of regular expressions is

	// DeoptimizationData, indices.
	inlinedCount, literals, optimized, inlining uint64

	// Pointers are compressed, and V8 has a sandbox, see handleTable.
	compressed     bool
	feedback       uint64 // FeedbackVector: its SharedFunctionInfo
	bytecodeLength uint64 // BytecodeArray: length

	positionFlags     uint   // bits of flags of offsets in tables of source positions
	bytecodePositions uint64 // BytecodeArray: its table of source positions
	bytecodeData      uint64
	sizes             [3][]byte // of bytecodes: as they are, with wider operands, with still wider ones

	wasm wasmFields

	// ScopeInfo, indices.
	locals, firstLocal uint64
	moduleScope        uint64 // kind of scope
}

// Offsets that are the same in all versions.
const (
	v8MapType         = 12 // Map: instance type
	v8FunctionData    = 8  // SharedFunctionInfo: BytecodeArray, InterpreterData or Code
	v8InterpreterData = 8  // InterpreterData: BytecodeArray
	v8Wrapped         = 8  // SharedFunctionInfoWrapper: SharedFunctionInfo
	v8StreamCode      = 8  // InstructionStream: Code

	v8Length = 8 // FixedArray and ByteArray: elements
	v8Data   = 16

	v8ScriptSource     = 8
	v8ScriptName       = 16
	v8ScriptLineOffset = 24
	v8ScriptLineEnds   = 56

	v8CodeKindMask = 15
	lateRegExp     = 7  // regExp from V8 12 on
	v8CodeBytes    = 72 // of Code that all fields are in
	v8ScopeFlags   = 8

	// The index of the first local variable where that comes behind where the function begins
	// and ends: from V8 13 on, or 12.9.
	v8LateLocals = 5
	v8ScopeStart = 3
)

// Names of variables: what those by which V8 tells something begin with, V8's major version, and
// how long its bytecodes are.
const (
	v8Tells  = "v8dbg_"
	toldKind = "CodeKindBaseline" // which all tell
	v8Major  = "_ZN2v88internal7Version6major_E"
	v8Sizes  = "_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE"
)

// Names of code of V8 itself: what runs bytecode, and where frames go on that were made anew.
const (
	own         = "Builtins_"
	interpreter = "Builtins_InterpreterEntryTrampoline"
	enters      = "Builtins_InterpreterEnterAt"
	resume      = "Builtins_ResumeGeneratorTrampoline"
	prologue    = "Builtins_BaselineOutOfLinePrologue"
	lazy        = "Builtins_WasmCompileLazy"
	liftoff     = "Builtins_WasmLiftoffFrameSetup"

	maxPrologue = 2 << 10 // bytes of it
)

var resumes = [...]string{enters, "Builtins_BaselineOrInterpreterEnterAt", "Builtins_ContinueTo", "Builtins_RestartFrameTrampoline"}

// tellsOfV8 reports whether a file has V8 and exports what that tells debuggers, as Node does, and applications
// that Node has been put into. Debian's chromium-headless-shell exports V8, but not that.
func tellsOfV8(im *procstate.Image) bool {
	if beyond[im.Arch()] == 0 {
		return false
	}
	_, exports := im.ExportedSymbol(v8Major)
	_, tells := im.ExportedSymbol(v8Tells + toldKind)
	return exports && tells
}

// toldMajor returns the major version of the V8 in a file that exports it, 0 where none does.
func toldMajor(im *procstate.Image) uint32 {
	var b [4]byte
	if sym, ok := im.ExportedSymbol(v8Major); !ok || im.ReadVaddr(b[:], sym.Value) != nil {
		return 0
	}
	return binary.LittleEndian.Uint32(b[:])
}

// hasOwnSymbols reports whether a file has symbols of V8's own code.
func hasOwnSymbols(im *procstate.Image) (has bool) {
	im.EachSymbolOf(".symtab", func(*procstate.ELFSymbol) bool {
		has = true
		return false
	}, interpreter)
	return has
}

// Builtins returns the code that V8 has compiled when it was built, which is entered where functions
// begin only: at starts, where the file does not tell that itself.
func Builtins(im *procstate.Image) (r mcode.Range, starts []uint64) {
	if b := findBlob(im); b != nil {
		for _, f := range b.builtins {
			starts = append(starts, f.Start)
		}
		return b.code, starts
	}
	if !tellsOfV8(im) {
		return r, nil
	}
	im.EachSymbolOf(".symtab", func(sym *procstate.ELFSymbol) bool {
		if r.End == 0 || sym.Value < r.Start {
			r.Start = sym.Value
		}
		r.End = max(r.End, sym.Value+sym.Size)
		return true
	}, own)
	return r, nil
}

// find looks for V8 in a file.
func find(im *procstate.Image) (p image) {
	p.blob = findBlob(im)
	switch {
	case tellsOfV8(im):
		p.fields = toldFields(im)
	case p.blob == nil:
	case p.blob.compressed:
		p.fields = compressedFields(p.blob.sizes)
	default:
		p.fields = embeddedFields(p.blob.version, p.blob.sizes)
	}
	if p.blob == nil && p.fields == nil {
		return p
	}
	if im.Arch().LR != procstate.NoReg {
		p.linked = &linkedCode{}
	}
	if p.blob != nil {
		p.builtins = p.blob.code
		p.name(im, p.blob.names)
		if p.fields != nil {
			p.fields.sizes = p.blob.sizes
		}
		return p
	}
	var sizes []byte
	im.EachSymbolOf(".symtab", func(sym *procstate.ELFSymbol) bool {
		if name := string(sym.Name); name != v8Sizes {
			p.note(im, name, mcode.Range{Start: sym.Value, End: sym.Value + sym.Size})
		} else if sym.Size <= 3*256 {
			sizes = mcode.ReadFile(im, sym.Value, sym.Value+sym.Size)
		}
		return true
	}, own, v8Sizes)
	p.builtins, _ = Builtins(im)
	for i := range p.fields.sizes {
		n := len(sizes) / len(p.fields.sizes)
		p.fields.sizes[i] = sizes[i*n : (i+1)*n]
	}
	return p
}

// toldFields finds the fields by what V8 tells debuggers, nil where that is not all.
func toldFields(im *procstate.Image) *fields {
	told := map[string]uint64{} // by which names V8 tells something, and where
	im.EachSymbolOf(".dynsym", func(sym *procstate.ELFSymbol) bool {
		told[strings.TrimPrefix(string(sym.Name), v8Tells)] = sym.Value
		return true
	}, v8Tells, v8Major)
	return fieldsOf(told, func(vaddr uint64) uint64 {
		var b [4]byte
		if im.ReadVaddr(b[:], vaddr) != nil {
			return 0 // it is in .bss
		}
		return uint64(binary.LittleEndian.Uint32(b[:]))
	})
}

// name notes what V8's own functions are called, by number.
func (p *image) name(im *procstate.Image, names []string) {
	if names == nil {
		return
	}
	p.names = names
	for _, b := range p.blob.builtins {
		p.note(im, own+names[b.number], b.Range)
	}
}

// note notes one of V8's own functions, if it is one that frames are walked by.
func (p *image) note(im *procstate.Image, name string, at mcode.Range) {
	if slices.ContainsFunc(resumes[:], func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		if p.resumes == nil {
			p.resumes = map[uint64]string{}
		}
		p.resumes[at.Start] = name
	}
	if p.linked != nil {
		p.linked.note(name, at)
		if slices.Contains(entryNames[:], name) && p.blob != nil {
			p.entries = append(p.entries, entry{at, entryAbove(im.Arch(), mcode.ReadFile(im, at.Start, min(at.End, at.Start+maxLinkedBytes)))})
		}
	}
	switch {
	case strings.HasPrefix(name, interpreter), p.linked != nil && strings.HasPrefix(name, enters): // there it calls what runs bytecode
		p.interpreter = append(p.interpreter, at)
	case p.linked != nil:
	case name == prologue || name == liftoff:
		code := mcode.ReadFile(im, at.Start, min(at.End, at.Start+maxPrologue))
		p.prologues = append(p.prologues, setup{at.Start, findPrologue(im.Arch(), code, at.Start)})
	case name == lazy:
		p.lazy = at
	case name == resume:
		p.generator = findGenerator(im, at.Start, at.End)
	}
}

// fieldsOf finds the fields by what V8 tells, nil where that is not all. Names of members
// end in their types, which are others in other versions.
func fieldsOf(told map[string]uint64, read func(vaddr uint64) uint64) *fields {
	const first, last, flagged = 10, 14, 14 // major versions that are known, and that has other tables
	f, all := &fields{}, true
	get := func(names ...string) (uint64, bool) {
		for _, name := range names {
			if at, ok := told[name]; ok {
				return read(at), true
			}
			if !strings.HasSuffix(name, "__") {
				continue
			}
			for full, at := range told {
				if strings.HasPrefix(full, name) {
					return read(at), true
				}
			}
		}
		return 0, false
	}
	must := func(names ...string) uint64 {
		v, ok := get(names...)
		all = all && ok
		return v
	}
	major := must(v8Major)
	f.feedback, f.bytecodeLength = feedbackShared, v8Length
	f.scriptFunctions = 88
	f.positionFlags = 1
	f.wasm = wasmFieldsOf(major)
	if f.regExp = lateRegExp; major < 12 {
		f.regExp++ // and JS_TO_JS_FUNCTION is between them
	}
	if major >= flagged {
		f.positionFlags = 2
	}
	f.shared = must("class_JSFunction__shared__")
	f.name = must("class_SharedFunctionInfo__name_or_scope_info__")
	f.script = must("class_SharedFunctionInfo__script__", "class_SharedFunctionInfo__script_or_debug_info__")
	for name, to := range map[string]*uint16{
		"SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE": &f.sharedType,
		"BytecodeArray__BYTECODE_ARRAY_TYPE":            &f.bytecodeType,
		"Code__CODE_TYPE":                               &f.codeType,
		"ScopeInfo__SCOPE_INFO_TYPE":                    &f.scopeType,
		"Script__SCRIPT_TYPE":                           &f.scriptType,
		"WeakFixedArray__WEAK_FIXED_ARRAY_TYPE":         &f.listType,
		"FixedArray__FIXED_ARRAY_TYPE":                  &f.arrayType,
		"InterpreterData__INTERPRETER_DATA_TYPE":        &f.interpreterDataType,
	} {
		*to = uint16(must("type_" + name))
	}
	f.baseline = uint32(must(toldKind))
	f.locals, f.firstLocal = must("scopeinfo_idx_ncontextlocals"), must("scopeinfo_idx_first_vars")
	f.moduleScope = 3
	if f.firstLocal == v8LateLocals {
		f.moduleScope = 5
	}
	f.bytecodeData = must("class_BytecodeArray__data__")
	f.bytecodePositions = 32
	if _, ok := get("class_BytecodeArray__wrapper__"); ok {
		f.bytecodePositions = 24
	}

	f.header, f.split = get("class_InstructionStream__instruction_start__")
	_, tells := get("class_Code__instruction_start__Address")
	switch {
	case !f.split: // V8 10
		f.header = must("class_Code__instruction_start__")
		f.codeSize, f.codeFlags = must("class_Code__instruction_size__"), must("class_Code__flags__")
		f.codeData, f.positions = 16, 24
	case tells: // 12 and later
		f.codeStart = must("class_Code__instruction_start__")
		f.codeSize, f.codeFlags = must("class_Code__instruction_size__"), must("class_Code__flags__")
		f.codeData, f.positions = 8, 16
	default: // 11.3
		f.codeData, f.positions = must("class_Code__deoptimization_data__"), must("class_Code__source_position_table__")
		f.codeStart, f.codeFlags, f.codeSize = 40, 48, 56
		all = all && f.codeData == 16
	}
	if f.split {
		f.streamType = uint16(must("type_InstructionStream__INSTRUCTION_STREAM_TYPE"))
	} else {
		f.streamType = f.codeType
	}
	var ok bool
	if f.inlinedCount, ok = get("DeoptimizationDataInlinedFunctionCountIndex"); ok {
		f.literals = must("DeoptimizationDataLiteralArrayIndex")
		f.optimized = must("DeoptimizationDataSharedFunctionInfoIndex", "DeoptimizationDataSharedFunctionInfoWrapperIndex",
			"DeoptimizationDataWrappedSharedFunctionInfoIndex")
		f.inlining = must("DeoptimizationDataInliningPositionsIndex")
	} else {
		f.inlinedCount, f.literals, f.optimized, f.inlining = 1, 2, 6, 7
	}
	if !all || major < first || major > last || f.codeSize > v8CodeBytes-4 || f.codeFlags > v8CodeBytes-4 || f.codeStart > v8CodeBytes-8 ||
		f.header < 16 || f.header > 256 || f.header%8 != 0 || f.firstLocal > 16 || f.locals > 16 {
		return nil
	}
	return f
}
