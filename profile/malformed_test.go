package profile

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// What is wrong in texts is said, with the byte at which it is.
func TestReadMalformedText(t *testing.T) {
	const perf = "a 1/2 1.000001: 5 cycles: \n\t  7f00 x+0x1 (/lib/c)\n\t  7f10 y (/lib/c)\n\nb 3/4 1.000002: 5 cycles: \n\t  7f00 x+0x1 (/lib/c)\n\n"
	const folded = "x;a 1\nx;b 2\n"
	speedscope := string(written(t, fixture().WriteSpeedscope))
	evented := `{"$schema":"https://www.speedscope.app/file-format-schema.json","shared":{"frames":[{"name":"a"},{"name":"b"}]},
"profiles":[{"type":"evented","name":"t","unit":"none","startValue":0,"endValue":10,"events":[
{"type":"O","frame":0,"at":0},{"type":"O","frame":1,"at":2},{"type":"C","frame":1,"at":4},{"type":"C","frame":0,"at":10}]}]}`
	firefox := string(written(t, fixture().WriteFirefox))
	for _, test := range []struct{ text, old, new, want, at string }{
		// A %d in what is wanted is the offset of at, "" being the end.
		{perf, "7f10 y", "7g10 y", "perf script: line 3 (byte %d): frames with an address, and without", "\t  7g10"},
		{perf, "7f10 y (/lib/c)", "7f10 y (/lib/c", "perf script: line 3 (byte %d): frames with a module, and without", "\t  7f10"},
		{perf, "\t  7f10 y (/lib/c)", "hello", `perf script: line 3 (byte %d): "hello" is neither a sample's first line nor a frame`, "hello"},
		{perf, "b 3/4 1.000002: 5", "b 3/4 1.000002; 5", "perf script: line 5 (byte %d): samples of cycles with a time, and without", "b 3/4"},
		{perf, "b 3/4 1.000002: 5 cycles", "b 3/4 1.000002: cycles", "perf script: line 5 (byte %d): samples of cycles with a period, and without", "b 3/4"},
		{perf, "b 3/4", "b 3/99999999999", `perf script: line 5 (byte %d): "b 3/99999999999 1.000002: 5 cycles:" is neither`, "b 3/9"},
		{perf, "5 cycles: \n\t  7f00 x+0x1 (/lib/c)\n\n", "99999999999999999999 cycles: \n\n", `perf script: line 5 (byte %d): "b 3/4 `, "b 3/4"},
		{perf, "5 cycles", "9223372036854775807 cycles", "perf script: line 7 (byte 138): " + errOverflow.Error(), ""},
		{perf, "y (", "y\x02(", "perf script: line 3 (byte %d): the byte 0x02 is none of a text", "\x02"},
		{perf, "x+0x1 (/lib/c)\n\n", "x+0x1 (/lib/c)\n", "perf script: line 7 (byte %d): the text is cut off, before the empty line that ends the last sample", ""},
		{perf, "x+0x1 (/lib/c)\n\n", "x+0x1 (/lib/c)", "perf script: line 6 (byte %d): the text is cut off, in a line", ""},
		{perf, "b 3/4 1.000002: 5 cycles: \n\t  7f00 x+0x1 (/lib/c)\n\n", "b 3/4 1.000002: 5 cycles: \n", "perf script: line 6 (byte %d): the text is cut off, before the empty line", ""},

		{folded, "b 2", "b2", "folded stacks: line 2 (byte %d): no count after the stack \"x;b2\"", "x;b2"},
		{folded, "b 2", "b -2", "folded stacks: line 2 (byte %d): \"-2\" is not a count of samples", "-2"},
		{folded, "b 2", "b 1.5", "folded stacks: line 2 (byte %d): \"1.5\" is not a count of samples", "1.5"},
		{folded, "b 2", "b 9223372036854775808", "folded stacks: line 2 (byte %d): \"9223372036854775808\" is not a count", "9223"},
		{folded, "b 2", "b 9223372036854775807", "folded stacks: line 2 (byte %d): " + errOverflow.Error(), "9223"},
		{folded, "b 2", "\xe1b 2", "folded stacks: line 2 (byte %d): the text is not UTF-8", "\xe1"},
		{folded, "b 2", "\x00b 2", "folded stacks: line 2 (byte %d): the byte 0x00 is none of a text", "\x00"},

		{speedscope, `"name":"vfs_read"`, `"nome":"vfs_read"`, "speedscope: byte %d: shared.frames[6]: the frame has no name", `{"nome"`},
		{speedscope, `vfs_read`, "vfs\xe1read", "JSON: byte %d: the text is not UTF-8", "\xe1"},
		{speedscope, `"app","unit":"nanoseconds"`, `"app","unit":"nanoseconfs"`, `speedscope: byte %d: profiles[1].unit: "nanoseconfs" is no unit`, `"nanoseconfs"`},
		{evented, `"unit":"none"`, `"unit":"nose"`, `speedscope: byte %d: profiles[0].unit: "nose" is no unit`, `"nose"`},
		{speedscope, "121212120,40404040]}]", "121212121,40404040]}]", "speedscope: byte %d: profiles[2].weights: their sum is 161616161, not 161616160", "[121212121,40404040]}]"},
		{speedscope, "121212120,40404040]}]", "-12121212,40404040]}]", "speedscope: byte %d: profiles[2].samples[0]: the weight -1.2121212e+07 is none", "[8,7],[8,10,9]],\"weights\":[-1"},
		{speedscope, "[8,7],[8,10,9]],\"weights\":[121212120", "[8,7],[8,1.9]],\"weights\":[121212120", "speedscope: byte %d: json: cannot unmarshal number 1.9", "]],\"weights\":[121212120,4"},
		{evented, `"C","frame":1,"at":4`, `"C","frame":1,"at":1`, "speedscope: byte %d: profiles[0].events[2]: at 1, after one at 2", `{"type":"C","frame":1`},
		{evented, `"C","frame":1`, `"C","frame":0`, "speedscope: byte %d: profiles[0].events[2]: closes frame 0, which is not", `{"type":"C","frame":0,"at":4`},
		{evented, `"C","frame":1`, `"S","frame":1`, `speedscope: byte %d: profiles[0].events[2]: type "S" is neither`, `{"type":"S"`},
		{evented, `"O","frame":1,"at":2`, `"O","frame":5,"at":2`, "speedscope: byte %d: profiles[0].events[1]: frame 5 of 2", `{"type":"O","frame":5`},
		{evented, `,{"type":"C","frame":0,"at":10}`, ``, "speedscope: byte %d: profiles[0].events: 1 frames are never closed", "[\n{\"type\":\"O\""},

		{firefox, `"weight":[50,20]`, `"weight":[50]`, "Firefox profile: byte %d: threads[0].samples.weight: 1 values, where the table's length is 2", "[50]"},
		{firefox, `"weight":[50,20]`, `"weight":[-5,20]`, "Firefox profile: byte %d: threads[0].samples.weight[0]: the weight -5 at 0 ms is none", "-5,20"},
		{firefox, `"name":[5,`, `"name":[`, "Firefox profile: byte %d: shared.funcTable.name: 14 values, where the table's length is 15", "[7,8,10"},
		{firefox, `"name":[5,`, `"name":[-5,`, "Firefox profile: byte %d: shared.funcTable.name[0]: string -5 of 24", "-5,7,8"},
	} {
		text := strings.Replace(test.text, test.old, test.new, 1)
		if text == test.text {
			t.Errorf("there is no %q", test.old)
		}
		want := test.want
		if strings.Contains(want, "%d") {
			want = fmt.Sprintf(want, strings.LastIndex(text, test.at))
		}
		_, err := Read(strings.NewReader(text), ReadOptions{})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q → %q:\n  error %v\n  want  %s", test.old, test.new, err, want)
		}
	}
}

// A text without an end of its last line is read, and that is told.
func TestReadFoldedCut(t *testing.T) {
	p := read(t, "x;a 1\nx;b 23", ReadOptions{})
	if p.Samples != 24 || len(p.Meta.Notes) != 1 {
		t.Errorf("%d samples, notes %q", p.Samples, p.Meta.Notes)
	}
	if p := read(t, "x;a 1\n", ReadOptions{}); len(p.Meta.Notes) != 0 {
		t.Errorf("notes %q", p.Meta.Notes)
	}
}

// fixtureTexts are the fixture in each format that can be read, by name.
func fixtureTexts(t *testing.T) map[string][]byte {
	t.Helper()
	p := fixture()
	var raw bytes.Buffer
	if err := p.encodePprof(&raw); err != nil {
		t.Fatal(err)
	}
	page := written(t, p.WriteHTML)
	return map[string][]byte{
		"pprof": raw.Bytes(), "gzip": written(t, p.WritePprof), foldedFormat: written(t, p.WriteFolded), perfFormat: written(t, p.WritePerfScript),
		speedscopeFormat: written(t, p.WriteSpeedscope), firefoxFormat: written(t, p.WriteFirefox),
		pageFormat: page[bytes.LastIndex(page, []byte(`<pre id="data"`)) : bytes.LastIndex(page, []byte("</pre>"))+6], // the rest is not read
	}
}

// errorWithByte fails if an error does not tell a byte of size bytes.
func errorWithByte(t *testing.T, what string, err error, size int) {
	t.Helper()
	var at *FormatError
	switch {
	case errors.As(err, &at):
		if at.Offset < 0 || at.Offset > int64(size) {
			t.Errorf("%s: %v: byte %d of %d", what, err, at.Offset, size)
		}
	case strings.HasPrefix(err.Error(), "gzip: after byte "):
	case strings.HasPrefix(err.Error(), "this JSON is neither"), strings.HasPrefix(err.Error(), "this is a page or a picture"), strings.HasPrefix(err.Error(), "this is a raw profile"), err.Error() == "the profile is empty":
		// It is not known for what it is.
	default:
		t.Errorf("%s: %v names no byte", what, err)
	}
}

// Wherever a profile is cut off, that is said with the byte, or nothing is
// missing that one could know of.
func TestReadCut(t *testing.T) {
	for name, data := range fixtureTexts(t) {
		step := 1 + len(data)/500
		for n := 0; n < len(data); n += step {
			p, err := Read(bytes.NewReader(data[:n]), ReadOptions{})
			what := fmt.Sprintf("%s cut at %d of %d", name, n, len(data))
			if err != nil {
				errorWithByte(t, what, err, n)
				continue
			}
			whole := false
			switch name {
			case foldedFormat:
				whole = bytes.HasSuffix(data[:n], []byte("\n")) || len(p.Meta.Notes) > 0
			case perfFormat:
				whole = bytes.HasSuffix(data[:n], []byte("\n\n")) || !bytes.Contains(data[:n], []byte("\t"))
			default:
				whole = p.Samples == 99
			}
			if !whole {
				t.Errorf("%s: read as %d samples", what, p.Samples)
			}
		}
	}
}

// Wherever a byte is damaged, that is said with a byte, or the rest is a
// profile still: with another name, another number.
func TestReadDamaged(t *testing.T) {
	places := 100
	if testenv.Long() {
		places = 250
	}
	for name, data := range fixtureTexts(t) {
		step := 1 + len(data)/places
		told, tried := 0, 0
		for n := 0; n < len(data); n += step {
			for _, mask := range []byte{0x01, 0x10, 0x20, 0x80} {
				damaged := slices.Clone(data)
				damaged[n] ^= mask
				p, err := Read(bytes.NewReader(damaged), ReadOptions{})
				tried++
				if err != nil {
					told++
					errorWithByte(t, fmt.Sprintf("%s: byte %d ^ %#x", name, n, mask), err, len(data))
				} else if p.Samples <= 0 {
					t.Errorf("%s: byte %d ^ %#x: %d samples", name, n, mask, p.Samples)
				}
			}
		}
		t.Logf("%s: %d of %d damages are seen", name, told, tried)
	}
}

// The kernel cuts names at 15 bytes, also within a character, and file names are
// any bytes. What is written of them can be read.
func TestNamesOfAnyBytes(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "/opt/caf\xe9", Kind: Native})
	th := Thread{PID: 1, TID: 1, Comm: Comm("éééééééé"), Labels: b.Labels(Label{"unit", "caf\xe9.service"})}
	b.Add(th, []Loc{{m, 1}, {m, 2}}, "", 3, 3)
	p := b.Finish(Meta{Target: "caf\xe9", Tool: "swbpf test"}, symbols{{m, 1}: {{Function: "f\xe9", File: "/src/\xe9.c", Line: 1}}})
	want := "ééééééé?;caf?+0x2;f? 3\n"
	if got := folding(t, p); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, format := range []struct {
		name string
		data []byte
	}{
		{"pprof", written(t, p.WritePprof)}, {pageFormat, written(t, p.WriteHTML)}, {foldedFormat, written(t, p.WriteFolded)},
		{perfFormat, written(t, p.WritePerfScript)}, {firefoxFormat, written(t, p.WriteFirefox)}, {speedscopeFormat, written(t, p.WriteSpeedscope)},
	} {
		again, err := Read(bytes.NewReader(format.data), ReadOptions{})
		if err != nil {
			t.Errorf("%s: %v", format.name, err)
		} else if got := strings.ReplaceAll(folding(t, again), "[unknown]+0x2", "caf?+0x2"); got != want {
			t.Errorf("%s: %q, want %q", format.name, got, want)
		}
	}
	// perf script writes bytes as they are.
	text := "caf\xe9 1 1.000001: 1 cycles: \n\t  7f00 x (/opt/caf\xe9)\n\n"
	if got := folding(t, read(t, text, ReadOptions{})); got != "caf?;x 1\n" {
		t.Errorf("perf script: %q", got)
	}
}

// A recording that ended before the first sample is a profile, too.
func TestReadNothing(t *testing.T) {
	p := NewBuilder().Finish(fixtureMeta(), nil)
	for _, write := range []func(io.Writer) error{p.WritePprof, p.WriteHTML, p.WriteFirefox, p.WriteSpeedscope} {
		again, err := Read(bytes.NewReader(written(t, write)), ReadOptions{})
		if err != nil {
			t.Error(err)
		} else if again.Samples != 0 {
			t.Errorf("%s: %d samples", again.Format, again.Samples)
		}
	}
}

// Wherever what is compressed is cut off, that is said.
func TestReadGzipDamaged(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte("x;a 1\n"))
	z.Close()
	for n := 1; n < b.Len(); n++ {
		if _, err := Read(bytes.NewReader(b.Bytes()[:n]), ReadOptions{}); err == nil || !strings.Contains(err.Error(), "byte ") {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

// TestReadInlined: chains of inlined calls, which take more memory the longer
// they are, are read up to a limit.
func TestReadInlined(t *testing.T) {
	defer func(n int) { maxPlaceLines = n }(maxPlaceLines)
	maxPlaceLines = 1000
	page := func(calls int) string {
		tables := `{"meta":{},"modules":[""],"files":[""],"functionName":["f"],"functionModule":[0],"functionFile":[0],"functionLine":[0],` +
			`"functionKind":[1],"functionFlags":[1],"threadPID":[1],"threadTID":[1],"threadComm":["t"],"threadLabels":[0],"labelSets":[[]]}`
		b := append(binary.AppendUvarint(nil, uint64(len(tables))), tables...)
		b = binary.AppendUvarint(b, uint64(calls))
		b = append(b, make([]byte, 3*calls)...) // each in the one before, of function 0, on its first line
		b = binary.AppendUvarint(append(b, 1), uint64(calls))
		b = append(b, 0, 1)
		var packed bytes.Buffer
		z, err := flate.NewWriter(&packed, flate.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		_, err = z.Write(b)
		if err := errors.Join(err, z.Close()); err != nil {
			t.Fatal(err)
		}
		return `<pre id="data" hidden>` + base64.StdEncoding.EncodeToString(packed.Bytes()) + "</pre>"
	}
	firefox := func(calls int) string {
		column := func(f func(i int) string) string {
			var s []string
			for i := range calls {
				s = append(s, f(i))
			}
			return "[" + strings.Join(s, ",") + "]"
		}
		index := column(strconv.Itoa)
		return fmt.Sprintf(`{"meta":{"preprocessedProfileVersion":61,"categories":[]},"libs":[],"shared":{"stringArray":["f"],`+
			`"stackTable":{"length":%[1]d,"frame":%[2]s,"prefix":%[3]s},"frameTable":{"length":%[1]d,"func":%[4]s,"inlineDepth":%[2]s},`+
			`"funcTable":{"length":1,"name":[0]}},"threads":[{"samples":{"length":1,"stack":[%[5]d],"weight":[1]}}]}`,
			calls, index, column(func(i int) string {
				if i == 0 {
					return "null"
				}
				return strconv.Itoa(i - 1)
			}), column(func(int) string { return "0" }), calls-1)
	}
	for name, textOf := range map[string]func(calls int) string{pageFormat: page, firefoxFormat: firefox} {
		p := read(t, textOf(40), ReadOptions{}) // 820 functions in all
		if p.Samples != 1 {
			t.Errorf("%s: %d samples", name, p.Samples)
		}
		_, err := Read(strings.NewReader(textOf(50)), ReadOptions{})
		if err == nil || !strings.Contains(err.Error(), tooInlined()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
