package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	stackwalk "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/python"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// taskWalks are the tasks of asyncio of a process that are on no thread.
type taskWalks struct {
	total  int // with those on threads
	groups []*taskGroup
	unread int  // could not be read
	cut    bool // there are more
	names  map[uint64]string
}

// taskGroup are tasks with the same stack and state, that wait for the same.
type taskGroup struct {
	stackWalk
	tasks []*stackwalk.PythonTask
}

// wantsTasks tells whether tasks are to be read.
func (o *walkOptions) wantsTasks() bool { return o.tasks != "no" && len(o.tids) == 0 }

// takeTasks takes over the tasks of a process: it tells threads which are on them.
func (p *processWalk) takeTasks(list *stackwalk.PythonTaskList, o *walkOptions) {
	out := &p.tasks
	out.total, out.unread, out.cut, out.names = len(list.List), list.Unread, list.Cut, make(map[uint64]string)
	threads := make(map[procstate.ThreadID]*threadWalk, len(p.threads))
	for i := range p.threads {
		threads[p.threads[i].tid] = &p.threads[i]
	}
	slices.SortFunc(list.List, func(a, b stackwalk.PythonTask) int {
		return cmp.Or(compareNumbered(a.Name, b.Name), cmp.Compare(a.Addr, b.Addr))
	})
	for i := range list.List {
		out.names[list.List[i].Addr] = list.List[i].Name
	}
	index := make(map[string]*taskGroup)
	for i := range list.List {
		task := &list.List[i]
		if t := threads[task.Thread]; t != nil {
			t.tasks = append(t.tasks, task)
			continue
		}
		key := taskKey(task)
		g := index[key]
		if g == nil || o.noGroup {
			g = &taskGroup{stackWalk: taskStack(task)}
			index[key] = g
			out.groups = append(out.groups, g)
		}
		g.tasks = append(g.tasks, task)
	}
	for _, t := range threads { // who was begun by another is further in
		slices.SortFunc(t.tasks, func(a, b *stackwalk.PythonTask) int { return cmp.Compare(len(a.Stack), len(b.Stack)) })
	}
	slices.SortStableFunc(out.groups, func(a, b *taskGroup) int { return cmp.Compare(len(b.tasks), len(a.tasks)) })
}

// compareNumbered compares names, numbers in them by their values.
func compareNumbered(a, b string) int {
	na, nb := numbersOf(a), numbersOf(b)
	byName := cmp.Compare(replaceNumbers(a, func(string) string { return "0" }), replaceNumbers(b, func(string) string { return "0" }))
	return cmp.Or(byName, slices.CompareFunc(na, nb, func(x, y string) int { return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)) }))
}

// taskKey is what the tasks of a group have in common.
func taskKey(t *stackwalk.PythonTask) string {
	var key strings.Builder
	name := replaceNumbers(t.Name, func(string) string { return "0" })
	fmt.Fprintf(&key, "%s\x00%d\x00%s\x00%v\x00%v\x00", name, t.State, t.Blocker, t.WaitsFor, t.Err)
	for _, l := range t.Stack {
		fmt.Fprintf(&key, "%p\x00%d\x00", l.CodeFunction, l.Line)
	}
	return key.String()
}

// taskStack makes the frames of a task, which have no address.
func taskStack(t *stackwalk.PythonTask) stackWalk {
	s := stackWalk{stack: make([]unwind.Frame, len(t.Stack)), frames: make([]walkFrame, len(t.Stack)), err: t.Err}
	for i, l := range t.Stack {
		s.frames[i] = walkFrame{frame: &s.stack[i], function: codeName(l.CodeFunction, symbols.DemangleSimple), file: l.File, line: l.Line, bytecode: true}
	}
	return s
}

// isTask reports whether a frame is of a coroutine, which is on no stack.
func (f *walkFrame) isTask() bool { return f.bytecode && f.frame.PC() == 0 }

// writeTasks writes the tasks of a process for people.
func (p *processWalk) writeTasks(w io.Writer) {
	ts := &p.tasks
	for _, g := range ts.groups {
		fmt.Fprintf(w, "\n%s [%s]: %s\n", printable(g.text()), printable(ts.wait(g)), printable(g.outcome()))
		p.writeStack(w, &g.stackWalk)
	}
	if ts.unread > 0 {
		fmt.Fprintf(w, "\n%s could not be read\n", plural(ts.unread, "task"))
	}
	if ts.cut {
		fmt.Fprintf(w, "\nthere are more tasks: they were too many, or took too long\n")
	}
}

// text names the tasks of a group: `3 tasks "Task-*"`.
func (g *taskGroup) text() string { return tasksText(g.tasks) }

// tasksText names tasks: `task "fetch"`, `3 tasks "Task-*"`.
func tasksText(tasks []*stackwalk.PythonTask) string {
	names := make([]string, len(tasks))
	for i, t := range tasks {
		names[i] = t.Name
	}
	return namesText(names)
}

// namesText is tasksText of those that have these names.
func namesText(names []string) string {
	s := "task"
	if len(names) > 1 {
		s = plural(len(names), s)
	}
	slices.SortFunc(names, compareNumbered)
	const most = 3 // kinds of names that are written
	kinds := slices.CompactFunc(slices.Clone(names), func(a, b string) bool { return replaceNumbers(a, noNumber) == replaceNumbers(b, noNumber) })
	for i, kind := range kinds {
		if i == most {
			return s + " and others"
		}
		var same []string
		for _, name := range names {
			if replaceNumbers(name, noNumber) == replaceNumbers(kind, noNumber) {
				same = append(same, name)
			}
		}
		if name := commonName(same); name != "" {
			s += fmt.Sprintf(" %q", name)
		}
	}
	return s
}

func noNumber(string) string { return "0" }

// wait tells what the tasks of a group do: `ready`, `waiting for Future`, `waiting for task "fetch"`.
func (ts *taskWalks) wait(g *taskGroup) string {
	t := g.tasks[0]
	s := t.State.String()
	switch {
	case t.State != python.TaskWaiting:
	case len(t.WaitsFor) > 0:
		names := make([]string, len(t.WaitsFor))
		for i, addr := range t.WaitsFor {
			names[i] = ts.names[addr]
		}
		s += " for " + namesText(names)
	case t.Blocker != "":
		s += " for " + t.Blocker
	}
	return s
}

// taskIDs are the IDs of tasks in the JSON form.
func taskIDs(tasks []*stackwalk.PythonTask) (ids []string) {
	for _, t := range tasks {
		ids = append(ids, hex(t.Addr))
	}
	return ids
}

// jsonTasks adds the tasks to the JSON form.
func (p *processWalk) jsonTasks(out *jsonProcess) {
	out.TasksUnread, out.TasksCut = p.tasks.unread, p.tasks.cut
	for _, g := range p.tasks.groups {
		t := g.tasks[0]
		j := jsonTasks{IDs: taskIDs(g.tasks), State: t.State.String(), Blocker: t.Blocker, Complete: g.complete(), Reason: g.reason()}
		for _, one := range g.tasks {
			j.Names = append(j.Names, one.Name)
		}
		for _, addr := range t.WaitsFor {
			j.WaitsFor = append(j.WaitsFor, hex(addr))
		}
		out.Tasks = append(out.Tasks, j)
	}
}
