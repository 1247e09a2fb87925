package swbpf_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/python"
)

// toldTask is what tasks.py says of a task.
type toldTask struct {
	Addr    uint64
	Name    string
	State   string
	Calls   []string
	Blocker string
	Others  []uint64
	Socket  int
}

// TestPythonTasks compares the tasks of asyncio with what Python says of them: in a copy, in the process itself, and
// in a core file.
func TestPythonTasks(t *testing.T) {
	canTrace(t)
	testenv.EachPython(t, func(t *testing.T, py testenv.Program) {
		command := py.Command(py.Script(t, filepath.Join("testdata", "walk", "tasks.py")))
		tg := start(t, command[0], command[1:]...)
		want := map[uint64]toldTask{}
		for {
			var told *toldTask
			if err := json.Unmarshal([]byte(tg.line(t)), &told); err != nil {
				t.Fatal(err)
			}
			if told == nil {
				break
			}
			want[told.Addr] = *told
		}
		if len(want) < 29 {
			t.Fatalf("Python tells of %d tasks", len(want))
		}
		check := func(how string, list *swbpf.PythonTaskList) {
			t.Helper()
			if len(list.List) != len(want) || list.Unread != 0 || list.Cut {
				t.Errorf("%s: %d tasks, %d not read, cut: %v; want %d", how, len(list.List), list.Unread, list.Cut, len(want))
			}
			for i := range list.List {
				checkTask(t, how, &list.List[i], want[list.List[i].Addr])
			}
		}
		ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{PythonTasks: true})
		if err != nil {
			t.Fatal(err)
		}
		check("copy", &ps.PythonTasks)
		if _, err := swbpf.WalkStopped(tg.pid, swbpf.WalkOptions{PythonTasks: true}, func(ps *swbpf.ProcessStacks) { check("stopped", &ps.PythonTasks) }); err != nil {
			t.Fatal(err)
		}
		if py.Root == "" { // a core's files are looked for where they were
			w, err := swbpf.ForCore(gcore(t, tg), "")
			if err != nil {
				t.Fatal(err)
			}
			check("core", swbpf.PythonTasks(w.ProcessState()))
		}
		for _, opts := range []swbpf.WalkOptions{{}, {PythonTasks: true, Threads: []procstate.ThreadID{procstate.ThreadID(tg.pid)}}} {
			if ps, err := swbpf.WalkProcess(tg.pid, opts); err != nil || len(ps.PythonTasks.List) != 0 {
				t.Errorf("nobody asked for %d tasks: %v", len(ps.PythonTasks.List), err)
			}
		}
	})
}

func checkTask(t *testing.T, how string, got *swbpf.PythonTask, want toldTask) {
	t.Helper()
	if got.Name != want.Name || got.State.String() != want.State || got.Blocker != want.Blocker || got.Err != nil {
		t.Errorf("%s: task %q is %v for %q: %v; want %q, %s for %q", how, got.Name, got.State, got.Blocker, got.Err, want.Name, want.State, want.Blocker)
	}
	if got.Socket != want.Socket {
		t.Errorf("%s: task %q waits for socket %d, want %d", how, got.Name, got.Socket, want.Socket)
	}
	if (got.State == python.TaskRunning) != (got.Thread != 0) {
		t.Errorf("%s: task %q is %v, on thread %d", how, got.Name, got.State, got.Thread)
	}
	if !slices.Equal(got.WaitsFor, want.Others) {
		t.Errorf("%s: task %q waits for %#x, want %#x", how, got.Name, got.WaitsFor, want.Others)
	}
	var calls []string
	for _, l := range got.Stack {
		calls = append(calls, l.Name+" "+l.File+":"+strconv.Itoa(l.Line))
	}
	if !slices.Equal(calls, want.Calls) {
		t.Errorf("%s: task %q runs\n%s\nwant\n%s", how, got.Name, strings.Join(calls, "\n"), strings.Join(want.Calls, "\n"))
	}
}
