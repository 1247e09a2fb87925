package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/swbpf/swbpf/profile"
)

// Flags about an event are for the -e before them, or for all that come after them.
func TestEventFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		want []eventOptions
	}{
		{"", []eventOptions{{}}},
		{"-F 9", []eventOptions{{frequency: 9}}},
		{"-F 9 -e page-faults", []eventOptions{{event: "page-faults", frequency: 9}}},
		{"--weight w -e a:b --filter f", []eventOptions{{event: "a:b", weight: "w", filter: "f"}}},
		{"-e cpu-clock,page-faults", []eventOptions{{event: "cpu-clock"}, {event: "page-faults"}}},
		{"-F 9 -e cpu-clock -e page-faults", []eventOptions{{event: "cpu-clock", frequency: 9}, {event: "page-faults"}}},
		{"-F 9 -e cpu-clock -F 8 -e task-clock", []eventOptions{{event: "cpu-clock", frequency: 8}, {event: "task-clock", frequency: 9}}},
		{"-e cpu-clock,page-faults,task-clock -F 9", []eventOptions{{event: "cpu-clock", frequency: 9}, {event: "page-faults"}, {event: "task-clock", frequency: 9}}},
		{"-e page-faults -F 9 -e cpu-clock,task-clock -c 7", []eventOptions{{event: "page-faults", frequency: 9}, {event: "cpu-clock", period: 7}, {event: "task-clock", period: 7}}},
		{"-c 5 -e page-faults -e cpu-clock -F 7", []eventOptions{{event: "page-faults", period: 5}, {event: "cpu-clock", frequency: 7}}},
		{"-e a:b --weight w -c 3 -e c:d --filter f", []eventOptions{{event: "a:b", weight: "w", period: 3}, {event: "c:d", filter: "f"}}},
		{"-e cpu/event=0xc2,umask=1/,page-faults", []eventOptions{{event: "cpu/event=0xc2,umask=1/"}, {event: "page-faults"}}},
		{"-e uprobe:/tmp/a,b:f", []eventOptions{{event: "uprobe:/tmp/a,b:f"}}},
	} {
		var o eventsOptions
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.SetOutput(io.Discard)
		f.VarP(eventValue{&o}, "event", "e", "")
		f.VarP(eventFlag{&o, func(e *eventOptions) pflag.Value { return &e.frequency }}, "freq", "F", "")
		f.VarP(eventFlag{&o, func(e *eventOptions) pflag.Value { return &e.period }}, "count", "c", "")
		f.Var(eventFlag{&o, func(e *eventOptions) pflag.Value { return (*textValue)(&e.weight) }}, "weight", "")
		f.Var(eventFlag{&o, func(e *eventOptions) pflag.Value { return (*textValue)(&e.filter) }}, "filter", "")
		if err := f.Parse(strings.Fields(c.args)); err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if err := o.settle(); err != nil || !slices.Equal(o.allEvents(), c.want) {
			t.Errorf("%q: %+v, %v; want %+v", c.args, o.allEvents(), err, c.want)
		}
	}
}

func TestPathsByEvent(t *testing.T) {
	got := pathsByEvent("/a.b/x.speedscope.json.gz", []string{"cpu-clock", "syscalls:sys_exit_read", "uprobe:/usr/lib/libc.so.6:malloc", "syscalls/sys_exit_read"})
	want := []string{"/a.b/x.speedscope.json.gz", "/a.b/x.syscalls-sys_exit_read.speedscope.json.gz",
		"/a.b/x.uprobe-usr-lib-libc.so.6-malloc.speedscope.json.gz", "/a.b/x.syscalls-sys_exit_read-2.speedscope.json.gz"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A recording of several events has each with its own samples: in one file where there is room for them, else
// in files that lead to each other.
func TestRecordEvents(t *testing.T) {
	t.Parallel()
	needRecord(t)
	dir := t.TempDir()
	script := `i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; for n in 1 2 3 4 5 6 7 8 9 10; do read x < /etc/hostname || true; done`
	_, stderr, status := runSwbpf(t, dir, "record", "-e", "cpu-clock", "-F", "499", "-e", "page-faults", "-e", "syscalls:sys_exit_read", "--weight", "ret:bytes", "--filter", "ret > 0",
		"-o", "p.pb.gz", "-o", "p.html", "-o", "p.perf.txt", "-o", "p.folded", "--stats", "s.json", "--", "sh", "-c", script)
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{" of cpu-clock at 499 Hz", " of page-faults", "top functions, page-faults", "--filter leaves out", "syscalls:sys_exit_read: only events of which ret > 0"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in: %s", want, stderr)
		}
	}
	read := func(name, typ string) *profile.Profile {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		p, err := profile.Read(bytes.NewReader(data), profile.ReadOptions{Name: name, SampleType: typ})
		if err != nil {
			t.Fatalf("%s, %s: %v", name, typ, err)
		}
		return p
	}
	var types []string
	for _, typ := range read("p.pb.gz", "").Types {
		types = append(types, typ.Type)
	}
	if want := []string{"cpu-clock", "page-faults", "syscalls:sys_exit_read"}; !slices.Equal(types, want) {
		t.Errorf("types %q, want %q", types, want)
	}
	for _, c := range []struct {
		typ, event, file string
		hz               int
	}{
		{"cpu", "cpu-clock", "p.html", 499}, {"page-faults", "page-faults", "p.page-faults.html", 0}, {"syscalls:sys_exit_read", "syscalls:sys_exit_read", "p.syscalls-sys_exit_read.html", 0},
	} {
		p, page := read("p.pb.gz", c.typ), read(c.file, "")
		if p.Meta.Event != c.event || page.Meta.Event != c.event || p.Meta.FrequencyHz != c.hz || page.Meta.FrequencyHz != c.hz {
			t.Errorf("%s is of %s at %d Hz, and %s of %s at %d Hz", c.typ, p.Meta.Event, p.Meta.FrequencyHz, c.file, page.Meta.Event, page.Meta.FrequencyHz)
		}
		if p.Samples == 0 || p.Samples != page.Samples || p.Value == 0 || p.Meta.ByValue != (c.typ == c.event && c.typ != "page-faults") || p.Meta.ByValue && p.Value != page.Value {
			t.Errorf("%s: %d samples of %d (by value: %t), and %d of %d in %s", c.typ, p.Samples, p.Value, p.Meta.ByValue, page.Samples, page.Value, c.file)
		}
		if script := read("p.perf.txt", c.event); script.Value != p.Samples && script.Value != p.Value {
			t.Errorf("%s: %d of value %d, and %d in the text of perf", c.typ, p.Samples, p.Value, script.Value)
		}
		html, err := os.ReadFile(filepath.Join(dir, c.file))
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range []string{"p.html", "p.page-faults.html", "p.syscalls-sys_exit_read.html"} {
			if !bytes.Contains(html, []byte(`href="`+other+`"`)) {
				t.Errorf("%s does not lead to %s", c.file, other)
			}
		}
	}
	if data, _ := os.ReadFile(filepath.Join(dir, "s.json")); !bytes.Contains(data, []byte(`"event": "syscalls:sys_exit_read"`)) {
		t.Errorf("figures: %s", data)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(left) != 9 {
		t.Errorf("files: %q", left)
	}

	// What is written of the pprof file is what was written of the recording.
	again := filepath.Join(dir, "again")
	if err := os.Mkdir(again, 0o755); err != nil {
		t.Fatal(err)
	}
	view := func(args ...string) string {
		t.Helper()
		_, stderr, status := runSwbpf(t, again, append([]string{"view"}, args...)...)
		if status != 0 {
			t.Fatalf("view %q: status %d: %s", args, status, stderr)
		}
		return stderr
	}
	same := func(got, want string) {
		t.Helper()
		g, err := os.ReadFile(filepath.Join(again, got))
		w, err2 := os.ReadFile(filepath.Join(dir, want))
		if err != nil || err2 != nil || len(w) == 0 || !bytes.Equal(g, w) {
			t.Errorf("%s is another than that of the recording: %d bytes, and %d; %v, %v", got, len(g), len(w), err, err2)
		}
	}
	told := view("../p.pb.gz", "-o", "p.pb.gz", "-o", "p.html", "-o", "p.folded")
	for _, name := range []string{"p.pb.gz", "p.html", "p.page-faults.html", "p.syscalls-sys_exit_read.html", "p.folded", "p.page-faults.folded", "p.syscalls-sys_exit_read.folded"} {
		same(name, name)
	}
	for _, want := range []string{" of cpu-clock at 499 Hz\n", " of page-faults\n", " of syscalls:sys_exit_read\n", "wrote p.page-faults.folded, of page-faults\n"} {
		if !strings.Contains(told, want) {
			t.Errorf("no %q in: %s", want, told)
		}
	}
	view("../p.perf.txt", "-o", "t.folded", "-o", "t.perf.txt")
	for _, name := range []string{"folded", "page-faults.folded", "syscalls-sys_exit_read.folded"} {
		if got, want := foldedSum(t, filepath.Join(again, "t."+name)), foldedSum(t, filepath.Join(dir, "p."+name)); got != want || got == 0 {
			t.Errorf("t.%s: %d, want %d", name, got, want)
		}
	}
	same("t.perf.txt", "p.perf.txt")
	view("../p.pb.gz", "--sample-type", "page-faults", "-o", "one.folded")
	same("one.folded", "p.page-faults.folded")
	if more, _ := filepath.Glob(filepath.Join(again, "one.*")); len(more) != 1 {
		t.Errorf("of one event: %q", more)
	}
	if out, stderr, _ := runSwbpf(t, dir, "diff", "p.pb.gz", "again/p.pb.gz"); !regexp.MustCompile(`(?m)^before .* samples of cpu-clock in [\d.]+ s\nafter .* samples of cpu-clock`).MatchString(out) || !strings.Contains(out, "no function changed") {
		t.Errorf("diff: %s%s", out, stderr)
	}
}

// foldedSum is what all stacks of a file come to.
func foldedSum(t *testing.T, path string) (sum int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		n, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// Each event of a file has its own pages, which link to each other.
func TestViewEvents(t *testing.T) {
	t.Parallel()
	b := profile.NewBuilder()
	m := b.Module(profile.Module{Path: "/bin/prog", Kind: profile.Native, Limit: 0x100})
	th := profile.Thread{PID: 1, TID: 2, Comm: profile.Comm("prog")}
	b.Add(th, []profile.Loc{{Module: m, Addr: 16}}, "", 3, 30)
	th.Event = 1
	b.Add(th, []profile.Loc{{Module: m, Addr: 32}}, "", 7, 7)
	made := b.Finish(profile.Meta{Tool: "swbpf 1", Target: "prog", Event: "cpu-clock", FrequencyHz: 99, Value: profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 10,
		Also: []profile.Event{{Name: "page-faults", Value: profile.ValueType{Type: "page-faults", Unit: "count"}, Period: 1}}}, nil)
	for name, write := range map[string]func(io.Writer) error{"pprof": made.WritePprof, "perf script": made.WritePerfScript} {
		var file bytes.Buffer
		if err := write(&file); err != nil {
			t.Fatal(err)
		}
		p, err := profile.Read(&file, profile.ReadOptions{Name: "prog"})
		if err != nil {
			t.Fatal(err)
		}
		base := serveProfile(t, p)
		page := viewPage(t, base)
		page.Visit(base + "/top")
		page.WantText("nav.types", "cpu-clockpage-faults")
		page.WantText("nav.types [aria-current]", "cpu-clock")
		page.WantText("tbody", "3100 %3100 %prog+0x10prog")
		page.ClickOn("nav.types a:nth-child(2)")
		page.Wait("location.search.includes('type=page-faults')")
		page.WantText("tbody", "7100 %7100 %prog+0x20prog")
		page.ClickOn("nav.pages a")
		page.Wait("location.pathname === '/' && performance.getEntriesByName('drawn').length > 0")
		page.WantText("nav.types [aria-current]", "page-faults")
		if name == "pprof" {
			if status, text := ask(t, "GET", base+"/pprof/top?si=page-faults", nil); status != 200 || !strings.Contains(text, "prog+0x20") || strings.Contains(text, "prog+0x10") {
				t.Errorf("pprof's page: status %d: %s", status, text)
			}
		}
		page.NoErrors()
	}
}

// With --every, each part has the files of all events, and old ones of each go.
func TestRecordEventsEvery(t *testing.T) {
	t.Parallel()
	needRecord(t)
	dir := t.TempDir()
	_, stderr, status := runSwbpf(t, dir, "record", "-e", "cpu-clock,page-faults", "--every", "1s", "--keep", "2", "-d", "3.5", "-o", "p.folded", "-o", "p.pb.gz")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for pattern, want := range map[string]int{"p-2*.folded": 2, "p.page-faults-2*.folded": 2, "p-2*.pb.gz": 2, "*": 6} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) != want {
			t.Errorf("%s: %q, want %d", pattern, found, want)
		}
	}
}
