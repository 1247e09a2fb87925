package swbpf

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/python"
)

// PythonTask is a task of asyncio, and the thread that runs it, 0 for none; or a greenlet that is on no thread.
type PythonTask struct {
	python.Task
	Thread procstate.ThreadID
}

// PythonTaskList are the tasks of a process at one moment.
type PythonTaskList struct {
	List   []PythonTask // in no order
	Unread int          // that could not be read
	Cut    bool         // there are more: they were too many, or took too long
}

// PythonTasks reads the tasks of asyncio in CPython, and greenlets, as those of WalkProcess, of a process that is paused or of a core
// file.
func PythonTasks(ps procstate.ProcessState) *PythonTaskList {
	p := python.NewTasks(ps.Libraries())
	if p == nil {
		return &PythonTaskList{}
	}
	return pythonTasks(ps, p.Read(ps))
}

// pythonTasks finds which threads of a process run some tasks.
func pythonTasks(ps procstate.ProcessState, tasks *python.TaskList) *PythonTaskList {
	out := &PythonTaskList{List: make([]PythonTask, len(tasks.List)), Unread: tasks.Unread, Cut: tasks.Cut}
	threads := pythonThreads(ps)
	for i, t := range tasks.List {
		out.List[i] = PythonTask{t, threads(t.Runs)}
	}
	return out
}
