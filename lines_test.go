package swbpf_test

import (
	"reflect"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// numbered are functions whose lines are 16 bytes each.
type numbered struct{ functions }

func (numbered) SourceLine(addr uint64) (string, int, bool) { return "a.c", int(addr / 16), true }

// A SymbolLookup of the caller's own gives what it has.
func TestLinesOfOwnNames(t *testing.T) {
	frame := unwind.NewFrame(procstate.AMD64, 0x1083, 0x8000, 0) // in a call: the line is that of 0x1082
	names := functions{0x1000: "main", 0x1080: "parse"}
	parse := symbols.Line{Function: "parse", SystemName: "parse", FunctionStart: 0x1080}
	withLine := parse
	withLine.File, withLine.Line = "a.c", 0x108
	for _, c := range []struct {
		names unwind.SymbolLookup
		want  []symbols.Line
	}{
		{names, []symbols.Line{parse}},
		{numbered{names}, []symbols.Line{withLine}},
		{functions{0x2000: "other"}, nil},
	} {
		w := swbpf.With(procstate.NewSnapshot(procstate.AMD64, 1, "", nil), unwind.NewGroup(bytecode{}), c.names)
		if got := swbpf.Lines(w, nil, &frame); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%T: %+v, want %+v", c.names, got, c.want)
		}
	}
	if got := swbpf.Lines(unwind.NewWalker(nil, nil, nil), nil, &frame); got != nil {
		t.Errorf("lines of no names: %+v", got)
	}
	frame.Code = 7 // of another Walker
	if got := swbpf.Lines(new(unwind.Walker), nil, &frame); got != nil {
		t.Errorf("lines of no code: %+v", got)
	}
}
