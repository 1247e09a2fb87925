package spidermonkey

// Fields of SpiderMonkey's objects on 64 bits, in bytes from where they begin, as they are in mozjs 102 and in Firefox 153.
// (In js/src: vm/JSFunction.h, vm/JSScript.h, vm/SharedStencil.h, jit/JitCode.h, jit/JitScript.h, jit/BaselineJIT.h,
// jit/IonScript.h; js/public/shadow has some.) What is elsewhere in one or the other is learned: see smLearned.
const (
	functionFlags  = 0x18 // of a JSFunction, whose slots these are: its flags and, above 16 of these, how many parameters it has,
	functionScript = 0x28 // its script,
	functionAtom   = 0x30 // and its name
	functionBytes  = 0x38
	hasScript      = 1 << 5     // in the flags: that is its script
	smallInteger   = 0xfff88000 // in the upper half of a value: the lower is one
	stringTag      = 0x1fff6    // above the 47 bits of a value's address: it is a string
	addressInValue = 1<<47 - 1  // these bits

	scriptWarmUp   = 0x08 // of a BaseScript: the JitScript, or with a bit set something else,
	scriptFunction = 0x10 // the function that it is of, or 0,
	scriptSource   = 0x18 // the ScriptSourceObject,
	scriptExtent   = 0x20 // where it is in the source (see smExtent),
	scriptShared   = 0x48 // and the SharedImmutableScriptData
	scriptBytes    = 0x50

	sharedData = 0x08 // of that: the ImmutableScriptData

	dataOptional = 0x00 // of an ImmutableScriptData: where in it there are arrays that it need not have, behind where these end (32 bits each),
	dataLength   = 0x04 // and how many bytes its bytecode has (32 bits)
	dataFlags    = 0x20 // how many such ends there are, in bits 4 and 5,
	dataCode     = 0x21 // and the bytecode, then the source notes

	sourceSlots = 0x18 // of a ScriptSourceObject: the ScriptSource, or something else and then that
	sourceFirst = 0x60 // of a ScriptSource: the name of the file is the first string from here on,
	sourceBytes = 0x90

	stringChars = 0x08 // of a JSString, behind flags and length (32 bits each): its characters, or where these are
	isAtom      = 1 << 3
	isLinear    = 1 << 4
	isInline    = 1 << 6

	codeSize = 0x14 // of a JitCode, behind where that begins: bytes of instructions (32 bits)
	codeCell = 8    // before these: the JitCode

	// A JitScript has a BaselineScript, or a small number, and after that the same of an IonScript. Both have a JitCode.
	jitScriptBytes = 0xa0
	ionBytes       = 0x80

	baselineReturns    = 0x20 // of a BaselineScript: where in it there is a table of its calls (32 bits),
	baselineReturnsEnd = 0x24 // and where that ends (32 bits)
)

// Parts of a frame of JavaScript, by their distance from the frame pointer, or from where that would be: the return address
// comes next. (jit/JitFrames.h, jit/BaselineFrame.h.)
const (
	smReturn     = 8
	smDescriptor = 16 // what kind of frame the caller has,
	smPopped     = 8  // which code that returns may have taken off the stack
	smToken      = 24 // the function, or the script with a bit set
	smArguments  = 32 // their number, in frames of known size

	smTokenScript = 2
	smTokenMask   = 3

	smFrameScript = -72 // in frames of the baseline interpreter: the script,
	smFramePC     = -64 // where it is in its bytecode,
	smFrameFlags  = -16
	smInterpreted = 1 << 1 // in the flags: it runs there
)

// frameType is what kind of frame a caller has (jit::FrameType).
type frameType uint8

const (
	ionFrame frameType = iota
	baselineFrame
	stubFrame // of code that serves one operation of a function
	entryFrame
	lastFrame frameType = 11
)

// Frames of known size have that in the descriptors of what they call, and how large the callee's own part is, in
// words. (FRAMESIZE_SHIFT in mozjs 102.)
const (
	typeMask    = 15
	headerShift = 4
	headerMask  = 7
	sizeShift   = 8
	jsHeader    = 4 // words: of a function's frame,
	otherHeader = 2 // and of code that serves one, at least

	maxFrame = 1 << 20 // bytes
)

// class is what a cell is.
type class uint8

const (
	unknown class = iota
	functionClass
	sourceClass
)

// classes are their names.
var classes = map[string]class{"Function": functionClass, "ScriptSource": sourceClass}
