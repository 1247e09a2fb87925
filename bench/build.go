package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// builder builds programs in a directory and remembers the first error.
type builder struct {
	dir      string
	measured string // the swbpf to measure; "" for one from this tree
	err      error
}

// run runs a compiler, in whose arguments OUT stands for the path of the
// result, and returns that path. What was built before is not built again.
func (b *builder) run(name string, command ...string) string {
	out := filepath.Join(b.dir, name)
	if _, err := os.Stat(out); b.err != nil || err == nil {
		return out
	}
	args := strings.Split(strings.ReplaceAll(strings.Join(command[1:], "\x00"), "OUT", out), "\x00")
	if msg, err := exec.Command(command[0], args...).CombinedOutput(); err != nil {
		b.err = fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, msg)
	}
	return out
}

// swbpf returns the program that is measured: a copy, as install makes it. The kernel has
// what the linker has just written in small pieces, and takes a millisecond longer to start
// it until it is read anew.
func (b *builder) swbpf() string {
	if b.measured != "" {
		return b.measured
	}
	return b.run("swbpf", "cp", b.run("swbpf.built", "go", "build", "-trimpath", "-o", "OUT", "./cmd/swbpf"), "OUT")
}

// c builds a program of bench/testdata without frame pointers.
func (b *builder) c(name string, flags ...string) string {
	args := append([]string{"gcc", "-O2", "-fomit-frame-pointer", "-pthread", "-o", "OUT"}, flags...)
	return b.run(name, append(args, "bench/testdata/"+name+".c")...)
}
