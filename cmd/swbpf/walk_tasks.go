package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	stackwalk "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/python"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// taskWalks are the tasks of asyncio of a process, and greenlets, that are on no thread.
type taskWalks struct {
	total  int // with those on threads
	greens int // greenlets
	groups []*taskGroup
	unread int  // could not be read
	cut    bool // there are more
	names  map[uint64]string

	before  map[int]string                   // what descriptors of the process were before it was walked
	sockets map[*stackwalk.PythonTask]string // what those are that tasks wait for
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
	out.unread, out.cut, out.names = list.Unread, list.Cut, make(map[uint64]string)
	threads := make(map[procstate.ThreadID]*threadWalk, len(p.threads))
	for i := range p.threads {
		threads[p.threads[i].tid] = &p.threads[i]
	}
	slices.SortFunc(list.List, func(a, b stackwalk.PythonTask) int {
		return cmp.Or(compareNumbered(a.Name, b.Name), cmp.Compare(a.Addr, b.Addr))
	})
	for i := range list.List {
		out.names[list.List[i].Addr] = list.List[i].Name
		if list.List[i].IsGreenlet {
			out.greens++
		} else {
			out.total++
		}
	}
	if p.live {
		out.describeSockets(&waitReader{pid: p.pid}, list.List)
	}
	index := make(map[string]*taskGroup)
	for i := range list.List {
		task := &list.List[i]
		if t := threads[task.Thread]; t != nil {
			t.tasks = append(t.tasks, task)
			continue
		}
		key := out.key(task)
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
	isDigit := func(c byte) bool { return '0' <= c && c <= '9' }
	number := func(s string) int {
		n := 0
		for n < len(s) && isDigit(s[n]) {
			n++
		}
		return n
	}
	for a != "" && b != "" {
		if !isDigit(a[0]) || !isDigit(b[0]) {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		na, nb := number(a), number(b)
		if c := cmp.Or(cmp.Compare(na, nb), cmp.Compare(a[:na], b[:nb])); c != 0 {
			return c
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}

// key is what the tasks of a group have in common.
func (ts *taskWalks) key(t *stackwalk.PythonTask) string {
	var key strings.Builder
	wait := t.Blocker
	if ts.sockets[t] == "" {
		wait = ts.wait(t)
	}
	fmt.Fprintf(&key, "%v\x00%s\x00%s\x00%v\x00", t.IsGreenlet, replaceNumbers(t.Name, noNumber), wait, t.Err)
	if len(t.WaitsFor) == 1 { // others of the same name are not the same
		fmt.Fprintf(&key, "%d\x00", t.WaitsFor[0])
	}
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
		fmt.Fprintf(w, "\n%s [%s]: %s\n", printable(tasksText(g.tasks)), printable(ts.waitOfAll(g)), printable(g.outcome()))
		p.writeStack(w, &g.stackWalk)
	}
	if ts.unread > 0 {
		fmt.Fprintf(w, "\n%s could not be read\n", plural(ts.unread, "task"))
	}
	if ts.cut {
		fmt.Fprintf(w, "\nthere are more tasks: they were too many, or took too long\n")
	}
}

// tasksText names tasks: `task "fetch"`, `3 tasks "Task-*"`, `3 greenlets "Greenlet"`.
func tasksText(tasks []*stackwalk.PythonTask) string {
	names := make([]string, len(tasks))
	for i, t := range tasks {
		names[i] = t.Name
	}
	return namesText(taskNoun(tasks), names)
}

// taskNoun is what the tasks of a group are.
func taskNoun(tasks []*stackwalk.PythonTask) string {
	if tasks[0].IsGreenlet {
		return "greenlet"
	}
	return "task"
}

// text counts tasks and greenlets, behind a comma each.
func (ts *taskWalks) text() (text string) {
	if ts.total > 0 {
		text = ", " + plural(ts.total, "task")
	}
	if ts.greens > 0 {
		text += ", " + plural(ts.greens, "greenlet")
	}
	return text
}

// namesText is tasksText of those that have these names.
func namesText(s string, names []string) string {
	if len(names) > 1 {
		s = plural(len(names), s)
	}
	const most = 3 // kinds of names that are written
	var kinds []string
	same := make(map[string][]string)
	for _, name := range names {
		kind := replaceNumbers(name, noNumber)
		if same[kind] == nil {
			kinds = append(kinds, kind)
		}
		same[kind] = append(same[kind], name)
	}
	slices.Sort(kinds)
	separator := " "
	for i, kind := range kinds {
		if i == most {
			return s + " and others"
		}
		if name := commonName(same[kind]); name != "" {
			s += separator + strconv.Quote(name)
			separator = ", "
		}
	}
	return s
}

func noNumber(string) string { return "0" }

// wait tells what a task does: `ready`, `waiting for Future`, `waiting for task "fetch"`.
func (ts *taskWalks) wait(t *stackwalk.PythonTask) string {
	s := t.State.String()
	switch {
	case t.State != python.TaskWaiting:
	case len(t.WaitsFor) > 0:
		names := make([]string, len(t.WaitsFor))
		for i, addr := range t.WaitsFor {
			names[i] = ts.names[addr]
		}
		s += " for " + namesText("task", names)
	case ts.sockets[t] != "":
		s += " for " + ts.sockets[t]
	case t.Blocker != "":
		s += " for " + t.Blocker
	}
	return s
}

// waitOfAll tells what the tasks of a group do.
func (ts *taskWalks) waitOfAll(g *taskGroup) string {
	first := ts.sockets[g.tasks[0]]
	differ := slices.ContainsFunc(g.tasks, func(t *stackwalk.PythonTask) bool { return ts.sockets[t] != first })
	if !differ {
		return ts.wait(g.tasks[0])
	}
	remote := func(t *stackwalk.PythonTask) string {
		_, end, _ := strings.Cut(ts.sockets[t], " > ")
		return end
	}
	s := fmt.Sprintf("%s for sockets", g.tasks[0].State)
	end := remote(g.tasks[0])
	if end != "" && !slices.ContainsFunc(g.tasks, func(t *stackwalk.PythonTask) bool { return remote(t) != end }) {
		s += " to " + end
	}
	return s
}

// descriptorsBefore returns what the descriptors of a process are that has Python among its libraries; nil of another.
func descriptorsBefore(pid int, space *procstate.AddressSpace) map[int]string {
	if !slices.ContainsFunc(space.Mappings(), func(m *procstate.Mapping) bool { return strings.Contains(filepath.Base(m.Path), "python") }) {
		return nil
	}
	links := make(map[int]string)
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			links[fd], _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
		}
	}
	return links
}

// describeSockets finds what the sockets are that tasks wait for, those that are the same after the walk as before.
func (ts *taskWalks) describeSockets(r *waitReader, list []stackwalk.PythonTask) {
	ts.sockets = make(map[*stackwalk.PythonTask]string)
	for i := range list {
		t := &list[i]
		if t.Socket < 0 || ts.before[t.Socket] == "" {
			continue
		}
		text := r.file(int32(t.Socket))
		if now, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", r.pid, t.Socket)); err == nil && now == ts.before[t.Socket] {
			ts.sockets[t] = text
		}
	}
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
		j := jsonTasks{Kind: taskNoun(g.tasks), IDs: taskIDs(g.tasks), State: t.State.String(), Blocker: t.Blocker, Complete: g.complete(), Reason: g.reason()}
		for _, one := range g.tasks {
			j.Names = append(j.Names, one.Name)
			j.Sockets = append(j.Sockets, p.tasks.sockets[one])
		}
		if !slices.ContainsFunc(j.Sockets, func(s string) bool { return s != "" }) {
			j.Sockets = nil
		}
		var others []uint64
		for _, one := range g.tasks {
			others = append(others, one.WaitsFor...)
		}
		slices.Sort(others)
		for _, addr := range slices.Compact(others) {
			j.WaitsFor = append(j.WaitsFor, hex(addr))
		}
		out.Tasks = append(out.Tasks, j)
	}
}
