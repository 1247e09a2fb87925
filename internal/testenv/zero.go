package testenv

import (
	"reflect"
	"slices"
	"testing"
)

// KnowsNothing calls each exported method of what made returns, a new one for each, and says it
// where one panics, or knows something: its last result is no error, true, or not empty. Close and
// methods named in fine may. Parameters are those of args that fit, or else zero: pointers are
// to zero values, functions do nothing.
func KnowsNothing[T any](t testing.TB, made func() T, fine []string, args ...any) {
	t.Helper()
	typ := reflect.TypeFor[T]()
	for _, name := range fine {
		if _, ok := typ.MethodByName(name); !ok {
			t.Errorf("%s has no method %s", typ, name)
		}
	}
	for i := range typ.NumMethod() {
		name := typ.Method(i).Name
		what := typ.String() + "." + name
		NoPanic(t, what, func() {
			method := reflect.ValueOf(made()).Method(i)
			var in []reflect.Value
			for p := range method.Type().NumIn() {
				if method.Type().IsVariadic() && p == method.Type().NumIn()-1 {
					break
				}
				in = append(in, argument(method.Type().In(p), args))
			}
			out := method.Call(in)
			if n := len(out); n > 0 && knows(out[n-1]) && name != "Close" && !slices.Contains(fine, name) {
				t.Errorf("%s returns %v", what, out)
			}
		})
	}
}

// argument returns one of args that has a type, or else nothing of it.
func argument(typ reflect.Type, args []any) reflect.Value {
	for _, a := range args {
		if reflect.TypeOf(a).AssignableTo(typ) {
			return reflect.ValueOf(a)
		}
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return reflect.New(typ.Elem())
	case reflect.Func:
		return reflect.MakeFunc(typ, func([]reflect.Value) (out []reflect.Value) {
			for i := range typ.NumOut() {
				out = append(out, reflect.Zero(typ.Out(i)))
			}
			return out
		})
	}
	return reflect.Zero(typ)
}

var errorType = reflect.TypeFor[error]()

// knows reports whether a result tells something.
func knows(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool()
	case reflect.Slice, reflect.Map:
		return v.Len() > 0
	}
	return v.Type() == errorType && v.IsNil()
}
