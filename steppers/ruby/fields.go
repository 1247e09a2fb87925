package ruby

// CRuby keeps of each thread (vm_core.h, method.h, iseq.h):
//
//	rb_execution_context_t  of the fiber that runs: the VM stack, its words, and the control frame
//	                        that runs. A variable of each thread leads to it, its rb_thread_t to 2.7.
//	rb_control_frame_t      at the end of the VM stack, which they grow down from: the instruction, the
//	                        rb_iseq_t that it is of, and the environment, whose flags tell what the
//	                        frame is: at the beginning of the VM stack, or an object
//	rb_iseq_t               a method, a block or the like: its name, and the lines of its instructions

// fields are the offsets of fields in CRuby's structures, and what else is not the same in
// all versions.
type fields struct {
	thread   uint64 // of an rb_execution_context_t, its rb_thread_t
	context  uint64 // and of that its rb_execution_context_t
	threadID uint64 // its pthread_t; 0: a variable of each thread leads to what it runs
	threads  uint64 // of an rb_vm_t, where they are listed, without the two locks that are before that

	frameBytes uint64 // of an rb_control_frame_t
	jitReturn  uint64 // where compiled code goes on; 0: there is none

	lines         uint64 // of the body of an rb_iseq_t
	lineBytes     uint64 // of an iseq_insn_info_entry
	isLineValue   bool   // the first line is an object
	hasOwner      bool   // labels tell whose a method is
	embeddedBytes uint64 // of an RString, what is before its characters
}

// versions are the fields by version.
var versions = map[string]*fields{
	"2.7": {thread: 56, context: 32, threadID: 72, threads: 232, frameBytes: 56, lines: 120, lineBytes: 8, isLineValue: true, embeddedBytes: 16},
	"3.0": {thread: 56, context: 40, frameBytes: 56, lines: 120, lineBytes: 8, isLineValue: true, embeddedBytes: 16},
	"3.1": {thread: 48, context: 40, frameBytes: 64, jitReturn: 56, lines: 120, lineBytes: 12, isLineValue: true, embeddedBytes: 16},
	"3.2": {thread: 48, context: 48, frameBytes: 64, jitReturn: 56, lines: 112, lineBytes: 12, embeddedBytes: 24},
	"3.3": {thread: 48, context: 48, frameBytes: 56, jitReturn: 48, lines: 112, lineBytes: 12, embeddedBytes: 24},
	"3.4": {thread: 48, context: 48, frameBytes: 56, jitReturn: 48, lines: 112, lineBytes: 12, hasOwner: true, embeddedBytes: 24},
}

// Offsets of fields that are the same in all versions.
const (
	rubyStack, rubyStackWords, rubyCurrent = 0, 8, 16 // of an rb_execution_context_t
	rubyContextBytes                       = 64

	rubyPC, rubySP, rubyCodeOf, rubyEnv = 0, 8, 16, 32 // of an rb_control_frame_t
	maxRubyFrameBytes                   = 64

	rubyBody = 16 // of an rb_iseq_t

	rubyType, rubySize, rubyEncoded, rubyPath, rubyLabel, rubyFirstLine = 0, 4, 8, 64, 80, 88 // of its body
	rubyBodyBytes                                                       = 184
	rubyParent, rubyLocal                                               = 48, 56 // behind lines

	rubyDefinition, rubyOwnedBy, rubyEntryBytes      = 16, 32, 40 // of an rb_method_entry_t
	rubyDefinedBy, rubyOriginal, rubyDefinitionBytes = 8, 32, 40  // of an rb_method_definition_t

	rubyAttached, rubyPermanent, rubyClassPath, rubyClassBytes = 128, 144, 152, 160 // of an RClass, of 3.4

	rubyLineCount, rubyLineIndex = 16, 24 // behind lines
)

// Bits of the flags in an environment.
const (
	isFinish    = 0x20 // the interpreter's function returns with the frame
	isCFrame    = 0x80
	isLocal     = 2
	isEscaped   = 4
	magic       = 0x7fff0001
	methodFrame = 0x11110001
	blockFrame  = 0x22220001
	cFunction   = 0x55550001
	rescueFrame = 0x78880001
)

// Bits of the flags of an object, and in an RClass.
const (
	typeBits                    = 0x1f
	isClass, isModule           = 0x02, 0x03
	isString, isArray, isSymbol = 0x05, 0x07, 0x14
	rubyIsInternal              = 0x1a
	notEmbedded, embedded       = 1 << 13, 1 << 13 // a string, an array
	isSingleton                 = 1 << 13
	isPermanent                 = 1 << 40

	internalShift, internalBits  = 12, 15
	special, entryType, iSeqType = 2, 6, 7
)

// Types of an rb_iseq_t, and of an rb_method_definition_t.
const (
	typeMethod, typeBlock, typePlain = 1, 2, 8
	typeRescue, typeEnsure, typeEval = 4, 5, 6

	methodBits, methodOfRuby, methodOfC = 15, 0, 1
)
