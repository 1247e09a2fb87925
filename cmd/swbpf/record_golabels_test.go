package main

import (
	"strconv"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	"github.com/swbpf/swbpf/loader"
)

// Samples have the labels that their goroutine had at that moment, also where each request has its own.
func TestRecordGoLabels(t *testing.T) {
	t.Parallel()
	program := build(t, "golabels", "go", "build", "-o", "OUT", "./testdata/targets/golabels")
	r := runRecord(t, "-F", "1997", "--", program, "1.5")
	text := strings.Repeat("long ", 100)[:loader.MaxGoLabelBytes] + "..."
	count, wrong := map[string]int64{}, 0
	for _, s := range r.profile.Sample {
		in := ""
		for _, l := range s.Location {
			for _, line := range l.Line {
				if name, is := strings.CutPrefix(line.Function.Name, "main."); is && (name == "even" || name == "odd" || name == "unlabelled") {
					in = name
				}
			}
		}
		function, request := label(s, "function"), label(s, "request")
		n, err := strconv.Atoi(request)
		ok := true
		switch in {
		case "unlabelled":
			ok = function == "" && request == "" && label(s, "text") == "" && label(s, "go.pid") == ""
		case "even", "odd":
			ok = function == in && err == nil && (n%2 == 0) == (in == "even") && label(s, "text") == text &&
				label(s, "go.pid") == "mine"
		}
		if count[in] += s.Value[0]; !ok {
			if wrong++; wrong < 5 {
				t.Errorf("%s has %v", in, s.Label)
			}
		}
	}
	for _, in := range []string{"even", "odd", "unlabelled"} {
		if count[in] < 100 {
			t.Errorf("%d samples in %s", count[in], in)
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d kinds of samples have other labels", wrong, len(r.profile.Sample))
	}
}

// label returns the value of a label, "" where there is none.
func label(s *pprof.Sample, key string) string {
	if values := s.Label[key]; len(values) > 0 {
		return values[0]
	}
	return ""
}
