package v8

import (
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of JavaScript run in frames of V8, the virtual machine of Node
// (see unwind.Codes): V8 10.2, 11.3 and 12.4 to 14.6, of Node 18, 20 and 22 to 26, with symbols or without,
// 12.9 to 15.0 of Deno 2.0 to 2.9, and 14.1 to 15.6 of Chromium 141 to 156, which have none. And it
// walks from frames in calls of code that V8 has compiled, and from those that V8 makes anew when it
// gives up such code: that puts other return addresses in their places, before which no call
// stands. All other frames are found by others.
//
// A frame of the interpreter or of the baseline compiler holds the function and its bytecode. What
// the optimising compilers have made is found by its code, which tells what was inlined where.
// What is called how is read from the process when it is first met: by then, in a recording some
// tenths of a second later, the garbage collector can have moved or freed what a frame has
// pointed to. So nothing has a name that does not fit together: the function of a frame must
// still have the frame's bytecode. Where it has not, as many functions are made for one call, it
// is looked for among all functions of the scripts that are known.
type Stepper struct {
	images mcode.PerImage[image]
	lines  lines
	buf    [64]byte
}

// New makes a Stepper.
func New() *Stepper { return &Stepper{} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "v8" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image { return s.images.Known(im, find) }

// interprets reports whether pc, in m, is in the code that runs bytecode, which has called.
func (s *Stepper) interprets(m *procstate.Mapping, pc uint64, interrupted bool) bool {
	if interrupted {
		return false // its frame may not be whole
	}
	for _, r := range s.image(m.Image).interpreter {
		if vaddr := pc - m.Bias; vaddr-r.Start < r.End-r.Start {
			return true
		}
	}
	return false
}

// resumes returns what the code is called in which a frame goes on that was made anew.
func (s *Stepper) resumes(m *procstate.Mapping, pc uint64, interrupted bool) (name string, ok bool) {
	if !interrupted {
		name, ok = s.image(m.Image).resumes[pc-m.Bias]
	}
	return name, ok
}

// compilesLazily reports whether pc, in m, is in the code that has functions of WebAssembly compiled, which has called.
func (s *Stepper) compilesLazily(m *procstate.Mapping, pc uint64, interrupted bool) bool {
	r := s.image(m.Image).lazy
	return !interrupted && pc-m.Bias-r.Start < r.End-r.Start
}

// returnsAnew reports whether a frame of a function that is known returns to one that was made anew: before that no call stands.
func (s *Stepper) returnsAnew(w *unwind.Walker, m *procstate.Mapping, in *unwind.Frame) bool {
	fp, known := in.Regs.Value(w.Arch().FP)
	pc, ok := w.ProcessState().ReadWord(fp + 8)
	_, resumes := s.image(m.Image).resumes[pc-m.Bias]
	return known && ok && resumes
}

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	pc := in.LookupPC()
	m := w.MappingAt(pc)
	if m == nil || beyond[w.Arch()] == 0 {
		return unwind.NotMe, nil
	}
	interrupted := in.Flags&unwind.Interrupted != 0
	var at unframed
	switch {
	case m.Image != nil:
		s.noteBuiltin(w, m, in)
		if s.compilesLazily(m, pc, interrupted) {
			return byFramePointer(w, in, out)
		}
		if !interrupted {
			if v, err := s.image(m.Image).leaveEntry(w, pc-m.Bias, in, out); v != unwind.NotMe {
				return v, err
			}
		}
		at = s.inBuiltin(m, pc, interrupted)
		name, resumes := s.resumes(m, in.PC(), interrupted)
		if !resumes && !s.interprets(m, pc, interrupted) {
			break
		}
		vm := s.machine(w)
		if vm == nil {
			break
		}
		if !vm.learned(in) {
			vm.notLearned(w.Codes())
			break
		}
		if code := vm.interpretedCode(w.Codes(), in); code != 0 {
			in.Code = code
		}
		if !resumes && (in.Code == 0 || !s.returnsAnew(w, m, in)) {
			break
		}
		if in.Code == 0 {
			in.Code = vm.ownCode(w.Codes(), name, in.PC()-m.Bias)
		}
		return byFramePointer(w, in, out)
	case !procstate.HasFile(m.Path):
		vm := s.machine(w)
		if vm == nil {
			break
		}
		if vm.noteRegisters(in); !vm.learned(in) {
			break
		}
		var c *code
		if vm.knownWasm(pc) == nil {
			c = vm.codeAt(m, pc)
		}
		if c == nil {
			wasm := vm.wasmAt(in)
			in.Code = vm.wasmCode(w.Codes(), wasm, in)
			switch {
			case in.Code != 0 && !interrupted:
				return vm.wasmCaller(w, wasm, in, out)
			case interrupted && wasm != nil:
				at = s.unframedWasm(w, m, wasm, in.SP(), pc)
			}
			break
		}
		in.Code = vm.compiledCode(w.Codes(), c, in)
		switch {
		case !interrupted:
			return c.callerFrame(vm.fields, w, in, out)
		case c.isJavaScript(vm.fields) || c.isWasmStub(vm.fields):
			at = s.unframed(w, m, c, c.kind == vm.fields.baseline, pc)
		}
	}
	if at.ok {
		return at.callerFrame(w, in, out)
	}
	return unwind.NotMe, nil
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil {
		return unwind.RuleNotMe, true
	}
	if m.Image == nil {
		return unwind.RuleNotMe, false
	}
	_, resumes := s.resumes(m, pc, interrupted)
	pc = mcode.LookupPC(pc, interrupted)
	return unwind.RuleNotMe, !resumes && !s.interprets(m, pc, interrupted) && !s.compilesLazily(m, pc, interrupted) && !s.inBuiltin(m, pc, interrupted).ok && !s.image(m.Image).blob.holds(pc-m.Bias)
}

// noteBuiltin notes which of V8's own functions a frame is in, where the file has no symbols of them.
func (s *Stepper) noteBuiltin(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame) {
	p := s.image(m.Image)
	b := p.blob.at(f.LookupPC() - m.Bias)
	if b == nil {
		return
	}
	if vm := s.machine(w); vm != nil {
		if vm.noteRegisters(f); vm.knowsNames(p) {
			f.Code = vm.ownCode(w.Codes(), own+p.names[b.number], b.Start)
		}
	}
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }

// machine is what is known of the virtual machine of a process. Addresses of objects are as V8
// has them, with a bit set that tells them from small integers.
type machine struct {
	vmread.Found
	vmread.Memory
	handleTable

	fields  *fields // nil: there is none
	arch    *procstate.Arch
	beyond  uint64 // bits that no address has
	pointer rootPointer
	image   *procstate.Image // that has it
	bias    uint64           // of that
	lines   *lines           // of all processes

	late  uint64 // the last walk that was too late: what frames have pointed to is not in memory any more
	tried uint64 // the last walk that types were looked for in
	tries int    // frames that bytecode runs in by which nothing was learned

	types     map[uint64]uint16 // by map
	sharedMap uint64            // that of SharedFunctionInfos; 0: none was met

	compiled []*code               // by where they begin
	tables   int                   // bytes of their tables, about
	missed   map[uint64]missedPage // pages of code that is not V8's, or not such

	bytecodes map[uint64]*bytecode
	functions map[uint64]*function
	scripts   map[uint64]*scriptFile
	absent    map[uint64]bool // bytecode that none of the functions that are listed has
	serial    uint32          // of the last function or code

	wasm wasm

	codes  map[place]uint32 // numbers in unwind.Codes
	resets int              // of these

	page  [codePage]byte
	small [8]byte
	buf   [v8CodeBytes]byte
}

// place is what a frame runs: a place in compiled code, or in a function's bytecode.
type place struct {
	serial uint32
	at     int32
}

// Limits on what is kept of a process, and on what is read of it.
const (
	maxTypes     = 1 << 12
	maxCompiled  = 1 << 13
	maxFunctions = 1 << 15
	maxScripts   = 1 << 12
	maxCodes     = 1 << 18

	maxCodeBytes = 1 << 20 // that are looked through for where the code begins
	maxTable     = 1 << 20 // bytes of a table
	maxInlined   = 1 << 12
	maxDepth     = 1 << 8  // of functions that were inlined into each other
	maxName      = 1 << 10 // characters
	maxSource    = 32 << 20
	maxListed    = 1 << 16 // functions of a script

	codePage = 4 << 10
	interval = 100 * time.Millisecond // after which what was read is looked at again

	// When a page of code is looked through again: what is there may be new. Each time waits twice as long.
	missedFirst = 10 * time.Millisecond
	missedLast  = time.Second
)

// missedPage is when a page of code was looked through in vain, and for how long it is not again.
type missedPage struct {
	at   time.Time
	wait time.Duration
}

// machine returns the virtual machine of the process that w walks, nil when there is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, _ := vmread.MachineOf(w, s, s.findMachine)
	if vm.fields == nil {
		return nil
	}
	return vm
}

// findMachine looks for the virtual machine, which may be the one that is known. What it
// returns has no fields when there is none.
func (s *Stepper) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	vm := &machine{arch: w.Arch(), beyond: beyond[w.Arch()], pointer: rootPointers[w.Arch()], Memory: vmread.MemoryOf(w), lines: &s.lines}
	if libs == nil {
		return vm
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.fields == nil {
			if p.blob != nil {
				w.Codes().Lack(unknown(lib.Image))
			}
			continue
		}
		if known != nil && known.image == lib.Image {
			if !known.stays() {
				known.forget()
			}
			known.bias = lib.Bias
			return known
		}
		fields := *p.fields // of which some may be learned from the process
		vm.fields, vm.image, vm.bias = &fields, lib.Image, lib.Bias
		vm.forget()
		break
	}
	return vm
}

// unknown says that functions of JavaScript have no names, as it is not known where a V8 has what.
func unknown(im *procstate.Image) string {
	return im.Path + ": functions of JavaScript have no names: it is not known where this version of V8 has what it knows of them"
}

// IsLate reports whether the last walk of w lacked names of functions as V8 had given its heap back, which it does
// before its process ends.
func (s *Stepper) IsLate(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*machine)
	return vm != nil && vm.late != 0 && vm.late == w.Walks()
}

// knowsNames reports whether it is known what V8's own functions are called that a file has without symbols. It may be
// that the process alone has that.
func (vm *machine) knowsNames(p *image) bool {
	if p.names != nil || p.blob.named == 0 {
		return p.names != nil
	}
	if now := time.Now(); now.Sub(p.asked) >= interval {
		p.asked = now
		p.name(vm.image, builtinNamesNow(vm.image, vm.bias, p.blob.named, len(p.blob.builtins), vm.read))
	}
	return p.names != nil
}

// ownCode returns the number of code of V8's own that begins at a link-time address, which is where a
// frame goes on: the address before, by which it is looked up, is in none.
func (vm *machine) ownCode(codes *unwind.Codes, name string, vaddr uint64) uint32 {
	const own = 0 // no serial
	return vm.number(codes, place{own, int32(vaddr)}, 0, func() []unwind.CodeLine {
		return []unwind.CodeLine{{CodeFunction: &unwind.CodeFunction{Name: name, SystemName: name, Runtime: vmread.JavaScript}}}
	})
}

// stays reports whether the process is still the one of which all this is known: where it had a map
// that is never freed it still has such.
func (vm *machine) stays() bool {
	if vm.sharedMap == 0 {
		return true
	}
	typ, ok := vm.readType(vm.sharedMap)
	return !ok || typ == vm.fields.sharedType
}

// stands reports whether what was seen at a time needs no other look: it is new, or the process has ended.
func (vm *machine) stands(seen, now time.Time) bool {
	return now.Sub(seen) < interval || vm.HasEnded(vm.image, vm.bias)
}

// forget makes the process one of which nothing is known.
func (vm *machine) forget() {
	vm.compiled, vm.codes, vm.sharedMap = nil, nil, 0
	vm.tables, vm.Kept = 0, 0
	vm.types = map[uint64]uint16{}
	vm.missed = map[uint64]missedPage{}
	vm.bytecodes = map[uint64]*bytecode{}
	vm.functions = map[uint64]*function{}
	vm.scripts = map[uint64]*scriptFile{}
	vm.absent = map[uint64]bool{}
	vm.handleTable = handleTable{}
	vm.wasm = wasm{}
}

// number returns the number of a place in w.Codes, for which lines are asked when it is new.
func (vm *machine) number(codes *unwind.Codes, at place, start uint64, lines func() []unwind.CodeLine) uint32 {
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[place]uint32{}, codes.Resets()
	}
	n, known := vm.codes[at]
	if !known && len(vm.codes) < maxCodes {
		told := lines()
		if told == nil && vm.fields.compressed {
			return 0 // its isolate may be known the next time
		}
		n = codes.Add(start, told, 0)
		vm.codes[at] = n
	}
	return n
}
