package dataflow

import "github.com/swbpf/swbpf/procstate"

// PlaceKind tells how the value of a caller's register is found.
type PlaceKind uint8

// The kinds of place.
const (
	Unknown    PlaceKind = iota // not to be found
	Same                        // in the register itself
	InRegister                  // in register Reg
	AtCFA                       // in memory at CFA + Off
	AtRegister                  // in memory at Reg + Off
)

// Place tells where the value of a caller's register is.
type Place struct {
	Kind PlaceKind
	Reg  procstate.Reg
	Off  int32
}

// MaxSaved is the largest number of registers that a call preserves.
const MaxSaved = 11

// Rule tells how to get from one instruction to the caller of its function.
// It is a plain value.
type Rule struct {
	// CFA = Reg + Off, or with Deref the word at Reg + Off, plus Add. Where
	// Scale is not 0, that word is at Reg + Index*Scale + Off.
	Reg   procstate.Reg
	Deref bool
	Index procstate.Reg
	Scale uint8
	Off   int32
	Add   int32

	// Results tells that what the function found in both registers that calls
	// return their result in is kept in the frame, as by the unwinder of
	// exceptions. One alone is pushed for the room, by clang.
	Results bool

	RA    Place
	Saved [MaxSaved]Place // of the registers in SavedRegs, in that order
}

// SavedRegs returns the registers, other than SP, that a call preserves.
func SavedRegs(a *procstate.Arch) []procstate.Reg {
	switch a {
	case procstate.ARM64:
		return savedARM64
	case procstate.I386:
		return savedI386
	}
	return savedAMD64
}

var (
	savedAMD64 = []procstate.Reg{3, 6, 12, 13, 14, 15}
	savedI386  = []procstate.Reg{3, 5, 6, 7}
	savedARM64 = []procstate.Reg{19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}
)
