package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/swbpf/swbpf/loader"
)

// completions say what flags of a name take, whatever the verb.
var completions = map[string]cobra.CompletionFunc{
	"event":  completeEvents,
	"pid":    completePIDs,
	"cgroup": completeDirectories,
	"output": completeProfiles,
	"format": completeFormats,
	"stats":  completeJSON,
	"window": noCompletion,
	"freq":   noCompletion,
	"core":   completeFiles,
	"exe":    completeFiles,
	"symbols": func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"yes", "functions", "no"}, cobra.ShellCompDirectiveNoFileComp
	},
}

// argumentCompletions say what arguments of a verb are; those of others are
// nothing.
var argumentCompletions = map[string]cobra.CompletionFunc{
	"walk":   completePIDs,
	"record": completeCommand,
	"view":   completeProfiles,
	"diff":   completeProfiles,
}

// addCompletions tells the shell what the flags and arguments of all verbs are,
// and adds the verb that writes its script.
func addCompletions(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Example, c.Args, c.RunE = completionExample, cobra.ArbitraryArgs, helpOrUnknown
	}
	for _, verb := range root.Commands() {
		verb.Flags().VisitAll(func(f *pflag.Flag) {
			complete, ok := completions[f.Name]
			if !ok {
				complete = noCompletion
			}
			// It fails when there is one already, which is then the better one.
			_ = verb.RegisterFlagCompletionFunc(f.Name, complete)
		})
		if verb.ValidArgsFunction == nil {
			if verb.ValidArgsFunction = argumentCompletions[verb.Name()]; verb.ValidArgsFunction == nil {
				verb.ValidArgsFunction = noCompletion
			}
		}
	}
}

const completionExample = `  source <(swbpf completion bash)       for this shell; needs the package bash-completion
  swbpf completion bash > /etc/bash_completion.d/swbpf
  swbpf completion zsh > "${fpath[1]}/_swbpf"
  swbpf completion fish > ~/.config/fish/completions/swbpf.fish`

func noCompletion(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func completeFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

func completeDirectories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func completeJSON(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"json"}, cobra.ShellCompDirectiveFilterFileExt
}

// completeEvents lists the events: tracepoints only once their subsystem is
// begun, as there are thousands, and probes once it is known in what.
func completeEvents(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	if names := loader.ProbeNames(begun); len(names) > 0 {
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	subsystems := map[string]bool{}
	var names []string
	for _, kind := range []string{"uprobe:", "uretprobe:", "usdt:", "kprobe:", "kretprobe:"} {
		if strings.HasPrefix(kind, begun) && kind != begun {
			names, subsystems[kind] = append(names, kind), true
		}
	}
	for _, name := range loader.EventNames() {
		if !strings.HasPrefix(name, begun) {
			continue
		}
		if sys, _, ok := strings.Cut(name, ":"); ok && !strings.HasPrefix(begun, sys+":") {
			if !subsystems[sys] {
				subsystems[sys] = true
				names = append(names, sys+":")
			}
			continue
		}
		names = append(names, name)
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if len(subsystems) > 0 {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return names, directive
}

// completePIDs lists the processes, with their names.
func completePIDs(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	before, last := "", begun // of a list
	if i := strings.LastIndexByte(begun, ','); i >= 0 {
		before, last = begun[:i+1], begun[i+1:]
	}
	entries, err := filepath.Glob("/proc/" + last + "*/comm")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var pids []string
	for _, path := range entries {
		pid := filepath.Base(filepath.Dir(path))
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		comm, err := os.ReadFile(path)
		if err != nil {
			continue // has ended
		}
		pids = append(pids, before+pid+"\t"+printable(strings.TrimSpace(string(comm))))
	}
	return pids, cobra.ShellCompDirectiveNoFileComp
}

// completeProfiles has the shell show files with extensions of profiles.
func completeProfiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var extensions []string
	for _, f := range formats {
		for _, ext := range f.extensions {
			extensions = append(extensions, strings.TrimPrefix(ext, "."))
		}
	}
	return extensions, cobra.ShellCompDirectiveFilterFileExt
}

// completeFormats lists the formats, with their extensions.
func completeFormats(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, f := range formats {
		names = append(names, f.name+"\t"+strings.Join(f.extensions, " "))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeCommand lists programs, for the first word after "--".
func completeCommand(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || strings.Contains(begun, "/") || begun == "" {
		return nil, cobra.ShellCompDirectiveDefault
	}
	seen := map[string]bool{}
	var names []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			name := e.Name()
			if !strings.HasPrefix(name, begun) || seen[name] || e.IsDir() {
				continue
			}
			seen[name] = true
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveDefault
}
