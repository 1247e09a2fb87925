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
		b.AddStack(th, p.Stack(), 1, 10)
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
}

func zero[T any]() *T { return new(T) }

// What holds nothing is written as such, or not at all.
func TestZeroValues(t *testing.T) {
	testenv.KnowsNothing(t, zero[Builder], []string{"UsedModules"}, Label{"a", "b"})
	testenv.KnowsNothing(t, zero[Change], nil)
	testenv.KnowsNothing(t, zero[DiffEntry], nil)
	testenv.KnowsNothing(t, zero[FormatError], nil)
	testenv.KnowsNothing(t, zero[Meta], nil)
	testenv.KnowsNothing(t, zero[Thread], nil)
	_, _ = Kind(0).String(), Kind(99).String()
	written := []string{"Events", "WriteFirefox", "WriteFolded", "WriteHTML", "WriteHTMLWithin", "WriteOTLP", "Pprof", "WritePerfScript", "WritePprof", "WriteSVG", "WriteSpeedscope"}
	testenv.KnowsNothing(t, zero[Profile], written, io.Discard)
	testenv.KnowsNothing(t, func() *Profile { return NewBuilder().Finish(Meta{}, nil) }, written, io.Discard)
	testenv.KnowsNothing(t, zero[Diff], []string{"WriteHTML", "WriteSVG"}, io.Discard)
}
