package main

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// forgotten are the Go processes that the kernel side was told to forget.
type forgotten map[int]bool

func (f forgotten) SetStackEnd(int, uint64) error                                 { return nil }
func (f forgotten) SetThreadEnds(int, uint64) error                               { return nil }
func (f forgotten) SetStartsAbove(int) error                                      { return nil }
func (f forgotten) SetThreadFrames(int, int, loader.ThreadFrames) error           { return nil }
func (f forgotten) SetStackParts(int, *[loader.StackParts]uint64) error           { return nil }
func (f forgotten) SetThreadContext(int, *procstate.ThreadContextPlace) error     { return nil }
func (f forgotten) SetGoProcess(int, loader.GoOffsets, ...loader.GoOffsets) error { return nil }
func (f forgotten) ForgetGoProcess(pid int) error                                 { f[pid] = true; return nil }

func (f forgotten) SetProgramFrames(*procstate.Mapping, loader.ThreadFrames) (isKnown bool, err error) {
	return false, nil
}

// noPID is beyond all numbers of processes (PID_MAX_LIMIT).
const noPID = 1 << 22

// Go processes that have ended are forgotten, here and by the kernel side, those that run
// are not; another program under the number of one is none.
func TestEndedGoProcesses(t *testing.T) {
	self := openSelf(t)
	p := newPipeline(symbols.Options{})
	kernel := forgotten{}
	p.connect(kernel)
	own := int32(os.Getpid())
	p.onImage(own, self, 0)
	for i := range int32(3 * maxEnded) {
		p.onImage(noPID+i, self, 0)
	}
	if _, known := p.goPIDs[own]; !known || len(p.goPIDs) > 2*maxEnded || len(kernel) < maxEnded || kernel[int(own)] {
		t.Errorf("%d processes known, %d forgotten, ours known: %v", len(p.goPIDs), len(kernel), known)
	}
}

// A stack that changed while it was copied is told of as that, where it is what a walk lacks.
func TestReasonOfEnd(t *testing.T) {
	snap := procstate.NewSnapshot(procstate.HostArch(), noPID, "", new(procstate.AddressSpace))
	for _, test := range []struct {
		end       loader.StackEnd
		err, want error
	}{
		{loader.StackEndChanged, unwind.StackCut, unwind.StackChanged},
		{loader.StackEndChanged, unwind.MemoryUnreadable, unwind.StackChanged},
		{loader.StackEndChanged, unwind.NoMapping, unwind.NoMapping},
		{loader.StackEndChanged, nil, nil},
		{loader.StackEndUnreadable, unwind.StackCut, unwind.MemoryUnreadable},
	} {
		if got := reasonOfEnd(snap, &loader.Sample{StackEnd: test.end}, loader.DefaultStackBytes, test.err); got != test.want {
			t.Errorf("%v, %v: %v, want %v", test.end, test.err, got, test.want)
		}
	}
}

// The stack of a goroutine that is longer than the limit is told from one that could not be read while its thread works
// for it on its own stack.
func TestReasonOfEndOfOther(t *testing.T) {
	const own, goroutine = 0x7000_0000_0000, 0xc000_0000_0000
	for copied, want := range map[int]error{loader.DefaultStackBytes - 2048: unwind.StackCut, loader.DefaultStackBytes / 2: unwind.MemoryUnreadable} {
		s := loader.Sample{StackEnd: loader.StackEndBottom, Regions: []procstate.Region{
			{Addr: own, Data: make([]byte, 1024)}, {Addr: goroutine, Data: make([]byte, copied)},
		}}
		snap := procstate.NewSnapshot(procstate.HostArch(), noPID, "", new(procstate.AddressSpace))
		snap.Reset(1, &procstate.Regs{}, s.Regions)
		snap.ReadWord(goroutine + uint64(copied))
		if got := reasonOfEnd(snap, &s, loader.DefaultStackBytes, unwind.MemoryUnreadable); got != want {
			t.Errorf("%d bytes: %v, want %v", copied, got, want)
		}
	}
}

// Threads that have ended are forgotten.
func TestEndedThreads(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := int32(unix.Gettid())
	wp := &walkedProcess{
		snapshot: procstate.NewSnapshot(procstate.HostArch(), os.Getpid(), "", new(procstate.AddressSpace)),
		parts:    map[int32]*stackParts{own: {}, noPID: {}}, ends: map[int32]uint64{}, forget: maxEnded,
	}
	wp.setEnd(own, 16)
	for i := range int32(3 * maxEnded) {
		wp.setEnd(noPID+i, 32)
	}
	if len(wp.ends) > 2*maxEnded || wp.ends[own] != 16 || len(wp.parts) != 1 {
		t.Errorf("%d threads known, ours ends at %d; parts of %d", len(wp.ends), wp.ends[own], len(wp.parts))
	}
	for i := range int32(3 * maxEnded) {
		wp.newParts(noPID + i)
	}
	if len(wp.parts) > 2*maxEnded || wp.parts[own] == nil {
		t.Errorf("parts of %d threads known, of ours %v", len(wp.parts), wp.parts[own])
	}
}

// openSelf opens our own program, which is in Go.
func openSelf(t *testing.T) *procstate.Image {
	t.Helper()
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	im, err := procstate.NewImage(f, st.Size(), "self")
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// Between parts of a recording labels are forgotten, and given anew.
func TestLabelsForgotten(t *testing.T) {
	b := profile.NewBuilder()
	l := newLabeller(b)
	defer l.close()
	l.fixed = []profile.Label{{Key: "build", Value: "42"}}
	for part := range 3 {
		for cgroup := range uint64(10) {
			b.Add(profile.Thread{PID: 1, Labels: l.of(&loader.Sample{PID: noPID, Cgroup: 1<<40 + cgroup}, nil)}, []profile.Loc{{Addr: 1}}, "", 1, 1)
		}
		if len(l.sets) != 10 {
			t.Errorf("part %d: %d sets of labels, want 10", part, len(l.sets))
		}
		var out strings.Builder
		if err := b.Finish(profile.Meta{}, nil).WriteOTLP(&out, nil); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "build") {
			t.Errorf("part %d: its samples have no labels", part)
		}
		b.Reset()
		l.forget()
	}
}

// TestStepperMemory checks that a recording lets go of what is known of files that have
// been closed, once each time.
func TestStepperMemory(t *testing.T) {
	r := &recorder{pipeline: newPipeline(symbols.Options{}), images: procstate.NewImages(1)}
	defer r.images.Close()
	r.procs = loader.NewProcesses(loader.ProcessesConfig{Images: r.images})
	var asked []func(uint32) bool
	if err := r.group.AddStepper(forgetting{&asked}); err != nil {
		t.Fatal(err)
	}
	for opened, want := range []int{0, 0, 1, 2, 2} { // the last two close what has been idle, and nothing
		var last *procstate.Image
		if opened == 1 || opened == 2 {
			last = steptest.OpenFile(t, r.images, [...]string{"/proc/self/exe", "/bin/sh"}[opened-1])
		}
		r.closeFiles()
		if len(asked) != want {
			t.Errorf("step %d: asked to forget some %d times, want %d", opened, len(asked), want)
		}
		if n := len(asked); n == 1 && (!asked[0](last.Index) || asked[0](last.Index-1)) {
			t.Error("what is known of the file that is open is forgotten, or not of the one before")
		}
	}
}

// forgetting is a stepper that notes what it is asked to forget.
type forgetting struct{ asked *[]func(uint32) bool }

func (forgetting) Name() string              { return "forgetting" }
func (forgetting) Priority() unwind.Priority { return unwind.PriorityAnalysis }
func (forgetting) CallerFrame(*unwind.Walker, *unwind.Frame, *unwind.Frame) (unwind.Verdict, error) {
	return unwind.NotMe, nil
}
func (f forgetting) ForgetImages(isKept func(uint32) bool) { *f.asked = append(*f.asked, isKept) }

// What is remembered of a thread is kept while there are samples of it.
func TestForgetIdle(t *testing.T) {
	p, wp := newPipeline(symbols.Options{}), new(walkedProcess)
	p.memo(wp, 1)
	p.memo(wp, 2)
	for range 3 {
		p.forgetIdle()
		p.memo(wp, 2)
	}
	if one, two := p.memos[1].of, p.memos[2].of; one != nil || two != wp {
		t.Errorf("the idle thread is remembered: %t, the other one: %t", one != nil, two != nil)
	}
}
