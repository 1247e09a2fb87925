package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	return strings.Trim(strings.ReplaceAll(filepath.Join(filepath.Base(p.Root), p.Path), "/", "_"), "._")
}

// Command is the program with arguments.
func (p Program) Command(args ...string) []string {
	if p.Root == "" {
		return append([]string{p.Path}, args...)
	}
	return append([]string{"unshare", "--root=" + p.Root, "--mount-proc", p.Path}, args...)
}

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

// EachJava runs a test with each virtual machine of Java that there is.
func EachJava(t *testing.T, test func(t *testing.T, java Program)) {
	t.Helper()
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip("no Java here")
	}
	for _, java := range Programs("java", "usr/lib/jvm/*/bin/java", "usr/lib/jvm/*/jre/bin/java") {
		t.Run(java.Name(), func(t *testing.T) { test(t, java) })
	}
}

// CompileJava compiles a source for a virtual machine. It returns its class path, as that sees it.
func CompileJava(t *testing.T, java Program, source string) (classPath string) {
	t.Helper()
	dir, seen := java.TempDir(t)
	Run(t, exec.Command("javac", "--release", "8", "-Xlint:-options", "-d", dir, source))
	return seen
}
