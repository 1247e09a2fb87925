package profile

import (
	"fmt"
	"strings"
)

// Module is code with link-time addresses of its own. Modules that are equal
// in all fields are one.
type Module struct {
	Path    string // of the file as the target names it, or a name in brackets: "[kernel.kallsyms]"
	BuildID string // GNU build ID in hexadecimal, or ""
	Kind    Kind   // of the frames for which the Symbolizer does not tell

	// The executable segment that holds the module's frames: its first
	// link-time address, the address after its last, and the offset of Start
	// in the file. All zero when there is no file or no more than the name is
	// known; the range is then taken from the frames seen.
	Start, Limit, Offset uint64
}

// Loc is a place in a module. Addr is a link-time address in the module, or
// a run-time address in the kernel and in modules that are not files. For a
// frame that is in a call it is an address inside the call instruction, not
// the return address, as pprof wants it too. Module is what Builder.Module
// returned, or 0 for code in no module, with the run-time address in Addr.
type Loc struct {
	Module uint32
	Addr   uint64
}

// Line is a function at a Loc.
type Line struct {
	Function   string // name for people (demangled); "" when it has none
	SystemName string // name in the symbol table; "" when it is the same
	File       string // source file, or ""
	Line       int    // line in File, or 0
	StartLine  int    // line in File on which the function begins, or 0
	Kind       Kind   // Unknown stands for the module's
	// Start is where the function begins, as Loc.Addr, and only used when it
	// has no name: its frames are then one function, "module+0xstart".
	Start   uint64
	Inlined bool // the function was inlined into that of the next Line

	byAddress bool // Function is no name, but made from an address
}

// Symbolizer names places.
type Symbolizer interface {
	// Symbolize appends to dst the functions at loc, innermost inlined first,
	// and returns the extended slice. It appends nothing when there is no
	// name. Builder.Finish asks for each distinct loc once, one module after the
	// other, by ascending addresses.
	Symbolize(dst []Line, loc Loc) []Line
}

// Expecter is a Symbolizer that is told what it will be asked for.
type Expecter interface {
	// Expect tells which addresses of a module are next, in ascending order. It may keep
	// the slice.
	Expect(module uint32, addrs []uint64)
	// Named tells that nothing more is asked for. What is left to do needs memory of its
	// own.
	Named()
}

// KernelPath is the Path of the kernel's module, by perf's convention.
const KernelPath = "[kernel.kallsyms]"

// notSampled is the marker of time in which a thread's stack was not sampled.
const notSampled = "[not sampled]"

// waits reports whether a marker tells why a thread waits; the others tell what
// is missing.
func waits(marker string) bool { return truncatedReason(marker) == "" && marker != notSampled }

// wakerPrefix begins the marker that has, in stacks of threads that wait, what woke them up above it.
const wakerPrefix = "[woken by "

// WakerMarker is the text of a marker for what woke up the thread that waits in the frames before it: the
// frames after it are that one's.
func WakerMarker(who string) string { return wakerPrefix + who + "]" }

// baseName returns what follows the last slash of a path.
func baseName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// unnamed returns what an address without name is called.
func (m *Module) unnamed(addr uint64) string {
	name := baseName(m.Path)
	if name == "" {
		name = "[unknown]"
	}
	return fmt.Sprintf("%s+%#x", name, addr)
}
