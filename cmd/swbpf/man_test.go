package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/swbpf/swbpf/internal/testenv"
)

// TestHelp checks that the help of every verb has what a user looks for.
func TestHelp(t *testing.T) {
	root := newRootCommand("")
	root.InitDefaultHelpCmd()
	for _, verb := range root.Commands() {
		if verb.Name() == "help" || verb.Name() == "completion" {
			continue
		}
		if !strings.Contains(verb.Long, "Exit status: ") {
			t.Errorf("%s: the help does not tell the exit status", verb.Name())
		}
		if verb.Example == "" || verb.Short == "" {
			t.Errorf("%s: no examples, or no summary", verb.Name())
		}
		for line := range strings.Lines(verb.Long) {
			if len(line) > 81 { // with its end
				t.Errorf("%s: wider than a terminal: %s", verb.Name(), line)
			}
		}
	}
}

// TestWrongUsage: what is wrong is told in the terms of the command line, with what helps.
func TestWrongUsage(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--nope":                      "See 'swbpf --help'",
		"walk --nope":                 "See 'swbpf walk --help'",
		"record --stats -- true":      "--stats needs a value (file)",
		"version":                     "Did you mean --version?",
		"diff -n x a b":               "not a whole number",
		"view -o http:// a":           "http://HOST:PORT",
		"view -o ftp://host/x.html a": "http://HOST:PORT",
		"view -o /proc/p.html a":      "make a file in /proc: ",
		"view -o a.html -o ../" + filepath.Base(dir) + "/a.html b": "are one file",
		"view ./sub/none": "open ./sub/none: no such file",
		"view .":          "a directory, and none that 'perf record --threads' has written",
		"view ./empty":    "swbpf: ./empty: the profile is empty",
	} {
		if _, errOut, status := runSwbpf(t, dir, strings.Fields(args)...); status == exitOK || !strings.Contains(errOut, want) {
			t.Errorf("%s: status %d, %q; want %q", args, status, errOut, want)
		}
	}
}

// TestVerbAlone: a verb that is made alone has the help that it has beside the others.
func TestVerbAlone(t *testing.T) {
	help := func(root *cobra.Command, verb string) string {
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs([]string{verb, "--help"})
		if err := root.Execute(); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	for _, v := range verbs {
		if v.name == "man" {
			continue
		}
		if verbOf([]string{v.name, "x"}) != v.name {
			t.Errorf("%s is no verb", v.name)
		}
		alone := newRootCommand(v.name)
		if n := len(alone.Commands()); n != 1 && n != 2 { // with help
			t.Errorf("%s: %d verbs", v.name, n)
		}
		if got, want := help(alone, v.name), help(newRootCommand(""), v.name); got != want || len(got) < 100 {
			t.Errorf("%s alone:\n%s\nbeside the others:\n%s", v.name, got, want)
		}
	}
	for _, args := range [][]string{nil, {"help", "walk"}, {"man"}, {"walks"}, {"--version"}, {"__complete", "walk"}} {
		if verb := verbOf(args); verb != "" {
			t.Errorf("%q needs only %s", args, verb)
		}
	}
}

// TestManPage has groff read the manual page, which must find no fault, and
// checks that it has all that the help has.
func TestManPage(t *testing.T) {
	root := newRootCommand("")
	var page bytes.Buffer
	if err := writeMan(&page, root); err != nil {
		t.Fatal(err)
	}
	testenv.Needs(t, "groff")
	cmd := exec.Command("groff", "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=9000n")
	cmd.Stdin = &page
	var text, faults bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &faults
	if err := cmd.Run(); err != nil || faults.Len() > 0 {
		t.Errorf("groff: %v: %s", err, faults.String())
	}
	words := strings.Join(strings.Fields(strings.NewReplacer("−", "-", "’", "'", "‐", "-").Replace(text.String())), " ")
	for _, verb := range append(visibleVerbs(root), root) {
		for _, want := range []string{verb.Short, verb.Long, verb.Example} {
			if want = strings.Join(strings.Fields(want), " "); !strings.Contains(words, want) {
				t.Errorf("%s: the page lacks %q", verb.Name(), want)
			}
		}
		verb.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !strings.Contains(words, "--"+f.Name) {
				t.Errorf("%s: the page lacks --%s", verb.Name(), f.Name)
			}
		})
	}
}

func TestRoff(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "± ü": `\[u00B1] \[u00FC]`, ".TH": `\&.TH`, "'quoted'": `\&'quoted'`, "a-b": `a\-b`, `a\b`: `a\eb`, "": "",
	} {
		if got := roff(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
