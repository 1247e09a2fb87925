package main

import (
	"os"
	"testing"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// threadHints keeps what the kernel side was told last of the ends of a process's threads.
type threadHints struct {
	forgotten
	below uint64
	told  int
}

func (h *threadHints) SetThreadEnds(_ int, below uint64) error {
	h.below = below
	h.told++
	return nil
}

// Where threads' stacks end the kernel side is told when one did, then of a nearer end alone. What a
// walk lacked tells that it was wrong: from then on two have to in the same way, and when that was
// wrong, none counts.
func TestLearnThreadEnds(t *testing.T) {
	const tp = 0x7f0000001000
	p := newPipeline(symbols.Options{})
	kernel := &threadHints{forgotten: forgotten{}}
	p.connect(kernel)
	arch := procstate.HostArch()
	wp := &walkedProcess{snapshot: procstate.NewSnapshot(arch, noPID, "", new(procstate.AddressSpace))}
	step := func(what string, tid int32, below uint64, want uint64, told int) {
		t.Helper()
		s := &loader.Sample{PID: 1, TID: tid, Arch: arch, Regs: procstate.Regs{ThreadPointer: tp}}
		p.learnThreadEnds(wp, s, tp-below)
		if kernel.below != want || kernel.told != told {
			t.Errorf("%s: told %d times, last %d; want %d, %d", what, kernel.told, kernel.below, told, want)
		}
	}
	step("first thread", 2, 700, 700, 1)
	step("farther", 5, 900, 700, 1)
	step("nearer", 5, 600, 600, 2)
	step("on another stack", 6, 1<<30, 600, 2)
	step("beyond the thread pointer", 6, ^uint64(99), 600, 2)

	lacked := func(addr uint64) {
		s := &loader.Sample{PID: 1, TID: 7, Arch: arch, Regs: procstate.Regs{ThreadPointer: tp}}
		s.Regions = []procstate.Region{{Addr: tp - 1000, Data: make([]byte, 400)}}
		wp.snapshot.Reset(7, &s.Regs, s.Regions)
		if n, _ := wp.snapshot.ReadMemory(addr, make([]byte, 8)); n == 8 {
			t.Fatalf("%#x is in the copy", addr)
		}
		p.doubtThreadEnds(wp, s)
	}
	lacked(0x1000) // by a register that holds something else
	if kernel.told != 2 {
		t.Error("forgotten for memory that is not above the copy")
	}
	lacked(tp - 600)
	// What the kernel side still has may be of another program, which had the number before.
	told := wp
	wp = &walkedProcess{snapshot: told.snapshot}
	lacked(tp - 600)
	if kernel.told != 4 || wp.threadEnds.wrong > 0 {
		t.Errorf("of another program: told %d times, wrong %d times", kernel.told, wp.threadEnds.wrong)
	}
	wp, kernel.told = told, 3
	step("forgotten", 8, 800, 0, 3)
	step("the same again", 8, 800, 0, 3)
	step("another end", 9, 700, 0, 3)
	step("two alike", 10, 700, 700, 4)
	lacked(tp - 600)
	step("forgotten again", 11, 600, 0, 5)
	step("and not learned any more", 12, 600, 0, 5)
}

// frameHints are the threads of which the kernel side was told where their frames are.
type frameHints struct {
	forgotten
	threads map[int]loader.ThreadFrames
}

func (h *frameHints) SetThreadFrames(_, tid int, f loader.ThreadFrames) error {
	h.threads[tid] = f
	return nil
}

// onlyProcesses is a table of some processes.
type onlyProcesses map[int32]*loader.Process

func (p onlyProcesses) Process(pid int32) *loader.Process { return p[pid] }
func (onlyProcesses) Refresh(*loader.Process) bool        { return false }

// Where a process has its frames, its parent has them if it was forked from that: it runs the same program at the same
// place, and nothing else is known.
func TestTellParent(t *testing.T) {
	program := &procstate.Mapping{Start: 0x1000, End: 0x2000, Image: openSelf(t), Bias: 0x1000}
	elsewhere, another := *program, *program
	elsewhere.Start, elsewhere.End, another.Image = 0x5000, 0x6000, new(procstate.Image)
	pid, parent := int32(os.Getpid()), int32(os.Getppid())
	frames := loader.ThreadFrames{Current: 0x1800}
	for _, c := range []struct {
		what    string
		mapping *procstate.Mapping // of the parent
		data    any
		is      bool
	}{
		{"forked", program, nil, true}, {"forked, and sampled", program, &walkedProcess{}, true},
		{"with frames", program, &walkedProcess{hasFrames: true}, false},
		{"started again", &elsewhere, nil, false}, {"of another program", &another, nil, false}, {"not known", nil, nil, false},
	} {
		p := newPipeline(symbols.Options{})
		kernel := &frameHints{forgotten{}, map[int]loader.ThreadFrames{}}
		p.connect(kernel)
		table := onlyProcesses{}
		if c.mapping != nil {
			space := new(procstate.AddressSpace)
			space.Insert(c.mapping)
			table[parent] = &loader.Process{PID: parent, Space: space, Data: c.data}
		}
		p.procs = table
		p.tellParent(pid, program, frames)
		if got, told := kernel.threads[int(parent)]; told != c.is || len(kernel.threads) > 1 || told && got != frames {
			t.Errorf("%s: told of %+v", c.what, kernel.threads)
		}
	}
}

// startHints counts how often the kernel side was told that a main thread begins above the usual.
type startHints struct {
	forgotten
	told int
}

func (h *startHints) SetStartsAbove(int) error {
	h.told++
	return nil
}

// The kernel side is told once that a main thread begins above where it is taken to: when a
// walk has lacked what is right above the copy.
func TestLearnStart(t *testing.T) {
	const top = 0x7ffc00001000
	p := newPipeline(symbols.Options{})
	kernel := &startHints{}
	p.connect(kernel)
	arch := procstate.HostArch()
	wp := &walkedProcess{snapshot: procstate.NewSnapshot(arch, noPID, "", new(procstate.AddressSpace))}
	for _, step := range []struct {
		what string
		addr uint64
		walk error
		end  loader.StackEnd
		want int
	}{
		{"a complete walk", top, nil, loader.StackEndBottom, 0},
		{"a word far above", top + maxStart, unwind.MemoryUnreadable, loader.StackEndBottom, 0},
		{"a word below", top - 4096, unwind.MemoryUnreadable, loader.StackEndBottom, 0},
		{"of a stack that was cut", top, unwind.MemoryUnreadable, loader.StackEndLimit, 0},
		{"the word above", top, unwind.MemoryUnreadable, loader.StackEndBottom, 1},
		{"once more", top, unwind.MemoryUnreadable, loader.StackEndBottom, 1},
	} {
		s := &loader.Sample{PID: 1, TID: 1, Arch: arch, StackEnd: step.end}
		s.Regions = []procstate.Region{{Addr: top - 400, Data: make([]byte, 400)}}
		wp.snapshot.Reset(1, &s.Regs, s.Regions)
		if n, _ := wp.snapshot.ReadMemory(step.addr, make([]byte, 8)); n == 8 {
			t.Fatalf("%#x is in the copy", step.addr)
		}
		p.learnStackEnd(wp, s, step.walk)
		if kernel.told != step.want {
			t.Errorf("%s: told %d times, want %d", step.what, kernel.told, step.want)
		}
	}
}
