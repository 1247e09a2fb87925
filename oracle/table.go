package oracle

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Row is the outcome of a Case.
type Row struct {
	Case   *Case
	Report *Report
	Err    error // why there is no report
}

// RunCase builds and runs one case. sources is the directory of the sources,
// work one for what is built.
func RunCase(c *Case, sources, work string) (*Report, error) {
	out := filepath.Join(work, "program")
	opt := Options{Env: c.Env, Steps: c.Steps, Marked: c.Marked, Unmonitored: c.Unmonitored, PCs: c.PCs, Windows: c.Windows, WindowSteps: c.WindowSteps, Skip: skip, Seed: 1,
		Thread: c.Thread, Child: c.Child, Probes: c.Probes, Dir: sources}
	if c.Build != "" {
		cmd := exec.Command("/bin/sh", "-c", c.Build)
		cmd.Dir = sources
		cmd.Env = append(os.Environ(), "OUT="+out, "CGO_ENABLED=0")
		if b, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", c.Name, err, b)
		}
		defer os.Remove(out)
	}
	opt.Args = []string{out}
	if len(c.Run) > 0 {
		opt.Args = slices.Clone(c.Run)
		for i := range opt.Args {
			opt.Args[i] = strings.ReplaceAll(opt.Args[i], "$OUT", out)
		}
	}
	for _, name := range c.Configs {
		config, err := ConfigByName(name)
		if err != nil {
			return nil, err
		}
		opt.Configs = append(opt.Configs, config)
	}
	return Run(opt)
}

// Available reports whether the case's tools are on this machine.
func (c *Case) Available() bool {
	for _, tool := range strings.Fields(c.Needs) {
		_, err := exec.LookPath(tool)
		if filepath.IsAbs(tool) {
			_, err = os.Stat(tool)
		}
		if err != nil {
			return false
		}
	}
	return true
}

// toolsOfGo are what Go needs to build with CGO_ENABLED= and what follows.
func toolsOfGo(flags string) string {
	if strings.HasPrefix(flags, "1") {
		return "go gcc"
	}
	return "go"
}

// WriteTables writes the rows as Markdown tables.
func WriteTables(w io.Writer, rows []Row) error {
	for _, table := range tables {
		var of []Row
		sums := map[string]int{}
		for _, r := range rows {
			if r.Case.Table != table {
				continue
			}
			if i, ok := sums[r.Case.Row]; ok && r.Case.Row != "" {
				of[i].add(&r)
				continue
			}
			sums[r.Case.Row] = len(of)
			if r.Case.Row != "" {
				r = r.alone()
			}
			of = append(of, r)
		}
		if len(of) == 0 {
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "\n### %s\n", table)
		var configs []string
		for _, r := range of {
			if !slices.Equal(configs, r.Case.Configs) { // other columns
				configs = r.Case.Configs
				fmt.Fprintf(&b, "\n| | instructions | %s |\n|---|---:|%s\n", strings.Join(configs, " | "), strings.Repeat("---|", len(configs)))
			}
			fmt.Fprintln(&b, r.markdown())
		}
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	return nil
}

// alone returns a row that others can be added to.
func (r *Row) alone() Row {
	sum := Row{Case: &Case{Table: r.Case.Table, Name: r.Case.Row, Configs: r.Case.Configs}, Err: r.Err}
	if r.Report != nil {
		report := *r.Report
		report.Results = slices.Clone(report.Results)
		sum.Report = &report
	}
	return sum
}

// add adds the counts of a row; one without a report makes the sum one.
func (r *Row) add(o *Row) {
	if r.Report == nil || o.Report == nil {
		r.Report = nil
		if o.Err != nil {
			r.Err = o.Err
		}
		return
	}
	r.Report.Steps += o.Report.Steps
	r.Report.Unjudged += o.Report.Unjudged
	for i := range r.Report.Results {
		for class, n := range o.Report.Results[i].Count {
			r.Report.Results[i].Count[class] += n
		}
	}
}

func (r *Row) markdown() string {
	var b strings.Builder
	if r.Report == nil {
		fmt.Fprintf(&b, "| %s | %v |%s", r.Case.Name, r.Err, strings.Repeat(" |", len(r.Case.Configs)))
		return b.String()
	}
	fmt.Fprintf(&b, "| %s | %d |", r.Case.Name, r.Report.Steps-r.Report.Unjudged)
	for i := range r.Report.Results {
		b.WriteString(" " + r.Report.Results[i].cell() + " |")
	}
	return b.String()
}

// cell is a result as the table shows it: the share that is exact, and what
// the rest is.
func (r *Result) cell() string {
	n := float64(max(r.Checked(), 1))
	s := fmt.Sprintf("%.2f %%", floor2(100*float64(r.Count[Exact])/n))
	if r.Count[Short] > 0 {
		s += fmt.Sprintf(", short %d", r.Count[Short])
	}
	if r.Count[Wrong] > 0 {
		s += fmt.Sprintf(", **wrong %d**", r.Count[Wrong])
	}
	if r.Count[LetGo] > 0 {
		s += fmt.Sprintf(" (and %d at a switch)", r.Count[LetGo])
	}
	if r.Count[Moved] > 0 {
		s += fmt.Sprintf(" (and %d moved)", r.Count[Moved])
	}
	return s
}

// floor2 cuts a number to two digits, so that 100 means all.
func floor2(x float64) float64 { return float64(int64(x*100)) / 100 }
