package postgres

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of a server process.
type machine struct {
	server *image // nil: it is none
	im     *procstate.Image
	bias   uint64 // of it
	vmread.Found
	vmread.Memory

	walk     uint64 // the contexts are those of this walk
	times    vmread.Times
	contexts []context // innermost first
	next     int       // of these, the first that no frame has had yet
	isCut    bool      // there are more, which were not captured
	lacks    bool      // the word that leads to them was not
	asked    vmread.FramesAsked

	codes      map[code]uint32      // numbers in unwind.Codes
	resets     int                  // of these
	functions  map[uint64]*function // by the address of a PLpgSQL_function, or SQLFunctionHashEntry
	called     map[uint32]*called   // functions in SQL by their numbers
	statements map[uint64]*statement
	named      map[unwind.CodeFunction]*unwind.CodeFunction
}

// context is an ErrorContextCallback, by its own address.
type context struct{ at, calls, of uint64 }

// code is a function, and the line that runs.
type code struct {
	*unwind.CodeFunction
	line int
}

// others is what stands for functions whose contexts were not copied, and notRead for one that was gone before its name was
// asked for.
var (
	others  = unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: runtime}
	notRead = unwind.CodeFunction{Name: "[not read]", SystemName: "[not read]", Runtime: runtime}
)

const runtime = "postgres"

// Limits on what is read.
const (
	maxContexts   = 1 << 13
	maxCodes      = 1 << 18
	maxFunctions  = 1 << 16
	maxStatements = 1 << 16
)

func newMachine(w *unwind.Walker, p *image, im *procstate.Image, bias uint64) *machine {
	return &machine{
		server: p, im: im, bias: bias, Memory: vmread.MemoryOf(w), asked: vmread.FramesAsked{},
		functions: map[uint64]*function{}, called: map[uint32]*called{}, statements: map[uint64]*statement{}, named: map[unwind.CodeFunction]*unwind.CodeFunction{},
	}
}

// readContexts follows the contexts from the innermost one.
func (vm *machine) readContexts() {
	vm.contexts, vm.next, vm.isCut = vm.contexts[:0], 0, false
	at, ok := vm.Word(vm.server.contexts + vm.bias)
	vm.lacks = vm.Captured != nil && !ok
	var b [contextBytes]byte
	for ok && at != 0 {
		if len(vm.contexts) == maxContexts { // in a circle, or without an end
			vm.contexts = vm.contexts[:0]
			return
		}
		if ok = at%8 == 0 && vm.Read(at, b[:]); !ok {
			vm.isCut = true
			return
		}
		le := binary.LittleEndian
		vm.contexts = append(vm.contexts, context{at, le.Uint64(b[contextCalls:]), le.Uint64(b[contextOf:])})
		at = le.Uint64(b[contextNext:])
	}
}

// codeOf returns the number of the function that runs in a frame of C, of the file p that is mapped as m; 0 when there is
// none.
func (vm *machine) codeOf(w *unwind.Walker, m *procstate.Mapping, p *image, frame mcode.Range) uint32 {
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[code]uint32{}, codes.Resets()
	}
	if vm.walk != w.Walks() {
		vm.walk, vm.times = w.Walks(), vm.Times()
		vm.readContexts()
	}
	for vm.next < len(vm.contexts) && vm.contexts[vm.next].at < frame.Start {
		vm.next++ // it belongs to a frame that is none of these
	}
	if vm.next == len(vm.contexts) && vm.isCut {
		vm.isCut = false
		return vm.number(codes, code{&others, 0})
	}
	for ; vm.next < len(vm.contexts) && frame.Holds(vm.contexts[vm.next].at); vm.next++ {
		c := vm.contexts[vm.next]
		if !m.Contains(c.calls) {
			continue
		}
		if is, ok := vm.calledIn(p, c, frame); ok {
			vm.next++
			return vm.number(codes, is)
		}
	}
	return 0
}

// calledIn returns what a context is about, if that is a function that runs in the frame.
func (vm *machine) calledIn(p *image, c context, frame mcode.Range) (is code, ok bool) {
	if !p.language {
		return code{vm.functionInSQL(c.of), 0}, true
	}
	if !frame.Holds(c.of) { // it is about something else, as a text that is compiled
		return is, false
	}
	function, ok1 := vm.Word(c.of + callFunction)
	statement, ok2 := vm.Word(c.of + vm.server.release.statement)
	switch {
	case !ok1 || !ok2:
		return code{&others, 0}, true
	case function < leastAddress || function%8 != 0:
		return is, false
	}
	return code{vm.functionOf(function, source), vm.lineOf(statement)}, true
}

// leastAddress is below all of what the server has in memory.
const leastAddress = 64 << 10

// number returns the number of what runs; 0 when there is no room.
func (vm *machine) number(codes *unwind.Codes, is code) uint32 {
	n, ok := vm.codes[is]
	if !ok && len(vm.codes) < maxCodes {
		n = codes.Add(0, []unwind.CodeLine{{CodeFunction: is.CodeFunction, Line: is.line}}, 0)
		vm.codes[is] = n
	}
	return n
}

// Lacked returns where the server keeps the word that leads to the contexts, if the last walk has met a function and the
// capture had not copied it, and of what they have a word that tells of a function in SQL. The contexts are copied with the stack.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.server == nil || vm.walk != w.Walks() || !vm.lacks {
		return frames, false
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	return procstate.ThreadFrames{
		Current: vm.server.contexts + vm.bias, IsFrame: true, Previous: contextNext, Bytes: contextBytes,
		Object: contextOf, ObjectWord: int(vm.server.release.functionWord()),
	}, true
}

// Knows reports whether walks of a Walker have met a server.
func (s *Stepper) Knows(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*machine)
	return vm != nil && vm.server != nil
}

// Collector returns a Collector of what walks need of a server; nil where none of the libraries of the process is one.
func Collector(libs procstate.LibraryState) procstate.Collector {
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image == nil {
			continue
		}
		if p := find(lib.Image); p.contexts != 0 {
			return func(m procstate.Memory, _ procstate.ThreadID, _ *procstate.Regs, add func(addr uint64, n int)) {
				p.collect(m, p.contexts+lib.Bias, lib.Bias, add)
			}
		}
	}
	return nil
}

// collect copies the word that leads to the contexts, and of what they have a word that tells of a function in SQL; and its
// name, where that is let go of with the statement.
func (p *image) collect(m procstate.Memory, contexts, bias uint64, add func(addr uint64, n int)) {
	add(contexts, 8)
	read := vmread.Reader(func(addr uint64, b []byte) bool { return vmread.ReadAll(m, addr, b) })
	at, ok := read.Word(contexts)
	for n := 0; ok && at != 0 && at%8 == 0 && n < maxContexts; n++ {
		if of, ok := read.Word(at + contextOf); ok && of >= leastAddress {
			add(of+p.release.functionWord(), 8)
			if code, ok := read.Word(of + calledCode); ok && code == p.sql.Start+bias && !p.release.hasHash {
				p.collectCalled(read, of, add)
			}
		}
		at, ok = read.Word(at + contextNext)
	}
}

// collectCalled copies an FmgrInfo and the name of its function in SQL.
func (p *image) collectCalled(read vmread.Reader, of uint64, add func(addr uint64, n int)) {
	add(of, calledCache+8)
	cache, ok := read.Word(of + calledCache)
	if !ok || cache < leastAddress {
		return
	}
	name, ok := read.Word(cache + p.release.name)
	if !ok || name < leastAddress {
		return
	}
	add(cache+p.release.name, 8)
	end := (name | (textPiece - 1)) + 1 // as text reads it: a name has at most two pieces
	add(name, int(end-name))
	add(end, textPiece)
}
