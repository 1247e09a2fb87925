package gnur

// R keeps of what it runs (src/include/Defn.h, src/main/context.c):
//
//	R_GlobalContext   the innermost context, and each has the address of the one further out
//	RCNTXT            a context: of a function of R that runs (CTXT_FUNCTION), of a loop, of a builtin function.
//	                  It is on the stack of C, or from 4.5 on, if not before, where the interpreter of bytecode goes
//	                  on in its own frame with a function that it calls, on the stack of nodes
//	R_BCNodeStackTop  where the stack of nodes ends, which are values of the interpreter of bytecode;
//	                  right before R_BCNodeStackEnd is the word with where it begins
//	SEXPREC           an object
//
// A context also has the address of the variable in which the interpreter of bytecode had its place when the context
// began (R_BCpc): that is in its frame on the stack of C.

// Offsets in a context, in 4.0 to 4.6 on x86-64. From cjmpbuf to cstacktop it has a sigjmp_buf of 200 bytes.
const (
	contextNext     = 0   // the one further out
	contextFlags    = 8   // int
	contextFunction = 232 // callfun
	contextCall     = 248
	contextEnv      = 256 // cloenv
	contextPlace    = 320 // bcpc
	contextBytes    = 328 // up to here

	contextFixed = contextFunction // from here on is what is read with the first two

	functionContext = 4 // in contextFlags
)

// Offsets in an object, and what it is.
const (
	objectType       = 0 // the lower bits of a word
	objectAttributes = 8 // a list
	objectHead       = 56

	listValue = 32 // of a list, or a call: the function, and then its arguments
	listNext  = 40
	listTag   = 48

	symbolName   = 32
	vectorLength = 32
	vectorData   = 48

	environmentList = 32 // of its variables,
	environmentHash = 48 // or a vector of such lists

	typeBits        = 1<<5 - 1
	typeSymbol      = 1
	typeList        = 2
	typeClosure     = 3
	typeEnvironment = 4
	typeCall        = 6
	typeSpecial     = 7
	typeBuiltin     = 8
	typeCharacters  = 9
	typeIntegers    = 13
	typeStrings     = 16
	typeVector      = 19
)

// nodeBytes is the size of a value on the stack of nodes.
const nodeBytes = 16
