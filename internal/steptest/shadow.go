package steptest

import (
	"fmt"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Call is a call that has not returned yet.
type Call struct {
	RA uint64 // return address
	SP uint64 // the stack pointer after the return
}

// Shadow is the stack of a thread as its executed instructions alone tell it:
// a call adds an entry, a return removes all those that it leaves behind. It
// starts empty at the first instruction of a program.
type Shadow struct {
	Calls []Call // the oldest first

	tid    procstate.ThreadID
	decode isa.Decoder
	code   map[uint64]isa.Inst
}

// NewSeededShadow makes a Shadow of a thread that is anywhere: the calls that
// it is in are taken from a walk.
func NewSeededShadow(p *Process, tid procstate.ThreadID, frames []unwind.Frame) *Shadow {
	s := NewShadow(p)
	s.tid = tid
	for i := len(frames) - 1; i > 0; i-- {
		s.Calls = append(s.Calls, Call{frames[i].PC(), frames[i].SP()})
	}
	return s
}

// NewShadow makes the Shadow of the initial thread of a process that is at
// its first instruction.
func NewShadow(p *Process) *Shadow {
	return &Shadow{tid: procstate.ThreadID(p.PID()), decode: isa.DecoderFor(p.Arch()), code: map[uint64]isa.Inst{}}
}

// Step executes one instruction and follows it. regs are those before it and
// become those after it.
func (s *Shadow) Step(p *Process, regs *procstate.Regs) error {
	a := p.Arch()
	pc, sp := regs.Raw(a.PC), regs.Raw(a.SP)
	in, ok := s.code[pc]
	if !ok {
		var buf [16]byte
		n, _ := p.ReadMemory(pc, buf[:])
		if !s.decode(buf[:n], pc, &in) {
			in = isa.Inst{Len: 1}
		}
		s.code[pc] = in
	}
	if err := p.Step(int(s.tid)); err != nil || p.Exited() {
		return err
	}
	if err := p.Registers(s.tid, regs); err != nil {
		return err
	}
	nextPC, nextSP := regs.Raw(a.PC), regs.Raw(a.SP)
	switch in.Flow {
	case isa.Call, isa.IndirectCall:
		if ra := pc + uint64(in.Len); nextPC != ra || in.Target == ra && a != procstate.I386 { // there it pushes its address, to pop that
			s.Calls = append(s.Calls, Call{ra, sp})
		}
	case isa.Return:
		// Whatever lies below the new stack pointer on this stack has
		// returned; an unwound coroutine has a stack of its own.
		for n := len(s.Calls); n > 0; n-- {
			if c := s.Calls[n-1]; c.RA == nextPC && c.SP+uint64(in.Pop) == nextSP {
				s.Calls = s.Calls[:n-1]
				break
			}
		}
	}
	return nil
}

// Result is how a walk compares with the truth.
type Result uint8

// The results.
const (
	Exact Result = iota // every frame, and the bottom
	Short               // a true prefix
	Wrong               // a frame that does not exist, or with another CFA
	NumResults
)

func (r Result) String() string { return [...]string{"exact", "short", "wrong"}[r] }

// Compare compares the frames of a walk with the truth.
func (s *Shadow) Compare(frames []unwind.Frame, err error) Result {
	for i := range frames[1:] {
		n := len(s.Calls) - 1 - i
		if n < 0 || frames[i+1].PC() != s.Calls[n].RA || frames[i+1].SP() != s.Calls[n].SP {
			return Wrong
		}
	}
	if err != nil || len(frames) != len(s.Calls)+1 {
		return Short
	}
	return Exact
}

// Describe shows a walk beside the truth.
func (s *Shadow) Describe(w *unwind.Walker, frames []unwind.Frame, err error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "walk: %v\n", err)
	for i := 0; i < max(len(frames), len(s.Calls)+1); i++ {
		if i < len(frames) {
			f := &frames[i]
			name := ""
			if st := w.Stepper(f); st != nil {
				name = st.Name()
			}
			m := w.ProcessState().Libraries().MappingAt(f.LookupPC())
			path, off := "?", uint64(0)
			if m != nil {
				path, off = m.Path, f.PC()-m.Bias
			}
			fmt.Fprintf(&b, "  %#x sp %#x fp %#x %s+%#x %s %08b", f.PC(), f.SP(), f.FP(), path, off, name, f.Flags)
		}
		if n := len(s.Calls) - i; i > 0 && n >= 0 {
			fmt.Fprintf(&b, "\t| %#x sp %#x", s.Calls[n].RA, s.Calls[n].SP)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
