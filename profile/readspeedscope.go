package profile

import (
	"encoding/json"
	"math"
	"strings"
)

const speedscopeFormat = "speedscope"

// speedscopeUnits are nanoseconds by units of time; the others are 0.
var speedscopeUnits = map[string]float64{"nanoseconds": 1, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9, "bytes": 0, "none": 0}

// speedscopeRead is what is read of a file, where weights may have fractions.
type speedscopeRead struct {
	Name     string `json:"name"`
	Exporter string `json:"exporter"`
	Meta     *Meta  `json:"swbpf"`
	Shared   struct {
		Frames []struct {
			Name *string `json:"name"`
			File string  `json:"file"`
			Line int     `json:"line"`
		} `json:"frames"`
	} `json:"shared"`
	Profiles []struct {
		Type       string    `json:"type"`
		Name       string    `json:"name"`
		Unit       string    `json:"unit"`
		StartValue float64   `json:"startValue"`
		EndValue   float64   `json:"endValue"`
		Samples    [][]int   `json:"samples"`
		Weights    []float64 `json:"weights"`
		Events     []struct {
			Type  string  `json:"type"` // "O" opens a frame, "C" closes it
			At    float64 `json:"at"`
			Frame int     `json:"frame"`
		} `json:"events"`
	} `json:"profiles"`
}

// readSpeedscope reads speedscope's own format. Its profiles are taken for
// threads, which they are called after.
func readSpeedscope(data []byte, o ReadOptions) (*Profile, error) {
	var file speedscopeRead
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, jsonError(speedscopeFormat, data, err)
	}
	s := speedscopeReader{data: data, file: &file, a: newAssembler()}
	for i, f := range file.Shared.Frames {
		if f.Name == nil {
			return nil, jsonErrorAt(speedscopeFormat, data, []any{"shared", "frames", i}, "the frame has no name")
		}
		s.names = append(s.names, *f.Name)
		s.frames = append(s.frames, s.frame(*f.Name, f.File, f.Line))
	}
	profiles := file.Profiles
	first := 0
	if file.Meta != nil && len(profiles) > 1 {
		first = 1 // ours has all in the first, and then each process apart
	}
	for i := first; i < len(profiles); i++ {
		if p := &profiles[i]; p.Unit != profiles[first].Unit {
			return nil, jsonErrorAt(speedscopeFormat, data, []any{"profiles", i, "unit"}, "%q, where others of the file have %q", p.Unit, profiles[first].Unit)
		}
		if err := s.profile(i); err != nil {
			return nil, err
		}
	}
	if s.a.count == 0 && (file.Meta == nil || len(profiles) == 0) { // a recording of nothing says so
		return nil, jsonErrorAt(speedscopeFormat, data, []any{"profiles"}, "no samples")
	}
	m := Meta{Target: o.Name}
	if file.Name != "" {
		m.Target = file.Name
	}
	m.Value, m.ByValue = s.value(profiles[first].Unit)
	if file.Meta != nil {
		m = *file.Meta
	}
	p := s.a.b.Finish(m, nil)
	p.Format, p.Types = speedscopeFormat, typesOf(&m)
	return p, o.checkType(p)
}

type speedscopeReader struct {
	data   []byte
	file   *speedscopeRead
	a      *assembler
	frames []Loc
	names  []string // of the frames
}

// value tells what weights are.
func (s *speedscopeReader) value(unit string) (ValueType, bool) {
	switch {
	case speedscopeUnits[unit] != 0:
		return ValueType{"time", "nanoseconds"}, true
	case unit == "bytes":
		return ValueType{"space", "bytes"}, true
	}
	return ValueType{}, false
}

func (s *speedscopeReader) frame(name, file string, start int) Loc {
	ln := Line{Function: name, File: file, StartLine: max(start, 0)}
	kind := kindOfPath(file)
	module := uint32(0)
	isSource := strings.HasPrefix(file, "<") || strings.HasPrefix(file, "node:") // of Python's and Node's own
	if kind == Kernel || kind == JIT || !isSource && !strings.Contains(baseName(file), ".") || strings.Contains(baseName(file), ".so") {
		// Where the source is not known, the file is that of the module.
		ln.File = ""
		if file != "" {
			module = s.a.b.Module(Module{Path: file, Kind: kind})
		}
	}
	if isMarker(name) && file == "" {
		return s.a.b.Marker(name)
	}
	if ln.byAddress = addressName(name); !ln.byAddress {
		ln.Kind = kindOfLine(kind, file)
	}
	return s.a.place(module, 0, []Line{ln})
}

func (s *speedscopeReader) profile(i int) error {
	p := &s.file.Profiles[i]
	t := Thread{Comm: Comm(p.Name)}
	if _, ok := speedscopeUnits[p.Unit]; !ok {
		return jsonErrorAt(speedscopeFormat, s.data, []any{"profiles", i, "unit"}, "%q is no unit", p.Unit)
	}
	switch p.Type {
	case "sampled":
		if len(p.Samples) != len(p.Weights) {
			return jsonErrorAt(speedscopeFormat, s.data, []any{"profiles", i, "weights"}, "%d weights of %d samples", len(p.Weights), len(p.Samples))
		}
		sum := 0.0
		for j, stack := range p.Samples {
			if err := s.add(t, stack, p.Weights[j], p.Unit, []any{"profiles", i, "samples", j}); err != nil {
				return err
			}
			sum += p.Weights[j]
		}
		// Ours tell the sum, which is exact up to 2^53.
		if s.file.Meta != nil && sum != p.EndValue-p.StartValue && sum < 1<<53 {
			return jsonErrorAt(speedscopeFormat, s.data, []any{"profiles", i, "weights"}, "their sum is %.0f, not %.0f", sum, p.EndValue-p.StartValue)
		}
		return nil
	case "evented":
		return s.events(i, t)
	}
	return jsonErrorAt(speedscopeFormat, s.data, []any{"profiles", i, "type"}, "%q is neither \"sampled\" nor \"evented\"", p.Type)
}

// events counts the stacks of a profile that tells when frames are opened and closed.
func (s *speedscopeReader) events(i int, t Thread) error {
	p := &s.file.Profiles[i]
	var open []int
	var stack openStack
	last := 0.0
	for j, e := range p.Events {
		path := []any{"profiles", i, "events", j}
		if e.Frame < 0 || e.Frame >= len(s.frames) {
			return jsonErrorAt(speedscopeFormat, s.data, path, "frame %d of %d", e.Frame, len(s.frames))
		}
		if j > 0 && e.At < last {
			return jsonErrorAt(speedscopeFormat, s.data, path, "at %g, after one at %g", e.At, last)
		}
		if weight := e.At - last; len(open) > 0 && weight != 0 {
			count, value, err := s.weight(weight, p.Unit, path)
			if err == nil {
				if err = s.a.addOpen(t, &stack, count, value); err != nil {
					err = jsonErrorAt(speedscopeFormat, s.data, path, "%v", err)
				}
			}
			if err != nil {
				return err
			}
		}
		last = e.At
		switch {
		case e.Type == "O" && len(open) == maxOpen:
			return jsonErrorAt(speedscopeFormat, s.data, path, "more than %d frames are open", maxOpen)
		case e.Type == "O":
			open = append(open, e.Frame)
			if reason := truncatedReason(s.names[e.Frame]); len(open) == 1 && reason != "" {
				stack.root = s.a.b.root(reason)
			} else {
				stack.push(s.frames[e.Frame])
			}
		case e.Type == "C" && len(open) > 0 && open[len(open)-1] == e.Frame:
			open = open[:len(open)-1]
			if len(stack.frames) > 0 {
				stack.pop()
			} else {
				stack.root = 0
			}
		case e.Type == "C":
			return jsonErrorAt(speedscopeFormat, s.data, path, "closes frame %d, which is not the innermost open one", e.Frame)
		default:
			return jsonErrorAt(speedscopeFormat, s.data, path, "type %q is neither \"O\" nor \"C\"", e.Type)
		}
	}
	if len(open) > 0 {
		return jsonErrorAt(speedscopeFormat, s.data, []any{"profiles", i, "events"}, "%d frames are never closed", len(open))
	}
	return nil
}

// weight returns what a weight, that path leads to, stands for: samples and their value.
func (s *speedscopeReader) weight(weight float64, unit string, path []any) (count, value int64, err error) {
	per := 1.0
	if ns := speedscopeUnits[unit]; ns != 0 {
		per = ns
	}
	rounded := math.Round(weight * per)
	if !(rounded >= 0 && rounded < 1<<62) {
		return 0, 0, jsonErrorAt(speedscopeFormat, s.data, path, "the weight %g is none", weight)
	}
	count, value = int64(rounded), int64(rounded)
	if _, byValue := s.value(unit); byValue {
		count = 1
		if m := s.file.Meta; m != nil && !m.ByValue && m.Period > 0 {
			count = value / m.Period
		}
	}
	return count, value, nil
}

// add counts a stack, root first, that path leads to.
func (s *speedscopeReader) add(t Thread, stack []int, weight float64, unit string, path []any) error {
	count, value, err := s.weight(weight, unit, path)
	if err != nil {
		return err
	}
	truncated := ""
	if len(stack) > 0 && stack[0] >= 0 && stack[0] < len(s.frames) {
		if truncated = truncatedReason(s.names[stack[0]]); truncated != "" {
			stack = stack[1:]
		}
	}
	locs := make([]Loc, len(stack))
	for k, frame := range stack {
		if frame < 0 || frame >= len(s.frames) {
			return jsonErrorAt(speedscopeFormat, s.data, path, "frame %d of %d", frame, len(s.frames))
		}
		locs[len(stack)-1-k] = s.frames[frame]
	}
	if err := s.a.add(t, locs, truncated, count, value); err != nil {
		return jsonErrorAt(speedscopeFormat, s.data, path, "%v", err)
	}
	return nil
}
