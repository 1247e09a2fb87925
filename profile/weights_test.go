package profile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// weighted draws n samples of functions f0, f1, ... by their shares of the
// number, with weights drawn by each.
func weighted(rnd *rand.Rand, n int, shares []float64, weight func(f int) float64) *Profile {
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/x", Kind: Native})
	syms := symbols{Loc{m, 1}: {{Function: "main"}}}
	for i := range shares {
		syms[Loc{m, uint64(i + 2)}] = []Line{{Function: fmt.Sprintf("f%d", i)}}
	}
	for range n {
		x, f := rnd.Float64(), 0
		for ; f < len(shares)-1; f++ {
			if x -= shares[f]; x < 0 {
				break
			}
		}
		b.Add(Thread{PID: 1, TID: 1, Comm: Comm("x")}, []Loc{{m, uint64(f + 2)}, {m, 1}}, "", 1, int64(weight(f)*1e6)+1)
	}
	return b.Finish(Meta{Target: "x", Value: ValueType{"off-cpu", "nanoseconds"}, ByValue: true, Duration: time.Second}, syms)
}

// valued is counted with samples of one value each.
func valued(counts []int, value int64) *Profile {
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/x", Kind: Native})
	syms := symbols{Loc{m, 1}: {{Function: "main"}}}
	for i, n := range counts {
		syms[Loc{m, uint64(i + 2)}] = []Line{{Function: fmt.Sprintf("f%d", i)}}
		for range n {
			b.Add(Thread{PID: 1, TID: 1, Comm: Comm("x")}, []Loc{{m, uint64(i + 2)}, {m, 1}}, "", 1, value)
		}
	}
	return b.Finish(Meta{Target: "x", Value: ValueType{"off-cpu", "nanoseconds"}, ByValue: true}, syms)
}

// Where times differ, and some are very long, profiles that differ by chance
// only are said to differ in no more than one case of twenty.
func TestCompareWeightsNoise(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	shares := make([]float64, 40)
	for i := range shares {
		shares[i] = 1 / float64(len(shares))
	}
	for _, absolute := range []bool{false, true} {
		for name, weight := range map[string]func(int) float64{
			"exponential": func(int) float64 { return rnd.ExpFloat64() },
			"lognormal":   func(int) float64 { return math.Exp(1.5 * rnd.NormFloat64()) },
			"two sizes":   func(int) float64 { return []float64{1, 300}[min(1, int(rnd.Float64()*1.02))] },
			"by function": func(f int) float64 { return float64(f*f+1) * rnd.ExpFloat64() },
		} {
			const runs = 150
			wrong := 0
			for range runs {
				d, err := Compare(weighted(rnd, 1500, shares, weight), weighted(rnd, 1500, shares, weight), absolute)
				if err != nil {
					t.Fatal(err)
				}
				if slices.ContainsFunc(d.Functions, func(f DiffEntry) bool { return f.Self.Significant || f.Total.Significant }) {
					wrong++
				}
			}
			// Of 150 runs at 5 %, 7.5 are expected at most; 16 would be 3 sigma more.
			if wrong > 15 {
				t.Errorf("%s, absolute %v: %d of %d runs report a change where there is none", name, absolute, wrong, runs)
			}
		}
	}
}

// What became longer is found, though it was not more often.
func TestCompareWeightsChange(t *testing.T) {
	rnd := rand.New(rand.NewPCG(13, 14))
	shares := []float64{0.1, 0.2, 0.3, 0.4}
	factor := 1.0
	draw := func(f int) float64 {
		if f == 1 {
			return factor * rnd.ExpFloat64()
		}
		return rnd.ExpFloat64()
	}
	before := weighted(rnd, 2000, shares, draw)
	factor = 2
	after := weighted(rnd, 2000, shares, draw)
	d, err := Compare(before, after, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Functions {
		if f.Self.Significant != (f.Function == "f1") {
			t.Errorf("%s: %+v", f.Function, f.Self)
		}
	}
}

// Beside threads that wait all the time, of which each is one sample, rates tell
// that others wait longer, and shares do not.
func TestCompareWaits(t *testing.T) {
	rnd := rand.New(rand.NewPCG(17, 18))
	waits := func(factor float64) *Profile {
		b := NewBuilder()
		m := b.Module(Module{Path: "/bin/x", Kind: Native})
		for tid := range int32(8) {
			b.Add(Thread{PID: 1, TID: 10 + tid, Comm: Comm("idle")}, []Loc{b.Marker("[sleep]"), {m, 1}}, "", 1, 5e9)
		}
		for range 2000 {
			b.Add(Thread{PID: 1, TID: 1, Comm: Comm("busy")}, []Loc{b.Marker("[lock]"), {m, 2}}, "", 1, int64(factor*1e6*(0.5+rnd.Float64())))
		}
		return b.Finish(Meta{Target: "x", Value: ValueType{"off-cpu", "nanoseconds"}, ByValue: true, Duration: 5 * time.Second},
			symbols{{m, 1}: {{Function: "waits"}}, {m, 2}: {{Function: "locks"}}})
	}
	before, same, after := waits(1), waits(1), waits(1.1)
	if !before.Waits() {
		t.Error("times off the CPU are not known for that")
	}
	for _, test := range []struct {
		after    *Profile
		absolute bool
		want     string // what changed
	}{{same, true, ""}, {after, true, "locks"}, {after, false, ""}} {
		d, err := Compare(before, test.after, test.absolute)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range d.Functions {
			if f.Total.Significant {
				got += f.Function
			}
			if test.absolute && f.Function == "locks" && (math.Abs(f.Total.Before-0.4) > 0.01 || d.Unit != "threads") {
				t.Errorf("%g %s before, want 0.4 threads", f.Total.Before, d.Unit)
			}
		}
		if got != test.want {
			t.Errorf("absolute %v: %q changed, want %q", test.absolute, got, test.want)
		}
	}
}

// The interval holds the true difference in 95 of 100 cases, of shares and of
// rates, though a function's times are three times as long as those of others.
func TestCompareWeightsError(t *testing.T) {
	rnd := rand.New(rand.NewPCG(15, 16))
	draw := func(f int) float64 { return []float64{3, 1}[f] * rnd.ExpFloat64() }
	share := func(p float64) float64 { return 3 * p / (3*p + 1 - p) }
	for _, absolute := range []bool{false, true} {
		const runs = 600
		inside := 0
		for range runs {
			// The number of samples is by chance too, as rates have it.
			nb, na := 800+int(math.Sqrt(800)*rnd.NormFloat64()), 1200+int(math.Sqrt(1200)*rnd.NormFloat64())
			want := share(0.4) - share(0.3)
			if absolute {
				want = (1200*0.4*3 - 800*0.3*3) / 1000 // CPUs
			}
			d, err := Compare(weighted(rnd, nb, []float64{0.3, 0.7}, draw), weighted(rnd, na, []float64{0.4, 0.6}, draw), absolute)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range d.Functions {
				if f.Function == "f0" && math.Abs(f.Self.Delta()-want) <= f.Self.Error {
					inside++
				}
			}
		}
		if inside < 95*runs/100-20 || inside > 95*runs/100+20 {
			t.Errorf("absolute %v: %d of %d intervals hold the difference", absolute, inside, runs)
		}
	}
}

// Samples that are all of one weight are judged as if they were only counted.
func TestCompareEqualWeights(t *testing.T) {
	counts := [2][3]int{{300, 200, 100}, {250, 260, 190}}
	var profiles [2][2]*Profile // by side; counted and weighted
	for side, c := range counts {
		profiles[side][0] = counted(c[:])
		profiles[side][1] = valued(c[:], 7_654_321)
	}
	byCount, err := Compare(profiles[0][0], profiles[1][0], false)
	if err != nil {
		t.Fatal(err)
	}
	byWeight, err := Compare(profiles[0][1], profiles[1][1], false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range byCount.Functions {
		a, b := byCount.Functions[i], byWeight.Functions[i]
		if a.Function != b.Function || math.Abs(a.Self.P-b.Self.P) > 1e-6 || math.Abs(a.Self.Error-b.Self.Error) > 1e-6 {
			t.Errorf("%s %+v, by weights %s %+v", a.Function, a.Self, b.Function, b.Self)
		}
	}
}

// A pprof file tells how the weights within a stack differ, to about a percent;
// and other readers of it do not mind.
func TestPprofSquares(t *testing.T) {
	rnd := rand.New(rand.NewPCG(19, 20))
	p := weighted(rnd, 3000, []float64{0.1, 0.3, 0.6}, func(int) float64 { return math.Exp(2 * rnd.NormFloat64()) })
	again, err := Read(bytes.NewReader(written(t, p.WritePprof)), ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(again.samples) != len(p.samples) || !again.squaresKnown {
		t.Fatalf("%d samples of %d, known %v", len(again.samples), len(p.samples), again.squaresKnown)
	}
	for i := range p.samples {
		a, b := p.samples[i], again.samples[i]
		if a.value != b.value || math.Abs(a.squares-b.squares) > 0.01*a.squares {
			t.Errorf("%+v read as %+v", a, b)
		}
	}
	var plain bytes.Buffer // as other tools write it
	if err := inPprof(t, again).Write(&plain); err != nil {
		t.Fatal(err)
	}
	without, err := Read(&plain, ReadOptions{})
	if err != nil || without.squaresKnown || without.Value != p.Value {
		t.Errorf("%v, known %v, value %d of %d", err, without.squaresKnown, without.Value, p.Value)
	}
}

// The page judges weights as Compare does.
func TestDiffScriptWeights(t *testing.T) {
	rnd := rand.New(rand.NewPCG(21, 22))
	b := newBrowser(t, 400, 300)
	code, err := webFiles.ReadFile("web/diff.js")
	if err != nil {
		t.Fatal(err)
	}
	b.Eval(string(code)+"; globalThis.judge = judge; 0", nil)
	for _, absolute := range []bool{false, true} {
		draw := func(f int) float64 { return float64(f+1) * math.Exp(rnd.NormFloat64()) }
		d, err := Compare(weighted(rnd, 400, []float64{0.05, 0.05, 0.2, 0.7}, draw), weighted(rnd, 700, []float64{0.07, 0.05, 0.2, 0.68}, draw), absolute)
		if err != nil {
			t.Fatal(err)
		}
		_, bySide := d.frames()
		tables, err := json.Marshal(d.merged.diff)
		if err != nil {
			t.Fatal(err)
		}
		for i := range bySide {
			s := &bySide[i]
			want, _ := d.change(s)
			var got struct{ Error, P float64 }
			b.Eval(fmt.Sprintf("judge(%s, { counts: [%d, %d], weights: [%d, %d], squares: [%g, %g] })", tables,
				s.count[0], s.count[1], s.weight[0], s.weight[1], s.squares[0], s.squares[1]), &got)
			if math.Abs(got.P-want.P) > 1e-5*want.P+1e-12 || math.Abs(got.Error-want.Error) > 1e-9*want.Error {
				t.Errorf("absolute %v: %+v, want %+v", absolute, got, want)
			}
		}
	}
}
