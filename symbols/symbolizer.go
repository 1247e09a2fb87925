package symbols

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/swbpf/swbpf/procstate"
)

// Line is one logical frame at an address.
type Line struct {
	Function      string // for people (demangled); never empty
	SystemName    string // as in the file
	File          string // source file, "" when not known
	Line          int    // in File, 0 when not known
	StartLine     int    // of the function, 0 when not known
	FunctionStart uint64 // link-time address of the function; of its code there for an inlined call
	Inlined       bool   // a call inlined into the next Line
}

// Options of a Symbolizer. The zero value is useful.
type Options struct {
	Demangle  DemangleMode
	DebugDirs []string // searched for separate debug files; nil: DefaultDebugDir

	// Fetch returns the path of the separate debug file of a build ID, in
	// hex, that is not on this machine; nil when none shall be fetched. See
	// package debuginfod.
	Fetch func(buildID string) (path string, err error)

	// NoDebugInfo leaves out what debug information tells, lines and inlined
	// calls: functions are named by symbol tables, those of separate debug
	// files included, and Go code by Go's own table, which has all of it.
	NoDebugInfo bool

	Memory int // for what is kept of files, in bytes; 0: DefaultMemory
}

// Symbolizer names addresses of files. It is shared by all processes.
type Symbolizer struct {
	opt    Options
	budget budget

	jitCharged atomic.Int64 // bytes read of what processes tell of generated code, and kept

	mu     sync.Mutex
	files  map[*procstate.Image]*file
	groups map[string]*fileGroup // of files with an alternate file, by its build ID
	opened []*openedImage
	errs   []error

	deferred bool          // types are left
	wanted   []wantedTypes // whose types were wanted meanwhile
}

// New makes a Symbolizer. The zero Symbolizer is one of the zero Options.
func New(opt Options) *Symbolizer {
	s := &Symbolizer{opt: opt}
	s.init()
	return s
}

func (s *Symbolizer) init() {
	if s.opt.DebugDirs == nil {
		s.opt.DebugDirs = []string{DefaultDebugDir}
	}
	if s.opt.Memory == 0 {
		s.opt.Memory = DefaultMemory
	}
	s.budget.limit = s.opt.Memory
	s.files = map[*procstate.Image]*file{}
	s.groups = map[string]*fileGroup{}
}

// Demangling is how much of names is shown.
func (s *Symbolizer) Demangling() DemangleMode { return s.opt.Demangle }

// Close closes the debug files that were opened. The Symbolizer must not be
// used afterwards.
func (s *Symbolizer) Close() { s.Forget() }

// Forget gives back what is known of files so far: those that are asked for
// again are read again. Nothing else may use the Symbolizer meanwhile.
func (s *Symbolizer) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.opened {
		f.f.Close()
	}
	s.opened = nil
	for _, f := range s.files {
		if f.golang != nil {
			f.golang.Forget() // others may hold the table
		}
	}
	clear(s.files)
	clear(s.groups)
	s.budget.reset()
}

// Errors returns what went wrong in files so far: each cost names of that
// file, and nothing else.
func (s *Symbolizer) Errors() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]error(nil), s.errs...)
}

// ForgetErrors forgets what Errors has returned.
func (s *Symbolizer) ForgetErrors() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = nil
}

// maxErrors bounds the errors that are kept.
const maxErrors = 1000

func (s *Symbolizer) note(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.errs) < maxErrors {
		s.errs = append(s.errs, err)
	}
}

// symbolTable is a section of ELF symbols of an Image.
type symbolTable struct {
	img     *procstate.Image
	section procstate.Section
}

// file is what is known of the names of an Image.
type file struct {
	img *procstate.Image

	goOnce sync.Once
	golang *procstate.GoTable // nil when the file has no Go code

	openOnce sync.Once
	tables   []symbolTable // of ELF symbols
	dynamic  bool          // they are the dynamic ones alone: of most functions there are none
	dwarf    *dwarfData    // nil when there is no debug information

	expected *expected // nil: no addresses are

	scans   atomic.Int32 // symbols that were looked for without an index
	elfOnce sync.Once
	elf     *symtab // after elfOnce

	objectsOnce sync.Once
	objects     *symtab // symbols of data; after objectsOnce

	pltCode []codeRange // of the procedure linkage table
	pltOnce sync.Once
	plt     *symtab
}

// file returns the names of im.
func (s *Symbolizer) file(im *procstate.Image) *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files == nil {
		s.init()
	}
	f := s.files[im]
	if f == nil {
		f = &file{img: im, pltCode: pltCode(im)}
		s.files[im] = f
	}
	return f
}

// Lines appends the logical frames at link-time address vaddr of a file to
// dst: inlined calls innermost first, the function itself last. It appends
// nothing when the address has no name. vaddr is an address within the
// instruction in question, so for a frame that is in a call one below its
// return address.
func (s *Symbolizer) Lines(dst []Line, im *procstate.Image, vaddr uint64) []Line {
	f := s.file(im)
	if t := f.goTable(s); t != nil {
		if fn, ok := t.Func(vaddr); ok {
			return s.goLines(dst, t, &fn, vaddr)
		}
	}
	inPLT := f.inPLT(vaddr)
	if inPLT {
		f.pltOnce.Do(func() { s.loadPLT(f) })
		if l, ok := s.symbol(f.plt, vaddr); ok {
			return append(dst, l)
		}
	}
	f.openOnce.Do(func() { s.open(f) })
	table := s.symbolsAt(f, vaddr)
	symbol, _ := s.symbol(table, vaddr)
	if f.dynamic && table.isOpen(vaddr) && !mayLead(im, symbol.FunctionStart, vaddr) {
		symbol = Line{} // it is of another function, which has none
	}
	if f.dwarf != nil && !inPLT { // the linker's code is in no unit, and all would be looked through
		if out, ok := f.dwarf.lines(dst, vaddr, symbol); ok {
			return out
		}
	}
	if symbol.Function == "" {
		return dst
	}
	return append(dst, symbol)
}

// symbol returns the symbol of a table at a link-time address.
func (s *Symbolizer) symbol(t *symtab, vaddr uint64) (l Line, ok bool) {
	id, ok := t.find(vaddr)
	if !ok {
		return l, false
	}
	n := t.name(id, s.opt.Demangle, &s.budget)
	return Line{Function: n.function, SystemName: n.system, FunctionStart: t.start(id)}, true
}

// goTable returns the Go function table of the file, or nil.
func (f *file) goTable(s *Symbolizer) *procstate.GoTable {
	f.goOnce.Do(func() {
		t, err := procstate.Pclntab(f.img)
		if err == nil {
			f.golang = t
		} else if !errors.Is(err, procstate.ErrNoPclntab) {
			s.note(err)
		}
	})
	return f.golang
}

func (s *Symbolizer) goLines(dst []Line, t *procstate.GoTable, fn *procstate.GoFunc, vaddr uint64) []Line {
	var buf [8]procstate.GoLine
	n := len(dst)
	for _, l := range t.Lines(buf[:0], fn, vaddr) {
		if l.Name == "" {
			return dst[:n]
		}
		dst = append(dst, Line{
			Function: goFunction(fn, l.Name, s.opt.Demangle), SystemName: l.Name,
			File: l.File, Line: int(l.Line), StartLine: int(l.StartLine),
			Inlined: l.Inlined, FunctionStart: fn.Entry,
		})
	}
	return dst
}

// open finds the symbols of a file and opens its debug information, either of
// which may be in a separate debug file.
func (s *Symbolizer) open(f *file) {
	im := f.img
	_, hasDWARF := im.Section(".debug_info")
	full, hasSymtab := im.Section(".symtab")
	var debug *openedImage
	if !hasSymtab || !hasDWARF {
		var err error
		debug, err = debugFile(im, s.opt.DebugDirs)
		s.note(err)
		if debug == nil {
			debug, err = s.fetch(im)
			s.note(err)
		}
		if debug != nil {
			s.keep(debug)
		}
	}
	if hasSymtab {
		f.tables = []symbolTable{{im, full}}
	} else {
		if dyn, ok := im.Section(".dynsym"); ok {
			f.tables = []symbolTable{{im, dyn}}
		}
		s.openSeparate(f, debug)
		f.dynamic = len(f.tables) == 1 && f.tables[0].img == im
	}

	if s.opt.NoDebugInfo {
		return
	}
	info := im
	if !hasDWARF && debug != nil {
		info = debug.Image
	}
	var err error
	f.dwarf, err = openDWARF(s, info, newSymtabBuilder(im).code)
	s.note(err)
}

// symbolsAt returns an index of ELF symbols with the one at a link-time
// address: of all of them, but for the first few questions.
func (s *Symbolizer) symbolsAt(f *file, vaddr uint64) *symtab {
	if f.expected.has(vaddr) {
		return f.expected.table
	}
	if f.scans.Load() < scansFirst && f.scans.Add(1) <= scansFirst {
		if t, err := scan(newSymtabBuilder(f.img), []uint64{vaddr}, f.addTables); err == nil {
			return t
		}
	}
	f.elfOnce.Do(func() {
		b := newSymtabBuilder(f.img)
		s.note(f.addTables(b))
		f.elf = b.build()
		s.budget.charge(f.elf.memory())
	})
	return f.elf
}

// addTables puts the symbols of a file in.
func (f *file) addTables(b *symtabBuilder) error {
	var errs []error
	for _, t := range f.tables {
		errs = append(errs, b.addTable(t.img, t.section))
	}
	return errors.Join(errs...)
}

// loadPLT reads the names of the procedure linkage table.
func (s *Symbolizer) loadPLT(f *file) {
	b := newSymtabBuilder(f.img)
	s.note(b.addPLT(f.img))
	f.plt = b.build()
	s.budget.charge(f.plt.memory())
}

// fetch gets the separate debug file of im from elsewhere; nil when there is
// none.
func (s *Symbolizer) fetch(im *procstate.Image) (*openedImage, error) {
	if s.opt.Fetch == nil || im.ID.BuildID == "" {
		return nil, nil
	}
	path, err := s.opt.Fetch(im.BuildID())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", im.Path, err)
	}
	f, err := openImage(path)
	if err != nil {
		return nil, err
	}
	if f.ID.BuildID != im.ID.BuildID {
		f.f.Close()
		return nil, fmt.Errorf("%s: %w", path, errNotSameFile)
	}
	return f, nil
}

// keep closes a file with the Symbolizer.
func (s *Symbolizer) keep(im *openedImage) {
	s.mu.Lock()
	s.opened = append(s.opened, im)
	s.mu.Unlock()
}

// openSeparate finds the symbols in the separate debug file, or else in the
// MiniDebugInfo of the file.
func (s *Symbolizer) openSeparate(f *file, debug *openedImage) {
	if debug != nil {
		if t, ok := debug.Section(".symtab"); ok {
			f.tables = append(f.tables, symbolTable{debug.Image, t})
			return
		}
	}
	mini, err := miniDebugInfo(f.img)
	s.note(err)
	if mini == nil {
		return
	}
	if t, ok := mini.Section(".symtab"); ok {
		f.tables = append(f.tables, symbolTable{mini, t})
		s.budget.charge(int(mini.Size()))
	}
}
