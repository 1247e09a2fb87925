package testenv

import "testing"

// NoPanic calls f, and says it where f panics.
func NoPanic(t testing.TB, what string, f func()) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s: %v", what, r)
		}
	}()
	f()
}
