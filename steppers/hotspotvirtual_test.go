package steppers

import (
	"bufio"
	"encoding/binary"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// lyingProcess is a process of which some reads of memory have another word than there is: one that was read before, or
// near to it, or any.
type lyingProcess struct {
	procstate.ProcessState
	rng  *rand.Rand
	rate int // a lie in so many reads; 0: none
	seen [64]uint64
}

func (p *lyingProcess) lie(word uint64) uint64 {
	p.seen[p.rng.IntN(len(p.seen))] = word
	if p.rate == 0 || p.rng.IntN(p.rate) > 0 {
		return word
	}
	switch other := p.seen[p.rng.IntN(len(p.seen))]; p.rng.IntN(4) {
	case 0:
		return p.rng.Uint64()
	case 1:
		return word ^ 1<<p.rng.IntN(64)
	case 2:
		return other + 8*p.rng.Uint64N(64)
	default:
		return other
	}
}

func (p *lyingProcess) ReadMemory(addr uint64, buf []byte) (int, error) {
	n, err := p.ProcessState.ReadMemory(addr, buf)
	if n >= 8 {
		at := buf[p.rng.IntN(n/8)*8:]
		binary.LittleEndian.PutUint64(at, p.lie(binary.LittleEndian.Uint64(at)))
	}
	return n, err
}

func (p *lyingProcess) ReadWord(addr uint64) (uint64, bool) {
	word, ok := p.ProcessState.ReadWord(addr)
	return p.lie(word), ok
}

// TestLyingVirtualThreads reads virtual threads of a Java whose memory is not what it should be: there is an end to that,
// and nothing panics.
func TestLyingVirtualThreads(t *testing.T) {
	t.Parallel()
	needPtrace(t)
	found := false
	testenv.SomeJava(t, func(t *testing.T, java testenv.Program) {
		classes := testenv.CompileJava(t, java, filepath.Join("..", "testdata", "walk", "VirtualStacks.java"))
		command := java.Command("-Xint", "-cp", classes, "VirtualStacks", "500")
		cmd := exec.Command(command[0], command[1:]...)
		_, out := testenv.Start(t, cmd)
		pid, lines := cmd.Process.Pid, bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "done" {
		}
		if lines.Text() != "done" {
			t.Skip("no virtual threads here")
		}
		found = true
		p, err := procstate.Attach(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Detach()
		if err := p.Pause(procstate.DefaultThread); err != nil {
			t.Fatal(err)
		}
		liar := &lyingProcess{ProcessState: p, rng: rand.New(rand.NewPCG(1, 2))}
		space := procstate.SpaceOfProcess(pid)
		whole, read := 0, 0
		for n := range 24 {
			liar.rate = 0
			h := NewJavaHeap(pid, liar, space)
			w := unwind.NewWalker(liar, Default(unwind.NewTables()), nil)
			w.MaxFrames = 10000
			if n > 0 {
				liar.rate = []int{10, 100, 1000, 10000}[n%4]
			}
			begin := time.Now()
			bytes := 0
			vs := h.At(liar).VirtualThreads(func(_ uint64, n int) { bytes += n })
			for i := range vs.List {
				frames, err := hotspotOf(w).WalkVirtualThread(w, nil, &vs.List[i])
				if n == 0 && err == nil && len(frames) > 5 {
					whole++
				}
				if time.Since(begin) > time.Minute {
					t.Fatalf("%d of %d threads, with a lie in %d reads, took %v", i, len(vs.List), liar.rate, time.Since(begin))
				}
			}
			read += len(vs.List)
		}
		if whole != 60 || read < 200 {
			t.Errorf("%d stacks are whole without lies, %d in all", whole, read)
		}
		t.Logf("%d threads", read)
	})
	if !found {
		t.Skip("no Java with virtual threads")
	}
}

func hotspotOf(w *unwind.Walker) *HotSpot {
	for _, s := range w.StepperGroup().Steppers() {
		if s, ok := s.(*HotSpot); ok {
			return s
		}
	}
	return nil
}
