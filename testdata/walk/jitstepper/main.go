// Command jitstepper shows how a program outside of swbpf's module brings a
// stepper of its own. It walks a process that runs code made at run time, for
// which there are no unwind tables; the process itself keeps a table of its
// code's frames (see jit.c), which the stepper reads from its memory.
//
//	jitstepper PID
package main

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// jitStepper walks through code that the process describes: within a range of
// addresses, the return address lies a fixed number of bytes above SP.
type jitStepper struct {
	frames []jitFrame
}

type jitFrame struct{ start, end, size uint64 }

func (s *jitStepper) Name() string { return "jit" }

// Priority puts the stepper before those that guess from the code.
func (s *jitStepper) Priority() unwind.Priority { return unwind.PriorityDebug }

// CallerFrame implements unwind.FrameStepper.
func (s *jitStepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	for _, f := range s.frames {
		if in.PC() < f.start || in.PC() >= f.end {
			continue
		}
		at := in.SP() + f.size
		ra, ok := w.ProcessState().ReadWord(at)
		if !ok {
			return unwind.Failed, unwind.MemoryUnreadable
		}
		a := w.Arch()
		out.Regs = in.Regs // this code changes no register that a call preserves
		out.Regs.Retain(a.CalleeSaved)
		out.SetPC(a, ra)
		out.SetSP(a, at+8)
		if fp, ok := in.Regs.Value(a.FP); ok {
			out.SetFP(a, fp)
		}
		out.PCLocation = unwind.InMemory(at)
		return unwind.Success, nil
	}
	return unwind.NotMe, nil
}

// readTable reads the process's table and registers its ranges.
func (s *jitStepper) readTable(p procstate.ProcessState, g unwind.StepperGroup) error {
	count, err := variable(p, "jit_frame_count")
	if err != nil {
		return err
	}
	table, err := variable(p, "jit_frames")
	if err != nil {
		return err
	}
	n, ok := p.ReadWord(count)
	if !ok || n > 1000 {
		return fmt.Errorf("the table has %d entries", n)
	}
	b := make([]byte, 24*n)
	if _, err := p.ReadMemory(table, b); err != nil {
		return err
	}
	for ; len(b) > 0; b = b[24:] {
		f := jitFrame{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
		s.frames = append(s.frames, f)
		if err := g.AddStepperRange(s, f.start, f.end); err != nil {
			return err
		}
	}
	return nil
}

// variable returns the run-time address of a variable of the program.
func variable(p procstate.ProcessState, name string) (uint64, error) {
	f, err := elf.Open(p.ExecutablePath())
	if err != nil {
		return 0, err
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		return 0, err
	}
	for _, s := range syms {
		if s.Name != name {
			continue
		}
		for _, lib := range p.Libraries().Libraries() {
			if lib.Path == p.ExecutablePath() {
				return s.Value + lib.Bias, nil
			}
		}
	}
	return 0, fmt.Errorf("the program has no variable %s", name)
}

func main() {
	pid, err := strconv.Atoi(os.Args[len(os.Args)-1])
	if err != nil {
		log.Fatal("usage: jitstepper PID")
	}
	p, err := procstate.Attach(pid)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Detach()
	if err := p.Libraries().Update(); err != nil {
		log.Fatal(err)
	}
	group := swbpf.DefaultGroup()
	s := &jitStepper{}
	if err := s.readTable(p, group); err != nil {
		log.Fatal(err)
	}
	w := swbpf.With(p, group, nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	for i := range frames {
		sym, _ := w.Name(&frames[i])
		stepper := ""
		if s := w.Stepper(&frames[i]); s != nil {
			stepper = s.Name()
		}
		fmt.Printf("%#x %q %s\n", frames[i].PC(), sym.Name, stepper)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("complete")
}
