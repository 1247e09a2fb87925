package profile

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// diffTables is what the flame graph's page knows of a diff.
type diffTables struct {
	Absolute       bool    `json:"absolute"`
	Rates          bool    `json:"rates"`
	Unit           string  `json:"unit"`
	Scale          float64 `json:"scale"` // values that are a whole, or one unit
	BeforeExposure float64 `json:"beforeExposure"`
	AfterExposure  float64 `json:"afterExposure"`
	Threshold      float64 `json:"threshold"` // p-value at which a frame's change is significant

	// Where samples have weights of their own: what a unit of them is of Scale,
	// and the weight and the sum of squares of the whole, in such units.
	Weighted bool       `json:"weighted"`
	Per      [2]float64 `json:"per"`
	Whole    [2]float64 `json:"whole"`
	Squares  [2]float64 `json:"squares"`
}

// frames returns the flame graph and the numbers of its frames, and sets what
// the page knows of the diff.
func (d *Diff) frames() (*flameTree, []sides) {
	t := d.merged.flameTree()
	bySide := make([]sides, len(t.nodes))
	for _, s := range t.samples {
		bySide[s.node].addSample(d.merged, &s)
	}
	for i := len(t.nodes) - 1; i > 0; i-- {
		bySide[t.nodes[i].parent].add(&bySide[i])
	}
	var least []float64
	for i := 1; i < len(bySide); i++ {
		if s := &bySide[i]; *s != bySide[t.nodes[i].parent] { // else it is the same test
			_, m := d.change(s)
			least = append(least, m)
		}
	}
	d.merged.diff = &diffTables{
		Absolute: d.Absolute, Rates: d.exposure.rates, Unit: d.Unit, Scale: d.scale,
		BeforeExposure: d.exposure.before, AfterExposure: d.exposure.after, Threshold: threshold(least),
		Weighted: d.Before.Meta.ByValue, Per: d.per,
	}
	all := d.weights(&d.all)
	d.merged.diff.Whole, d.merged.diff.Squares = all.weight, all.squares
	return t, bySide
}

// changeRow is a line of the page's table.
type changeRow struct {
	Function, Module, Of, Before, After, Delta, Verdict string
}

var errNoDiff = errors.New("a Diff that Compare has not made")

// WriteHTML writes a flame graph of both profiles in which frames that grew
// are orange, those that shrank blue, and those grey that did neither for
// sure. Widths are the mean of both, or of one side, as the reader likes.
func (d *Diff) WriteHTML(w io.Writer) error {
	if d.merged == nil {
		return errNoDiff
	}
	d.frames()
	var rows []changeRow
	for _, f := range d.Functions[:min(len(d.Functions), topRows)] {
		c, of := f.Leading(), "total"
		if c == &f.Self {
			of = "self"
		}
		r := changeRow{Function: visible(f.Function), Module: visible(baseName(f.Module)), Of: of, Before: d.Value(c.Before), After: d.Value(c.After), Delta: d.Delta(c)}
		if c.Significant {
			r.Verdict = "significant"
		}
		rows = append(rows, r)
	}
	var facts []fact
	for _, side := range []struct {
		name string
		p    *Profile
	}{{"Before", d.Before}, {"After", d.After}} {
		facts = append(facts, fact{side.name, visible(side.p.Meta.Target)})
		if how := side.p.Meta.how(); how != "" {
			facts = append(facts, fact{"", how})
		}
		facts = append(facts, fact{"", thousands(side.p.Samples) + " " + side.p.Meta.counted()})
	}
	return d.merged.writePage(w, map[string]any{
		"How": "", "Samples": thousands(d.Before.Samples) + " → " + thousands(d.After.Samples),
		"Lost": int64(0), "Facts": facts, "Notes": []string{d.Method()}, "Changes": rows,
	})
}

// Method says how changes are judged.
func (d *Diff) Method() string {
	test, what := "Fisher's exact test of shares", "the profiles are normalised to the same total"
	if d.Absolute {
		test, what = "the exact test of two Poisson rates", "rates in "+d.Unit+" are compared"
	}
	values := ""
	if d.Before != nil && d.After != nil && d.Before.Meta.ByValue {
		values = "Weights are tested as so many equal " + d.After.Meta.counted() + " as would be as uncertain: a few large ones are few. "
		if !d.Before.squaresKnown || !d.After.squaresKnown {
			values += "One of the files does not tell how the weights within a stack differ; they are taken for equal there. "
		}
	}
	return values + fmt.Sprintf("What counts as changed: %s; %s, at a level of %g %% for any false report at all (Bonferroni's correction, as improved by Tarone). "+
		"± is the 95 %% confidence interval. Both know sampling error only: samples are taken for independent, and what differs from run to run is not in them.",
		what, test, 100*Alpha)
}

// Value prints a share in percent, or a rate, without the unit.
func (d *Diff) Value(v float64) string {
	if d.Absolute {
		return strconv.FormatFloat(v, 'f', decimals(v), 64)
	}
	return strconv.FormatFloat(100*v, 'f', 2, 64)
}

// decimals is how many of a rate are printed.
func decimals(v float64) int {
	if math.Abs(v) < 100 {
		return 4
	}
	return 1
}

// Delta prints a change with its confidence interval: "+1.25 ± 0.31".
func (d *Diff) Delta(c *Change) string {
	sign := "+"
	if c.Delta() < 0 {
		sign = "−"
	}
	return sign + d.Value(math.Abs(c.Delta())) + " ± " + d.Value(c.Error)
}

// WriteSVG writes the flame graph of WriteHTML as a picture.
func (d *Diff) WriteSVG(w io.Writer) error {
	if d.merged == nil {
		return errNoDiff
	}
	t, bySide := d.frames()
	limit := d.merged.diff.Threshold
	return d.merged.writeSVG(w, t, &svgDiff{d, func(node int) Change {
		c, _ := d.change(&bySide[node])
		c.Significant = c.P <= limit
		return c
	}})
}

// svgDiff is what the picture of a diff has of its own.
type svgDiff struct {
	d      *Diff
	change func(node int) Change
}

// fill is the name of a frame's colour.
func (s *svgDiff) fill(c *Change) string {
	if !c.Significant || c.Delta() == 0 {
		return "same"
	}
	side, step := "grew", "-3"
	if c.Delta() < 0 {
		side = "shrank"
	}
	if strength := math.Abs(c.Delta()) / (c.Before + c.After); strength < 0.15 {
		step = "-1"
	} else if strength < 0.5 {
		step = "-2"
	}
	return side + step
}

// about is what is shown when a frame is pointed at.
func (s *svgDiff) about(c *Change) string {
	unit := s.d.Unit
	if !s.d.Absolute {
		unit = "%"
	}
	verdict := "within sampling error"
	if c.Significant {
		verdict = "significant"
	}
	return fmt.Sprintf("before %s %s, after %s %s\n%s (%s)", s.d.Value(c.Before), unit, s.d.Value(c.After), unit, s.d.Delta(c), verdict)
}
