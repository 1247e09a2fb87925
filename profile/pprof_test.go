package profile

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	"github.com/swbpf/swbpf/internal/testenv"
)

func writePprof(t *testing.T, p *Profile) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := p.WritePprof(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func inPprof(t *testing.T, p *Profile) *pprof.Profile {
	t.Helper()
	q, err := p.Pprof()
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestPprofParsed(t *testing.T) {
	p, err := pprof.Parse(bytes.NewReader(writePprof(t, fixture())))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	var total [2]int64
	for _, s := range p.Sample {
		total[0] += s.Value[0]
		total[1] += s.Value[1]
	}
	if want := [2]int64{99, 99 * 10_101_010}; total != want {
		t.Errorf("sum of values %v, want %v", total, want)
	}
	golden(t, "pprof.txt", []byte(p.String()))
}

func TestPprofFlags(t *testing.T) {
	p := inPprof(t, fixture())
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	type flags struct{ functions, files, lines, inlines bool }
	want := map[string]flags{
		"/usr/bin/app":   {true, true, true, true},
		"/lib/libc.so.6": {functions: true},
		KernelPath:       {functions: true},
		"/usr/bin/gosrv": {true, true, true, false},
		"[jit]":          {functions: true},
	}
	for _, m := range p.Mapping {
		got := flags{m.HasFunctions, m.HasFilenames, m.HasLineNumbers, m.HasInlineFrames}
		if got != want[m.File] {
			t.Errorf("%s: %+v, want %+v", m.File, got, want[m.File])
		}
		delete(want, m.File)
		for _, l := range p.Location {
			if l.Mapping == m && (l.Address < m.Start || l.Address >= m.Limit) {
				t.Errorf("%s: address %#x not in [%#x,%#x)", m.File, l.Address, m.Start, m.Limit)
			}
		}
	}
	if len(want) != 0 {
		t.Errorf("mappings missing: %v", want)
	}
}

// Without a Symbolizer no mapping claims to have functions, so that pprof
// looks for them itself, and each frame is still visible.
func TestPprofUnnamed(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "/lib/libfoo.so", Kind: Native, Start: 0x1000, Limit: 0x3000, Offset: 0x1000})
	b.Module(Module{Path: "/lib/unused.so"})
	b.Add(Thread{PID: 1, TID: 1}, []Loc{{m, 0x1234}, {0, 0x7f0012345678}}, "", 1, 1)
	p := inPprof(t, b.Finish(Meta{}, nil))
	if len(p.Mapping) != 1 || p.Mapping[0].HasFunctions {
		t.Errorf("mappings: %v", p.Mapping)
	}
	var names []string
	for _, l := range p.Sample[0].Location {
		names = append(names, l.Line[0].Function.Name)
	}
	if got := strings.Join(names, " "); got != "libfoo.so+0x1234 [unknown]+0x7f0012345678" {
		t.Errorf("frames: %s", got)
	}
	if len(p.SampleType) != 1 || p.DefaultSampleType != "samples" {
		t.Errorf("sample types %v, default %s", p.SampleType, p.DefaultSampleType)
	}
}

func TestPprofDeterministic(t *testing.T) {
	want := writePprof(t, fixture())
	for _, turns := range otherTurns {
		if got := writePprof(t, fixture(turns...)); !bytes.Equal(got, want) {
			t.Errorf("bytes differ when samples are added in the order %v", turns)
		}
	}
}

// TestGoToolPprof has the real tool read the file.
func TestGoToolPprof(t *testing.T) {
	file := filepath.Join(t.TempDir(), "swbpf.pb.gz")
	if err := os.WriteFile(file, writePprof(t, fixture()), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"-top"}, []string{
			"File: app", "Type: cpu", "Duration: 10s, Total samples = 1000ms",
			// flat, its share and their sum, then cumulated
			"626.26ms 62.63% 62.63%   626.26ms 62.63%  std::vector<int>::push_back(int const&) (inline)",
			"202.02ms 20.20% 82.83%   202.02ms 20.20%  vfs_read",
			"0     0%   100%    50.51ms  5.05%  [truncated: stack-cut]",
			"0     0%   100%    50.51ms  5.05%  app+0x2345",
		}},
		{[]string{"-top", "-sample_index=samples", "-tagfocus=tid=101"}, []string{
			"Type: samples", "Showing nodes accounting for 13, 13.13% of 99 total"}},
		{[]string{"-traces"}, []string{
			"[truncated: stack-cut]", "Ljava/lang/String;::hashCode", "comm:  app worker", "pid:  100",
		}},
		{[]string{"-peek", "fill"}, []string{"575.76ms 91.94%", "app+0x2345", "push_back(int const&) (inline)"}},
		{[]string{"-raw"}, []string{"[kernel.kallsyms]", "aabbcc", "samples/count cpu/nanoseconds[dflt]"}},
		{[]string{"-tags"}, []string{"comm: Total", "pid: Total", "tid: Total", "app worker"}},
		{[]string{"-comments"}, []string{
			"whole machine: cpu-clock at 99 Hz for 10 s on 2 CPUs, by swbpf test",
			"99 samples, 93.9 % with complete stacks",
			"truncated: stack-cut 5, no-mapping 1", "lost: ring-full 3",
		}},
	} {
		cmd := exec.Command(testenv.Pprof(t), append(test.args, file)...)
		cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir(), "PPROF_BINARY_PATH="+t.TempDir())
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("pprof %v: %v\n%s", test.args, err, stderr.Bytes())
			continue
		}
		for _, w := range test.want {
			if !strings.Contains(string(out), w) {
				t.Errorf("pprof %v does not print %q:\n%s", test.args, w, out)
			}
		}
	}
}

func BenchmarkWritePprof(b *testing.B) {
	p := largeProfile(100_000)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.WritePprof(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(p.samples)), "ns/sample")
}
