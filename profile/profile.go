package profile

import pprof "github.com/google/pprof/profile"

// Profile is a finished profile. Two profiles of the same samples are equal,
// in whatever order these were added.
type Profile struct {
	Meta Meta

	Samples   int64   // number of samples
	Value     int64   // their sum in units of Meta.Value
	Complete  int64   // samples with their whole stack
	Truncated []Tally // the other ones by reason, most first

	// Of a profile that was read: its format, what it can be read for by
	// ReadOptions.SampleType, and which of these it was read for. Of one with several events
	// (Meta.Also) Types are these, or none.
	Format string
	Types  []ValueType
	Type   string

	source    *pprof.Profile                        // that it was read from, or nil
	reread    func(o ReadOptions) (*Profile, error) // for another of Types; nil if ByValue tells them apart
	diff      *diffTables                           // of a profile that is two, or nil
	program   string                                // name for processes of which none is known
	modules   []Module                              // module 0 is that of code in no module
	functions []function
	locations []location // by module and address; those of markers last
	nodes     []pathNode // parents before children, children by location
	threads   []Thread   // by PID, TID, name and labels
	labels    [][]Label  // sets by Thread.Labels; set 0 is empty
	samples   []sample   // by node and thread; numbered as nodes and threads are here
	times     []moment   // by time; none if they were not kept

	squaresKnown bool // whether the squares of samples are those of the values that were added
}

// noModule is the module of markers, which have none.
const noModule = -1

type function struct {
	name, systemName, file string
	startLine              int
}

// location is a distinct Loc with the functions at it, innermost first.
type location struct {
	module int // index of modules, or noModule
	addr   uint64
	lines  []line
}

type line struct {
	line     int
	function uint32 // index of functions
	kind     Kind
	inlined  bool
	named    bool // and not called by its address
}

// pathNode is a frame in the tree of stacks; the parent of a frame is its
// caller. Node 0 is above all roots and has no location.
type pathNode struct{ parent, location uint32 }
