package variables

import (
	"context"
	"testing"

	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// A value that nothing has made knows nothing, and says so.
func TestZeroValues(t *testing.T) {
	noPanic := func(what string, f func()) {
		t.Helper()
		defer func() {
			if r := recover(); r != nil {
				t.Errorf("%s: %v", what, r)
			}
		}()
		f()
	}
	reader := func(name string, r *Reader) {
		r.Until(context.Background())
		noPanic(name+".Functions", func() {
			if _, err := r.Functions(&unwind.Frame{}); err == nil {
				t.Errorf("%s: functions", name)
			}
		})
		noPanic(name+".Value", func() {
			if _, err := r.Value(make([]unwind.Frame, 1), 0, &symbols.Variable{}); err == nil {
				t.Errorf("%s: a value", name)
			}
		})
	}
	noPanic("Until", func() { (&Reader{}).Until(context.Background()) })
	reader("Reader", &Reader{})
	reader("New", New(unwind.NewWalker(nil, nil, nil), symbols.New(symbols.Options{})))
	for name, v := range map[string]*Value{"Value": {}, "of a type": {Type: &symbols.Type{}}, "of a pointer": {Type: &symbols.Type{Kind: symbols.KindPointer}}} {
		noPanic(name+".Address", func() { v.Address() })
		noPanic(name+".Aggregate", func() { v.Aggregate() })
		noPanic(name+".Format", func() { v.Format(Format{}) })
		noPanic(name+".Read", func() {
			if n, err := v.Read(make([]byte, 8)); n > 0 || err == nil {
				t.Errorf("%s: %d bytes, %v", name, n, err)
			}
		})
		noPanic(name+".Size", func() { v.Size() })
		noPanic(name+".Target", func() {
			if _, err := v.Target(); err == nil {
				t.Errorf("%s has a target", name)
			}
		})
	}
}
