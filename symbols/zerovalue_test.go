package symbols

import (
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// A value that nothing has made knows nothing, and says so.
func TestZeroValues(t *testing.T) {
	wrong := func(what string, f func() error) {
		t.Helper()
		testenv.NoPanic(t, what, func() {
			t.Helper()
			if f() == nil {
				t.Errorf("%s is no error", what)
			}
		})
	}
	bpf := func() *BPFCode { return &BPFCode{} }
	testenv.NoPanic(t, "BPFCode.At", func() { bpf().At(1) })
	testenv.NoPanic(t, "BPFCode.Came", func() { bpf().Came(1<<20, 64, "a"); bpf().Came(0, 0, "") })
	testenv.NoPanic(t, "BPFCode.Went", func() { bpf().Went(1<<20, 64, "a") })
	testenv.NoPanic(t, "BPFCode.Earlier", func() { bpf().Earlier(1) })
	testenv.NoPanic(t, "BPFCode.Name", func() { bpf().Name(1) })
	testenv.NoPanic(t, "Kernel.Lookup", func() {
		if _, ok := (&Kernel{}).Lookup(1); ok {
			t.Error("a name in no kernel")
		}
	})

	var x Expression
	testenv.NoPanic(t, "CallParameter.IsOf", func() { (&CallParameter{}).IsOf(&x, 0) })
	testenv.NoPanic(t, "Expression.addrSize", func() { x.addrSize() })
	testenv.NoPanic(t, "Expression.Sub", func() { x.Sub(nil) })
	wrong("Expression.BaseType", func() error { _, err := x.BaseType(0); return err })
	wrong("Expression.Object", func() error { _, _, err := x.Object(0, 0); return err })
	wrong("Expression.Operation", func() error { _, _, err := x.Operation(0); return err })
	wrong("Expression.Operation", func() error { y := Expression{Code: []byte{3, 1, 2}}; _, _, err := y.Operation(0); return err })
	wrong("Expression.Procedure", func() error { _, err := x.Procedure(0, 0); return err })

	var f Function
	testenv.NoPanic(t, "Function.AllVariables", func() { _, _ = f.AllVariables() })
	testenv.NoPanic(t, "Function.CallSite", func() { _, _ = f.CallSite(1) })
	testenv.NoPanic(t, "Function.Entry", func() { f.Entry() })
	testenv.NoPanic(t, "Function.External", func() { f.External() })
	testenv.NoPanic(t, "Function.FrameBase", func() { _, _ = f.FrameBase(1) })
	testenv.NoPanic(t, "Function.MayReenter", func() { f.MayReenter() })
	testenv.NoPanic(t, "Function.Physical", func() { f.Physical() })
	testenv.NoPanic(t, "Function.Same", func() { f.Same(&Function{}) })

	var v Variable
	testenv.NoPanic(t, "Variable.Bound", func() { _, _, _ = v.Bound(1) })
	testenv.NoPanic(t, "Variable.Function", func() { v.Function() })
	testenv.NoPanic(t, "Variable.InScope", func() { v.InScope(1) })
	testenv.NoPanic(t, "Variable.Location", func() { _, _ = v.Location(1) })
	testenv.NoPanic(t, "Variable.Type", func() { v.Type() })

	var ty Type
	for kind := range TypeKind(40) {
		ty.Kind = kind
		testenv.NoPanic(t, "Type.Class", func() { ty.Class() })
		testenv.NoPanic(t, "Type.Definition", func() { ty.Definition() })
		testenv.NoPanic(t, "Type.Dimensions", func() { ty.Dimensions() })
		testenv.NoPanic(t, "Type.Elem", func() { ty.Elem() })
		testenv.NoPanic(t, "Type.Enumerators", func() { ty.Enumerators() })
		testenv.NoPanic(t, "Type.IsGo", func() { ty.IsGo() })
		testenv.NoPanic(t, "Type.IsNullptr", func() { ty.IsNullptr() })
		testenv.NoPanic(t, "Type.IsStruct", func() { ty.IsStruct() })
		testenv.NoPanic(t, "Type.Arguments", func() { ty.Arguments() })
		testenv.NoPanic(t, "Type.Members", func() { ty.Members() })
		testenv.NoPanic(t, "Type.QualifiedName", func() { ty.QualifiedName() })
		testenv.NoPanic(t, "Type.RuntimeType", func() { ty.RuntimeType(0) })
		testenv.NoPanic(t, "Type.Scope", func() { ty.Scope() })
		testenv.NoPanic(t, "Type.Size", func() { ty.Size() })
		testenv.NoPanic(t, "Type.String", func() { _ = ty.String() })
		testenv.NoPanic(t, "Type.Strip", func() { ty.Strip() })
		testenv.NoPanic(t, "Type.Variants", func() { ty.Variants() })
	}

	symbolizer := func(name string, made func() *Symbolizer) {
		im := &procstate.Image{}
		testenv.NoPanic(t, name+".DeferTypes", func() { made().DeferTypes() })
		testenv.NoPanic(t, name+".ReadTypes", func() { made().ReadTypes() })
		testenv.NoPanic(t, name+".Errors", func() { made().Errors() })
		testenv.NoPanic(t, name+".Forget", func() { made().Forget() })
		wrong(name+".Functions", func() error { _, err := made().Functions(im, 1); return err })
		testenv.NoPanic(t, name+".Lines", func() {
			if l := made().Lines(nil, im, 1); len(l) > 0 {
				t.Errorf("%s: lines %v", name, l)
			}
		})
		lookup := func(what string, l *Lookup) {
			testenv.NoPanic(t, what, func() {
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
		testenv.NoPanic(t, name+".Lookup", func() { lookup(name+".Lookup", made().Lookup(&procstate.AddressSpace{}, 0)) })
		testenv.NoPanic(t, name+".Lookup(nil)", func() { lookup(name+".Lookup(nil)", made().Lookup(nil, 0)) })
		testenv.NoPanic(t, name+".Process", func() { lookup(name+".Process", made().Process(&procstate.Snapshot{})) })
		testenv.NoPanic(t, name+".Process(nil)", func() { lookup(name+".Process(nil)", made().Process(nil)) })
		testenv.NoPanic(t, "Lookup", func() { lookup("Lookup", &Lookup{}) })
		testenv.NoPanic(t, name+".Close", func() { made().Close() })
	}
	symbolizer("Symbolizer", func() *Symbolizer { return &Symbolizer{} })
	symbolizer("New", func() *Symbolizer { return New(Options{}) })
}
