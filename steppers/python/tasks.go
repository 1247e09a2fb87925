package python

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Task is a task of asyncio that is not done, of C's implementation, which is the usual one; or a greenlet that is neither
// done nor on a thread.
type Task struct {
	Addr  uint64 // of its object: no other has the same
	Name  string // "" with 3.7; of a greenlet its class, and of the one that a thread has begun with "main"
	State TaskState

	IsGreenlet bool // of which what follows but for the Stack is not known

	// Blocker is the class of the future that it waits for, and WaitsFor the other tasks, where it is one, a gather
	// or a TaskGroup of some, or they are what asyncio.wait or wait_for has: those that are not done.
	Blocker  string
	WaitsFor []uint64 // their Addr

	// Socket is the descriptor of the connection by asyncio's streams that it waits for; -1: it waits for none that is
	// known.
	Socket int

	Runs  ThreadID          // what runs it
	Stack []unwind.CodeLine // the innermost first
	Err   error             // why it is not complete; nil when it is
}

// TaskState is what a task is doing.
type TaskState uint8

// States of tasks.
const (
	TaskReady     TaskState = iota // to run when its turn comes
	TaskWaiting                    // for a future
	TaskRunning                    // on a thread
	TaskCreated                    // of a greenlet: nothing yet
	TaskSuspended                  // of a greenlet: nothing until it is switched to
)

// String names the state in lower case.
func (s TaskState) String() string {
	switch s {
	case TaskReady:
		return "ready"
	case TaskWaiting:
		return "waiting"
	case TaskRunning:
		return "running"
	case TaskCreated:
		return "not begun"
	case TaskSuspended:
		return "suspended"
	}
	return fmt.Sprintf("TaskState(%d)", uint8(s))
}

// TaskList are the tasks of a process at one moment.
type TaskList struct {
	List   []Task // in no order
	Unread int    // that could not be read
	Cut    bool   // there are more: they were too many, or took too long
}

// Tasks reads those of a process.
type Tasks struct {
	objectReader
	runtime      uint64
	offsets      asyncioOffsets
	found        bool // what follows has been looked for
	sets         []taskSet
	interpreters []uint64 // with asyncio

	hasGreenlets bool // the module is there
	greenlets    *greenlets
}

// asyncioOffsets are what asyncio's module tells of itself from 3.14 on.
type asyncioOffsets struct{ node, ofInterpreter, ofThread uint64 }

// taskSet is a set of tasks, or of what refers to them.
type taskSet struct {
	addr uint64
	weak bool
}

// NewTasks makes a Tasks of a process with some libraries; nil where none is CPython.
func NewTasks(libs procstate.LibraryState) *Tasks {
	p, python := of(libs)
	if p == nil {
		return nil
	}
	vm := &machine{fields: p.fields, codeType: p.codeType + python.Bias, known: map[uint64]*function{}}
	ts := &Tasks{objectReader: objectReader{vm, map[uint64]*class{}}, runtime: p.runtime + python.Bias}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		ts.hasGreenlets = ts.hasGreenlets || !p.fields.isFree && strings.Contains(path.Base(lib.Image.Path), "greenlet")
		if sec, ok := lib.Image.Section(".AsyncioDebug"); ok {
			const node, ofInterpreter, ofThread, size = 48, 64, 96, 104
			if b, err := lib.Image.SectionBytes(sec, 1<<12); err == nil && len(b) >= size {
				le := binary.LittleEndian
				ts.offsets = asyncioOffsets{le.Uint64(b[node:]), le.Uint64(b[ofInterpreter:]), le.Uint64(b[ofThread:])}
			}
		}
	}
	return ts
}

// Limits on what is read of tasks.
const (
	maxTasks       = 1 << 18
	maxTaskFrames  = 1 << 20 // of all
	tasksLimit     = time.Second
	rehearsedTasks = 64
	findTries      = 3
)

// Rehearse reads some tasks of the process as it runs, so that Read takes less time while it stands, soon: where they
// are, and what their functions are called, is known then.
func (ts *Tasks) Rehearse(mem procstate.Memory) {
	ts.vm.Memory = vmread.Memory{Mem: &limitedMemory{Memory: mem, end: time.Now().Add(tasksLimit)}}
	for try := 0; try < findTries && len(ts.sets) == 0; try++ { // what is read may be changed just then
		ts.find()
	}
	if ts.hasGreenlets {
		ts.findGreenlets(ts.vm.Mem)
	}
	ts.read(mem, rehearsedTasks)
}

// Read reads the tasks of all interpreters, of a process that stands still or a copy of it.
func (ts *Tasks) Read(mem procstate.Memory) *TaskList { return ts.read(mem, maxTasks) }

// read is Read of so many at most.
func (ts *Tasks) read(mem procstate.Memory, most int) *TaskList {
	limited := &limitedMemory{Memory: mem, end: time.Now().Add(tasksLimit)}
	ts.vm.Memory = vmread.Memory{Mem: limited}
	t := &taskReader{Tasks: ts, mem: limited, out: &TaskList{}, most: most, seen: map[uint64]bool{}}
	defer func() { t.out.Cut = t.out.Cut || limited.late }()
	if !ts.found {
		ts.find()
	}
	if len(ts.interpreters) > 0 {
		t.takeTasks()
	}
	if ts.hasGreenlets {
		t.takeGreenlets()
	}
	return t.out
}

// takeTasks takes the tasks of asyncio.
func (t *taskReader) takeTasks() {
	ts := t.Tasks
	threads := listThreads(ts.vm.fields, ts.runtime, ts.vm.WordNow)
	t.findRunning(threads)
	for _, set := range ts.sets {
		t.eachOfSet(set.addr, func(object uint64) bool {
			if set.weak {
				const referent = 16
				var b [headBytes + 8]byte
				if c := t.object(object, b[:]); c == nil || !strings.HasPrefix(c.name, "weakref") {
					return true // there was one
				}
				object = binary.LittleEndian.Uint64(b[referent+ts.vm.fields.more:])
			}
			return t.take(object)
		})
	}
	if ts.offsets.node == 0 {
		return
	}
	for _, interpreter := range ts.interpreters {
		t.takeNodes(interpreter + ts.offsets.ofInterpreter)
	}
	for _, th := range threads {
		t.takeNodes(th.addr + ts.offsets.ofThread)
	}
}

// find finds the sets that the module asyncio.tasks refers to: those of all tasks with 3.13 and earlier.
func (ts *Tasks) find() {
	dictionary := 16 + ts.vm.fields.more // of a module
	ts.found, ts.sets, ts.interpreters = true, nil, nil
	modules := ts.vm.fields.asyncio.modules
	if told := ts.vm.fields.asyncio.modulesTold; told != 0 {
		modules = ts.word(ts.runtime + told)
	}
	eachInterpreter(ts.vm.fields, ts.runtime, ts.vm.WordNow, func(interpreter uint64) {
		module := ts.item(ts.word(interpreter+modules), "asyncio.tasks")
		if module == 0 {
			return
		}
		ts.interpreters = append(ts.interpreters, interpreter)
		dict := ts.word(module + dictionary)
		for _, name := range []string{"_all_tasks", "_scheduled_tasks"} { // to 3.11, and from then on
			if set := ts.attribute(ts.item(dict, name), "data"); set != 0 {
				ts.sets = append(ts.sets, taskSet{set, true})
			}
		}
		if eager := ts.item(dict, "_eager_tasks"); eager != 0 {
			ts.sets = append(ts.sets, taskSet{eager, false})
		}
	})
}

// taskReader reads the tasks of a process once.
type taskReader struct {
	*Tasks
	mem     *limitedMemory
	out     *TaskList
	most    int
	seen    map[uint64]bool
	frames  int                     // of all tasks
	buf     []frameRef              // of one
	running map[uint64]runningFrame // by the address of a frame
}

// limitedMemory is that of a process up to some time, and after that none.
type limitedMemory struct {
	procstate.Memory
	end   time.Time
	reads int
	late  bool // the end has come
}

// ReadMemory implements procstate.Memory.
func (m *limitedMemory) ReadMemory(addr uint64, buf []byte) (int, error) {
	const step = 64 // reads until the clock is looked at
	if m.reads++; m.reads%step == 0 {
		m.late = m.late || time.Now().After(m.end)
	}
	if m.late {
		return 0, procstate.ErrUnreadable
	}
	return m.Memory.ReadMemory(addr, buf)
}

// threadFrames are the frames that a thread runs, innermost first.
type threadFrames struct {
	id     ThreadID
	frames []frameRef
}

// runningFrame is one of these.
type runningFrame struct {
	thread *threadFrames
	index  int
}

// findRunning finds the frames that threads run.
func (t *taskReader) findRunning(threads []threadState) {
	f, le := t.vm.fields, binary.LittleEndian
	t.running = map[uint64]runningFrame{}
	var buf [objectBytes]byte
	b := buf[:f.frameBytes()]
	left := maxTaskFrames
	for _, th := range threads {
		run := &threadFrames{id: f.threadID(th.id)}
		frame := t.word(th.addr + f.current)
		if f.hasCFrame {
			frame = t.word(frame + f.cFrame)
		}
		for n := 0; frame != 0 && n < maxFrames && left > 0 && t.vm.ReadNow(frame, b); n, left = n+1, left-1 {
			ref := frameRef{le.Uint64(b[f.code:]) &^ tagBits, le.Uint64(b[f.instruction:])}
			if f.isObject {
				ref.instruction = ref.code + uint64(int64(int32(ref.instruction)))
			}
			if f.isObject || b[f.owner] != ownedByCStack {
				t.running[frame] = runningFrame{run, len(run.frames)}
				run.frames = append(run.frames, ref)
			}
			frame = le.Uint64(b[f.previous:])
		}
	}
}

// takeNodes takes the tasks of a list, whose nodes are in them.
func (t *taskReader) takeNodes(list uint64) {
	for at, n := t.word(list), 0; at != 0 && at != list && n < maxTasks; at, n = t.word(at), n+1 {
		if !t.take(at - t.offsets.node) {
			return
		}
	}
}

// take takes an object, if it is a task that is not done.
func (t *taskReader) take(object uint64) (more bool) {
	const cTask = "_asyncio.Task"
	if t.seen[object] || object == 0 {
		return true
	}
	if t.out.Cut = len(t.seen) >= t.most || t.frames > maxTaskFrames || t.mem.late; t.out.Cut {
		return false
	}
	t.seen[object] = true
	f, le := &t.vm.fields.asyncio, binary.LittleEndian
	var buf [192]byte
	b := buf[:max(f.coroutine, f.name)+8]
	c := t.object(object, b[:headBytes]) // None is what a task that is no more has left
	if c != nil && !c.is(cTask) {
		return true
	}
	if c == nil || !t.vm.ReadNow(object, b) {
		if !t.mem.late {
			t.out.Unread++
		}
		return true
	}
	coroutine := le.Uint64(b[f.coroutine:])
	if coroutine == 0 || !t.isPending(object) {
		return true
	}
	task := Task{Addr: object, Socket: -1}
	if f.name != 0 {
		task.Name = t.nameOf(le.Uint64(b[f.name:]))
	}
	run, err := t.follow(coroutine)
	task.Err = err
	t.buf = run.frames[:0]
	task.Stack = make([]unwind.CodeLine, 0, len(run.frames))
	for _, ref := range slices.Backward(run.frames) {
		line, ok := t.line(&ref)
		if !ok {
			task.Err = errCoroutine
			continue
		}
		task.Stack = append(task.Stack, line)
	}
	t.frames += len(task.Stack)
	if run.thread != nil {
		task.State, task.Runs = TaskRunning, run.thread.id
	} else {
		t.waits(&task, le.Uint64(b[f.waiter:]), run.first)
	}
	if t.mem.late { // it is not whole
		return false
	}
	t.out.List = append(t.out.List, task)
	return true
}

// line returns the function that runs in a frame, and its line.
func (t *taskReader) line(ref *frameRef) (line unwind.CodeLine, ok bool) {
	f := t.vm.fields
	fn := t.vm.function(ref.code)
	if fn == nil || fn == &notRead {
		return line, false
	}
	at := t.vm.offset(fn, ref)
	n := f.lines(fn.lineTable, fn.StartLine, at)
	if at < 0 { // it has not begun
		n = fn.StartLine
	}
	return unwind.CodeLine{CodeFunction: fn.CodeFunction, Line: n}, true
}

// nameOf returns the name of a task, which is not made before it is asked for: till then it is a number.
func (t *taskReader) nameOf(object uint64) string {
	var head [headBytes]byte
	if c := t.object(object, head[:]); c != nil && c.flags&isString != 0 {
		text, _ := t.vm.text(object)
		return text
	}
	n, ok := t.integer(object)
	if !ok {
		return ""
	}
	return fmt.Sprintf("Task-%d", n)
}

// waits fills in what a task waits for: a future. first is the first variable of the function that it waits in.
func (t *taskReader) waits(task *Task, future, first uint64) {
	const cFuture, cTask = "_asyncio.Future", "_asyncio.Task"
	var head [headBytes]byte
	c := t.object(future, head[:])
	if c == nil || c.name == "NoneType" {
		return
	}
	if (c.is(cTask) || c.is(cFuture)) && !t.isPending(future) {
		return // its turn comes
	}
	task.State, task.Blocker = TaskWaiting, c.name[1+strings.LastIndexByte(c.name, '.'):]
	add := func(other uint64) bool {
		if c := t.object(other, head[:]); c.is(cTask) && t.isPending(other) {
			task.WaitsFor = append(task.WaitsFor, other)
		}
		return true
	}
	of := t.object(first, head[:])
	switch {
	case c.is(cTask):
		add(future)
	case c.name == "_GatheringFuture":
		t.eachOfList(t.attribute(future, "_children"), add)
	case of != nil && of.name == "TaskGroup":
		t.eachOfSet(t.attribute(first, "_tasks"), add)
	case task.isIn("tasks") && task.Stack[0].Name == "_wait":
		t.eachOfSet(first, add)
	case task.isIn("tasks") && task.Stack[0].Name == "wait_for": // to 3.11
		add(first)
	case of != nil && task.isIn("streams") && (of.name == "StreamReader" || of.name == "StreamReaderProtocol"):
		task.Socket = t.socketOf(t.attribute(first, "_transport"))
	}
	slices.Sort(task.WaitsFor)
}

// isIn reports whether a task waits in a function of one of asyncio's modules.
func (task *Task) isIn(module string) bool {
	return len(task.Stack) > 0 && strings.HasSuffix(task.Stack[0].File, "/asyncio/"+module+".py")
}

// socketOf returns the descriptor of a transport, -1 where that is not known.
func (t *taskReader) socketOf(transport uint64) int {
	if encrypted := t.attribute(transport, "_ssl_protocol"); encrypted != 0 {
		transport = t.attribute(encrypted, "_transport")
	}
	const most = 1 << 30
	fd, ok := t.integer(t.attribute(transport, "_sock_fd"))
	if !ok || fd >= most {
		return -1
	}
	return int(fd)
}

// isPending reports whether a future is not done.
func (t *taskReader) isPending(future uint64) bool {
	const pending = 0
	var b [4]byte
	return t.vm.ReadNow(future+t.vm.fields.asyncio.state, b[:]) && binary.LittleEndian.Uint32(b[:]) == pending
}
