package oracle

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/arch/arm64/arm64asm"
	"golang.org/x/arch/x86/x86asm"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// judge compares the walks of one configuration with the truth.
type judge struct {
	config Config
	view   *view
	walker *unwind.Walker
	frames []unwind.Frame
	pcs    []unwind.PC
	images map[*procstate.Image]*procstate.Image // with sections hidden
	result Result
	sites  map[siteKey]*Site

	pcsOnly  bool            // see Options.PCs
	fixtures string          // directory for fixtures, "" for none
	at       map[string]bool // places, as module+vaddr, of which to take fixtures
}

type siteKey struct {
	class  Class
	module string
	vaddr  uint64
}

// view is the target as one configuration sees it.
type view struct {
	*target
	space *procstate.AddressSpace
}

// Libraries implements procstate.ProcessState.
func (v *view) Libraries() procstate.LibraryState { return v.space }

func newJudge(c Config, t *target) *judge {
	j := &judge{config: c, view: &view{t, t.space}, images: map[*procstate.Image]*procstate.Image{}, sites: map[siteKey]*Site{}}
	j.walker = unwind.NewWalker(j.view, c.group(), nil)
	j.result.Config = c.Name
	return j
}

// mapped takes over the mappings of the target, files with their hidden parts.
func (j *judge) mapped(space *procstate.AddressSpace) error {
	if len(j.config.Hide) == 0 {
		j.view.space = space
		return nil
	}
	own := &procstate.AddressSpace{}
	for _, m := range space.Mappings() {
		c := *m
		if c.Image != nil {
			im := j.images[c.Image]
			if im == nil {
				var err error
				if im, err = hide(c.Image, j.config.Hide); err != nil {
					return err
				}
				j.images[c.Image] = im
			}
			c.Image = im
		}
		own.Insert(&c)
	}
	j.view.space = own
	return nil
}

// check walks the stack and compares it with the shadow stack.
func (j *judge) check(s *Shadow) {
	var err error
	j.frames, err = j.walker.WalkStack(j.frames[:0], procstate.DefaultThread)
	sameByRules := j.sameByRules(err)
	if last := len(j.frames) - 1; err != nil && last > 0 && j.frames[last].Flags&unwind.Instrumentation != 0 {
		j.frames = j.frames[:last] // said to be none of the program's
	}
	s = s.framed(j.frames[0].PC())
	class, at := compare(j.frames, err == nil, s, j.view.ReadWord, j.pcsOnly)
	if class == Wrong && !j.pcsOnly && j.view.Arch() == procstate.AMD64 && !s.intact(j.view.ReadWord) {
		for _, other := range s.resuming(j.view.ReadWord) {
			if c, n := compare(j.frames, err == nil, other, j.view.ReadWord, false); c != Wrong {
				class, at = c, n
				break
			}
		}
	}
	if other := s.withoutDropped(); class == Wrong && other != nil {
		if c, n := compare(j.frames, err == nil, other, j.view.ReadWord, j.pcsOnly); c == Exact {
			class, at = c, n
			s.top().leftOut = true
		}
	}
	if class == LetGo && !j.letsGo(&j.frames[at]) {
		class = Wrong
	}
	if !sameByRules {
		class, at = Wrong, 0
		err = errByRules
	}
	j.result.Count[class]++
	if len(j.at) > 0 {
		j.keepAt(s, j.frames[0].PC())
	}
	if class == Exact || class == LetGo || class == Moved {
		return
	}
	f := &j.frames[at]
	key := siteKey{class: class, module: "?", vaddr: f.LookupPC()}
	if m := j.view.space.MappingAt(f.LookupPC()); m != nil {
		key.module, key.vaddr = filepath.Base(m.Path), f.LookupPC()-m.Bias
	}
	site := j.sites[key]
	if site == nil {
		site = &Site{Class: class, Module: key.module, Vaddr: key.vaddr, First: j.describe(s, at, err)}
		j.sites[key] = site
		j.result.Sites = append(j.result.Sites, site)
		j.keep(s, &key)
	}
	site.Count++
}

// errByRules is why a walk that may be right is wrong.
var errByRules = errors.New("walked by rules it is another")

// sameByRules reports whether the frames are also those of the walk by rules,
// which profiles are made by. err is how the walk ended.
func (j *judge) sameByRules(err error) bool {
	var perr error
	j.pcs, perr = j.walker.WalkPCs(j.pcs[:0], &j.view.regs)
	return errors.Is(perr, err) && slices.EqualFunc(j.pcs, j.frames, func(p unwind.PC, f unwind.Frame) bool {
		return p.Addr == f.LookupPC() && p.Flags == f.Flags
	})
}

// keepAt writes a fixture when pc is a place of which one is wanted.
func (j *judge) keepAt(s *Shadow, pc uint64) {
	m := j.view.space.MappingAt(pc)
	if m == nil {
		return
	}
	key := siteKey{class: Exact, module: filepath.Base(m.Path), vaddr: pc - m.Bias}
	if place := fmt.Sprintf("%s+%#x", key.module, key.vaddr); j.at[place] {
		delete(j.at, place)
		j.keep(s, &key)
	}
}

// keep writes a fixture of a walk that went astray, where that is asked for.
func (j *judge) keep(s *Shadow, key *siteKey) {
	if j.fixtures == "" {
		return
	}
	note := fmt.Sprintf("%s %s at %s+%#x", j.config.Name, key.class, key.module, key.vaddr)
	f, err := newFixture(j.view, s, j.config.Name, note)
	if err == nil {
		err = f.Save(filepath.Join(j.fixtures, fmt.Sprintf("%s-%s-%x.json.gz", j.config.Name, key.module, key.vaddr)))
	}
	if err != nil {
		j.result.FixtureError = err
	}
}

// compare classifies a walk and returns the index of the last frame that is
// right: the one whose caller is wrong or missing.
func compare(frames []unwind.Frame, complete bool, s *Shadow, word wordReader, pcsOnly bool) (Class, int) {
	n := len(s.recs)
	moved, by := false, uint64(0) // the stack that the frames are on, and how far
	for i := 1; i < len(frames); i++ {
		if i > n && s.partial {
			break
		}
		if i > n {
			return Wrong, i - 1
		}
		r, pc, sp := &s.recs[n-i], frames[i].PC(), frames[i].SP()
		left := i > 1 && s.recs[n-i+1].switched // its stack, by this frame
		switch {
		case left:
			by = sp - r.sp
			moved = moved || by != 0
		case r.signal:
			by = 0
		}
		if pc != r.pc || sp != r.sp+by && !pcsOnly {
			return Wrong, i - 1
		}
		if by != 0 && !left && !s.isThereMoved(r, by, word) {
			return Wrong, i - 1
		}
	}
	switch last := len(frames) - 1; {
	case complete && last < n && last > 0 && s.recs[n-last].switched:
		return LetGo, last
	case complete && last < n:
		return Wrong, last
	case complete && moved:
		return Moved, last
	case complete:
		return Exact, last
	default:
		return Short, last
	}
}

// letsGo reports whether a frame that changed to another stack is of a function
// of Go that never returns: only there may the scheduler let its caller go.
func (j *judge) letsGo(f *unwind.Frame) bool {
	m := j.view.space.MappingAt(f.LookupPC())
	if m == nil || m.Image == nil {
		return false
	}
	t, err := procstate.Pclntab(m.Image)
	if err != nil {
		return false
	}
	fn, ok := t.Func(f.LookupPC() - m.Bias)
	if !ok {
		return false
	}
	name := strings.TrimSuffix(fn.Name(), ".abi0")
	return name == "runtime.mcall" || name == "runtime.morestack"
}

// describe tells of a walk that went astray: the code of the frame, and what
// was expected and found for its caller.
func (j *judge) describe(s *Shadow, at int, err error) string {
	var b strings.Builder
	f := &j.frames[at]
	fmt.Fprintf(&b, "frame %d of %d, pc %#x sp %#x", at, len(s.recs)+1, f.PC(), f.SP())
	if st := j.walker.Stepper(f); st != nil {
		fmt.Fprintf(&b, ", found by %s", st.Name())
	}
	if at > 0 {
		fmt.Fprintf(&b, ", from %s", j.place(j.frames[0].PC()))
	}
	b.WriteString("\n  caller: ")
	if n := len(s.recs); at < n {
		fmt.Fprintf(&b, "pc %#x sp %#x (%s)", s.recs[n-at-1].pc, s.recs[n-at-1].sp, j.place(s.recs[n-at-1].pc))
	} else {
		b.WriteString("none, this is the bottom")
	}
	b.WriteString("\n  found:  ")
	switch {
	case at+1 < len(j.frames):
		g := &j.frames[at+1]
		fmt.Fprintf(&b, "pc %#x sp %#x", g.PC(), g.SP())
		if st := j.walker.Stepper(g); st != nil {
			fmt.Fprintf(&b, " by %s", st.Name())
		}
	case err == nil:
		b.WriteString("bottom")
	default:
		fmt.Fprintf(&b, "%v", err)
	}
	b.WriteString("\n")
	b.WriteString(disassemble(j.view, f.PC(), 6))
	return b.String()
}

// place names an address by module and link-time address.
func (j *judge) place(addr uint64) string {
	if m := j.view.space.MappingAt(addr); m != nil {
		return fmt.Sprintf("%s+%#x", filepath.Base(m.Path), addr-m.Bias)
	}
	return "unmapped"
}

// disassemble lists n instructions from addr on.
func disassemble(v *view, addr uint64, n int) string {
	var b strings.Builder
	var code [16]byte
	for range n {
		k, _ := v.ReadMemory(addr, code[:])
		if k == 0 {
			break
		}
		text, size := disassembleOne(v.arch, code[:k], addr)
		fmt.Fprintf(&b, "  %#x: % x  %s\n", addr, code[:size], text)
		addr += uint64(size)
	}
	return b.String()
}

// disassembleOne guards against disassemblers, which are not made for all that
// programs contain.
func disassembleOne(arch *procstate.Arch, code []byte, addr uint64) (text string, size int) {
	text, size = "?", 1
	var in isa.Inst
	if isa.DecoderFor(arch)(code, addr, &in) {
		size = int(in.Len)
	}
	defer func() { _ = recover() }()
	if arch == procstate.ARM64 {
		if in, err := arm64asm.Decode(code); err == nil {
			text = arm64asm.GNUSyntax(in)
		}
	} else if in, err := x86asm.Decode(code, 64); err == nil && in.Len == size {
		text = x86asm.GNUSyntax(in, addr, nil)
	}
	return text, size
}
