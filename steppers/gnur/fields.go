package gnur

import "github.com/swbpf/swbpf/procstate"

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

// Offsets in a context, in 4.0 to 4.6.
const (
	contextNext  = 0 // the one further out
	contextFlags = 8 // int

	functionContext = 4 // in contextFlags
)

// What is behind the function in a context (callfun).
const (
	behindCall  = 16
	behindPlace = 88 // bcpc
	behindBytes = 96 // up to here
)

// arch is what of R is not the same on all architectures.
type arch struct {
	*procstate.Arch
	function uint64 // offset in a context: before it there are a sigjmp_buf of C and 32 bytes
}

// architectures are those on which R is known.
var architectures = [...]arch{{procstate.AMD64, 200 + 32}, {procstate.ARM64, 312 + 32}}

// archOf returns what is known of an architecture, nil where R is not known on it.
func archOf(a *procstate.Arch) *arch {
	for i := range architectures {
		if is := &architectures[i]; is.Arch == a {
			return is
		}
	}
	return nil
}

// contextBytes is what is of interest of a context.
func (a *arch) contextBytes() int { return int(a.function + behindBytes) }

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
