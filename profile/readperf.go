package profile

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

const perfFormat = "perf script"

// perfHeader is the first line of a sample in the text of perf script:
//
//	comm  pid/tid [cpu] seconds:  period event:  more
//
// of which pid, CPU, time and period may be missing, as `perf script -F` has
// it. The name may have blanks in it.
var perfHeader = pattern(`^\s*(\S.*?)\s+(?:(-?\d+)/)?(-?\d+)\s+(?:\[(\d+)\]\s+)?(?:[A-Za-z.]{1,8}\s+)?(?:(\d+)\.(\d+):\s*)?(?:(\d+)\s+)?(?:(\S+):(?:\s+(.*))?)?$`)

// perfSample is a header.
type perfSample struct {
	comm     string
	pid, tid int32
	cpu      string // "" when not told
	nanos    int64  // -1 when not told
	period   int64  // -1 when not told
	event    string
	more     string // what follows the event
}

// parsePerfHeader reports whether a line is a header, which needs at least a
// name, a thread and a time or an event.
func parsePerfHeader(text string) (perfSample, bool) {
	s := perfSample{nanos: -1, period: -1}
	m := perfHeader().FindStringSubmatch(text)
	if m == nil || m[5] == "" && m[8] == "" {
		return s, false
	}
	s.comm, s.event, s.more = m[1], m[8], m[9]
	if m[4] != "" {
		s.cpu = cmp.Or(strings.TrimLeft(m[4], "0"), "0")
	}
	tid, err := strconv.ParseInt(m[3], 10, 32)
	if err != nil {
		return s, false
	}
	s.tid, s.pid = int32(tid), int32(tid)
	if m[2] != "" {
		pid, err := strconv.ParseInt(m[2], 10, 32)
		if err != nil {
			return s, false
		}
		s.pid = int32(pid)
	}
	if m[5] != "" {
		sec, err := strconv.ParseInt(m[5], 10, 32)
		frac, err2 := strconv.ParseInt((m[6] + "000000000")[:9], 10, 64)
		if err != nil || err2 != nil {
			return s, false
		}
		s.nanos = sec*1e9 + frac
	}
	if m[7] != "" {
		period, err := strconv.ParseInt(m[7], 10, 64)
		if err != nil {
			return s, false
		}
		s.period = period
	}
	return s, true
}

// perfEvent is what was read of the samples of one event.
type perfEvent struct {
	name           string // with modifiers
	number         int    // Thread.Event, or notRead
	samples, value int64
	begun          bool  // there is a sample
	unperiodic     bool  // samples have no period
	untimed        bool  // samples have no time
	period         int64 // of all samples so far, or -1 when they differ
}

// notRead is the number of an event beyond those that a Profile has room for.
const notRead = -1

// perfReader reads the samples of all events.
type perfReader struct {
	l       lines
	a       *assembler
	wanted  string // the event that is, or "" for all
	untimed bool   // times of samples are not true
	events  map[string]*perfEvent
	read    []*perfEvent // by number
	header  []string     // events in the order of the recording, where the text tells that
	leftOut int64        // samples of events that are not read

	first, last   int64 // times, or -1
	modules       map[string]uint32
	samplesByComm map[string]int64

	in      bool // a sample has begun
	oneLine bool // its frame is on its first line
	sample  perfSample
	stack   []Loc
	frames  []perfFrame // inlined into one that comes later
	event   *perfEvent  // of the sample

	like    *perfFrame // the first frame on a line of its own, which all others are like
	bare    error      // the last frame has no module, which is wrong unless it was inlined
	endless bool       // a sample that has such frames ended without an empty line
}

// perfFrame is a line of a stack.
type perfFrame struct {
	addr         uint64
	hasAddr      bool
	name, module string
	inlined      bool
	source       string // "file.c:12", on a line of its own
}

// readPerf reads the text that perf script writes.
func readPerf(r *bufio.Reader, o ReadOptions) (*Profile, error) {
	p := perfReader{
		l: lines{r: r, format: perfFormat}, a: newAssembler(), wanted: o.SampleType, events: map[string]*perfEvent{},
		first: -1, last: -1, modules: map[string]uint32{}, samplesByComm: map[string]int64{},
	}
	if o.Times {
		p.a.b.KeepTimes()
	}
	for {
		err := p.l.read()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = p.line(strings.TrimRight(p.l.text, " \t"))
		}
		if err != nil {
			return nil, err
		}
	}
	if err := p.checkEnd(); err != nil {
		return nil, err
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	return p.build(o)
}

// checkEnd refuses a text that is cut off: where there are stacks, perf script
// ends each with an empty line, and it ends all lines.
func (p *perfReader) checkEnd() error {
	if p.bare != nil {
		return p.bare
	}
	p.l.offset = p.l.next
	switch {
	case p.l.line > 1 && !p.l.ended:
		p.l.line-- // of the end of the text
		return p.l.errorf("the text is cut off, in a line")
	case p.in && !p.oneLine && p.like != nil && !p.endless:
		return p.l.errorf("the text is cut off, before the empty line that ends the last sample")
	}
	return nil
}

func (p *perfReader) line(text string) error {
	switch {
	case p.inlinedSource(text):
		return nil
	case p.bare != nil:
		return p.bare
	case text == "":
		return p.finish()
	case text == perfUntimed:
		p.untimed = true
		return nil
	case strings.HasPrefix(text, perfEventLine):
		name, _, _ := strings.Cut(text[len(perfEventLine):], ", ")
		if len(p.header) < maxEvents {
			p.header = append(p.header, name)
		}
		return nil
	case text[0] == '#' || strings.HasPrefix(text, perfRegisters) || perfCode().MatchString(text):
		return nil
	case strings.Contains(text, " PERF_RECORD_"):
		return p.finish() // perf script tells of mappings and the like, if asked
	case p.in && p.oneLine && text[0] == '\t':
		p.oneLine, p.frames = false, p.frames[:0] // that was the address of data
		fallthrough
	case p.in && (text[0] == '\t' || text[0] == ' ') && !perfTime().MatchString(text):
		if frame, ok := parsePerfFrame(text); ok && !p.oneLine {
			return p.frameLine(frame)
		}
		if p.sourceLine(text) {
			return nil
		}
	}
	s, ok := parsePerfHeader(text)
	if !ok {
		return p.l.errorf("%q is neither a sample's first line nor a frame", clip(strings.TrimSpace(text), 80))
	}
	if p.in && len(p.stack)+len(p.frames) > 0 && !p.oneLine {
		p.endless = true
	}
	if err := p.finish(); err != nil {
		return err
	}
	if p.untimed {
		s.nanos = -1
	}
	p.in, p.oneLine, p.sample = true, false, s
	p.event = p.eventOf(s.event)
	if err := p.checkHeader(); err != nil {
		return err
	}
	if m := perfData().FindStringSubmatch(s.more); m != nil {
		s.more = m[1]
	}
	if frame, ok := parsePerfFrame(s.more); ok && frame.addr != 0 && !strings.Contains(perfEventName(p.event.name), ":") {
		p.frame(frame) // a sample without a stack
		p.oneLine = true
	}
	return nil
}

// perf script writes these besides, if asked: registers, a line of source, and
// the address of data before that of the code, of which it keeps the latter.
const perfRegisters = " ABI:"

var (
	perfCode = pattern(`^\|\d+\s`)
	perfData = pattern(`^[0-9a-f]+ .+ \(.*\) ([0-9a-f]+ .+ \(.*\))$`)
)

// checkHeader refuses a sample that lacks what others of its event have.
func (p *perfReader) checkHeader() error {
	e, s := p.event, &p.sample
	if !e.begun {
		e.begun, e.untimed, e.unperiodic = true, s.nanos < 0, s.period < 0
	}
	switch {
	case e.untimed != (s.nanos < 0):
		return p.l.errorf("samples of %s with a time, and without", e.name)
	case e.unperiodic != (s.period < 0):
		return p.l.errorf("samples of %s with a period, and without", e.name)
	}
	return nil
}

// frameLine takes a frame that has a line of its own. All have an address, or
// none does, and the same of modules.
func (p *perfReader) frameLine(f perfFrame) error {
	if p.like == nil {
		p.like = &f
	}
	switch {
	case p.like.hasAddr != f.hasAddr:
		return p.l.errorf("frames with an address, and without")
	case p.like.module != "" && strings.Contains("/[", p.like.module[:1]) && f.module == "" && !f.inlined:
		p.bare = p.l.errorf("frames with a module, and without")
	}
	p.frame(f)
	return nil
}

// eventOf returns the event of a name. That which is wanted without its modifiers is one with
// any.
func (p *perfReader) eventOf(name string) *perfEvent {
	if name = cmp.Or(name, "samples"); perfEventName(name) == p.wanted {
		name = p.wanted
	}
	e := p.events[name]
	if e == nil {
		e = &perfEvent{name: name, number: notRead}
		room := maxEvents
		if p.wanted != "" && name != p.wanted && p.events[p.wanted] == nil {
			room-- // for that
		}
		if len(p.read) < room {
			e.number = len(p.read)
			p.read = append(p.read, e)
		}
		p.events[name] = e
	}
	return e
}

// perfEventName leaves out modifiers: "cycles:ppp" is "cycles".
func perfEventName(name string) string {
	if i := strings.LastIndexByte(name, ':'); i > 0 && strings.Trim(name[i+1:], "ukhGHpPSDWIeb") == "" {
		return name[:i]
	}
	return name
}

// perfTime is in headers and in no frame.
var perfTime = pattern(`\s\d+\.\d{3,9}:(\s|$)`)

var perfSource = pattern(`^\s+(.*):(\d+)$`)

// perfInlined is the source of a frame that was inlined, which has no module then.
var perfInlined = pattern(`^  (\S.*:\d+) \(inlined\)$`)

func (p *perfReader) inlinedSource(text string) bool {
	m := perfInlined().FindStringSubmatch(text)
	if m == nil || len(p.frames) == 0 {
		return false
	}
	f := &p.frames[len(p.frames)-1]
	f.source, f.inlined, p.bare = m[1], true, nil
	return true
}

// sourceLine takes a line with the source of the frame above it.
func (p *perfReader) sourceLine(text string) bool {
	if m := perfSource().FindStringSubmatch(text); m != nil {
		// ":0" stands where there is none.
		if n := len(p.frames); n > 0 && p.frames[n-1].source == "" && m[1] != "" {
			p.frames[n-1].source = strings.TrimSpace(text)
		}
		return true
	}
	// "libc.so.6[28d89]" stands where there is no source.
	return strings.HasSuffix(text, "]") && strings.HasPrefix(text, "  ") && strings.Contains(text, "[")
}

// frame takes the next frame of the sample, from the leaf on.
func (p *perfReader) frame(f perfFrame) {
	if n := len(p.frames); n > 0 && !p.frames[n-1].inlined {
		p.flush()
	}
	p.frames = append(p.frames, f)
}

// flush makes a place of the frames at one address, the inlined ones first.
func (p *perfReader) flush() {
	if len(p.frames) == 0 {
		return
	}
	a := p.a
	if f := &p.frames[0]; len(p.frames) == 1 && isMarker(f.name) && f.addr == 0 && f.module == "[unknown]" {
		p.stack, p.frames = append(p.stack, a.b.Marker(f.name)), p.frames[:0]
		return
	}
	a.key = a.key[:0]
	for _, f := range p.frames {
		a.key = fmt.Appendf(a.key, "%x\x00%s\x00%s\x00%s\x00", f.addr, f.name, f.module, f.source)
	}
	loc, ok := a.ids[string(a.key)]
	if !ok {
		outer := p.frames[len(p.frames)-1]
		kind := kindOfPath(outer.module)
		module := uint32(0)
		if outer.module != "" && outer.module != "[unknown]" && !outer.inlined {
			if module, ok = p.modules[outer.module]; !ok {
				module = a.b.Module(Module{Path: outer.module, Kind: kind})
				p.modules[outer.module] = module
			}
		}
		var lines []Line
		for i, f := range p.frames {
			ln := Line{Function: f.name, Inlined: i < len(p.frames)-1}
			if f.name == "[unknown]" {
				ln.Function = "" // called by its address, which tells more
			}
			if i := strings.LastIndexByte(f.source, ':'); i > 0 {
				ln.File = f.source[:i]
				ln.Line, _ = strconv.Atoi(f.source[i+1:])
			}
			if ln.Function == "" {
				ln.Start = f.addr
			} else if ln.byAddress = addressName(ln.Function); !ln.byAddress && (kind != Native || strings.HasSuffix(ln.File, ".go")) {
				ln.Kind = kindOfLine(kind, ln.File) // else that of the module, which may turn out to be of Go
			}
			if strings.HasPrefix(ln.Function, "runtime.") && startFunctions[ln.Function] && kind == Native {
				a.b.modules[module].Kind = Go
			}
			lines = append(lines, ln)
		}
		loc = a.place(module, outer.addr, lines)
		a.ids[string(a.key)] = loc
	}
	p.stack = append(p.stack, loc)
	p.frames = p.frames[:0]
}

// finish counts the sample that has begun, if there is one.
func (p *perfReader) finish() error {
	if !p.in {
		return nil
	}
	p.flush()
	e, s := p.event, &p.sample
	if e.samples++; e.samples == 1 {
		e.period = s.period
	} else if e.period != s.period {
		e.period = -1
	}
	if s.nanos >= 0 {
		if p.first < 0 || s.nanos < p.first {
			p.first = s.nanos
		}
		p.last = max(p.last, s.nanos)
	}
	if e.number == notRead {
		p.leftOut++
	} else if err := p.count(); err != nil {
		return p.l.errorf("%v", err)
	}
	p.in, p.stack, p.frames = false, p.stack[:0], p.frames[:0]
	return nil
}

// count counts the sample.
func (p *perfReader) count() error {
	e, s := p.event, &p.sample
	t := Thread{PID: max(s.pid, 0), TID: max(s.tid, 0), Comm: Comm(s.comm), Event: uint8(e.number)}
	if s.cpu != "" {
		t.Labels = p.a.b.Labels(Label{"cpu", s.cpu})
	}
	truncated := ""
	if n := len(p.stack); n > 0 {
		// A marker that WritePerfScript wrote.
		text, _ := p.a.b.MarkerText(p.stack[n-1])
		if truncated = truncatedReason(text); truncated != "" {
			p.stack = p.stack[:n-1]
		}
	}
	p.a.b.SetTime(s.nanos)
	p.samplesByComm[s.comm]++
	e.value += max(s.period, 0) // the assembler sees to it that there is room
	return p.a.add(t, p.stack, truncated, 1, max(s.period, 0))
}

// build makes the Profile of all events, or of the one that is wanted.
func (p *perfReader) build(o ReadOptions) (*Profile, error) {
	if len(p.events) == 0 {
		return nil, p.l.errorf("no samples")
	}
	order, names := p.order(), p.names()
	numbers := make([]uint8, len(p.read))
	var events []Event
	for i, e := range order {
		numbers[e.number] = uint8(i)
		events = append(events, e.describe(names[e]))
	}
	p.a.b.RenumberEvents(numbers)
	m := Meta{Target: o.Name}
	m.setEvents(events)
	if m.Target == "" && len(p.samplesByComm) == 1 {
		for comm := range p.samplesByComm {
			m.Target = comm
		}
	}
	if p.last > p.first && p.first >= 0 {
		m.Duration = time.Duration(p.last - p.first)
	}
	if p.leftOut > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("%s samples of further events left out: no more than %d are read at a time, or one by --sample-type", thousands(p.leftOut), maxEvents))
	}
	all := p.a.b.Finish(m, nil)
	if slices.ContainsFunc(order, func(e *perfEvent) bool { return e.untimed }) {
		all.times = nil
	}
	all.Format, all.Type = perfFormat, events[0].Name
	for i := range events {
		all.Types = append(all.Types, ValueType{events[i].Name, "count"})
	}
	all.reread = func(o ReadOptions) (*Profile, error) {
		if len(events) == 1 && o.SampleType == all.Type {
			return all, nil
		}
		return all.ofNamedEvent(o.SampleType)
	}
	if p.wanted == "" {
		return all, nil
	}
	if e := p.events[p.wanted]; e != nil {
		o.SampleType = names[e] // it may have been asked for with modifiers
	}
	return all.reread(o)
}

// order are the events that were read, as the text tells their order, and else with most samples first.
func (p *perfReader) order() []*perfEvent {
	inHeader := func(e *perfEvent) int {
		if i := slices.Index(p.header, e.name); i >= 0 {
			return i
		}
		if i := slices.IndexFunc(p.header, func(name string) bool { return perfEventName(name) == e.name }); i >= 0 {
			return i
		}
		return len(p.header)
	}
	return slices.SortedFunc(slices.Values(p.read), func(x, y *perfEvent) int {
		return cmp.Or(cmp.Compare(inHeader(x), inHeader(y)), cmp.Compare(y.samples, x.samples), cmp.Compare(x.name, y.name))
	})
}

// names are those of the events that were read, without modifiers where no other one differs in these alone.
func (p *perfReader) names() map[*perfEvent]string {
	bare := map[string]int{}
	for name := range p.events {
		bare[perfEventName(name)]++
	}
	names := map[*perfEvent]string{}
	for _, e := range p.read {
		if names[e] = e.name; bare[perfEventName(e.name)] == 1 {
			names[e] = perfEventName(e.name)
		}
	}
	return names
}

// describe says what the samples of an event count.
func (e *perfEvent) describe(name string) Event {
	out := Event{Name: name}
	if e.unperiodic {
		return out
	}
	out.Value = ValueType{name, "count"}
	if strings.HasSuffix(perfEventName(name), "-clock") {
		out.Value.Unit = "nanoseconds"
	}
	out.Period, out.ByValue = max(e.period, 0), e.period < 0 && e.value > 0
	if out.Value.Unit == "nanoseconds" && out.Period > 1 && out.Period < math.MaxInt32*1000 {
		out.FrequencyHz = int((1e9 + out.Period/2) / out.Period)
	}
	return out
}

var (
	perfAddress = pattern(`^\s*(?:([0-9a-f]+)\s+)?(.*)$`)
	perfOffset  = pattern(`\+0x[0-9a-f]+$`)
)

// parsePerfFrame reads a line of a stack: an address, a name with or without
// the offset in the function, and in brackets the module, of which the last
// two may be missing:
//
//	7f2a45 read+0x12 (/lib/libc.so.6)
//	7f2a45 [unknown] (/lib/libc.so.6+0x45)
//	7f2a45 (/lib/libc.so.6)
//	       read (/lib/libc.so.6)
//	7f2a45
func parsePerfFrame(text string) (perfFrame, bool) {
	m := perfAddress().FindStringSubmatch(text)
	if m == nil {
		return perfFrame{}, false
	}
	var f perfFrame
	rest := strings.TrimSpace(m[2])
	if m[1] != "" {
		addr, err := strconv.ParseUint(m[1], 16, 64)
		if err != nil {
			return f, false
		}
		f.addr, f.hasAddr = addr, true
	} else if addr, err := strconv.ParseUint(rest, 16, 64); err == nil {
		f.addr, f.hasAddr, f.name = addr, true, "[unknown]"
		return f, true
	}
	if strings.HasSuffix(rest, ")") {
		open := strings.LastIndex(strings.TrimSuffix(rest, " (deleted))"), " (")
		if open < 0 && rest[0] == '(' {
			open = 0
		} else if open >= 0 {
			open++
		}
		if open >= 0 {
			f.module = rest[open+1 : len(rest)-1]
			rest = strings.TrimSpace(rest[:open])
		}
	}
	if m[1] == "" && f.module == "" {
		return f, false // a name alone is too little to be sure of
	}
	f.module = strings.TrimSuffix(f.module, " (deleted)")
	if f.module == "inlined" {
		f.inlined, f.module = true, ""
	}
	f.module = perfOffset().ReplaceAllString(f.module, "")
	f.name = rest
	if named := perfOffset().ReplaceAllString(rest, ""); named != "" {
		f.name = named
	}
	if f.name == "" {
		f.name = "[unknown]"
	}
	return f, true
}
