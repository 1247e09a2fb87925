package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// The JSON form of a walk. Addresses are strings: "0x55d0c0a01139".
type (
	jsonProcess struct {
		PID       int          `json:"pid"`
		Exe       string       `json:"exe"`
		Command   []string     `json:"command,omitempty"` // its arguments; of a core file all in one, 79 bytes of them
		Arch      string       `json:"arch"`
		StoppedNs int64        `json:"stopped_ns"`
		WalkNs    int64        `json:"walk_ns"`
		Threads   []jsonThread `json:"threads"`

		Resource map[string]string `json:"resource,omitempty"` // what it tells profilers of itself

		// Deadlocks are threads each of which waits for what the next one has, and the last for what the first one has.
		Deadlocks [][]jsonParty `json:"deadlocks,omitempty"`

		// Of a program in Go:
		Goroutines       []jsonGoroutines `json:"goroutines,omitempty"`
		GoroutinesUnread int              `json:"goroutines_unread,omitempty"` // that could not be read, or were too many
		GoroutinesError  string           `json:"goroutines_error,omitempty"`  // why none are known

		// Of one in Java:
		VirtualThreads []jsonVirtualThreads `json:"virtual_threads,omitempty"`
		VirtualUnread  int                  `json:"virtual_threads_unread,omitempty"` // that could not be read
		VirtualCut     bool                 `json:"virtual_threads_cut,omitempty"`    // there are more
		VirtualError   string               `json:"virtual_threads_error,omitempty"`  // why none are known

		// Of one in Python:
		Tasks       []jsonTasks `json:"tasks,omitempty"`
		TasksUnread int         `json:"tasks_unread,omitempty"` // that could not be read
		TasksCut    bool        `json:"tasks_cut,omitempty"`    // there are more
	}

	jsonThread struct {
		TID      int32       `json:"tid"`
		Name     string      `json:"name"`
		State    string      `json:"state"`
		Complete bool        `json:"complete"`
		Reason   string      `json:"reason"`
		Frames   []jsonFrame `json:"frames"`

		Goroutine   uint64            `json:"goroutine,omitempty"`        // ID of that which is on it
		GoLabels    map[string]string `json:"goroutine_labels,omitempty"` // of that
		Virtual     int64             `json:"virtual_thread,omitempty"`   // the same
		VirtualName string            `json:"virtual_thread_name,omitempty"`
		Wait        *jsonWait         `json:"wait,omitempty"`
		Java        *jsonJava         `json:"java,omitempty"`
		GIL         bool              `json:"gil,omitempty"`   // it has the lock of an interpreter of CPython
		Tasks       []string          `json:"tasks,omitempty"` // IDs of those of asyncio that are on it, the innermost first

		Trace      string            `json:"trace_id,omitempty"` // what it works on, as its program tells
		Span       string            `json:"span_id,omitempty"`
		Attributes map[string]string `json:"attributes,omitempty"`
	}

	// jsonParty is a thread of a deadlock: its TID, or the ID of a virtual one of Java.
	jsonParty struct {
		TID     int32 `json:"tid,omitempty"`
		Virtual int64 `json:"virtual_thread,omitempty"`
	}

	// jsonJava is what Java knows of a thread.
	jsonJava struct {
		ID    int64  `json:"id"`
		State string `json:"state"`
		jsonBlocker
	}

	// jsonBlocker is what a thread of Java waits for.
	jsonBlocker struct {
		Blocker  string `json:"blocker,omitempty"`   // its class
		Owner    int64  `json:"owner,omitempty"`     // ID of the thread of Java that has it,
		OwnerTID int32  `json:"owner_tid,omitempty"` // and its TID, unless it is a virtual one
		Joins    bool   `json:"joins,omitempty"`     // it is that thread itself
	}

	// jsonWait is a system call that a thread waits in.
	jsonWait struct {
		Call   string `json:"call"`
		On     string `json:"on,omitempty"`     // what it is about
		Holder int32  `json:"holder,omitempty"` // TID of the thread that holds the lock
	}

	// jsonGoroutines are goroutines without a thread that have the same stack,
	// state and creator; with --no-group one of them. Frames are those of the
	// first with that stack: SP, FP and where they were are of it alone.
	jsonGoroutines struct {
		IDs       []uint64      `json:"ids"`
		Parents   []uint64      `json:"parents"`    // that created them; 0 is not known
		WaitingNs []int64       `json:"waiting_ns"` // at least; 0 is not known
		State     string        `json:"state"`
		Locked    bool          `json:"locked"` // to a thread
		System    bool          `json:"system"` // of the runtime
		CreatedBy jsonCreatedBy `json:"created_by"`

		Labels   map[string]string `json:"labels,omitempty"` // that all of them have given themselves
		Complete bool              `json:"complete"`
		Reason   string            `json:"reason"`
		Frames   []jsonFrame       `json:"frames"`
	}

	// jsonVirtualThreads are virtual threads of Java without a thread that have the same stack and
	// state, and wait for the same; with --no-group one of them.
	jsonVirtualThreads struct {
		IDs   []uint64 `json:"ids"`
		Names []string `json:"names"`
		State string   `json:"state"`
		jsonBlocker
		Complete bool        `json:"complete"`
		Reason   string      `json:"reason"`
		Frames   []jsonFrame `json:"frames"`
	}

	// jsonTasks are tasks of asyncio that are not on a thread, with the same stack and state, that wait for the
	// same; with --no-group one of them. Kind is "task" or, of greenlets, "greenlet".
	jsonTasks struct {
		Kind     string      `json:"kind"`
		IDs      []string    `json:"ids"` // addresses of their objects
		Names    []string    `json:"names"`
		State    string      `json:"state"`
		Blocker  string      `json:"blocker,omitempty"`   // the class of what they wait for
		WaitsFor []string    `json:"waits_for,omitempty"` // IDs of all tasks that they wait for
		Sockets  []string    `json:"sockets,omitempty"`   // that each waits for
		Complete bool        `json:"complete"`
		Reason   string      `json:"reason"`
		Frames   []jsonFrame `json:"frames"`
	}

	// jsonCreatedBy is the place of a go statement; PC is where it returned to.
	jsonCreatedBy struct {
		PC       string `json:"pc"`
		Function string `json:"function"`
		File     string `json:"file"`
		Line     int    `json:"line"`
	}

	jsonFrame struct {
		Index        int          `json:"index"`
		PC           string       `json:"pc"`
		SP           string       `json:"sp"`
		FP           string       `json:"fp"`
		PCLocation   jsonLocation `json:"pc_location"`
		SPLocation   jsonLocation `json:"sp_location"`
		FPLocation   jsonLocation `json:"fp_location"`
		Function     string       `json:"function"`
		Offset       string       `json:"offset"`
		Module       string       `json:"module"`
		ModuleOffset string       `json:"module_offset"`
		BuildID      string       `json:"build_id"`
		File         string       `json:"file"`
		Line         int          `json:"line"`
		Inlined      bool         `json:"inlined"`
		Stepper      string       `json:"stepper"`
		NonCall      bool         `json:"non_call"`

		Variables *[]jsonVariable `json:"variables,omitempty"` // with --args or --locals
	}

	jsonLocation struct {
		Kind     string `json:"kind"`
		Register string `json:"register,omitempty"`
		Address  string `json:"address,omitempty"`
	}
)

// writeWalkJSON writes a process as one line. Frames may be very many: they are written
// one by one, where the others have room for them.
func writeWalkJSON(w io.Writer, p *processWalk) error {
	out := jsonProcess{PID: p.pid, Exe: p.exe, Command: p.command, Arch: p.arch.Name, StoppedNs: p.stopped.Nanoseconds(),
		WalkNs: p.took.Nanoseconds(), Threads: make([]jsonThread, 0, len(p.threads)),
		Resource: attributesMap(p.context.Resource)}
	for i := range p.threads {
		t := &p.threads[i]
		jt := jsonThread{TID: int32(t.tid), Name: t.name, State: t.state, Complete: t.complete(),
			Reason: t.reason(), GIL: t.hasGIL, Tasks: taskIDs(t.tasks)}
		if t.goroutine != nil {
			jt.Goroutine, jt.GoLabels = t.goroutine.ID, labelsMap(t.goroutine.Labels)
		}
		if t.virtual != nil {
			jt.Virtual, jt.VirtualName = t.virtual.ID, t.virtual.Name
		}
		if t.wait != nil {
			jt.Wait = &jsonWait{Call: t.wait.call, On: t.wait.on, Holder: int32(t.wait.holder)}
		}
		if t.java != nil {
			jt.Java = &jsonJava{t.java.ID, t.java.State, blockerOf(t.java)}
		}
		if t.work != nil {
			jt.Trace, jt.Span, jt.Attributes = t.work.Trace, t.work.Span, attributesMap(t.work.Attributes)
		}
		out.Threads = append(out.Threads, jt)
	}
	out.Deadlocks = p.jsonDeadlocks()
	p.jsonGoroutines(&out)
	p.jsonVirtual(&out)
	p.jsonTasks(&out)
	text, err := json.Marshal(&out)
	if err != nil {
		return err
	}
	const room = `"frames":` // which no string has: quotes in one are escaped
	for _, t := range p.jsonStacks() {
		at := bytes.Index(text, []byte(room+"null")) + len(room)
		if _, err := w.Write(text[:at]); err != nil {
			return err
		}
		if err := p.writeJSONFrames(w, t); err != nil {
			return err
		}
		text = text[at+len("null"):]
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// jsonStacks returns the stacks in the order of the JSON form.
func (p *processWalk) jsonStacks() (stacks []*stackWalk) {
	for i := range p.threads {
		stacks = append(stacks, &p.threads[i].stackWalk)
	}
	for _, g := range p.goroutines.groups {
		stacks = append(stacks, g.stackWalk)
	}
	for _, g := range p.virtual.groups {
		stacks = append(stacks, &g.stackWalk)
	}
	for _, g := range p.tasks.groups {
		stacks = append(stacks, &g.stackWalk)
	}
	return stacks
}

// writeJSONFrames writes the frames of a stack.
func (p *processWalk) writeJSONFrames(w io.Writer, t *stackWalk) error {
	text := []byte{'['}
	for j := range t.frames {
		jf := jsonFrameOf(p.arch, j, &t.frames[j])
		if p.variables {
			vars := jsonVariablesOf(&t.frames[j])
			jf.Variables = &vars
		}
		frame, err := json.Marshal(&jf)
		if err != nil {
			return err
		}
		if j > 0 {
			text = append(text, ',')
		}
		if _, err := w.Write(append(text, frame...)); err != nil {
			return err
		}
		text = text[:0]
	}
	_, err := w.Write(append(text, ']'))
	return err
}

func jsonFrameOf(a *procstate.Arch, index int, f *walkFrame) jsonFrame {
	fr := f.frame
	jf := jsonFrame{
		Index: index, PC: hex(fr.PC()), SP: hex(fr.SP()), FP: hex(fr.FP()),
		PCLocation: jsonLocationOf(a, fr.PCLocation), SPLocation: jsonLocationOf(a, fr.SPLocation),
		FPLocation: jsonLocationOf(a, fr.FPLocation),
		Function:   f.function, Offset: hex(f.offset), Module: f.module, ModuleOffset: hex(f.moduleOff),
		BuildID: f.buildID, File: f.file, Line: f.line, Inlined: f.inlined,
		Stepper: f.stepper, NonCall: fr.NonCall(),
	}
	return jf
}

func jsonLocationOf(a *procstate.Arch, l unwind.Location) jsonLocation {
	switch l.Kind {
	case unwind.LocationRegister:
		return jsonLocation{Kind: "register", Register: a.RegName(l.Reg)}
	case unwind.LocationAddress:
		return jsonLocation{Kind: "address", Address: hex(l.Addr)}
	}
	return jsonLocation{Kind: "unknown"}
}

func hex(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }
