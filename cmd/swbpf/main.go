// Command swbpf profiles a Linux machine and walks the stacks of its
// processes. See the help of each verb, and the README.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes, the same for every verb. A verb that runs a command passes the
// command's own status on.
const (
	exitOK          = 0
	exitFailure     = 1   // something went wrong on the way
	exitCannot      = 2   // wrong usage, or the kernel or the privileges do not allow it
	exitInterrupted = 130 // ended at once by a second Ctrl-C, or by one while it waited at its end
)

// exitError carries an exit code out of a verb. A nil err says nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// withCode gives err an exit code.
func withCode(code int, err error) error { return &exitError{code, err} }

func main() {
	if len(os.Args) == 2 && os.Args[1] == keeperVerb {
		os.Exit(keepTerminal())
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	root := newRootCommand(verbOf(args))
	root.SetArgs(args)
	out := &keptWriter{w: os.Stdout}
	root.SetOut(out)
	err := root.Execute()
	if err == nil {
		err = out.err
	}
	if err == nil {
		return exitOK
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{exitFailure, err}
	}
	if exit.err != nil {
		fmt.Fprintf(os.Stderr, "swbpf: %s\n", printableLines(exit.err.Error()))
	}
	return exit.code
}

// keptWriter writes until a first error, and keeps that: package cobra drops
// the errors of what it writes itself, as help.
type keptWriter struct {
	w   io.Writer
	err error
}

func (k *keptWriter) Write(p []byte) (int, error) {
	if k.err == nil {
		_, k.err = k.w.Write(p)
	}
	return len(p), nil
}

// verbs are the verbs by name, in the order in which they are shown.
var verbs = []struct {
	name string
	make func() *cobra.Command
}{
	{"record", newRecordCommand}, {"view", newViewCommand}, {"diff", newDiffCommand}, {"walk", newWalkCommand},
	{"top", newTopCommand}, {"doctor", newDoctorCommand}, {"man", newManCommand},
}

// verbOf returns the verb of a command line where only that is needed of the program's
// commands: "" where there is another first argument, as help, and for the manual.
func verbOf(args []string) string {
	for _, v := range verbs {
		if len(args) > 0 && args[0] == v.name && v.name != "man" {
			return v.name
		}
	}
	return ""
}

// checkValues refuses what looks like a flag, or the end of them, as the value of one.
func checkValues(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if value := f.Value.String(); strings.HasPrefix(value, "--") {
			kind, _ := pflag.UnquoteUsage(f)
			err = withCode(exitCannot, fmt.Errorf("--%s needs a value (%s), and %q is none", f.Name, kind, value))
		}
	})
	return err
}

// newRootCommand makes the program's command with one verb, or with all and their
// completions for "": to make those of all takes a third of a millisecond.
func newRootCommand(verb string) *cobra.Command {
	root := &cobra.Command{
		Use:   "swbpf",
		Short: "Exact stack walks and whole-machine profiles for Linux",
		Long:  rootLong,
		Example: `  sudo swbpf record -d 10 -o profile.html    what does this machine do?
  sudo swbpf record -o build.html -- make    and this command?
  sudo swbpf walk 4711                       where is process 4711 now?
  sudo swbpf top                             what is hot, live
  swbpf view profile.pb.gz                   a profile in the browser`,
		Args: cobra.ArbitraryArgs,
		RunE: helpOrUnknown,

		SuggestionsMinimumDistance: 2,
		SilenceUsage:               true,
		SilenceErrors:              true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return withCode(exitCannot, fmt.Errorf("%w\nSee '%s --help'", err, c.CommandPath()))
	})
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return checkValues(c.Flags()) }
	for _, v := range verbs {
		if verb == "" || v.name == verb {
			root.AddCommand(v.make())
		}
	}
	if verb != "" {
		root.CompletionOptions.DisableDefaultCmd = true
		return root
	}
	root.Version = version()
	addCompletions(root)
	root.InitDefaultHelpCmd()
	if c, _, err := root.Find([]string{"help"}); err == nil {
		c.Run, c.RunE = nil, helpOn
	}
	return root
}

// helpOn is 'swbpf help VERB'.
func helpOn(c *cobra.Command, args []string) error {
	verb, rest, err := c.Root().Find(args)
	if err != nil || verb == c.Root() {
		return helpOrUnknown(c.Root(), rest)
	}
	verb.InitDefaultHelpFlag()
	return verb.Help()
}

// helpOrUnknown is run when there is no verb, or an unknown one.
func helpOrUnknown(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	hint := fmt.Sprintf("See '%s --help'", c.CommandPath())
	near := c.SuggestionsFor(args[0])
	if args[0] == "version" {
		near = []string{"--version"}
	}
	if len(near) > 0 {
		hint = "Did you mean " + strings.Join(near, ", ") + "? " + hint
	}
	return withCode(exitCannot, fmt.Errorf("unknown verb %q\n%s", args[0], hint))
}

// version is the module's version as the build recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
