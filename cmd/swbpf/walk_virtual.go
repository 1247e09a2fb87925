package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	stackwalk "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/unwind"
)

// virtualWalks are the virtual threads of a process in Java that are on no thread.
type virtualWalks struct {
	total     int // with those on threads
	groups    []*virtualGroup
	unread    int   // could not be read
	cut       bool  // there are more
	err       error // why none are known
	late      int   // were not walked in time
	untracked bool
}

// virtualGroup are virtual threads with the same stack and state, that wait for the same.
type virtualGroup struct {
	stackWalk
	first hotspot.VirtualThread
	ids   []uint64
	names []string
}

// wantsVirtual tells whether virtual threads are to be read.
func (o *walkOptions) wantsVirtual() bool { return o.virtual != "no" && len(o.tids) == 0 }

// takeVirtual takes over the virtual threads of a process: it tells threads which is on them, and walks the others
// until ctx is done.
func (p *processWalk) takeVirtual(ctx context.Context, w *unwind.Walker, vs *hotspot.VirtualThreads, o *walkOptions) {
	out := &p.virtual
	out.total, out.unread, out.cut, out.untracked, out.err = len(vs.List), vs.Unread, vs.Cut, vs.Untracked, vs.Err
	threads := make(map[procstate.ThreadID]*threadWalk, len(p.threads))
	for i := range p.threads {
		threads[p.threads[i].tid] = &p.threads[i]
	}
	slices.SortFunc(vs.List, func(a, b hotspot.VirtualThread) int { return cmp.Compare(a.ID, b.ID) })
	index := make(map[string]*virtualGroup)
	keys := virtualKeys{functions: make(map[*unwind.CodeFunction]uint32)}
	var frames []unwind.Frame
	for i := range vs.List {
		v := &vs.List[i]
		if t := threads[v.Carrier]; t != nil {
			t.virtual = v
			continue
		}
		if ctx.Err() != nil {
			out.late++
			continue
		}
		w.MaxFrames = p.frames.Limit()
		var err error
		frames, err = stackwalk.WalkVirtualThread(w, frames[:0], v)
		key := keys.of(w, v, frames, err)
		g := index[string(key)]
		if g == nil || o.noGroup {
			g = &virtualGroup{first: *v, stackWalk: stackWalk{walker: w, stack: slices.Clone(frames), err: err}}
			p.frames.Keep(len(frames))
			index[string(key)] = g
			out.groups = append(out.groups, g)
		}
		g.ids = append(g.ids, uint64(v.ID))
		g.names = append(g.names, v.Name)
	}
	slices.SortStableFunc(out.groups, func(a, b *virtualGroup) int { return cmp.Compare(len(b.ids), len(a.ids)) })
}

// virtualKeys tells which virtual threads are of a group: those that run the same lines of the same methods, compiled or
// not, and wait for the same.
type virtualKeys struct {
	key       []byte
	functions map[*unwind.CodeFunction]uint32
}

// of returns what the virtual threads of a group have in common, until it is called again.
func (k *virtualKeys) of(w *unwind.Walker, v *hotspot.VirtualThread, frames []unwind.Frame, err error) []byte {
	name := replaceNumbers(v.Name, func(string) string { return "0" })
	k.key = fmt.Appendf(k.key[:0], "%s\x00%s\x00%s\x00%d\x00%v\x00", name, v.State, v.Blocker, v.Owner, err)
	number := func(f *unwind.CodeFunction) uint32 {
		n, ok := k.functions[f]
		if !ok {
			n = uint32(len(k.functions))
			k.functions[f] = n
		}
		return n
	}
	for i := range frames {
		lines := w.Codes().Lines(frames[i].Code)
		for _, l := range lines {
			k.key = binary.LittleEndian.AppendUint32(k.key, number(l.CodeFunction))
			k.key = binary.LittleEndian.AppendUint32(k.key, uint32(l.Line))
		}
		if len(lines) == 0 {
			k.key = binary.LittleEndian.AppendUint64(k.key, frames[i].PC())
		}
	}
	return k.key
}

// writeVirtual writes the virtual threads of a process for people.
func (p *processWalk) writeVirtual(w io.Writer) {
	vs := &p.virtual
	for _, g := range vs.groups {
		fmt.Fprintf(w, "\n%s\n", g.head())
		p.writeStack(w, &g.stackWalk)
	}
	if vs.late > 0 {
		fmt.Fprintf(w, "\n%s not walked in time, see --stop-limit\n", plural(vs.late, "virtual thread"))
	}
	if vs.unread > 0 {
		fmt.Fprintf(w, "\n%s could not be read\n", plural(vs.unread, "virtual thread"))
	}
	if vs.cut {
		fmt.Fprintf(w, "\nthere are more virtual threads: they were too many, or took too long\n")
	}
	if vs.err != nil {
		fmt.Fprintf(w, "\nvirtual threads are not known: %v\n", vs.err)
	}
	if vs.untracked {
		fmt.Fprintf(w, "\nonly virtual threads of executors are known: Java was told to keep no list of others (jdk.trackAllThreads)\n")
	}
}

// head is the line above a stack: `3 virtual threads 25-27 "worker-*" [parked]: complete`.
func (g *virtualGroup) head() string {
	name := commonName(g.names)
	s := virtualText(g.first.ID, name)
	if n := len(g.ids); n > 1 {
		s = fmt.Sprintf("%d virtual threads %s", n, ranges(slices.Clone(g.ids)))
		if name != "" {
			s += fmt.Sprintf(" %q", name)
		}
	}
	return s + " [" + printable(cmp.Or(javaWait(&g.first.Thread), "unknown")) + "]: " + g.outcome()
}

// virtualText names a virtual thread: `virtual thread 25 "worker-1"`.
func virtualText(id int64, name string) string {
	if name == "" {
		return fmt.Sprintf("virtual thread %d", id)
	}
	return fmt.Sprintf("virtual thread %d %q", id, name)
}

// jsonVirtual adds the virtual threads to the JSON form.
func (p *processWalk) jsonVirtual(out *jsonProcess) {
	out.VirtualUnread, out.VirtualCut = p.virtual.unread+p.virtual.late, p.virtual.cut
	if p.virtual.err != nil {
		out.VirtualError = p.virtual.err.Error()
	}
	for _, g := range p.virtual.groups {
		out.VirtualThreads = append(out.VirtualThreads, jsonVirtualThreads{IDs: g.ids, Names: g.names, State: g.first.State,
			jsonBlocker: blockerOf(&g.first.Thread), Complete: g.complete(), Reason: g.reason()})
	}
}
