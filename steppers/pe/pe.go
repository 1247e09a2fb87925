package pe

import (
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper walks from functions of Windows programs, and notes which they are (see unwind.Codes). From their calls of the system
// it is CFI of Wine's that leads back to them.
type Stepper struct {
	wine   mcode.PerImage[bool] // whether a library is Wine's
	shared map[contentsKey]*contents
}

// New makes a Stepper.
func New() *Stepper { return &Stepper{} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "pe" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// machine is what is known of a process.
type machine struct {
	vmread.Memory
	vmread.Found

	pid    int
	isWine bool
	shared map[contentsKey]*contents
	images []*image        // in order of address
	none   map[uint64]miss // where mappings begin that are of no image
	code   [codeBefore + codeAfter]byte

	numbers map[uint64]uint32 // in unwind.Codes, by where functions begin
	resets  int               // of these
}

// miss is when a mapping was of no image, and how long it is taken for that: ever longer, as what is made at run time is looked for
// far below.
type miss struct {
	at   time.Time
	last time.Duration
}

// Limits on what is kept of a process.
const (
	maxNone    = 1 << 10
	maxImages  = 1 << 12
	maxNumbers = 1 << 16
	firstMiss  = time.Second // for which a mapping is taken to be of no image
	longMiss   = time.Minute
)

// runtime is the CodeFunction.Runtime of what runs.
const runtime = "windows"

// isWine reports whether a library is Wine's.
func isWine(im *procstate.Image) bool {
	_, is := im.ExportedSymbol("__wine_main")
	return is && im.Arch() == procstate.AMD64
}

// find looks for Wine in a process.
func (s *Stepper) find(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	is := false
	if libs != nil {
		for _, lib := range libs.Libraries() {
			is = is || lib.Image != nil && *s.wine.Known(lib.Image, isWine)
		}
	}
	if known != nil && known.isWine == is {
		known.images = slices.DeleteFunc(known.images, func(im *image) bool {
			isGone := !im.isStill(known.ReadNow)
			if isGone {
				known.numbers = nil
			}
			return isGone
		})
		return known
	}
	if s.shared == nil {
		s.shared = map[contentsKey]*contents{}
	}
	return &machine{Memory: vmread.MemoryOf(w), pid: w.ProcessState().PID(), isWine: is, shared: s.shared, none: map[uint64]miss{}}
}

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image != nil || w.Arch() != procstate.AMD64 {
		return unwind.NotMe, nil
	}
	vm, _ := vmread.MachineOf(w, s, s.find)
	if !vm.isWine {
		return unwind.NotMe, nil
	}
	im := vm.imageAt(m, in.LookupPC())
	if im == nil {
		return unwind.NotMe, nil
	}
	f := im.functionAt(uint32(in.LookupPC() - im.start))
	in.Code = vm.number(w, im, f, in.LookupPC())
	interrupted := in.Flags&unwind.Interrupted != 0
	if f == nil && !interrupted && !vm.isBehindSyscall(in.PC()) {
		return unwind.Failed, unwind.NoUnwindInfo // functions without an entry call none but the system
	}
	u := unwinder{vm: vm, w: w, im: im, in: in, sp: in.SP(), regs: in.Regs}
	if err := u.unwind(f, interrupted); err != nil {
		return unwind.Failed, err
	}
	if u.pc == 0 {
		return unwind.StackBottom, nil
	}
	const preserved = 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<12 | 1<<13 | 1<<14 | 1<<15 // RBX, RSI, RDI, RBP, R12 to R15
	u.regs.Retain(preserved)
	out.Regs = u.regs
	out.SetPC(w.Arch(), u.pc)
	out.SetSP(w.Arch(), u.sp)
	if fp, known := u.regs.Value(rbp); known {
		out.SetFP(w.Arch(), fp)
	}
	out.PCLocation = unwind.InMemory(u.pcAt)
	if u.isInterrupted {
		in.Flags |= unwind.Signal
		out.Flags |= unwind.Interrupted | unwind.StackSwitched
	}
	return unwind.Success, nil
}

// isBehindSyscall reports whether a PC is behind a call of the system: of Wine's dispatcher, or behind the instruction that Windows
// has for that, which the dispatcher takes it for.
func (vm *machine) isBehindSyscall(pc uint64) bool {
	callDispatcher := [7]byte{0xff, 0x14, 0x25, 0x00, 0x10, 0xfe, 0x7f} // call *0x7ffe1000
	syscall := [2]byte{0x0f, 0x05}
	var code [7]byte
	return vm.ReadNow(pc-7, code[:]) && (code == callDispatcher || [2]byte(code[5:]) == syscall)
}

// number returns that of a function, or of an address that is in none.
func (vm *machine) number(w *unwind.Walker, im *image, f *function, pc uint64) uint32 {
	codes := w.Codes()
	if vm.numbers == nil || vm.resets != codes.Resets() || len(vm.numbers) >= maxNumbers {
		vm.numbers, vm.resets = map[uint64]uint32{}, codes.Resets()
	}
	rva := im.begin(uint32(pc - im.start))
	if f != nil {
		rva = im.primary(vm, f).start
	}
	start := im.start + uint64(rva)
	if n, known := vm.numbers[start]; known && codes.Start(n) == start {
		return n
	}
	n := codes.Add(start, []unwind.CodeLine{{CodeFunction: im.function(rva), IsCompiled: true}}, 0)
	vm.numbers[start] = n
	return n
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, _ uint64, _ bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, m == nil || m.Image != nil
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.wine.KeepOnly(isKept) }
