package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	stackwalk "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// goroutineWalks are the goroutines of a process in Go that are on no thread.
type goroutineWalks struct {
	total  int // with those on threads
	groups []*goroutineGroup
	stacks []*stackWalk // of the groups, each once
	unread int          // could not be read
	late   int          // were not walked in time
	err    error        // why none are known; nil also when the process is not in Go
	all    bool         // those of the runtime are shown, too
}

// goroutineGroup are goroutines with the same stack, state and creator; when each
// is to be shown by itself, several such groups may have one stack.
type goroutineGroup struct {
	*stackWalk
	first   procstate.Goroutine
	created *nameAt // of the go statement
	ids     []uint64
	parents []uint64
	waiting []time.Duration     // at least; 0 is not known
	labels  []procstate.GoLabel // that all of them have
}

// wantsGoroutines tells whether goroutines are to be read.
func (o *walkOptions) wantsGoroutines() bool { return o.goes != "no" && len(o.tids) == 0 }

// takeGoroutines takes over the goroutines of a process: it tells threads which
// is on them, and walks the others until ctx is done. They are grouped as they
// are walked, since there may be very many.
func (p *processWalk) takeGoroutines(ctx context.Context, w *unwind.Walker, gs *procstate.Goroutines, err error, o *walkOptions) {
	if err != nil || w == nil {
		if !errors.Is(err, procstate.ErrNoPclntab) {
			p.goroutines.err = err
		}
		return
	}
	out := &p.goroutines
	out.total, out.unread, out.all = len(gs.List), gs.Unread, o.goes == "all"
	now := int64(0)
	if ahead, ok := procstate.ClockOffset(p.pid); p.live && ok {
		now = int64(procstate.Monotonic()) + ahead
	}
	threads := make(map[procstate.ThreadID]*threadWalk, len(p.threads))
	for i := range p.threads {
		threads[p.threads[i].tid] = &p.threads[i]
	}
	index := make(map[string]*goroutineGroup)
	var frames []unwind.Frame
	var key []byte
	for i := range gs.List {
		g := gs.List[i]
		if t := threads[g.Thread]; t != nil {
			if t.goroutine = &gs.List[i]; !t.beside(&g) {
				continue
			}
			t.goroutine, g.Thread, g.Status = nil, 0, procstate.GoRunnable
		}
		if ctx.Err() != nil {
			out.late++
			continue
		}
		w.MaxFrames = p.frames.Limit()
		frames, err = stackwalk.WalkGoroutine(w, frames[:0], &g)
		key = goroutineKey(key[:0], &g, frames, err)
		group := index[string(key)]
		if group == nil || o.noGroup {
			var stack *stackWalk
			if group != nil && !o.args && !o.locals { // whose values differ
				stack = group.stackWalk
			} else {
				stack = &stackWalk{walker: w, stack: slices.Clone(frames), err: err}
				out.stacks = append(out.stacks, stack)
				p.frames.Keep(len(frames))
			}
			group = &goroutineGroup{first: g, stackWalk: stack, labels: g.Labels}
			index[string(key)] = group
			out.groups = append(out.groups, group)
		}
		waiting := time.Duration(0)
		if g.WaitSince > 0 && now > g.WaitSince {
			waiting = time.Duration(now - g.WaitSince)
		}
		group.labels = commonLabels(group.labels, g.Labels)
		group.ids = append(group.ids, g.ID)
		group.parents = append(group.parents, g.Parent)
		group.waiting = append(group.waiting, waiting)
	}
	slices.SortStableFunc(out.groups, func(a, b *goroutineGroup) int {
		if a.first.System != b.first.System {
			return boolInt(a.first.System) - boolInt(b.first.System)
		}
		return cmp.Compare(len(b.ids), len(a.ids))
	})
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// beside reports whether a thread that has a goroutine is about to run it, but
// is in the scheduler still: its stack has no frame of it.
func (t *threadWalk) beside(g *procstate.Goroutine) bool {
	if !t.complete() || g.Status != procstate.GoRunning {
		return false
	}
	return !slices.ContainsFunc(t.stack, func(f unwind.Frame) bool { return f.SP() > g.StackLo && f.SP() <= g.StackHi })
}

// goroutineKey appends what goroutines of a group have in common.
func goroutineKey(key []byte, g *procstate.Goroutine, frames []unwind.Frame, err error) []byte {
	key = append(append(key, g.State()...), 0)
	if err != nil {
		key = append(key, err.Error()...)
	}
	key = append(key, 0, byte(boolInt(g.Locked)))
	key = binary.LittleEndian.AppendUint64(key, g.CreatedPC)
	for i := range frames {
		key = binary.LittleEndian.AppendUint64(key, frames[i].PC())
		key = append(key, byte(frames[i].Flags))
	}
	return key
}

// writeGoroutines writes the goroutines of a process for people.
func (p *processWalk) writeGoroutines(w io.Writer) {
	gs := &p.goroutines
	var system []uint64
	for _, g := range gs.groups {
		if g.first.System && !gs.all {
			system = append(system, g.ids...)
			continue
		}
		fmt.Fprintf(w, "\n%s\n", g.head())
		p.writeStack(w, g.stackWalk)
		if g.first.CreatedPC != 0 && g.first.ID != 1 {
			fmt.Fprintf(w, "  created by %s\n", printable(g.creator()))
		}
	}
	if n := len(system); n > 0 {
		fmt.Fprintf(w, "\n%s of the runtime %s, see --goroutines=all\n", plural(n, "goroutine"), ranges(system))
	}
	if gs.late > 0 {
		fmt.Fprintf(w, "\n%s not walked in time, see --stop-limit\n", plural(gs.late, "goroutine"))
	}
	if gs.unread > 0 {
		fmt.Fprintf(w, "\n%s could not be read\n", plural(gs.unread, "goroutine"))
	}
	if gs.err != nil {
		fmt.Fprintf(w, "\ngoroutines are not known: %s\n", printable(gs.err.Error()))
	}
}

// head is the line above a stack: `3 goroutines 12-14 [select, 2m3s]: complete`.
func (g *goroutineGroup) head() string {
	s := fmt.Sprintf("goroutine %d", g.ids[0])
	if n := len(g.ids); n > 1 {
		s = fmt.Sprintf("%d goroutines %s", n, ranges(slices.Clone(g.ids)))
	}
	return s + " [" + g.state() + "]" + labelsText(g.labels) + ": " + g.outcome()
}

// commonLabels returns the labels that are in both.
func commonLabels(a, b []procstate.GoLabel) []procstate.GoLabel {
	if slices.Equal(a, b) {
		return a
	}
	return slices.DeleteFunc(slices.Clone(a), func(l procstate.GoLabel) bool { return !slices.Contains(b, l) })
}

// labelsText shows labels as Go's own tracebacks do: ` {"endpoint": "/buy"}`.
func labelsText(labels []procstate.GoLabel) string {
	if len(labels) == 0 {
		return ""
	}
	var parts []string
	for _, l := range labels {
		parts = append(parts, strconv.Quote(l.Key)+": "+strconv.Quote(l.Value))
	}
	return " {" + strings.Join(parts, ", ") + "}"
}

// labelsMap is for JSON.
func labelsMap(labels []procstate.GoLabel) map[string]string {
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[l.Key] = l.Value
	}
	return m
}

// state is what Go's own tracebacks have in brackets.
func (g *goroutineGroup) state() string {
	s := printable(g.first.State())
	least, most := slices.Min(g.waiting).Round(time.Second), slices.Max(g.waiting).Round(time.Second)
	switch {
	case most == 0:
	case least == most:
		s += fmt.Sprintf(", %s", most)
	case least == 0:
		s += fmt.Sprintf(", up to %s", most)
	default:
		s += fmt.Sprintf(", %s to %s", least, most)
	}
	if g.first.Locked {
		s += ", locked to thread"
	}
	return s
}

// creator tells where the goroutines were created, and by which when that was one.
func (g *goroutineGroup) creator() string {
	line := (&walkFrame{module: g.created.module, moduleOff: g.first.CreatedPC - g.created.bias}).label()
	if len(g.created.lines) > 0 {
		l := &g.created.lines[0]
		line = l.Function + "+" + hex(g.first.CreatedPC-l.FunctionStart)
	}
	if parent := g.parents[0]; parent != 0 && !slices.ContainsFunc(g.parents, func(p uint64) bool { return p != parent }) {
		line += fmt.Sprintf(" in goroutine %d", parent)
	}
	if g.created.module != "" {
		line += "  " + filepath.Base(g.created.module)
	}
	if len(g.created.lines) > 0 && g.created.lines[0].File != "" {
		line += "  " + g.created.lines[0].File
		if n := g.created.lines[0].Line; n > 0 {
			line += ":" + strconv.Itoa(n)
		}
	}
	return line
}

// jsonGoroutines adds the goroutines to the JSON form.
func (p *processWalk) jsonGoroutines(out *jsonProcess) {
	out.GoroutinesUnread = p.goroutines.unread + p.goroutines.late
	if p.goroutines.err != nil {
		out.GoroutinesError = p.goroutines.err.Error()
	}
	for _, g := range p.goroutines.groups {
		j := jsonGoroutines{IDs: g.ids, Parents: g.parents, State: g.first.State(), Locked: g.first.Locked, System: g.first.System,
			CreatedBy: jsonCreatedBy{PC: hex(g.first.CreatedPC)}, Complete: g.complete(), Reason: g.reason(), Labels: labelsMap(g.labels)}
		for _, d := range g.waiting {
			j.WaitingNs = append(j.WaitingNs, d.Nanoseconds())
		}
		if g.created != nil && len(g.created.lines) > 0 {
			l := &g.created.lines[0]
			j.CreatedBy.Function, j.CreatedBy.File, j.CreatedBy.Line = l.Function, l.File, l.Line
		}
		out.Goroutines = append(out.Goroutines, j)
	}
}
