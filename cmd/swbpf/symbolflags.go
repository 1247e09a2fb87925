package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/symbols/debuginfod"
)

// symbolFlags are the flags of all verbs that name code.
type symbolFlags struct {
	demangle   string
	debugDirs  []string
	debuginfod string // addresses of servers; fromEnvironment: those of DEBUGINFOD_URLS
	memory     bytesValue

	client *debuginfod.Client // by options; nil without
}

// fetchProgram returns the path of the program or library of a build ID, from servers.
func (s *symbolFlags) fetchProgram(buildID string) (path string, err error) {
	if s.client == nil {
		return "", debuginfod.ErrNotFound
	}
	return s.client.Executable(context.Background(), buildID)
}

// fromEnvironment is what --debuginfod without a value stands for.
const fromEnvironment = "$DEBUGINFOD_URLS"

func (s *symbolFlags) add(f *pflag.FlagSet) {
	s.demangle, s.memory = "simple", symbols.DefaultMemory
	f.StringVar(&s.demangle, "demangle", s.demangle, "`how` to show mangled names, of C++, Rust, D, Ada, OCaml, Free Pascal, Swift and Haskell: full, simple (no parameters, as always with the latter six) or none")
	f.StringArrayVar(&s.debugDirs, "debug-dir", nil, "look for separate debug files in this `directory`, before "+symbols.DefaultDebugDir+"; may be repeated")
	f.StringVar(&s.debuginfod, "debuginfod", "", "fetch debug files that are missing here from these `servers`")
	f.Lookup("debuginfod").NoOptDefVal = fromEnvironment
	f.Var(&s.memory, "symbol-memory", "keep at most this much debug information in memory")
}

// options turns the flags into what package symbols wants.
func (s *symbolFlags) options() (symbols.Options, error) {
	mode, ok := symbols.ParseDemangleMode(s.demangle)
	if !ok {
		return symbols.Options{}, fmt.Errorf("--demangle is full, simple or none, not %q", s.demangle)
	}
	opt := symbols.Options{Demangle: mode, Memory: int(s.memory)}
	for _, dir := range s.debugDirs {
		st, err := os.Stat(dir)
		if err == nil && !st.IsDir() {
			err = fmt.Errorf("%s is no directory", dir)
		}
		if err != nil {
			return opt, fmt.Errorf("--debug-dir: %w", err)
		}
	}
	if len(s.debugDirs) > 0 {
		opt.DebugDirs = append(s.debugDirs[:len(s.debugDirs):len(s.debugDirs)], symbols.DefaultDebugDir)
	}
	if s.debuginfod == "" {
		return opt, nil
	}
	client := debuginfod.FromEnvironment()
	if s.debuginfod != fromEnvironment {
		for _, server := range strings.Fields(s.debuginfod) {
			if !isURL(server) {
				return opt, fmt.Errorf("--debuginfod: %q is no server such as https://debuginfod.debian.net", server)
			}
		}
		client = debuginfod.New(strings.Fields(s.debuginfod)...)
	}
	if client == nil {
		return opt, errors.New("--debuginfod: DEBUGINFOD_URLS names no server; set it, or give --debuginfod=URL")
	}
	s.client = client
	opt.Fetch = func(buildID string) (string, error) {
		return client.DebugInfo(context.Background(), buildID)
	}
	return opt, nil
}
