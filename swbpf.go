package swbpf

import (
	"sync"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// The version of the interface.
const (
	versionMajor       = 0
	versionMinor       = 1
	versionMaintenance = 0
)

// Version returns the version of this module's interface.
func Version() (major, minor, maintenance int) {
	return versionMajor, versionMinor, versionMaintenance
}

// NewWalker makes a Walker of the calling goroutine, whichever that is at the
// time of each walk: a first-party walk.
func NewWalker() (*unwind.Walker, error) {
	self, err := procstate.NewProcSelf()
	if err != nil {
		return nil, err
	}
	return With(self, nil, nil), nil
}

// ForPID attaches a process and makes a Walker of it: a third-party walk.
// Detach lets the process go. The errors are those of procstate.Attach, as
// procstate.ErrNotPermitted.
func ForPID(pid int) (*unwind.Walker, error) { return ForPIDWithExecutable(pid, "") }

// ForPIDWithExecutable is ForPID for a process whose program file cannot be
// reached where the process says it is; exe is a copy of it, or "".
func ForPIDWithExecutable(pid int, exe string) (*unwind.Walker, error) {
	p, err := procstate.AttachWithExecutable(pid, exe)
	if err != nil {
		return nil, err
	}
	return ForProcess(p), nil
}

// ForPIDs attaches a group of processes, or none of them.
func ForPIDs(pids ...int) (*unwind.WalkerSet, error) { return ForPIDsWithExecutable("", pids...) }

// ForPIDsWithExecutable is ForPIDs for processes of a program whose file cannot
// be reached where they say it is; exe is a copy of it, or "".
func ForPIDsWithExecutable(exe string, pids ...int) (*unwind.WalkerSet, error) {
	set := new(unwind.WalkerSet)
	for _, pid := range pids {
		w, err := ForPIDWithExecutable(pid, exe)
		if err != nil {
			for _, w := range set.Walkers() {
				Detach(w)
			}
			return nil, err
		}
		set.Add(w)
	}
	return set, nil
}

// ForProcess makes a Walker of a process that is attached already. It watches
// the process's libraries, where that is possible; see
// [procstate.ProcDebug.LibraryTrap]. To the Walker of a nil p all walks are an error,
// unwind.ErrNoProcess.
func ForProcess(p *procstate.ProcDebug) *unwind.Walker {
	if p == nil {
		return With(nil, nil, nil)
	}
	// Without the trap, which LibraryTrap tells, libraries are looked up
	// before each walk.
	_ = p.TrapLibraries()
	return With(p, nil, nil)
}

// Launch starts a program, traced, and makes a Walker of it. argv[0] is its
// name as it sees it. The program is paused before its first instruction:
// Resume of its ProcDebug, which [Debug] returns, sets it going; it outlives the
// Walker.
func Launch(path string, argv []string) (*unwind.Walker, error) {
	p, err := procstate.Launch(path, argv, nil)
	if err != nil {
		return nil, err
	}
	return ForProcess(p), nil
}

// ForCore makes a Walker of a core file. exe may be "" when the program is
// where the core says it was. Detach closes the files that were opened. The error
// wraps procstate.ErrNotCore for a file that is none.
func ForCore(core, exe string) (*unwind.Walker, error) {
	c, err := procstate.OpenCore(core, exe)
	if err != nil {
		return nil, err
	}
	return With(c, nil, nil), nil
}

// With makes a Walker of its parts. group and lookup may be nil: the default
// steppers, and what the SymbolReaderFactory makes.
func With(proc procstate.ProcessState, group unwind.StepperGroup, lookup unwind.SymbolLookup) *unwind.Walker {
	if group == nil {
		group = DefaultGroup()
	}
	if lookup == nil && proc != nil {
		lookup = SymbolReader()(proc)
	}
	return unwind.NewWalker(proc, group, lookup)
}

// Detach lets the process of a Walker go and closes what was opened for it:
// files of a core, the attachment to a live process. Of a caller's own
// ProcessState it calls Detach() or else Close() error, if there is one. The
// Walker cannot be used afterwards; its frames can. Of a nil Walker there is nothing to let go.
func Detach(w *unwind.Walker) error {
	if w == nil {
		return nil
	}
	switch p := w.ProcessState().(type) {
	case interface{ Detach() }:
		p.Detach()
	case interface{ Close() error }:
		return p.Close()
	}
	return nil
}

// Debug returns the ProcDebug of a third-party Walker, and false for others and for nil.
func Debug(w *unwind.Walker) (*procstate.ProcDebug, bool) {
	if w == nil {
		return nil, false
	}
	p, ok := w.ProcessState().(*procstate.ProcDebug)
	return p, ok
}

// DefaultGroup makes a StepperGroup of the default steppers. Unwind tables
// are shared by all groups.
func DefaultGroup() unwind.StepperGroup { return steppers.Default(sharedTables()) }

var sharedTables = sync.OnceValue(unwind.NewTables)

// A SymbolReaderFactory makes the SymbolLookup of a process.
type SymbolReaderFactory func(procstate.ProcessState) unwind.SymbolLookup

var symbolReader struct {
	sync.Mutex
	factory SymbolReaderFactory
}

// SymbolReader returns the factory that new Walkers get their SymbolLookup
// from.
func SymbolReader() SymbolReaderFactory {
	symbolReader.Lock()
	defer symbolReader.Unlock()
	if symbolReader.factory == nil {
		symbolReader.factory = func(p procstate.ProcessState) unwind.SymbolLookup {
			return sharedSymbols().Process(p)
		}
	}
	return symbolReader.factory
}

// SetSymbolReader replaces the factory for Walkers that are made from now on;
// nil brings the default back.
func SetSymbolReader(f SymbolReaderFactory) {
	symbolReader.Lock()
	defer symbolReader.Unlock()
	symbolReader.factory = f
}

var sharedSymbols = sync.OnceValue(func() *symbols.Symbolizer { return symbols.New(symbols.Options{}) })
