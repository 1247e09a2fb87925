package python

import (
	"bufio"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// pausedTasks starts tasks.py, and stops it when its tasks wait.
func pausedTasks(t *testing.T, python testenv.Program) *procstate.ProcDebug {
	t.Helper()
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
	t.Cleanup(p.Detach)
	if err := p.Pause(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	return p
}

// slow is memory of which a read takes long.
type slow struct{ procstate.Memory }

func (s slow) ReadMemory(addr uint64, buf []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	return s.Memory.ReadMemory(addr, buf)
}

// TestSlowTasks reads tasks for longer than a process may stand for that: those that were read are whole, and it is
// said that there are more.
func TestSlowTasks(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.SomePython(t, func(t *testing.T, python testenv.Program) {
		p := pausedTasks(t, python)
		ts := NewTasks(procstate.SpaceOfProcess(p.PID()))
		ts.Rehearse(p)
		list := ts.Read(slow{p})
		if all := len(ts.Read(p).List); !list.Cut || list.Unread != 0 || len(list.List) >= all {
			t.Errorf("%d of %d tasks were read, %d were not, cut: %v", len(list.List), all, list.Unread, list.Cut)
		}
		for _, task := range list.List {
			if task.Err != nil || len(task.Stack) == 0 {
				t.Errorf("%+v", task)
			}
		}
	})
}

// TestEndedTasks reads tasks of a process that ends before, or while it is looked for what leads to them.
func TestEndedTasks(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.SomePython(t, func(t *testing.T, python testenv.Program) {
		p := pausedTasks(t, python)
		ts, late := NewTasks(procstate.SpaceOfProcess(p.PID())), NewTasks(procstate.SpaceOfProcess(p.PID()))
		ts.Rehearse(p)
		if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		mem := procstate.ProcessMemory(p.PID())
		for _, ok := mem.ReadWord(ts.runtime); ok; _, ok = mem.ReadWord(ts.runtime) { // until it has
			time.Sleep(time.Millisecond)
		}
		late.Rehearse(mem)
		for _, ts := range []*Tasks{ts, late} {
			if list := ts.Read(mem); len(list.List) != 0 {
				t.Errorf("there are %d tasks", len(list.List))
			}
		}
	})
}

// TestLyingTasks reads tasks of a Python whose memory is not what it should be: there is an end to that, and nothing
// panics.
func TestLyingTasks(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.SomePython(t, func(t *testing.T, python testenv.Program) {
		p := pausedTasks(t, python)
		space := procstate.SpaceOfProcess(p.PID())
		liar := &steptest.Lying{ProcessState: p, Rand: rand.New(rand.NewPCG(5, 6))}
		all, damaged, times := 0, 0, 200
		if testenv.Long() {
			times = 2000
		}
		for n := range times {
			begin := testenv.CPUTime(t)
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
			if took := testenv.CPUTime(t) - begin; took > 20*time.Second {
				t.Errorf("with a lie in %d reads it took %v", liar.Rate, took)
			}
		}
		if all < 20 || damaged < times {
			t.Errorf("of %d tasks only %d have met lies", all, damaged)
		}
	})
}
