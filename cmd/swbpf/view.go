package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/swbpf/swbpf/internal/perfdata"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/symbols"
)

// viewOptions are the flags of view.
type viewOptions struct {
	listen     string
	outputs    []string
	format     string
	sampleType string
	open       bool
	symbols    symbolFlags
	names      symbols.Options // what the flags of symbols come to
}

func newViewCommand() *cobra.Command {
	o := &viewOptions{}
	c := &cobra.Command{
		Use:   "view FILE",
		Short: "Look at a profile in the browser, or convert it",
		Long: `View shows a profile as local web pages: a flame graph, the hottest functions,
the callers, callees and source lines of each, and pprof's own interface. The
address is printed; it is of this machine only, and nothing is sent anywhere.
Ctrl-C ends it.

FILE is what 'swbpf record' wrote in any format but svg, any pprof file, folded
stacks, what 'perf record' wrote, the text of 'perf script', a file of
speedscope or of the Firefox Profiler, compressed or not; "-" is standard input.
What it is shows by its content.

Of what 'perf record --call-graph dwarf' wrote the stacks are walked as those of
'swbpf record' are, from programs and libraries that are here as they were
recorded: at their path, among those that perf has kept in ~/.debug (or 'perf
archive' has brought there), below --debug-dir, or from --debuginfod. One that
is another by its build ID is not used, and told of. What 'perf record
--threads' wrote is a directory.

Each of several events is shown, with its own samples, also of perf's groups
that are read together ('{cycles,cache-misses}:S'): of pprof files by 'swbpf
record', what perf recorded, and its text. --sample-type picks one.

With -o the profile is written to a file instead, and nothing is served. Of
several events, pprof's format, perf's and a server get all, and other formats
have a file for each, x.html and x.page-faults.html. Of several values of the
same samples, as a heap profile of Go has, one is written: the file's default,
or by --sample-type another.
` + formatHelp + `

Source lines are read from the files that the profile names, where they are on
this machine. As with any local server, others who are logged in to this
machine can open the pages while they are served.

Exit status: 0, also after Ctrl-C; 1 when the profile cannot be read or
written; 2 for wrong usage.`,
		Example: `  swbpf view swbpf.pb.gz
  perf script | swbpf view -
  perf record --call-graph dwarf -- CMD; swbpf view perf.data
  swbpf view cpu.prof -o cpu.html -o cpu.folded
  swbpf view --sample-type inuse_objects heap.pb.gz
  swbpf view --listen 127.0.0.1:8080 swbpf.pb.gz     behind ssh -L 8080:127.0.0.1:8080`,
		Args: exactlyFiles(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.check(c.Flags().Changed("listen")); err != nil {
				return withCode(exitCannot, err)
			}
			return view(o, args[0])
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "serve at this `address`, of the loopback interface")
	f.BoolVar(&o.open, "open", false, "open the browser")
	f.StringVar(&o.sampleType, "sample-type", "", "`type` to show of a profile with several: cpu, inuse_space, cycles, ...")
	f.StringArrayVarP(&o.outputs, "output", "o", nil, "write the profile to this `file` and serve nothing; may be repeated")
	f.StringVar(&o.format, "format", "", "write in this `format`, whatever the extension")
	o.symbols.add(f)
	return c
}

// exactlyFiles checks the number of arguments that are files.
func exactlyFiles(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return withCode(exitCannot, fmt.Errorf("%s given, where '%s' takes %d\nSee 'swbpf %s --help'", plural(len(args), "file"), c.Use, n, c.Name()))
	}
}

// check refuses what contradicts; listens is whether an address was given.
func (o *viewOptions) check(listens bool) error {
	switch {
	case len(o.outputs) > 0 && (listens || o.open):
		return errors.New("with -o nothing is served: it excludes --listen and --open")
	case len(o.outputs) == 0 && o.format != "":
		return errors.New("--format goes with -o")
	}
	var err error
	o.names, err = o.symbols.options()
	return err
}

func view(o *viewOptions, path string) error {
	outs, err := openOutputs(o.outputs, o.format)
	if err != nil {
		return withCode(exitCannot, err)
	}
	defer func() { discardOutputs(outs) }()
	var server *viewServer
	if len(outs) == 0 {
		if server, err = listenLoopback(o.listen); err != nil {
			return withCode(exitCannot, err)
		}
		defer server.listener.Close()
	}
	p, err := readProfile(path, profile.ReadOptions{SampleType: o.sampleType, Times: anyTimed(outs)}, codeOptions{o.names, o.symbols.fetchProgram})
	if err != nil {
		return err
	}
	printEvents(os.Stderr, p)
	if p.Format == perfDataFormat {
		printWalked(os.Stderr, p)
	}
	if server == nil {
		if outs, err = openFurther(outs, o, p); err != nil {
			return withCode(exitCannot, err)
		}
		outs, failed := saveOutputs(outs, p)
		for _, out := range outs {
			out.see(os.Stderr)
		}
		if o.sampleType == "" && len(p.Meta.Also) == 0 && len(p.Types) > 2 {
			fmt.Fprintf(os.Stderr, "that is %s; --sample-type writes %s\n", printable(p.Type), typeNames(p, p.Type))
		}
		return failed
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	amount := thousands(int(p.Samples)) + " samples"
	if len(p.Meta.Also) == 0 {
		whole, unit := p.Whole()
		amount = p.Amount(whole) + " " + unit
	}
	fmt.Fprintln(os.Stderr, printable(fmt.Sprintf("%s (%s): %s", displayName(path), p.Format, amount)))
	if len(p.Types) > 1 && len(p.Meta.Also) == 0 {
		fmt.Fprintf(os.Stderr, "it also has, for --sample-type: %s\n", typeNames(p, ""))
	}
	url := "http://" + server.listener.Addr().String() + "/"
	fmt.Fprintf(os.Stderr, "see it at %s; Ctrl-C ends it\n", url)
	if o.open {
		if err := exec.Command("xdg-open", url).Start(); err != nil {
			fmt.Fprintln(os.Stderr, "note: no browser opened:", err)
		}
	}
	return server.serve(ctx, p)
}

// typeNames lists the types of a profile but one.
func typeNames(p *profile.Profile, but string) string {
	var names []string
	for _, t := range p.Types {
		if t.Type != but {
			names = append(names, t.Type)
		}
	}
	return printable(strings.Join(names, ", "))
}

// openFurther opens the outputs of further events of a profile, where formats have room for one, besides those that
// are open.
func openFurther(outs []*output, o *viewOptions, p *profile.Profile) ([]*output, error) {
	names := []string{p.Meta.Event}
	for _, e := range p.Meta.Also {
		names = append(names, e.Name)
	}
	paths, of := byEvent(o.outputs, o.format, names)
	var all []*output
	for i, path := range paths {
		if slices.Contains(paths[:i], path) {
			return outs, fmt.Errorf("output %s is given twice", path)
		}
		at := slices.IndexFunc(outs, func(o *output) bool { return o.path == path })
		if at < 0 {
			further, err := openOutput(outs, path, o.format)
			if err != nil {
				return outs, err
			}
			at, outs = len(outs), append(outs, further)
		}
		all = append(all, outs[at])
	}
	tellEvents(all, paths, of, func(path string) string { return path })
	return all, nil
}

// printEvents lists the events of a profile of several, and how many samples each has.
func printEvents(w io.Writer, p *profile.Profile) {
	if len(p.Meta.Also) == 0 {
		return
	}
	for _, one := range p.Events() {
		rate := ""
		if hz := one.Meta.FrequencyHz; hz > 0 {
			rate = fmt.Sprintf(" at %d Hz", hz)
		}
		fmt.Fprintf(w, "  %s of %s%s\n", thousands(int(one.Samples)), printable(one.Meta.Event), rate)
	}
}

func displayName(path string) string {
	if path == "-" {
		return "standard input"
	}
	return filepath.Base(path)
}

// readProfile reads a file, or standard input for "-". code is for what perf has recorded.
func readProfile(path string, o profile.ReadOptions, code codeOptions) (*profile.Profile, error) {
	o.Name = displayName(path)
	in := os.Stdin
	var parts []perfdata.Part
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		if st, err := f.Stat(); err == nil && st.IsDir() {
			f.Close()
			if f, parts, err = openDir(path); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		in = f
	}
	p, err := readProfileFile(in, parts, o, code)
	if path != "-" && (p == nil || p.Format != perfDataFormat) {
		in.Close()
	}
	if err != nil {
		var named *fs.PathError
		if path == "-" {
			path = displayName(path)
		}
		if !errors.As(err, &named) {
			err = fmt.Errorf("%s: %w", path, err)
		}
		if errors.Is(err, profile.ErrNoSuchType) {
			err = withCode(exitCannot, err)
		}
		return nil, err
	}
	return p, nil
}

func readProfileFile(in *os.File, parts []perfdata.Part, o profile.ReadOptions, code codeOptions) (*profile.Profile, error) {
	ahead := bufio.NewReaderSize(in, 1<<16)
	head, err := ahead.Peek(1 << 10)
	if err != nil && err != io.EOF {
		return nil, err
	}
	packed := isPackedPerfData(head)
	if !packed && !isPerfData(head) {
		return profile.Read(ahead, o)
	}
	r, err := openPerfData(ahead, in, packed, parts, code)
	if err != nil {
		return nil, err
	}
	return r.profile(o)
}
