package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// modules numbers the code that frames are in, and names it at the end: it is
// what a profile.Builder and its Symbolizer have in common.
type modules struct {
	builder *profile.Builder
	images  []uint32 // profile module by Image.Index; 0 is not yet known
	byPath  map[string]uint32
	kernel  uint32
	bpf     uint32          // of code that is numbered by bpfCode
	bpfCode symbols.BPFCode // that came into the kernel and went since it records

	info     map[uint32]profile.Module   // by profile module
	image    map[uint32]*procstate.Image // by profile module
	jit      map[uint32]*symbols.Lookup  // of processes that generate code, by profile module
	walked   []*walkedProcess            // of the processes in jit, while they run
	jitDue   []uint32                    // those in jit that the present round has not come to
	jitNext  time.Time                   // when it goes on, or the next begins
	codes    unwind.Codes                // what runtimes tell of it
	runtimes map[string]uint32
	part     uint32                   // of the recording
	pastMap  func(pid int32) *os.File // of a recording: opens the perf-PID.map of a process, if that is its own; nil where processes run
	*codeNames
}

// codeNames names code of files and of the kernel. It belongs to one
// goroutine, which need not be that of the modules.
type codeNames struct {
	symbolizer  *symbols.Symbolizer
	tables      *unwind.Tables          // tell where functions without a name begin; nil until needed
	code        *steppers.FrameAnalyzer // tells so too; nil until needed
	kernelNames *loader.KernelNames     // nil until needed, and where the kernel cannot be asked
	kallsyms    *symbols.Kernel         // for what it does not tell then
	pastKernel  *pastKernel             // names the kernel of a recording; nil where that is the running one
	nameless    bool                    // kallsyms do not tell of that either
	notes       []string                // what is missing in the names, each thing once
}

func newCodeNames(opt symbols.Options) *codeNames {
	return &codeNames{symbolizer: symbols.New(opt)}
}

func newModules(b *profile.Builder, opt symbols.Options) *modules {
	ms := &modules{
		builder:   b,
		byPath:    map[string]uint32{},
		info:      map[uint32]profile.Module{},
		image:     map[uint32]*procstate.Image{},
		jit:       map[uint32]*symbols.Lookup{},
		runtimes:  map[string]uint32{},
		codeNames: newCodeNames(opt),
	}
	ms.kernel = ms.number(profile.Module{Path: profile.KernelPath, Kind: profile.Kernel})
	ms.bpf = ms.number(profile.Module{Path: "[bpf]", Kind: profile.Kernel})
	return ms
}

// number returns the number of a module in the profile.
func (ms *modules) number(m profile.Module) uint32 {
	id := ms.builder.Module(m)
	ms.info[id] = m
	return id
}

// onBPF follows BPF programs: those that end before names are read have none
// then, and others are where they were.
func (ms *modules) onBPF(e *loader.SidebandEvent) {
	if e.Gone {
		ms.bpfCode.Went(e.Addr, e.Len, e.Symbol)
	} else {
		ms.bpfCode.Came(e.Addr, e.Len, e.Symbol)
	}
}

// ofKernel returns the place of a kernel address.
func (ms *modules) ofKernel(addr uint64) profile.Loc {
	if place, ok := ms.bpfCode.At(addr); ok {
		return profile.Loc{Module: ms.bpf, Addr: place}
	}
	return profile.Loc{Module: ms.kernel, Addr: addr}
}

// appendUser appends the places of a frame of a process, callers first: of the functions that
// a runtime tells of, or of its address.
func (ms *modules) appendUser(dst []profile.Loc, wp *walkedProcess, pc unwind.PC) []profile.Loc {
	if pc.Code == 0 {
		return append(dst, ms.user(wp, wp.space.MappingAt(pc.Addr), pc.Addr))
	}
	module := ms.jitOf(wp)
	if lines := ms.codes.Lines(pc.Code); len(lines) > 0 {
		module = ms.ofRuntime(lines[0].Runtime)
	}
	first := len(dst)
	for code := pc.Code; code != 0; code = ms.codes.Outer(code) {
		dst = append(dst, profile.Loc{Module: module, Addr: toldPlace | uint64(code)})
	}
	slices.Reverse(dst[first:])
	return dst
}

// ofRuntime returns the module of the functions of a runtime, of all processes.
func (ms *modules) ofRuntime(name string) uint32 {
	id, ok := ms.runtimes[name]
	if !ok {
		id = ms.number(profile.Module{Path: "[" + name + "]", Kind: profile.JIT})
		ms.runtimes[name] = id
	}
	return id
}

// user returns the place of a user address of a process in the mapping that
// holds it; m is nil when there is none.
func (ms *modules) user(wp *walkedProcess, m *procstate.Mapping, addr uint64) profile.Loc {
	switch {
	case m == nil:
		return profile.Loc{Addr: addr}
	case m.Image != nil:
		return profile.Loc{Module: ms.ofImage(m), Addr: addr - m.Bias}
	case m.Path == procstate.UprobesMapping || strings.HasPrefix(m.Path, procstate.UprobeCallsMapping):
		return profile.Loc{Module: ms.ofPath(procstate.UprobesMapping, profile.Native), Addr: addr - m.Start}
	case m.ImageErr != nil: // a file that could not be opened: its offsets still mean something
		return profile.Loc{Module: ms.ofPath(m.Path, profile.Native), Addr: addr - m.Start + m.Offset}
	}
	return profile.Loc{Module: ms.jitOf(wp), Addr: addr}
}

// jitOf returns the module of what a process generates or interprets.
func (ms *modules) jitOf(wp *walkedProcess) uint32 {
	if wp.jit == 0 || wp.jitPart != ms.part {
		wp.jit, wp.jitPart = ms.ofJIT(wp), ms.part
	}
	return wp.jit
}

// toldPlace is set in the place of a frame of which a runtime tells what it runs, the
// rest of which is unwind.PC.Code. Addresses of user code do not reach it.
const toldPlace = 1 << 63

// toldCode returns the number of what is at a place, if a runtime tells.
func (ms *modules) toldCode(loc profile.Loc) (number uint32, ok bool) {
	return uint32(loc.Addr), loc.Addr&toldPlace != 0 && ms.info[loc.Module].Kind == profile.JIT
}

// maxJIT bounds the processes whose generated code gets names: each holds
// files open.
const maxJIT = 1000

// ofJIT returns the module of the code that a process generates.
func (ms *modules) ofJIT(wp *walkedProcess) uint32 {
	pid := wp.snapshot.PID()
	id := ms.ofPath(fmt.Sprintf("[jit of %d]", pid), profile.JIT)
	switch {
	case len(ms.jit) >= maxJIT || ms.jit[id] != nil:
	case ms.pastMap != nil:
		if f := ms.pastMap(int32(pid)); f != nil {
			if st, err := f.Stat(); err == nil {
				ms.jit[id] = ms.symbolizer.PerfMap(pid, f, st.Size())
			}
			f.Close()
		}
	default:
		ms.jit[id] = ms.symbolizer.Process(wp.snapshot)
		ms.walked = append(ms.walked, wp)
		ms.jit[id].UpdateSome()
	}
	return id
}

// jitTurn is how long the recorder reads at a time what processes tell about generated
// code, which may be any amount. It rests ten times as long as it took.
const jitTurn = 50 * time.Millisecond

// updateJIT reads what processes have told about generated code since, once a
// second: code may be gone and its place taken when the recording ends, and
// the process, too. What only its samples need is let go of then.
func (ms *modules) updateJIT(procs processTable) {
	began := time.Now()
	if len(ms.jit) == 0 || began.Before(ms.jitNext) {
		return
	}
	if len(ms.jitDue) == 0 {
		ms.jitDue = slices.AppendSeq(ms.jitDue, maps.Keys(ms.jit))
	}
	took, more := time.Duration(0), false
	for n := len(ms.jitDue); n > 0 && took < jitTurn; n-- {
		if l := ms.jit[ms.jitDue[n-1]]; l != nil && l.UpdateSome() {
			more = true
		}
		ms.jitDue, took = ms.jitDue[:n-1], time.Since(began)
	}
	ms.jitNext = began.Add(11 * took)
	if len(ms.jitDue) > 0 {
		return
	}
	if second := began.Add(time.Second); !more && ms.jitNext.Before(second) {
		ms.jitNext = second
	}
	ms.walked = slices.DeleteFunc(ms.walked, func(wp *walkedProcess) bool {
		if proc := procs.Process(int32(wp.snapshot.PID())); proc != nil && proc.Data == wp {
			return false
		}
		wp.snapshot.Forget()
		return true
	})
}

func (ms *modules) ofImage(m *procstate.Mapping) uint32 {
	im := m.Image
	if i := int(im.Index); i < len(ms.images) && ms.images[i] != 0 {
		return ms.images[i]
	}
	for int(im.Index) >= len(ms.images) {
		ms.images = append(ms.images, 0)
	}
	mod := profile.Module{Path: m.Path, BuildID: im.BuildID(), Kind: profile.Native}
	if s, ok := codeSegment(im, m.Start-m.Bias); ok {
		mod.Start, mod.Limit, mod.Offset = s.Vaddr, s.Vaddr+s.Memsz, s.Off
	}
	if _, err := procstate.Pclntab(im); err == nil {
		mod.Kind = profile.Go
	}
	id := ms.number(mod)
	ms.images[im.Index] = id
	ms.image[id] = im
	return id
}

// codeSegment returns the executable segment at a link-time address.
func codeSegment(im *procstate.Image, vaddr uint64) (procstate.Segment, bool) {
	for _, s := range im.Segments() {
		if s.Flags&1 != 0 && vaddr+4095 >= s.Vaddr && vaddr < s.Vaddr+s.Memsz {
			return s, true
		}
	}
	return procstate.Segment{}, false
}

func (ms *modules) ofPath(path string, kind profile.Kind) uint32 {
	id, ok := ms.byPath[path]
	if !ok {
		id = ms.number(profile.Module{Path: path, Kind: kind})
		ms.byPath[path] = id
	}
	return id
}

// has reports whether frames were found in a file.
func (ms *modules) has(im *procstate.Image) bool {
	i := int(im.Index)
	return i < len(ms.images) && ms.images[i] != 0
}

// count returns the number of files among modules in use, by their numbers.
func (ms *modules) count(used []bool) (n int) {
	for id := range ms.image {
		if used[id] {
			n++
		}
	}
	return n
}

// Expect implements profile.Expecter. Addresses come in order of modules: what names
// those of one is given back before the next.
func (ms *modules) Expect(module uint32, addrs []uint64) {
	ms.forgetNames()
	if im := ms.image[module]; im != nil {
		ms.symbolizer.Expect(im, addrs)
	}
}

// Named implements profile.Expecter.
func (ms *modules) Named() {
	ms.forgetNames()
	debug.FreeOSMemory()
}

// Symbolize implements profile.Symbolizer.
func (ms *modules) Symbolize(dst []profile.Line, loc profile.Loc) []profile.Line {
	switch loc.Module {
	case ms.kernel:
		if s, decided := ms.bpfCode.Earlier(loc.Addr); decided {
			return appendName(dst, s.Name)
		}
		return ms.kernelName(dst, loc.Addr)
	case ms.bpf:
		s, _ := ms.bpfCode.Name(loc.Addr)
		return appendName(dst, s.Name)
	}
	if number, ok := ms.toldCode(loc); ok {
		return appendTold(dst, ms.codes.Lines(number), ms.symbolizer.Demangling())
	}
	if im := ms.image[loc.Module]; im != nil {
		return ms.fileName(dst, im, loc.Addr)
	}
	if l := ms.jit[loc.Module]; l != nil {
		var buf [1]symbols.Line
		return appendLines(dst, l.Lines(buf[:0], loc.Addr))
	}
	return dst
}

// forgetNames gives back what names have been read from.
func (ms *modules) forgetNames() {
	ms.symbolizer.Forget()
	ms.tables = nil
	if ms.code != nil {
		ms.code.Forget()
	}
	if ms.kernelNames != nil {
		ms.kernelNames.Close()
	}
	ms.kernelNames, ms.kallsyms = nil, nil
}

// forgetUnused lets go of the files that have no frames in the present profile, by the
// numbers of modules, and of the generated code of processes that have ended.
func (ms *modules) forgetUnused(used []bool) {
	for i, id := range ms.images { // several where a file is there more than once
		if id != 0 && !used[id] {
			ms.images[i] = 0
		}
	}
	for id := range ms.image {
		if !used[id] {
			delete(ms.image, id)
			ms.forget(id)
		}
	}
	generates := map[uint32]bool{}
	for _, wp := range ms.walked {
		generates[wp.jit] = true
	}
	for path, id := range ms.byPath {
		if used[id] || generates[id] {
			continue
		}
		if l := ms.jit[id]; l != nil {
			l.Close()
			delete(ms.jit, id)
		}
		delete(ms.byPath, path)
		ms.forget(id)
	}
	for name, id := range ms.runtimes {
		if !used[id] {
			delete(ms.runtimes, name)
			ms.forget(id)
		}
	}
	if ms.codes.Len() > maxToldCodes {
		ms.codes.Reset()
	}
	ms.part++
}

// maxToldCodes is how many codes are kept for the next part of a recording.
const maxToldCodes = 1 << 14

func (ms *modules) forget(id uint32) {
	delete(ms.info, id)
	ms.builder.ForgetModule(id)
}

// fileName names a link-time address of a file.
func (n *codeNames) fileName(dst []profile.Line, im *procstate.Image, addr uint64) []profile.Line {
	var buf [8]symbols.Line
	lines := n.symbolizer.Lines(buf[:0], im, addr)
	if len(lines) > 0 {
		return appendLines(dst, lines)
	}
	if start, ok := n.functionStart(im, addr); ok {
		dst = append(dst, profile.Line{Start: start})
	}
	return dst
}

func appendLines(dst []profile.Line, lines []symbols.Line) []profile.Line {
	for _, l := range lines {
		dst = append(dst, profile.Line{
			Function: l.Function, SystemName: l.SystemName, File: l.File,
			Line: l.Line, StartLine: l.StartLine, Inlined: l.Inlined,
		})
	}
	return dst
}

// appendTold appends what a runtime tells of a frame.
func appendTold(dst []profile.Line, lines []unwind.CodeLine, mode symbols.DemangleMode) []profile.Line {
	for i, l := range lines {
		dst = append(dst, profile.Line{
			Function: codeName(l.CodeFunction, mode), SystemName: l.SystemName, File: l.File,
			Line: l.Line, StartLine: l.StartLine, Inlined: i < len(lines)-1,
		})
	}
	return dst
}

// codeName returns the name of a function of a runtime's, as much of it as is wanted.
func codeName(f *unwind.CodeFunction, mode symbols.DemangleMode) string {
	switch mode {
	case symbols.DemangleFull:
		return f.Name + f.Parameters
	case symbols.DemangleNone:
		return f.SystemName
	}
	return f.Name
}

// functionStart returns where the nameless function at a link-time address
// begins, as the file's unwind tables tell or else its code, so that its frames
// can be one.
func (n *codeNames) functionStart(im *procstate.Image, addr uint64) (uint64, bool) {
	if n.tables == nil {
		n.tables = unwind.NewTablesWithBudget(tableBudget)
	}
	if start, _, ok := n.tables.For(im).FunctionAt(addr); ok {
		return start, true
	}
	if n.code == nil {
		n.code = steppers.NewFrameAnalyzer()
	}
	return n.code.FunctionStart(im, addr)
}

// noteErrors says, once, that files could not be used for names.
func (n *codeNames) noteErrors() {
	if note := missingNames(n.symbolizer); note != "" {
		n.notes = append(n.notes, note)
	}
}

// missingNames says in a line that files could not be used for names, or not all of
// them, if so.
func missingNames(s *symbols.Symbolizer) string {
	errs := s.Errors()
	if len(errs) == 0 {
		return ""
	}
	more := ""
	if n := len(errs) - 1; n > 0 {
		more = fmt.Sprintf("; and %d more like this", n)
	}
	first := strings.ReplaceAll(errs[0].Error(), "\n", "; ") // of several servers
	return printable(fmt.Sprintf("names may be missing, as not all of a file could be used: %s%s", first, more))
}

// kernelName names a kernel address: by asking the kernel, and by /proc/kallsyms where it
// does not tell, as of code of its tracer. As that lists 100,000 others as well it is not
// read again in vain.
func (n *codeNames) kernelName(dst []profile.Line, addr uint64) []profile.Line {
	if n.pastKernel != nil && !n.pastKernel.isRunning() {
		return appendName(dst, n.pastKernel.name(addr))
	}
	if n.kernelNames == nil && n.kallsyms == nil {
		n.kernelNames, _ = loader.OpenKernelNames()
	}
	if n.kernelNames != nil {
		if name, _, ok := n.kernelNames.Lookup(addr); ok {
			return appendName(dst, name)
		}
		if n.nameless {
			return dst
		}
	}
	if n.kallsyms == nil {
		k, err := symbols.OpenKernel()
		if errors.Is(err, symbols.ErrRestricted) {
			n.notes = append(n.notes, "kernel names are hidden: they need root or cap_syslog, and kernel.kptr_restrict below 2")
		} else if err != nil {
			n.notes = append(n.notes, "no kernel names: "+err.Error())
		}
		if err != nil {
			k = &symbols.Kernel{}
		}
		n.kallsyms = k
	}
	s, ok := n.kallsyms.Lookup(addr)
	n.nameless = n.nameless || !ok
	return appendName(dst, s.Name)
}

// appendName appends the line of a function of the kernel, if it has a name.
func appendName(dst []profile.Line, name string) []profile.Line {
	if name == "" {
		return dst
	}
	return append(dst, profile.Line{Function: name, Kind: profile.Kernel})
}
