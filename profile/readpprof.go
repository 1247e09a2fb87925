package profile

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

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
	from := &pprofSource{Profile: src, types: pprofTypes(src), equal: squaresOfPprof(data, len(src.Sample))}
	if meta := metaOfPprof(data, from.types); meta != nil {
		from.meta, from.known = *meta, true
	} else {
		from.meta = describedMeta(src, o)
	}
	p, err := from.profile(o)
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

// pprofSource is a profile that was read, with what fields of this package tell of it.
type pprofSource struct {
	*pprof.Profile
	types []ValueType
	meta  Meta
	known bool      // meta is what was written, and not what was made of the rest
	equal []float64 // of each sample, as squaresField tells it; or nil
}

// pprofColumns are the values of a sample that are used for an event.
type pprofColumns struct {
	value   int    // that was asked for
	count   int    // of samples, or -1
	counted string // what count counts, when not samples
	known   bool   // Meta tells what they are
}

// choose picks the columns of all events, or of the one or the type that is wanted, and says
// which event that is, of several: of those Meta remains to be told the values, where it is not
// known.
func (src *pprofSource) choose(wanted string) (columns []pprofColumns, number int, err error) {
	events := src.meta.events()
	if len(events) == 1 {
		c, err := src.chooseColumns(wanted)
		c.known = src.known && c.value == len(src.types)-1
		return []pprofColumns{c}, 0, err
	}
	names := uniqueNames(events)
	for i, name := range names {
		if wanted == "" || wanted == name {
			columns, number = append(columns, pprofColumns{2*i + 1, 2 * i, "", src.known}), i
		}
	}
	if columns != nil {
		return columns, number, nil
	}
	c, err := src.chooseColumns(wanted)
	if err != nil {
		for _, t := range src.types {
			if !slices.Contains(names, t.Type) {
				names = append(names, t.Type)
			}
		}
		return nil, 0, noSuchType(wanted, names)
	}
	c.known = src.known && c.value != c.count
	return []pprofColumns{c}, c.value / 2, nil
}

func typeNames(types []ValueType) (names []string) {
	for _, t := range types {
		names = append(names, t.Type)
	}
	return names
}

// chooseColumns picks by the file's default, and else as pprof does.
func (src *pprofSource) chooseColumns(wanted string) (pprofColumns, error) {
	names := typeNames(src.types)
	c := pprofColumns{value: len(names) - 1, count: -1}
	if wanted != "" {
		if c.value = slices.Index(names, wanted); c.value < 0 {
			return c, noSuchType(wanted, names)
		}
	} else if i := slices.Index(names, src.DefaultSampleType); i >= 0 {
		c.value = i
	}
	name, unit := names[c.value], src.types[c.value].Unit
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

// values returns what a sample has for an event, 1 for a number of samples that is not told.
func (c *pprofColumns) values(s *pprof.Sample) (count, value int64) {
	if c.count < 0 {
		return 1, s.Value[c.value]
	}
	return s.Value[c.count], s.Value[c.value]
}

// profile makes a Profile of all events, or of what was asked for.
func (src *pprofSource) profile(o ReadOptions) (*Profile, error) {
	columns, number, err := src.choose(o.SampleType)
	if err != nil {
		return nil, err
	}
	meta, names := src.meta, uniqueNames(src.meta.events())
	if len(columns) < len(names) {
		meta = meta.ofEvent(number)
	}
	meta.Notes = slices.Clone(meta.Notes)
	events := meta.events()
	single := make([]bool, len(events)) // each sample has the period for its value
	for i := range single {
		single[i] = events[i].Period > 0
	}
	a := newAssembler()
	locs := pprofPlaces(a, src.Profile)
	var stack []Loc
	negative := 0
	for i, s := range src.Sample {
		used := 0 // events that have something of it: one, but of what pprof has put together
		for k := range columns {
			count, value := columns[k].values(s)
			if value < 0 || count < 0 {
				negative++
			} else if value != 0 || count != 0 {
				used++
			}
		}
		if used == 0 {
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
		for k := range columns {
			count, value := columns[k].values(s)
			if value < 0 || count < 0 || value == 0 && count == 0 {
				continue
			}
			squares := 0.0
			if used == 1 && src.equal != nil && src.equal[i] > 0 {
				squares = float64(value) * float64(value) / src.equal[i]
			}
			thread.Event = uint8(k)
			if err := a.addSquares(thread, stack, truncated, count, value, squares); err != nil {
				return nil, fmt.Errorf("sample %d: %w", i, err)
			}
			period := events[k].Period
			single[k] = single[k] && columns[k].count >= 0 && count <= math.MaxInt64/period && value == count*period
		}
	}
	for k := range columns {
		c, e := &columns[k], &events[k]
		if c.known {
			continue
		}
		meta.Counted = c.counted
		e.Value, e.ByValue = src.types[c.value], c.value != c.count && !single[k]
		if c.value == c.count {
			e.Value = ValueType{}
			// A period says what a sample stands for also where only samples count.
			if t := src.PeriodType; t != nil && src.Period > 0 && c.counted == "" && number == 0 {
				e.Value = ValueType{t.Type, t.Unit}
			}
		}
	}
	meta.setEvents(events)
	if negative > 0 {
		meta.Notes = append(meta.Notes, thousands(int64(negative))+" samples of negative value are left out")
	}
	p := a.b.Finish(meta, nil)
	p.Format, p.source, p.reread = "pprof", src.Profile, src.profile
	p.Types, p.Type = src.types, src.types[columns[0].value].Type
	if len(names) > 1 {
		p.setEventTypes(names, number, columns)
	}
	if c := &columns[0]; !c.known && c.value == c.count && meta.Value.Type != "" {
		p.valueByPeriod()
	}
	if len(src.Mapping) > 0 && src.Mapping[0].File != "" {
		p.program = baseName(src.Mapping[0].File)
	}
	return p, nil
}

// setEventTypes sets Types to the names of events, of which p is all or one.
func (p *Profile) setEventTypes(names []string, number int, columns []pprofColumns) {
	counts := p.Type // of the samples of an event alone
	p.Types = nil
	for _, name := range names {
		p.Types = append(p.Types, ValueType{name, "count"})
	}
	switch c := &columns[0]; {
	case len(columns) > 1:
		p.Type = names[0]
	case c.value != c.count:
		p.Type = names[number]
	default:
		p.Types = append(p.Types, ValueType{counts, "count"})
	}
}

// OfType returns the profile with widths of another of its Types, or of several events that which is
// called so.
func (p *Profile) OfType(name string) (*Profile, error) {
	if len(p.Meta.Also) > 0 {
		return p.ofNamedEvent(name)
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
