package main

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
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

// A walk shows the labels that goroutines had at that moment: on threads, and those that all of a group have.
func TestWalkGoLabels(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(build(t, "golabels", "go", "build", "-o", "OUT", "./testdata/targets/golabels"), "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	seen := map[string]int{}
	for n := 0; n < 200 && (seen["even"] < 3 || seen["odd"] < 3 || seen["unlabelled"] < 3); n++ {
		out, stderr, code := runWalk(t, "--json", strconv.Itoa(cmd.Process.Pid))
		if code != exitOK {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		var p jsonProcess
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			t.Fatal(err)
		}
		for _, th := range p.Threads {
			for _, f := range th.Frames {
				in, _ := strings.CutPrefix(f.Function, "main.")
				switch in {
				default:
					continue
				case "even", "odd":
					if th.GoLabels["function"] != in || len(th.GoLabels["text"]) != 500 || th.GoLabels["pid"] != "mine" {
						t.Errorf("%s has %v", in, th.GoLabels)
					}
				case "unlabelled":
					if len(th.GoLabels) > 0 {
						t.Errorf("%s has %v", in, th.GoLabels)
					}
				}
				seen[in]++
				break
			}
		}
		waits := 0
		for _, g := range p.Goroutines {
			if g.Labels["group"] == "waits" {
				if waits += len(g.IDs); len(g.IDs) > 1 && len(g.Labels) != 1 {
					t.Errorf("goroutines %d have %v", g.IDs, g.Labels)
				}
			}
		}
		if waits != 3 {
			continue // they have not all begun
		}
		seen["waits"]++
	}
	for _, what := range []string{"even", "odd", "unlabelled", "waits"} {
		if seen[what] < 3 {
			t.Errorf("%s were seen %d times", what, seen[what])
		}
	}
	out, _, _ := runWalk(t, strconv.Itoa(cmd.Process.Pid))
	if want := `\n3 goroutines [-\d, ]+ \[select \(no cases\)(, \d+s)?\] \{"group": "waits"\}: complete\n`; !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("no %s in\n%s", want, out)
	}
}

// Where the copy of a stack ends has nothing to do with the labels and frames that were copied with it.
func TestCopiedTo(t *testing.T) {
	s := loader.Sample{
		Regions:      []procstate.Region{{Addr: 0x1000, Data: make([]byte, 64)}, {Addr: 0x9000, Data: make([]byte, 8)}, {Addr: 0x5000, Data: make([]byte, 8)}},
		FrameRegions: 1, LabelRegions: 1,
	}
	if to := copiedTo(&s); to != 0x1040 {
		t.Errorf("%#x", to)
	}
}
