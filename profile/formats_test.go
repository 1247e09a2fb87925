package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// foldedOf returns a profile's folded stacks, with other names for some.
func foldedOf(t *testing.T, p *Profile, renamed *strings.Replacer) map[string]int64 {
	t.Helper()
	var buf bytes.Buffer
	if err := p.WriteFolded(&buf); err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for line := range strings.Lines(buf.String()) {
		i := strings.LastIndexByte(line, ' ')
		n, err := strconv.ParseInt(strings.TrimSpace(line[i:]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		out[renamed.Replace(line[:i])] += n
	}
	return out
}

func wantStacks(t *testing.T, what string, got, want map[string]int64) {
	t.Helper()
	for _, stack := range slices.Sorted(maps.Keys(want)) {
		if got[stack] != want[stack] {
			t.Errorf("%s: %d, want %d of %s", what, got[stack], want[stack], stack)
		}
	}
	for _, stack := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[stack]; !ok {
			t.Errorf("%s: %d of %s, which should not be there", what, got[stack], stack)
		}
	}
}

func written(t *testing.T, write func(io.Writer) error) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := write(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Each format that is written can be read back, with the same stacks.
func TestFormatsReadBack(t *testing.T) {
	p := fixture()
	same := strings.NewReplacer()
	for _, test := range []struct {
		format  string
		write   func(io.Writer) error
		renamed *strings.Replacer // what the format does not tell
	}{
		{"pprof", p.WritePprof, same},
		{pageFormat, p.WriteHTML, same},
		{firefoxFormat, p.WriteFirefox, same},
		{perfFormat, p.WritePerfScript, same},
		{speedscopeFormat, p.WriteSpeedscope, strings.NewReplacer("_[i]", "", "app_worker", "app")},
	} {
		data := written(t, test.write)
		again, err := Read(bytes.NewReader(data), ReadOptions{Name: "x"})
		if err != nil {
			t.Errorf("%s: %v", test.format, err)
			continue
		}
		if again.Format != test.format || again.Samples != 99 || again.Complete != 93 {
			t.Errorf("%s: read as %s, %d samples, %d complete", test.format, again.Format, again.Samples, again.Complete)
		}
		wantStacks(t, test.format, foldedOf(t, again, test.renamed), foldedOf(t, p, test.renamed))
		var kernel Kind
		for _, e := range again.Top(-1) {
			if e.Function == "vfs_read" {
				kernel = e.Kind
			}
		}
		if kernel != Kernel {
			t.Errorf("%s: vfs_read is of kind %v", test.format, kernel)
		}
		if got := fmt.Sprint(again.Meta.how(), again.Meta.Lost); test.format == pageFormat || test.format == speedscopeFormat {
			if want := fmt.Sprint(p.Meta.how(), p.Meta.Lost); got != want {
				t.Errorf("%s: %s, want %s", test.format, got, want)
			}
		}
	}
}

// Wherever a file is cut off or damaged, that is an error that tells the
// byte, or nothing is missing.
func TestFormatsDamaged(t *testing.T) {
	p := fixture()
	for _, test := range []struct {
		format string
		write  func(io.Writer) error
	}{{pageFormat, p.WriteHTML}, {speedscopeFormat, p.WriteSpeedscope}, {firefoxFormat, p.WriteFirefox}} {
		data := written(t, test.write)
		judge := func(what string, data []byte) {
			t.Helper()
			again, err := Read(bytes.NewReader(data), ReadOptions{})
			var where *FormatError
			switch {
			case err == nil:
				if again.Samples == 0 {
					t.Errorf("%s %s: a profile without samples", test.format, what)
				}
			case !errors.As(err, &where):
				// Without its end, a page has no data, and JSON is not known for what it is.
				if !strings.HasPrefix(err.Error(), "this ") && !strings.HasPrefix(err.Error(), "the profile is empty") {
					t.Errorf("%s %s: %v names no byte", test.format, what, err)
				}
			case where.Offset < 0 || where.Offset > int64(len(data)):
				t.Errorf("%s %s: byte %d of %d", test.format, what, where.Offset, len(data))
			}
		}
		at := bytes.Index(data, []byte(`<pre id="data"`))
		step := 97
		if testenv.Long() {
			step = 41
		}
		for i := max(at, 0); i < len(data); i += step {
			judge(fmt.Sprint("cut at ", i), data[:i])
			damaged := slices.Clone(data)
			damaged[i] ^= 0x15
			judge(fmt.Sprint("damaged at ", i), damaged)
		}
	}
}

// What is wrong in JSON is pointed at.
func TestReadJSONMalformed(t *testing.T) {
	speedscope := string(written(t, fixture().WriteSpeedscope))
	firefox := string(written(t, fixture().WriteFirefox))
	for _, test := range []struct{ text, old, new, want, at string }{
		{"{}", "", "", "this JSON is neither a speedscope file nor a profile of the Firefox Profiler", ""},
		{`{"meta":{"version":30}}`, "", "", "this is a raw profile of Gecko", ""},
		{`{"traceEvents":[]}`, "", "", "this is a trace or profile of Chrome", ""},
		{speedscope, `"shared"`, `!"shared"`, "JSON: byte", `"shared"`},
		{speedscope, `"sampled","name":"app"`, `"other","name":"app"`, `speedscope: byte %d: profiles[1].type: "other" is neither`, `"other","name":"app"`},
		{speedscope, `"name":"app","unit":"nanoseconds","startValue":0,"endValue":838383830,"samples":[[`, `"name":"app","unit":"nanoseconds","samples":[[9876,`,
			"speedscope: byte %d: profiles[1].samples[0]: frame 9876 of ", "[9876,"},
		{speedscope, "]}]}\n", ",12345]}]}\n", "speedscope: byte %d: profiles[2].weights: 3 weights of 2 samples", "[121212120,40404040,12345]"},
		{firefox, `"stackTable":{"length":`, `"stackTable":{"length":"x","was":`, "Firefox profile: byte %d: json: cannot unmarshal string", `,"was"`},
		{firefox, `"frame":[9,`, `"frame":[9876,`, "Firefox profile: byte %d: shared.stackTable.frame[0]: frame 9876 of", "9876,"},
		{firefox, `"prefix":[null,`, `"prefix":[9876,`, "Firefox profile: byte %d: shared.stackTable.prefix[0]: stack 9876 is none of those before it", "9876,"},
		{firefox, `"samples":{"length":2,"stack":[7,`, `"samples":{"length":2,"stack":[9876,`, "Firefox profile: byte %d: threads[0].samples.stack[0]: stack 9876 of", "9876,"},
	} {
		text := strings.Replace(test.text, test.old, test.new, 1)
		if test.new != "" && text == test.text {
			t.Errorf("there is no %s", test.old)
		}
		want := test.want
		if strings.Contains(want, "%d") {
			want = fmt.Sprintf(want, strings.Index(text, test.at))
		}
		_, err := Read(strings.NewReader(text), ReadOptions{})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s → %s: error %v, want %s", test.old, test.new, err, want)
		}
	}
}

// collapse reads text of perf script by the rules of FlameGraph's
// stackcollapse-perf.pl: a header begins with a name and numbers, a frame is
// an address, a name and a module in brackets, and "#" a remark.
func collapse(t *testing.T, text string) map[string]int64 {
	header := regexp.MustCompile(`^(\S.+?)\s+(\d+)/*(\d+)*\s+`)
	frame := regexp.MustCompile(`^\s*(\w+)\s*(.+) \((\S*)\)$`)
	offset := regexp.MustCompile(`\+0x[\da-f]+$`)
	stacks := map[string]int64{}
	var stack []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "":
			slices.Reverse(stack)
			stacks[strings.Join(stack, ";")]++
			stack = nil
		case line[0] == '#':
		case header.MatchString(line) && stack == nil:
			stack = []string{}
		case frame.MatchString(line):
			stack = append(stack, offset.ReplaceAllString(frame.FindStringSubmatch(line)[2], ""))
		default:
			t.Fatalf("stackcollapse-perf.pl knows no line %q", line)
		}
	}
	return stacks
}

func TestPerfScriptCollapses(t *testing.T) {
	p := fixture()
	got := collapse(t, string(written(t, p.WritePerfScript)))
	want := map[string]int64{}
	for stack, n := range foldedOf(t, p, strings.NewReplacer("String:::", "String;::", "_[i]", "", "_[k]", "", "_[j]", "")) {
		_, stack, _ = strings.Cut(stack, ";")
		stack = regexp.MustCompile(`[^;]*\+0x[0-9a-f]+`).ReplaceAllString(stack, "[unknown]")
		want[stack] += n
	}
	wantStacks(t, "collapsed", got, want)
}

// timed is a profile of which the times were kept, added in disorder.
func timed() *Profile {
	b := NewBuilder()
	b.KeepTimes()
	m := b.Module(Module{Path: "/bin/a", Kind: Native})
	k := b.Module(Module{Path: KernelPath, Kind: Kernel})
	main := Thread{PID: 1, TID: 1, Comm: Comm("a"), Labels: b.Labels(Label{"cpu", "1"})}
	other := Thread{PID: 1, TID: 2, Comm: Comm("b c"), Labels: b.Labels(Label{"cpu", "0"})}
	for _, s := range []struct {
		at    int64
		t     Thread
		stack []Loc
	}{
		{5_000_000_123, main, []Loc{{m, 1}}}, {5_010_000_000, other, []Loc{{k, 7}, {m, 2}}},
		{5_002_000_000, main, []Loc{{m, 1}}}, {5_030_000_000, main, []Loc{{m, 3}}},
	} {
		b.SetTime(s.at)
		b.Add(s.t, s.stack, "", 1, 1_000_000)
	}
	syms := symbols{{m, 1}: {{Function: "f"}}, {m, 2}: {{Function: "g"}}, {m, 3}: {{Function: "h"}}, {k, 7}: {{Function: "sys"}}}
	return b.Finish(Meta{Target: "timed", Event: "cpu-clock", Value: ValueType{"cpu", "nanoseconds"}, Period: 1_000_000, Clock: 4_990_000_000}, syms)
}

func TestPerfScriptTimes(t *testing.T) {
	want := `a 1/1 [001] 5.000000123:    1000000 cpu-clock:
	               1 f (/bin/a)

a 1/1 [001] 5.002000000:    1000000 cpu-clock:
	               1 f (/bin/a)

b c 1/2 [000] 5.010000000:    1000000 cpu-clock:
	               7 sys ([kernel.kallsyms])
	               2 g (/bin/a)

a 1/1 [001] 5.030000000:    1000000 cpu-clock:
	               3 h (/bin/a)

`
	data := written(t, timed().WritePerfScript)
	if string(data) != want {
		t.Errorf("got\n%s", data)
	}
	// Times go through a reader that is to keep them, and only then.
	for _, keep := range []bool{false, true} {
		p, err := Read(bytes.NewReader(data), ReadOptions{Times: keep})
		if err != nil {
			t.Fatal(err)
		}
		again := written(t, p.WritePerfScript)
		if bytes.Equal(again, data) != keep {
			t.Errorf("times kept: %v; written again:\n%s", keep, again)
		}
	}
}

// The time line of the Firefox Profiler has the samples at their times, and
// the invariants of the format hold.
func TestFirefoxTimes(t *testing.T) {
	data := written(t, timed().WriteFirefox)
	var file firefoxFile
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var text []string
	for i := range file.Threads {
		th := &file.Threads[i]
		text = append(text, fmt.Sprintf("%s %s/%s %v %v main %v", th.Name, th.PID, th.TID, th.Samples.Time, th.Samples.CPU, th.IsMainThread))
	}
	want := "a 1/1 [10.000123 12 40] [1e+06 1e+06 1e+06] main true; b c 1/2 [20] [1e+06] main false"
	if got := strings.Join(text, "; "); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	// Through the reader and perf's text: the same order and distances.
	p, err := Read(bytes.NewReader(data), ReadOptions{Times: true})
	if err != nil {
		t.Fatal(err)
	}
	perf := string(written(t, p.WritePerfScript))
	for _, at := range []string{"0.010000123", "0.012000000", "0.020000000", "0.040000000"} {
		if !strings.Contains(perf, " "+at+": ") {
			t.Errorf("no sample at %s s in\n%s", at, perf)
		}
	}
	checkFirefox(t, data)
	checkFirefox(t, written(t, fixture().WriteFirefox))
	checkFirefox(t, written(t, NewBuilder().Finish(Meta{}, nil).WriteFirefox))
}

// checkFirefox checks what the format's documentation asks of tables.
func checkFirefox(t *testing.T, data []byte) {
	t.Helper()
	var file struct {
		Meta struct {
			PreprocessedProfileVersion int
			Categories                 []struct{ Color string }
		}
		Libs    []json.RawMessage
		Shared  map[string]json.RawMessage
		Threads []map[string]json.RawMessage
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	tables := map[string]map[string][]*float64{}
	lengths := map[string]int{}
	table := func(name string, raw json.RawMessage) {
		var columns map[string]json.RawMessage
		if err := json.Unmarshal(raw, &columns); err != nil {
			t.Fatal(err)
		}
		var length int
		if err := json.Unmarshal(columns["length"], &length); err != nil {
			t.Fatalf("%s: length: %v", name, err)
		}
		tables[name], lengths[name] = map[string][]*float64{}, length
		for column, raw := range columns {
			var cells []json.RawMessage
			if column == "length" || column == "weightType" || column == "weight" && string(raw) == "null" {
				continue
			}
			if err := json.Unmarshal(raw, &cells); err != nil || len(cells) != length {
				t.Errorf("%s.%s: %d cells of %d, %v", name, column, len(cells), length, err)
			}
			for _, cell := range cells {
				var n *float64
				json.Unmarshal(cell, &n) // other than numbers stay nil
				tables[name][column] = append(tables[name][column], n)
			}
		}
	}
	var strings []string
	for name, raw := range file.Shared {
		if name == "stringArray" {
			if err := json.Unmarshal(raw, &strings); err != nil {
				t.Fatal(err)
			}
		} else {
			table(name, raw)
		}
	}
	for i, thread := range file.Threads {
		table(fmt.Sprint("samples ", i), thread["samples"])
		table("markers", thread["markers"])
	}
	below := func(name, column string, limit int, least float64) {
		for i, n := range tables[name][column] {
			if n != nil && (*n < least || *n >= float64(limit)) {
				t.Errorf("%s.%s[%d] is %g of %d", name, column, i, *n, limit)
			}
		}
	}
	below("stackTable", "frame", lengths["frameTable"], 0)
	below("frameTable", "func", lengths["funcTable"], 0)
	below("frameTable", "category", len(file.Meta.Categories), 0)
	below("funcTable", "name", len(strings), 0)
	below("funcTable", "resource", lengths["resourceTable"], -1)
	below("funcTable", "source", lengths["sources"], 0)
	below("sources", "filename", len(strings), 0)
	below("resourceTable", "lib", len(file.Libs), 0)
	below("resourceTable", "name", len(strings), 0)
	for i, prefix := range tables["stackTable"]["prefix"] {
		if prefix != nil && int(*prefix) >= i {
			t.Errorf("stack %d comes before its caller %g", i, *prefix)
		}
	}
	for i := range file.Threads {
		name := fmt.Sprint("samples ", i)
		below(name, "stack", lengths["stackTable"], 0)
		times := tables[name]["time"]
		if !slices.IsSortedFunc(times, func(x, y *float64) int { return int(*x*1e6 - *y*1e6) }) {
			t.Errorf("%s are in no order of time", name)
		}
	}
	if !slices.ContainsFunc(file.Meta.Categories, func(c struct{ Color string }) bool { return c.Color == "grey" }) || file.Meta.PreprocessedProfileVersion != firefoxVersion {
		t.Errorf("meta %+v", file.Meta)
	}
}

// Older versions of the format have tables in each thread, IDs that are
// numbers, and differences of times.
func TestReadFirefoxOlder(t *testing.T) {
	text := `{"meta":{"preprocessedProfileVersion":47,"interval":2,"product":"old","categories":[{"name":"User","color":"yellow","subcategories":["Other"]}]},
"libs":[{"name":"libx.so","path":"/lib/libx.so","codeId":"abcd"}],
"threads":[{"name":"w","pid":7,"tid":8,
"samples":{"stack":[1,null,0],"timeDeltas":[1,2,3],"weight":null,"weightType":"samples","length":3},
"stackTable":{"frame":[0,1],"prefix":[null,0],"length":2},
"frameTable":{"address":[16,32],"func":[0,1],"category":[0,0],"line":[3,null],"inlineDepth":[0,0],"length":2},
"funcTable":{"name":[0,1],"resource":[0,-1],"fileName":[2,null],"lineNumber":[1,null],"length":2},
"resourceTable":{"lib":[0],"name":[0],"length":1},
"stringArray":["outer","inner","/src/o.rs"]}]}`
	p := read(t, text, ReadOptions{Times: true})
	if got := folding(t, p); got != "w;outer 1\nw;outer;inner 1\n" {
		t.Errorf("got %s", got)
	}
	// In between, strings were shared and other tables were not.
	const own = `,
"stringArray":["outer","inner","/src/o.rs"]}]`
	between := read(t, strings.Replace(text, own, `}],"shared":{`+own[2:len(own)-2]+`}`, 1), ReadOptions{})
	if got := folding(t, between); !strings.Contains(text, own) || got != "w;outer 1\nw;outer;inner 1\n" {
		t.Errorf("with shared strings: %s", got)
	}
	if p.Value != 4e6 || p.threads[0].PID != 7 || p.threads[0].TID != 8 || p.modules[1].BuildID != "abcd" || len(p.times) != 2 || p.times[1].time != 6e6 {
		t.Errorf("value %d, thread %+v, modules %+v, times %+v", p.Value, p.threads[0], p.modules, p.times)
	}
}

// speedscope's other kind of profile, of frames that open and close.
func TestReadSpeedscopeEvented(t *testing.T) {
	text := `{"$schema":"https://www.speedscope.app/file-format-schema.json","name":"ev","shared":{"frames":[{"name":"a"},{"name":"b","file":"x.go","line":3}]},
"profiles":[{"type":"evented","name":"t","unit":"milliseconds","startValue":0,"endValue":10,"events":[
{"type":"O","frame":0,"at":0},{"type":"O","frame":1,"at":2.5},{"type":"C","frame":1,"at":4},{"type":"C","frame":0,"at":10}]}]}`
	p := read(t, text, ReadOptions{})
	if got := folding(t, p); got != "t;a 8500000\nt;a;b 1500000\n" || p.Meta.Value.Unit != "nanoseconds" {
		t.Errorf("%+v: %s", p.Meta, got)
	}
	_, err := Read(strings.NewReader(strings.Replace(text, `"C","frame":1`, `"C","frame":0`, 1)), ReadOptions{})
	if err == nil || !strings.Contains(err.Error(), "profiles[0].events[2]: closes frame 0") {
		t.Errorf("error %v", err)
	}
}

// What reading frames that open and close costs depends on their number alone, not on
// how many others are open, which has a bound.
func TestReadSpeedscopeEventedDeep(t *testing.T) {
	const head = `{"$schema":"https://www.speedscope.app/file-format-schema.json","shared":{"frames":[{"name":"[truncated: stack-cut]"},{"name":"a"},{"name":"b"}]},
"profiles":[{"type":"evented","name":"t","unit":"none","startValue":0,"endValue":10,"events":[`
	const depth, calls = 2000, 20_000
	var text strings.Builder
	text.WriteString(head)
	event := func(kind string, frame, at int) {
		if text.Len() > len(head) {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"type":%q,"frame":%d,"at":%d}`, kind, frame, at)
	}
	at := 0
	for i := range depth {
		event("O", min(i, 1), at)
		at++
	}
	for range calls {
		event("O", 2, at)
		event("C", 2, at+1)
		at += 2
	}
	for i := range depth {
		event("C", min(depth-1-i, 1), at)
		at++
	}
	text.WriteString("]}]}")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := read(t, text.String(), ReadOptions{})
	runtime.ReadMemStats(&after)
	if spent := after.TotalAlloc - before.TotalAlloc; spent > 200<<20 {
		t.Errorf("%d MiB were allocated", spent>>20)
	}
	if p.Samples != int64(at-1) || p.Complete != 0 || len(p.Truncated) != 1 {
		t.Errorf("%d samples of %d, %d complete, %v", p.Samples, at-1, p.Complete, p.Truncated)
	}
	leaf := "t;[truncated: stack-cut]" + strings.Repeat(";a", depth-1)
	got := foldedOf(t, p, strings.NewReplacer())
	if got[leaf+";b"] != calls || got[leaf] != calls+1 || got["t;[truncated: stack-cut];a"] != 2 || got["t;[truncated: stack-cut]"] != 2 || len(got) != depth+1 {
		t.Errorf("%d stacks: %d, %d", len(got), got[leaf+";b"], got[leaf])
	}

	text.Reset()
	text.WriteString(head)
	for range maxOpen + 1 {
		event("O", 1, 0)
	}
	text.WriteString("]}]}")
	_, err := Read(strings.NewReader(text.String()), ReadOptions{})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("events[%d]: more than %[1]d frames are open", maxOpen)) {
		t.Errorf("%d open frames: %v", maxOpen+1, err)
	}
}

// Markers of waiting threads stay markers in all formats.
func TestFormatsMarkers(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/a", Kind: Native})
	th := Thread{PID: 1, TID: 1, Comm: Comm("a")}
	b.Add(th, []Loc{b.Marker("[sleep]"), {m, 1}}, "", 1, 700)
	b.Add(th, []Loc{b.Marker(notSampled)}, "", 1, 100)
	b.Add(th, []Loc{b.Marker("[lock]"), {m, 1}}, "stack-cut", 1, 200)
	p := b.Finish(Meta{Target: "m", Tool: "swbpf test", Event: "off-cpu", ByValue: true, Value: ValueType{"off-cpu", "nanoseconds"}},
		symbols{{m, 1}: {{Function: "f"}}})
	want := "a;[not sampled] 100\na;[truncated: stack-cut];f;[lock] 200\na;f;[sleep] 700\n"
	for _, write := range []func(io.Writer) error{p.WritePprof, p.WriteHTML, p.WriteFirefox, p.WritePerfScript, p.WriteSpeedscope, p.WriteFolded} {
		again, err := Read(bytes.NewReader(written(t, write)), ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		again.Meta.ByValue = again.Format != foldedFormat
		if got := folding(t, again); got != want {
			t.Errorf("%s: %s", again.Format, got)
		}
		var svg bytes.Buffer
		if err := again.WriteSVG(&svg); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{">waiting ", ">incomplete "} {
			if !strings.Contains(svg.String(), text) {
				t.Errorf("%s: no %s in the legend of\n%s", again.Format, text, svg.String())
			}
		}
		if top := again.Top(-1); len(top) != 1 {
			t.Errorf("%s: functions %+v", again.Format, top)
		}
	}
}
