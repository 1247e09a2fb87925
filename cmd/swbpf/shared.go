package main

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
)

// sharedContext is what a process tells of itself, and of what its threads work on, to profilers:
// OpenTelemetry's process context and thread context.
type sharedContext struct {
	looks int    // that were made for it
	next  uint64 // when the next one is, CLOCK_MONOTONIC ns

	told    bool   // the kernel side was told where threads have theirs
	lacks   bool   // a thread's has an attribute without a name
	at      uint64 // of the process's; 0: not known
	process procstate.ProcessContext

	id     uint32          // of that, as it is now, among those of all processes; 0: nothing is known
	labels []profile.Label // of the process
}

// When looks are, after the first sample, in ns; the last two repeat the pause between them. In the mappings of
// processes that have no variable for their threads the process's own is looked for just at some.
var sharedLooks = [...]uint64{0, 50e6, 250e6, 600e6, 1250e6, 5e9, 10e9}

const maxMapsLook = 6

// learnShared looks for what the process of a sample shares, and has the kernel side copy what its threads work on with
// later samples.
func (p *pipeline) learnShared(wp *walkedProcess, s *loader.Sample) {
	c := wp.shared
	if s.Time < c.next {
		return
	}
	n := min(c.looks+1, len(sharedLooks)-1)
	c.looks++
	c.next = s.Time + sharedLooks[n] - sharedLooks[n-1]
	if !c.told {
		if place, ok := procstate.ThreadContextPlaceOf(wp.snapshot); ok {
			c.told = p.kernel.SetThreadContext(int(s.PID), &place) == nil
		}
		p.noteShares(s.PID, c.told)
	}
	if c.at == 0 && !c.told && (c.looks < 3 || c.looks > maxMapsLook) {
		return
	}
	p.readShared(c, int(s.PID))
}

// noteShares notes whether the threads of a process tell what they work on. Where those of another program under its number did, the
// kernel side forgets it.
func (p *pipeline) noteShares(pid int32, do bool) {
	if !do {
		if p.sharers[pid] {
			delete(p.sharers, pid)
			p.kernel.SetThreadContext(int(pid), nil)
		}
		return
	}
	if len(p.sharers) >= p.forgetSharers {
		maps.DeleteFunc(p.sharers, func(pid int32, _ bool) bool { return hasEnded(pid, pid) })
		p.forgetSharers = max(maxEnded, 2*len(p.sharers))
	}
	p.sharers[pid] = true
}

// readShared reads what the process tells of itself, if that is new.
func (p *pipeline) readShared(c *sharedContext, pid int) {
	if c.at == 0 {
		entries, err := procstate.ReadMaps(fmt.Sprintf("/proc/%d/maps", pid), false)
		if err != nil {
			return
		}
		if c.at = procstate.FindProcessContext(entries); c.at == 0 {
			return
		}
	}
	now, ok := procstate.ReadProcessContext(func(addr uint64, buf []byte) int { return procstate.ReadProcess(pid, addr, buf) }, c.at)
	if !ok {
		c.at = 0
		return
	}
	if now.Published == c.process.Published {
		return
	}
	c.process, c.lacks = now, false
	c.labels = c.labels[:0]
	for _, a := range now.Resource {
		if profile.IsServiceAttribute(a.Key) && a.Value != "" {
			c.labels = append(c.labels, profile.Label(a))
		}
	}
	p.labels.processes++
	c.id = p.labels.processes
}

// sharedBy returns what the process of a sample shares, nil when nothing is known of it.
func (p *pipeline) sharedBy(s *loader.Sample) *sharedContext {
	proc := p.procs.Process(s.PID)
	if proc == nil {
		return nil
	}
	if wp, ok := proc.Data.(*walkedProcess); ok {
		return wp.shared
	}
	return nil
}

// appendContext appends the labels that a record of a thread's makes, with those of its trace or without.
func (c *sharedContext) appendContext(labels []profile.Label, record []byte, withTrace bool) []profile.Label {
	t, ok := procstate.ParseThreadContext(record)
	if !ok {
		return labels
	}
	if withTrace && t.HasTrace() {
		labels = append(labels, profile.Label{Key: profile.TraceLabel, Value: fmt.Sprintf("%x", t.TraceID)},
			profile.Label{Key: profile.SpanLabel, Value: fmt.Sprintf("%x", t.SpanID)})
	}
	for key, value := range t.Attributes() {
		switch {
		case int(key) >= len(c.process.ThreadKeys):
			c.lack()
		case len(value) > 0:
			labels = append(labels, profile.Label{Key: c.process.ThreadKeys[key], Value: string(value)})
		}
	}
	return labels
}

// lack has the process asked again soon for the names of attributes.
func (c *sharedContext) lack() {
	if !c.lacks {
		c.lacks, c.next = true, 0
	}
}

// appendKeyOf appends what tells the labels of a thread's record from others.
func (c *sharedContext) appendKeyOf(key []byte, record []byte, withTrace bool) []byte {
	t, ok := procstate.ParseThreadContext(record)
	if !ok {
		return key
	}
	if withTrace && t.HasTrace() {
		key = append(append(key, t.TraceID[:]...), t.SpanID[:]...)
	}
	for k, value := range t.Attributes() {
		key = append(strconv.AppendUint(key, uint64(k), 10), ':')
		key = append(append(key, value...), 0)
	}
	return key
}
