package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man",
		Short: "Write the manual page",
		Long: `Man writes the manual page, made from the help of all verbs, in the format of
man(1).

Exit status: 0; 1 when it could not be written, 2 for wrong usage.`,
		Example: `  swbpf man | man -l -                                        read it
  swbpf man > /usr/local/share/man/man1/swbpf.1               install it`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error { return writeMan(os.Stdout, c.Root()) },
	}
}

// writeMan writes the manual page of a command and its verbs: man(7) macros,
// which groff and mandoc both know.
func writeMan(w io.Writer, root *cobra.Command) error {
	out := &errWriter{w: w}
	out.printf(".TH %s 1 \"\" \"%s %s\" \"User Commands\"\n", strings.ToUpper(root.Name()), root.Name(), roff(root.Version))
	out.printf(".SH NAME\n%s \\- %s\n", root.Name(), roff(root.Short))
	out.printf(".SH SYNOPSIS\n")
	verbs := visibleVerbs(root)
	for i, verb := range verbs {
		if i > 0 {
			out.printf(".br\n")
		}
		manUse(out, root, verb)
	}
	manText(out, "DESCRIPTION", root.Long)
	out.printf(".SH EXAMPLES\n")
	manVerbatim(out, root.Example)
	out.printf(".SH COMMANDS\n")
	for _, verb := range verbs {
		out.printf(".SS %s \\- %s\n", roff(verb.Name()), roff(verb.Short))
		manUse(out, root, verb)
		out.printf(".PP\n")
		manParagraphs(out, verb.Long)
		manFlags(out, verb.NonInheritedFlags())
		if verb.Example != "" {
			out.printf(".PP\nExamples:\n")
			manVerbatim(out, verb.Example)
		}
	}
	return out.err
}

// visibleVerbs are the verbs of the help, and only they.
func visibleVerbs(root *cobra.Command) []*cobra.Command {
	var verbs []*cobra.Command
	for _, verb := range root.Commands() {
		if verb.IsAvailableCommand() && verb.Name() != "help" {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

// manUse writes how a verb is called.
func manUse(out *errWriter, root, verb *cobra.Command) {
	name, rest, _ := strings.Cut(verb.Use, " ")
	out.printf("\\fB%s %s\\fR", roff(root.Name()), roff(name))
	if rest != "" {
		out.printf(" %s", roff(rest))
	}
	var below []string
	for _, c := range verb.Commands() {
		below = append(below, roff(c.Name()))
	}
	if len(below) > 0 {
		out.printf(" %s", strings.Join(below, "|"))
	}
	if verb.HasAvailableFlags() {
		out.printf(" [\\fIFLAGS\\fR]")
	}
	out.printf("\n")
}

func manText(out *errWriter, title, text string) {
	out.printf(".SH %s\n", title)
	manParagraphs(out, text)
}

// manParagraphs writes text whose paragraphs are apart by blank lines; what
// is indented stays as it is.
func manParagraphs(out *errWriter, text string) {
	for i, p := range strings.Split(strings.TrimSpace(text), "\n\n") {
		p = strings.Trim(p, "\n")
		if strings.HasPrefix(p, " ") || strings.HasPrefix(p, "\t") {
			manVerbatim(out, p)
			continue
		}
		if i > 0 {
			out.printf(".PP\n")
		}
		for line := range strings.Lines(p) {
			out.printf("%s\n", roff(strings.TrimSuffix(line, "\n")))
		}
	}
}

func manVerbatim(out *errWriter, text string) {
	out.printf(".PP\n.nf\n.RS 2\n")
	for line := range strings.Lines(strings.Trim(text, "\n")) {
		out.printf("%s\n", roff(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "  ")))
	}
	out.printf(".RE\n.fi\n")
}

func manFlags(out *errWriter, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		out.printf(".TP\n")
		if f.Shorthand != "" {
			out.printf("\\fB\\-%s\\fR, ", roff(f.Shorthand))
		}
		out.printf("\\fB\\-\\-%s\\fR", roff(f.Name))
		if value != "" {
			out.printf(" \\fI%s\\fR", roff(value))
		}
		out.printf("\n%s", roff(usage))
		if f.DefValue != "" && !strings.Contains("false 0 [] ", f.DefValue+" ") {
			out.printf(" (default %s)", roff(f.DefValue))
		}
		out.printf("\n")
	})
}

// roff escapes a line of text.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	var b strings.Builder
	for _, r := range s {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\[u%04X]", r)
		}
	}
	return b.String()
}

// rootLong is what the help without a verb says, and the manual page at its
// beginning.
var rootLong = fmt.Sprintf(`Swbpf samples what runs on a machine, with stacks that are complete and exact:
programs without frame pointers or debug information, short-lived ones, Go and
generated code. It writes profiles and flame graphs, shows them, or looks at
running processes.

Recording needs Linux 5.8 or later with BTF, and root or CAP_BPF and
CAP_PERFMON. Where it does not work, 'swbpf doctor' tells why, and what to do.

Exit status, of all verbs: %d; %d when something went wrong on the way, %d for
wrong usage, or when the kernel or the privileges do not allow what was asked;
%d when a second Ctrl-C ended a recording at once, or one its wait for a command
or for who reads a pipe. Verbs with more say so.`, exitOK, exitFailure, exitCannot, exitInterrupted)
