package bash

// Bash keeps of what it runs (variables.h, array.h, hashlib.h, command.h, execute_cmd.c):
//
//	shell_variables      the innermost VAR_CONTEXT, and each has the address of the one further out. Each call of a
//	                     function has one (push_context), with a copy of its name
//	global_variables     the outermost, with a table of variables. FUNCNAME and BASH_SOURCE are lists of the functions
//	                     that run and of the files that these are in, innermost first, also of files that others have
//	                     run (source), and of the script last
//	shell_function_defs  a table of FUNCTION_DEF: where functions are defined
//	COMMAND              what a function or a script does; those of a function that runs are copies, which are freed
//	                     when it returns
//
// A call of a function of the script is one of execute_function in C, a file that another one runs one of _evalfile, and
// each command that is not another one's part one of execute_command_internal, with the COMMAND as its first argument.
// What is text and is parsed when it is run, of eval, of a trap or in $(), runs below parse_and_execute.

// Offsets in a VAR_CONTEXT.
const (
	contextName  = 0
	contextFlags = 12 // int
	contextDown  = 24 // the one further out
	contextTable = 32
	contextBytes = 40

	ofFunction = 4 // in contextFlags (VC_FUNCENV)
)

// Offsets in a HASH_TABLE and in a BUCKET_CONTENTS.
const (
	tableBuckets = 0
	tableCount   = 8 // int, a power of two
	tableBytes   = 16

	bucketNext  = 0
	bucketKey   = 8
	bucketData  = 16
	bucketHash  = 24
	bucketBytes = 32
)

// Offsets in a SHELL_VAR, in an ARRAY_ELEMENT and in a FUNCTION_DEF. An ARRAY has the first of its elements, which has no
// value, at an offset that depends on the version.
const (
	variableValue = 8

	elementValue = 8
	elementNext  = 16
	elementPrev  = 24
	elementBytes = 32

	definitionLine  = 4 // int
	definitionFile  = 24
	definitionBytes = 32
)

// Offsets in a COMMAND and in what that has, and its types.
const (
	commandType  = 0 // int
	commandValue = 24
	commandBytes = 32

	valueLine    = 4 // int, of those that have one
	valueCommand = 8 // the first command in one that has some,
	coprocInner  = 16
	valueBytes   = 24
)

// kind is how it is told in which line a command is, by its type (enum command_type).
type kind uint8

const (
	hasLine kind = iota + 1
	hasFirst
	hasCoproc
)

var kinds = [...]kind{
	hasLine,   // for
	hasLine,   // case
	hasFirst,  // while
	hasFirst,  // if
	hasLine,   // simple
	hasLine,   // select
	hasFirst,  // connection
	hasLine,   // function definition
	hasFirst,  // until
	hasFirst,  // group
	hasLine,   // arith
	hasLine,   // cond
	hasLine,   // arith for
	hasFirst,  // subshell
	hasCoproc, // coproc
}
