package unwind

import (
	"fmt"
	"testing"
)

func TestStrings(t *testing.T) {
	for _, test := range []struct {
		value fmt.Stringer
		want  string
	}{
		{Location{}, "unknown"}, {InMemory(0x7ffe00001000), "at 0x7ffe00001000"}, {InRegister(0), "in register 0"}, {Location{Kind: 99}, "unknown"},
		{LibraryLoaded, "loaded"}, {LibraryUnloaded, "unloaded"}, {LibraryChange(99), "unknown"},
	} {
		if got := test.value.String(); got != test.want {
			t.Errorf("%#v: %q, want %q", test.value, got, test.want)
		}
	}
}
