package jsc

// Fields of JSC's objects on 64 bits, in bytes from where they begin, as they are in Bun 1.2.21 to 1.4.5. (In
// Source/JavaScriptCore: runtime/JSCell.h, Structure.h, ClassInfo.h, ExecutableBase.h, ScriptExecutable.h, JSFunction.h
// and NativeExecutable.h, bytecode/CodeBlock.h, jit/JITCode.h, parser/SourceProvider.h; in Source/WTF: StringImpl.h.)
const (
	structureClass = 0x50 // of a Structure: a ClassInfo, which begins with its name

	blockGlobal   = 0x08 // of a CodeBlock: the global object,
	blockUnlinked = 0x38 // the UnlinkedCodeBlock,
	blockOwner    = 0x40 // the ScriptExecutable,
	blockBytes    = 0x88

	dataSP = 0x10 // of that: where SP is in the frame, from the frame pointer

	forCall = 0x08 // of an ExecutableBase: the JITCode for calls,
	forNew  = 0x10 // and for new

	scriptSource = 0x28 // of a ScriptExecutable: the SourceProvider,
	scriptStart  = 0x30 // and where in that it begins and ends, in characters; until 1.4.2 the line and column of the former, too (32 bits each)
	nativeName   = 0x40 // of a NativeExecutable

	codeTier   = 0x0c // of a JITCode (8 bits)
	codeEntry  = 0x10
	codeMemory = 0x18 // an ExecutableMemoryHandle, but of FTL
	codeArity  = 0x20 // the entry where the number of arguments is not known to be right
	codeBytes  = 0x28

	// FTL has where its code begins, followed by the memory, at one of these.
	firstFTL = 0x100
	lastFTL  = 0x200
	ftlArity = 0x18 // behind that, instead of codeArity

	// A CodeOriginPool has where calls are, of code by DFG and FTL: a vector, its capacity and its size (32 bits each).
	poolDFG  = 0x50 // of a JITCode
	poolFTL  = 0x40
	poolAt   = 0x08
	poolSize = 0x14

	// Each is an InlineCallFrame, or 0, with a place in the bytecode in the highest 16 bits.
	originApart      = 1 // the address is one of both apart
	originApartBytes = 16
	originNone       = 2
	originFlags      = 7
	inlineBlock      = 0x08 // of an InlineCallFrame: the CodeBlock,
	inlineFrom       = 0x10 // the call, as above,
	inlineKind       = 0x1c // and the kind of call, in the highest 4 of 32 bits
	inlineBytes      = 0x20

	functionIs  = 0x18 // of a JSFunction: the executable, or a FunctionRareData with
	rareBit     = 1    // this set,
	rareIs      = 0x30 // of which this is the executable
	sourceURL   = 0x48 // of a SourceProvider
	stringBytes = 0x14 // of a StringImpl
)

// unlinked are fields that are not where they were in older versions.
type unlinked struct {
	at    uint64 // of a FunctionExecutable: the UnlinkedFunctionExecutable
	codes uint64 // of that: the UnlinkedCodeBlock for calls, the one for new, the name, and what it is called by others,
	// which newer versions have instead of the former
}

// unlinkeds are all that are known: those of Bun until 1.4.2, and from 1.4.3 on.
var unlinkeds = [...]unlinked{{0x58, 0x38}, {0x50, 0x30}}

// blockCodes are where a CodeBlock has the JITCode, and behind it what the compilers but FTL keep (BaselineJITData,
// DFG::JITData): Bun 1.4.1 in the second.
var blockCodes = [...]uint64{0x78, 0x80}

// compilerTier is who makes the code of a CodeBlock (JITType).
type compilerTier uint8

const (
	interpreter compilerTier = 2 + iota
	baseline
	dfg
	ftl
)

// callKind is how a function is called that is inlined (InlineCallFrame::Kind).
type callKind uint8

const (
	tailCall        callKind = 2
	tailCallVarargs callKind = 5
)

// class is what a cell is, as far as that matters.
type class uint8

const (
	other class = iota
	functionCell
	regExpCell
	calleeCell
	rareCell
	functionBlock
	fileBlock // of a file, a module or what is evaluated
	functionExecutable
	fileExecutable
	moduleExecutable
	evalExecutable
	nativeExecutable
	unlinkedFunction
	unlinkedBlock
)

// classes are the names of classes.
var classes = map[string]class{
	"Function":                   functionCell,
	"RegExp":                     regExpCell,
	"Callee":                     calleeCell,
	"FunctionRareData":           rareCell,
	"FunctionCodeBlock":          functionBlock,
	"ProgramCodeBlock":           fileBlock,
	"ModuleProgramCodeBlock":     fileBlock,
	"EvalCodeBlock":              fileBlock,
	"FunctionExecutable":         functionExecutable,
	"ProgramExecutable":          fileExecutable,
	"ModuleProgramExecutable":    moduleExecutable,
	"EvalExecutable":             evalExecutable,
	"NativeExecutable":           nativeExecutable,
	"UnlinkedFunctionExecutable": unlinkedFunction,
	"UnlinkedFunctionCodeBlock":  unlinkedBlock,
}

const maxClassName = 32 // bytes, with the 0 behind

// stays reports whether all structures of the class are there as long as the machine.
func (c class) stays() bool { return c > calleeCell }
