package symbols

import (
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

func zero[T any]() *T { return new(T) }

// A value that nothing has made knows nothing, and says so.
func TestZeroValues(t *testing.T) {
	testenv.KnowsNothing(t, zero[BPFCode], nil, uint64(1<<20), uint32(64), "a")
	testenv.KnowsNothing(t, zero[CallParameter], nil)
	testenv.KnowsNothing(t, zero[Expression], nil)
	testenv.KnowsNothing(t, func() *Expression { return &Expression{Code: []byte{3, 1, 2}} }, nil)
	testenv.KnowsNothing(t, zero[Function], []string{"MayReenter"}, uint64(1))
	testenv.KnowsNothing(t, zero[Kernel], nil, uint64(1))
	testenv.KnowsNothing(t, zero[Lookup], nil, uint64(1))
	testenv.KnowsNothing(t, zero[Variable], nil, uint64(1))
	for kind := range TypeKind(40) {
		testenv.KnowsNothing(t, func() *Type { return &Type{Kind: kind} }, []string{"IsStruct"})
	}
	for _, made := range []func() *Symbolizer{zero[Symbolizer], func() *Symbolizer { return New(Options{}) }} {
		testenv.KnowsNothing(t, made, nil, uint64(1))
		for _, lookup := range []func() *Lookup{
			func() *Lookup { return made().Lookup(&procstate.AddressSpace{}, 0) },
			func() *Lookup { return made().Lookup(nil, 0) },
			func() *Lookup { return made().Process(&procstate.Snapshot{}) },
			func() *Lookup { return made().Process(nil) },
		} {
			testenv.KnowsNothing(t, lookup, nil, uint64(1))
		}
	}
}
