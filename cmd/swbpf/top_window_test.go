package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/symbols"
)

// fakeWindow is a window whose places get their names from a table.
type fakeWindow struct {
	*topWindow
	mods  *modules
	view  *topView
	begin time.Time

	callers []profile.Loc // of Add
	id      uint32        // of the program's module
}

func newFakeWindow(length time.Duration) *fakeWindow {
	mods := newModules(profile.NewBuilder(), symbols.Options{})
	w := &fakeWindow{topWindow: newTopWindow(length, mods), mods: mods,
		view: newTopView(topStatus{target: "test", event: "cpu-clock", frequency: 100, isTimer: true}, true)}
	w.begin = w.slots[0].begin
	w.id = mods.number(profile.Module{Path: "/bin/prog", Kind: profile.Native})
	return w
}

// add counts a stack of functions, leaf first; each is called by its address,
// a letter.
func (w *fakeWindow) add(pid, tid int32, comm, stack string, count int64) {
	var locs []profile.Loc
	for _, c := range stack {
		locs = append(locs, profile.Loc{Module: w.id, Addr: uint64(c)})
	}
	w.Add(profile.Thread{PID: pid, TID: tid, Comm: profile.Comm(comm)}, locs, "", count, count)
}

// Add counts a stack that is leaf first.
func (w *fakeWindow) Add(t profile.Thread, stack []profile.Loc, truncated string, count, value int64) {
	w.callers = append(w.callers[:0], stack...)
	slices.Reverse(w.callers)
	w.AddAlong(nil, t, w.callers, 0, truncated, count, value)
}

// show rolls the window at a time after its beginning and names all places.
func (w *fakeWindow) show(at time.Duration) {
	s := w.roll(w.begin.Add(at))
	for places, list := range s.lists {
		for i := range list {
			if list[i].marker == "" {
				s.named = append(s.named, topNamed{places, uint32(i), []profile.Line{{Function: string(rune(list[i].addr))}}})
			}
		}
	}
	w.view.show(s)
}

// table writes rows as "name self/total".
func (w *fakeWindow) table() string {
	var out []string
	for i := range w.view.rows {
		r := &w.view.rows[i]
		out = append(out, fmt.Sprintf("%s %d/%d", w.view.name(r), r.self, r.total))
	}
	return strings.Join(out, ", ")
}

func TestTopWindowSlides(t *testing.T) {
	w := newFakeWindow(10 * time.Second)
	for second := range 15 {
		w.add(1, 1, "c", fmt.Sprintf("%cZ", 'a'+second), 1)
		w.show(time.Duration(second+1) * time.Second)
	}
	// Slots end at 1 s to 15 s; those that ended before 5 s are gone.
	if got, want := len(w.view.now.slots), 11; got != want {
		t.Errorf("%d slots, want %d", got, want)
	}
	if n, complete := w.view.samples(); n != 11 || complete != 11 {
		t.Errorf("%d samples, %d complete", n, complete)
	}
	if got := w.table(); !strings.HasPrefix(got, "e 1/1, f 1/1") || !strings.HasSuffix(got, "o 1/1, Z 0/11") {
		t.Errorf("functions: %s", got)
	}
}

func TestTopFunctions(t *testing.T) {
	w := newFakeWindow(time.Minute)
	w.add(1, 1, "c", "abm", 3)
	w.add(1, 2, "c", "bm", 2)
	w.add(1, 1, "c", "abab", 1) // recursion counts once
	w.Add(profile.Thread{PID: 1, TID: 1}, []profile.Loc{{Module: w.id, Addr: 'a'}}, "stack-cut", 4, 4)
	w.show(time.Second)
	if got, want := w.table(), "a 8/8, b 2/6, m 0/5"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if n, complete := w.view.samples(); n != 10 || complete != 6 {
		t.Errorf("%d samples, %d complete", n, complete)
	}
}

func TestTopTasks(t *testing.T) {
	w := newFakeWindow(time.Minute)
	w.add(7, 7, "main", "am", 1)
	w.add(7, 8, "worker", "bm", 5)
	w.add(9, 9, "other\x1b[2J", "a", 2)
	w.show(time.Second)
	w.view.press('2', 20)
	if got, want := w.table(), "main 6/6, other?[2J 2/2"; got != want {
		t.Errorf("processes %q, want %q", got, want)
	}
	if r := w.view.rows[0]; r.threads != 2 || w.view.names.funcs[r.hottest].name != "b" {
		t.Errorf("%d threads, hottest %s", r.threads, w.view.names.funcs[r.hottest].name)
	}
	w.view.press('3', 20)
	if got, want := w.table(), "worker 5/5, other?[2J 2/2, main 1/1"; got != want {
		t.Errorf("threads %q, want %q", got, want)
	}
	if c, ok := w.view.cpu(50); !ok || c != 50 {
		t.Errorf("50 samples of 100 Hz in a second are %v %% of a CPU, %v", c, ok)
	}
}

// tree writes a tree as lines of depth, name, count and self.
func (w *fakeWindow) tree(subject topSubject, callers bool) string {
	var out []string
	for _, r := range topStacks(&w.view.now, w.view.names, subject, callers).rows(w.view.names, subject.tab == topTabFunctions) {
		out = append(out, fmt.Sprintf("%d%s%d/%d", r.depth, w.view.names.funcs[r.fn].name, r.count, r.self))
	}
	return strings.Join(out, " ")
}

func TestTopStacks(t *testing.T) {
	w := newFakeWindow(time.Minute)
	w.add(1, 1, "c", "abm", 60)
	w.add(1, 2, "c", "cbm", 30)
	w.add(2, 3, "d", "bm", 10)
	w.add(2, 3, "d", "bbm", 100)
	w.add(2, 3, "d", "x", 800)
	w.show(time.Second)
	b := topSubject{topTabFunctions, w.view.names.ids[topFunc{"b", "prog", profile.Native}]}
	for _, c := range []struct {
		subject topSubject
		callers bool
		want    string
	}{
		{b, false, "0b200/10 1b100/100 1a60/60 1c30/30"},
		{b, true, "0b200/0 0m200/200"},
		{topSubject{topTabProcesses, 1}, false, "0m90/0 0b90/0 1a60/60 1c30/30"},
		{topSubject{topTabThreads, 2}, true, "0c30/0 0b30/0 0m30/30"},
		{topSubject{topTabThreads, 99}, true, ""},
	} {
		if got := w.tree(c.subject, c.callers); got != c.want {
			t.Errorf("%v, callers %v: %s, want %s", c.subject, c.callers, got, c.want)
		}
	}
}

// TestTopPlacesStartAfresh fills the numbering of places.
func TestTopPlacesStartAfresh(t *testing.T) {
	w := newFakeWindow(2 * time.Second)
	old := w.places
	locs := make([]profile.Loc, 1)
	for i := range maxTopPlaces {
		locs[0] = profile.Loc{Module: w.id, Addr: 1000 + uint64(i)}
		w.Add(profile.Thread{PID: 1, TID: 1}, locs, "", 1, 1)
	}
	w.view.show(w.roll(w.begin.Add(time.Second)))
	if w.places == old {
		t.Fatal("the numbering goes on")
	}
	w.add(1, 1, "c", "a", 1)
	w.view.show(w.roll(w.begin.Add(2 * time.Second)))
	if n, _ := w.view.samples(); n != maxTopPlaces+1 {
		t.Errorf("%d samples", n)
	}
	w.view.show(w.roll(w.begin.Add(10 * time.Second)))
	if _, kept := w.view.names.at[old]; kept || len(w.view.now.lists) != 1 {
		t.Errorf("places that left the window are kept: %d numberings", len(w.view.now.lists))
	}
}

func TestTopAddAllocations(t *testing.T) {
	w := newFakeWindow(time.Minute)
	stack := make([]profile.Loc, 100)
	for i := range stack {
		stack[i] = profile.Loc{Module: w.id, Addr: uint64(i)}
	}
	thread := profile.Thread{PID: 1, TID: 1}
	w.Add(thread, stack, "", 1, 1)
	if n := testing.AllocsPerRun(100, func() { w.Add(thread, stack, "", 1, 1) }); n != 0 {
		t.Errorf("%v allocations for a stack that is known", n)
	}
	if s := w.slots[0]; len(s.stacks) != 1 || len(s.frames) != 100 || s.stacks[0].count != 102 {
		t.Errorf("%d stacks, %d frames", len(s.stacks), len(s.frames))
	}
}

func TestTopSelectionFollows(t *testing.T) {
	w := newFakeWindow(time.Minute)
	w.add(1, 1, "c", "a", 3)
	w.add(1, 1, "c", "b", 2)
	w.add(1, 1, "c", "c", 1)
	w.show(time.Second)
	w.view.press(keyDown, 20)
	w.add(1, 1, "c", "c", 10) // overtakes both
	w.show(2 * time.Second)
	sel := w.view.selected[topTabFunctions]
	if got := w.view.name(&w.view.rows[sel.index]); got != "b" || sel.index != 2 {
		t.Errorf("selected %s at %d, want b at 2", got, sel.index)
	}
	for _, k := range []key{keyPageDown, keyEnd, keyDown, 'G'} {
		if w.view.press(k, 20); w.view.selected[topTabFunctions].index != 2 {
			t.Errorf("key %d: line %d", k, w.view.selected[topTabFunctions].index)
		}
	}
	for _, k := range []key{keyHome, keyPageUp, keyUp} {
		if w.view.press(k, 20); w.view.selected[topTabFunctions].index != 0 {
			t.Errorf("key %d: line %d", k, w.view.selected[topTabFunctions].index)
		}
	}
}

// TestTopRenderFits presses all keys in all orders on screens of all sizes: no
// line may be wider than the screen, nor the screen higher.
func TestTopRenderFits(t *testing.T) {
	w := newFakeWindow(time.Minute)
	w.add(1, 1, "a command", strings.Repeat("abcdefgh", 20), 3)
	w.add(2, 2, "\x1b[31m", "日本語m", 2)
	w.view.status.lost = 12
	w.show(time.Second)
	keys := []key{keyEnter, 'c', keyTab, '/', 'a', keyBackspace, keyEnter, 's', '?', keyEscape, ' ', keyEnter, keyDown, keyEnd, 'c', '?', 'x', keyEscape, '3', keyUp, keyUnknown, ' '}
	for _, width := range []int{1, 2, 10, 59, 60, 80, 200} {
		for _, height := range []int{1, 2, 4, 5, 24, 60} {
			for i, k := range slices.Concat(keys, keys, keys) {
				lines := w.view.render(width, height)
				if len(lines) > height {
					t.Fatalf("%dx%d, key %d: %d lines", width, height, i, len(lines))
				}
				for _, l := range lines {
					if n := columns(l); n > width {
						t.Fatalf("%dx%d, key %d: %d columns: %q", width, height, i, n, l)
					}
				}
				w.view.press(k, listLines(height))
			}
		}
	}
}

// columns is the width of a line without what only sets its style.
func columns(line string) int {
	n, escape := 0, false
	for _, r := range line {
		switch {
		case r == 0x1b:
			escape = true
		case escape:
			escape = r != 'm'
		default:
			n += runeWidth(r)
		}
	}
	return n
}

func TestFit(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"abcdef", 6, "abcdef"}, {"abcdef", 5, "abc.."}, {"abcdef", 2, ".."}, {"abcdef", 1, "."}, {"abcdef", 0, ""}, {"abcdef", -1, ""},
		{"日本語", 6, "日本語"}, {"日本語", 5, "日.."}, {"日本語", 3, ".."}, {"e\u0301x", 2, "e\u0301x"}, {"", 0, ""},
	} {
		got, n := fit(c.text, c.n)
		if got != c.want || n != columns(got) {
			t.Errorf("%q in %d: %q of %d columns, want %q", c.text, c.n, got, n, c.want)
		}
	}
}

func TestDecodeKey(t *testing.T) {
	for _, c := range []struct {
		in    string
		final bool
		k     key
		n     int
	}{
		{"a", false, 'a', 1}, {"é", false, 'é', 2}, {"\xc3", false, 0, 0}, {"\xc3", true, keyUnknown, 1}, {"\xff", false, keyUnknown, 1},
		{"\r", false, keyEnter, 1}, {"\t", false, keyTab, 1}, {"\x7f", false, keyBackspace, 1}, {"\x01", false, keyUnknown, 1}, {"\x03", false, keyInterrupt, 1},
		{"\x1b", false, 0, 0}, {"\x1b", true, keyEscape, 1}, {"\x1bq", false, keyEscape, 1}, {"\x1b\x1b", false, keyEscape, 1},
		{"\x1b[", false, 0, 0}, {"\x1b[", true, keyUnknown, 2}, {"\x1b[A", false, keyUp, 3}, {"\x1bOB", false, keyDown, 3}, {"\x1bO", false, 0, 0},
		{"\x1b[5~x", false, keyPageUp, 4}, {"\x1b[1;5C", false, keyUnknown, 6}, {"\x1b[Z", false, keyBackTab, 3},
		{"\x1b[" + strings.Repeat("1", 40), false, keyUnknown, maxSequence},
	} {
		if k, n := decodeKey([]byte(c.in), c.final); k != c.k || n != c.n {
			t.Errorf("%q: key %d of %d bytes, want %d of %d", c.in, k, n, c.k, c.n)
		}
	}
}

func FuzzDecodeKey(f *testing.F) {
	f.Add([]byte("\x1b[A\x1bOBq\xc3\xa9"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			_, n := decodeKey(b, true)
			if n < 1 || n > len(b) {
				t.Fatalf("%q: %d bytes", b, n)
			}
			b = b[n:]
		}
	})
}

// TestTopGuard checks that a panic next to the screen comes out as an error,
// so that the terminal is restored first.
func TestTopGuard(t *testing.T) {
	tp := &top{failed: make(chan error, 1)}
	tp.guard(func() error { panic("boom") })
	if err := <-tp.failed; !strings.Contains(err.Error(), "panic: boom") || !strings.Contains(err.Error(), "TestTopGuard") {
		t.Errorf("%v", err)
	}
}

// By time, stacks count by their values; a function of user space has what the
// kernel did for it, and remarks have nothing.
func TestTopByTime(t *testing.T) {
	w := newFakeWindow(time.Minute)
	w.values, w.view.status.byTime = true, true
	kernel := w.mods.number(profile.Module{Path: profile.KernelPath, Kind: profile.Kernel})
	lock := w.mods.builder.Marker("[lock]")
	main, wait := profile.Loc{Module: w.id, Addr: 'm'}, profile.Loc{Module: w.id, Addr: 'w'}
	th := profile.Thread{PID: 1, TID: 1, Comm: profile.Comm("c")}
	w.Add(th, []profile.Loc{lock, {Module: kernel, Addr: 'k'}, wait, main}, "", 1, 3e9)
	w.Add(th, []profile.Loc{main}, "", 1, 1e9)
	w.Add(profile.Thread{PID: 2, TID: 2, Comm: profile.Comm("d")}, []profile.Loc{lock, {Module: kernel, Addr: 'k'}}, "", 1, 5e8)
	w.show(2 * time.Second)
	if got, want := w.table(), "w 3000000000/3000000000, m 1000000000/4000000000, k 500000000/3500000000"; got != want {
		t.Errorf("functions: %s, want %s", got, want)
	}
	if n, _ := w.view.samples(); n != 3 || w.view.weight() != 45e8 {
		t.Errorf("%d samples of %d", n, w.view.weight())
	}
	w.view.press('2', 10)
	if got, want := w.table(), "c 4000000000/4000000000, d 500000000/500000000"; got != want {
		t.Errorf("processes: %s, want %s", got, want)
	}
	screen := strings.Join(w.view.render(100, 24), "\n")
	for _, want := range []string{"TIME%", "  88.89   200.0        1", "  11.11    25.0        2"} {
		if !strings.Contains(screen, want) {
			t.Errorf("no %q on\n%s", want, screen)
		}
	}
	w.view.press(keyEnter, 10)
	if screen := strings.Join(w.view.render(100, 24), "\n"); !strings.Contains(screen, "[lock]") {
		t.Errorf("no state on\n%s", screen)
	}
}

// Code of BPF programs is named by what was there when it was sampled, without
// asking for names.
func TestTopBPF(t *testing.T) {
	w := newFakeWindow(time.Minute)
	const addr = 0xffffffffc0001000
	th := profile.Thread{PID: 1, TID: 1, Comm: profile.Comm("c")}
	for i, name := range []string{"bpf_prog_1_a", "bpf_prog_2_b"} {
		w.mods.onBPF(&loader.SidebandEvent{Kind: loader.SidebandBPF, Addr: addr, Len: 64, Symbol: name})
		w.Add(th, []profile.Loc{w.mods.ofKernel(addr + 4)}, "", int64(2-i), 1)
		w.mods.onBPF(&loader.SidebandEvent{Kind: loader.SidebandBPF, Addr: addr, Len: 64, Symbol: name, Gone: true})
	}
	if asked := w.view.show(w.roll(w.begin.Add(time.Second))); len(asked) > 0 {
		t.Errorf("asked for %+v", asked)
	}
	if got, want := w.table(), "bpf_prog_1_a 2/2, bpf_prog_2_b 1/1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
