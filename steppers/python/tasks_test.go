package python

import (
	"bufio"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// TestLyingTasks reads tasks of a Python whose memory is not what it should be: there is an end to that, and nothing
// panics.
func TestLyingTasks(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.SomePython(t, func(t *testing.T, python testenv.Program) {
		command := python.Command(python.Script(t, filepath.Join("..", "..", "testdata", "walk", "tasks.py")))
		cmd := exec.Command(command[0], command[1:]...)
		_, out := testenv.Start(t, cmd)
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "null" {
		}
		p, err := procstate.Attach(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Detach()
		if err := p.Pause(procstate.DefaultThread); err != nil {
			t.Fatal(err)
		}
		space := procstate.SpaceOfProcess(cmd.Process.Pid)
		liar := &steptest.Lying{ProcessState: p, Rand: rand.New(rand.NewPCG(5, 6))}
		all, damaged, times := 0, 0, 200
		if testenv.Long() {
			times = 2000
		}
		for n := range times {
			begin := time.Now()
			ts := NewTasks(space)
			if liar.Rate = 0; n%4 == 1 { // what is known before is right, or not
				liar.Rate = 1000
			}
			ts.Rehearse(liar)
			if n > 0 {
				liar.Rate = []int{10, 30, 100, 1000}[n/4%4]
			}
			list := ts.Read(liar)
			if n == 0 {
				all = len(list.List)
			}
			for _, task := range list.List {
				if task.Err != nil {
					damaged++
				}
			}
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("with a lie in %d reads it took %v", liar.Rate, took)
			}
		}
		if all < 20 || damaged < times {
			t.Errorf("of %d tasks only %d have met lies", all, damaged)
		}
	})
}
