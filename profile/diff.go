package profile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Diff is what changed from one profile to another. Both are normalised: to
// shares of all samples, or, if Absolute is set, to rates.
type Diff struct {
	Before, After *Profile
	Absolute      bool
	Unit          string // of the numbers of Change: "" for shares; "CPUs", "threads", "samples/s"
	Functions     []DiffEntry
	// Threshold is the p-value from which on the change of a function is
	// significant: by Alpha, corrected for the number of functions.
	Threshold float64

	merged   *Profile // both, with the side as process ID: 1 before, 2 after
	exposure exposure
	all      sides      // of both whole profiles
	scale    float64    // one whole, or one Unit, in values of merged
	per      [2]float64 // parts of scale that a unit of weight is
}

// DiffEntry is a function. Functions are the same when they have the same name
// in modules of the same base name; the programs that are the targets are taken
// for the same, if only their names differ. Where one of the profiles does not tell a
// function's module, as folded stacks do not, the name must do.
type DiffEntry struct {
	Function, Module string
	Kind             Kind
	Self, Total      Change
}

// Change is how much something weighs on both sides.
type Change struct {
	BeforeSamples, AfterSamples int64
	Before, After               float64 // shares of 1, or in Diff.Unit
	// Error is half of the 95 % confidence interval of After - Before that
	// comes from sampling: samples are taken for independent.
	Error float64
	// P is the chance of a change at least as unlikely when there is none.
	P           float64
	Significant bool
}

// Delta is After - Before.
func (c *Change) Delta() float64 { return c.After - c.Before }

// HasSelf reports whether anything ran in the function itself on either side. In
// times off the CPU nothing does: there threads wait.
func (f *DiffEntry) HasSelf() bool { return f.Self.Before != 0 || f.Self.After != 0 }

// Leading is the change by which a function is listed: that of what ran in it,
// unless there is none, or only that with what it called is significant.
func (f *DiffEntry) Leading() *Change {
	if !f.HasSelf() || !f.Self.Significant && f.Total.Significant {
		return &f.Total
	}
	return &f.Self
}

// Sides of a diff, as process IDs of Diff.merged.
const (
	beforeSide = 1
	afterSide  = 2
)

// diffScale is one whole, or one Unit, in values of Diff.merged, and maxWhole
// what a whole has at most of them: there are rates of many bytes a second.
const (
	diffScale = 1e9
	maxWhole  = 1e15
)

// Compare returns what changed from before to after. With absolute, rates are
// compared instead of shares, for which the durations must be known.
func Compare(before, after *Profile, absolute bool) (*Diff, error) {
	d := &Diff{Before: before, After: after, Absolute: absolute, scale: diffScale}
	if before.Meta.ByValue != after.Meta.ByValue || before.Meta.ByValue && before.Meta.Value != after.Meta.Value {
		return nil, fmt.Errorf("the profiles count different things: %s and %s", before.weightName(), after.weightName())
	}
	wb, _ := before.Whole()
	wa, _ := after.Whole()
	if wb <= 0 || wa <= 0 {
		return nil, errors.New("a profile without samples cannot be compared")
	}
	d.per = [2]float64{diffScale / float64(wb), diffScale / float64(wa)}
	d.exposure = exposure{float64(before.Samples), float64(after.Samples), false}
	if absolute {
		if err := d.setRates(float64(wb), float64(wa)); err != nil {
			return nil, err
		}
	}
	d.merged = mergeSides(before, after, d.per)
	for i := range d.merged.samples {
		d.all.addSample(d.merged, &d.merged.samples[i])
	}
	d.compareFunctions()
	return d, nil
}

// Waits reports whether a profile is of times off the CPU, of which rates are
// compared best: how many threads wait at a time. Of shares, threads that wait
// all the time are most, and uncertain, since each is one sample; all other
// shares are as uncertain then.
func (p *Profile) Waits() bool {
	m := &p.Meta
	return m.ByValue && (m.Value.Type == "off-cpu" || m.Value.Type == "wall") && m.Duration > 0
}

// setRates sets the unit, the scale and the exposure of rates. The weights are
// those of the whole profiles.
func (d *Diff) setRates(before, after float64) error {
	per := func(p *Profile) (float64, string, error) {
		m := &p.Meta
		if m.Duration <= 0 {
			return 0, "", fmt.Errorf("the duration of %q is not known, and rates need it", m.Target)
		}
		seconds := m.Duration.Seconds()
		switch {
		case p.Waits():
			return 1 / (1e9 * seconds), "threads", nil
		case m.Value.Unit == "nanoseconds" && m.ByValue:
			return 1 / (1e9 * seconds), "CPUs", nil
		case m.Value.Unit == "nanoseconds" && m.Period > 0:
			return float64(m.Period) / (1e9 * seconds), "CPUs", nil
		case m.ByValue:
			return 1 / seconds, m.Value.Type + "/s", nil
		}
		return 1 / seconds, m.counted() + "/s", nil
	}
	b, unit, err := per(d.Before)
	if err != nil {
		return err
	}
	a, unitAfter, err := per(d.After)
	if err != nil {
		return err
	}
	if unit != unitAfter {
		return fmt.Errorf("the profiles count different things: %s and %s", unit, unitAfter)
	}
	d.Unit = unit
	// As many samples as there would be of one unit.
	d.exposure = exposure{float64(d.Before.Samples) / (b * before), float64(d.After.Samples) / (a * after), true}
	d.scale = min(diffScale, maxWhole/max(b*before, a*after))
	d.per = [2]float64{b * d.scale, a * d.scale}
	return nil
}

// sides are numbers of both sides.
type sides struct {
	count   [2]int64
	weight  [2]int64   // in parts of scale
	squares [2]float64 // sums of the squares of those of single samples
}

// change judges numbers of both sides, but for significance.
func (d *Diff) change(s *sides) (c Change, least float64) {
	c = Change{BeforeSamples: s.count[0], AfterSamples: s.count[1],
		Before: float64(s.weight[0]) / d.scale, After: float64(s.weight[1]) / d.scale}
	if d.Before.Meta.ByValue {
		c.P, least = d.compareWeights(s)
		c.Error = 1.96 * math.Sqrt(d.varianceOfWeight(s, 0)+d.varianceOfWeight(s, 1))
		return c, least
	}
	c.P, least = d.exposure.compare(s.count[0], s.count[1])
	c.Error = 1.96 * math.Sqrt(d.variance(s.count[0], c.Before, d.exposure.before)+d.variance(s.count[1], c.After, d.exposure.after))
	return c, least
}

// variance is that of a weight which comes from a number of samples. No sample
// is as uncertain as one.
func (d *Diff) variance(count int64, weight, exposure float64) float64 {
	if count == 0 {
		return 1 / (exposure * exposure)
	}
	n := float64(count)
	v := weight * weight / n
	if !d.exposure.rates {
		v *= max(0, 1-n/exposure)
	}
	return v
}

// compareFunctions fills Functions, the largest significant change first.
func (d *Diff) compareFunctions() {
	p := d.merged
	names := p.byName()
	type entry struct {
		kind        Kind
		self, total sides
		last        int
	}
	byKey := map[edgeKey]*entry{}
	var frames []expanded
	var stack []uint32
	for i := 0; i < len(p.samples); {
		node := p.samples[i].node
		var s sides
		for ; i < len(p.samples) && p.samples[i].node == node; i++ {
			s.addSample(p, &p.samples[i])
		}
		frames, stack = p.expand(frames[:0], node, names), p.stack(stack[:0], node)
		at := 0
		for _, id := range stack {
			loc := &p.locations[id]
			for _, ln := range loc.lines {
				f := frames[at]
				at++
				if loc.module == noModule {
					continue
				}
				e := byKey[edgeKey{f.function, f.module}]
				if e == nil {
					e = &entry{kind: ln.kind}
					byKey[edgeKey{f.function, f.module}] = e
				}
				if at == 1 {
					e.self.add(&s)
				}
				if e.last != i {
					e.total.add(&s)
					e.last = i
				}
			}
		}
	}
	var least []float64
	for k, e := range byKey {
		out := DiffEntry{Function: p.functions[k.function].name, Module: p.modules[k.module].Path, Kind: e.kind}
		var m float64
		out.Self, m = d.change(&e.self)
		least = append(least, m)
		out.Total, m = d.change(&e.total)
		if e.total != e.self {
			least = append(least, m)
		}
		d.Functions = append(d.Functions, out)
	}
	d.Threshold = threshold(least)
	for i := range d.Functions {
		f := &d.Functions[i]
		f.Self.Significant, f.Total.Significant = f.Self.P <= d.Threshold, f.Total.P <= d.Threshold
	}
	slices.SortFunc(d.Functions, func(x, y DiffEntry) int {
		return cmp.Or(compareBools(y.Self.Significant, x.Self.Significant),
			cmp.Compare(math.Abs(y.Self.Delta()), math.Abs(x.Self.Delta())),
			cmp.Compare(math.Abs(y.Total.Delta()), math.Abs(x.Total.Delta())),
			cmp.Compare(x.Function, y.Function), cmp.Compare(x.Module, y.Module))
	})
}

func (s *sides) add(o *sides) {
	for i := range s.count {
		s.count[i] += o.count[i]
		s.weight[i] += o.weight[i]
		s.squares[i] += o.squares[i]
	}
}

// addSample adds a sample of a merged profile.
func (s *sides) addSample(p *Profile, o *sample) {
	side := p.threads[o.thread].PID - beforeSide
	s.count[side] += o.count
	s.weight[side] += o.value
	s.squares[side] += o.squares
}
