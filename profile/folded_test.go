package profile

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

func TestFolded(t *testing.T) {
	var buf bytes.Buffer
	if err := fixture().WriteFolded(&buf); err != nil {
		t.Fatal(err)
	}
	golden(t, "stacks.folded", buf.Bytes())
	for _, turns := range otherTurns {
		var other bytes.Buffer
		if err := fixture(turns...).WriteFolded(&other); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(other.Bytes(), buf.Bytes()) {
			t.Errorf("differs when samples are added in the order %v", turns)
		}
	}
}

func TestFoldedNames(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                    "plain",
		"a;b":                      "a:b",
		"a\nb\r\tc":                "a b  c",
		"operator new(unsigned x)": "operator new(unsigned x)",
	} {
		if got := foldedName(in); got != want {
			t.Errorf("foldedName(%q) = %q, want %q", in, got, want)
		}
	}
	for _, c := range []struct{ comm, program, want string }{
		{"", "", "[unknown]"}, {"a b;c\n", "x", "a_b:c_"}, {"", "my server", "my_server"},
	} {
		p, th := Profile{program: c.program}, Thread{Comm: Comm(c.comm)}
		if got := p.foldedComm(&th); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestFoldedByValue(t *testing.T) {
	b := NewBuilder()
	b.Add(Thread{Comm: Comm("x")}, nil, "", 2, 700)
	var buf bytes.Buffer
	if err := b.Finish(Meta{ByValue: true}, nil).WriteFolded(&buf); err != nil || buf.String() != "x 700\n" {
		t.Errorf("got %q, %v", buf.String(), err)
	}
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestWriteErrors(t *testing.T) {
	p := fixture()
	if err := p.WriteFolded(brokenWriter{}); !errors.Is(err, errBroken) {
		t.Errorf("folded: %v", err)
	}
	if err := p.WritePprof(brokenWriter{}); !errors.Is(err, errBroken) {
		t.Errorf("pprof: %v", err)
	}
}

func TestTop(t *testing.T) {
	p := fixture()
	want := []TopEntry{
		{"std::vector<int>::push_back(int const&)", "/usr/bin/app", Native, 62, 62},
		{"vfs_read", KernelPath, Kernel, 20, 20},
		{"main.handle", "/usr/bin/gosrv", Go, 12, 12},
	}
	if got := p.Top(3); !slices.Equal(got, want) {
		t.Errorf("Top(3) = %+v, want %+v", got, want)
	}
	all := p.Top(-1)
	i := slices.IndexFunc(all, func(e TopEntry) bool { return e.Function == "main" })
	if i < 0 || all[i] != (TopEntry{"main", "/usr/bin/app", Native, 0, 77}) {
		t.Errorf("main is %+v", all[i])
	}
}

// A function that calls itself counts once per sample, and functions that
// only their symbols tell apart are one.
func TestTopRecursive(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "a"})
	syms := symbols{
		{m, 1}: {{Function: "f", SystemName: "f1"}},
		{m, 2}: {{Function: "f", SystemName: "f2"}},
	}
	b.Add(Thread{}, []Loc{{m, 1}, {m, 2}, {m, 1}}, "", 5, 5)
	b.Add(Thread{TID: 1}, []Loc{{m, 1}, {m, 2}, {m, 1}}, "", 2, 2)
	b.Add(Thread{}, []Loc{{m, 2}, {m, 1}}, "", 1, 1)
	want := []TopEntry{{Function: "f", Module: "a", Self: 8, Total: 8}}
	if got := b.Finish(Meta{}, syms).Top(-1); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Stacks are told by their innermost functions, inlined ones too, and without markers.
func TestTopStacks(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "a"})
	syms := symbols{{m, 1}: {{Function: "main"}}, {m, 2}: {{Function: "inlined"}, {Function: "f"}}, {m, 3}: {{Function: "alloc"}}}
	b.Add(Thread{}, []Loc{{m, 3}, {m, 2}, {m, 1}}, "", 1, 100)
	b.Add(Thread{TID: 1}, []Loc{{m, 3}, {m, 2}, {m, 2}, {m, 1}}, "stack-cut", 1, 10)
	b.Add(Thread{}, []Loc{b.Marker("[mark]"), {m, 3}, {m, 1}}, "", 2, 200)
	p := b.Finish(Meta{ByValue: true}, syms)
	for _, c := range []struct {
		n, functions int
		want         []TopStack
	}{
		{9, 3, []TopStack{{[]string{"alloc", "main"}, 200}, {[]string{"alloc", "inlined", "f"}, 110}}},
		{1, 1, []TopStack{{[]string{"alloc"}, 310}}},
		{0, 3, nil},
	} {
		got := p.TopStacks(c.n, c.functions)
		if !slices.EqualFunc(got, c.want, func(a, b TopStack) bool { return a.Value == b.Value && slices.Equal(a.Functions, b.Functions) }) {
			t.Errorf("TopStacks(%d, %d) = %v, want %v", c.n, c.functions, got, c.want)
		}
	}
}

func TestShare(t *testing.T) {
	for _, test := range []struct {
		n, total int64
		want     string
	}{
		{0, 0, "none"}, {0, 5, "0 %"}, {5, 5, "100 %"}, {99999, 100000, "99.9 %"},
		{1, 100000, "< 0.1 %"}, {1, 3, "33.3 %"},
	} {
		if got := share(test.n, test.total); got != test.want {
			t.Errorf("share(%d, %d) = %q, want %q", test.n, test.total, got, test.want)
		}
	}
}
