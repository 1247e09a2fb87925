package symbols

import (
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// noPanic calls f, and says it where f panics.
func noPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s: %v", what, r)
		}
	}()
	f()
}

// A value that nothing has made knows nothing, and says so.
func TestZeroValues(t *testing.T) {
	wrong := func(what string, f func() error) {
		t.Helper()
		noPanic(t, what, func() {
			t.Helper()
			if f() == nil {
				t.Errorf("%s is no error", what)
			}
		})
	}
	bpf := func() *BPFCode { return &BPFCode{} }
	noPanic(t, "BPFCode.At", func() { bpf().At(1) })
	noPanic(t, "BPFCode.Came", func() { bpf().Came(1<<20, 64, "a"); bpf().Came(0, 0, "") })
	noPanic(t, "BPFCode.Went", func() { bpf().Went(1<<20, 64, "a") })
	noPanic(t, "BPFCode.Earlier", func() { bpf().Earlier(1) })
	noPanic(t, "BPFCode.Name", func() { bpf().Name(1) })
	noPanic(t, "Kernel.Lookup", func() {
		if _, ok := (&Kernel{}).Lookup(1); ok {
			t.Error("a name in no kernel")
		}
	})

	var x Expression
	noPanic(t, "CallParameter.IsOf", func() { (&CallParameter{}).IsOf(&x, 0) })
	noPanic(t, "Expression.AddrSize", func() { x.AddrSize() })
	noPanic(t, "Expression.Sub", func() { x.Sub(nil) })
	wrong("Expression.BaseType", func() error { _, err := x.BaseType(0); return err })
	wrong("Expression.Object", func() error { _, _, err := x.Object(0, 0); return err })
	wrong("Expression.Operation", func() error { _, _, err := x.Operation(0); return err })
	wrong("Expression.Operation", func() error { y := Expression{Code: []byte{3, 1, 2}}; _, _, err := y.Operation(0); return err })
	wrong("Expression.Procedure", func() error { _, err := x.Procedure(0, 0); return err })

	var f Function
	noPanic(t, "Function.AllVariables", func() { _, _ = f.AllVariables() })
	noPanic(t, "Function.CallSite", func() { _, _ = f.CallSite(1) })
	noPanic(t, "Function.Entry", func() { f.Entry() })
	noPanic(t, "Function.External", func() { f.External() })
	noPanic(t, "Function.FrameBase", func() { _, _ = f.FrameBase(1) })
	noPanic(t, "Function.MayReenter", func() { f.MayReenter() })
	noPanic(t, "Function.Physical", func() { f.Physical() })
	noPanic(t, "Function.Same", func() { f.Same(&Function{}) })

	var v Variable
	noPanic(t, "Variable.Bound", func() { _, _, _ = v.Bound(1) })
	noPanic(t, "Variable.Function", func() { v.Function() })
	noPanic(t, "Variable.InScope", func() { v.InScope(1) })
	noPanic(t, "Variable.Location", func() { _, _ = v.Location(1) })
	noPanic(t, "Variable.Type", func() { v.Type() })

	var ty Type
	for kind := range TypeKind(40) {
		ty.Kind = kind
		noPanic(t, "Type.Class", func() { ty.Class() })
		noPanic(t, "Type.Definition", func() { ty.Definition() })
		noPanic(t, "Type.Dimensions", func() { ty.Dimensions() })
		noPanic(t, "Type.Elem", func() { ty.Elem() })
		noPanic(t, "Type.Enumerators", func() { ty.Enumerators() })
		noPanic(t, "Type.IsGo", func() { ty.IsGo() })
		noPanic(t, "Type.IsNullptr", func() { ty.IsNullptr() })
		noPanic(t, "Type.IsStruct", func() { ty.IsStruct() })
		noPanic(t, "Type.Members", func() { ty.Members() })
		noPanic(t, "Type.QualifiedName", func() { ty.QualifiedName() })
		noPanic(t, "Type.RuntimeType", func() { ty.RuntimeType(0) })
		noPanic(t, "Type.Scope", func() { ty.Scope() })
		noPanic(t, "Type.Size", func() { ty.Size() })
		noPanic(t, "Type.String", func() { _ = ty.String() })
		noPanic(t, "Type.Strip", func() { ty.Strip() })
		noPanic(t, "Type.Variants", func() { ty.Variants() })
	}

	symbolizer := func(name string, made func() *Symbolizer) {
		im := &procstate.Image{}
		noPanic(t, name+".DeferTypes", func() { made().DeferTypes() })
		noPanic(t, name+".ReadTypes", func() { made().ReadTypes() })
		noPanic(t, name+".Errors", func() { made().Errors() })
		noPanic(t, name+".Forget", func() { made().Forget() })
		wrong(name+".Functions", func() error { _, err := made().Functions(im, 1); return err })
		noPanic(t, name+".Lines", func() {
			if l := made().Lines(nil, im, 1); len(l) > 0 {
				t.Errorf("%s: lines %v", name, l)
			}
		})
		lookup := func(what string, l *Lookup) {
			noPanic(t, what, func() {
				if _, ok := l.SymbolAt(1); ok {
					t.Errorf("%s: a name", what)
				}
				if _, ok := l.ObjectAt(1); ok {
					t.Errorf("%s: an object", what)
				}
				if _, _, ok := l.SourceLine(1); ok || len(l.Lines(nil, 1)) > 0 || len(l.LinesAt(nil, 1, 1)) > 0 {
					t.Errorf("%s: a line", what)
				}
				l.Symbolizer()
				l.Update()
				l.Close()
			})
		}
		noPanic(t, name+".Lookup", func() { lookup(name+".Lookup", made().Lookup(&procstate.AddressSpace{}, 0)) })
		noPanic(t, name+".Lookup(nil)", func() { lookup(name+".Lookup(nil)", made().Lookup(nil, 0)) })
		noPanic(t, name+".Process", func() { lookup(name+".Process", made().Process(&procstate.Snapshot{})) })
		noPanic(t, "Lookup", func() { lookup("Lookup", &Lookup{}) })
		noPanic(t, name+".Close", func() { _ = made().Close() })
	}
	symbolizer("Symbolizer", func() *Symbolizer { return &Symbolizer{} })
	symbolizer("New", func() *Symbolizer { return New(Options{}) })
}
