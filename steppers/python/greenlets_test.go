package python

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// greenletMemory is the memory of a process with one list of objects, and where what is in it.
func greenletMemory(version uint32) (m *memory, ts *Tasks) {
	const base, derived, names, list = 0x400, 0x600, 0x780, 0x800
	m = newMemory(version)
	ts = &Tasks{objectReader: objectReader{m.vm, map[uint64]*class{}}, runtime: m.base + list, hasGreenlets: true, found: true}
	copy(m.b[names:], "greenlet.greenlet\x00")
	copy(m.b[names+0x20:], "gevent.Greenlet\x00")
	for i, at := range []int{base, derived} { // PyTypeObject: its name, the size of an object, and what it is derived from
		m.put(at+24, m.base+names+uint64(i)*0x20)
		m.put(at+32, greenletBytes)
	}
	m.put(derived+256, m.base+base)
	objects := []struct {
		class             int
		self              bool // the object of C++ has it, since 3.0
		begin, end, frame uint64
	}{
		{base, true, 1, ^uint64(0), data + 0x200},   // main
		{derived, true, 0x100, 0x200, data + 0x200}, // suspended
		{derived, false, 0x100, 0x200, 0},           // suspended, in C
		{derived, true, 0, 0, 0},                    // not begun
		{derived, true, 0, 0x200, 0},                // done
		{derived, true, 0x100, 0x200, 0},            // running
		{names, true, 0x100, 0x200, 0},              // no greenlet
	}
	const first, each, impl = 0x900, 0x40, 0xb00
	before := list + 4 // as with 3.13
	for i, o := range objects {
		node := first + i*each
		object, cpp := node+trackedHead, impl+i*0x90
		m.put(before, m.base+uint64(node)|1)
		m.put(node+8, m.base+uint64(before)|2)
		m.put(object+int(m.vm.fields.typeOf()), m.base+uint64(o.class))
		m.put(object+greenletImpl, m.base+uint64(cpp))
		at := cpp + 48
		if o.self {
			m.put(cpp+8, m.base+uint64(object))
			at += 8
		}
		m.put(at, o.begin)
		m.put(at+8, o.end)
		if o.frame != 0 {
			m.put(at+48, m.base+o.frame)
		}
		before = node
	}
	m.put(before, m.base+list+4)
	m.put(list+4+8, m.base+uint64(before))
	m.put(data+0x200+24, m.base+data) // the frame object of inner, which middle has called, and outer that
	for _, at := range []int{data, data + 0x80} {
		m.put(at+int(m.vm.fields.previous), m.base+uint64(at)+0x80)
	}
	m.put(data+0x100+int(m.vm.fields.previous), 0)
	const thread = 0xff0 // what is kept of it: the main greenlet, and that which runs
	m.put(impl+0x80, m.base+thread)
	m.put(thread, m.base+first+trackedHead)
	m.put(thread+8, m.base+first+5*each+trackedHead)
	return m, ts
}

// Greenlets that neither run nor are done are found among all objects, with what they run.
func TestGreenlets(t *testing.T) {
	for version, f := range versions {
		if f.isObject {
			continue
		}
		for _, rehearsed := range []bool{false, true} {
			m, ts := greenletMemory(version)
			if rehearsed {
				ts.findGreenlets(m.Memory)
			}
			list := ts.Read(m.Memory)
			type told struct {
				name  string
				state TaskState
				calls []string
			}
			want := []told{{"main", TaskSuspended, []string{"inner", "middle", "outer"}}, {"Greenlet", TaskSuspended, []string{"inner", "middle", "outer"}},
				{"Greenlet", TaskSuspended, nil}, {"Greenlet", TaskCreated, nil}}
			var got []told
			for _, task := range list.List {
				g := told{task.Name, task.State, nil}
				for _, l := range task.Stack {
					g.calls = append(g.calls, l.Name)
				}
				got = append(got, g)
				if task.Err != nil || !task.IsGreenlet {
					t.Errorf("%x: %+v", version, task)
				}
			}
			isSame := func(a, b told) bool {
				return a.name == b.name && a.state == b.state && slices.Equal(a.calls, b.calls)
			}
			if !slices.EqualFunc(got, want, isSame) || list.Cut || list.Unread != 0 {
				t.Errorf("%x, rehearsed %v: %+v, cut %v; want %+v", version, rehearsed, got, list.Cut, want)
			}
		}
	}
}

// A list that leads elsewhere, or in a circle, is left, and it is said that there may be more.
func TestGreenletsBroken(t *testing.T) {
	for _, to := range []uint64{0, 0x940, 1 << 40} {
		m, ts := greenletMemory(0x030d)
		ts.vm.Mem = m.Memory
		ts.findGreenlets(m.Memory)
		for i := range ts.greenlets.lists {
			ts.greenlets.lists[i].known = false
		}
		if to != 0 {
			to += m.base
		}
		m.put(0x940+8, to)
		if list := ts.Read(m.Memory); !list.Cut || len(list.List) == 0 {
			t.Errorf("%#x: %d greenlets, cut %v", to, len(list.List), list.Cut)
		}
	}
}

// What Python says of its greenlets, where it has them, is what is read of them.
func TestGreenletsOfPython(t *testing.T) {
	const script = `
import json, os, time
try: from greenlet import greenlet, getcurrent
except ImportError: print("null", flush=True); raise SystemExit
main = getcurrent()
def wait(): return main.switch()
def generate(): yield wait()
def deep(n): return deep(n - 1) if n else wait()
all = [greenlet(f) for f in (lambda: sorted([1, 2], key=lambda v: wait()), lambda: list(generate()), lambda: deep(5))]
for g in all: g.switch()
all.append(greenlet(wait))
greenlet(lambda: None).switch()
def calls(f): return [] if f is None else [[f.f_code.co_name, f.f_lineno]] + calls(f.f_back)
print(json.dumps([[id(g), calls(g.gr_frame)] for g in all]), flush=True)
time.sleep(1000)
`
	steptest.NeedPtrace(t)
	tested := 0
	testenv.EachPython(t, func(t *testing.T, python testenv.Program) {
		command := python.Command("-c", script)
		cmd := exec.Command(command[0], command[1:]...)
		_, out := testenv.Start(t, cmd)
		var told [][2]json.RawMessage
		if err := json.NewDecoder(out).Decode(&told); err != nil {
			t.Fatal(err)
		}
		if told == nil {
			t.Skip("it has no greenlets")
		}
		tested++
		ts := NewTasks(procstate.SpaceOfProcess(cmd.Process.Pid))
		ts.Rehearse(procstate.ProcessMemory(cmd.Process.Pid))
		list := ts.Read(procstate.ProcessMemory(cmd.Process.Pid))
		if len(list.List) != len(told) || list.Cut {
			t.Errorf("%d greenlets, cut %v; want %d", len(list.List), list.Cut, len(told))
		}
		for _, g := range told {
			i := slices.IndexFunc(list.List, func(task Task) bool { return strconv.FormatUint(task.Addr, 10) == string(g[0]) })
			if i < 0 {
				t.Errorf("no greenlet %s", g[0])
				continue
			}
			calls := [][2]any{}
			for _, l := range list.List[i].Stack {
				calls = append(calls, [2]any{l.Name[1+strings.LastIndexByte(l.Name, '.'):], l.Line})
			}
			got, _ := json.Marshal(calls)
			var want [][2]any
			_ = json.Unmarshal(g[1], &want)
			if is, _ := json.Marshal(want); string(is) != string(got) {
				t.Errorf("it runs %s, want %s", got, is)
			}
		}
	})
	if tested == 0 {
		testenv.Lacks(t, "no Python here has greenlets")
	}
}
