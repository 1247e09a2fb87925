// Command oracle runs a program one instruction at a time and judges steppers
// at each. See package oracle.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/swbpf/swbpf/oracle"
)

func main() {
	configs := flag.String("configs", "all,debug,analysis", "configurations to judge, or stepper names joined by +")
	steps := flag.Int("steps", 0, "instructions to judge at most, 0: all")
	windows := flag.Int("windows", 0, "judge in that many windows, not from the entry point on")
	window := flag.Int("window-steps", 2000, "instructions of a window")
	skip := flag.Duration("skip", 20*time.Millisecond, "mean time between windows")
	sites := flag.Int("sites", 5, "places to show of each class")
	seed := flag.Uint64("seed", 1, "of the random times between windows")
	fixtures := flag.String("fixtures", "", "directory for fixtures of the places where walks go astray")
	at := flag.String("fixtures-at", "", "more places to take fixtures of, as module+0xvaddr,...")
	thread := flag.Bool("thread", false, "judge the first thread that the program starts")
	child := flag.Bool("child", false, "judge the first child process when the program makes one")
	marked := flag.Bool("marked", false, "judge from where the program first calls getppid on")
	unmonitored := flag.Bool("unmonitored", false, "with -marked, an AArch64 program of Go: stop what preempts goroutines that run long")
	pcs := flag.Bool("pcs", false, "compare the PCs of frames alone, not their CFAs")
	table := flag.String("table", "", "run the cases of the accuracy table and write it to this file, - for the terminal")
	short := flag.Bool("short", false, "only the cases of the table's short form")
	only := flag.String("case", "", "only cases whose table and name, as TABLE: NAME, contain this, with all their misses")
	jobs := flag.Int("jobs", runtime.NumCPU(), "cases of the table run at a time")
	sources := flag.String("sources", "oracle/testdata", "where the sources of the cases are")
	flag.Parse()
	if *table != "" {
		if err := runTable(*table, *sources, *only, *short, *sites, *jobs); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	opt := oracle.Options{Args: flag.Args(), Steps: *steps, Marked: *marked, Unmonitored: *unmonitored, PCs: *pcs, Windows: *windows, WindowSteps: *window, Skip: *skip, Seed: *seed, Thread: *thread, Child: *child, Fixtures: *fixtures}
	if *at != "" {
		opt.FixturesAt = strings.Split(*at, ",")
	}
	if len(opt.Args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: oracle [flags] PROGRAM [ARGS]\nsteppers:", strings.Join(oracle.StepperNames(), " "))
		os.Exit(2)
	}
	for _, name := range strings.Split(*configs, ",") {
		c, err := oracle.ConfigByName(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		opt.Configs = append(opt.Configs, c)
	}
	report, err := oracle.Run(opt)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	report.Print(os.Stdout, *sites)
}

// runTable runs the cases, several at a time, and writes the table.
func runTable(file, sources, only string, short bool, sites, jobs int) error {
	work, err := os.MkdirTemp("", "oracle")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	cases := oracle.Cases()
	var rows []oracle.Row
	for i := range cases {
		c := &cases[i]
		if (!short || c.Short) && strings.Contains(c.Table+": "+c.Name, only) && c.Available() {
			rows = append(rows, oracle.Row{Case: c})
		}
	}
	var g sync.WaitGroup
	next := make(chan *oracle.Row)
	for range jobs {
		g.Go(func() {
			for row := range next {
				runRow(row, sources, work, only != "", sites)
			}
		})
	}
	for i := range rows {
		next <- &rows[i]
	}
	close(next)
	g.Wait()
	if file == "-" {
		return oracle.WriteTables(os.Stdout, rows)
	}
	return updateFile(file, rows)
}

// runRow runs one case and says so.
func runRow(row *oracle.Row, sources, work string, details bool, sites int) {
	c := row.Case
	dir, err := os.MkdirTemp(work, "case")
	if err == nil {
		row.Report, row.Err = oracle.RunCase(c, sources, dir)
	} else {
		row.Err = err
	}
	var b strings.Builder
	switch {
	case row.Err != nil:
		fmt.Fprintf(&b, "%s: %v\n", c.Name, row.Err)
	case details:
		row.Report.Print(&b, sites)
	default:
		fmt.Fprintf(&b, "%s: %s\n", c.Table, c.Name)
		row.Report.Print(&b, 0)
	}
	fmt.Fprint(os.Stderr, b.String())
}

// updateFile replaces what is between the two marks of a file by the tables.
func updateFile(file string, rows []oracle.Row) error {
	const begin, end = "<!-- tables: begin -->\n", "<!-- tables: end -->"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no marks for the tables", file)
	}
	var b strings.Builder
	if err := oracle.WriteTables(&b, rows); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(before+begin+b.String()+"\n"+end+after), 0o644)
}
