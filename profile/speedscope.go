package profile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

const speedscopeSchema = "https://www.speedscope.app/file-format-schema.json"

// speedscopeFile is speedscope's own format, of which there is one profile
// for the whole and one for each process.
type speedscopeFile struct {
	Schema   string              `json:"$schema"`
	Name     string              `json:"name"`
	Exporter string              `json:"exporter,omitempty"`
	Meta     *Meta               `json:"swbpf"` // for reading it back
	Active   int                 `json:"activeProfileIndex"`
	Shared   speedscopeShared    `json:"shared"`
	Profiles []speedscopeProfile `json:"profiles"`
}

type speedscopeShared struct {
	Frames []speedscopeFrame `json:"frames"`
}

type speedscopeFrame struct {
	Name string `json:"name"`
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

type speedscopeProfile struct {
	Type       string  `json:"type"`
	Name       string  `json:"name"`
	Unit       string  `json:"unit"`
	StartValue int64   `json:"startValue"`
	EndValue   int64   `json:"endValue"`
	Samples    [][]int `json:"samples"` // frames, root first
	Weights    []int64 `json:"weights"`
}

// WriteSpeedscope writes the profile as https://www.speedscope.app reads it.
// The first of its profiles is of all processes, with the process's name as
// root frame; after that comes one for each process name, the heaviest first.
// Stacks are in no order of time, which speedscope's "left heavy" and
// "sandwich" views do not need.
func (p *Profile) WriteSpeedscope(w io.Writer) error {
	t := p.flameTree()
	out := speedscopeFile{
		Schema: speedscopeSchema,
		Name:   p.Meta.Target, Exporter: p.Meta.Tool, Meta: &p.Meta,
	}
	out.Shared.Frames = make([]speedscopeFrame, len(t.functions))
	for i := range t.functions {
		f := &t.functions[i]
		frame := &out.Shared.Frames[i]
		frame.Name, frame.File, frame.Line = f.name, f.file, f.startLine
		if frame.File == "" {
			frame.File = f.module
		}
	}
	unit := p.speedscopeUnit()
	all := speedscopeProfile{Type: "sampled", Name: "all", Unit: unit, Samples: [][]int{}, Weights: []int64{}}
	parts := make([]speedscopeProfile, len(t.processes))
	for i, name := range t.processes {
		parts[i] = speedscopeProfile{Type: "sampled", Name: name, Unit: unit}
	}
	for i := range t.samples {
		s := &t.samples[i]
		var stack []int
		for n := s.node; n != 0; n = t.nodes[n].parent {
			stack = append(stack, int(t.nodes[n].function))
		}
		slices.Reverse(stack)
		weight := p.weight(&s.tally)
		if unit == "nanoseconds" && !p.Meta.ByValue {
			weight *= p.Meta.Period
		}
		all.add(stack, weight)
		parts[t.threads[s.thread].process].add(stack[1:], weight)
	}
	slices.SortStableFunc(parts, func(x, y speedscopeProfile) int { return int(min(max(y.EndValue-x.EndValue, -1), 1)) })
	out.Profiles = append([]speedscopeProfile{all}, parts...)

	buffered := bufio.NewWriter(w)
	err := json.NewEncoder(buffered).Encode(&out)
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		return fmt.Errorf("writing speedscope: %w", err)
	}
	return nil
}

func (p *speedscopeProfile) add(stack []int, weight int64) {
	p.Samples = append(p.Samples, stack)
	p.Weights = append(p.Weights, weight)
	p.EndValue += weight
}

// speedscopeUnit returns the unit of weights in speedscope's words: time where
// a sample stands for time.
func (p *Profile) speedscopeUnit() string {
	v := p.Meta.Value
	switch {
	case v.Unit == "nanoseconds" && (p.Meta.ByValue || p.Meta.Period > 0):
		return "nanoseconds"
	case v.Unit == "bytes" && p.Meta.ByValue:
		return "bytes"
	}
	return "none"
}
