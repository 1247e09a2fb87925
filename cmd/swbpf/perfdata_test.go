package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/perfdata"
	"github.com/swbpf/swbpf/internal/perfdata/perftest"
	"github.com/swbpf/swbpf/internal/recorded"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// scriptSample is a sample in the text of perf script.
type scriptSample struct {
	frames    []uint64 // addresses, leaf first; those of functions inlined are left out
	names     []string
	truncated string
}

var (
	scriptHeader = regexp.MustCompile(`^\s*\S.*?\s+-?\d+/(-?\d+)\s+(?:\[\d+\]\s+)?(\d+)\.(\d+):`)
	scriptFrame  = regexp.MustCompile(`^\s+([0-9a-f]+) (.*) \((.*)\)$`)
)

// parseScript reads the samples of a text by thread and time in us.
func parseScript(t *testing.T, text string) map[string]*scriptSample {
	t.Helper()
	samples := map[string]*scriptSample{}
	var last *scriptSample
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := scriptFrame.FindStringSubmatch(line); m != nil && last != nil {
			addr, err := strconv.ParseUint(m[1], 16, 64)
			switch {
			case err != nil:
				t.Fatal(err)
			case strings.HasPrefix(m[2], "[truncated"):
				last.truncated = m[2]
			case m[3] != "inlined":
				last.frames, last.names = append(last.frames, addr), append(last.names, m[2])
			}
		} else if m := scriptHeader.FindStringSubmatch(line); m != nil {
			last = new(scriptSample)
			samples[m[1]+" "+m[2]+"."+m[3][:6]] = last
		}
	}
	return samples
}

// readPerfData reads a recording, with the samples in the text of perf script.
func readPerfData(t *testing.T, path string, o profile.ReadOptions) (*profile.Profile, map[string]*scriptSample) {
	t.Helper()
	o.Times = true
	p, err := readProfile(path, o, codeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := p.WritePerfScript(&text); err != nil {
		t.Fatal(err)
	}
	return p, parseScript(t, text.String())
}

// perfRecord has perf record a command, to what OUT stands for.
func perfRecord(t *testing.T, args ...string) (path string) {
	t.Helper()
	testenv.Needs(t, "perf")
	path = filepath.Join(t.TempDir(), "perf.data")
	args = append([]string{"record", "-q", "-F", "499"}, args...)
	for i := range args {
		if args[i] == "OUT" {
			args[i] = path
		}
	}
	cmd := exec.Command("perf", args...)
	if slices.Contains(args, "-") {
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		cmd.Stdout = out
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("perf %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return path
}

// Stacks of what perf has recorded are those that perf itself finds, or what these are the beginning of,
// from a file and from a pipe, compressed or not.
func TestPerfData(t *testing.T) {
	t.Parallel()
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	for name, args := range map[string][]string{
		"file": {"-o", "OUT"}, "pipe": {"-o", "-"}, "packed": {"-z", "-o", "OUT"}, "packed pipe": {"-z", "-o", "-"},
	} {
		t.Run(name, func(t *testing.T) {
			path := perfRecord(t, slices.Concat([]string{"-e", "cpu-clock", "--call-graph", "dwarf"}, args, []string{target, "1"})...)
			script, err := exec.Command("perf", "script", "--no-inline", "-i", path, "-F", "comm,pid,tid,time,ip,sym,dso").Output()
			if err != nil {
				t.Fatal(err)
			}
			want := parseScript(t, string(script))
			p, got := readPerfData(t, path, profile.ReadOptions{})
			if len(got) < 100 || len(got) != len(want) {
				t.Fatalf("%d samples, of perf %d", len(got), len(want))
			}
			if p.Meta.Event != "cpu-clock" || p.Meta.FrequencyHz != 499 || p.Meta.Value.Type != "cpu" || p.Value < 4e8 || len(p.Meta.Notes) > 0 || p.Meta.Kernel == "" {
				t.Errorf("%+v", p.Meta)
			}
			same, depth30, complete := 0, 0, 0
			for key, w := range want {
				g := got[key]
				switch {
				case g == nil:
					t.Errorf("no sample %s", key)
					continue
				case slices.Equal(g.frames, w.frames):
					same++
				case g.truncated == "" && len(g.frames) > len(w.frames):
					if n := len(w.frames) - 1; slices.Equal(g.frames[:n], w.frames[:n]) {
						same++
					}
				}
				if g.truncated == "" {
					complete++
				}
				if slices.Contains(g.names, "main") && slices.Contains(g.names, "_start") {
					depth30++
				}
			}
			if float64(same) < 0.95*float64(len(want)) || float64(complete) < 0.98*float64(len(want)) || float64(depth30) < 0.9*float64(len(want)) {
				t.Errorf("of %d samples %d are as perf has them, %d are complete, %d have main", len(want), same, complete, depth30)
			}
		})
	}
}

// A file that is another one now is not used, and that is told.
func TestPerfDataOtherFile(t *testing.T) {
	built := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	other := build(t, "depth30-O1", "g++", "-O1", "-o", "OUT", "testdata/targets/depth30.cc")
	t.Setenv("HOME", t.TempDir()) // where perf keeps copies
	for _, out := range []string{"OUT", "-"} {
		target := filepath.Join(t.TempDir(), "target")
		copyOf := func(program string) {
			b, err := os.ReadFile(program)
			if err == nil {
				err = os.WriteFile(target, b, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		copyOf(built)
		path := perfRecord(t, "-N", "-e", "cpu-clock", "--call-graph", "dwarf", "-o", out, target, "1")
		p, _ := readPerfData(t, path, profile.ReadOptions{})
		if p.Complete*100 < 98*p.Samples || len(p.Meta.Notes) > 0 {
			t.Errorf("%s: %d of %d stacks are complete; %q", out, p.Complete, p.Samples, p.Meta.Notes)
		}
		if err := os.Remove(target); err != nil {
			t.Fatal(err)
		}
		for _, state := range []string{"gone", "another"} {
			if state == "another" {
				copyOf(other)
			}
			p, got := readPerfData(t, path, profile.ReadOptions{})
			if p.Complete*10 > p.Samples || len(p.Truncated) == 0 || p.Truncated[0].Name != unwind.NoFile.String() ||
				len(p.Meta.Notes) != 1 || !strings.Contains(p.Meta.Notes[0], target) {
				t.Errorf("%s, %s: %d of %d stacks are complete, %v; %q", out, state, p.Complete, p.Samples, p.Truncated, p.Meta.Notes)
			}
			for _, s := range got {
				if slices.Contains(s.names, "main") {
					t.Errorf("%s, %s: names of another file", out, state)
					break
				}
			}
		}
	}
}

// Files that are gone are found among those that perf has kept, and in directories for debug files.
func TestPerfDataKeptFile(t *testing.T) {
	built := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	b, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	home, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
	t.Setenv("HOME", home)
	if err := os.WriteFile(target, b, 0o755); err != nil {
		t.Fatal(err)
	}
	path := perfRecord(t, "-e", "cpu-clock", "--call-graph", "dwarf", "-o", "OUT", target, "1")
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	complete := func(code codeOptions) bool {
		p, err := readProfile(path, profile.ReadOptions{}, code)
		if err != nil {
			t.Fatal(err)
		}
		return p.Complete*100 >= 98*p.Samples
	}
	if !complete(codeOptions{}) {
		t.Error("not found in ~/.debug")
	}
	t.Setenv("HOME", t.TempDir())
	if complete(codeOptions{}) {
		t.Error("found, but it is gone")
	}
	if !complete(codeOptions{names: symbols.Options{DebugDirs: []string{filepath.Join(home, ".debug")}}}) {
		t.Error("not found in a directory for debug files")
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		im, err := procstate.NewImageBytes(b, target)
		if err != nil || r.URL.Path != "/buildid/"+im.BuildID()+"/executable" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(b)
	}))
	defer server.Close()
	t.Setenv("DEBUGINFOD_CACHE_PATH", t.TempDir())
	flags := symbolFlags{demangle: "simple", debuginfod: server.URL}
	names, err := flags.options()
	if err != nil {
		t.Fatal(err)
	}
	if !complete(codeOptions{names, flags.fetchProgram}) {
		t.Error("not found on a server")
	}
}

// The kernel of a recording is named by the symbols of its build, as far from where they are as it was.
func TestPerfDataKernel(t *testing.T) {
	id := bytes.Repeat([]byte{0xab}, 20)
	home := t.TempDir()
	t.Setenv("HOME", home)
	dir := filepath.Join(home, ".debug", ".build-id", "ab", strings.Repeat("ab", 19))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const kallsyms = `ffffffff81000000 T _text
ffffffff81000000 T _stext
ffffffff81000100 T first
ffffffff81000200 t second
ffffffff81001000 T _etext
ffffffffa0000000 t of_module	[mod]
`
	if err := os.WriteFile(filepath.Join(dir, "kallsyms"), []byte(kallsyms), 0o600); err != nil {
		t.Fatal(err)
	}
	const slide = 0x3000000
	rec := perftest.Recording{
		Machine: "x86_64", Host: "elsewhere", Release: "1.2.3",
		Attrs: []perftest.Attr{{
			SampleType: unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_CALLCHAIN,
			Flags:      perftest.SampleIDAll, ID: 1, Name: "cycles",
		}},
	}
	rec.Add(unix.PERF_RECORD_MMAP, unix.PERF_RECORD_MISC_KERNEL, -1, 0, uint64(0xffffffff81000000+slide), uint64(0x1000), uint64(0xffffffff81000000+slide),
		"[kernel.kallsyms]_text", -1, 0, uint64(0))
	kernel := ^uint64(127)
	chain := []uint64{kernel, 0xffffffff81000110 + slide, 0xffffffff81000250 + slide, 0xffffffffa0000010 + slide}
	rec.Add(unix.PERF_RECORD_SAMPLE, unix.PERF_RECORD_MISC_KERNEL, chain[1], 5, 5, uint64(1000), uint64(len(chain)), chain)
	path := filepath.Join(t.TempDir(), "perf.data")
	for _, known := range []bool{true, false} {
		rec.BuildID = [][]byte{perftest.BuildIDRecord(0, unix.PERF_RECORD_MISC_KERNEL, -1, id, "[kernel.kallsyms]")}
		if !known {
			id[3] = 0
			rec.BuildID = [][]byte{perftest.BuildIDRecord(0, unix.PERF_RECORD_MISC_KERNEL, -1, id, "[kernel.kallsyms]")}
		}
		if err := os.WriteFile(path, rec.File(), 0o600); err != nil {
			t.Fatal(err)
		}
		p, got := readPerfData(t, path, profile.ReadOptions{})
		want := []string{"first", "second", "[unknown]"}
		if !known {
			want[0], want[1] = "[unknown]", "[unknown]"
		}
		s := got["5 0.000001"]
		if s == nil || !slices.Equal(s.names, want) || known != !slices.ContainsFunc(p.Meta.Notes, func(n string) bool { return strings.Contains(n, "1.2.3") }) {
			t.Errorf("known: %v: %+v, want %q; %q", known, s, want, p.Meta.Notes)
		}
	}
}

// One event of several is read when it is asked for; recordings without call graphs have one frame of each sample.
// Events without samples are left out.
func TestPerfDataEvent(t *testing.T) {
	t.Parallel()
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	path := perfRecord(t, "-e", "emulation-faults,cpu-clock:u,page-faults", "-o", "OUT", target, "1")
	p, got := readPerfData(t, path, profile.ReadOptions{})
	var types []string
	for _, typ := range p.Types {
		types = append(types, typ.Type)
	}
	if p.Type != "cpu-clock" || !slices.Equal(types, []string{"cpu-clock", "page-faults"}) || p.Samples < 100 || len(p.Meta.Also) != 1 {
		t.Errorf("read for %q of %q: %d samples, %+v", p.Type, types, p.Samples, p.Meta)
	}
	for _, s := range got {
		if len(s.frames) != 1 {
			t.Errorf("frames %q", s.names)
			break
		}
	}
	faults, err := p.OfType("page-faults")
	if err != nil || faults.Type != "page-faults" || faults.Samples == 0 || faults.Samples >= p.Samples {
		t.Errorf("%v: %+v", err, faults)
	}
	if _, err := p.OfType("cycles"); err == nil || !strings.Contains(err.Error(), "page-faults") {
		t.Errorf("an event that is not there: %v", err)
	}
	alone, err := readProfile(path, profile.ReadOptions{SampleType: "page-faults"}, codeOptions{})
	if err != nil || alone.Samples != faults.Samples || alone.Value != faults.Value || alone.Meta.Event != "page-faults" || len(alone.Meta.Also) != 0 {
		t.Errorf("%v: %+v", err, alone)
	}
	if clock, err := alone.OfType("cpu-clock"); err != nil || clock.Samples+faults.Samples != p.Samples || clock.Meta.FrequencyHz != 499 {
		t.Errorf("%v: %+v", err, clock)
	}
}

// eventCounts are how many samples of an event there are, and what their periods come to.
type eventCounts struct{ samples, period int64 }

// scriptEventLine is a sample in the text of perf script: its period and event.
var scriptEventLine = regexp.MustCompile(`(?m)^\s*\S.*?\s-?\d+/-?\d+\s+(?:\[\d+\]\s+)?(?:[\d.]+:\s+)?(\d+)\s+(\S+?)(?:/\S*)?:\s*$`)

func countEvents(text string) map[string]eventCounts {
	counts := map[string]eventCounts{}
	for _, m := range scriptEventLine.FindAllStringSubmatch(text, -1) {
		c := counts[m[2]]
		period, _ := strconv.ParseInt(m[1], 10, 64)
		counts[m[2]] = eventCounts{c.samples + 1, c.period + period}
	}
	return counts
}

// Of several events each has the samples that perf has of it, and they weigh as much, in whatever way perf was
// asked for them.
func TestPerfDataEvents(t *testing.T) {
	depth30 := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	faults := build(t, "faults", "gcc", "-O1", "-o", "OUT", "testdata/targets/faults.c")
	for name, test := range map[string]struct {
		args    []string
		events  []string // in order
		stacks  bool     // all have registers and stacks
		varying []bool   // by event: samples stand for different amounts
	}{
		"two":      {[]string{"-e", "cpu-clock", "-e", "page-faults", "--call-graph", "dwarf"}, []string{"cpu-clock", "page-faults"}, true, []bool{false, true}},
		"packed":   {[]string{"-z", "-e", "cpu-clock", "-e", "page-faults", "--call-graph", "dwarf"}, []string{"cpu-clock", "page-faults"}, true, []bool{false, true}},
		"same":     {[]string{"-e", "cpu-clock:u", "-e", "cpu-clock:k", "--call-graph", "dwarf"}, []string{"cpu-clock:u", "cpu-clock:k"}, true, []bool{false, false}},
		"group":    {[]string{"-e", "{cpu-clock,page-faults}", "-g"}, []string{"cpu-clock", "page-faults"}, false, []bool{false, true}},
		"read":     {[]string{"-e", "{cpu-clock,page-faults}:S", "--call-graph", "dwarf"}, []string{"cpu-clock", "page-faults"}, true, []bool{true, true}},
		"mixed":    {[]string{"-e", "cpu-clock/call-graph=dwarf/", "-e", "page-faults/call-graph=fp/"}, []string{"cpu-clock", "page-faults"}, false, []bool{false, true}},
		"machine":  {[]string{"-a", "-R", "-e", "cpu-clock", "-e", "sched:sched_switch", "--call-graph", "dwarf"}, []string{"cpu-clock", "sched:sched_switch"}, true, []bool{false, true}},
		"threads":  {[]string{"-a", "--threads", "-e", "cpu-clock", "-e", "page-faults", "-g"}, []string{"cpu-clock", "page-faults"}, false, []bool{false, true}},
		"per task": {[]string{"--per-thread", "-e", "cpu-clock", "-e", "page-faults", "-g"}, []string{"cpu-clock", "page-faults"}, false, []bool{false, true}},
	} {
		if name == "packed" && !testenv.Long() { // as in TestPerfData
			continue
		}
		t.Run(name, func(t *testing.T) {
			target := []string{depth30, "0.4"}
			switch name {
			case "same": // few are in the kernel
				target[1] = "1"
			case "read": // between samples, not just before the first
				target = []string{faults, "100000"}
			}
			path := perfRecord(t, slices.Concat(test.args, []string{"-o", "OUT"}, target)...)
			script, err := exec.Command("perf", "script", "-i", path, "-G", "-F", "comm,pid,tid,period,event").Output()
			if err != nil {
				t.Fatal(err)
			}
			want := countEvents(string(script))
			p, err := readProfile(path, profile.ReadOptions{Times: true}, codeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			if err := p.WritePerfScript(&text); err != nil {
				t.Fatal(err)
			}
			if got := countEvents(text.String()); len(want) != 2 || !maps.Equal(got, want) {
				t.Errorf("events %v, perf has %v", got, want)
			}
			if p.Meta.Tool != "" != test.stacks {
				t.Errorf("by %q", p.Meta.Tool)
			}
			for i, one := range p.Events() {
				m := &one.Meta
				c := want[m.Event]
				unit, hz := "count", 499
				if strings.HasPrefix(m.Event, "cpu-clock") {
					unit = "nanoseconds"
				}
				if name == "read" && i > 0 {
					hz = 0 // it is read when the other is sampled
				}
				if m.Event != test.events[i] || one.Samples != c.samples || one.Value != c.period || m.Value.Unit != unit || m.FrequencyHz != hz || m.ByValue != test.varying[i] || one.Samples < 2 {
					t.Errorf("event %d: %d samples of %d, %+v; perf has %+v", i, one.Samples, one.Value, *m, c)
				}
			}
		})
	}
}

// Values of counters are by thread where threads inherit events, and the same for all otherwise; one that goes back, or
// is of no event, costs the record.
func TestPerfDataReadValues(t *testing.T) {
	for _, byThread := range []bool{false, true} {
		a := perftest.Attr{
			SampleType: unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_ID | unix.PERF_SAMPLE_READ,
			ReadFormat: unix.PERF_FORMAT_GROUP | unix.PERF_FORMAT_ID, Period: 1000, ID: 1, Name: "cycles",
		}
		if byThread {
			a.Flags = 1 << 1
		}
		b := a
		b.ID, b.Name, b.Config, b.Period = 2, "cache-misses", 3, 0
		rec := perftest.Recording{Machine: "x86_64", Attrs: []perftest.Attr{a, b}}
		sample := func(tid int, time uint64, values ...uint64) {
			rec.Add(unix.PERF_RECORD_SAMPLE, unix.PERF_RECORD_MISC_USER, uint64(0x1000), 5, tid, time, uint64(1), uint64(len(values)/2), values)
		}
		sample(5, 1, 1000, 1, 7, 2)
		sample(6, 2, 1500, 1, 7, 2)
		sample(6, 3, 1400, 1, 8, 2)         // cycles go back
		sample(6, 4, 2500, 1, 8, 2, 99, 77) // and one of no event
		path := filepath.Join(t.TempDir(), "perf.data")
		if err := os.WriteFile(path, rec.File(), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := readProfile(path, profile.ReadOptions{}, codeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := []eventCounts{{3, 2500}, {2, 8}}
		if byThread {
			want = []eventCounts{{3, 3500}, {3, 15}}
		}
		for i, one := range p.Events() {
			if got := (eventCounts{one.Samples, one.Value}); got != want[i] {
				t.Errorf("by thread: %v: %s: %v, want %v", byThread, one.Meta.Event, got, want[i])
			}
		}
		if !slices.Contains(p.Meta.Notes, "2 records of the recording cannot be understood") {
			t.Errorf("%q", p.Meta.Notes)
		}
	}
}

// More events are not read at a time than a profile has room for, and that is told.
func TestPerfDataManyEvents(t *testing.T) {
	var rec perftest.Recording
	const all = maxImported + 20
	for i := range all {
		rec.Attrs = append(rec.Attrs, perftest.Attr{
			SampleType: unix.PERF_SAMPLE_IDENTIFIER | unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME,
			Type:       unix.PERF_TYPE_RAW, Config: uint64(i), Period: uint64(i + 1), ID: uint64(i + 1), Name: fmt.Sprintf("r%x", i),
		})
	}
	for i := range all {
		rec.Add(unix.PERF_RECORD_SAMPLE, unix.PERF_RECORD_MISC_USER, uint64(all-i), uint64(0x1000), 5, 5, uint64(1+i))
	}
	path := filepath.Join(t.TempDir(), "perf.data")
	if err := os.WriteFile(path, rec.File(), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := readProfile(path, profile.ReadOptions{}, codeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Meta.Also) != maxImported-1 || p.Samples != maxImported || len(p.Types) != maxImported || !strings.Contains(strings.Join(p.Meta.Notes, " "), "20 samples of further events") {
		t.Errorf("%d samples of %d types; %q", p.Samples, len(p.Types), p.Meta.Notes)
	}
	if last, err := p.OfType(fmt.Sprintf("r%x", all-1)); err != nil || last.Value != all || last.Samples != 1 {
		t.Errorf("%v: %+v", err, last)
	}
	if first, err := readProfile(path, profile.ReadOptions{SampleType: "r0"}, codeOptions{}); err != nil || first.Samples != 1 || first.Value != 1 || len(first.Types) != all {
		t.Errorf("%v: %+v", err, first)
	}
}

// Of several events formats with room for one have a file each, and pages show each.
func TestPerfDataEventsView(t *testing.T) {
	t.Parallel()
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	path := perfRecord(t, "-e", "cpu-clock,page-faults", "--call-graph", "dwarf", "-o", "OUT", target, "1")
	dir := t.TempDir()
	_, stderr, status := runSwbpf(t, dir, "view", path, "-o", "x.html", "-o", "x.pb.gz", "-o", "x.folded")
	if status != 0 || !regexp.MustCompile(`(?m)^  \d+ of cpu-clock at 499 Hz\n  \d+ of page-faults at 499 Hz\nstacks: `).MatchString(stderr) {
		t.Fatalf("status %d\n%s", status, stderr)
	}
	for name, holds := range map[string]string{"x.html": "x.page-faults.html", "x.page-faults.html": "x.html", "x.folded": "depth30;", "x.page-faults.folded": "depth30;"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(b), holds) {
			t.Errorf("%s: %v, %d bytes without %s", name, err, len(b), holds)
		}
	}
	p, err := readProfile(filepath.Join(dir, "x.pb.gz"), profile.ReadOptions{}, codeOptions{})
	if err != nil || len(p.Types) != 2 || p.Meta.Event != "cpu-clock" || len(p.Meta.Also) != 1 {
		t.Errorf("%v: %+v", err, p.Types)
	}
	again := t.TempDir()
	if _, stderr, status := runSwbpf(t, again, "view", filepath.Join(dir, "x.pb.gz"), "-o", "x.folded", "-o", "x.html"); status != 0 {
		t.Errorf("status %d\n%s", status, stderr)
	}
	for _, name := range []string{"x.html", "x.page-faults.html", "x.folded", "x.page-faults.folded"} {
		got, err := os.ReadFile(filepath.Join(again, name))
		want, err2 := os.ReadFile(filepath.Join(dir, name))
		if err != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s by way of pprof: %d bytes, and %d; %v, %v", name, len(got), len(want), err, err2)
		}
	}
	if _, stderr, status := runSwbpf(t, dir, "view", path, "-o", "y.html", "-o", "y.page-faults.html"); status != exitCannot || !strings.Contains(stderr, "given twice") {
		t.Errorf("status %d\n%s", status, stderr)
	}
	if p, err = readProfile(path, profile.ReadOptions{}, codeOptions{}); err != nil {
		t.Fatal(err)
	}
	handler, err := new(viewServer).handler(p)
	if err != nil {
		t.Fatal(err)
	}
	for event, holds := range map[string]string{"cpu-clock": "nanoseconds", "page-faults": "type=cpu-clock"} {
		r := httptest.NewRequest("GET", "/?type="+event, nil)
		r.Host = "127.0.0.1"
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), holds) || !strings.Contains(w.Body.String(), "type=page-faults") {
			t.Errorf("%s: status %d, %d bytes without %s", event, w.Code, w.Body.Len(), holds)
		}
	}
}

// Call chains that the kernel has followed are taken as they are, up to where there is no code.
func TestPerfDataCallchains(t *testing.T) {
	t.Parallel()
	source := filepath.Join(t.TempDir(), "deep.c")
	text := `volatile unsigned long sum;
static __attribute__((noinline)) void down(int n) { if (n) down(n - 1); else for (int i = 0; i < 1000000; i++) sum += i; sum++; }
int main(void) { for (int i = 0; i < 2000; i++) down(30); }`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	target := build(t, "deep-fp", "gcc", "-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o", "OUT", source)
	path := perfRecord(t, "-e", "cpu-clock", "--call-graph", "fp", "-o", "OUT", target)
	p, got := readPerfData(t, path, profile.ReadOptions{})
	deep := 0
	for _, s := range got {
		if slices.Contains(s.names, "main") && len(s.frames) > 20 {
			deep++
		}
		if s.truncated != "" {
			t.Errorf("truncated: %s", s.truncated)
		}
	}
	if float64(deep) < 0.9*float64(len(got)) || len(got) < 100 || p.Meta.Tool != "" || len(p.Meta.Notes) == 0 || !strings.Contains(p.Meta.Notes[0], "frame pointers") {
		t.Errorf("%d of %d samples are deep; %q", deep, len(got), p.Meta.Notes)
	}
}

// The verb reads recordings from a file and from standard input, compressed too, and says how stacks came out.
func TestPerfDataView(t *testing.T) {
	t.Parallel()
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	path := perfRecord(t, "-e", "cpu-clock", "--call-graph", "dwarf", "-o", "OUT", target, "1")
	dir := t.TempDir()
	var first []byte
	for name, command := range map[string]string{
		"file": "SWBPF view FILE -o OUT", "input": "SWBPF view - -o OUT < FILE", "pipe": "cat FILE | SWBPF view - -o OUT",
		"packed": "gzip -c FILE > FILE.gz; SWBPF view FILE.gz -o OUT", "packed pipe": "gzip -c FILE | SWBPF view - -o OUT",
	} {
		out := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".folded")
		command = strings.NewReplacer("SWBPF", swbpf(t), "FILE", path, "OUT", out).Replace(command)
		said, err := exec.Command("sh", "-c", command).CombinedOutput()
		if err != nil || !regexp.MustCompile(`^stacks: \d+ complete \((100|9\d)\.\d\d %\)`).Match(said) {
			t.Errorf("%s: %v\n%s", name, err, said)
		}
		b, err := os.ReadFile(out)
		b = regexp.MustCompile(`;[^;]*_\[k\]`).ReplaceAll(b, nil) // modules have names in the recording of this boot alone, which only a file's time shows
		if err != nil || len(b) == 0 || first != nil && !bytes.Equal(b, first) {
			t.Errorf("%s: %v: %d bytes, before %d", name, err, len(b), len(first))
		}
		first = b
	}
	if _, stderr, status := runSwbpf(t, dir, "view", "--sample-type", "cycles", path, "-o", "x.html"); status != exitCannot || !strings.Contains(stderr, "it has cpu-clock") {
		t.Errorf("an event that is not there: status %d\n%s", status, stderr)
	}
	if stdout, stderr, status := runSwbpf(t, dir, "diff", path, path); status != 0 || !strings.Contains(stdout, "no function changed") {
		t.Errorf("diff: status %d\n%s%s", status, stdout, stderr)
	}
}

// perfNumbers are the kernel's numbers of registers by those of DWARF: of enum perf_event_x86_regs and
// enum perf_event_arm_regs.
var perfNumbers = map[*procstate.Arch][]int{
	procstate.AMD64: {0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 8},
	procstate.ARM64: {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32},
	procstate.I386:  {0, 2, 3, 1, 7, 6, 4, 5, 8},
}

// perfRegs returns the registers as a sample has them, and the mask that says which these are.
func perfRegs(arch *procstate.Arch, regs *procstate.Regs) (mask uint64, values []uint64) {
	numbers := perfNumbers[arch]
	order := make([]int, len(numbers))
	for i := range order {
		order[i] = i
		mask |= 1 << numbers[i]
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(numbers[a], numbers[b]) })
	for _, i := range order {
		values = append(values, regs.Raw(procstate.Reg(i)))
	}
	return mask, values
}

// materialise writes the files of recorded stacks, as far as they are known, to where they can be found.
func materialise(t *testing.T, f *recorded.File) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	for i := range f.Images {
		im := &f.Images[i]
		path := filepath.Join(dir, fmt.Sprint(i))
		out, err := os.Create(path)
		if err == nil {
			err = out.Truncate(im.Size)
		}
		for at, page := range im.Pages {
			if err == nil {
				_, err = out.WriteAt(page, at)
			}
		}
		if err == nil {
			err = out.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// recordedAs makes a recording by perf of stacks that were recorded otherwise, on a machine. It returns the
// addresses of their frames too, in files where there are, and how many are complete.
func recordedAs(t *testing.T, name, machine string) (rec perftest.Recording, want [][]uint64, complete int64) {
	t.Helper()
	f, err := recorded.Load("../../steppers/testdata/stacks/" + name + ".zst")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	arch := snap.Arch()
	paths := materialise(t, f)
	mask, _ := perfRegs(arch, new(procstate.Regs))
	rec = perftest.Recording{
		Machine: machine, Host: "elsewhere",
		Attrs: []perftest.Attr{{
			SampleType: unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_REGS_USER | unix.PERF_SAMPLE_STACK_USER,
			RegsUser:   mask, StackUser: 65528, Flags: perftest.SampleIDAll, Period: 1000, ID: 1, Name: "cycles",
		}},
	}
	rec.Add(unix.PERF_RECORD_COMM, unix.PERF_RECORD_MISC_COMM_EXEC, 7, 7, "thing", 7, 7, uint64(1))
	for _, m := range f.Mappings {
		path, dev, inode := m.Path, unix.Stat_t{}, uint64(0)
		if m.Image >= 0 {
			path = paths[m.Image]
			if err := unix.Stat(path, &dev); err != nil {
				t.Fatal(err)
			}
			inode = dev.Ino
		}
		rec.Add(unix.PERF_RECORD_MMAP2, unix.PERF_RECORD_MISC_USER, 7, 7, m.Start, m.End-m.Start, m.Offset, unix.Major(dev.Dev), unix.Minor(dev.Dev), inode, uint64(0),
			unix.PROT_EXEC|unix.PROT_READ, 0, path, 7, 7, uint64(2))
	}
	walker := unwind.NewWalker(snap, steppers.ForSampling(unwind.NewTablesWithBudget(1<<24)), nil)
	for i := range f.Stacks {
		s := &f.Stacks[i]
		regs := s.Registers()
		sp := regs.Raw(arch.SP)
		var stack []byte
		for _, r := range s.Regions {
			if sp-r.Addr < uint64(len(r.Data)) {
				stack = r.Data[sp-r.Addr:]
			}
		}
		if len(stack) == 0 || len(stack) > 60000 {
			continue
		}
		stack = stack[:len(stack)&^7]
		regs.ThreadPointer = 0 // which perf does not record
		snap.Reset(1, &regs, []procstate.Region{{Addr: sp, Data: stack}})
		pcs, err := walker.WalkPCs(nil, &regs)
		if err == nil {
			complete++
		}
		var addrs []uint64
		for _, pc := range pcs {
			addr := pc.Addr
			if m := snap.Libraries().MappingAt(addr); m != nil && m.Image != nil {
				addr -= m.Bias
			}
			addrs = append(addrs, addr)
		}
		want = append(want, addrs)
		_, values := perfRegs(arch, &regs)
		rec.Add(unix.PERF_RECORD_SAMPLE, unix.PERF_RECORD_MISC_USER, regs.Raw(arch.PC), 7, 7, uint64(len(want))*1000000, uint64(2), values,
			uint64(len(stack)+8), stack, uint64(0), uint64(len(stack)))
	}
	return rec, want, complete
}

// Recordings of other machines are walked as those of this one.
func TestPerfDataOtherMachine(t *testing.T) {
	for name, machine := range map[string]string{"depth30": "x86_64", "goarm64": "aarch64"} {
		rec, want, complete := recordedAs(t, name, machine)
		path := filepath.Join(t.TempDir(), "perf.data")
		if err := os.WriteFile(path, rec.File(), 0o600); err != nil {
			t.Fatal(err)
		}
		p, got := readPerfData(t, path, profile.ReadOptions{})
		if len(want) < 10 || int(p.Samples) != len(want) || p.Complete != complete || complete == 0 {
			t.Errorf("%s: %d samples, %d complete; want %d, %d", name, p.Samples, p.Complete, len(want), complete)
		}
		for i, addrs := range want {
			s := got[fmt.Sprintf("7 0.%06d", (i+1)*1000)]
			if s == nil || !slices.Equal(s.frames, addrs) {
				t.Errorf("%s: sample %d: %x, want %x", name, i, s, addrs)
				break
			}
		}
	}
}

// Recordings that are damaged are no harm.
func TestPerfDataDamaged(t *testing.T) {
	t.Parallel()
	rec, _, _ := recordedAs(t, "depth30", "x86_64")
	whole := rec.File()
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		damaged := slices.Clone(whole)
		for range 1 + rng.IntN(20) {
			at := rng.IntN(len(damaged))
			if i%2 == 0 {
				at = rng.IntN(min(len(damaged), 4000))
			}
			damaged[at] = byte(rng.Uint32())
		}
		if i%5 == 0 {
			damaged = damaged[:rng.IntN(len(damaged))]
		}
		testenv.NoPanic(t, fmt.Sprintf("recording %d", i), func() {
			f, err := perfdata.Open(bytes.NewReader(damaged), int64(len(damaged)))
			if err == nil {
				_, _ = (&perfRecording{file: f, names: eventNames(f.Events)}).profile(profile.ReadOptions{})
			}
		})
	}
}

// Code that was made at run time has the names of a perf-PID.map that the process has left, if it is its own.
func TestPerfDataMap(t *testing.T) {
	t.Parallel()
	testenv.SomeNode(t, func(t *testing.T, node string) {
		const script = `console.log(process.pid)
function whirligig(n) { let s = 0; for (let i = 0; i < n; i++) s += i % 7; return s }
const end = Date.now() + 700; while (Date.now() < end) whirligig(20000)`
		path := filepath.Join(t.TempDir(), "perf.data")
		cmd := exec.Command("perf", "record", "-q", "-F", "499", "-e", "cpu-clock", "-g", "-o", path, node, "--perf-basic-prof", "-e", script)
		cmd.Dir = filepath.Dir(path) // V8 leaves a log there
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		perfMap := "/tmp/perf-" + strings.TrimSpace(string(out)) + ".map"
		defer os.Remove(perfMap)
		spins := func() (n int64) {
			p, err := readProfile(path, profile.ReadOptions{}, codeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range p.Top(10) {
				if strings.Contains(e.Function, "whirligig") {
					n += e.Total
				}
			}
			return n
		}
		if n := spins(); n < 50 {
			t.Errorf("%d samples are in whirligig", n)
		}
		for _, change := range []time.Duration{-time.Hour, time.Hour} { // of another process then
			if err := os.Chtimes(perfMap, time.Time{}, time.Now().Add(change)); err != nil {
				t.Fatal(err)
			}
			if n := spins(); n > 0 {
				t.Errorf("with a map of another time %d samples are in whirligig", n)
			}
		}
	})
}

// Registers are those that a sample has, also where it lacks some, and of programs of 32 bits.
func TestPerfDataRegisters(t *testing.T) {
	for arch, machine := range map[*procstate.Arch]string{procstate.AMD64: "x86_64", procstate.I386: "x86_64", procstate.ARM64: "aarch64"} {
		var regs procstate.Regs
		for i := range arch.NumRegs {
			regs.Set(procstate.Reg(i), uint64(1000+i))
		}
		mask, values := perfRegs(arch, &regs)
		abi := uint64(2)
		if arch == procstate.I386 {
			abi = 1
		}
		got := regsOf(t, machine, mask|1<<40, append(values, 1<<50), abi)
		if got.arch != arch || got.regs != regs {
			t.Errorf("%s: %+v, want %+v", arch.Name, got, regs)
		}
		if got := regsOf(t, machine, mask&^(1<<8|1<<32), values, abi); got.arch != nil {
			t.Errorf("%s: without a PC: %+v", arch.Name, got)
		}
	}
	if got := regsOf(t, "aarch64", 0xffff, make([]uint64, 16), 1); got.arch != nil {
		t.Errorf("32-bit Arm: %+v", got)
	}
}

type readRegs struct {
	arch *procstate.Arch
	regs procstate.Regs
}

// Files are the same by their build ID, of which perf keeps 20 bytes.
func TestSameBuildID(t *testing.T) {
	id := func(s string) []byte {
		var b []byte
		if _, err := fmt.Sscanf(s, "%x", &b); s != "" && err != nil {
			t.Fatal(err)
		}
		return b
	}
	long, short := strings.Repeat("a1", 20), strings.Repeat("b2", 16)
	for _, test := range []struct {
		of, recorded string
		want         bool
	}{
		{long, long, true}, {long, short + "00000000", false}, {short, short + "00000000", true}, {short, short, true},
		{long + "c3c3", long, true}, {short + "c3", short, false}, {"", "", false}, {"", long, false}, {short, short + "00000001", false},
	} {
		if got := sameBuildID(id(test.of), id(test.recorded)); got != test.want {
			t.Errorf("%s and %s: %v", test.of, test.recorded, got)
		}
	}
}

// regsOf returns the registers of a sample that has these.
func regsOf(t *testing.T, machine string, mask uint64, values []uint64, abi uint64) (got readRegs) {
	t.Helper()
	raw := perfdata.Sample{RegsABI: perfdata.RegsABI(abi), RegsMask: mask, Regs: values}
	_, got.arch = setRegs(&got.regs, archOfMachine(machine), &raw)
	return got
}
