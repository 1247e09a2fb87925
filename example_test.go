package swbpf_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

//go:noinline
func outer(f func()) { inner(f) }

//go:noinline
func inner(f func()) { f() }

// A program walks its own stack.
func ExampleNewWalker() {
	w, err := swbpf.NewWalker()
	if err != nil {
		log.Fatal(err)
	}
	outer(func() {
		frames, err := w.WalkStack(nil, procstate.DefaultThread)
		if err != nil {
			log.Fatal(err)
		}
		for i := range frames {
			sym, _ := w.Name(&frames[i])
			name := strings.TrimPrefix(sym.Name, "github.com/swbpf/swbpf_test.")
			fmt.Println(name)
			if name == "ExampleNewWalker" {
				break
			}
		}
	})
	// Output:
	// ExampleNewWalker.func1
	// inner
	// outer
	// ExampleNewWalker
}

// The stacks of all threads of another process, which is stopped for each walk.
func ExampleForPID() {
	w, err := swbpf.ForPID(4711)
	if err != nil {
		log.Fatal(err)
	}
	defer swbpf.Detach(w)
	tids, err := w.Threads()
	if err != nil {
		log.Fatal(err)
	}
	var frames []unwind.Frame
	for _, tid := range tids {
		frames, err = w.WalkStack(frames[:0], tid)
		for i := range frames {
			sym, _ := w.Name(&frames[i])
			lib, _, _ := w.Library(&frames[i])
			fmt.Printf("%#x %s+%#x (%s)\n", frames[i].PC(), sym.Name, sym.Offset, lib.Path)
		}
		var why unwind.Reason
		switch {
		case errors.As(err, &why): // the frames are right, but there are more
			fmt.Println(why.Help())
		case err != nil: // the thread has ended, say, and there are no frames
			fmt.Println(err)
		}
	}
}

// Source lines, inlined calls, and functions of Python, Java and other runtimes.
func ExampleLines() {
	w, err := swbpf.NewWalker() // or ForPID
	if err != nil {
		log.Fatal(err)
	}
	outer(func() {
		frames, err := w.WalkStack(nil, procstate.DefaultThread)
		if err != nil {
			log.Print(err)
		}
		var lines []symbols.Line
		for i := range frames[:4] {
			lines = swbpf.Lines(w, lines[:0], &frames[i])
			for _, l := range lines { // inlined calls first
				fmt.Println(l.Function, "in", filepath.Base(l.File))
			}
		}
	})
	// Output:
	// github.com/swbpf/swbpf_test.ExampleLines.func1 in example_test.go
	// github.com/swbpf/swbpf_test.inner in example_test.go
	// github.com/swbpf/swbpf_test.outer in example_test.go
	// github.com/swbpf/swbpf_test.ExampleLines in example_test.go
}

// A process is set going under the eyes of a debugger, which waits for its end.
func ExampleLaunch() {
	w, err := swbpf.Launch("true", []string{"true"})
	if err != nil {
		log.Fatal(err)
	}
	defer swbpf.Detach(w)
	p, _ := swbpf.Debug(w)
	if err := p.Resume(procstate.DefaultThread); err != nil {
		log.Fatal(err)
	}
	for !p.IsTerminated() {
		events, err := procstate.HandleDebugEvents(true)
		if err != nil {
			log.Fatal(err)
		}
		for _, e := range events {
			fmt.Println(e.Kind, e.Thread)
		}
	}
	status, _ := p.ExitStatus()
	fmt.Println(status.ExitStatus())
}

// A process is walked every five seconds, while what happens to it is noted.
// The process waits for neither.
func ExampleForPID_events() {
	w, err := swbpf.ForPID(4711)
	if err != nil {
		log.Fatal(err)
	}
	defer swbpf.Detach(w)
	p, _ := swbpf.Debug(w)
	go func() {
		for {
			events, err := procstate.HandleDebugEvents(true)
			if err != nil { // nothing is traced any more
				return
			}
			for _, e := range events {
				fmt.Println(e.Kind, e.Thread)
			}
		}
	}()
	var frames []unwind.Frame
	for every := time.NewTicker(5 * time.Second); ; {
		select {
		case <-every.C:
			frames, err = w.WalkStack(frames[:0], procstate.DefaultThread)
			fmt.Println(len(frames), "frames,", unwind.ReasonOf(err))
		case <-p.Done():
			return
		}
	}
}

// The threads of two processes as one tree of functions.
func ExampleForPIDs() {
	set, err := swbpf.ForPIDs(4711, 4712)
	if err != nil {
		log.Fatal(err)
	}
	for _, w := range set.Walkers() {
		defer swbpf.Detach(w)
	}
	walks, err := set.WalkStacks()
	if err != nil { // of processes that have ended
		fmt.Fprintln(os.Stderr, err)
	}
	tree := unwind.NewCallTree(unwind.ByFunction)
	for _, walk := range walks {
		tree.Add(walk)
	}
	tree.Visit(func(n *unwind.CallNode, depth int) {
		sym, _ := n.Walker.Name(&n.Frame)
		fmt.Printf("%s%s: %d threads\n", strings.Repeat("  ", depth), sym.Name, n.Count)
	})
}

// The threads of a process at one moment. It stands still while their stacks are
// copied, and not for as long as walks and names take.
func ExampleWalkProcess() {
	p, err := swbpf.WalkProcess(4711, swbpf.WalkOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p, "stood still for", p.Stopped)
	for _, s := range p.Stacks {
		fmt.Println(s.TID, s.Name, s.State)
		for i := range s.Frames {
			sym, _ := s.Walker.Name(&s.Frames[i])
			fmt.Println("  ", sym.Name)
		}
		if s.Err != nil {
			fmt.Println("  ", s.Err)
		}
	}
}

// The parameters of the functions that a process is in. It stands still while
// they are read, for a tenth of a second at most.
func ExampleWalkStopped() {
	_, err := swbpf.WalkStopped(4711, swbpf.WalkOptions{StopLimit: 100 * time.Millisecond}, func(p *swbpf.ProcessStacks) {
		for _, s := range p.Stacks {
			r := swbpf.Variables(s.Walker)
			for i := range s.Frames {
				fns, _ := r.Functions(&s.Frames[i])
				for _, fn := range fns {
					fmt.Print(fn.Name)
					for _, v := range fn.Variables {
						if value, err := r.Value(s.Frames, i, v); v.Parameter && err == nil {
							fmt.Print(" ", v.Name, "=", value.Format(variables.Format{}))
						}
					}
					fmt.Println()
				}
			}
		}
	})
	if err != nil {
		log.Fatal(err)
	}
}

// The goroutines of a program in Go, those included that wait.
func ExampleWalkGoroutine() {
	p, err := swbpf.WalkProcess(4711, swbpf.WalkOptions{Goroutines: true})
	if err != nil {
		log.Fatal(err)
	}
	if p.GoroutinesErr != nil { // it is not in Go
		log.Fatal(p.GoroutinesErr)
	}
	w := p.GoroutineWalker
	var frames []unwind.Frame
	for i := range p.Goroutines.List {
		g := &p.Goroutines.List[i]
		frames, err = swbpf.WalkGoroutine(w, frames[:0], g)
		fmt.Println("goroutine", g.ID, g.State())
		for i := range frames {
			sym, _ := w.Name(&frames[i])
			fmt.Println("  ", sym.Name)
		}
		if err != nil {
			fmt.Println("  ", err)
		}
	}
}

// The thread that ended a process, with its local variables.
func ExampleForCore() {
	w, err := swbpf.ForCore("core", "")
	if err != nil {
		log.Fatal(err)
	}
	defer swbpf.Detach(w)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	r := swbpf.Variables(w)
	for i := range frames {
		fns, _ := r.Functions(&frames[i]) // none without debug information
		for _, fn := range fns {
			fmt.Println(fn.Name)
			for _, v := range fn.Variables {
				value, err := r.Value(frames, i, v)
				if err != nil {
					fmt.Println("  ", v.Name, "=", variables.Unknown(err))
					continue
				}
				fmt.Println("  ", v.Name, "=", value.Format(variables.Format{}))
			}
		}
	}
}

// bytecode walks the frames of an interpreter that keeps them as pairs of
// words: where a function was called from, and the frame of its caller.
type bytecode struct{}

func (bytecode) Name() string              { return "bytecode" }
func (bytecode) Priority() unwind.Priority { return unwind.PriorityDebug }

func (bytecode) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	caller, ok := w.ProcessState().ReadWord(in.SP() + 8)
	if !ok {
		return unwind.Failed, unwind.MemoryUnreadable
	}
	if caller == 0 {
		return unwind.StackBottom, nil
	}
	pc, ok := w.ProcessState().ReadWord(in.SP())
	if !ok {
		return unwind.Failed, unwind.MemoryUnreadable
	}
	out.SetPC(w.Arch(), pc)
	out.SetSP(w.Arch(), caller)
	out.SetFP(w.Arch(), caller)
	out.PCLocation = unwind.InMemory(in.SP())
	return unwind.Success, nil
}

// functions names addresses by the function that begins at or before them.
type functions map[uint64]string

func (f functions) SymbolAt(addr uint64) (sym unwind.Symbol, ok bool) {
	for start, name := range f {
		if start <= addr && (!ok || addr-start < sym.Offset) {
			sym, ok = unwind.Symbol{Name: name, Offset: addr - start}, true
		}
	}
	return sym, ok
}

// A Walker of a caller's own parts: registers and memory that come from
// somewhere, frames of its own kind, and names.
func ExampleWith() {
	a := procstate.AMD64
	var regs procstate.Regs
	regs.Set(a.PC, 0x1204)
	regs.Set(a.SP, 0x8000)
	memory := make([]byte, 0x30)
	memory[0x01], memory[0x08], memory[0x09] = 0x11, 0x10, 0x80 // called from 0x1100, by the frame at 0x8010
	memory[0x10], memory[0x11], memory[0x18], memory[0x19] = 0x08, 0x10, 0x20, 0x80

	state := procstate.NewSnapshot(a, 1, "", nil)
	state.Reset(1, &regs, []procstate.Region{{Addr: 0x8000, Data: memory}})
	w := swbpf.With(state, unwind.NewGroup(bytecode{}), functions{0x1000: "main", 0x1080: "parse", 0x1200: "next"})
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	for i := range frames {
		sym, _ := w.Name(&frames[i])
		fmt.Printf("%s+%d\n", sym.Name, sym.Offset)
	}
	fmt.Println(err)
	// Output:
	// next+4
	// parse+128
	// main+8
	// <nil>
}

// stopped is a process that another debugger has stopped, and knows the registers of.
type stopped struct {
	pid  int
	regs procstate.Regs
	code *procstate.AddressSpace
}

func (s *stopped) Arch() *procstate.Arch               { return procstate.HostArch() }
func (s *stopped) PID() int                            { return s.pid }
func (s *stopped) ExecutablePath() string              { return "" }
func (s *stopped) Libraries() procstate.LibraryState   { return s.code }
func (s *stopped) BeforeWalk(procstate.ThreadID) error { return nil } // it stands
func (s *stopped) AfterWalk(procstate.ThreadID) error  { return nil }
func (s *stopped) Threads() ([]procstate.ThreadID, error) {
	return []procstate.ThreadID{procstate.ThreadID(s.pid)}, nil
}

func (s *stopped) Registers(_ procstate.ThreadID, regs *procstate.Regs) error {
	*regs = s.regs
	return nil
}

func (s *stopped) ReadMemory(addr uint64, buf []byte) (int, error) {
	n := procstate.ReadProcess(s.pid, addr, buf)
	if n < len(buf) {
		return n, fmt.Errorf("memory at %#x: %w", addr, procstate.ErrUnreadable)
	}
	return n, nil
}

func (s *stopped) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	n := procstate.ReadProcess(s.pid, addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), n == len(b)
}

// Registers and memory come from another debugger, here by the means of the system; steppers
// and names are the default ones.
func ExampleWith_processState() {
	code, err := procstate.SharedImages().LoadAddressSpace(4711)
	if err != nil {
		log.Fatal(err)
	}
	process := &stopped{pid: 4711, code: code}
	process.regs.Set(procstate.AMD64.PC, 0x7f8d60fe7df2) // and all others that are known
	process.regs.Set(procstate.AMD64.SP, 0x7fff262d8f90)
	w := swbpf.With(process, nil, nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	for i := range frames {
		sym, _ := w.Name(&frames[i])
		fmt.Println(sym.Name)
	}
	fmt.Println(unwind.ReasonOf(err))
}

// marked marks the functions of this program.
type marked struct{ unwind.SymbolLookup }

func (m marked) SymbolAt(addr uint64) (unwind.Symbol, bool) {
	sym, ok := m.SymbolLookup.SymbolAt(addr)
	if name, own := strings.CutPrefix(sym.Name, "github.com/swbpf/swbpf_test."); own {
		sym.Name = name + " (own)"
	}
	return sym, ok
}

// Names of all Walkers that are made from now on come from a lookup of one's own, which asks
// the default one.
func ExampleSetSymbolReader() {
	standard := swbpf.SymbolReader()
	swbpf.SetSymbolReader(func(p procstate.ProcessState) unwind.SymbolLookup { return marked{standard(p)} })
	defer swbpf.SetSymbolReader(nil)
	w, err := swbpf.NewWalker()
	if err != nil {
		log.Fatal(err)
	}
	var top unwind.Frame
	if err := w.InitialFrame(procstate.DefaultThread, &top); err != nil {
		log.Fatal(err)
	}
	sym, _ := w.Name(&top)
	fmt.Println(sym.Name)
	// Output:
	// ExampleSetSymbolReader (own)
}
