package profile

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteOTLP writes the profile as a request that asks a server of OpenTelemetry's
// protocol to take it in, an ExportProfilesServiceRequest, not compressed. resource
// says what machine or service it is of: {"host.name", "web1"}.
//
// It has one number for a sample: how many there are, each of which stands for
// Meta.Period, or where that differs (Meta.ByValue) or is one, the value. Of several events
// (Meta.Also) each is a profile. Process, thread and
// labels are attributes of samples by the names of OpenTelemetry's conventions, where
// these have one; a container is a resource of its own, and so is a service (IsServiceAttribute), whose attributes
// count for more than those of the same names in resource. The trace and span that a thread worked on (TraceLabel,
// SpanLabel) are a link.
func (p *Profile) WriteOTLP(w io.Writer, resource []Label) error {
	e := otlpEncoder{
		stringTable: newStringTable(), attributes: 1,
		indexes: map[string]uint64{}, threads: make([][]byte, len(p.threads)), stacks: make([]uint32, len(p.nodes)),
	}
	e.tables[otlpStacks] = appendMessage(nil, otlpStacks, nil) // number 0 of each table is none
	e.tables[otlpAttributes] = appendMessage(nil, otlpAttributes, nil)
	var out []byte
	e.links = map[string]uint64{"": 0}
	parts, of := p.resources()
	for i, own := range parts {
		isIn := func(s *sample) bool { return of[s.thread] == i }
		out = appendMessage(out, 1, e.resource(p, resource, own, isIn))
	}
	e.encodePlaces(p)
	for _, s := range e.strings {
		e.tables[otlpStrings] = appendText(e.tables[otlpStrings], otlpStrings, s)
	}
	length := 0
	for _, t := range e.tables {
		length += len(t)
	}
	out = appendKey(out, 2, length)
	for _, b := range append([][]byte{out}, e.tables[:]...) {
		if _, err := w.Write(b); err != nil {
			return fmt.Errorf("writing OTLP: %w", err)
		}
	}
	return nil
}

// Fields of ProfilesDictionary, which are tables: it is the second field of a request. These and the numbers below are those of
// https://github.com/open-telemetry/opentelemetry-proto/tree/main/opentelemetry/proto/profiles.
const (
	otlpMappings = 1 + iota
	otlpLocations
	otlpFunctions
	otlpLinks
	otlpStrings
	otlpAttributes
	otlpStacks
	otlpTables
)

// otlpEncoder gathers what samples refer to.
type otlpEncoder struct {
	stringTable
	tables     [otlpTables][]byte // as fields of the dictionary
	attributes uint64             // their number
	indexes    map[string]uint64  // of attributes by their encoding
	links      map[string]uint64  // their numbers by their encoding
	threads    [][]byte           // attributes of threads met: their indexes
	stacks     []uint32           // number of that of a node; 0 when it has none yet
	lastStack  uint32
}

// TraceLabel and SpanLabel are the labels with the trace and the span that a thread worked on, in hexadecimal digits as W3C's
// Trace Context has them.
const (
	TraceLabel = "trace_id"
	SpanLabel  = "span_id"
)

// serviceAttributes are labels that tell of which service a process is, by the names of OpenTelemetry's conventions.
var serviceAttributes = []string{"service.name", "service.namespace", "service.version", "service.instance.id", "deployment.environment.name"}

// IsServiceAttribute reports whether a label tells of which service a process is: its name, its version.
func IsServiceAttribute(key string) bool { return slices.Contains(serviceAttributes, key) }

// isOfResource reports whether a label is an attribute of a resource, and not of samples.
func isOfResource(key string) bool { return key == containerKey || IsServiceAttribute(key) }

// resources returns the labels of threads that tell of what they are a part, container or service, each set once and in order, and
// by threads the number of theirs.
func (p *Profile) resources() (sets [][]Label, of []int) {
	own := func(t *Thread) (labels []Label) {
		for _, l := range p.labels[t.Labels] {
			if isOfResource(l.Key) {
				labels = append(labels, l)
			}
		}
		return labels
	}
	compare := func(a, b []Label) int { return slices.CompareFunc(a, b, compareLabels) }
	for i := range p.threads {
		sets = append(sets, own(&p.threads[i]))
	}
	slices.SortFunc(sets, compare)
	sets = slices.CompactFunc(sets, slices.Equal)
	for i := range p.threads {
		n, _ := slices.BinarySearchFunc(sets, own(&p.threads[i]), compare)
		of = append(of, n)
	}
	return sets, of
}

// resource returns a ResourceProfiles: one profile, of the samples that are of what has
// these labels of its own.
func (e *otlpEncoder) resource(p *Profile, resource, own []Label, isIn func(*sample) bool) []byte {
	var res, scope, body []byte
	for _, l := range resource {
		if !slices.ContainsFunc(own, func(o Label) bool { return o.Key == l.Key }) {
			res = appendMessage(res, 1, keyValue(l.Key, l.Value))
		}
	}
	for _, l := range own {
		res = appendMessage(res, 1, keyValue(cmp.Or(otlpNames[l.Key], l.Key), l.Value))
	}
	name, version, _ := strings.Cut(p.Meta.Tool, " ")
	scope = appendText(scope, 1, name)
	scope = appendText(scope, 2, version)
	body = appendMessage(body, 1, scope)
	for i := range 1 + len(p.Meta.Also) {
		m := p.Meta.ofEvent(i)
		ofEvent := func(s *sample) bool { return int(p.threads[s.thread].Event) == i && isIn(s) }
		body = appendMessage(body, 2, e.profile(p, &m, ofEvent))
	}
	return appendMessage(appendMessage(nil, 1, res), 2, body)
}

func (e *otlpEncoder) profile(p *Profile, m *Meta, isIn func(*sample) bool) []byte {
	byValue := m.Value.Type != "" && (m.ByValue || m.Period <= 1)
	counted := ValueType{cmp.Or(m.Counted, "samples"), "count"}
	if byValue {
		counted = m.Value
	}
	out := appendMessage(nil, 1, e.valueType(counted))
	var msg, values []byte
	for i := range p.samples {
		s := &p.samples[i]
		v := s.count
		if byValue {
			v = s.value
		}
		if v == 0 || !isIn(s) {
			continue
		}
		msg = appendNumber(msg[:0], 1, int64(e.stack(p, s.node)))
		msg = appendMessage(msg, 2, e.thread(p, s.thread))
		msg = appendNumber(msg, 3, int64(e.link(p, s.thread)))
		values = binary.AppendUvarint(values[:0], uint64(v))
		msg = appendMessage(msg, 4, values)
		out = appendMessage(out, 2, msg)
	}
	if start := m.Start; !start.IsZero() {
		out = append(out, 3<<3|wireFixed64)
		out = binary.LittleEndian.AppendUint64(out, uint64(start.UnixNano()))
	}
	out = appendNumber(out, 4, int64(m.Duration))
	if !byValue && m.Period != 0 {
		out = appendMessage(out, 5, e.valueType(m.Value))
		out = appendNumber(out, 6, m.Period)
	}
	return out
}

func (e *otlpEncoder) valueType(t ValueType) []byte {
	return appendNumber(appendNumber(nil, 1, e.text(t.Type)), 2, e.text(t.Unit))
}

// stack returns the number of a stack, which it enters, the innermost frame first.
func (e *otlpEncoder) stack(p *Profile, node uint32) uint32 {
	if node == 0 || e.stacks[node] != 0 {
		return e.stacks[node]
	}
	var locations []byte
	for n := node; n != 0; n = p.nodes[n].parent {
		locations = binary.AppendUvarint(locations, uint64(p.nodes[n].location)+1)
	}
	e.tables[otlpStacks] = appendMessage(e.tables[otlpStacks], otlpStacks, appendMessage(nil, 1, locations))
	e.lastStack++
	e.stacks[node] = e.lastStack
	return e.lastStack
}

// containerKey is the label that tells the container of a process.
const containerKey = "container"

// otlpNames are the names of OpenTelemetry's conventions for labels.
var otlpNames = map[string]string{
	"cpu":        "cpu.logical_number",
	"state":      "thread.state",
	"unit":       "systemd.unit",
	containerKey: "container.id",
}

// link returns the number of the link to the trace and the span of a thread, which it enters; 0 where there is none.
func (e *otlpEncoder) link(p *Profile, thread uint32) uint64 {
	var trace, span string
	for _, l := range p.labels[p.threads[thread].Labels] {
		switch l.Key {
		case TraceLabel:
			trace = l.Value
		case SpanLabel:
			span = l.Value
		}
	}
	msg := linkOf(trace, span)
	n, ok := e.links[string(msg)]
	if !ok {
		n = uint64(len(e.links))
		e.links[string(msg)] = n
	}
	return n
}

// linkOf returns the Link to a trace and a span; nil where these are none.
func linkOf(trace, span string) []byte {
	t, err1 := hex.DecodeString(trace)
	s, err2 := hex.DecodeString(span)
	if err1 != nil || err2 != nil || len(t) != 16 || len(s) != 8 {
		return nil
	}
	return appendText(appendText(nil, 1, string(t)), 2, string(s))
}

// thread returns the attributes of a thread, as a list of their indexes.
func (e *otlpEncoder) thread(p *Profile, id uint32) []byte {
	if e.threads[id] != nil {
		return e.threads[id]
	}
	t := &p.threads[id]
	list := e.attribute(nil, "process.pid", anyNumber(int64(t.PID)))
	list = e.attribute(list, "thread.id", anyNumber(int64(t.TID)))
	if comm := t.CommString(); comm != "" {
		list = e.attribute(list, "thread.name", anyText(comm))
	}
	for _, l := range p.labels[t.Labels] {
		if !isOfResource(l.Key) && !isLinked(p.labels[t.Labels], l.Key) {
			list = e.attribute(list, cmp.Or(otlpNames[l.Key], l.Key), anyText(l.Value))
		}
	}
	e.threads[id] = list
	return list
}

// isLinked reports whether a label of a set is in its link.
func isLinked(labels []Label, key string) bool {
	if key != TraceLabel && key != SpanLabel {
		return false
	}
	value := func(key string) string {
		i := slices.IndexFunc(labels, func(l Label) bool { return l.Key == key })
		if i < 0 {
			return ""
		}
		return labels[i].Value
	}
	return linkOf(value(TraceLabel), value(SpanLabel)) != nil
}

// attribute appends the index of an attribute, an AnyValue under a name.
func (e *otlpEncoder) attribute(list []byte, name string, value []byte) []byte {
	msg := appendNumber(nil, 1, e.text(name))
	msg = appendMessage(msg, 2, value)
	id, ok := e.indexes[string(msg)]
	if !ok {
		id = e.attributes
		e.attributes++
		e.indexes[string(msg)] = id
		e.tables[otlpAttributes] = appendMessage(e.tables[otlpAttributes], otlpAttributes, msg)
	}
	return binary.AppendUvarint(list, id)
}

// encodePlaces enters modules, locations and functions, by the numbers that they have
// here and one more.
func (e *otlpEncoder) encodePlaces(p *Profile) {
	add := func(table uint64, msg []byte) { e.tables[table] = appendMessage(e.tables[table], table, msg) }
	ranges := p.moduleRanges()
	var msg, line []byte
	for i := range p.modules { // 0 is none here, too
		m := &p.modules[i]
		msg = appendNumber(msg[:0], 1, int64(ranges[i].start))
		msg = appendNumber(msg, 2, int64(ranges[i].limit))
		msg = appendNumber(msg, 3, int64(m.Offset))
		msg = appendNumber(msg, 4, e.text(m.Path))
		if m.BuildID != "" {
			msg = appendMessage(msg, 5, e.attribute(nil, "process.executable.build_id.gnu", anyText(m.BuildID)))
		}
		if i == 0 {
			msg = msg[:0]
		}
		add(otlpMappings, msg)
	}
	add(otlpLocations, nil)
	for i := range p.locations {
		l := &p.locations[i]
		msg = msg[:0]
		if l.module != noModule {
			msg = appendNumber(msg, 1, int64(l.module))
			msg = appendNumber(msg, 2, int64(l.addr))
		}
		for _, ln := range l.lines {
			line = appendNumber(line[:0], 1, int64(ln.function)+1)
			line = appendNumber(line, 2, int64(ln.line))
			msg = appendMessage(msg, 3, line)
		}
		switch kind := l.lines[0].kind; kind {
		case Native, Go, Kernel:
			msg = appendMessage(msg, 4, e.attribute(nil, "profile.frame.type", anyText(kind.String())))
		}
		add(otlpLocations, msg)
	}
	add(otlpFunctions, nil)
	for _, f := range p.functions {
		msg = appendNumber(msg[:0], 1, e.text(f.name))
		msg = appendNumber(msg, 2, e.text(f.systemName))
		msg = appendNumber(msg, 3, e.text(f.file))
		msg = appendNumber(msg, 4, int64(f.startLine))
		add(otlpFunctions, msg)
	}
	links := make([]string, len(e.links))
	for msg, n := range e.links {
		links[n] = msg
	}
	for _, msg := range links {
		add(otlpLinks, []byte(msg))
	}
}

// wireFixed64 is protobuf's type of a field of 8 bytes.
const wireFixed64 = 1

func appendText(b []byte, field uint64, s string) []byte {
	return append(appendKey(b, field, len(s)), s...)
}

// anyText and anyNumber return an AnyValue, keyValue a KeyValue.
func anyText(s string) []byte     { return appendText(nil, 1, s) }
func anyNumber(n int64) []byte    { return binary.AppendUvarint([]byte{3 << 3}, uint64(n)) }
func keyValue(k, v string) []byte { return appendMessage(appendText(nil, 1, k), 2, anyText(v)) }
