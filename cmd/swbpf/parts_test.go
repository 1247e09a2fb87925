package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/profile"
)

func TestPartPath(t *testing.T) {
	began := time.Date(2026, 2, 3, 4, 5, 6, 7, time.FixedZone("east", 3600))
	for path, want := range map[string]string{
		"cpu.pb.gz":            "cpu-20260203T030506Z.pb.gz",
		"/a.b/cpu.html":        "/a.b/cpu-20260203T030506Z.html",
		"x.folded.gz":          "x-20260203T030506Z.folded.gz",
		"x.speedscope.json":    "x-20260203T030506Z.speedscope.json",
		"cpu.txt":              "cpu-20260203T030506Z.txt", // with --format
		"d.d/cpu":              "d.d/cpu-20260203T030506Z",
		"/var/tmp/host.1.html": "/var/tmp/host.1-20260203T030506Z.html",
	} {
		if got := partPath(path, began); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// TestPartsBegin checks when parts end: they keep to the times of the first, and each
// has a name of its own, however late one begins.
func TestPartsBegin(t *testing.T) {
	first := time.Date(2026, 2, 3, 4, 5, 6, 500e6, time.UTC)
	at := func(seconds float64) time.Time { return first.Add(time.Duration(seconds * float64(time.Second))) }
	for _, tc := range []struct{ every, now, due float64 }{
		{1, 1, 2},
		{1, 1.02, 2},
		{1, 1.49, 2},  // 04:05:07.99 and :08.5
		{1, 1.51, 3},  // :08.01 and :08.5 have one name
		{1, 1.999, 3}, // as do these
		{1, 3.2, 4},
		{60, 60.02, 120},
		{60, 200, 240},
	} {
		p := parts{every: time.Duration(tc.every * float64(time.Second)), due: at(tc.every)}
		if p.begin(at(tc.now)); !p.due.Equal(at(tc.due)) {
			t.Errorf("every %v s, after %v s: due after %v s, want %v", tc.every, tc.now, p.due.Sub(first).Seconds(), tc.due)
		}
	}
}

// TestPartsKept checks which files --keep removes: the oldest of the output, whoever
// made them, and no others.
func TestPartsKept(t *testing.T) {
	dir := t.TempDir()
	others := []string{"cpu.pb.gz", "cpu-1.pb.gz", "cpu-20260203T030501Z.html", "cpu-20260203T030501Z.pb.gz.old", "gpu-20260203T030501Z.pb.gz"}
	for _, name := range append(others, "cpu-20260203T030503Z.pb.gz", "cpu-20260203T030501Z.pb.gz", "cpu-20260203T030502Z.pb.gz") {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "cpu-20260203T030500Z.pb.gz"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := parts{keep: 2, own: map[string][]string{}}
	if err := p.removeOld(filepath.Join(dir, "cpu.pb.gz"), time.Date(2026, 2, 3, 3, 5, 3, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	want := append(others, "cpu-20260203T030500Z.pb.gz", "cpu-20260203T030502Z.pb.gz", "cpu-20260203T030503Z.pb.gz")
	slices.Sort(want)
	if got := entries(t, dir); got != strings.Join(want, " ") {
		t.Errorf("there are %s\nwant %v", got, want)
	}
}

// TestPartsAfterClock checks that profiles are neither overwritten nor removed before older
// ones when the clock was set back, also to a time that files are named after.
func TestPartsAfterClock(t *testing.T) {
	dir := t.TempDir()
	earlier := filepath.Join(dir, "cpu-20260203T050000Z.folded") // of a recording before, by a clock that was ahead
	if err := os.WriteFile(earlier, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := parts{keep: 3, paths: []string{filepath.Join(dir, "cpu.folded")}, own: map[string][]string{}}
	for _, tc := range []struct{ began, want string }{
		{"20260203T040000Z", "0400 0500"},
		{"20260203T040001Z", "0400 040001 0500"},
		{"20260203T030000Z", "0300 0400 040001"},
		{"20260203T040001Z", "0300 040001 040002"},
		{"20260203T040002Z", "0300 040002 040003"},
	} {
		began, err := time.Parse(partTime, tc.began)
		if err != nil {
			t.Fatal(err)
		}
		if saved := p.save(profile.NewBuilder().Finish(profile.Meta{Start: began}, nil)); len(saved) != 1 {
			t.Fatalf("%d files are written", len(saved))
		}
		var want []string
		for _, at := range strings.Fields(tc.want) {
			want = append(want, "cpu-20260203T"+(at + "00")[:6]+"Z.folded")
		}
		if got := entries(t, dir); got != strings.Join(want, " ") {
			t.Errorf("after %s: there are %s\nwant %v", tc.began, got, want)
		}
	}
}

// TestRecordEvery checks that the parts of a recording have all its samples, each with
// names and whole stacks, that only the last are kept, and that the figures are of all.
func TestRecordEvery(t *testing.T) {
	t.Parallel()
	needRecord(t)
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	for _, tc := range []struct {
		flags []string
		all   bool // of the parts are there
	}{
		{nil, true},
		{[]string{"--keep", "2"}, false},
		{[]string{"--wall"}, true},
	} {
		dir := t.TempDir()
		args := append([]string{"record", "-F", "997", "--every", "1s", "-o", "p.pb.gz", "-o", "p.firefox.json", "--stats", "s.json", "--stats-detail"}, tc.flags...)
		_, msg, status := runSwbpf(t, dir, append(args, "--", target, "3.5")...)
		if status != 0 {
			t.Fatalf("status %d: %s", status, msg)
		}
		var s recordStats
		b, err := os.ReadFile(filepath.Join(dir, "s.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "p-*.pb.gz"))
		if err != nil {
			t.Fatal(err)
		}
		timed, err := filepath.Glob(filepath.Join(dir, "p-*.firefox.json"))
		if err != nil {
			t.Fatal(err)
		}
		if tc.all && len(files) < 4 || !tc.all && len(files) != 2 || len(timed) != len(files) {
			t.Fatalf("%d profiles, %d with times: %s", len(files), len(timed), msg)
		}
		wall := slices.Contains(tc.flags, "--wall")
		samples, value := int64(0), int64(0)
		for i, file := range files {
			p, err := readProfile(file, profile.ReadOptions{}, codeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			samples, value = samples+p.Samples, value+p.Value
			if p.Meta.Duration < 100*time.Millisecond && i < len(files)-1 || p.Meta.Duration > 30*time.Second {
				t.Errorf("%s: of %v", file, p.Meta.Duration)
			}
			if p.Samples > 10 && p.Complete*100 < p.Samples*99 {
				t.Errorf("%s: %d of %d complete", file, p.Complete, p.Samples)
			}
			top := p.Top(3)
			if p.Samples > 100 && !wall && !slices.ContainsFunc(top, func(e profile.TopEntry) bool { return strings.Contains(e.Function, "__dynamic_cast") }) {
				t.Errorf("%s: top functions %v", file, top)
			}
		}
		if tc.all && uint64(samples) != s.Samples {
			t.Errorf("%d samples in %d parts, %d in all", samples, len(files), s.Samples)
		}
		if s.Processes != 1 || s.Modules < 2 {
			t.Errorf("%d processes, %d modules", s.Processes, s.Modules)
		}
		if wall {
			for _, ns := range s.OffCPUNSByState {
				value -= int64(ns)
			}
			if want := "time of threads: running " + amount(value, "nanoseconds"); value < 1e9 || !strings.Contains(msg, want) {
				t.Errorf("not %q in: %s", want, msg)
			}
		}
	}
}

// TestStatsOfParts checks that the figures are not those of a last part in which
// nothing ran.
func TestStatsOfParts(t *testing.T) {
	t.Parallel()
	needRecord(t)
	dir := t.TempDir()
	script := `i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; exec sleep 2.2`
	_, msg, status := runSwbpf(t, dir, "record", "-F", "499", "--every", "1s", "-o", "p.pb.gz", "--stats", "s.json", "--", "sh", "-c", script)
	b, err := os.ReadFile(filepath.Join(dir, "s.json"))
	if err != nil {
		t.Fatalf("status %d: %s", status, msg)
	}
	var s figures
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	if status != 0 || s.Samples < 10 || s.Processes != 1 || s.Modules == 0 {
		t.Errorf("status %d, %d samples of %d processes, %d modules: %s", status, s.Samples, s.Processes, s.Modules, msg)
	}
}

// TestRecordNotes checks that what is missing in the names is told, and is in each
// profile, of a part too.
func TestRecordNotes(t *testing.T) {
	needRecord(t)
	target := build(t, "depth30-stripped", "g++", "-O2", "-s", "-Wl,--build-id", "-o", "OUT", "testdata/targets/depth30.cc")
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "broken", http.StatusInternalServerError)
	}))
	defer broken.Close()
	t.Setenv("DEBUGINFOD_CACHE_PATH", t.TempDir())
	servers := "--debuginfod=" + broken.URL + " http://127.0.0.1:1"
	for _, tc := range []struct {
		every []string
		least int // profiles
	}{
		{nil, 1},
		{[]string{"--every", "1s"}, 2},
	} {
		dir := t.TempDir()
		args := append([]string{"record", "-F", "499", "-o", "p.pb.gz", "-o", "p.html", servers}, tc.every...)
		_, msg, status := runSwbpf(t, dir, append(args, "--", target, "1.5")...)
		told, last, _ := strings.Cut(msg, "samples of")
		if status != 0 || !strings.Contains(last, "\nnote: names may be missing") || tc.every != nil && !strings.Contains(told, "note: names may be missing") {
			t.Errorf("%v: status %d: %s", tc.every, status, msg)
		}
		files, err := filepath.Glob(filepath.Join(dir, "p*.pb.gz"))
		if err != nil || len(files) < tc.least {
			t.Fatalf("%v: %v, %v", tc.every, files, err)
		}
		for _, file := range files {
			p, err := readProfile(file, profile.ReadOptions{}, codeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			noted := func(note string) bool {
				return strings.HasPrefix(note, "names may be missing") && strings.Contains(note, "500 Internal Server Error; ")
			}
			html, err := os.ReadFile(strings.TrimSuffix(file, ".pb.gz") + ".html")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(p.Meta.Notes, noted) || !strings.Contains(string(html), "names may be missing") {
				t.Errorf("%s: notes %q", file, p.Meta.Notes)
			}
		}
	}
}

// TestPartLost checks that a part which cannot be written is told of, and does not end
// the recording but makes it fail.
func TestPartLost(t *testing.T) {
	t.Parallel()
	needRecord(t)
	dir := t.TempDir()
	gone := filepath.Join(dir, "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	// Its directory is there again when the last part is written.
	script := `rmdir gone; sleep 2.5; mkdir gone; sleep 1.2`
	_, msg, status := runSwbpf(t, dir, "record", "--every", "1s", "-o", "gone/p.pb.gz", "--", "sh", "-c", script)
	files, err := os.ReadDir(gone)
	if err != nil {
		t.Fatal(err)
	}
	if status != exitFailure || len(files) == 0 {
		t.Errorf("status %d, %d profiles: %s", status, len(files), msg)
	}
	lost := strings.Count(msg, "no such file")
	if want := fmt.Sprintf("%d of %d profiles could not be written", lost, lost+len(files)); lost == 0 || !strings.Contains(msg, want) {
		t.Errorf("not %q in: %s", want, msg)
	}
}
