package hotspot

import (
	"bufio"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// TestLyingJavaThreads reads threads of a Java whose memory is not what it should be, also while its classes are read:
// there is an end to that, and nothing panics.
func TestLyingJavaThreads(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	testenv.SomeJava(t, func(t *testing.T, java testenv.Program) {
		classes := testenv.CompileJava(t, java, filepath.Join("..", "..", "testdata", "walk", "Locks.java"))
		command := java.Command("-Xint", "-cp", classes, "Locks", "300")
		cmd := exec.Command(command[0], command[1:]...)
		_, out := testenv.Start(t, cmd)
		pid, lines := cmd.Process.Pid, bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "done" {
		}
		p, err := procstate.Attach(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Detach()
		if err := p.Pause(procstate.DefaultThread); err != nil {
			t.Fatal(err)
		}
		tids, err := p.Threads()
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(tids) // those that wait come before those that they wait for
		liar := &steptest.Lying{ProcessState: p, Rand: rand.New(rand.NewPCG(3, 4))}
		space := procstate.SpaceOfProcess(pid)
		states, read := map[string]int{}, 0
		for n := range 40 {
			begin := testenv.CPUTime(t)
			rate := []int{10, 100, 1000, 10000}[n/2%4]
			liar.Rate = 0
			if n%2 == 1 {
				liar.Rate = rate
			}
			h := NewHeap(pid, liar, space)
			if h == nil {
				continue
			}
			if n > 0 {
				liar.Rate = rate
			}
			if n == 0 { // as if all had begun since
				clear(h.names)
				clear(h.ids)
			}
			m := h.At(liar)
			for _, tid := range tids {
				if known := m.Thread(tid); known != nil {
					read++
					if n == 0 && known.OwnerThread != 0 {
						states[known.State]++
					}
				}
			}
			m.VirtualThreads(nil)
			if took := testenv.CPUTime(t) - begin; took > 20*time.Second {
				t.Errorf("with a lie in %d reads it took %v", liar.Rate, took)
			}
		}
		if states["blocked"] < 5 || states["parked"] < 4 || states["timed parked"] != 1 || states["waiting"] != 1 || read < 300 {
			t.Errorf("threads that wait for others without lies: %v; %d in all", states, read)
		}
		t.Logf("%d threads", read)
	})
}
