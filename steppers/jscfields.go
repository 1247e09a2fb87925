package steppers

// Fields of JSC's objects on 64 bits, in bytes from where they begin, as they are in Bun 1.2.21 to 1.4.5. (In
// Source/JavaScriptCore: runtime/JSCell.h, Structure.h, ClassInfo.h, ExecutableBase.h, ScriptExecutable.h, JSFunction.h
// and NativeExecutable.h, bytecode/CodeBlock.h, jit/JITCode.h, parser/SourceProvider.h; in Source/WTF: StringImpl.h.)
const (
	jscStructureClass = 0x50 // of a Structure: a ClassInfo, which begins with its name

	jscBlockUnlinked = 0x38 // of a CodeBlock: the UnlinkedCodeBlock,
	jscBlockOwner    = 0x40 // the ScriptExecutable,
	jscBlockCode     = 0x78 // the JITCode,
	jscBlockData     = 0x80 // and what the compilers but FTL keep (BaselineJITData, DFG::JITData)
	jscBlockBytes    = 0x88

	jscDataSP = 0x10 // of that: where SP is in the frame, from the frame pointer

	jscForCall = 0x08 // of an ExecutableBase: the JITCode for calls,
	jscForNew  = 0x10 // and for new

	jscScriptSource = 0x28 // of a ScriptExecutable: the SourceProvider,
	jscScriptStart  = 0x30 // and where in that it begins and ends, in characters (32 bits each)
	jscNativeName   = 0x40 // of a NativeExecutable

	jscCodeTier   = 0x0c // of a JITCode (8 bits)
	jscCodeEntry  = 0x10
	jscCodeMemory = 0x18 // an ExecutableMemoryHandle, but of FTL
	jscCodeArity  = 0x20 // the entry where the number of arguments is not known to be right
	jscCodeBytes  = 0x28

	// FTL has where its code begins, followed by the memory, at one of these.
	jscFirstFTL = 0x100
	jscLastFTL  = 0x200
	jscFTLArity = 0x18 // behind that, instead of jscCodeArity

	// A CodeOriginPool has where calls are, of code by DFG and FTL: a vector, its capacity and its size (32 bits each).
	jscPoolDFG  = 0x50 // of a JITCode
	jscPoolFTL  = 0x40
	jscPoolAt   = 0x08
	jscPoolSize = 0x14

	// Each is an InlineCallFrame, or 0, with a place in the bytecode in the highest 16 bits.
	jscOriginApart = 1 // the address is one of both apart
	jscOriginNone  = 2
	jscOriginFlags = 7
	jscInlineBlock = 0x08 // of an InlineCallFrame: the CodeBlock,
	jscInlineFrom  = 0x10 // the call, as above,
	jscInlineKind  = 0x1c // and the kind of call, in the highest 4 of 32 bits
	jscInlineBytes = 0x20

	jscFunctionIs  = 0x18 // of a JSFunction: the executable, or a FunctionRareData with
	jscRareBit     = 1    // this set,
	jscRareIs      = 0x30 // of which this is the executable
	jscSourceURL   = 0x48 // of a SourceProvider
	jscStringBytes = 0x14 // of a StringImpl
)

// jscUnlinked are fields that are not where they were in older versions.
type jscUnlinked struct {
	at    uint64 // of a FunctionExecutable: the UnlinkedFunctionExecutable
	codes uint64 // of that: the UnlinkedCodeBlock for calls, the one for new, the name, and what it is called by others,
	// which newer versions have instead of the former
}

// jscUnlinkeds are all that are known: those of Bun until 1.4.2, and from 1.4.3 on.
var jscUnlinkeds = [...]jscUnlinked{{0x58, 0x38}, {0x50, 0x30}}

// jscTier is who makes the code of a CodeBlock (JITType).
type jscTier uint8

const (
	jscInterpreter jscTier = 2 + iota
	jscBaseline
	jscDFG
	jscFTL
)

// jscCallKind is how a function is called that is inlined (InlineCallFrame::Kind).
type jscCallKind uint8

const (
	jscTailCall        jscCallKind = 2
	jscTailCallVarargs jscCallKind = 5
)

// jscClass is what a cell is, as far as that matters.
type jscClass uint8

const (
	jscOther jscClass = iota
	jscFunctionCell
	jscCalleeCell
	jscRareCell
	jscFunctionBlock
	jscFileBlock // of a file, a module or what is evaluated
	jscFunctionExecutable
	jscFileExecutable
	jscModuleExecutable
	jscEvalExecutable
	jscNativeExecutable
	jscUnlinkedFunction
	jscUnlinkedBlock
)

// jscClasses are the names of classes.
var jscClasses = map[string]jscClass{
	"Function":                   jscFunctionCell,
	"Callee":                     jscCalleeCell,
	"FunctionRareData":           jscRareCell,
	"FunctionCodeBlock":          jscFunctionBlock,
	"ProgramCodeBlock":           jscFileBlock,
	"ModuleProgramCodeBlock":     jscFileBlock,
	"EvalCodeBlock":              jscFileBlock,
	"FunctionExecutable":         jscFunctionExecutable,
	"ProgramExecutable":          jscFileExecutable,
	"ModuleProgramExecutable":    jscModuleExecutable,
	"EvalExecutable":             jscEvalExecutable,
	"NativeExecutable":           jscNativeExecutable,
	"UnlinkedFunctionExecutable": jscUnlinkedFunction,
	"UnlinkedFunctionCodeBlock":  jscUnlinkedBlock,
}

const maxJSCClassName = 32 // bytes, with the 0 behind

// stays reports whether all structures of the class are there as long as the machine.
func (c jscClass) stays() bool { return c > jscCalleeCell }
