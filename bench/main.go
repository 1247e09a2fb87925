package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// config are the flags.
type config struct {
	only  string
	rates []int
	runs  int
	short bool

	examples int // of each kind of difference, for names
}

// mode is one of the tables.
type mode struct {
	name, help string
	run        func(*report, *builder, *config) error
	on         *bool
}

func main() {
	modes := []*mode{
		{name: "records", help: "what recordings of many kinds of programs cost", run: records},
		{name: "peers", help: "recordings beside perf and bpftrace", run: peers},
		{name: "walks", help: "walks of live processes beside eu-stack and gdb", run: walks},
		{name: "names", help: "names of addresses beside llvm-symbolizer, eu-addr2line, addr2line and go tool addr2line", run: names},
		{name: "scaling", help: "how costs grow with processes, threads, mappings, depth and rate", run: scaling},
	}
	for _, m := range modes {
		m.on = flag.Bool(m.name, false, m.help)
	}
	c := &config{}
	flag.StringVar(&c.only, "only", "", "only workloads whose name contains this")
	rates := flag.String("rates", "99,997", "sampling rates in Hz, separated by commas")
	flag.IntVar(&c.runs, "runs", 3, "runs of each")
	flag.BoolVar(&c.short, "short", false, "about two minutes: one run at 997 Hz of what tells most")
	flag.IntVar(&c.examples, "examples", 0, "with -names: print this many differences of each kind")
	measured := flag.String("swbpf", "", "measure this program instead of one built from the tree")
	out := flag.String("o", "", "put the tables into the marked blocks of this document, too")
	flag.Parse()
	if err := c.complete(*rates, modes); err != nil {
		fail(err)
	}
	dir, err := os.MkdirTemp("", "swbpf-bench-*")
	if err != nil {
		fail(err)
	}
	err = runModes(c, modes, &builder{dir: dir, measured: *measured}, *out)
	os.RemoveAll(dir)
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// complete checks the flags and fills in what they leave open.
func (c *config) complete(rates string, modes []*mode) error {
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if c.short && !given["runs"] {
		c.runs = 1
	}
	if c.short && !given["rates"] {
		rates = "997"
	}
	if c.short && !given["only"] {
		c.only = "depth" // of the workloads
	}
	for s := range strings.SplitSeq(rates, ",") {
		hz, err := strconv.Atoi(s)
		if err != nil || hz <= 0 {
			return fmt.Errorf("-rates %s: %q is not a rate", rates, s)
		}
		c.rates = append(c.rates, hz)
	}
	if c.runs < 1 {
		return fmt.Errorf("-runs %d: at least one", c.runs)
	}
	for _, m := range modes {
		if *m.on {
			return nil
		}
	}
	for _, m := range modes[:4] {
		*m.on = true
	}
	return nil
}

// command is how to get the same table again.
func (c *config) command(mode string) string {
	s := "go run ./bench " + mode
	if c.short {
		s += " -short"
	} else {
		if mode == "-records" || mode == "-peers" {
			s += " -rates " + strings.Trim(strings.ReplaceAll(fmt.Sprint(c.rates), " ", ","), "[]")
		}
		s += fmt.Sprintf(" -runs %d", c.runs)
		if c.only != "" {
			s += fmt.Sprintf(" -only %q", c.only)
		}
	}
	return s
}

func runModes(c *config, modes []*mode, b *builder, out string) error {
	for _, m := range modes {
		if !*m.on {
			continue
		}
		r := &report{name: m.name, out: os.Stdout}
		fmt.Printf("## %s\n\n", m.name)
		if err := m.run(r, b, c); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if out != "" {
			if err := r.save(out); err != nil {
				return err
			}
		}
	}
	return nil
}
