package lua

// Lua keeps of what it runs (lstate.h, lobject.h, lfunc.h):
//
//	lua_State  a coroutine, or what runs outside of any: the call that runs, and a stack of values
//	CallInfo   a call of a function of Lua or of C: where on that stack the function is, the
//	           instruction that comes next, and the call before; in 5.1 they are in an array
//	LClosure   a function of Lua as a value
//	Proto      what it does: instructions, lines, and the name of the source
//
// One luaV_execute runs a call and those that are called from there by instructions for that.
// Metamethods, iterators and what functions of C call have another one.

// fields are the offsets of fields in Lua's structures, of builds with 64 bits.
type fields struct {
	version          int    // 51 is 5.1
	state            uint64 // bytes of a lua_State up to all that is read here,
	global, ci       uint64 // its global_State and call
	top              uint64 // where its stack of values ends
	hook             uint64 // its allowhook; 0: not needed
	callBytes        uint64 // of a CallInfo
	function         uint64
	previous         uint64 // 0: they are in an array
	status           uint64
	isC, isLua       uint16 // bits in status: one is 0, and not asked for
	isFresh, isInner uint16 // the same: whether a luaV_execute begins with the call
	next             uint64
	hasNext          bool // next is right while an instruction runs, too

	proto                             uint64 // of a LClosure
	protoType                         byte
	source, code, lines, absolute     uint64 // of a Proto
	codeCount, lineCount, absoluteNum uint64
	lineDefined                       uint64
	protos, protoCount                uint64
	constants, constantCount          uint64
	locals, localCount                uint64
	upvalues, upvalueCount            uint64
	upvalueBytes                      uint64
	upvalueHolds                      uint64 // of an UpVal: where its value is

	nodes                int // of a Table: its hash table,
	nodeBytes            int // in which a node has so many,
	nodeKey, nodeKeyType int // and its key there

	opBits                    uint // of an instruction
	opCall, opTail, opClosure uint32

	// What stores into a global variable in 5.1, a field of an upvalue later, a field, and an upvalue.
	opSetGlobal, opSetTabUp, opSetField, opSetUpvalue uint32
}

// versions are the fields by version: 5.3 from 5.3.3 on.
var versions = map[int]*fields{
	51: {
		version: 51, state: 104, global: 32, ci: 40, top: 16, hook: 101, callBytes: 40, function: 8, next: 24,
		proto: 32, protoType: 9, source: 64, code: 24, lines: 40, codeCount: 80, lineCount: 84, lineDefined: 96, protos: 32, protoCount: 88,
		constants: 16, constantCount: 76, locals: 48, localCount: 92, upvalues: 56, upvalueCount: 72, upvalueBytes: 8,
		upvalueHolds: 16, nodes: 32, nodeBytes: 40, nodeKey: 16, nodeKeyType: 24,
		opBits: 6, opCall: 28, opTail: 29, opClosure: 36, opSetGlobal: 7, opSetField: 9, opSetUpvalue: 8,
	},
	52: {
		version: 52, state: 40, global: 24, ci: 32, top: 16, callBytes: 64, previous: 16, status: 34, isLua: 1, isInner: 4, next: 56, hasNext: true,
		proto: 24, protoType: 9, source: 72, code: 24, lines: 40, codeCount: 88, lineCount: 92, lineDefined: 104, protos: 32, protoCount: 96,
		constants: 16, constantCount: 84, locals: 48, localCount: 100, upvalues: 56, upvalueCount: 80, upvalueBytes: 16,
		upvalueHolds: 16, nodes: 24, nodeBytes: 40, nodeKey: 16, nodeKeyType: 24,
		opBits: 6, opCall: 29, opTail: 30, opClosure: 37, opSetTabUp: 8, opSetField: 10, opSetUpvalue: 9,
	},
	53: {
		version: 53, state: 40, global: 24, ci: 32, top: 16, callBytes: 72, previous: 16, status: 66, isLua: 2, isFresh: 8, next: 40, hasNext: true,
		proto: 24, protoType: 9, source: 104, code: 56, lines: 72, codeCount: 24, lineCount: 28, lineDefined: 40, protos: 64, protoCount: 32,
		constants: 48, constantCount: 20, locals: 80, localCount: 36, upvalues: 88, upvalueCount: 16, upvalueBytes: 16,
		upvalueHolds: 0, nodes: 24, nodeBytes: 32, nodeKey: 16, nodeKeyType: 24,
		opBits: 6, opCall: 36, opTail: 37, opClosure: 44, opSetTabUp: 8, opSetField: 10, opSetUpvalue: 9,
	},
	54: {
		version: 54, state: 40, global: 24, ci: 32, top: 16, callBytes: 64, previous: 16, status: 62, isC: 2, isFresh: 4, next: 32,
		proto: 24, protoType: 10, source: 112, code: 64, lines: 88, absolute: 96, codeCount: 24, lineCount: 28, absoluteNum: 40, lineDefined: 44, protos: 72, protoCount: 32,
		constants: 56, constantCount: 20, locals: 104, localCount: 36, upvalues: 80, upvalueCount: 16, upvalueBytes: 16,
		upvalueHolds: 16, nodes: 24, nodeBytes: 24, nodeKey: 16, nodeKeyType: 9,
		opBits: 7, opCall: 68, opTail: 69, opClosure: 79, opSetTabUp: 15, opSetField: 18, opSetUpvalue: 10,
	},
	55: {
		version: 55, state: 40, global: 24, ci: 32, top: 16, callBytes: 64, previous: 16, status: 61, isC: 1 << 7, isFresh: 1 << 8, next: 32,
		proto: 24, protoType: 10, source: 112, code: 64, lines: 88, absolute: 96, codeCount: 24, lineCount: 28, absoluteNum: 40, lineDefined: 44, protos: 72, protoCount: 32,
		constants: 56, constantCount: 20, locals: 104, localCount: 36, upvalues: 80, upvalueCount: 16, upvalueBytes: 16,
		upvalueHolds: 16, nodes: 24, nodeBytes: 24, nodeKey: 16, nodeKeyType: 9,
		opBits: 7, opCall: 68, opTail: 69, opClosure: 79, opSetTabUp: 15, opSetField: 18, opSetUpvalue: 10,
	},
}

// Offsets that all versions have.
const (
	luaType = 8 // of an object, and of a value on the stack

	luaStateType    = 8
	luaFunctionType = 6
	luaStringType   = 4 // 4 bits of it: there are short and long ones

	luaTableType = 5
	kinds        = 0x3f // of a value: functions of C are others
	anyString    = 0xf

	luaClosureCount    = 10 // of upvalues
	luaClosureIsC      = 10 // in 5.1,
	luaOldClosureCount = 11
	luaClosureGlobals  = 24

	luaTableNodes = 11 // the logarithm of their number
	maxTable      = 40 // bytes that all fields of a Table are in

	luaValueBytes = 16

	// In 5.1: of a lua_State.
	luaNextNow     = 48
	luaStack       = 64
	luaCallEnd     = 72
	luaCallBegin   = 80
	luaCallBase    = 0 // of a CallInfo
	luaCallTop     = 16
	luaOldUpvalues = 112 // of a Proto
	luaOldValues   = 115

	luaStringSize = 16
	luaStringData = 24
	luaShortSize  = 11 // in 5.3 and later, of short ones
	luaLongData   = 24 // in 5.5, of long ones: the address of what they hold

	maxLuaProto   = 120 // bytes that all fields of a Proto are in
	maxLuaCall    = 72  // and of a CallInfo
	luaMaxState   = 104 // and of a lua_State
	luaLocalBytes = 16
)
