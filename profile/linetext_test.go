package profile

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// hostile is a profile whose names are made to be taken for something else. What
// formats of lines cannot have of them is "?".
func hostile() (p *Profile, stacks map[string]int64) {
	const (
		file     = "/tmp/\x1b]0;file\x07\x7f\xff"
		function = "f\x00\x1b[2J\u0085\u202e\u2028\xc3;g\n(int)"
	)
	b, syms := NewBuilder(), symbols{}
	m := b.Module(Module{Path: file, Kind: Native, Start: 0x1000, Limit: 0x9000})
	syms[Loc{m, 0x1100}] = []Line{{Function: function, File: file + ".c", Line: 3}}
	syms[Loc{m, 0x1200}] = []Line{{Function: "inner\x9b", File: file + ".c", Line: 4, Inlined: true}, {Function: "main", File: file + ".c", Line: 5}}
	stacks = map[string]int64{}
	for i, comm := range []struct{ name, written string }{
		{"\x1b[31m<b>\n]0;x\x07", "?[31m<b>_]0:x?"}, {"<b>", "<b>"}, {"{x}", "{x}"}, {"#1", "?1"}, {"\xe4\xbd", "?"}, {"\u4f60\u597d", "\u4f60\u597d"},
	} {
		n := int64(i + 1)
		b.Add(Thread{PID: 7, TID: 7, Comm: Comm(comm.name)}, []Loc{{m, 0x1100}, {m, 0x1200}}, "", n, n*10_101_010)
		stacks[comm.written+";main;inner?_[i];f??[2J????:g (int)"] = n
	}
	meta := fixtureMeta()
	meta.Event, meta.Lost = "cpu\x1b[0mclock", nil
	return b.Finish(meta, syms), stacks
}

// What is written of any names can be read, and shows nothing that a terminal
// would take for a command where it is read in one.
func TestHostileNamesReadBack(t *testing.T) {
	p, stacks := hostile()
	wantStacks(t, "folded", foldedOf(t, p, strings.NewReplacer()), stacks)
	for _, test := range []struct {
		format  string
		write   func(io.Writer) error
		lines   bool
		renamed *strings.Replacer // what the format does not tell
	}{
		{"pprof", p.WritePprof, false, strings.NewReplacer()},
		{pageFormat, p.WriteHTML, false, strings.NewReplacer()},
		{firefoxFormat, p.WriteFirefox, false, strings.NewReplacer()},
		{perfFormat, p.WritePerfScript, true, strings.NewReplacer()},
		{speedscopeFormat, p.WriteSpeedscope, false, strings.NewReplacer("_[i]", "")},
		{foldedFormat, p.WriteFolded, true, strings.NewReplacer("[unknown];", "")}, // the first names might be of functions
	} {
		data := written(t, test.write)
		if i := bytes.IndexFunc(data, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }); test.lines && i >= 0 {
			t.Errorf("%s: a control character in %q", test.format, data[max(i-20, 0):i+2])
		}
		again, err := Read(bytes.NewReader(data), ReadOptions{Name: "x"})
		if err != nil {
			t.Errorf("%s: %v", test.format, err)
			continue
		}
		if again.Format != test.format || again.Samples != p.Samples {
			t.Errorf("%s: read as %s, %d samples of %d", test.format, again.Format, again.Samples, p.Samples)
		}
		if test.format == speedscopeFormat {
			continue // it calls threads by numbers, too
		}
		if got := foldedOf(t, again, test.renamed); !maps.Equal(got, stacks) {
			t.Errorf("%s: read %q, want %q", test.format, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(stacks)))
		}
	}
}

// Each format of lines is known also where its first thread has a name that is odd.
func TestSniffOddNames(t *testing.T) {
	for text, want := range map[string]textKind{
		"<b>;main 3\n": foldedText, "{x};main 3": foldedText, "{;main;f(int) 3\n": foldedText,
		"<b> 7/7 1.000000000: cycles:\n\t1 f (x)\n\n": perfText, "{x} 7/7 1.000000000: 5 cycles:\n": perfText,
		"<!doctype html>\n": pageText, "<html><p>a;b 3\n</html>": foldedText, "<html>\n": pageText, "{\n \"a\": 3\n}": jsonText, "{\"a;b\": 3": jsonText, "{}": jsonText,
	} {
		if got, err := sniff([]byte(text)); got != want || err != nil {
			t.Errorf("%q is taken for %v, %v; want %v", text, got, err, want)
		}
	}
}
