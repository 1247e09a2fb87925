package python

// CPython keeps of each thread (pycore_pystate.h, pycore_frame.h):
//
//	PyThreadState         the frame that runs, or a _PyCFrame with it; and where the thread's
//	                      stack of frames is, [datastack_chunk, datastack_top)
//	_PyCFrame             on the C stack, one for each call of the interpreter's function; to 3.12
//	_PyInterpreterFrame   the code object, the instruction, and the frame before: of functions, and
//	                      from 3.12 on one on the C stack, for each call of the interpreter's function
//
// To 3.10 they are objects, see objects.go.

// layout is the offsets of fields in CPython's structures.
type layout struct {
	interpreters             uint64 // of _PyRuntime, the first interpreter
	nextInterpreter, threads uint64 // of a PyInterpreterState
	debugOffsets             bool   // _PyRuntime tells these itself
	isFree                   bool   // built without the lock of all interpreters
	more                     uint64 // what objects begin with beside the 16 bytes that are usual

	gil     uint64 // of _PyRuntime, the lock of all interpreters, or
	gilOf   uint64 // of a PyInterpreterState, what refers to its lock, or
	gilTold uint64 // of _PyRuntime, where it tells that

	nextThread          uint64 // of a PyThreadState
	id                  uint64 // the kernel's number of the thread; with isObject its thread pointer
	current             uint64 // its _PyCFrame or its frame,
	chunk, top          uint64 // and its stack
	threadBytes         uint64
	hasCFrame           bool
	cFrame, outerCFrame uint64 // of a _PyCFrame, its frame and the one before

	code, instruction, previous uint64 // of a frame
	owner                       uint64
	isEntry                     uint64 // 0: there is none
	isObject                    bool   // frames are objects, one for each call of the interpreter's function

	fileName, qualName, firstLine uint64 // of a code object
	lineTable, bytecode           uint64
	copies                        uint64                                         // of a code object, where threads' copies of its code are told; 0: they have none
	lines                         func(table []byte, first, instruction int) int // reads the lineTable

	asciiBytes, compactBytes uint64 // of a str, what is before its characters

	asyncio asyncioLayout
}

// asyncioLayout is what leads to tasks and, through coroutines, to what they wait for.
type asyncioLayout struct {
	modules     uint64 // of a PyInterpreterState: the modules by their names, or
	modulesTold uint64 // of _PyRuntime, where it tells that
	cachedKeys  uint64 // of a class, the names of what its objects have
	attributes  attributes

	state, waiter, coroutine, name uint64 // of a task; name 0: it has none

	frame      uint64 // of a coroutine: where its frame is, or with isObject where that is told
	frameState uint64 // and what that is doing; with isObject of the frame, 0: there is none
	states     *frameStates
	stackTop   uint64 // of a frame: where its stack ends, or
	stackDepth uint64 // how many words are on it
	words      uint64 // of a frame: its variables and, behind these, its stack; with isObject where its stack is told
	variables  uint64 // of a frame object
	awaited    uint64 // how far below its end is what a coroutine awaits, in words
}

// versions are the fields by version, major and minor in a byte each. Releases of a
// version have the same but for those that debugOffsets is for.
var versions = map[uint32]*layout{
	0x0307: ofObjects(layout{
		interpreters: 24, gil: 1264, instruction: 104, fileName: 96, qualName: 104, firstLine: 36, lineTable: 112, lines: lineOld,
		asyncio: asyncioLayout{modules: 40, state: 72, waiter: 104, coroutine: 112, stackTop: 72, variables: 360},
	}),
	0x0308: ofObjects(layout{
		interpreters: 32, gil: 1152, instruction: 104, fileName: 104, qualName: 112, firstLine: 40, lineTable: 120, lines: lineOld,
		asyncio: asyncioLayout{modules: 56, state: 72, waiter: 104, coroutine: 112, name: 120, stackTop: 72, variables: 360},
	}),
	0x0309: ofObjects(layout{
		interpreters: 32, gil: 352, instruction: 104, fileName: 104, qualName: 112, firstLine: 40, lineTable: 120, lines: lineOld,
		asyncio: asyncioLayout{modules: 856, state: 80, waiter: 144, coroutine: 152, name: 160, stackTop: 72, variables: 360},
	}),
	0x030a: ofObjects(layout{
		interpreters: 32, gil: 352, instruction: 96, fileName: 104, qualName: 112, firstLine: 40, lineTable: 120, lines: line310,
		asyncio: asyncioLayout{modules: 856, state: 88, waiter: 152, coroutine: 160, name: 168, frameState: 108, stackDepth: 80, words: 64, variables: 352},
	}),
	0x030b: {
		interpreters: 40, gil: 360, nextInterpreter: 0, threads: 16, nextThread: 8, id: 160, current: 56, chunk: 296, top: 304, threadBytes: 312,
		hasCFrame: true, cFrame: 8, outerCFrame: 16, code: 32, instruction: 56, previous: 48, isEntry: 68, owner: 69,
		fileName: 112, qualName: 128, firstLine: 72, lineTable: 136, bytecode: 184, asciiBytes: 48, compactBytes: 72, lines: line,
		asyncio: asyncioLayout{modules: 888, attributes: besideDict, cachedKeys: 872, state: 88, waiter: 128, coroutine: 136, name: 144, frame: 80, frameState: 75, states: &states310, stackDepth: 64, words: 72, awaited: 1},
	},
	0x030c: {
		interpreters: 40, gilOf: 384, nextInterpreter: 0, threads: 72, nextThread: 8, id: 144, current: 56, chunk: 232, top: 240, threadBytes: 248,
		hasCFrame: true, cFrame: 0, outerCFrame: 8, code: 0, instruction: 56, previous: 8, owner: 70,
		fileName: 112, qualName: 128, firstLine: 68, lineTable: 136, bytecode: 192, asciiBytes: 40, compactBytes: 56, lines: line,
		asyncio: asyncioLayout{modules: 944, attributes: insteadOfDict, cachedKeys: 880, state: 88, waiter: 128, coroutine: 136, name: 144, frame: 72, frameState: 67, states: &states310, stackDepth: 64, words: 72, awaited: 1},
	},
	0x030d: {
		debugOffsets: true, gilTold: 112, nextThread: 8, id: 160, current: 72, chunk: 232, top: 240, threadBytes: 248,
		code: 0, instruction: 56, previous: 8, owner: 70,
		fileName: 112, qualName: 128, firstLine: 68, lineTable: 136, bytecode: 200, asciiBytes: 40, compactBytes: 56, lines: line,
		asyncio: asyncioLayout{modulesTold: 88, attributes: inObject, cachedKeys: 880, state: 96, waiter: 112, coroutine: 120, name: 128, frame: 72, frameState: 67, states: &states313, stackDepth: 64, words: 72, awaited: 1},
	},
	0x030e: {
		debugOffsets: true, gilTold: 120, nextThread: 8, id: 160, current: 72, chunk: 232, top: 240, threadBytes: 248,
		code: 0, instruction: 56, previous: 8, owner: 74,
		fileName: 112, qualName: 128, firstLine: 68, lineTable: 136, bytecode: 208, asciiBytes: 40, compactBytes: 56, lines: line,
		asyncio: asyncioLayout{modulesTold: 96, attributes: inObject, cachedKeys: 880, state: 104, waiter: 120, coroutine: 128, name: 136, frame: 72, frameState: 67, states: &states313, stackTop: 64, words: 80, awaited: 1},
	},
	0x030f: {
		debugOffsets: true, gilTold: 120, nextThread: 8, id: 184, current: 72, chunk: 256, top: 264, threadBytes: 272,
		code: 0, instruction: 56, previous: 8, owner: 74,
		fileName: 112, qualName: 128, firstLine: 68, lineTable: 136, bytecode: 208, asciiBytes: 40, compactBytes: 56, lines: line,
		asyncio: asyncioLayout{modulesTold: 96, attributes: inObject, cachedKeys: 888, state: 104, waiter: 120, coroutine: 128, name: 136, frame: 72, frameState: 67, states: &states315, stackTop: 64, words: 80, awaited: 2},
	},
}

// freeThreaded returns the fields of a version that was built without the lock of all interpreters: objects have an
// owner, a lock and two counts of references, and from 3.14 on each thread a copy of the code that it runs.
func freeThreaded(f layout) *layout {
	const more, copies, index = 16, 8, 4
	f.isFree, f.more = true, more
	hasCopies := f.asyncio.stackTop != 0
	for _, field := range []*uint64{
		&f.fileName, &f.qualName, &f.firstLine, &f.lineTable, &f.bytecode, &f.asciiBytes, &f.compactBytes,
		&f.asyncio.cachedKeys, &f.asyncio.state, &f.asyncio.waiter, &f.asyncio.coroutine, &f.asyncio.name,
		&f.asyncio.frame, &f.asyncio.frameState,
	} {
		*field += more
	}
	if hasCopies {
		f.copies = f.bytecode
		f.bytecode += copies
		f.owner += index // of the thread's copy
	}
	return &f
}

// ofObjects completes the fields of a version, of which those that are the same in all
// are left out.
func ofObjects(f layout) *layout {
	f.isObject, f.threads, f.nextThread, f.current, f.id, f.threadBytes = true, 8, 8, 24, 176, 184
	f.previous, f.code, f.asciiBytes, f.compactBytes = 24, 32, 48, 72
	f.asyncio.frame, f.asyncio.awaited, f.asyncio.states = 16, 1, &states310
	return &f
}

// maxFrameBytes and objectBytes are as much of a frame as all fields are in, of any version.
const (
	maxFrameBytes = 80
	objectBytes   = 112
)

// frameBytes is that of this version.
func (f *layout) frameBytes() int {
	if f.isObject {
		return objectBytes
	}
	return int(f.owner)&^7 + 8
}

// typeOf is where an object refers to its class.
func (f *layout) typeOf() uint64 { return 8 + f.more }

// headBytes is as much of an object as that is in, of any version.
const headBytes = 32

// tagBits are the bits of a frame's pointer to its code object that are not part of it, from 3.14 on.
const tagBits = 3

// attributes is where the values are that an object of a class written in Python has.
type attributes uint8

const (
	inDict        attributes = iota // to 3.10
	besideDict                      // or by a pointer of the object: 3.11
	insteadOfDict                   // or by the same pointer: 3.12
	inObject                        // or in the object
)

// frameStates are what a version writes for what the frame of a coroutine is doing.
type frameStates struct {
	created, yielded, executing int8
	awaits                      int8 // it has yielded what it awaits has; otherwise that is yielded, too, and the code tells
}

var (
	states310 = frameStates{created: -2, yielded: -1, executing: 0, awaits: -1}
	states313 = frameStates{created: -3, yielded: -2, executing: 0, awaits: -1}
	states315 = frameStates{created: 0, yielded: 1, executing: 4, awaits: 2}
)

// Owners of frames.
const ownedByCStack = 3
