package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// party is a thread that waits or is waited for: one of the system's, or a virtual one of Java.
type party struct {
	tid     procstate.ThreadID
	virtual int64
}

// A deadlock are threads each of which waits for what the next one has, and the last for what the first one has.
// None of them gives up by itself.
type deadlock []party

// findDeadlocks finds the deadlocks of a process. reader, which may be nil, looks at system calls once more.
func (p *processWalk) findDeadlocks(reader *waitReader) {
	next := make(map[party]party)
	var order []party
	add := func(from, to party) {
		next[from] = to
		order = append(order, from)
	}
	for i := range p.threads {
		t := &p.threads[i]
		from := party{tid: t.tid}
		to, ok := t.waitsFor()
		if !ok {
			continue
		}
		add(from, to)
		if t.virtual != nil {
			add(party{virtual: t.virtual.ID}, to)
		}
	}
	for _, g := range p.virtual.groups {
		if to, ok := javaOwner(&g.first.Thread); ok {
			for _, id := range g.ids {
				add(party{virtual: int64(id)}, to)
			}
		}
	}
	p.deadlocks = nil
	begun := make(map[party]party) // by where the search came from
	for _, first := range order {
		at := first
		for {
			if _, ok := begun[at]; ok {
				break
			}
			begun[at] = first
			to, ok := next[at]
			if !ok {
				break
			}
			at = to
		}
		if _, ok := next[at]; ok && begun[at] == first {
			d := deadlock{at}
			for to := next[at]; to != at; to = next[to] {
				d = append(d, to)
			}
			if p.isSure(d, reader) {
				p.deadlocks = append(p.deadlocks, d)
			}
		}
	}
}

// waitsFor returns for which other thread one waits, if it does so until that goes on.
func (t *threadWalk) waitsFor() (party, bool) {
	if to, ok := javaWaits(t); ok {
		return to, true
	}
	if w := t.wait; w != nil && !w.ends() {
		switch {
		case w.holder != 0:
			return party{tid: w.holder}, true
		case w.ending != 0:
			return party{tid: w.ending}, true
		case w.ownLock:
			return party{tid: t.tid}, true
		}
	}
	return party{}, false
}

// isSure reports whether the threads of a deadlock were in it at one moment. What Java says is of when all stood still.
// What system calls are about was read one after the other: that is done again, in a time in which none of them runs,
// but for those that wait for the lock of an interpreter, which look again and again whether they have it.
func (p *processWalk) isSure(d deadlock, reader *waitReader) bool {
	var inCalls []*threadWalk
	for _, one := range d {
		i := slices.IndexFunc(p.threads, func(t threadWalk) bool { return one.tid != 0 && t.tid == one.tid })
		if i < 0 {
			continue
		}
		t := &p.threads[i]
		if _, ok := javaWaits(t); !ok {
			inCalls = append(inCalls, t)
		}
	}
	if len(inCalls) == 0 || reader == nil {
		return true
	}
	still := slices.DeleteFunc(slices.Clone(inCalls), func(t *threadWalk) bool { return t.wait.isGIL })
	before := p.switches(still)
	waits := readWaits(p.pid)
	for _, t := range inCalls {
		w := waits[t.tid]
		if !w.isOf(t) || !reader.describe(t, w) || w.holder != t.wait.holder || w.ending != t.wait.ending || w.ownLock != t.wait.ownLock {
			return false
		}
		if w.isGIL && !reader.hasGILNow(w.holder, w.args[0]) {
			return false
		}
	}
	if before == nil || !bytes.Equal(before, p.switches(still)) {
		return false
	}
	for _, t := range inCalls {
		if t.wait.ownLock {
			t.wait.holder, t.wait.on = t.tid, "lock of its own"
		}
	}
	return true
}

// switches tells how often threads have been switched to and from; nil where that is not known.
func (p *processWalk) switches(threads []*threadWalk) []byte {
	var all []byte
	for _, t := range threads {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", p.pid, t.tid))
		at := bytes.Index(status, []byte("voluntary_ctxt_switches"))
		if err != nil || at < 0 {
			return nil
		}
		all = append(all, status[at:]...)
	}
	return all
}

// writeDeadlocks writes the deadlocks of a process for people.
func (p *processWalk) writeDeadlocks(w io.Writer) {
	for _, d := range p.deadlocks {
		if len(d) == 1 {
			fmt.Fprintf(w, "\ndeadlock of a thread with itself:\n")
		} else {
			fmt.Fprintf(w, "\ndeadlock of %d threads:\n", len(d))
		}
		for _, one := range d {
			fmt.Fprintf(w, "  %s\n", p.partyText(one))
		}
	}
}

// partyText is a thread with what it waits for.
func (p *processWalk) partyText(one party) string {
	for i := range p.threads {
		if t := &p.threads[i]; one.tid != 0 && t.tid == one.tid || t.virtual != nil && t.virtual.ID == one.virtual {
			s := fmt.Sprintf("thread %d %q", t.tid, t.name)
			if t.virtual != nil {
				s += ", " + virtualText(t.virtual.ID, t.virtual.Name)
			}
			if _, ok := javaWaits(t); ok {
				return s + " [" + printable(javaWait(t.java)) + "]"
			}
			return s + " in " + printable(t.wait.String())
		}
	}
	for _, g := range p.virtual.groups {
		if i := slices.Index(g.ids, uint64(one.virtual)); i >= 0 {
			return virtualText(one.virtual, g.names[i]) + " [" + printable(javaWait(&g.first.Thread)) + "]"
		}
	}
	return fmt.Sprint(one.tid)
}

// jsonDeadlocks are the deadlocks in JSON.
func (p *processWalk) jsonDeadlocks() (all [][]jsonParty) {
	for _, d := range p.deadlocks {
		var parties []jsonParty
		for _, one := range d {
			parties = append(parties, jsonParty{int32(one.tid), one.virtual})
		}
		all = append(all, parties)
	}
	return all
}
