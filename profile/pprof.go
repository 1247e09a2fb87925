package profile

import (
	"compress/gzip"
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
// Where samples have values of their own, a field that pprof does not know tells
// how they differ: see squaresField.
func (p *Profile) WritePprof(w io.Writer) error {
	z := gzip.NewWriter(w)
	err := p.pprof().WriteUncompressed(z)
	if err == nil && p.Meta.ByValue && p.squaresKnown {
		_, err = z.Write(p.pprofSquares())
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return fmt.Errorf("writing pprof: %w", err)
	}
	return nil
}

func (p *Profile) pprof() *pprof.Profile {
	out := &pprof.Profile{
		SampleType:        []*pprof.ValueType{{Type: "samples", Unit: "count"}},
		DefaultSampleType: "samples",
		DurationNanos:     int64(p.Meta.Duration),
		Period:            p.Meta.Period,
		Comments:          p.describe(),
	}
	if !p.Meta.Start.IsZero() {
		out.TimeNanos = p.Meta.Start.UnixNano()
	}
	valued := p.Meta.Value.Type != ""
	if valued {
		v := p.Meta.Value
		if p.Meta.Wall {
			out.SampleType = append(out.SampleType, &pprof.ValueType{Type: "cpu", Unit: v.Unit}, &pprof.ValueType{Type: "off-cpu", Unit: v.Unit})
		}
		out.SampleType = append(out.SampleType, &pprof.ValueType{Type: v.Type, Unit: v.Unit})
		out.PeriodType = &pprof.ValueType{Type: v.Type, Unit: v.Unit}
		out.DefaultSampleType = v.Type
	}
	for i, f := range p.functions {
		out.Function = append(out.Function, &pprof.Function{
			ID: uint64(i + 1), Name: f.name, SystemName: f.systemName,
			Filename: f.file, StartLine: int64(f.startLine),
		})
	}
	out.Mapping = p.pprofMappings()
	for i, l := range p.locations {
		loc := &pprof.Location{ID: uint64(i + 1), Address: l.addr}
		if l.module > 0 {
			loc.Mapping = out.Mapping[l.module-1]
		}
		if l.module == noModule {
			loc.Address = 0
		}
		for _, ln := range l.lines {
			loc.Line = append(loc.Line, pprof.Line{Function: out.Function[ln.function], Line: int64(ln.line)})
		}
		out.Location = append(out.Location, loc)
	}
	var stack []*pprof.Location
	last := uint32(math.MaxUint32)
	for _, s := range p.samples {
		if s.node != last { // samples of a stack share its slice
			stack = nil
			for n := s.node; n != 0; n = p.nodes[n].parent {
				stack = append(stack, out.Location[p.nodes[n].location])
			}
			last = s.node
		}
		t := &p.threads[s.thread]
		sample := &pprof.Sample{
			Location: stack,
			Value:    []int64{s.count},
			NumLabel: map[string][]int64{"pid": {int64(t.PID)}, "tid": {int64(t.TID)}},
		}
		if valued && p.Meta.Wall {
			onCPU, offCPU := s.value, int64(0)
			if !slices.Contains(p.labels[t.Labels], Label{"state", "running"}) {
				onCPU, offCPU = offCPU, onCPU
			}
			sample.Value = append(sample.Value, onCPU, offCPU)
		}
		if valued {
			sample.Value = append(sample.Value, s.value)
		}
		sample.Label = map[string][]string{}
		if comm := t.CommString(); comm != "" {
			sample.Label["comm"] = []string{comm}
		}
		for _, l := range p.labels[t.Labels] {
			sample.Label[l.Key] = append(sample.Label[l.Key], l.Value)
		}
		out.Sample = append(out.Sample, sample)
	}
	return out
}

// pprofMappings returns a mapping for each module but the one that is none.
func (p *Profile) pprofMappings() []*pprof.Mapping {
	type span struct{ min, max uint64 }
	spans := make([]span, len(p.modules))
	mappings := make([]*pprof.Mapping, len(p.modules))
	for i, m := range p.modules {
		spans[i].min = math.MaxUint64
		mappings[i] = &pprof.Mapping{
			ID: uint64(i), File: m.Path, BuildID: m.BuildID,
			Start: m.Start, Limit: m.Limit, Offset: m.Offset,
		}
	}
	for _, l := range p.locations {
		if l.module == noModule {
			continue
		}
		s, m := &spans[l.module], mappings[l.module]
		s.min, s.max = min(s.min, l.addr), max(s.max, l.addr)
		for _, ln := range l.lines {
			m.HasFunctions = m.HasFunctions || ln.named
			m.HasFilenames = m.HasFilenames || p.functions[ln.function].file != ""
			m.HasLineNumbers = m.HasLineNumbers || ln.line != 0
			m.HasInlineFrames = m.HasInlineFrames || ln.inlined
		}
	}
	for i, m := range mappings {
		if m.Limit == 0 && spans[i].min <= spans[i].max {
			m.Start, m.Limit = spans[i].min, spans[i].max
			if m.Limit < math.MaxUint64 {
				m.Limit++
			}
		}
	}
	return mappings[1:]
}

// Pprof returns the profile in pprof's terms: as it was read, with all its
// types of samples and labels, when it was read from a pprof file. The result
// is not to be changed.
func (p *Profile) Pprof() *pprof.Profile {
	if p.source != nil {
		return p.source
	}
	return p.pprof()
}
