package bash

import (
	"math/bits"
	"path"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of bash in a process.
type machine struct {
	books        // as of the moment of the capture,
	now    books // and as they are now
	im     *procstate.Image
	tables *unwind.Tables
	vmread.Memory
	isSample bool // commands were not copied
	isBash   bool // of a version that is known
	isAsked  bool

	walk  uint64
	times vmread.Times
	calls []uint64  // names of the functions that run, innermost first
	next  int       // of these, the first that no frame has had yet
	isCut bool      // there are more, which were not captured
	lacks bool      // some were not
	lost  *function // what stands for those further out, of which it is not known any more which frame has which

	entries   []entry // what is told of them and of files, innermost first
	nextEntry int     // the same of these; -1: not known any more

	at    line // where the command is that runs in the function in question,
	text  line // and in the text that runs in it or in the file, and
	isRun bool // whether one does at all
	frees bool // a frame of dispose_command was met since the last of execute_function

	asked     vmread.FramesAsked
	codes     map[code]uint32 // numbers in unwind.Codes
	resets    int             // of these
	functions map[string]*function
	files     map[unwind.CodeFunction]*function
	top       unwind.CodeFunction // what the script does itself,
	zero      string              // and $0 where there is none
	topSince  uint64              // since when that was read, in ns of CLOCK_MONOTONIC
	topValid  vmread.Valid
	name      []byte
	names     []string          // of the functions that are defined,
	definedAt uint64            // as was read then, in ns of CLOCK_MONOTONIC,
	completed map[string]string // and what begins of names are of
}

// line is one of a command that was met: 0 where it is not known.
type line struct {
	number int
	isMet  bool
}

// function is what a function is called, or a file that runs, and where the function is defined now.
type function struct {
	unwind.CodeFunction
	valid vmread.Valid
}

// code is a line of a function.
type code struct {
	function *function
	line     int
}

// Limits on what is kept.
const (
	maxCodes     = 1 << 18
	maxFunctions = 1 << 16
	definedFor   = uint64(time.Second)
	runtime      = "bash"
)

// What stands for functions whose entries were not copied, for one of which it is not known which it is, for a file that is
// run, and for what is run and is no file.
var (
	others   = named("[not copied]")
	notRead  = named("[not read]")
	sourced  = named("source")
	commands = named("<commands>")
)

func named(name string) *function {
	return &function{CodeFunction: unwind.CodeFunction{Name: name, SystemName: name, Runtime: runtime}}
}

func newMachine(w *unwind.Walker, m *procstate.Mapping, p *image, tables *unwind.Tables) *machine {
	vm := &machine{
		im: m.Image, tables: tables, Memory: vmread.MemoryOf(w), asked: vmread.FramesAsked{},
		functions: map[string]*function{}, files: map[unwind.CodeFunction]*function{}, completed: map[string]string{},
	}
	_, vm.isSample = w.ProcessState().(*procstate.Snapshot)
	vm.books = books{image: p, bias: m.Bias, read: vm.Read}
	vm.now = books{image: p, bias: m.Bias, read: vm.ReadNow}
	return vm
}

// begin begins a walk.
func (vm *machine) begin(walk uint64) {
	vm.walk, vm.times = walk, vm.Times()
	vm.next, vm.isCut, vm.lacks, vm.lost = 0, false, false, nil
	vm.at, vm.text, vm.isRun, vm.frees = line{}, line{}, false, false
	if !vm.isAsked {
		vm.isAsked, vm.isBash = vm.now.begin()
		vm.listHead = vm.now.listHead
	}
	if !vm.isBash {
		return
	}
	vm.readTop()
	vm.readCalls()
	if vm.entries, vm.nextEntry = vm.entries[:0], 0; !vm.isSample {
		vm.entries = vm.books.entries(vm.entries)
	}
}

// readCalls follows the calls of functions from the innermost one.
func (vm *machine) readCalls() {
	vm.calls = vm.calls[:0]
	at, ok := vm.wordAt(vm.variables + vm.bias)
	for n := 0; ok && at != 0; n++ {
		var c context
		if n == maxCalls { // in a circle, or without an end
			ok = false
			break
		}
		if c, ok = vm.context(at); !ok {
			break
		}
		if c.isFunction {
			vm.calls = append(vm.calls, c.name)
		}
		at = c.down
	}
	if !ok {
		vm.isCut, vm.lacks = true, vm.Captured != nil
	}
}

// codeOf returns the number of what a frame runs, 0 when that is nothing.
func (vm *machine) codeOf(w *unwind.Walker, in *unwind.Frame, at place) uint32 {
	if vm.walk != w.Walks() {
		vm.begin(w.Walks())
	}
	if !vm.isBash {
		return 0
	}
	switch at {
	case runsCommand:
		if vm.isRun = true; !vm.at.isMet {
			vm.at = line{vm.commandLine(in), true}
		}
	case runsText:
		vm.text, vm.at, vm.isRun = vm.at, line{}, true
	case runsInline:
		// It has an entry without a frame of execute_function.
		if vm.lost == nil && (!vm.isRun || vm.next == len(vm.calls)) {
			vm.lost = notRead
		}
		vm.next++
	case freesCommand:
		vm.frees = true
	case runsFunction:
		fn, number := vm.functionOf(in), vm.at.number
		vm.at, vm.text, vm.isRun, vm.frees = line{}, line{}, true, false
		if fn == nil {
			return 0
		}
		return vm.number(w.Codes(), fn, number)
	case runsFile:
		number := vm.text.number
		if vm.at.isMet {
			number = 0
		}
		isRun := vm.isRun
		vm.at, vm.text, vm.isRun, vm.frees = line{}, line{}, true, false
		return vm.number(w.Codes(), vm.sourceOf(isRun), number)
	case runsAll:
		if vm.top.Name == "" || !vm.isRun && vm.top.File == "" {
			return 0 // it may have a script that it has not begun with
		}
		return vm.number(w.Codes(), vm.of(vm.top), vm.at.number)
	}
	return 0
}

// number returns the number of a function in a line; 0 when there is no room.
func (vm *machine) number(codes *unwind.Codes, fn *function, line int) uint32 {
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[code]uint32{}, codes.Resets()
	}
	if fn.File == "" {
		line = 0
	}
	key := code{fn, line}
	n, ok := vm.codes[key]
	if !ok && len(vm.codes) < maxCodes {
		n = codes.Add(0, []unwind.CodeLine{{CodeFunction: &fn.CodeFunction, Line: line}}, 0)
		vm.codes[key] = n
	}
	return n
}

// functionOf returns the function that a frame of execute_function runs, nil where it runs none yet, or none any more.
func (vm *machine) functionOf(in *unwind.Frame) *function {
	if vm.lost != nil {
		return vm.lost
	}
	is := within
	if !vm.isRun {
		// No command runs in it: it is about to begin, or to end.
		is = before | within
		if in.Flags&unwind.Interrupted == 0 {
			if p, ok := vm.callsOf(vm.tables, vm.im, runsFunction)[in.PC()-vm.bias]; ok {
				is = p.phase
			}
		}
		if is == leaving && vm.frees {
			is = within // what it runs is freed before its entry is
		}
	}
	switch {
	case is == before:
		return nil
	case vm.next < len(vm.calls) && is == within:
	case vm.isCut && vm.next == len(vm.calls):
		vm.lost = others
		return others
	default:
		vm.lost = notRead
		return notRead
	}
	name := vm.calls[vm.next]
	vm.next++
	var whole bool
	if vm.name, whole = vm.books.text(vm.name[:0], name, maxName); !whole && !vm.complete() {
		return notRead
	}
	if def := vm.functions[string(vm.name)]; vm.isSample && def != nil && !def.valid.IsDue(vm.times) {
		return def
	}
	return vm.known(vm.take(string(vm.name), !vm.isRun))
}

// complete completes the beginning of a name, of which the kernel side copies so much, where just one function has a name
// that begins so.
func (vm *machine) complete() bool {
	const copied = 24 // bytes at least
	if len(vm.name) < copied {
		return false
	}
	if since := vm.times.Now - vm.definedAt; since >= definedFor || vm.definedAt == 0 {
		vm.names, vm.definedAt = vm.now.defined(vm.names[:0]), vm.times.Now
		clear(vm.completed)
	}
	is, ok := vm.completed[string(vm.name)]
	if !ok {
		for _, name := range vm.names {
			if strings.HasPrefix(name, string(vm.name)) {
				if is != "" {
					is = ""
					break
				}
				is = name
			}
		}
		if len(vm.completed) >= maxDefined {
			clear(vm.completed)
		}
		vm.completed[string(vm.name)] = is
	}
	vm.name = append(vm.name[:0], is...)
	return is != ""
}

// take returns the entry of a function, or one with its name alone.
func (vm *machine) take(name string, isBare bool) (e entry, isTold bool) {
	i := vm.nextEntry
	if i < 0 || i >= len(vm.entries) || isBare || vm.entries[i].function != name {
		vm.nextEntry = -1
		return entry{function: name}, false
	}
	vm.nextEntry++
	return vm.entries[i], true
}

// known returns a function: of the file that an entry tells, or else where the function of that name is defined.
func (vm *machine) known(e entry, isTold bool) *function {
	def := vm.functions[e.function]
	if def == nil {
		if len(vm.functions) >= maxFunctions || vm.Kept >= vmread.MaxKept {
			clear(vm.functions)
			clear(vm.files)
			clear(vm.codes)
			vm.Kept = 0
		}
		name := vmread.ValidText([]byte(e.function))
		if !vmread.IsPrintable(name) {
			return notRead
		}
		def = named(name)
		vm.functions[e.function] = def
		vm.Kept += len(name)
	}
	if def.valid.IsDue(vm.times) {
		file, line := vm.now.definition(e.function)
		if file = vm.fileOf(file); !vm.isThere() {
			file, line = def.File, def.StartLine
		}
		isSame := file == def.File && line == def.StartLine
		if def.valid.Read(vm.times, isSame); !isSame {
			is := named(def.Name)
			is.File, is.StartLine, is.valid = file, line, def.valid
			if file == "" {
				is.StartLine = 0
			}
			vm.functions[e.function], def = is, is
			vm.Kept += len(file)
		}
	}
	if !isTold || vm.fileOf(e.file) == def.File {
		return def
	}
	is := unwind.CodeFunction{Name: def.Name, SystemName: def.Name, Runtime: runtime, File: vm.fileOf(e.file)}
	return vm.of(is)
}

// of returns the function that is so.
func (vm *machine) of(is unwind.CodeFunction) *function {
	fn := vm.files[is]
	if fn == nil {
		if len(vm.files) >= maxFunctions {
			clear(vm.files)
			clear(vm.codes)
		}
		fn = &function{CodeFunction: is}
		vm.files[is] = fn
		vm.Kept += len(is.Name) + len(is.File)
	}
	return fn
}

// fileOf returns the file that bash says that something is of, "" where it is of none: of an interactive shell or of a
// text (main; from 5.3 on that is $0), or of the environment.
func (vm *machine) fileOf(file string) string {
	if file = vmread.ValidText([]byte(file)); file == "main" && file != vm.top.File || file == "environment" || file == vm.zero || !vmread.IsPrintable(file) {
		return ""
	}
	return file
}

// sourceOf returns the file that a frame of _evalfile runs.
func (vm *machine) sourceOf(isRun bool) *function {
	e, isTold := vm.take("source", !isRun)
	if !isTold {
		return sourced
	}
	return vm.of(fileFunction(vm.fileOf(e.file)))
}

// fileFunction is what a file does itself.
func fileFunction(file string) unwind.CodeFunction {
	if file == "" {
		return sourced.CodeFunction
	}
	name := "<file " + path.Base(file) + ">"
	return unwind.CodeFunction{Name: name, SystemName: name, Runtime: runtime, File: file}
}

// isThere reports whether the process can be read still: what was known of one that has ended stays so.
func (vm *machine) isThere() bool {
	_, ok := vm.now.wordAt(vm.globals + vm.bias)
	return ok
}

// readTop reads what the process runs. It has no script yet when it begins.
func (vm *machine) readTop() {
	if vm.topSince == 0 {
		vm.topSince = vm.times.Now
	}
	if isNew := vm.top.File == "" && vm.times.Now-vm.topSince < definedFor; !isNew && !vm.topValid.IsDue(vm.times) {
		return
	}
	is, zero := commands.CodeFunction, ""
	if file := vm.now.script(); file != "" {
		is = fileFunction(vmread.ValidText([]byte(file)))
	} else {
		at, _ := vm.now.wordAt(vm.arguments + vm.bias)
		b, _ := vm.now.text(nil, at, maxPath)
		zero = string(b)
	}
	if !vm.isThere() {
		return
	}
	vm.topValid.Read(vm.times, is == vm.top && zero == vm.zero)
	vm.top, vm.zero = is, zero
}

// commandLine returns the line of the command that a frame of execute_command_internal runs, 0 where it is not known.
func (vm *machine) commandLine(in *unwind.Frame) int {
	if vm.isSample || in.Flags&unwind.Interrupted != 0 {
		return 0
	}
	p, ok := vm.callsOf(vm.tables, vm.im, runsCommand)[in.PC()-vm.bias]
	if !ok {
		return 0
	}
	for regs := p.Regs & vm.arch.CalleeSaved; regs != 0; regs &= regs - 1 {
		if v, ok := in.Regs.Value(procstate.Reg(bits.TrailingZeros64(regs))); ok {
			return vm.line(v)
		}
	}
	reg, bytes, ok := vm.tables.For(vm.im).Rule(in.LookupPC() - vm.bias).CFA()
	base, known := in.Regs.Value(reg)
	if !ok || !known || p.Words == 0 {
		return 0
	}
	at := base + uint64(bytes) + uint64(mcode.WordOffset(bits.TrailingZeros64(p.Words)))
	v, ok := vm.wordAt(at)
	if !ok {
		return 0
	}
	return vm.line(v)
}
