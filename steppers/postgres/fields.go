package postgres

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// PostgreSQL keeps, of what its functions run, what it tells in the context of an error (src/include/utils/elog.h,
// src/pl/plpgsql/src/plpgsql.h, src/backend/executor/functions.c):
//
//	error_context_stack   the innermost ErrorContextCallback, and each has the address of the one further out: a variable
//	                      of a function of C that runs
//	PLpgSQL_execstate     a call of a function in PL/pgSQL, a variable of the same function of C
//	PLpgSQL_function      a function in PL/pgSQL, which stays for the session, unless it is defined anew
//	PLpgSQL_stmt          a statement of one
//	FmgrInfo              a function, as it is called by a statement, with which it is let go of: of one in SQL it leads
//	                      to its SQLFunctionCache, which has the name
//
// All addresses are of 64 bits, and the offsets are the same on all architectures with these.

// Offsets in an ErrorContextCallback.
const (
	contextNext  = 0 // the one further out
	contextCalls = 8 // a function of C, of the file whose code has set this
	contextOf    = 16
	contextBytes = 24
)

// Offsets in others.
const (
	callFunction  = 0 // in a PLpgSQL_execstate
	statementLine = 4 // in a PLpgSQL_stmt, an int: in the text of the function
	calledCode    = 0 // in an FmgrInfo: the function of C
	calledOID     = 8 // the number of the function, of 32 bits
	calledCache   = 24
	cacheEntry    = 0 // in an SQLFunctionCache, where hasHash: the SQLFunctionHashEntry
)

// release is what is not the same in all of them.
type release struct {
	statement uint64 // offset in a PLpgSQL_execstate: the statement that runs
	name      uint64 // in a PLpgSQL_function, and where the name of a function in SQL is

	// hasHash tells that the context of a function in SQL has its SQLFunctionCache, not its FmgrInfo, and that has the
	// address of a SQLFunctionHashEntry, which has the name, and stays for the session.
	hasHash bool
}

// functionWord returns where there is, in what the context of a function in SQL has, a word that tells which function it is: what
// has the word is let go of with the statement.
func (r *release) functionWord() uint64 {
	if r.hasHash {
		return cacheEntry
	}
	return calledOID
}

// releases are those that are known, by what their files have of them (PG_VERSION_NUM / 100).
var releases = map[uint32]release{
	1300: {statement: 208}, 1400: {statement: 216}, 1500: {statement: 216}, 1600: {statement: 208}, 1700: {statement: 208},
	1800: {statement: 208, name: 40, hasHash: true},
}

// What follows the release in what the server compares with that of a module (Pg_magic_struct of src/include/fmgr.h):
// how many arguments functions have at most, how many columns an index, and how long names are.
var behindRelease = [...]uint32{100, 32, 64}

// releaseOf looks for the release of a server.
func releaseOf(im *procstate.Image) (r release, ok bool) {
	const most = 8 << 20
	for _, name := range [...]string{".rodata", ".data.rel.ro"} {
		s, has := im.Section(name)
		if !has {
			continue
		}
		b, err := im.SectionBytes(s, most)
		if err != nil {
			continue
		}
		le := binary.LittleEndian
		for i := 0; i+4+4*len(behindRelease) <= len(b); i += 4 {
			if le.Uint32(b[i+4:]) != behindRelease[0] || le.Uint32(b[i+8:]) != behindRelease[1] || le.Uint32(b[i+12:]) != behindRelease[2] {
				continue
			}
			if r, ok = releases[le.Uint32(b[i:])]; ok {
				return r, true
			}
		}
	}
	return r, false
}
