package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/profile"
)

func TestFormatOf(t *testing.T) {
	for _, test := range []struct {
		path, name, want string // the format, or what the error says
		compressed       bool
	}{
		{"a.pb.gz", "", "pprof", false},
		{"a.html", "", "html", false},
		{"a.html.gz", "", "html", true},
		{"a.folded.gz", "", "folded", true},
		{"a.speedscope.json", "", "speedscope", false},
		{"a.firefox.json.gz", "", "firefox", true},
		{"a.perf.txt", "", "perf", false},
		{"-", "", "pprof", false},
		{"-", "folded", "folded", false},
		{"a.html", "folded", "folded", false},
		{"a", "pprof", "pprof", false},
		{"a.gz", "pprof", "pprof", false},
		{"a.gz", "perf", "perf", true},
		{"a.json", "", "the extension tells the format", false},
		{"a.html", "hmtl", `--format "hmtl" is none of pprof, folded`, false},
	} {
		f, compressed, err := formatOf(test.path, test.name)
		if err != nil {
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s as %q: %v", test.path, test.name, err)
			}
		} else if f.name != test.want || compressed != test.compressed {
			t.Errorf("%s as %q: %s, compressed %v", test.path, test.name, f.name, compressed)
		}
	}
}

const perfSamples = `srv 7/8 [001]  10.000000001:    1000000 cpu-clock:
	            1000 inner (/bin/srv)
	            2000 main (/bin/srv)

srv 7/8 [000]  10.500000000:    1000000 cpu-clock:
	            2000 main (/bin/srv)

`

// TestViewConverts has each format written to standard output and read from
// standard input, by way of all others.
func TestViewConverts(t *testing.T) {
	dir := t.TempDir()
	want := "srv;main 1\nsrv;main;inner 1\n"
	file := filepath.Join(dir, "in.perf.txt")
	if err := os.WriteFile(file, []byte(perfSamples), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"perf", "firefox", "speedscope", "html", "pprof", "folded"} {
		out, errOut, status := runSwbpf(t, dir, "view", file, "-o", "-", "--format", name)
		if status != 0 || errOut != "" {
			t.Fatalf("%s: status %d: %s", name, status, errOut)
		}
		if name == "perf" && strings.ReplaceAll(out, " ", "") != strings.ReplaceAll(perfSamples, " ", "") {
			t.Errorf("perf's text, read and written:\n%s", out)
		}
		if f := filepath.Join(dir, "again"); os.WriteFile(f, []byte(out), 0o644) == nil {
			file = f
		}
		p, err := profile.Read(strings.NewReader(out), profile.ReadOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var folded bytes.Buffer
		if err := p.WriteFolded(&folded); err != nil || folded.String() != want {
			t.Errorf("%s: %v\n%s", name, err, folded.String())
		}
	}
	if _, errOut, status := runSwbpf(t, dir, "view", file, "-o", "x.folded.gz"); status != 0 || !strings.Contains(errOut, "wrote x.folded.gz") {
		t.Fatalf("status %d: %s", status, errOut)
	}
	f, err := os.Open(filepath.Join(dir, "x.folded.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(z); err != nil || string(text) != want {
		t.Errorf("%v\n%s", err, text)
	}
	for _, args := range [][]string{{"-o", "-", "-o", "-"}, {"-o", "x.html", "-o", "x.html"}, {"-o", "x.pdf"}, {"-o", "x.html", "--format", "pdf"}, {"-o", dir},
		{"--format", "html"}, {"-o", "x.html", "--open"}, {"-o", "x.html", "--listen", "127.0.0.1:0"}} {
		_, errOut, status := runSwbpf(t, dir, append([]string{"view", file}, args...)...)
		if status != exitCannot || errOut == "" {
			t.Errorf("%v: status %d, %s", args, status, errOut)
		}
	}
}

// One output that cannot be written, which shows late on a device, takes no
// other with it.
func TestViewSavesOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in.perf.txt"), []byte(perfSamples), 0o644); err != nil {
		t.Fatal(err)
	}
	_, errOut, status := runSwbpf(t, dir, "view", "in.perf.txt", "--format", "folded", "-o", "/dev/full", "-o", "x.folded")
	if status != exitFailure || !strings.Contains(errOut, "write /dev/full") || !strings.Contains(errOut, "wrote x.folded") {
		t.Errorf("status %d: %s", status, errOut)
	}
	wantText(t, filepath.Join(dir, "x.folded"), "srv;main 1\nsrv;main;inner 1\n")
}

// TestRecordToStdout has a profile on standard output and nothing else: what
// the command prints, and the summary, go to standard error.
func TestRecordToStdout(t *testing.T) {
	needRecord(t)
	out, errOut, status := runSwbpf(t, t.TempDir(), "record", "-F", "499", "-o", "-", "--format", "firefox", "--", "sh", "-c",
		"echo said; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	if status != 0 || !strings.Contains(errOut, "said\n") || !strings.Contains(errOut, "\nlost: ") || strings.Contains(errOut, "wrote") {
		t.Fatalf("status %d: %s", status, errOut)
	}
	p, err := profile.Read(strings.NewReader(out), profile.ReadOptions{Times: true})
	if err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if p.Samples == 0 || p.Format != "Firefox profile" {
		t.Errorf("%d samples of %s", p.Samples, p.Format)
	}
	// The times are those of the samples: they go on, and end with the recording.
	var text bytes.Buffer
	if err := p.WritePerfScript(&text); err != nil {
		t.Fatal(err)
	}
	times := map[string]bool{}
	for line := range strings.Lines(text.String()) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasSuffix(fields[2], ":") && !strings.HasPrefix(line, "\t") {
			times[fields[2]] = true
		}
	}
	if int64(len(times)) < p.Samples/2 {
		t.Errorf("%d different times of %d samples", len(times), p.Samples)
	}
}

// TestFullOutput: what does not fit on standard output is an error of every verb.
func TestFullOutput(t *testing.T) {
	t.Parallel()
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "1", "1", "quiet")
	stacks := filepath.Join(t.TempDir(), "x.folded")
	if err := os.WriteFile(stacks, []byte("main;work 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"walk " + strconv.Itoa(target.Process.Pid), "walk --json " + strconv.Itoa(target.Process.Pid),
		"view -o - " + stacks, "diff " + stacks + " " + stacks, "doctor", "man", "completion bash",
		"", "--help", "--version", "help record", "record --help",
	} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		var stderr strings.Builder
		cmd := exec.Command(swbpf(t), strings.Fields(args)...)
		cmd.Stdout, cmd.Stderr = full, &stderr
		cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != exitFailure || strings.Count(stderr.String(), "no space left on device") != 1 {
			t.Errorf("%s: exit %d, %q", args, code, stderr.String())
		}
	}
}

// TestSharedNames: a name that several functions have comes with their files.
func TestSharedNames(t *testing.T) {
	list := []profile.TopEntry{{Function: "main", Module: "/bin/a"}, {Function: "work", Module: "/bin/a"}, {Function: "main", Module: "/bin/b"}}
	shared := sharedNames(list, func(e *profile.TopEntry) string { return e.Function })
	for i, want := range []string{"main  /bin/a", "work", "main  /bin/b"} {
		if got := shared.text(list[i].Function, list[i].Module); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestPrintLosses: losses come with what they mean, but not the odd one.
func TestPrintLosses(t *testing.T) {
	var b bytes.Buffer
	printLosses(&b, &figures{Samples: 899, Lost: 101, LostByReason: map[string]uint64{"ring_full": 100, "nested": 1}})
	want := "lost: 101 samples by: ring_full 100, nested 1\n  (ring_full: " + loader.LostHelp["ring_full"] + ")\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	printLosses(&b, &figures{Samples: 899, Lost: 101, LostByReason: map[string]uint64{"ring_full": 100, "nested": 1}, RealTimeRefused: "not today"})
	if refused, ok := strings.CutPrefix(b.String(), want); !ok || !strings.HasPrefix(refused, "  (real-time priority was refused: not today; ") {
		t.Errorf("%q, want %q and what was refused", b.String(), want)
	}
}
