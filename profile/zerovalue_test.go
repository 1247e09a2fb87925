package profile

import (
	"bytes"
	"io"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// The zero Builder is as NewBuilder makes it.
func TestZeroBuilder(t *testing.T) {
	fill := func(b *Builder) []byte {
		b.KeepTimes()
		b.SetTime(5)
		m := b.Module(Module{Path: "/bin/prog"})
		th := Thread{PID: 1, TID: 2, Labels: b.Labels(Label{"a", "b"})}
		loc := b.Marker("[text]")
		if text, ok := b.MarkerText(loc); !ok || text != "[text]" {
			t.Errorf("marker %q, %t", text, ok)
		}
		var p Path
		b.Add(th, []Loc{{m, 16}, {m, 32}}, "", 1, 10)
		b.AddAlong(&p, th, []Loc{{m, 48}, {m, 32}}, 0, "", 1, 10)
		b.AddAlong(&p, th, []Loc{{m, 64}, {m, 32}}, 1, "stack-cut", 2, 20)
		var out bytes.Buffer
		if err := b.Finish(Meta{}, nil).WriteFolded(&out); err != nil {
			t.Error(err)
		}
		return out.Bytes()
	}
	testenv.NoPanic(t, "Builder", func() {
		zero, made := fill(&Builder{}), fill(NewBuilder())
		if !bytes.Equal(zero, made) || len(made) == 0 {
			t.Errorf("%q, of one that was made %q", zero, made)
		}
	})
	for name, f := range map[string]func(b *Builder){
		"Add":        func(b *Builder) { b.Add(Thread{}, nil, "", 1, 1) },
		"AddAlong":   func(b *Builder) { b.AddAlong(&Path{}, Thread{}, nil, 0, "", 1, 1) },
		"Finish":     func(b *Builder) { b.Finish(Meta{}, nil) },
		"KeepTimes":  func(b *Builder) { b.KeepTimes() },
		"Labels":     func(b *Builder) { b.Labels(Label{"a", "b"}) },
		"Marker":     func(b *Builder) { b.Marker("a") },
		"MarkerText": func(b *Builder) { b.MarkerText(Loc{}) },
		"Module":     func(b *Builder) { b.Module(Module{}) },
		"SetTime":    func(b *Builder) { b.SetTime(1) },
	} {
		testenv.NoPanic(t, name, func() { f(&Builder{}) })
	}
}

// What holds nothing is written as such, or not at all.
func TestZeroValues(t *testing.T) {
	profile := func(name string, made func() *Profile) {
		for how, write := range map[string]func(p *Profile, w io.Writer) error{
			"Firefox": (*Profile).WriteFirefox, "Folded": (*Profile).WriteFolded, "HTML": (*Profile).WriteHTML,
			"PerfScript": (*Profile).WritePerfScript, "Pprof": (*Profile).WritePprof, "SVG": (*Profile).WriteSVG,
			"Speedscope": (*Profile).WriteSpeedscope,
			"HTMLWithin": func(p *Profile, w io.Writer) error { return p.WriteHTMLWithin(w, &Links{}) },
		} {
			testenv.NoPanic(t, name+".Write"+how, func() { _ = write(made(), io.Discard) })
		}
		testenv.NoPanic(t, name+".Amount", func() { made().Amount(1) })
		testenv.NoPanic(t, name+".Function", func() {
			if _, ok := made().Function("a", "b"); ok {
				t.Error("a function")
			}
		})
		testenv.NoPanic(t, name+".OfType", func() { _, _ = made().OfType("samples") })
		testenv.NoPanic(t, name+".Pprof", func() { _, _ = made().Pprof() })
		testenv.NoPanic(t, name+".SourceFiles", func() { made().SourceFiles() })
		testenv.NoPanic(t, name+".Top", func() {
			if n := len(made().Top(5)) + len(made().TopUser(5)); n > 0 {
				t.Errorf("%d functions", n)
			}
		})
		testenv.NoPanic(t, name+".Waits", func() { made().Waits() })
		testenv.NoPanic(t, name+".Whole", func() { made().Whole() })
	}
	profile("Profile", func() *Profile { return &Profile{} })
	profile("Finish", func() *Profile { return NewBuilder().Finish(Meta{}, nil) })

	diff := func(name string, made func() *Diff) {
		testenv.NoPanic(t, name+".Delta", func() { made().Delta(&Change{}) })
		testenv.NoPanic(t, name+".Method", func() { made().Method() })
		testenv.NoPanic(t, name+".Value", func() { made().Value(1) })
		testenv.NoPanic(t, name+".WriteHTML", func() { _ = made().WriteHTML(io.Discard) })
		testenv.NoPanic(t, name+".WriteSVG", func() { _ = made().WriteSVG(io.Discard) })
	}
	diff("Diff", func() *Diff { return &Diff{} })
	testenv.NoPanic(t, "DiffEntry", func() { (&DiffEntry{}).HasSelf(); (&DiffEntry{}).Leading(); (&Change{}).Delta() })
	testenv.NoPanic(t, "words", func() {
		_, _, _ = (&FormatError{}).Error(), Kind(0).String(), Kind(99).String()
		(&Meta{}).LostTotal()
		(&Thread{}).CommString()
	})
}
