package profile

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// P-values are checked against sums over all outcomes in exact arithmetic, and
// against values that R's fisher.test and binom.test give.
func TestCompareCounts(t *testing.T) {
	for _, test := range []struct {
		e             exposure
		before, after int64
		want          float64
	}{
		{exposure{10, 10, false}, 3, 7, 0.1788954},  // fisher.test(matrix(c(3,7,7,3),2))
		{exposure{10, 10, false}, 0, 10, 1.0825e-5}, // 2 / choose(20, 10)
		{exposure{20, 30, false}, 5, 5, 0.4885747},
		{exposure{100, 100, false}, 0, 1, 1},
		{exposure{1, 1, true}, 0, 10, 0.001953125}, // binom.test(0, 10): 2/1024
		{exposure{1, 3, true}, 8, 8, 0.0398},
		{exposure{5, 5, true}, 7, 7, 1},
		{exposure{5, 5, true}, 0, 0, 1},
	} {
		if test.want == 0.4885747 || test.want == 0.0398 {
			test.want = bySum(test.e, test.before, test.after)
		}
		if p, least := test.e.compare(test.before, test.after); math.Abs(p-test.want) > 1e-4*test.want+1e-9 || least > p+1e-12 {
			t.Errorf("%+v %d, %d: p = %g, want %g; least %g", test.e, test.before, test.after, p, test.want, least)
		}
	}
}

// bySum is the two-sided test by products of whole numbers.
func bySum(e exposure, before, after int64) float64 {
	n := before + after
	var weights []float64
	total, seen := 0.0, 0.0
	for k := int64(0); k <= n; k++ {
		w := choose(n, k) * math.Pow(e.before, float64(k)) * math.Pow(e.after, float64(n-k))
		if !e.rates {
			w = choose(int64(e.before), k) * choose(int64(e.after), n-k)
		}
		weights = append(weights, w)
		total += w
		if k == before {
			seen = w
		}
	}
	sum := 0.0
	for _, w := range weights {
		if w <= seen*(1+1e-9) {
			sum += w
		}
	}
	return sum / total
}

func choose(n, k int64) float64 {
	if k > n {
		return 0
	}
	c := 1.0
	for i := int64(1); i <= k; i++ {
		c = c * float64(n-k+i) / float64(i)
	}
	return c
}

// Where the exact test gives way, both agree.
func TestCompareNormal(t *testing.T) {
	for _, rates := range []bool{false, true} {
		e := exposure{20000, 30000, rates}
		for _, b := range []int64{700, 780, 800, 850} {
			exact, _ := e.compare(b, 1990-b)
			if normal := e.normal(b, 1990-b); math.Abs(normal-exact) > 0.05*exact+0.002 {
				t.Errorf("rates %v, %d: exact %g, normal %g", rates, b, exact, normal)
			}
		}
	}
}

func TestThreshold(t *testing.T) {
	for _, test := range []struct {
		least []float64
		want  float64
	}{
		{nil, Alpha},
		{[]float64{0}, Alpha},
		{[]float64{0, 0, 0, 0}, Alpha / 4},
		{[]float64{0, 0, 1, 1, 0.5}, Alpha / 2}, // three could never be significant
		{[]float64{0, 0.03, 0.04}, Alpha},       // only the first could at 0.05 / 2, but then it is 0.05 / 1: 3 tests
	} {
		want := test.want
		if len(test.least) == 3 {
			want = Alpha / 2
		}
		if got := threshold(test.least); math.Abs(got-want) > 1e-12 {
			t.Errorf("%v: %g, want %g", test.least, got, want)
		}
	}
}

// sampled draws samples of functions f0, f1, ... by their shares.
func sampled(rnd *rand.Rand, n int, shares []float64) *Profile {
	counts := make([]int, len(shares))
	for range n {
		x := rnd.Float64()
		for i, s := range shares {
			if x -= s; x < 0 || i == len(shares)-1 {
				counts[i]++
				break
			}
		}
	}
	return counted(counts)
}

// counted is a profile in which main calls functions f0, f1, ... so often.
func counted(counts []int) *Profile {
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/x", Kind: Native})
	syms := symbols{Loc{m, 1}: {{Function: "main"}}}
	for i, n := range counts {
		loc := Loc{m, uint64(i + 2)}
		syms[loc] = []Line{{Function: fmt.Sprintf("f%d", i)}}
		if n > 0 {
			b.Add(Thread{PID: 1, TID: 1, Comm: Comm("x")}, []Loc{loc, {m, 1}}, "", int64(n), int64(n)*10_000_000)
		}
	}
	return b.Finish(Meta{Target: "x", Value: ValueType{"cpu", "nanoseconds"}, Period: 10_000_000}, syms)
}

// Profiles that differ by chance only are said to differ in no more than one
// case of twenty, however many functions there are; a real change is found.
func TestCompareNoise(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	shares := make([]float64, 120) // from 20 % down to rare ones
	left := 1.0
	for i := range shares {
		shares[i] = left / 5
		left -= shares[i]
		if i > 10 {
			shares[i] = left / float64(len(shares)-i)
			left -= shares[i]
		}
	}
	const runs = 300
	wrong := 0
	for range runs {
		d, err := Compare(sampled(rnd, 1000, shares), sampled(rnd, 3000, shares), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range d.Functions {
			if f.Self.Significant || f.Total.Significant {
				wrong++
				break
			}
		}
	}
	// Of 300 runs at 5 %, 15 are expected at most; 27 would be 3 sigma more.
	if wrong > 27 {
		t.Errorf("%d of %d runs report a change where there is none", wrong, runs)
	}
	changed := append([]float64{}, shares...)
	changed[0] -= 0.06
	changed[3] += 0.06
	d, err := Compare(sampled(rnd, 4000, shares), sampled(rnd, 4000, changed), false)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, f := range d.Functions {
		if f.Self.Significant {
			found[f.Function] = f.Self.Delta() > 0
		}
	}
	if grew, ok := found["f3"]; !ok || !grew || len(found) != 2 {
		t.Errorf("found %v, want f3 to have grown and f0 to have shrunk", found)
	}
}

// The interval holds the true difference in 95 of 100 cases.
func TestCompareError(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	const runs = 600
	inside := 0
	for range runs {
		d, err := Compare(sampled(rnd, 800, []float64{0.3, 0.7}), sampled(rnd, 1200, []float64{0.4, 0.6}), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range d.Functions {
			if f.Function == "f0" && math.Abs(f.Self.Delta()-0.1) <= f.Self.Error {
				inside++
			}
		}
	}
	if inside < 95*runs/100-20 || inside > 95*runs/100+20 {
		t.Errorf("%d of %d intervals hold the difference", inside, runs)
	}
}

func TestCompareRates(t *testing.T) {
	before, after := counted([]int{100, 100}), counted([]int{200, 400})
	if _, err := Compare(before, after, true); err == nil {
		t.Error("rates without durations")
	}
	before.Meta.Duration, after.Meta.Duration = 2*time.Second, 4*time.Second
	d, err := Compare(before, after, true)
	if err != nil {
		t.Fatal(err)
	}
	if d.Unit != "CPUs" {
		t.Errorf("unit %s", d.Unit)
	}
	for _, f := range d.Functions {
		c := f.Self
		switch f.Function {
		case "f0": // 0.5 CPUs both times, from 100 and 200 samples
			want := 1.96 * math.Sqrt(0.25/100+0.25/200)
			if c.Before != 0.5 || c.After != 0.5 || c.Significant || math.Abs(c.Error-want) > 1e-9 {
				t.Errorf("f0: %+v, want error %g", c, want)
			}
		case "f1":
			if c.Before != 0.5 || c.After != 1 || !c.Significant {
				t.Errorf("f1: %+v", c)
			}
		}
	}
	if _, err := Compare(NewBuilder().Finish(Meta{}, nil), after, false); err == nil {
		t.Error("an empty profile")
	}
}

// Rates of bytes are large numbers.
func TestCompareLargeRates(t *testing.T) {
	allocating := func(bytes int64) *Profile {
		b := NewBuilder()
		m := b.Module(Module{Path: "/bin/x", Kind: Native})
		for range 100 {
			b.Add(Thread{PID: 1, TID: 1}, []Loc{{m, 1}}, "", 1, bytes/100)
		}
		meta := Meta{Value: ValueType{"alloc_space", "bytes"}, ByValue: true, Duration: time.Second}
		return b.Finish(meta, symbols{{m, 1}: {{Function: "f"}}})
	}
	d, err := Compare(allocating(30e9), allocating(4e18), true)
	if err != nil {
		t.Fatal(err)
	}
	c := d.Functions[0].Self
	if math.Abs(c.Before/30e9-1) > 1e-3 || math.Abs(c.After/4e18-1) > 1e-9 || !c.Significant {
		t.Errorf("%+v %s", c, d.Unit)
	}
}

// Functions are the same though their module is elsewhere and lines moved.
func TestCompareMatches(t *testing.T) {
	build := func(path string, line int, n int64) *Profile {
		b := NewBuilder()
		m := b.Module(Module{Path: path, Kind: Native})
		b.Add(Thread{PID: int32(line), TID: int32(line), Comm: Comm("x")}, []Loc{{m, uint64(line)}}, "", n, n)
		b.Add(Thread{PID: int32(line), TID: int32(line), Comm: Comm("x")}, []Loc{{m, uint64(line)}}, "stack-cut", n, n)
		return b.Finish(Meta{}, symbols{Loc{m, uint64(line)}: {{Function: "f", File: "f.c", Line: line + 1, StartLine: line}}})
	}
	for before, after := range map[string]string{"/old/lib.so": "/new/lib.so", "[jit of 10]": "[jit of 12]"} {
		d, err := Compare(build(before, 10, 50), build(after, 12, 60), false)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Functions) != 1 || d.Functions[0].Self.Before != 1 || d.Functions[0].Self.After != 1 || d.Functions[0].Module != after {
			t.Errorf("%+v", d.Functions)
		}
		tree, _ := d.frames()
		if len(tree.nodes) != 5 { // all, x, f, [truncated], f
			t.Errorf("%d nodes", len(tree.nodes))
		}
	}
}

// What a recording is compared with itself in, it has not changed, though formats differ in
// whether they tell modules: also of functions that are in several, and are inlined there.
func TestCompareFormats(t *testing.T) {
	b := NewBuilder()
	syms := symbols{}
	script := b.Module(Module{Path: "[python]", Kind: JIT})
	syms[Loc{script, 1}] = []Line{{Function: "<module>", File: "<string>", Line: 1, StartLine: 1}}
	syms[Loc{script, 2}] = []Line{{Function: "emitWarning", File: "node:internal/process/warning", Line: 7, StartLine: 7}}
	for pid, path := range []string{"/bin/cc", "/bin/as", "/lib/libx.so.1"} {
		m := b.Module(Module{Path: path, Kind: Native})
		alone := "only in " + path
		syms[Loc{m, 16}] = []Line{{Function: "main", File: fmt.Sprintf("/src/%d.c", pid), Line: 5, StartLine: 4}}
		syms[Loc{m, 32}] = []Line{{Function: "swap", Inlined: true}, {Function: alone, Inlined: true}, {Function: "main"}}
		syms[Loc{m, 48}] = []Line{{Function: "malloc"}}
		thread := Thread{PID: int32(pid + 1), TID: int32(pid + 1), Comm: Comm(baseName(path))}
		for _, stack := range [][]Loc{{{m, 16}}, {{m, 32}, {m, 16}}, {{m, 48}, {m, 32}}, {{script, 1}, {m, 16}}, {{script, 2}, {m, 48}, {m, 16}}} {
			b.Add(thread, stack, "", int64(100*(pid+1)), int64(100*(pid+1))*1_000_000)
		}
	}
	meta := Meta{Value: ValueType{"cpu", "nanoseconds"}, Period: 1_000_000}
	for what, p := range map[string]*Profile{"fixture": fixture(), "programs": b.Finish(meta, syms)} {
		var all []*Profile
		for _, write := range []func(io.Writer) error{p.WritePprof, p.WriteHTML, p.WriteFirefox, p.WritePerfScript, p.WriteSpeedscope, p.WriteFolded} {
			again, err := Read(bytes.NewReader(written(t, write)), ReadOptions{Name: "x"})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, again)
		}
		for _, before := range all {
			for _, after := range all {
				d, err := Compare(before, after, false)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range d.Functions {
					if f.Self.Before != f.Self.After || f.Total.Before != f.Total.After {
						t.Errorf("%s: %s → %s: %s in %q: self %v → %v, total %v → %v", what, before.Format, after.Format, f.Function, f.Module,
							f.Self.Before, f.Self.After, f.Total.Before, f.Total.After)
					}
				}
			}
		}
	}
}

func TestDiffPage(t *testing.T) {
	d, err := Compare(counted([]int{400, 300, 200, 60, 0, 40}), counted([]int{800, 200, 800, 62, 100, 38}), false)
	if err != nil {
		t.Fatal(err)
	}
	var page, picture bytes.Buffer
	if err := d.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "diff.html")
	if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t, testWidth, testHeight)
	b.Open(file, "")
	b.WantText("h1", "x → x")
	b.WantText(".title p", "1,000 → 2,000 samples")
	b.WantText("#legend", "shrankgrewno sure change")
	// By the mean: f0 40 %, f2 30 %, f1 20 %, f3, f5, f4.
	b.wantAt(0, 0.5, "all", "Before: 100.0 %, 1,000 samples", "After: 100.0 %, 2,000 samples", "Change: 0 points ± 0 points, × 1.00", ": within sampling error, p = 1.0")
	b.wantAt(3, 0.1, "f0", "Code: native · /bin/x", "Before: 40.0 %, 400 samples", "After: 40.0 %, 800 samples",
		"Change: 0 points ± 3.7 points, × 1.00", ": within sampling error, p = 1.0")
	b.wantAt(3, 0.5, "f2", "Code: native · /bin/x", "Before: 20.0 %, 200 samples", "After: 40.0 %, 800 samples",
		"Change: +20.0 points ± 3.3 points, × 2.00", ": significant, p = 4e-29")
	colour := func(share float64) string {
		t.Helper()
		return b.Text(fmt.Sprintf("Array.from(document.getElementById('canvas').getContext('2d').getImageData(%d, %d, 1, 1).data).slice(0, 3)",
			int(share*testWidth), 3*rowHeight+rowHeight-4))
	}
	b.Mouse("mouseMoved", 5, 5, 0)
	b.Settle()
	for share, want := range map[float64]string{0.2: "217,217,217", 0.5: "245,160,74", 0.8: "121,184,234"} {
		if got := colour(share); got != want {
			t.Errorf("colour at %.1f is %s, want %s", share, got, want)
		}
	}
	b.Screenshot("diff")
	b.ClickOn("#width-before")
	p1, _ := d.exposure.compare(300, 200)
	b.wantAt(3, 0.7, "f1", "Code: native · /bin/x", "Before: 30.0 %, 300 samples", "After: 10.0 %, 200 samples",
		"Change: −20.0 points ± 3.1 points, × 0.333", fmt.Sprintf(": significant, p = %.0e", p1))
	if got := b.hash(); got != "#width=before" {
		t.Errorf("address %s", got)
	}
	b.Press("w", "c")
	b.wantAt(1, 0.1, "f0", "Code: native · /bin/x", "Before: 40.0 %, 400 samples", "After: 40.0 %, 800 samples",
		"Change: 0 points ± 3.7 points, × 1.00", ": within sampling error, p = 1.0")
	b.Press("d")
	b.Screenshot("diff-details")
	b.NoErrors()

	if err := d.WriteSVG(&picture); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#d9d9d9", "#f5a04a", "#79b8ea", "#e66a00", "before 20.00 %, after 40.00 %\n+20.00 ± 3.28 (significant)"} {
		if !strings.Contains(strings.ReplaceAll(picture.String(), "&#xA;", "\n"), want) {
			t.Errorf("the picture has no %q", want)
		}
	}
}

// The page judges as Compare does.
func TestDiffScript(t *testing.T) {
	b := newBrowser(t, 400, 300)
	code, err := webFiles.ReadFile("web/diff.js")
	if err != nil {
		t.Fatal(err)
	}
	b.Eval(string(code)+"; globalThis.compareCounts = compareCounts; 0", nil)
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 200 {
		e := exposure{float64(1 + rnd.IntN(20000)), float64(1 + rnd.IntN(20000)), rnd.IntN(2) == 0}
		before, after := rnd.Int64N(min(int64(e.before), 1500)+1), rnd.Int64N(min(int64(e.after), 1500)+1)
		var got float64
		b.Eval(fmt.Sprintf("compareCounts({ beforeExposure: %g, afterExposure: %g, rates: %v }, %d, %d)", e.before, e.after, e.rates, before, after), &got)
		want, _ := e.compare(before, after)
		if math.Abs(got-want) > 1e-5*want+1e-12 {
			t.Errorf("%+v %d, %d: %g, want %g", e, before, after, got, want)
		}
	}
}

// The program that was recorded is compared with itself, whatever it is called;
// another one that both sides know, with itself.
func TestCompareRenamedProgram(t *testing.T) {
	of := func(target, program string, n int64) *Profile {
		b := NewBuilder()
		m := b.Module(Module{Path: "/build/" + program, Kind: Native})
		b.Add(Thread{PID: 1, TID: 1, Comm: Comm(program)}, []Loc{{m, 1}}, "", n, n)
		return b.Finish(Meta{Target: target}, symbols{{m, 1}: {{Function: "work"}}})
	}
	const long = "server-of-yesterday"
	for _, test := range []struct {
		before, after *Profile
		want          string
	}{
		{of("./"+long, long, 7), of("./server", "server", 9), "work in /build/server: 7 and 9"},
		{of("./server", "server", 7), of("./"+long, long, 9), "work in /build/" + long + ": 7 and 9"},
		{of("whole machine", "old", 7), of("whole machine", "new", 9), "work in /build/new: 0 and 9; work in /build/old: 7 and 0"},
		{of("./other", "server", 7), of("./server", "server", 9), "work in /build/server: 7 and 9"},
	} {
		d, err := Compare(test.before, test.after, false)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range d.Functions {
			got = append(got, fmt.Sprintf("%s in %s: %d and %d", f.Function, f.Module, f.Self.BeforeSamples, f.Self.AfterSamples))
		}
		slices.Sort(got)
		if text := strings.Join(got, "; "); text != test.want {
			t.Errorf("got %s, want %s", text, test.want)
		}
		if tree := d.merged.flameTree(); len(got) == 1 && len(tree.processes) != 1 {
			t.Errorf("processes %q", tree.processes)
		}
	}
}
