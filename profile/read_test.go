package profile

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func folding(t *testing.T, p *Profile) string {
	t.Helper()
	var b bytes.Buffer
	if err := p.WriteFolded(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func read(t *testing.T, text string, o ReadOptions) *Profile {
	t.Helper()
	p, err := Read(strings.NewReader(text), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What was written comes back: the stacks, the kinds and what is known of the
// recording.
func TestReadOwnPprof(t *testing.T) {
	want := fixture()
	var b bytes.Buffer
	if err := want.WritePprof(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&b, ReadOptions{Name: "some.pb.gz"})
	if err != nil {
		t.Fatal(err)
	}
	if g, w := folding(t, got), folding(t, want); g != w {
		t.Errorf("stacks\n%swant\n%s", g, w)
	}
	if got.Samples != want.Samples || got.Value != want.Value || got.Complete != want.Complete || !slices.Equal(got.Truncated, want.Truncated) {
		t.Errorf("%d samples, value %d, %d complete, %v; want %d, %d, %d, %v", got.Samples, got.Value, got.Complete, got.Truncated,
			want.Samples, want.Value, want.Complete, want.Truncated)
	}
	g, w := got.Meta, want.Meta
	if g.Target != w.Target || g.Event != w.Event || g.FrequencyHz != w.FrequencyHz || g.Kernel != w.Kernel || g.Tool != w.Tool ||
		g.CPUs != w.CPUs || g.Duration != w.Duration || !g.Start.Equal(w.Start) || g.Value != w.Value || g.Period != w.Period || g.ByValue {
		t.Errorf("meta %+v, want %+v", g, w)
	}
	if !slices.Equal(g.Notes, w.Notes) || !slices.Equal(g.Lost, w.Lost) || !maps.Equal(g.Help, w.Help) {
		t.Errorf("notes %q, lost %v", g.Notes, g.Lost)
	}
	gt, wt := got.flameTree(), want.flameTree()
	for i := range wt.nodes {
		gf, wf := gt.functions[gt.nodes[i].function], wt.functions[wt.nodes[i].function]
		if gf != wf {
			t.Errorf("frame %d is %+v, want %+v", i, gf, wf)
		}
	}
}

// TestReadPprofMemory: a program that was run from memory is told from code
// that was made at run time, by its build ID or by where it says that it lies.
func TestReadPprofMemory(t *testing.T) {
	const path = "/memfd:x (deleted)"
	for _, test := range []struct {
		module Module
		addr   uint64
		want   Kind
	}{
		{Module{Path: path, BuildID: "aabb", Start: 0x1000, Limit: 0x2000, Offset: 0x1000}, 0x1100, Native},
		{Module{Path: path, Start: 0x1000, Limit: 0x2000, Offset: 0x1000}, 0x1100, Native},
		{Module{Path: path, Start: 0xffff_f000, Limit: 1 << 32}, 0xffff_ffff, Native},
		{Module{Path: path, Start: 0x7f12_0000_0000, Limit: 0x7f12_0001_0000}, 0x7f12_0000_1100, JIT},
		{Module{Path: "//anon", Start: 0x1000, Limit: 0x2000}, 0x1100, JIT},
	} {
		b := NewBuilder()
		test.module.Kind = test.want
		loc := Loc{b.Module(test.module), test.addr}
		b.Add(Thread{}, []Loc{loc}, "", 1, 1)
		var file bytes.Buffer
		if err := b.Finish(Meta{}, symbols{loc: {{Function: "f"}}}).WritePprof(&file); err != nil {
			t.Fatal(err)
		}
		p, err := Read(&file, ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range p.flameTree().functions {
			if f.name == "f" && f.kind != test.want {
				t.Errorf("%+v: %v, want %v", test.module, f.kind, test.want)
			}
		}
	}
}

func TestReadOwnFolded(t *testing.T) {
	want := folding(t, fixture())
	p := read(t, want, ReadOptions{})
	if got := folding(t, p); got != want {
		t.Errorf("stacks\n%swant\n%s", got, want)
	}
	if p.Samples != 99 || p.Complete != 93 {
		t.Errorf("%d samples, %d complete", p.Samples, p.Complete)
	}
}

func TestReadFolded(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"names of threads", "redis;main;f 3\nsh;main 1\n", "redis;main;f 3\nsh;main 1\n"},
		{"pids", "redis-12/13;main;f 3\nredis-?/14;main 1\n", "redis;main 1\nredis;main;f 3\n"},
		{"functions only", "main;a;b 2\nmain;a 5\n", "[unknown];main;a 5\n[unknown];main;a;b 2\n"},
		{"a first frame within", "f;g;f 1\n", "[unknown];f;g;f 1\n"},
		{"blanks in names", "x;operator new(unsigned long);g h 7\n", "x;operator new(unsigned long);g h 7\n"},
		{"CRLF, comments, no end", "# made by hand\r\nx;a 1\r\n\r\nx;b 2", "x;a 1\nx;b 2\n"},
		{"no frame", "x 5\n", "x 5\n"},
		{"empty names", "x;;a 5\n", "x;[unknown];a 5\n"},
		{"same stack twice", "x;a 5\nx;a 6\n", "x;a 11\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := folding(t, read(t, test.text, ReadOptions{})); got != test.want {
				t.Errorf("got\n%swant\n%s", got, test.want)
			}
		})
	}
}

const perfText1 = `# ========
# captured on: Sat Nov 21 10:00:00 2026
redis-server  4711/4713 [001]  1000.000001:   10101010 cpu-clock:uhH: 
	ffffffff81000100 do_syscall_64+0x33 ([kernel.kallsyms])
	    7f0000030000 read+0xd (/usr/lib/libc.so.6)
	    55d000001200 inner(int, char const*) (inlined)
  inner.h:7
	    55d000001200 outer(std::map<int, (anonymous)>)+0x20 (/usr/bin/redis server (deleted))
  redis.c:42
	    55d000001300 [unknown] (/usr/bin/redis server (deleted))
	               0 [unknown] ([unknown])

my app 2  99 [000]  1002.500000:   10101010 cpu-clock:uhH: 
	    7f1100000040 Lcom/x/Y;::run+0x40 (/tmp/perf-99.map)

swapper     0 [000]  1003.0:   10101010 cpu-clock:uhH: 

`

func TestReadPerf(t *testing.T) {
	p := read(t, perfText1, ReadOptions{Name: "perf.txt"})
	want := `my_app_2;Lcom/x/Y:::run_[j] 1
redis-server;[unknown]+0x0;redis server+0x55d000001300;outer(std::map<int, (anonymous)>);inner(int, char const*)_[i];read;do_syscall_64_[k] 1
swapper 1
`
	if got := folding(t, p); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	m := p.Meta
	if m.Event != "cpu-clock" || m.Period != 10101010 || m.FrequencyHz != 99 || m.ByValue || m.Duration != 2999999*time.Microsecond ||
		m.Value != (ValueType{"cpu-clock", "nanoseconds"}) || p.Value != 3*10101010 {
		t.Errorf("%+v", m)
	}
	th := p.threads[2]
	if th.PID != 4711 || th.TID != 4713 {
		t.Errorf("threads %v", p.threads)
	}
	for _, f := range p.functions {
		if f.name == "inner(int, char const*)" && f.file != "inner.h" {
			t.Errorf("%+v", f)
		}
	}
}

func TestReadPerfForms(t *testing.T) {
	for _, test := range []struct{ name, text, sampleType, want string }{
		{"no stacks", "            perf  123 [000] 12.345678:          1 cycles:  ffff8000 native_write+0x8 ([kernel.kallsyms])\n" +
			"            dead  124 [000] 12.345679:          1 cycles:  7f00 f (/bin/x)\n", "", "dead;f 1\nperf;native_write_[k] 1\n"},
		{"tracepoint", "sh 7 [000] 1.000001: sched:sched_switch: prev_comm=sh (x) ==> next_comm=y\n" +
			"\tffff1 schedule+0x1 ([kernel.kallsyms])\n\n", "", "sh;schedule_[k] 1\n"},
		{"tracepoint without stacks", "   sh 7 [000] 1.000001: sched:sched_switch: a (b)\n   sh 7 [000] 1.000002: sched:sched_switch: a (b)\n", "", "sh 2\n"},
		{"two events", "a 1 1.000001: 5 cycles:u: \n\t1 f (/x)\n\na 1 1.000002: 9 faults: \n\t1 g (/x)\n\na 1 1.000003: 9 faults: \n\t1 g (/x)\n\n", "cycles", "a;f 1\n"},
		{"the commoner event", "a 1 1.000001: 5 cycles:u: \n\t1 f (/x)\n\na 1 1.000002: 9 faults: \n\t1 g (/x)\n\na 1 1.000003: 9 faults: \n\t1 g (/x)\n\n", "", "a;g 2\n"},
		{"the event that was recorded first", "# event : name = dummy:HG, , id = { 1 }\n# event : name = cycles:u, , id = { 3, 4 }, type = 0\n# event : name = faults\n#\n" +
			"a 1 1.000001: 5 cycles:u: \n\t1 f (/x)\n\na 1 1.000002: 9 faults: \n\t1 g (/x)\n\na 1 1.000003: 9 faults: \n\t1 g (/x)\n\n", "", "a;f 1\n"},
		{"one of two that differ in modifiers", "a 1 1.000001: 5 cycles:u: \n\t1 f (/x)\n\na 1 1.000002: 5 cycles:k: \n\t1 g (/x)\n\n", "cycles:k", "a;g 1\n"},
		{"both of two that differ in modifiers", "a 1 1.000001: 5 cycles:u: \n\t1 f (/x)\n\na 1 1.000002: 5 cycles:k: \n\t1 g (/x)\n\n", "cycles", "a;f 1\na;g 1\n"},
		{"by its modifiers", "a 1 1.000001: 5 cycles:u: \n\t1 f (/x)\n\n", "cycles:u", "a;f 1\n"},
		{"differing periods", "a 1 1.000001: 5 cycles: \n\t1 f (/x)\n\na 1 1.000002: 90 cycles: \n\t1 g (/x)\n\n", "", "a;f 5\na;g 90\n"},
		{"no time", "a 1 cycles: \n\t1 f (/x)\n\n", "", "a;f 1\n"},
		{"no period", "a 1 1.000001: cycles: \n\t1 f (/x)\n\n", "", "a;f 1\n"},
		{"addresses only", "a 1 1.000001: cycles: \n\t          7f00\n\n", "", "a;[unknown]+0x7f00 1\n"},
		{"no addresses", "a 1 1.000001: cycles: \n\t  read (/lib/c)\n\t  main (/bin/x)\n\n", "", "a;main;read 1\n"},
		{"no symbols", "a 1 1.000001: cycles: \n\t  7f00 (/lib/c)\n\n", "", "a;c+0x7f00 1\n"},
		{"offset of the module", "a 1 1.000001: cycles: \n\t  7f00 read+0x5 (/lib/c+0x45)\n\n", "", "a;read 1\n"},
		{"one address, two programs", "a 1 1.000001: cycles: \n\t  7f00 x (/lib/c)\n\nb 2 1.000002: cycles: \n\t  7f00 y (/lib/c)\n\n", "", "a;x 1\nb;y 1\n"},
		{"no source", "a 1 1.000001: cycles: \n\t  7f00 x (/c)\n  :0\n\t  7f01 y (/c)\n  c[7f01]\n\n", "", "a;y;x 1\n"},
		{"inlined, by source", "a 1 1.0: cycles: \n\t  7f00 x+0x1\n  a.h:3 (inlined)\n\t  7f00 y+0x1 (/c)\n  a.c:4\n\n", "", "a;y;x_[i] 1\n"},
		{"source of samples without stacks", "a 1 1.0: 1 cycles:  7f00 x (/c)\n  a.c:3\nb 1 1.1: 1 cycles:  7f00 x (/c)\n  a.c:3\n", "", "a;x 1\nb;x 1\n"},
		{"address of data", "a 1 1.0: 1 faults:  55f3 v (/c) 7f00 x (/c)\n", "", "a;x 1\n"},
		{"address of data, with stacks", "a 1 1.0: 1 faults:  55f3 v+0x0 (/c)\n\t  7f00 x (/c)\n\n", "", "a;x 1\n"},
		{"flags, registers, code", "a 1 [000] K     1.0: faults: \n\t  7f00 x (/c)\n ABI:2    AX:0x1 \nb 2 [001] K     1.0: faults: \n\t  7f01 y (/c)\n  a.c:2\n\n|2        y();\n", "", "a;x 1\nb;y 1\n"},
		{"no blank line between", "a 1 1.000001: cycles: \n\t  7f00 x (/c)\nfeed 2 1.000002: cycles: \n\t  7f00 y (/c)\n", "", "a;x 1\nfeed;y 1\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := folding(t, read(t, test.text, ReadOptions{SampleType: test.sampleType}).Events()[0]); got != test.want {
				t.Errorf("got\n%swant\n%s", got, test.want)
			}
		})
	}
}

func TestAddressName(t *testing.T) {
	for name, want := range map[string]bool{
		"": true, "[unknown]": true, "app+0x2345": true, "[jit of 12]+0x7f00": true,
		"main": false, "+0x5": false, "app+0x": false, "app+0x12x": false, "operator new(unsigned long)+0x12": false,
	} {
		if got := addressName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestReadCompressed(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte("x;a 1\n"))
	z.Close()
	if got := folding(t, read(t, b.String(), ReadOptions{})); got != "x;a 1\n" {
		t.Error(got)
	}
	_, err := Read(bytes.NewReader(b.Bytes()[:b.Len()-6]), ReadOptions{})
	if err == nil || !strings.Contains(err.Error(), "byte 6 of the uncompressed") {
		t.Errorf("cut off: %v", err)
	}
}

// Errors say where.
func TestReadMalformed(t *testing.T) {
	var own bytes.Buffer
	if err := fixture().encodePprof(&own); err != nil {
		t.Fatal(err)
	}
	raw := own.String()
	for _, test := range []struct{ name, text, want string }{
		{"nothing", "", "the profile is empty"},
		{"blanks", " \n\n", "the profile is empty"},
		{"no count", "x;a 1\nx;b\n", "folded stacks: line 2 (byte 6): no count after the stack \"x;b\""},
		{"no number", "x;a 1\nx;b two\n", "folded stacks: line 2 (byte 10): \"two\" is not a count of samples"},
		{"negative", "x;a -1\n", "folded stacks: line 1 (byte 4): \"-1\" is not a count of samples"},
		{"too much", "x;a 9223372036854775807\nx;b 1\n", "folded stacks: line 2 (byte 28): " + errOverflow.Error()},
		{"perf.data", "PERFILE2\x00\x01", "this is perf.data; pass it on as text: perf script -i FILE | swbpf view -"},
		{"a page", "<!DOCTYPE html>", "this is a page or a picture, not a profile; of pages, flame graphs by swbpf can be read"},
		{"a frame before a sample", "a 1 1.000001: cycles: \n\t1 f (/x)\n\nhello\n", "perf script: line 4 (byte 34): \"hello\" is neither a sample's first line nor a frame"},
		{"cut off", raw[:len(raw)-1], "pprof: byte"},
		{"wire type", "\x0f\x00", "pprof: byte 0: field sample_type is of wire type 7, which pprof does not have"},
		{"long field", "\x0a\x05\x08\x01", "pprof: byte 1: field sample_type is said to be 5 bytes long, and 2 are left"},
		{"huge field", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "pprof: byte 1: field sample_type is said to be 18446744073709551615 bytes long, and 0 are left"},
		{"no strings", "\x0a\x02\x08\x00", "pprof: byte 4: no table of strings"},
		{"string", "\x0a\x02\x08\x07\x32\x00", "pprof: byte 2: string 7 of 1"},
		{"values", "\x0a\x02\x08\x00\x12\x02\x10\x01\x12\x04\x10\x01\x10\x02\x32\x00", "pprof: byte 8: a sample has 2 values, where the profile has 1 types of samples"},
		{"location", "\x0a\x02\x08\x00\x12\x04\x08\x09\x10\x01\x32\x00", "pprof: byte 6: there is no location with ID 9"},
		{"ID twice", "\x0a\x02\x08\x00\x2a\x02\x08\x01\x2a\x02\x08\x01\x32\x00", "pprof: byte 10: there are several functions with ID 1"},
		{"ID 0", "\x0a\x02\x08\x00\x22\x02\x08\x00\x32\x00", "pprof: byte 6: a location's ID is 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(test.text), ReadOptions{})
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
	_, err := Read(strings.NewReader(raw), ReadOptions{SampleType: "alloc"})
	if !errors.Is(err, ErrNoSuchType) || !strings.HasSuffix(err.Error(), `"alloc"; there is samples, cpu`) {
		t.Errorf("sample type: %v", err)
	}
	// Wherever a file is cut off, that is said, unless no stack is missing.
	for n := range raw {
		if p, err := Read(strings.NewReader(raw[:n]), ReadOptions{}); err == nil && p.Samples != 99 {
			t.Fatalf("%d bytes of %d are a profile of %d samples", n, len(raw), p.Samples)
		}
	}
}

// repeated gives a piece again and again, as a file that was made to fill the memory.
type repeated struct {
	piece []byte
	given int64
}

func (r *repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.piece[(r.given+int64(i))%int64(len(r.piece))]
	}
	r.given += int64(len(p))
	return len(p), nil
}

// What a small file can hold is bounded, and what is no profile is not read to its end.
func TestReadInflated(t *testing.T) {
	zeros := &repeated{piece: make([]byte, 1)}
	if _, err := Read(zeros, ReadOptions{}); err == nil || !strings.Contains(err.Error(), "byte 0: field 0") || zeros.given > sniffBytes {
		t.Errorf("zeros: %v, after %d bytes", err, zeros.given)
	}
	defer func(n int64) { freeInflated = n }(freeInflated)
	freeInflated = 1 << 18
	pack := func(text string, n int) *bytes.Buffer {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := io.WriteString(z, strings.Repeat(text, n)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	const emptyString = "2\x00"
	for _, test := range []struct {
		text    string
		n       int
		refused bool
	}{
		{emptyString, 1 << 18, true},
		{emptyString, 1 << 17, false},
		{"main;work 1\n", 1 << 18, true},
		{"main;work 1\n", 1 << 14, false},
	} {
		file := pack(test.text, test.n)
		_, err := Read(pack(file.String(), 1), ReadOptions{})
		if refused := err != nil && strings.Contains(err.Error(), "no profile does"); refused != test.refused {
			t.Errorf("%d of %q: %v", test.n, test.text, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	var own bytes.Buffer
	if err := fixture().encodePprof(&own); err != nil {
		f.Fatal(err)
	}
	f.Add(own.Bytes())
	var several bytes.Buffer
	if err := twoEvents().encodePprof(&several); err != nil {
		f.Fatal(err)
	}
	f.Add(several.Bytes())
	f.Add([]byte("\x0a\x02\x08\x00\x12\x04\x08\x09\x10\x01\x32\x00"))
	for _, write := range []func(io.Writer) error{fixture().WriteHTML, fixture().WriteFirefox, fixture().WriteSpeedscope, timed().WriteFirefox} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			f.Fatal(err)
		}
		text := b.Bytes()
		// Of pages, what is read suffices.
		f.Add(text[max(0, bytes.Index(text, []byte(`<pre id="data"`))):])
	}
	f.Add([]byte("x-1/2;main;[truncated: a];f_[k] 3\nmain;f 1\n"))
	f.Add([]byte(perfText1))
	f.Add([]byte("a 1 1.000001: 5 cycles:u: \n\t1 f (/x)\n  a.c:3\n\nb 2 [000] 2.0: faults: 7f g+0x1 (inlined)\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Read(bytes.NewReader(data), ReadOptions{MaxBytes: 1 << 20})
		if err != nil {
			return
		}
		var sum int64
		for i := range p.samples {
			sum += p.samples[i].count
		}
		if sum != p.Samples || p.Complete < 0 || p.Complete > p.Samples {
			t.Fatalf("%d samples of %d, %d complete", sum, p.Samples, p.Complete)
		}
		if n := len(p.Meta.Also); n > 0 && n < 10 {
			for _, e := range p.Events() {
				sum -= e.Samples
			}
			if sum != 0 {
				t.Fatalf("%d samples are of no event", sum)
			}
		}
		var b bytes.Buffer
		for _, write := range []func() error{
			func() error { return p.WritePprof(&b) }, func() error { return p.WriteFolded(&b) },
			func() error { return p.WriteHTML(&b) }, func() error { return p.WriteSVG(&b) },
			func() error { return p.WriteFirefox(&b) }, func() error { return p.WriteSpeedscope(&b) },
		} {
			if err := write(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
