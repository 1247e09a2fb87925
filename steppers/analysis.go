package steppers

import (
	"debug/elf"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/dataflow"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/v8"
	"github.com/swbpf/swbpf/unwind"
)

// Analysis walks through optimised code that has neither unwind tables nor a
// frame pointer, by data-flow analysis of its instructions (see package
// dataflow). A file's code is looked through when a frame of it is first met
// (a small section such as .init only by itself, and a large file not for functions that
// stand alone, see dataflow.Functions), a function is analysed at
// its first frame; after that a step costs a look-up and allocates nothing.
// Where the analysis is not sure, or finds a return
// address that no call left there, the frame is not its own.
//
// An Analysis keeps no state of a process and can serve many Walkers of one
// goroutine.
type Analysis struct {
	// InBackground has files looked through by another goroutine: until that
	// is done, which takes two seconds for 100 MB of code, their frames are
	// not the stepper's own. It goes through one file at a time and leaves out
	// those of more than 64 MB of code. It keeps a recording from falling
	// behind. Files of up to 256 KB of code, 5 ms, are looked through at once, and larger ones with
	// unwind tables when as many frames were asked about as there are MB: hardly any is. When
	// it is time for one of up to 2 MB, 40 ms, that is not left to the background.
	InBackground bool
	turn         chan struct{} // held while a file is looked through

	code  mcode.PerImage[analysedImage]
	bare  mcode.PerImage[bool] // isBare
	calls mcode.VaddrCache     // whether a return address follows a call
	buf   [followsCallLen]byte
	kept  keptRegs

	resuming resuming
}

// followsCallLen is how much code followsCall looks at, in bytes.
const followsCallLen = 40

// analysedImage is what an Analysis knows of one file.
type analysedImage struct {
	small    map[uint64]*dataflow.Code // small sections, by address
	builtins mcode.Range               // V8's own code, which stands for itself
	ofV8     analysedCode
	alone    aloneCode    // functions, until rest has code
	rest     analysedCode // of the whole file
}

// analysedCode is what an Analysis knows of the code of a file, or of a part. The Code is nil
// when there is nothing to analyse.
type analysedCode struct {
	code    *dataflow.Code
	done    bool                // code is known
	starts  []uint64            // of its functions, ascending; nil: the file tells
	asked   uint64              // frames, as long as nobody is at it
	pending chan *dataflow.Code // brings code; nil when nobody is at it
}

// maxBackground is the code of a file up to which it is looked through in the
// background.
const maxBackground = 64 << 20

// codePerFrame is for how many bytes of code with unwind tables a frame has to be asked
// about before they are looked through in the background, 20 ms.
const codePerFrame = 1 << 20

// builtinsPerFrame is the same for code of V8's own, of which all but a few frames have frame pointers.
const builtinsPerFrame = codePerFrame / 8

// codePerTable is for how many bytes of code, at most, there is one of unwind tables where
// most of it is in these. In cc1plus and node it is 8 and 10.
const codePerTable = 64

// hasTables reports whether a file has unwind tables of most of its code.
func hasTables(im *procstate.Image) bool {
	size := uint64(0)
	for _, name := range [...]string{".eh_frame", ".debug_frame"} {
		if s, ok := im.Section(name); ok && s.Type != elf.SHT_NOBITS {
			size += s.Size
		}
	}
	return size >= mcode.Size(im)/codePerTable
}

// maxAtOnce is the code of a file up to which it is looked through at once, and maxSoon that up
// to which this happens when it is worth it: nearly every stack may need it, and the rings have
// room for what comes meanwhile.
const (
	maxAtOnce = 256 << 10
	maxSoon   = 2 << 20
)

// smallSection is the size up to which a section is analysed by itself.
const smallSection = 64 << 10

// NewAnalysis makes an Analysis stepper.
func NewAnalysis() *Analysis { return &Analysis{} }

// Name implements unwind.FrameStepper.
func (a *Analysis) Name() string { return "analysis" }

// Priority implements unwind.FrameStepper.
func (a *Analysis) Priority() unwind.Priority { return unwind.PriorityAnalysis }

// CallerFrame implements unwind.FrameStepper. Failed tells that the rule is
// known but the stack it refers to is not there.
func (a *Analysis) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	addr := in.LookupPC()
	m := w.MappingAt(addr)
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	code := a.codeAt(m.Image, addr-m.Bias)
	if code == nil {
		return unwind.NotMe, nil
	}
	return a.callerIn(w, code, m, in, out)
}

// callerIn is CallerFrame for a frame in analysed code that m maps.
func (a *Analysis) callerIn(w *unwind.Walker, code *dataflow.Code, m *procstate.Mapping, in, out *unwind.Frame) (unwind.Verdict, error) {
	r, ok := code.RuleAt(in.LookupPC() - m.Bias)
	if !ok {
		return unwind.NotMe, nil
	}
	switch v, err := applyRule(w, r, in, out); {
	case v == unwind.Success && out.PC() == 0 && w.BeginsStack(out.SP()):
		return unwind.StackBottom, nil
	case v == unwind.NotMe, v == unwind.Success && !followsCall(w, out.PC(), &a.calls, a.buf[:]) && !a.wasReplaced(w, m, r, in, out):
		*out = unwind.Frame{}
		return unwind.NotMe, nil
	case v != unwind.Success:
		return v, err
	}
	if r.Results && a.resuming.at(m, in.PC()) {
		a.resuming.distrust(w, a, in, out)
	}
	if knowsScratch(w.Arch(), in) && m.Contains(out.PC()-1) {
		a.carry(w, code, m, in, out)
	}
	return unwind.Success, nil
}

// wasReplaced reports whether out is code that is made at run time and may have been replaced
// since: by the rule r, one of V8's own functions that keeps a frame pointer and has called returns to it.
func (a *Analysis) wasReplaced(w *unwind.Walker, m *procstate.Mapping, r *dataflow.Rule, in, out *unwind.Frame) bool {
	e := a.code.Get(m.Image)
	if e == nil || !e.builtins.Holds(in.LookupPC()-m.Bias) || in.Flags&unwind.Interrupted != 0 || r.Reg != w.Arch().FP || r.Deref {
		return false
	}
	at := w.MappingAt(out.PC() - 1)
	return at != nil && at.Image == nil
}

// isBare reports whether hardly any code of a file has unwind tables, as that of musl.
func (a *Analysis) isBare(im *procstate.Image) bool {
	is := a.bare.Get(im)
	if is == nil {
		tables, _ := im.Section(".eh_frame")
		text, _ := im.Section(".text")
		is = new(bool)
		*is = tables.Size < text.Size/64
		a.bare.Put(im, is)
	}
	return *is
}

// restore gives out, the caller of in, the registers that calls preserve, but for the frame
// pointer, where the code tells of them and agrees about the frame. An interpreter may have one of
// them for its own, over calls of code without unwind tables. Files with tables, which lack
// them for some functions alone, are not looked through for that, nor are those of more than
// 2 MB of code: Chromium would take ten seconds.
func (a *Analysis) restore(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame) {
	arch, addr := w.Arch(), in.LookupPC()
	if m.Image.Arch() != arch || in.Regs.Known()&arch.CalleeSaved&^(1<<arch.FP) == 0 {
		return
	}
	if !a.isBare(m.Image) || mcode.Size(m.Image) > maxSoon {
		return
	}
	code := a.codeAt(m.Image, addr-m.Bias)
	if code == nil {
		return
	}
	r, ok := code.RuleAt(addr - m.Bias)
	if !ok || r.Results {
		return // the unwinder gives its caller others
	}
	var caller unwind.Frame
	if v, _ := applyRule(w, r, in, &caller); v != unwind.Success || caller.SP() != out.SP() || caller.PC() != out.PC() {
		return
	}
	for _, reg := range dataflow.SavedRegs(arch) {
		if v, known := caller.Regs.Value(reg); known && reg != arch.FP {
			out.Regs.Set(reg, v)
		}
	}
}

// fpBySize implements resumer.
func (a *Analysis) fpBySize(*unwind.Walker, *unwind.Frame) (fp uint64, ok bool) { return 0, false }

// hasRule implements resumer.
func (a *Analysis) hasRule(m *procstate.Mapping, pc uint64) bool {
	code := a.codeAt(m.Image, pc-m.Bias)
	if code == nil {
		return false
	}
	_, ok := code.RuleAt(pc - m.Bias)
	return ok
}

// carry gives the caller the register that its CFA is found from, where a call does not
// preserve it but the callee has left it alone. A subroutine that calls others without a
// frame of its own, as hand-written code does and no compiler, may be called from where
// one is needed.
func (a *Analysis) carry(w *unwind.Walker, code *dataflow.Code, m *procstate.Mapping, in, out *unwind.Frame) {
	vaddr := out.PC() - 1 - m.Bias
	r, ok := code.RuleAt(vaddr)
	if !ok {
		e := a.code.Get(m.Image)
		if e == nil {
			return // the Go stepper has code of its own
		}
		if code = e.alone.at(m.Image, vaddr); code == nil {
			return
		}
		if r, ok = code.RuleAt(vaddr); !ok {
			return
		}
	}
	arch := w.Arch()
	switch _, known := out.Regs.Value(r.Reg); {
	case !known:
		a.kept.carry(w, m, in, out, r.Reg)
	case r.Reg == arch.SP && r.Off == int32(arch.AddressWidth) && r.Scale == 0 && !r.Deref:
		a.kept.carryAll(w, m, in, out)
	}
}

// codeAt returns the analysis of the code at a link-time address of a file,
// nil when there is none, or none yet.
func (a *Analysis) codeAt(im *procstate.Image, vaddr uint64) *dataflow.Code {
	e := a.code.Get(im)
	if e == nil {
		e = &analysedImage{small: map[uint64]*dataflow.Code{}}
		e.builtins, e.ofV8.starts = v8.Builtins(im)
		a.code.Put(im, e)
	}
	if s, ok := smallSectionAt(im, vaddr); ok {
		c, known := e.small[s.Vaddr]
		if !known {
			c, _ = dataflow.NewRange(im, s.Vaddr, s.Vaddr+s.Size)
			e.small[s.Vaddr] = c
		}
		return c
	}
	if r := e.builtins; vaddr-r.Start < r.End-r.Start {
		return a.look(&e.ofV8, im, r)
	}
	if e.rest.code == nil && mcode.Size(im) > maxAtOnce {
		if c := e.alone.at(im, vaddr); c != nil {
			return c
		}
	}
	return a.look(&e.rest, im, mcode.Range{})
}

// look returns the analysis of a part of a file's code, or of all, where the part is empty; nil
// when there is none yet.
func (a *Analysis) look(e *analysedCode, im *procstate.Image, part mcode.Range) *dataflow.Code {
	if e.done {
		return e.code
	}
	bytes, perFrame := part.End-part.Start, uint64(builtinsPerFrame)
	if bytes == 0 {
		bytes, perFrame = mcode.Size(im), codePerFrame
	}
	switch {
	case !a.InBackground, e.pending == nil && bytes <= maxAtOnce:
		e.code = lookThrough(im, part, e.starts)
		e.done = true
	case e.pending == nil && (bytes > maxBackground || part == mcode.Range{} && keepsFrames(im)):
		e.done = true // of the latter, each function is analysed by itself where that is needed
	case e.pending == nil:
		if e.asked++; e.asked*perFrame < bytes && e.starts == nil && hasTables(im) {
			break
		}
		if bytes > maxSoon && (e.starts == nil || bytes > 2*maxSoon) { // V8's own code without symbols is a little more
			a.lookLater(e, im, part)
			break
		}
		e.code, e.done = lookThrough(im, part, e.starts), true
	default:
		select {
		case e.code = <-e.pending:
			e.done = true
		default:
		}
	}
	return e.code
}

// lookThrough looks through a part of a file's code, or all.
func lookThrough(im *procstate.Image, part mcode.Range, starts []uint64) (c *dataflow.Code) {
	switch {
	case starts != nil:
		c, _ = dataflow.NewStarts(im, starts, part.End)
	case part.End > part.Start:
		c, _ = dataflow.NewRange(im, part.Start, part.End)
	default:
		c, _ = dataflow.New(im)
	}
	return c
}

// lookLater has another goroutine look through code.
func (a *Analysis) lookLater(e *analysedCode, im *procstate.Image, part mcode.Range) {
	if a.turn == nil {
		a.turn = make(chan struct{}, 1)
	}
	pending, starts := make(chan *dataflow.Code, 1), e.starts
	e.pending = pending
	go func() {
		a.turn <- struct{}{}
		c := lookThrough(im, part, starts)
		<-a.turn
		pending <- c
	}()
}

// smallSectionAt returns the small executable section that holds vaddr, when
// the file has such and it is not all of its code.
func smallSectionAt(im *procstate.Image, vaddr uint64) (small procstate.Section, ok bool) {
	const flags = elf.SHF_ALLOC | elf.SHF_EXECINSTR
	larger := false
	for _, s := range im.Sections() {
		switch {
		case s.Flags&flags != flags || s.Type == elf.SHT_NOBITS:
		case s.Size > smallSection:
			larger = true
		case vaddr-s.Vaddr < s.Size:
			small, ok = s, true
		}
	}
	return small, ok && larger
}

// applyRule sets out to the caller of in. With NotMe out is not clear.
func applyRule(w *unwind.Walker, r *dataflow.Rule, in, out *unwind.Frame) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	cfa, ok := in.Regs.Value(r.Reg)
	if !ok {
		return unwind.NotMe, nil
	}
	cfa += uint64(int64(r.Off))
	if r.Scale != 0 {
		index, ok := in.Regs.Value(r.Index)
		if !ok {
			return unwind.NotMe, nil
		}
		cfa += index * uint64(r.Scale)
	}
	if r.Deref {
		v, ok := mem.ReadWord(cfa)
		if !ok {
			return unwind.Failed, unwind.ReadFailure(mem, cfa)
		}
		cfa = v + uint64(int64(r.Add))
	}
	ra, ok := value(mem, &r.RA, arch.RA, cfa, in, &out.PCLocation)
	if !ok {
		if out.PCLocation.Kind == unwind.LocationAddress {
			return unwind.Failed, unwind.ReadFailure(mem, out.PCLocation.Addr)
		}
		return unwind.NotMe, nil
	}
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	var loc unwind.Location
	for i, reg := range dataflow.SavedRegs(arch) {
		v, ok := value(mem, &r.Saved[i], reg, cfa, in, &loc)
		switch {
		case !ok:
		case reg == arch.FP:
			out.SetFP(arch, v)
			if out.FPLocation = loc; r.Saved[i].Kind == dataflow.Same {
				out.FPLocation = in.FPLocation
			}
		default:
			out.Regs.Set(reg, v)
		}
	}
	out.SetPC(arch, w.CodeAddress(ra))
	out.SetSP(arch, cfa)
	return unwind.Success, nil
}

// value fetches the caller's value of reg from its place and says where that
// was.
func value(mem procstate.Memory, p *dataflow.Place, reg procstate.Reg, cfa uint64, in *unwind.Frame, loc *unwind.Location) (uint64, bool) {
	*loc = unwind.Location{}
	var at uint64
	switch p.Kind {
	case dataflow.InRegister:
		reg = p.Reg
		fallthrough
	case dataflow.Same:
		if in.IsTop() {
			*loc = unwind.InRegister(reg)
		}
		return in.Regs.Value(reg)
	case dataflow.AtCFA:
		at = cfa + uint64(int64(p.Off))
	case dataflow.AtRegister:
		base, ok := in.Regs.Value(p.Reg)
		if !ok {
			return 0, false
		}
		at = base + uint64(int64(p.Off))
	default:
		return 0, false
	}
	*loc = unwind.InMemory(at)
	return mem.ReadWord(at)
}

// Facts about a return address.
const (
	notAfterCall uint8 = iota
	afterCall
)

// followsCall reports whether pc is where a call would return to, or one of
// those places that the kernel, libc or Boost put on a stack as if a call had: the
// trampoline of a signal handler and the end of a coroutine. calls keeps the answers, and
// buf, of followsCallLen bytes, is for the code.
func followsCall(w *unwind.Walker, pc uint64, calls *mcode.VaddrCache, buf []byte) bool {
	m := w.MappingAt(pc - 1)
	if m == nil {
		if at := w.MappingAt(pc); at != nil && classifyTrampoline(w.Arch(), nil, mcode.Read(w, at, pc, buf)) != noTrampoline {
			return true
		}
		return mcode.IsReturnTrampoline(w, pc)
	}
	if m.Image != nil {
		if fact, ok := calls.Get(m.Image, pc-m.Bias); ok {
			return fact == afterCall
		}
	}
	before := min(mcode.MaxCallLen, pc-m.Start)
	code := mcode.Read(w, m, pc-before, buf)
	if uint64(len(code)) < before {
		return false // not readable now, perhaps later
	}
	fact := notAfterCall
	if _, _, ok := mcode.CallBefore(w.Arch(), code[:before], pc); ok || isContextStart(w.Arch(), code[before:]) ||
		inCoroutineStart(w.Arch(), code[:before], code[before:], false) || classifyTrampoline(w.Arch(), nil, code[before:]) != noTrampoline {
		fact = afterCall
	}
	if m.Image != nil {
		calls.Put(m.Image, pc-m.Bias, fact)
	}
	return fact == afterCall
}
