package main

import (
	"slices"
	"testing"
)

// TestReplaceNumbers: the numbers in the names of threads are replaced, whatever is
// around them.
func TestReplaceNumbers(t *testing.T) {
	for _, tc := range []struct {
		name, replaced string
		numbers        []string
	}{
		{"", "", nil},
		{"main", "main", nil},
		{"7", "0", []string{"7"}},
		{"pool-12-thread-3", "pool-0-thread-0", []string{"12", "3"}},
		{"0019x", "0x", []string{"0019"}},
		{"x\xff9\u0664", "x\xff0\u0664", []string{"9"}}, // digits of ASCII alone
	} {
		if got := replaceNumbers(tc.name, func(string) string { return "0" }); got != tc.replaced {
			t.Errorf("%q: %q, want %q", tc.name, got, tc.replaced)
		}
		if got := numbersOf(tc.name); !slices.Equal(got, tc.numbers) {
			t.Errorf("%q: %q, want %q", tc.name, got, tc.numbers)
		}
	}
}
