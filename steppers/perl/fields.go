package perl

// Perl runs all subroutines in one loop, Perl_runops_standard, which is called anew for each that
// C calls. It keeps (intrpvar.h, cop.h, cv.h):
//
//	PerlInterpreter  the op that runs, the statement (COP) that does, and the innermost PERL_SI;
//	                 variables of their own in builds without threads
//	PERL_SI          an array of contexts, and the PERL_SI before: C begins another one for
//	                 most of what it calls
//	PERL_CONTEXT     a subroutine, an eval, a file or a block: the statement that began it,
//	                 and the op to go on with when it ends, which is none where the loop ends

// fields are the offsets of fields in Perl's structures, and numbers of ops. What is the
// same in all versions has names below.
type fields struct {
	curcop, current    uint64 // of a PerlInterpreter: the statement that runs, and the PERL_SI
	stashes            uint64 // its packages, as statements number them
	compiling          uint64 // its statement that is being compiled
	siType             uint64 // of a PERL_SI
	contextBytes       uint64 // of a PERL_CONTEXT: all of it,
	sub                uint64 // its subroutine,
	hasDefer           bool   // and whether there are such of defer blocks
	nameInBody         bool   // of a stash: its name is behind its body, and not behind its array
	leaveSub           uint32 // ops
	nextState, ret     uint32
	leaveEval, doCatch uint32 // doCatch: entertrycatch, 0: there is none
}

// versions are the fields by version: those of 5.30 are those of 30. Releases of a version
// have the same.
var versions = map[uint8]*fields{
	30: {curcop: 224, current: 240, stashes: 2656, compiling: 1952, siType: 40, contextBytes: 96, sub: 64, leaveSub: 185, nextState: 195, ret: 205, leaveEval: 346},
	32: {curcop: 224, current: 240, stashes: 2640, compiling: 1952, siType: 44, contextBytes: 104, sub: 72, leaveSub: 185, nextState: 195, ret: 205, leaveEval: 346},
	34: {curcop: 208, current: 224, stashes: 2608, compiling: 1936, siType: 44, contextBytes: 104, sub: 72, leaveSub: 185, nextState: 195, ret: 205, leaveEval: 346, doCatch: 400},
	36: {curcop: 208, current: 224, stashes: 2608, compiling: 1936, siType: 44, contextBytes: 104, sub: 72, hasDefer: true, nameInBody: true, leaveSub: 185, nextState: 195, ret: 205, leaveEval: 346, doCatch: 400},
	38: {curcop: 208, current: 224, stashes: 2480, compiling: 1720, siType: 44, contextBytes: 104, sub: 72, hasDefer: true, nameInBody: true, leaveSub: 188, nextState: 198, ret: 208, leaveEval: 349, doCatch: 403},
	40: {curcop: 208, current: 224, stashes: 2352, compiling: 1720, siType: 44, contextBytes: 104, sub: 72, hasDefer: true, nameInBody: true, leaveSub: 188, nextState: 198, ret: 208, leaveEval: 349, doCatch: 403},
	42: {curcop: 208, current: 224, stashes: 2352, compiling: 1720, siType: 44, contextBytes: 104, sub: 72, hasDefer: true, nameInBody: true, leaveSub: 192, nextState: 202, ret: 212, leaveEval: 353, doCatch: 407},
}

// catching are the ops that may begin a loop which goes on for the one that they are called by.
func (f *fields) catching() []uint32 {
	const require, do, eval, try = -4, -3, -1, 1 // from leaveeval, in the order of ops
	at := int(f.leaveEval)
	return []uint32{uint32(at + require), uint32(at + do), uint32(at + eval), uint32(at + try), f.doCatch}
}

// pushing are those that begin a context.
func (f *fields) pushing() []uint32 {
	const enter, iter, loop = 3, 6, 8 // from nextstate
	const given, when = 12, 14        // from return
	return append(f.catching(), f.leaveSub-1, f.nextState+enter, f.nextState+iter, f.nextState+loop, f.ret+given, f.ret+when)
}

// leaving are those that leave contexts which others have begun.
func (f *fields) leaving() []uint32 {
	const last, next, redo, jump = 1, 2, 3, 5 // from return
	return []uint32{f.ret, f.ret + last, f.ret + next, f.ret + redo, f.ret + jump}
}

const (
	perlOp = 8 // of a PerlInterpreter, the op that runs

	siContexts, siPrevious, siLast, siBytes = 8, 16, 32, 48 // of a PERL_SI: the last is a number of a context

	cxType, cxOp    = 0, 2 // of a PERL_CONTEXT
	cxCop, cxReturn = 16, 48
	maxContextBytes = 104

	opNext, opSibling, opType, opFirst, opBytes = 0, 8, 32, 40, 40 // of an OP: the sibling is the parent of the last one
	opKind, opHasSibling                        = 1<<9 - 1, 1 << 14
	copLine, copStash, copFile, copBytes        = 36, 40, 48, 56

	svBody, svFlags, svAny, svBytes = 0, 12, 16, 24 // of an SV

	cvStash, cvStart, cvRoot, cvName, cvFile, cvFlags, cvBytes = 32, 40, 48, 56, 64, 92, 104
	gvName, gvStash, gvBytes                                   = 32, 40, 48
	hvMax, hvBytes                                             = 24, 32
	hekLength, hekText                                         = 4, 8
)

// Kinds of contexts, and their flags.
const (
	cxKind         = 0xf
	cxNull         = 0
	cxBlock        = 2
	cxSub          = 9
	cxFormat       = 10
	cxEval         = 11
	cxDefer        = 13
	cxMulti        = 1 << 4 // of a sub: C calls it again and again
	cxIsCode       = 3 << 6 // of a sub: code in a regular expression,
	cxFake         = 1 << 7 // and of the sub around it
	cxTry          = 1 << 6 // of an eval: a block
	siMain         = 1      // kinds of PERL_SI
	siSort         = 3
	siOverload     = 5
	svKind         = 0xff // in an SV's flags
	kindGV, kindHV = 9, 12
	kindCV, kindFM = 13, 14
	svHasAux       = 1 << 25
	cvIsXSUB       = 1 << 3
	cvIsNamed      = 1 << 15
	cvIsLexical    = 1 << 16
)
