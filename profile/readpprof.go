package profile

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
)

// readPprof reads pprof's format, uncompressed.
func readPprof(data []byte, o ReadOptions) (*Profile, error) {
	if err := checkPprof(data); err != nil {
		return nil, err
	}
	src, err := pprof.ParseUncompressed(data)
	if err == nil {
		err = src.CheckValid()
	}
	if err != nil {
		return nil, &FormatError{"pprof", int64(len(data)), 0, err.Error()}
	}
	var notes []string
	if err := src.RemoveUninteresting(); err != nil {
		notes = append(notes, "drop_frames is not applied: "+err.Error())
	}
	p, err := fromPprof(src, squaresOfPprof(data, len(src.Sample)), o)
	if err != nil {
		return nil, fmt.Errorf("pprof: %w", err)
	}
	p.Meta.Notes = append(p.Meta.Notes, notes...)
	return p, nil
}

func noSuchType(wanted string, have []string) error {
	return fmt.Errorf("%w: %q; there is %s", ErrNoSuchType, wanted, strings.Join(have, ", "))
}

// countTypes are types of values that count samples, with what these are when
// they are something else.
var countTypes = map[string]string{
	"samples": "", "sample": "", "events": "events",
	"contentions": "contentions", "alloc_objects": "objects", "inuse_objects": "objects", "objects": "objects",
}

// countOf are the types that count what a type of values measures.
var countOf = map[string]string{
	"alloc_space": "alloc_objects", "inuse_space": "inuse_objects", "space": "objects", "delay": "contentions",
}

// pprofColumns are the values of a sample that are used.
type pprofColumns struct {
	value   int    // that was asked for
	count   int    // of samples, or -1
	counted string // what count counts, when not samples
}

// chooseColumns picks by the file's default, and else as pprof does.
func chooseColumns(src *pprof.Profile, wanted string) (pprofColumns, error) {
	var names []string
	for _, t := range src.SampleType {
		names = append(names, t.Type)
	}
	c := pprofColumns{value: len(names) - 1, count: -1}
	if wanted != "" {
		if c.value = slices.Index(names, wanted); c.value < 0 {
			return c, noSuchType(wanted, names)
		}
	} else if i := slices.Index(names, src.DefaultSampleType); i >= 0 {
		c.value = i
	}
	name, unit := names[c.value], src.SampleType[c.value].Unit
	if value, ok := strings.CutSuffix(name, samplesSuffix); ok && slices.Contains(names, value) {
		c.count = c.value
		return c, nil
	}
	if counted, ok := countTypes[name]; ok || unit == "count" && len(names) == 1 {
		c.count, c.counted = c.value, counted
		if !ok {
			c.counted = name + "s"
		}
		return c, nil
	}
	if i := slices.Index(names, countOf[name]); i >= 0 && names[i] != "" {
		c.count, c.counted = i, countTypes[names[i]]
	} else if i := slices.Index(names, name+samplesSuffix); i >= 0 {
		c.count = i
	} else if i := slices.IndexFunc(names, func(n string) bool { return n == "samples" || n == "sample" }); i >= 0 {
		c.count = i
	} else if i := slices.Index(names, strings.TrimSuffix(name, "_event")+"_sample"); i >= 0 {
		c.count = i // as perf_to_profile names them
	}
	return c, nil
}

// fromPprof makes a Profile of a valid pprof profile. equal has what
// squaresField tells of each sample, if anything.
func fromPprof(src *pprof.Profile, equal []float64, o ReadOptions) (*Profile, error) {
	c, err := chooseColumns(src, o.SampleType)
	if err != nil {
		return nil, err
	}
	meta := pprofMeta(src, o)
	isFirst := meta.chooseEvent(len(src.SampleType), &c, src.SampleType[c.value].Unit)
	a := newAssembler()
	locs := pprofPlaces(a, src)
	var stack []Loc
	negative, single, period := 0, true, meta.Period
	for i, s := range src.Sample {
		value, count := s.Value[c.value], int64(1)
		if c.count >= 0 {
			count = s.Value[c.count]
		}
		if value < 0 || count < 0 {
			negative++
			continue
		}
		if value == 0 && count == 0 {
			continue
		}
		places, truncated := s.Location, ""
		if n := len(places); n > 0 {
			if truncated = markerReason(places[n-1]); truncated != "" {
				places = places[:n-1]
			}
		}
		stack = stack[:0]
		for _, l := range places {
			stack = append(stack, locs[l])
		}
		thread := pprofThread(s)
		thread.Labels = a.b.Labels(pprofLabels(s, &thread)...)
		squares := 0.0
		if equal != nil && equal[i] > 0 {
			squares = float64(value) * float64(value) / equal[i]
		}
		if err := a.addSquares(thread, stack, truncated, count, value, squares); err != nil {
			return nil, fmt.Errorf("sample %d: %w", i, err)
		}
		single = single && c.count >= 0 && period > 0 && count <= math.MaxInt64/period && value == count*period
	}
	meta.Counted = c.counted
	meta.Value = ValueType{src.SampleType[c.value].Type, src.SampleType[c.value].Unit}
	meta.ByValue = c.value != c.count && !single
	if c.value == c.count {
		meta.Value = ValueType{}
		// A period says what a sample stands for also where only samples count.
		if t := src.PeriodType; t != nil && src.Period > 0 && c.counted == "" && isFirst {
			meta.Value = ValueType{t.Type, t.Unit}
		}
	}
	if negative > 0 {
		meta.Notes = append(meta.Notes, thousands(int64(negative))+" samples of negative value are left out")
	}
	p := a.b.Finish(meta, nil)
	p.Format, p.Type, p.source = "pprof", src.SampleType[c.value].Type, src
	p.reread = func(o ReadOptions) (*Profile, error) { return fromPprof(src, equal, o) }
	for _, t := range src.SampleType {
		p.Types = append(p.Types, ValueType{t.Type, t.Unit})
	}
	if c.value == c.count && meta.Value.Type != "" {
		p.valueByPeriod()
	}
	if len(src.Mapping) > 0 && src.Mapping[0].File != "" {
		p.program = baseName(src.Mapping[0].File)
	}
	return p, nil
}

// OfType returns the profile with widths of another of its Types, or of several events that which is
// called so.
func (p *Profile) OfType(name string) (*Profile, error) {
	if len(p.Meta.Also) > 0 {
		var names []string
		for i, t := range p.Types {
			if t.Type == name && i <= len(p.Meta.Also) {
				return p.ofEvent(i), nil
			}
			names = append(names, t.Type)
		}
		return nil, noSuchType(name, names)
	}
	o := ReadOptions{Name: p.Meta.Target, SampleType: name}
	if p.reread != nil {
		return p.reread(o)
	}
	other := *p
	return &other, o.checkType(&other)
}

// SetReader says how OfType reads the profile for another of its Types. Who has made it of what Read
// does not know sets Format, Types and Type, too.
func (p *Profile) SetReader(read func(ReadOptions) (*Profile, error)) { p.reread = read }

// valueByPeriod sets the values of samples of which only the number is known.
func (p *Profile) valueByPeriod() {
	if p.Meta.Period <= 0 || p.Samples > math.MaxInt64/p.Meta.Period {
		p.Meta.Value = ValueType{}
		return
	}
	p.Value = p.Samples * p.Meta.Period
	for i := range p.samples {
		p.samples[i].value = p.samples[i].count * p.Meta.Period
	}
}

// markerReason returns for what reason the stacks below a location are
// truncated, "" if it is no marker that says so.
func markerReason(l *pprof.Location) string {
	text, _ := markerOf(l)
	return truncatedReason(text)
}

// markerOf returns the text of a location that is a marker.
func markerOf(l *pprof.Location) (text string, ok bool) {
	if l.Mapping != nil || l.Address != 0 || len(l.Line) != 1 || l.Line[0].Function == nil {
		return "", false
	}
	text = l.Line[0].Function.Name
	return text, isMarker(text)
}

// isMarker reports whether a function's name is the text of a marker, if it is
// in no module and at no address.
func isMarker(name string) bool {
	return len(name) > 2 && name[0] == '[' && name[len(name)-1] == ']' && name != "[unknown]"
}

// linked reports whether a mapping whose name is one of memory is of a program
// or library that lies there: it has a build ID, or addresses as a linker gives
// them, where code made at run time has those of the process, which are higher.
func linked(m *pprof.Mapping) bool {
	const maxLinked = 1 << 32
	return m.BuildID != "" || strings.HasPrefix(m.File, "/memfd:") && m.Limit > m.Start && m.Limit <= maxLinked
}

// pprofPlaces makes the modules and frames.
func pprofPlaces(a *assembler, src *pprof.Profile) map[*pprof.Location]Loc {
	golang := map[*pprof.Mapping]bool{}
	for _, l := range src.Location {
		for _, ln := range l.Line {
			if f := ln.Function; f != nil && (strings.HasSuffix(f.Filename, ".go") || f.Name == "runtime.goexit") {
				golang[l.Mapping] = true
			}
		}
	}
	modules := map[*pprof.Mapping]uint32{}
	kinds := map[*pprof.Mapping]Kind{}
	for _, m := range src.Mapping {
		kind := kindOfPath(m.File)
		if kind == JIT && linked(m) {
			kind = Native
		}
		if golang[m] && (kind == Native || kind == Unknown) {
			kind = Go
		}
		kinds[m] = kind
		modules[m] = a.b.Module(Module{Path: m.File, BuildID: m.BuildID, Kind: kind, Start: m.Start, Limit: m.Limit, Offset: m.Offset})
	}
	if golang[nil] {
		kinds[nil] = Go
	}
	locs := make(map[*pprof.Location]Loc, len(src.Location))
	for _, l := range src.Location {
		if text, ok := markerOf(l); ok {
			locs[l] = a.b.Marker(text)
			continue
		}
		var lines []Line
		for i, ln := range l.Line {
			if ln.Function == nil {
				continue
			}
			f := ln.Function
			out := Line{
				Function: f.Name, SystemName: f.SystemName, File: f.Filename,
				Line: clampInt(ln.Line), StartLine: clampInt(f.StartLine), Inlined: i < len(l.Line)-1,
			}
			if out.Function == "" {
				out.Function = f.SystemName
			}
			if out.byAddress = addressName(out.Function); !out.byAddress {
				out.Kind = kindOfLine(kinds[l.Mapping], f.Filename)
			}
			if out.Function == "" {
				out.Start = l.Address
			}
			lines = append(lines, out)
		}
		if len(lines) == 0 {
			lines = []Line{{Start: l.Address}}
		}
		locs[l] = a.place(modules[l.Mapping], l.Address, lines)
	}
	return locs
}

// clampInt makes a line number of what a file says is one.
func clampInt(n int64) int {
	if n < 0 || n > math.MaxInt32 {
		return 0
	}
	return int(n)
}

// Labels by which tools tell where a sample was taken.
var (
	pidLabels  = []string{"pid", "process_id", "process.pid", "tgid"}
	tidLabels  = []string{"tid", "thread_id", "thread.id"}
	commLabels = []string{"comm", "thread_comm", "thread.name", "thread_name", "thread", "process", "command"}
)

func pprofThread(s *pprof.Sample) Thread {
	t := Thread{PID: numLabel(s, pidLabels), TID: numLabel(s, tidLabels)}
	if t.TID == 0 {
		t.TID = t.PID
	}
	for _, key := range commLabels {
		if v := s.Label[key]; len(v) > 0 && v[0] != "" {
			t.Comm = Comm(v[0])
			break
		}
	}
	return t
}

// pprofLabels returns the labels that do not tell the thread, which is t.
func pprofLabels(s *pprof.Sample, t *Thread) (labels []Label) {
	for key, values := range s.Label {
		if slices.Contains(commLabels, key) && len(values) > 0 && Comm(values[0]) == t.Comm {
			continue
		}
		for _, v := range values {
			labels = append(labels, Label{key, v})
		}
	}
	for key, values := range s.NumLabel {
		if slices.Contains(pidLabels, key) || slices.Contains(tidLabels, key) {
			continue
		}
		for i, v := range values {
			text := strconv.FormatInt(v, 10)
			if units := s.NumUnit[key]; i < len(units) && units[i] != "" && units[i] != key {
				text += " " + units[i]
			}
			labels = append(labels, Label{key, text})
		}
	}
	return labels
}

func numLabel(s *pprof.Sample, keys []string) int32 {
	for _, key := range keys {
		if v := s.NumLabel[key]; len(v) > 0 && v[0] > 0 && v[0] <= math.MaxInt32 {
			return int32(v[0])
		}
	}
	return 0
}

func pprofMeta(src *pprof.Profile, o ReadOptions) Meta {
	m := Meta{Target: o.Name, Period: max(src.Period, 0), Duration: time.Duration(max(src.DurationNanos, 0))}
	if src.TimeNanos > 0 {
		m.Start = time.Unix(0, src.TimeNanos)
	}
	if !parseDescription(&m, src.Comments) {
		if t := src.PeriodType; t != nil && t.Type != "" {
			m.Event = t.Type
		}
		if m.Event == "cpu" && m.Period > 0 {
			m.FrequencyHz = int((1e9 + m.Period/2) / m.Period)
		}
		m.Notes = append(m.Notes, src.Comments...)
	}
	return m
}
