package main

import (
	"slices"
	"strings"
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

// TestCommandText: a command line is shown where it tells more than the program's name, in one line that is not too long.
func TestCommandText(t *testing.T) {
	long := strings.Repeat("/a.jar:", 1000)
	for _, tc := range []struct {
		exe  string
		args []string
		want string
	}{
		{"/usr/bin/cat", nil, ""},
		{"/usr/bin/cat", []string{"cat"}, ""},
		{"/usr/bin/cat", []string{"/bin/cat"}, ""},
		{"/usr/bin/bash", []string{"-bash"}, ""},
		{"/usr/bin/cat", []string{"cat", "/bin/cat"}, "cat /bin/cat"},
		{"/usr/lib/postgresql/15/bin/postgres", []string{"postgres: shop pay [local] UPDATE waiting"}, "postgres: shop pay [local] UPDATE waiting"},
		{"/usr/bin/x", []string{"x", "a\x1b[2J\nb"}, "x a?[2J?b"},
		{"/usr/bin/x", []string{"\xff\xfe"}, "\ufffd\ufffd"},
		{"/usr/bin/java", []string{"java", "-Xmx4g", "-cp", long, "com.example.Main", "--port=80"},
			"java -Xmx4g -cp " + long[:99] + " [...] " + long[len(long)-88:] + " com.example.Main --port=80"},
	} {
		if got := commandText(tc.args, tc.exe); got != tc.want {
			t.Errorf("%.60q of %s: %q, want %q", tc.args, tc.exe, got, tc.want)
		}
	}
}
