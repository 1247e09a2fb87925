package procstate

import (
	"bytes"
	"fmt"
	"os"
)

// ThreadWork is what a thread works on, as its program tells profilers: see ThreadContextSymbol.
type ThreadWork struct {
	Trace, Span string             // in hexadecimal digits; "" where it works on none
	Attributes  []ContextAttribute // by the names that the process has for them
}

// Contexts reads what the threads of a process work on. A nil one is of a process that tells nothing.
type Contexts struct {
	Process ProcessContext // what the process tells of itself

	arch  *Arch
	place ThreadContextPlace
	has   bool // threads tell what they work on
}

// ContextsOf returns what reads them of p, nil where its program tells nothing.
func ContextsOf(p ProcessState) *Contexts {
	c := &Contexts{arch: p.Arch()}
	if libs := p.Libraries(); libs != nil {
		_ = libs.Update() // else what was known before will do
	}
	at := uint64(0)
	if core, ok := p.(*Core); ok {
		at = core.processContext()
	} else if entries, err := ReadMaps(fmt.Sprintf("/proc/%d/maps", readableTask(p.PID())), false); err == nil {
		at = FindProcessContext(entries)
	}
	return c.of(p, at, func(addr uint64, buf []byte) int {
		if live, ok := p.(LiveMemory); ok {
			return live.ReadLive(addr, buf)
		}
		return ReadPart(p, addr, buf)
	})
}

// ContextsOfProcess is ContextsOf a process that runs. space is what it has mapped, as SpaceOfProcess has read it.
func ContextsOfProcess(pid int, space *AddressSpace) *Contexts {
	task, at := readableTask(pid), uint64(0)
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", task))
	arch := archOfProgram(pid)
	if err != nil || arch == nil || space == nil {
		return nil
	}
	for line := range bytes.Lines(space.text) {
		if bytes.Contains(line, []byte(contextSignature)) {
			if e, err := ParseMapsLine(bytes.TrimSuffix(line, []byte{'\n'})); err == nil && isProcessContext(e.Path) {
				at = e.Start
				break
			}
		}
	}
	p := NewSnapshot(arch, pid, exe, space)
	live := NewLiveCode(pid, exe)
	p.SetLiveCode(live)
	defer live.close()
	c := &Contexts{arch: arch}
	return c.of(p, at, live.read)
}

func (c *Contexts) of(p ProcessState, at uint64, read func(addr uint64, buf []byte) int) *Contexts {
	found := false
	if at != 0 {
		c.Process, found = ReadProcessContext(read, at)
	}
	if c.place, c.has = ThreadContextPlaceOf(p); !c.has && !found {
		return nil
	}
	return c
}

// Of returns what a thread works on, by its registers; nil where it works on nothing, or does not tell.
func (c *Contexts) Of(m Memory, regs *Regs) *ThreadWork {
	if c == nil || !c.has {
		return nil
	}
	t, ok := ParseThreadContext(ReadThreadContext(m, c.arch, c.place, regs.ThreadPointer))
	if !ok {
		return nil
	}
	w := &ThreadWork{}
	if t.HasTrace() {
		w.Trace, w.Span = fmt.Sprintf("%x", t.TraceID), fmt.Sprintf("%x", t.SpanID)
	}
	for key, value := range t.Attributes() {
		if int(key) < len(c.Process.ThreadKeys) {
			w.Attributes = append(w.Attributes, ContextAttribute{c.Process.ThreadKeys[key], string(value)})
		}
	}
	return w
}

// processContext returns where the process may have had its context; 0 when it had none.
func (c *Core) processContext() uint64 {
	for i := range c.files {
		if isProcessContext(c.files[i].path) {
			return c.files[i].start
		}
	}
	return 0
}
