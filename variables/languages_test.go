package variables_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	swbpf "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// address is one as it is written.
var address = regexp.MustCompile(`0x[0-9a-f]+`)

// TestGo compares what is read of a Go program's variables with what the
// program itself prints of them, and with its source, but for addresses. The
// installed toolchain is tested, and those that SWBPF_GO_VERSIONS names,
// separated by blanks: "go1.22.12 go1.23.12".
func TestGo(t *testing.T) {
	source := map[string]string{
		"numbers": `[]int len 5 {3, 1, 4, 1, 5}`, "none": `[]string len 0 {}`, "array": `{1, 2, 3}`, "empty": `nil`,
		"e": `{type = *errors.errorString, data = 0x: {s = "an error"}}`, "sh": `{type = main.point, data = 0x: {X = 42, Y = 9}}`,
		"wrapped":  `{type = *fmt.wrapError, data = 0x: {msg = "wrapped: an error", err = {type = *errors.errorString, data = 0x: {s = "an error"}}}}`,
		"failures": `[]error len 2 {{type = *errors.errorString, data = 0x: {s = "an error"}}, {type = *fmt.wrapError, data = 0x: {msg = "wrapped: an error", err = {type =`,
		"any5":     `{type = int, data = 0x: 5}`, "anyMap": `{type = map[string]int, data = 0x: map[string]int len 1 {"one": 1}}`,
		"anyBox": `{type = main.box, data = 0x: {p = 0x}}`, "anyNil": `{type = *main.record, data = 0x}`,
		"anyRec": `{type = *main.record, data = 0x: {Name = "rec", At = {...}, Tags = []string len 2 {"x", "y"}, Next = 0x}}`,
		"cycle":  `main.loop len 3 {main.loop len 3 {main.loop len 3 {main.loop len 3 {main.loop len 3 {...}, main.loop len 0 {}, main.loop len 3 {...}}, main`,
		"list":   `[]interface {} len 3 {{type = int, data = 0x: 1}, nil, {type = *main.point, data = 0x: {X = 42, Y = 9}}}`, "c": `1.5 + -2i`, "fn": `0x`,
		"m": `map[string]int len 1 {"one": 1}`, "noMap": "nil", "squares": `map[int]main.point len 1000 {`, "queue": "chan string 0x",
		"rec": `{Name = "rec", At = {...}, Tags = []string len 2 {"x", "y"}, Next = 0x`,
	}
	cases := []struct {
		command string
		known   int // at least so many of the variables have a value
	}{
		{"go build -gcflags=-N", 27}, {"go build", 9}, {"go build -ldflags=-compressdwarf=false", 9},
	}
	for _, version := range strings.Fields(os.Getenv("SWBPF_GO_VERSIONS")) {
		cases = append(cases, cases[0])
		cases[len(cases)-1].command = "env GOTOOLCHAIN=" + version + " " + cases[0].command
	}
	for _, c := range cases {
		path := compile(t, "vars.go", c.command)
		pid, said := start(t, path)
		prints := make(map[string]string)
		for _, line := range said {
			if name, value, ok := strings.Cut(line, "\t"); ok {
				prints[name] = value
			}
		}
		if len(prints) < 12 {
			t.Fatalf("the program prints %v", prints)
		}
		known := 0
		_, err := swbpf.WalkStopped(pid, swbpf.WalkOptions{}, func(ps *swbpf.ProcessStacks) {
			for _, s := range ps.Stacks { // any thread may run main
				known = max(known, compareGo(t, c.command, s.Walker, s.Frames, prints, source))
			}
		})
		if err != nil {
			testenv.Lacks(t, "%v", err)
		}
		if known < c.known {
			t.Errorf("%s: only %d variables have a value", c.command, known)
		}
	}
}

// compareGo returns how many variables are known, and as they should be.
func compareGo(t *testing.T, command string, w *unwind.Walker, walk []unwind.Frame, prints, source map[string]string) (known int) {
	t.Helper()
	r := swbpf.Variables(w)
	format := variables.Format{Code: func(addr uint64) string {
		s, _ := w.SymbolLookup().SymbolAt(addr)
		return s.Name
	}}
	functions := 0
	for i := range walk {
		fns, err := r.Functions(&walk[i])
		if err != nil {
			continue
		}
		for _, fn := range fns {
			if !strings.HasPrefix(fn.Name, "main.s") || fn.Name == "main.stand" {
				continue
			}
			functions++
			for _, v := range fn.Variables {
				value, err := r.Value(walk, i, v)
				if err != nil {
					continue
				}
				got := value.Format(format)
				if v.Name == "n" && strings.HasPrefix(fn.Name, "main.scalars") || got == "<optimized out>" {
					continue // not assigned yet
				}
				if want, ok := prints[v.Name]; ok {
					if got != want {
						t.Errorf("%s: %s is %s, the program prints %s", command, v.Name, got, want)
					}
					known++
				} else if want, ok := source[v.Name]; ok {
					if !strings.HasPrefix(address.ReplaceAllString(got, "0x"), want) {
						t.Errorf("%s: %s is %s, want %s", command, v.Name, got, want)
					}
					known++
				}
				if v.Name == "squares" {
					checkSquares(t, value)
				}
				if v.Name == "fn" && !strings.HasSuffix(got, "<main.scalars.func1>") {
					t.Errorf("%s: fn is %s", command, got)
				}
			}
		}
	}
	if functions != 2 && functions != 0 {
		t.Errorf("%s: %d functions of the program", command, functions)
	}
	return known
}

// checkSquares looks for all entries of a map of numbers and points.
func checkSquares(t *testing.T, value *variables.Value) {
	t.Helper()
	entries := map[string]bool{}
	for _, m := range regexp.MustCompile(`(\d+): \{X = (\d+), Y = (\d+)\}`).FindAllStringSubmatch(value.Format(variables.Format{Elements: 2000, Depth: 2}), -1) {
		x, _ := strconv.Atoi(m[1])
		if m[1] != m[2] || strconv.Itoa(x*x) != m[3] || x >= 1000 {
			t.Errorf("squares has the entry %s", m[0])
		}
		entries[m[1]] = true
	}
	if len(entries) != 1000 {
		t.Errorf("squares has %d entries", len(entries))
	}
	if got := value.Format(variables.Format{Elements: 3}); !strings.HasSuffix(got, "{...}, ...}") || strings.Count(got, ": ") != 3 {
		t.Errorf("3 entries of squares are %s", got)
	}
}

// TestRust compares what is read of a Rust program's variables with its
// source.
func TestRust(t *testing.T) {
	want := map[string]map[string]string{
		"vars::shapes": {
			"a": "Empty", "b": "Circle {__0 = 1.5}", "c": "Rect {w = 3, h = -4}", "flag": "true", "letter": "233 'é'", "p": "{x = -3, y = 250}",
			"list": "{1, 2, 3}", "tuple": "{__0 = 1, __1 = 2.5}", "wide": "-170141183460469231731687303715884105728",
		},
		"vars::stand": {
			"text": `"hello \"rust\""`, "owned": `"owned"`, "reference": `0x`, "vector": "Vec(size=3) = {1, 2, 3}", "texts": `Vec(size=2) = {"a", "b"}`,
			"none_yet": "Vec(size=0)", "slice": "&[u16](size=2) = {4, 5}", "box_text": `"in a box"`, "some_text": `Some {__0 = "some"}`, "some": "Some {__0 = -5}", "none": "None", "boxed": "Some {__0 = 0x", "nothing": "None",
		},
	}
	path := compile(t, "vars.rs", "rustc -g -C debug-assertions=off -C overflow-checks=off")
	stopped(t, path, func(w *unwind.Walker, walk []unwind.Frame) {
		r := swbpf.Variables(w)
		for function, vars := range want {
			for name, text := range vars {
				i, v := find(t, r, walk, function, name, false)
				value, err := r.Value(walk, i, v)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				if got := value.Format(variables.Format{}); !strings.HasPrefix(got, text) || name == "reference" && !strings.HasSuffix(got, ` "owned"`) {
					t.Errorf("%s is %s, want %s", name, got, text)
				}
			}
		}
	})
}
