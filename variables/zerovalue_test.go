package variables

import (
	"context"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// A value that nothing has made knows nothing, and says so.
func TestZeroValues(t *testing.T) {
	reader := func(name string, r *Reader) {
		r.Until(context.Background())
		testenv.NoPanic(t, name+".Functions", func() {
			if _, err := r.Functions(&unwind.Frame{}); err == nil {
				t.Errorf("%s: functions", name)
			}
		})
		testenv.NoPanic(t, name+".Value", func() {
			if _, err := r.Value(make([]unwind.Frame, 1), 0, &symbols.Variable{}); err == nil {
				t.Errorf("%s: a value", name)
			}
		})
	}
	testenv.NoPanic(t, "Until", func() { (&Reader{}).Until(context.Background()) })
	reader("Reader", &Reader{})
	reader("New", New(unwind.NewWalker(nil, nil, nil), symbols.New(symbols.Options{})))
	for name, v := range map[string]*Value{"Value": {}, "of a type": {Type: &symbols.Type{}}, "of a pointer": {Type: &symbols.Type{Kind: symbols.KindPointer}}} {
		testenv.NoPanic(t, name+".Address", func() { v.Address() })
		testenv.NoPanic(t, name+".Aggregate", func() { v.Aggregate() })
		testenv.NoPanic(t, name+".Format", func() { v.Format(Format{}) })
		testenv.NoPanic(t, name+".Read", func() {
			if n, err := v.Read(make([]byte, 8)); n > 0 || err == nil {
				t.Errorf("%s: %d bytes, %v", name, n, err)
			}
		})
		testenv.NoPanic(t, name+".Size", func() { v.Size() })
		testenv.NoPanic(t, name+".Standard", func() { v.Standard() })
		testenv.NoPanic(t, name+".Target", func() {
			if _, err := v.Target(); err == nil {
				t.Errorf("%s has a target", name)
			}
		})
	}
}
