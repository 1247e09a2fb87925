package variables

import (
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

func zero[T any]() *T { return new(T) }

// A value that nothing has made knows nothing, and says so.
func TestZeroValues(t *testing.T) {
	frames, ctx := make([]unwind.Frame, 1), t.Context()
	testenv.KnowsNothing(t, zero[Reader], nil, frames, ctx)
	testenv.KnowsNothing(t, func() *Reader { return New(unwind.NewWalker(nil, nil, nil), symbols.New(symbols.Options{})) }, nil, frames, ctx)
	for _, typ := range []*symbols.Type{nil, {}, {Kind: symbols.KindPointer}} {
		testenv.KnowsNothing(t, func() *Value { return &Value{Type: typ} }, nil, make([]byte, 8))
	}
}
