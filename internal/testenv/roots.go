package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Program is a program of this machine, or of the file system of another release that
// SWBPF_ROOTS names: a list of directories, as PATH is. That is run as in a container.
type Program struct {
	Path string // in Root
	Root string // "": this machine's
}

// Programs returns the program that is found by a name, and those of other file systems whose
// paths match one of the patterns.
func Programs(name string, patterns ...string) (programs []Program) {
	if path, err := exec.LookPath(name); err == nil {
		programs = append(programs, Program{Path: path})
	}
	for _, root := range filepath.SplitList(os.Getenv("SWBPF_ROOTS")) {
		for _, pattern := range patterns {
			paths, _ := filepath.Glob(filepath.Join(root, pattern))
			for _, path := range paths {
				if real, err := filepath.EvalSymlinks(path); err == nil && real == path {
					programs = append(programs, Program{strings.TrimPrefix(path, root), root})
				}
			}
		}
	}
	return programs
}

// Name is that of a test with the program.
func (p Program) Name() string {
	name := strings.ReplaceAll(strings.Trim(p.Path, "/"), "/", "_")
	if p.Root != "" {
		name += " elsewhere"
	}
	return name
}

// Command is the program with arguments.
func (p Program) Command(args ...string) []string {
	if p.Root == "" {
		return append([]string{p.Path}, args...)
	}
	return append([]string{"unshare", "--root=" + p.Root, "--mount-proc", p.Path}, args...)
}

// ask returns what the program prints when it is run with these arguments. That does not change: all
// tests of a package ask once.
func (p Program) ask(args ...string) (string, error) {
	command := p.Command(args...)
	answer, _ := answers.LoadOrStore(strings.Join(command, "\x00"), sync.OnceValues(func() (string, error) {
		out, err := exec.Command(command[0], command[1:]...).Output()
		return string(out), err
	}))
	return answer.(func() (string, error))()
}

// answers has what ask returns, by command.
var answers sync.Map

// TempDir makes a directory for a test: where it is, and where the program sees it.
func (p Program) TempDir(t testing.TB) (dir, seen string) {
	if p.Root == "" {
		dir = t.TempDir()
		return dir, dir
	}
	dir, err := os.MkdirTemp(filepath.Join(p.Root, "tmp"), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, strings.TrimPrefix(dir, p.Root)
}

// EachAArch64 is for each program whose path matches one of the patterns in the file systems for AArch64
// that SWBPF_AARCH64_ROOTS names, a list of directories: one of them has to have such a program.
func EachAArch64(t *testing.T, test func(t *testing.T, program Program), patterns ...string) {
	t.Helper()
	if os.Getenv("SWBPF_AARCH64_ROOTS") == "" {
		t.Skip("SWBPF_AARCH64_ROOTS names no file systems for AArch64")
	}
	found := false
	for _, root := range filepath.SplitList(os.Getenv("SWBPF_AARCH64_ROOTS")) {
		for _, pattern := range patterns {
			paths, _ := filepath.Glob(filepath.Join(root, pattern))
			for _, path := range paths {
				if real, err := filepath.EvalSymlinks(path); err == nil && real == path {
					found = true
					program := Program{strings.TrimPrefix(path, root), root}
					t.Run(program.Name(), func(t *testing.T) { test(t, program) })
				}
			}
		}
	}
	if !found {
		t.Errorf("SWBPF_AARCH64_ROOTS has no %s", patterns[0])
	}
}

// Script copies a file to where the program sees it, and returns that place.
func (p Program) Script(t testing.TB, source string) string {
	t.Helper()
	dir, seen := p.TempDir(t)
	b, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(source)), b, 0o644); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(seen, filepath.Base(source))
}

// wantElsewhere fails where SWBPF_ROOTS names file systems that have none of these programs:
// nobody would miss them.
func wantElsewhere(t *testing.T, programs []Program) {
	t.Helper()
	elsewhere := func(p Program) bool { return p.Root != "" }
	if os.Getenv("SWBPF_ROOTS") != "" && !slices.ContainsFunc(programs, elsewhere) {
		t.Error("SWBPF_ROOTS has no such program")
	}
}
