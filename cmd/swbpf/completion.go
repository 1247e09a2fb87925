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
	"tid":    completeTIDs,
	"cpu":    completeCPUs,
	"uid":    completeUsers,
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
	return completeTasks("/proc", begun)
}

// completeTIDs lists the threads, with their names: of the process that is named, or all.
func completeTIDs(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if c.Name() != "walk" || len(args) == 0 {
		args = []string{"*"}
	}
	return completeTasks(filepath.Join("/proc", args[0], "task"), begun)
}

// completeTasks lists the tasks in directories of /proc, with their names, for the last of a list.
func completeTasks(dirs, begun string) ([]string, cobra.ShellCompDirective) {
	before, last := splitLast(begun)
	entries, err := filepath.Glob(dirs + "/" + last + "*/comm")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, path := range entries {
		id := filepath.Base(filepath.Dir(path))
		if _, err := strconv.Atoi(id); err != nil {
			continue
		}
		comm, err := os.ReadFile(path)
		if err != nil {
			continue // has ended
		}
		ids = append(ids, before+id+"\t"+printable(strings.TrimSpace(string(comm))))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// splitLast splits a list with commas that is being typed before its last part.
func splitLast(list string) (before, last string) {
	i := strings.LastIndexByte(list, ',') + 1
	return list[:i], list[i:]
}

// completeCPUs lists the CPUs that are online, also as the end of a range.
func completeCPUs(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	before, last := splitLast(begun)
	first, _, isRange := strings.Cut(last, "-")
	from, _ := strconv.Atoi(first)
	if isRange {
		before += first + "-"
	}
	var cpus []string
	for _, cpu := range loader.OnlineCPUs() {
		if !isRange || cpu > from {
			cpus = append(cpus, before+strconv.Itoa(cpu))
		}
	}
	return cpus, cobra.ShellCompDirectiveNoFileComp
}

// completeUsers lists the users of /etc/passwd, with what else it says of them.
func completeUsers(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	text, _ := os.ReadFile("/etc/passwd")
	var users []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(line, ":"); len(fields) > 4 { // passwd(5)
			users = append(users, fields[0]+"\t"+printable(fields[4]))
		}
	}
	return users, cobra.ShellCompDirectiveNoFileComp
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
