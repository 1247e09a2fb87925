package procstate

import (
	"bytes"
	"fmt"
	"os"
)

// GoCollector returns a Collector for a process whose program, or libraries of
// it, are written in Go, and nil for others. A thread of a Go program has up to three stacks:
// its own (g0), that of the goroutine it runs, and one for signals. Where
// they are, and where a stack goes on that is not the current one, is in the
// runtime's g and m; the Collector copies these and the other stacks' live
// parts. See [GoRuntime]. Each library has a runtime of its own, and a thread may have been called by several: they
// are looked at in turn, maxGoRuntimes at most. What the process has mapped is as SpaceOfProcess has read it.
func GoCollector(pid int, space *AddressSpace) Collector {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", readableTask(pid)))
	if err != nil {
		return nil
	}
	var all []Collector
	err = eachGoProgram(space, exe, GoStacksOf, func(l Library, rt *GoRuntime) (more bool) {
		if rt.Samplable() { // not a plug-in, which has none
			c := goCollector{rt: rt, bias: l.Bias, sp: l.Image.Arch().SP}
			all = append(all, c.collect)
		}
		return len(all) < maxGoRuntimes
	})
	if err != nil {
		return nil
	}
	return JoinCollectors(all...)
}

// maxGoRuntimes bounds how many runtimes of a process are looked at: there is a share of what may be copied for each.
const maxGoRuntimes = 8

// goProgramOfLive is goProgramOf for a running process.
func goProgramOfLive(pid int, space *AddressSpace, runtimeOf func(*Image) (*GoRuntime, error)) (Library, *GoRuntime, error) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", readableTask(pid)))
	if err != nil {
		return Library{}, nil, err
	}
	return goProgramOf(space, exe, runtimeOf)
}

// SpaceOfProcess reads what a running process has mapped; nothing where that cannot be read.
func SpaceOfProcess(pid int) *AddressSpace {
	tid := readableTask(pid)
	text := readMapsText(pid, tid)
	s := spaceFromMaps(pid, tid, text)
	s.text = bytes.Clone(text) // which was read into far more room
	return s
}

type goCollector struct {
	rt   *GoRuntime
	bias uint64
	sp   Reg
}

// maxGoStack bounds the copy of one of a thread's other stacks.
const maxGoStack = 256 << 10

// collect is the Collector.
func (c *goCollector) collect(mem Memory, _ ThreadID, regs *Regs, add func(addr uint64, n int)) {
	rt := c.rt
	word := func(addr uint64) uint64 {
		v, _ := mem.ReadWord(addr)
		return v
	}
	gSize := int(max(rt.SchedLR, rt.SchedBP, rt.StackHi, rt.M)) + 8
	mSize := int(max(rt.G0, rt.GSignal, rt.CurG, rt.VDSOSP)) + 8
	var g uint64
	if tls, ok := rt.GAddr(mem, c.bias, regs.ThreadPointer); ok {
		add(tls, 8)
		if rt.TLSSlot != 0 {
			add(c.bias+rt.TLSSlot, 8)
		}
		g = word(tls)
	}
	if g == 0 && rt.GReg != NoReg {
		g = regs.Raw(rt.GReg)
	}
	if g == 0 {
		return
	}
	add(g, gSize)
	m := word(g + uint64(rt.M))
	if m == 0 {
		return
	}
	add(m, mSize)
	sp := regs.Raw(c.sp)
	for _, at := range []uint32{rt.G0, rt.CurG, rt.GSignal} {
		other := word(m + uint64(at))
		if other == 0 {
			continue
		}
		if other != g {
			add(other, gSize)
		}
		lo, hi := word(other+uint64(rt.StackLo)), word(other+uint64(rt.StackHi))
		if hi <= lo || sp-lo < hi-lo { // the current stack is copied anyway
			continue
		}
		from := word(other + uint64(rt.SchedSP))
		if from < lo || from >= hi || other == g { // of the one that runs, on a stack which is none of the runtime's, it is out of date
			from = max(lo, hi-min(hi, maxGoStack))
		}
		add(from, int(min(hi-from, maxGoStack)))
	}
}
