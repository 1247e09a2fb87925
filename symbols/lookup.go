package symbols

import (
	"io"
	"runtime"

	"github.com/swbpf/swbpf/procstate"
)

// Lookup names the run-time addresses of one process. It implements the
// SymbolLookup of package unwind.
//
// Names of code that the process generated (JIT) come from its perf-PID.map
// or jitdump file, which live in its mount namespace, or from the object files
// that it has registered with debuggers (see [procstate.JITObjects]), which are in
// its memory. All of them grow while it runs: a Lookup is best made while the
// process is there, and told to Update now and then.
type Lookup struct {
	s    *Symbolizer
	libs procstate.LibraryState
	pid  int
	buf  []Line

	ps       procstate.ProcessState // nil when only libs and pid are known
	jit      *jitFiles              // nil until it is needed, and without a pid
	images   *jitImages             // nil until they are needed, and without a ps
	updated  uint64                 // when they were read last, in ns of CLOCK_MONOTONIC; 0: not yet
	more     bool                   // they were not read to their end
	again    uint64                 // from when on, in the same ns, they are read to their end again for an address that is not known
	unclosed runtime.Cleanup        // closes jit
}

// Process returns the Lookup of a process, which may be nil: then it knows nothing.
func (s *Symbolizer) Process(ps procstate.ProcessState) *Lookup {
	if ps == nil {
		return s.Lookup(nil, 0)
	}
	l := s.Lookup(ps.Libraries(), ps.PID())
	l.ps = ps
	return l
}

// Lookup returns the Lookup of the process pid (as we see it, 0 when not
// known) with the given loaded code; without, libs is nil. It reads no memory of the
// process, and so no object files that are there.
func (s *Symbolizer) Lookup(libs procstate.LibraryState, pid int) *Lookup {
	if libs == nil {
		libs = new(procstate.AddressSpace)
	}
	return &Lookup{s: s, libs: libs, pid: pid}
}

// PerfMap returns the Lookup of a process that may be no more: it knows of generated code what is in
// its perf-PID.map, of so many bytes, all of which is read now and counts as valid always.
func (s *Symbolizer) PerfMap(pid int, perfMap io.ReaderAt, size int64) *Lookup {
	l := s.Lookup(nil, 0)
	if perfMap == nil {
		return l
	}
	l.jit = &jitFiles{pid: pid, dumps: map[string]*openDump{}}
	limit := int64(maxPerfMap)
	s.note(l.jit.note("perf map", l.jit.perfMap.read(perfMap, size, &l.jit.table, 0, &limit)))
	l.updated = procstate.Monotonic()
	return l
}

// Update reads what the process has told about generated code since the last
// time. Entries that are new in a perf-PID.map, which has no times, count as
// valid since the last Update, so that an address whose code was replaced is
// named by what was there when it was sampled. It opens the files on first
// use; a process that generates no code costs two system calls.
func (l *Lookup) Update() {
	began, renewed := procstate.Monotonic(), 0
	if l.jit != nil {
		renewed = l.jit.renewed
	}
	looks := 1
	for l.UpdateSome() && l.jit.renewed <= renewed+1 { // not as long as it is written anew
		looks++
	}
	if now := procstate.Monotonic(); looks > 2 { // the first is a small one
		l.again = now + 20*(now-began)
	}
}

// UpdateSome is Update for whoever has little time: it reads a megabyte at most, and
// reports whether there is more.
func (l *Lookup) UpdateSome() (more bool) {
	l.more = l.updateSome()
	return l.more
}

func (l *Lookup) updateSome() (more bool) {
	limit := int64(maxJITLook)
	if l.updated == 0 {
		limit = maxJITFirst
	}
	l.updated = procstate.Monotonic()
	if l.ps != nil {
		if l.images == nil {
			l.images = &jitImages{s: l.s, objects: procstate.JITObjectsOf(l.ps)}
		}
		l.images.update()
	}
	if l.pid == 0 {
		return false
	}
	if l.jit == nil {
		l.jit = openJITFiles(l.pid)
		l.jit.all = &l.s.jitCharged
		l.unclosed = runtime.AddCleanup(l, (*jitFiles).close, l.jit)
	}
	more, err := l.jit.update(l.libs, limit)
	l.s.note(err)
	return more
}

// Close closes the files of the process. Without, they are closed when the Lookup is garbage.
func (l *Lookup) Close() {
	if l.jit != nil {
		l.unclosed.Stop()
		l.jit.close()
		l.jit = nil
	}
}

// Lines appends the logical frames at run-time address addr to dst; see
// [Symbolizer.Lines]. FunctionStart is a run-time address here.
func (l *Lookup) Lines(dst []Line, addr uint64) []Line { return l.LinesAt(dst, addr, 0) }

// LinesAt is Lines for a moment in the past, in ns of CLOCK_MONOTONIC: it
// tells generated code apart that was at one address at different times. 0 is
// the latest.
func (l *Lookup) LinesAt(dst []Line, addr, when uint64) []Line {
	if l.libs == nil {
		return dst
	}
	m := l.libs.MappingAt(addr)
	if m == nil || m.Image == nil {
		if v, ok := vsyscallLine(addr); ok {
			return append(dst, v)
		}
		return l.jitLines(dst, addr, when)
	}
	n := len(dst)
	dst = l.s.Lines(dst, m.Image, addr-m.Bias)
	for i := n; i < len(dst); i++ {
		dst[i].FunctionStart += m.Bias
	}
	return dst
}

// jitInterval is how often it is looked for new code without being told to, in ns. Where
// there is much of it, that may take a twentieth of the time.
const jitInterval = 100e6

// jitLines names generated code. Where there is no answer the process is asked
// again, but not more often than makes sense.
func (l *Lookup) jitLines(dst []Line, addr, when uint64) []Line {
	n := len(dst)
	if l.updated != 0 {
		if dst = l.knownJITLines(dst, addr, when); len(dst) > n {
			return dst
		}
	}
	if now := procstate.Monotonic(); l.updated == 0 || now >= l.again && (l.more || now-l.updated >= jitInterval) {
		l.Update()
		dst = l.knownJITLines(dst, addr, when)
	}
	return dst
}

// knownJITLines is jitLines by what has been read. An entry of a file is of one
// function, and preferred to an object file, which may be of all that there are.
func (l *Lookup) knownJITLines(dst []Line, addr, when uint64) []Line {
	if l.jit != nil {
		if e := l.jit.table.find(addr, when); e != nil {
			return append(dst, l.jit.table.line(e, addr, l.s.opt.Demangle))
		}
	}
	if l.images != nil {
		if im := l.images.at(addr); im != nil {
			return l.s.Lines(dst, im, addr)
		}
	}
	return dst
}

// SymbolAt names the function that holds addr: not the calls inlined into
// it, for which see Lines. Object is the *procstate.Image of the code, nil
// for generated code.
func (l *Lookup) SymbolAt(addr uint64) (sym procstate.Symbol, ok bool) {
	l.buf = l.Lines(l.buf[:0], addr)
	if len(l.buf) == 0 {
		return sym, false
	}
	fn := &l.buf[len(l.buf)-1]
	sym = procstate.Symbol{Name: fn.Function, Offset: addr - fn.FunctionStart}
	if m := l.libs.MappingAt(addr); m != nil && m.Image != nil {
		sym.Object = m.Image
	}
	return sym, true
}

// SourceLine returns the source line at a run-time address, in the function
// that SymbolAt names.
func (l *Lookup) SourceLine(addr uint64) (file string, line int, ok bool) {
	l.buf = l.Lines(l.buf[:0], addr)
	if len(l.buf) == 0 {
		return "", 0, false
	}
	fn := &l.buf[len(l.buf)-1]
	return fn.File, fn.Line, fn.Line > 0
}

// Symbolizer returns what knows the files of the process.
func (l *Lookup) Symbolizer() *Symbolizer { return l.s }

// vsyscallPage is the page of system call stubs that the kernel maps into
// every amd64 process at a fixed address (arch/x86/include/uapi/asm/
// vsyscall.h).
const vsyscallPage = 0xffffffffff600000

// vsyscallLine names an address of the page: three stubs, 1024 bytes apart.
func vsyscallLine(addr uint64) (l Line, ok bool) {
	names := [...]string{"gettimeofday", "time", "getcpu"}
	i := (addr - vsyscallPage) / 1024
	if addr < vsyscallPage || i >= uint64(len(names)) {
		return l, false
	}
	name := "vsyscall_" + names[i]
	return Line{Function: name, SystemName: name, FunctionStart: vsyscallPage + i*1024}, true
}
