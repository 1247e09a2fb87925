package profile

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"

	pprof "github.com/google/pprof/profile"
)

// WritePprof writes the profile in pprof's format, compressed.
//
// Samples carry the labels "pid" and "tid", numbers, and "comm", the name of
// the thread: the keys by which perf_to_profile has them too; and besides, as
// texts, those of Thread.Labels. A frame without
// name is a function "module+0xaddress", the address being link-time, as
// addr2line takes it. Markers are functions in a location without mapping.
//
// Two fields that pprof does not know tell the rest: Meta, in JSON (metaField), and where
// samples have values of their own, how they differ (squaresField).
//
// It is written as it is encoded: a sample takes a kilobyte in pprof's own
// types, where it takes 32 bytes here.
func (p *Profile) WritePprof(w io.Writer) error {
	z := gzip.NewWriter(w)
	err := p.encodePprof(z)
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return fmt.Errorf("writing pprof: %w", err)
	}
	return nil
}

// Pprof returns the profile in pprof's terms: as it was read, with all its
// types of samples and labels, when it was read from a pprof file. The result
// is not to be changed.
func (p *Profile) Pprof() (*pprof.Profile, error) {
	if p.source != nil {
		return p.source, nil
	}
	var raw bytes.Buffer
	if err := p.encodePprof(&raw); err != nil {
		return nil, err
	}
	return pprof.ParseUncompressed(raw.Bytes())
}

// encodePprof writes the profile in pprof's format, not compressed. The numbers
// of fields are those of
// https://github.com/google/pprof/blob/main/proto/profile.proto.
func (p *Profile) encodePprof(w io.Writer) error {
	e := newPprofEncoder(w)
	p.encodeTypes(e)
	p.encodeSamples(e)
	p.encodeMappings(e)
	var line, msg []byte
	for i, l := range p.locations {
		msg = appendNumber(msg[:0], 1, int64(i+1))
		if l.module != noModule {
			msg = appendNumber(msg, 2, int64(l.module))
			msg = appendNumber(msg, 3, int64(l.addr))
		}
		for _, ln := range l.lines {
			line = appendNumber(line[:0], 1, int64(ln.function+1))
			line = appendNumber(line, 2, int64(ln.line))
			msg = appendMessage(msg, 4, line)
		}
		e.message(4, msg)
	}
	for i, f := range p.functions {
		msg = appendNumber(msg[:0], 1, int64(i+1))
		msg = appendNumber(msg, 2, e.text(f.name))
		msg = appendNumber(msg, 3, e.text(f.systemName))
		msg = appendNumber(msg, 4, e.text(f.file))
		msg = appendNumber(msg, 5, int64(f.startLine))
		e.message(5, msg)
	}
	if !p.Meta.Start.IsZero() {
		e.number(9, p.Meta.Start.UnixNano())
	}
	e.number(10, int64(p.Meta.Duration))
	e.number(12, p.Meta.Period)
	for _, c := range p.describe() {
		e.number(13, e.text(c))
	}
	meta, err := json.Marshal(&p.Meta)
	if err != nil {
		return err
	}
	e.message(metaField, meta)
	if p.Meta.anyByValue() && p.squaresKnown {
		e.message(squaresField, p.pprofSquares())
	}
	return e.close()
}

// encodeTypes writes what the values of a sample are: see Meta.pprofTypes.
func (p *Profile) encodeTypes(e *pprofEncoder) {
	types := p.Meta.pprofTypes()
	for _, t := range types {
		e.message(1, e.valueType(t))
	}
	usual := types[len(types)-1]
	if len(p.Meta.Also) > 0 {
		usual = types[1]
	}
	if p.Meta.Value.Type != "" {
		e.message(11, e.valueType(usual))
	}
	e.number(14, e.text(usual.Type))
}

// pprofTypes are the values of a sample: their number, and where the profile has values, the
// part on and off the CPU (Meta.Wall) and the value. Of several events each has its own
// two, of which the samples of the others have nothing.
func (m *Meta) pprofTypes() []ValueType {
	if len(m.Also) > 0 {
		return m.typesByEvent()
	}
	types := []ValueType{{"samples", "count"}}
	if v := m.Value; v.Type != "" {
		if m.Wall {
			types = append(types, ValueType{"cpu", v.Unit}, ValueType{"off-cpu", v.Unit})
		}
		types = append(types, v)
	}
	return types
}

// appendValues appends the values of a sample, packed.
func (p *Profile) appendValues(b []byte, s *sample) []byte {
	t := &p.threads[s.thread]
	if also := len(p.Meta.Also); also > 0 {
		b = append(b, make([]byte, 2*int(t.Event))...)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.count)), uint64(s.value))
		return append(b, make([]byte, 2*(also-int(t.Event)))...)
	}
	b = binary.AppendUvarint(b, uint64(s.count))
	if p.Meta.Value.Type == "" {
		return b
	}
	if p.Meta.Wall {
		onCPU, offCPU := s.value, int64(0)
		if !slices.Contains(p.labels[t.Labels], Label{"state", "running"}) {
			onCPU, offCPU = offCPU, onCPU
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(onCPU)), uint64(offCPU))
	}
	return binary.AppendUvarint(b, uint64(s.value))
}

func (e *pprofEncoder) valueType(t ValueType) []byte {
	return appendNumber(appendNumber(nil, 1, e.text(t.Type)), 2, e.text(t.Unit))
}

func (p *Profile) encodeSamples(e *pprofEncoder) {
	labels := make([][]byte, len(p.threads)) // as encoded, of threads met
	var msg, stack, values []byte
	last := uint32(math.MaxUint32)
	for _, s := range p.samples {
		if s.node != last { // samples lie by their stacks
			stack = stack[:0]
			for n := s.node; n != 0; n = p.nodes[n].parent {
				stack = binary.AppendUvarint(stack, uint64(p.nodes[n].location)+1)
			}
			last = s.node
		}
		if labels[s.thread] == nil {
			labels[s.thread] = p.encodeLabels(e, &p.threads[s.thread])
		}
		values = p.appendValues(values[:0], &s)
		msg = msg[:0]
		if len(stack) > 0 {
			msg = appendMessage(msg, 1, stack)
		}
		msg = appendMessage(msg, 2, values)
		msg = append(msg, labels[s.thread]...)
		e.message(2, msg)
	}
}

// encodeLabels returns the labels of a thread as fields of a sample.
func (p *Profile) encodeLabels(e *pprofEncoder, t *Thread) []byte {
	var out, label []byte
	text := func(key, s string) {
		label = appendNumber(label[:0], 1, e.text(key))
		label = appendNumber(label, 2, e.text(s))
		out = appendMessage(out, 3, label)
	}
	number := func(key string, n int32) {
		label = appendNumber(label[:0], 1, e.text(key))
		label = appendNumber(label, 3, int64(n))
		out = appendMessage(out, 3, label)
	}
	if comm := t.CommString(); comm != "" {
		text("comm", comm)
	}
	for _, l := range p.labels[t.Labels] {
		text(l.Key, l.Value)
	}
	number("pid", t.PID)
	number("tid", t.TID)
	return out
}

// encodeMappings writes a mapping for each module but the one that is none.
func (p *Profile) encodeMappings(e *pprofEncoder) {
	type known struct{ functions, files, lines, inlines bool }
	mappings := make([]known, len(p.modules))
	for _, l := range p.locations {
		if l.module == noModule {
			continue
		}
		m := &mappings[l.module]
		for _, ln := range l.lines {
			m.functions = m.functions || ln.named
			m.files = m.files || p.functions[ln.function].file != ""
			m.lines = m.lines || ln.line != 0
			m.inlines = m.inlines || ln.inlined
		}
	}
	ranges := p.moduleRanges()
	var msg []byte
	for i := 1; i < len(p.modules); i++ {
		m, f := &p.modules[i], &mappings[i]
		msg = appendNumber(msg[:0], 1, int64(i))
		msg = appendNumber(msg, 2, int64(ranges[i].start))
		msg = appendNumber(msg, 3, int64(ranges[i].limit))
		msg = appendNumber(msg, 4, int64(m.Offset))
		msg = appendNumber(msg, 5, e.text(m.Path))
		msg = appendNumber(msg, 6, e.text(m.BuildID))
		msg = appendFlag(msg, 7, f.functions)
		msg = appendFlag(msg, 8, f.files)
		msg = appendFlag(msg, 9, f.lines)
		msg = appendFlag(msg, 10, f.inlines)
		e.message(3, msg)
	}
}

// moduleRange is from where to where a module's addresses go.
type moduleRange struct{ start, limit uint64 }

// moduleRanges returns the ranges of the modules; by the frames in them where they are
// not known.
func (p *Profile) moduleRanges() []moduleRange {
	frames := make([]moduleRange, len(p.modules))
	for i := range frames {
		frames[i].start = math.MaxUint64
	}
	for _, l := range p.locations {
		if l.module != noModule {
			r := &frames[l.module]
			r.start, r.limit = min(r.start, l.addr), max(r.limit, l.addr)
		}
	}
	for i := range frames {
		m, r := &p.modules[i], &frames[i]
		switch {
		case m.Limit != 0 || r.start > r.limit:
			*r = moduleRange{m.Start, m.Limit}
		case r.limit < math.MaxUint64:
			r.limit++
		}
	}
	return frames
}
