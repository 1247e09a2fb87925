package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/swbpf/swbpf/profile"
)

// diffOptions are the flags of diff.
type diffOptions struct {
	outputs    []string
	format     string
	sampleType string
	absolute   bool
	normalise  bool // shares were asked for
	all        bool
	rows       rowsValue
}

func newDiffCommand() *cobra.Command {
	o := &diffOptions{rows: 20}
	c := &cobra.Command{
		Use:   "diff BEFORE AFTER",
		Short: "Tell what grew and what shrank between two profiles",
		Long: `Diff compares two profiles, of any format that 'swbpf view' reads, and lists the
functions that grew and those that shrank, by what ran in them. With -o it
draws a flame graph in which frames that grew are orange and those that shrank
blue: an interactive .html or an .svg for documents; -o - --format html writes
it to standard output, and the table to standard error.

Functions are the same that have one name in files of one base name; the command
that was recorded is one program, even if its name differs.

The profiles are normalised to the same total, so that runs of different
lengths compare; --absolute compares rates instead: CPUs, or samples a second.
Times off the CPU are compared by rates (threads that wait at a time), unless
--absolute=false is given: beside threads that wait all the time, shares tell
little.

Of profiles with several events, the first one is compared, or that of
--sample-type.

Only what changed by more than sampling error is reported: by Fisher's exact
test (with --absolute, the exact test of two Poisson rates), at a level of 5 %
for any false report at all, which is Bonferroni's correction as improved by
Tarone. Where samples have weights, as times off the CPU or bytes, these count
as so many equal samples as would be as uncertain. What differs from run to run
for other reasons than sampling is not in it. --all lists the others too. ± is
the 95 % confidence interval.

Exit status: 0, whether something changed or not; 1 when a profile cannot be
read; 2 for wrong usage.`,
		Example: `  swbpf diff before.pb.gz after.pb.gz
  swbpf diff -o diff.html before.pb.gz after.pb.gz
  swbpf diff --absolute monday.pb.gz tuesday.pb.gz`,
		Args: exactlyFiles(2),
		RunE: func(c *cobra.Command, args []string) error {
			o.normalise = !o.absolute && c.Flags().Changed("absolute")
			return diff(o, args[0], args[1])
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringArrayVarP(&o.outputs, "output", "o", nil, "write a flame graph to this `file`, .html or .svg; may be repeated")
	f.StringVar(&o.format, "format", "", "write in this `format`, whatever the extension: html, svg")
	f.BoolVar(&o.absolute, "absolute", false, "compare rates instead of shares")
	f.BoolVar(&o.all, "all", false, "list changes within sampling error too")
	f.VarP(&o.rows, "rows", "n", "list at most this `number` of functions")
	f.StringVar(&o.sampleType, "sample-type", "", "`type` to compare of profiles with several: cpu, inuse_space, cycles, ...")
	return c
}

func diff(o *diffOptions, before, after string) error {
	if before == "-" && after == "-" {
		return withCode(exitCannot, errors.New("only one of the profiles can come from standard input"))
	}
	if len(o.outputs) == 0 && o.format != "" {
		return withCode(exitCannot, errors.New("--format goes with -o"))
	}
	outs, err := openDiffOutputs(o.outputs, o.format)
	if err != nil {
		return withCode(exitCannot, err)
	}
	defer discardOutputs(outs)
	var sides [2]*profile.Profile
	several := false
	for i, path := range []string{before, after} {
		if sides[i], err = readProfile(path, profile.ReadOptions{SampleType: o.sampleType}, codeOptions{}); err != nil {
			return err
		}
		several = several || len(sides[i].Meta.Also) > 0
		sides[i] = sides[i].Events()[0]
	}
	waits := sides[0].Waits() && sides[1].Waits() && !o.normalise
	d, err := profile.Compare(sides[0], sides[1], o.absolute || waits)
	if err != nil {
		return err
	}
	table := os.Stdout
	for _, out := range outs {
		if out.toStdout() {
			table = os.Stderr
		}
		if err := out.saveAs(func(w io.Writer) error {
			if out.format.name == "svg" {
				return d.WriteSVG(w)
			}
			return d.WriteHTML(w)
		}); err != nil {
			return err
		}
		out.see(os.Stderr)
	}
	return printDiff(table, d, o, several)
}

// openDiffOutputs is openOutputs for the formats that show two profiles.
func openDiffOutputs(paths []string, formatName string) ([]*output, error) {
	for _, path := range paths {
		if f, _, err := formatOf(path, formatName); err != nil || f.name != "html" && f.name != "svg" {
			return nil, fmt.Errorf("output %q: a comparison is written as .html or .svg, or as --format says", path)
		}
	}
	return openOutputs(paths, formatName)
}

// printDiff writes tables of what grew and what shrank. several says that the event is one of several.
func printDiff(w io.Writer, d *profile.Diff, o *diffOptions, several bool) error {
	e := &errWriter{w: w}
	unit := "% of all samples"
	if d.Absolute {
		unit = d.Unit
	}
	for _, side := range []struct {
		name string
		p    *profile.Profile
	}{{"before", d.Before}, {"after", d.After}} {
		whole, counted := side.p.Whole()
		e.printf("%-7s %s: %s %s", side.name, side.p.Meta.Target, side.p.Amount(whole), counted)
		if several && side.p.Meta.Event != counted {
			e.printf(" of %s", printable(side.p.Meta.Event))
		}
		if s := side.p.Meta.Duration.Seconds(); s > 0 {
			e.printf(" in %.1f s", s)
		}
		e.printf("\n")
	}
	changed := 0
	for _, grew := range []bool{true, false} {
		var rows []profile.DiffEntry
		for _, f := range d.Functions {
			c := f.Leading()
			if (c.Delta() > 0) == grew && c.Delta() != 0 && (c.Significant || o.all) {
				rows = append(rows, f)
			}
		}
		// What certainly changed first, and by what ran in the function itself.
		slices.SortStableFunc(rows, func(x, y profile.DiffEntry) int {
			return cmp.Or(rank(&x)-rank(&y), cmp.Compare(math.Abs(y.Leading().Delta()), math.Abs(x.Leading().Delta())))
		})
		changed += len(rows)
		if len(rows) == 0 {
			continue
		}
		title := "grew"
		if !grew {
			title = "shrank"
		}
		e.printf("\n%s, in %s\n", title, unit)
		printRows(e, d, rows[:min(len(rows), int(o.rows))])
		if n := len(rows) - int(o.rows); n > 0 {
			e.printf("  and %d more; -n lists them\n", n)
		}
	}
	if changed == 0 {
		e.printf("\nno function changed by more than sampling error\n")
	}
	e.printf("\n%s\n", wrapText(d.Method(), 78))
	return e.err
}

// printRows writes a table of functions: of what ran in them, or only with what
// they called where that is all there is.
func printRows(e *errWriter, d *profile.Diff, rows []profile.DiffEntry) {
	shared := sharedNames(d.Functions, func(f *profile.DiffEntry) string { return f.Function })
	if !slices.ContainsFunc(rows, func(f profile.DiffEntry) bool { return f.HasSelf() }) {
		e.printf("  %8s %8s  %-18s  %s\n", "total", "→ total", "change of total", "function (* significant)")
		for i := range rows {
			f := &rows[i]
			e.printf("  %8s %8s  %-16s %s  %s\n", d.Value(f.Total.Before), d.Value(f.Total.After), d.Delta(&f.Total), star(&f.Total), shared.text(f.Function, f.Module))
		}
		return
	}
	e.printf("  %8s %8s  %-18s  %-18s  %s\n", "self", "→ self", "change", "change of total", "function (* significant)")
	for i := range rows {
		f := &rows[i]
		before, after, change := "–", "–", "–"
		if f.HasSelf() {
			before, after, change = d.Value(f.Self.Before), d.Value(f.Self.After), d.Delta(&f.Self)
		}
		e.printf("  %8s %8s  %-16s %s  %-16s %s  %s\n", before, after, change, star(&f.Self), d.Delta(&f.Total), star(&f.Total), shared.text(f.Function, f.Module))
	}
}

// rank orders functions: changes of their own, of what they called, unsure.
func rank(f *profile.DiffEntry) int {
	switch {
	case f.Self.Significant:
		return 0
	case f.Total.Significant:
		return 1
	}
	return 2
}

func star(c *profile.Change) string {
	if c.Significant {
		return "*"
	}
	return " "
}

// wrapText breaks a text into lines.
func wrapText(s string, width int) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(s) {
		n := len([]rune(word))
		if i > 0 && column+1+n > width {
			b.WriteByte('\n')
			column = 0
		} else if i > 0 {
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}
