package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestSpeedscope(t *testing.T) {
	var buf bytes.Buffer
	if err := fixture().WriteSpeedscope(&buf); err != nil {
		t.Fatal(err)
	}
	var file speedscopeFile
	if err := json.Unmarshal(buf.Bytes(), &file); err != nil {
		t.Fatal(err)
	}
	// What the format's schema asks of a sampled profile.
	for _, p := range file.Profiles {
		var sum int64
		for i, stack := range p.Samples {
			sum += p.Weights[i]
			for _, frame := range stack {
				if frame < 0 || frame >= len(file.Shared.Frames) {
					t.Fatalf("%s: frame %d of %d", p.Name, frame, len(file.Shared.Frames))
				}
			}
		}
		if p.Type != "sampled" || len(p.Samples) != len(p.Weights) || p.EndValue-p.StartValue != sum {
			t.Errorf("%s: type %s, %d samples, %d weights of %d, value %d", p.Name, p.Type,
				len(p.Samples), len(p.Weights), sum, p.EndValue)
		}
	}
	var names []string
	for _, p := range file.Profiles {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, ","); got != "all,app,gosrv" {
		t.Errorf("profiles %s", got)
	}
	if all := file.Profiles[0]; all.Unit != "nanoseconds" || all.EndValue != 99*10_101_010 {
		t.Errorf("%d %s in all", all.EndValue, all.Unit)
	}
	// By folded stacks, the two formats say the same.
	got := map[string]int64{}
	for i, stack := range file.Profiles[0].Samples {
		text := make([]string, len(stack))
		for j, frame := range stack {
			text[j] = file.Shared.Frames[frame].Name
		}
		got[strings.Join(text, ";")] += file.Profiles[0].Weights[i]
	}
	if n := got["app;__libc_start_main;main;fill(int);std::vector<int>::push_back(int const&)"]; n != 57*10_101_010 {
		t.Errorf("push_back has %d in %v", n, got)
	}
	if err := fixture().WriteSpeedscope(brokenWriter{}); !errors.Is(err, errBroken) {
		t.Errorf("error %v", err)
	}
}

func TestSpeedscopeUnit(t *testing.T) {
	for _, test := range []struct {
		meta Meta
		want string
	}{
		{Meta{}, "none"},
		{Meta{Value: ValueType{"cpu", "nanoseconds"}}, "none"},
		{Meta{Value: ValueType{"cpu", "nanoseconds"}, Period: 5}, "nanoseconds"},
		{Meta{Value: ValueType{"off-cpu", "nanoseconds"}, ByValue: true}, "nanoseconds"},
		{Meta{Value: ValueType{"alloc", "bytes"}, ByValue: true}, "bytes"},
		{Meta{Value: ValueType{"page-faults", "count"}, Period: 1}, "none"},
	} {
		if got := (&Profile{Meta: test.meta}).speedscopeUnit(); got != test.want {
			t.Errorf("%+v: %s, want %s", test.meta, got, test.want)
		}
	}
}
