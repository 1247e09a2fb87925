package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

// NeedsJava skips a test where this machine has no Java with a compiler. It is not among what
// SWBPF_REQUIRE_KERNEL declares.
func NeedsJava(t testing.TB) {
	t.Helper()
	for _, tool := range []string{"java", "javac"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("no Java here")
		}
	}
}

// EachJava runs a test with each virtual machine of Java that there is.
func EachJava(t *testing.T, test func(t *testing.T, java Program)) {
	t.Helper()
	for _, java := range javas(t) {
		t.Run(java.Name(), func(t *testing.T) { test(t, java) })
	}
}

// SomeJava is EachJava of what differs little between them: see Some.
func SomeJava(t *testing.T, test func(t *testing.T, java Program)) {
	t.Helper()
	for _, java := range Some(javas(t)) {
		t.Run(java.Name(), func(t *testing.T) { test(t, java) })
	}
}

func javas(t *testing.T) []Program {
	t.Helper()
	NeedsJava(t)
	programs := Programs("java", "usr/lib/jvm/*/bin/java", "usr/lib/jvm/*/jre/bin/java")
	wantElsewhere(t, programs)
	return programs
}

// CompileJava compiles a source for a virtual machine. It returns its class path, as that sees it.
func CompileJava(t *testing.T, java Program, source string) (classPath string) {
	t.Helper()
	compiled, _ := compiledJava.LoadOrStore(source, sync.OnceValues(func() (fstest.MapFS, error) { return compileJava(source) }))
	classes, err := compiled.(func() (fstest.MapFS, error))()
	if err != nil {
		t.Fatal(err)
	}
	dir, seen := java.TempDir(t)
	if err := os.CopyFS(dir, classes); err != nil {
		t.Fatal(err)
	}
	return seen
}

// compiledJava has what compileJava returns, by source: all virtual machines take the same.
var compiledJava sync.Map

func compileJava(source string) (fstest.MapFS, error) {
	dir, err := os.MkdirTemp("", "classes")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	javac := exec.Command("javac", "-J-XX:TieredStopAtLevel=1", "--release", "8", "-Xlint:-options", "-d", dir, source)
	if out, err := javac.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", javac, err, out)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	classes := fstest.MapFS{}
	for _, f := range files {
		class, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		classes[f.Name()] = &fstest.MapFile{Data: class, Mode: 0o644}
	}
	return classes, nil
}

// EachPython runs a test with each version of Python that there is and that is known, and with all of
// these where tests are long.
func EachPython(t *testing.T, test func(t *testing.T, python Program)) {
	t.Helper()
	eachVersion(t, pythons(t), test)
}

// SomePython is EachPython of what differs little between them: see Some.
func SomePython(t *testing.T, test func(t *testing.T, python Program)) {
	t.Helper()
	eachVersion(t, Some(pythons(t)), test)
}

// versionedProgram is a program of some version, which is what a test with it is called by.
type versionedProgram struct {
	Program
	version string
}

func eachVersion(t *testing.T, programs []versionedProgram, test func(t *testing.T, program Program)) {
	t.Helper()
	for _, p := range programs {
		t.Run(p.version, func(t *testing.T) { test(t, p.Program) })
	}
}

func pythons(t *testing.T) (found []versionedProgram) {
	t.Helper()
	programs := append(Programs("/usr/bin/python3"), Programs("python3", "usr/bin/python3.[0-9]", "usr/bin/python3.[0-9][0-9]", "usr/bin/python3.[0-9][0-9]t")...)
	versions := []string{"3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "3.13t", "3.14t", "3.15t"} // t: without a global lock
	for _, version := range versions {
		if path, err := exec.LookPath("python" + version); err == nil {
			programs = append(programs, Program{Path: path})
		}
	}
	wantElsewhere(t, programs)
	seen := map[string]bool{}
	for _, python := range programs {
		// What pyenv has in PATH takes a second to find out which version it stands for, mostly none or one found before.
		if filepath.Base(filepath.Dir(python.Path)) == "shims" && len(found) > 0 && !Long() {
			continue
		}
		out, err := python.ask("-c", "import os, sys; print('%d.%d' % sys.version_info[:2] + 't' * ('t' in sys.abiflags), os.path.realpath(sys.executable))")
		version, _, _ := strings.Cut(out, " ")
		is := python.Root + out
		if err != nil || !slices.Contains(versions, version) || seen[is] || seen[version] && !Long() {
			continue
		}
		seen[is], seen[version] = true, true
		found = append(found, versionedProgram{python, filepath.Join(version, python.Name())})
	}
	if len(found) == 0 {
		t.Skip("no Python of a version that is known here")
	}
	return found
}

// EachPyPy runs a test with each PyPy that there is. It is not among what has to be in other file systems.
func EachPyPy(t *testing.T, test func(t *testing.T, pypy Program)) {
	t.Helper()
	seen := map[string]bool{}
	for _, pypy := range Programs("pypy3", "usr/bin/pypy3.[0-9]*") {
		out, err := pypy.ask("-c", "import sys; print('%d.%d.%d' % sys.pypy_version_info[:3])")
		version := strings.TrimSpace(out)
		if err != nil || seen[version] {
			continue
		}
		seen[version] = true
		t.Run(version, func(t *testing.T) { test(t, pypy) })
	}
	if len(seen) == 0 {
		t.Skip("no PyPy here")
	}
}

// EachRuby runs a test with each Ruby that there is of a version that is known, and with the flags
// by which all is compiled, where it can.
func EachRuby(t *testing.T, test func(t *testing.T, ruby Program, flags ...string)) {
	t.Helper()
	withRubies(t, rubies(t), test)
}

// SomeRuby is EachRuby of what differs little between them: see Some.
func SomeRuby(t *testing.T, test func(t *testing.T, ruby Program, flags ...string)) {
	t.Helper()
	withRubies(t, Some(rubies(t)), test)
}

func withRubies(t *testing.T, rubies []versionedProgram, test func(t *testing.T, ruby Program, flags ...string)) {
	t.Helper()
	for _, ruby := range rubies {
		t.Run(ruby.version, func(t *testing.T) { test(t, ruby.Program) })
		yjit := []string{"--yjit", "--yjit-call-threshold=1"}
		if _, err := ruby.ask(append(yjit, "-e", "exit RUBY_DESCRIPTION.include?('YJIT')")...); err == nil {
			t.Run(filepath.Join(ruby.version, "compiled"), func(t *testing.T) { test(t, ruby.Program, yjit...) })
		}
	}
}

func rubies(t *testing.T) (found []versionedProgram) {
	t.Helper()
	programs := append(Programs("/usr/bin/ruby"), Programs("ruby", "usr/bin/ruby[0-9].[0-9]")...)
	wantElsewhere(t, programs)
	seen := map[string]bool{}
	for _, ruby := range programs {
		out, err := ruby.ask("-e", "print RUBY_VERSION[0, 3], ' ', File.realpath(RbConfig.ruby)")
		version, _, _ := strings.Cut(out, " ")
		is := ruby.Root + out
		if err != nil || !slices.Contains([]string{"2.7", "3.0", "3.1", "3.2", "3.3", "3.4"}, version) || seen[is] {
			continue
		}
		seen[is] = true
		found = append(found, versionedProgram{ruby, filepath.Join(version, ruby.Name())})
	}
	if len(found) == 0 {
		t.Skip("no Ruby of a version that is known here")
	}
	return found
}

// Erlang is a runtime system of Erlang: the program that the script erl runs, which needs others itself.
type Erlang struct{ Program }

// Command is the runtime system with arguments.
func (e Erlang) Command(args ...string) []string {
	environment := []string{"env", "ROOTDIR=/usr/lib/erlang", "BINDIR=" + filepath.Dir(e.Path), "EMU=beam", "PROGNAME=erl"}
	return append(environment, e.Program.Command(append([]string{"-noshell", "-noinput"}, args...)...)...)
}

// Emulated is the runtime system for AArch64 with arguments, to be started under an emulator: the program that what Command
// runs executes in the end, and its environment. What that executes itself has to be under the emulator as well.
func (e Erlang) Emulated(t *testing.T, args ...string) (command, environment []string) {
	t.Helper()
	bin := t.TempDir()
	for _, name := range []string{"erl_child_setup", "inet_gethost"} {
		helper := fmt.Sprintf("#!/bin/sh\nexec qemu-aarch64 -L '%s' '%s' \"$@\"\n", e.Root, filepath.Join(e.Root, filepath.Dir(e.Path), name))
		if err := os.WriteFile(filepath.Join(bin, name), []byte(helper), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(e.Root, "usr/lib/erlang")
	var flags []string
	for len(args) > 1 && strings.HasPrefix(args[0], "+") {
		flags = append(flags, "-"+args[0][1:], args[1])
		args = args[2:]
	}
	command = append([]string{filepath.Join(e.Root, filepath.Dir(e.Path), "beam.smp")}, flags...)
	command = append(command, "--", "-root", root, "-bindir", bin, "-progname", "erl", "--", "-home", bin, "--", "-noshell", "-noinput")
	return append(command, args...), []string{"ROOTDIR=" + root, "BINDIR=" + bin, "EMU=beam", "PROGNAME=erl"}
}

// EachErlang runs a test with each version of Erlang that there is.
func EachErlang(t *testing.T, test func(t *testing.T, erlang Erlang)) {
	t.Helper()
	for _, program := range erlangs(t) {
		t.Run(program.Name(), func(t *testing.T) { test(t, Erlang{program}) })
	}
}

// SomeErlang is EachErlang of what differs little between them: see Some.
func SomeErlang(t *testing.T, test func(t *testing.T, erlang Erlang)) {
	t.Helper()
	for _, program := range Some(erlangs(t)) {
		t.Run(program.Name(), func(t *testing.T) { test(t, Erlang{program}) })
	}
}

func erlangs(t *testing.T) []Program {
	t.Helper()
	const path = "usr/lib/erlang/erts-*/bin/erlexec"
	var here string
	if paths, _ := filepath.Glob("/" + path); len(paths) > 0 {
		here = paths[0]
	}
	programs := Programs(here, path)
	if len(programs) == 0 {
		Lacks(t, "no Erlang here")
	}
	return programs
}

// Compile compiles a source. It returns the directory of the module, as the runtime system sees it.
func (e Erlang) Compile(t *testing.T, source string) (dir string) {
	t.Helper()
	code, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	outside, dir := e.TempDir(t)
	name := filepath.Base(source)
	if err := os.WriteFile(filepath.Join(outside, name), code, 0o644); err != nil {
		t.Fatal(err)
	}
	command := e.Command("-eval", fmt.Sprintf(`{ok, _} = compile:file("%s/%s", [{outdir, "%[1]s"}]), halt().`, dir, name))
	Run(t, exec.Command(command[0], command[1:]...))
	return dir
}

// EachPerl runs a test with each Perl that there is.
func EachPerl(t *testing.T, test func(t *testing.T, perl Program)) {
	t.Helper()
	eachVersion(t, perls(t), test)
}

// SomePerl is EachPerl of what differs little between them: see Some.
func SomePerl(t *testing.T, test func(t *testing.T, perl Program)) {
	t.Helper()
	eachVersion(t, Some(perls(t)), test)
}

func perls(t *testing.T) (found []versionedProgram) {
	t.Helper()
	programs := Programs("perl", "usr/bin/perl")
	wantElsewhere(t, programs)
	for _, perl := range programs {
		version, err := perl.ask("-e", `print substr $^V, 1`)
		if err != nil {
			t.Errorf("%s: %v", perl.Path, err)
			continue
		}
		found = append(found, versionedProgram{perl, filepath.Join(version, perl.Name())})
	}
	if len(found) == 0 {
		t.Skip("no Perl here")
	}
	return found
}

// EachLua runs a test with each Lua that there is of a version that is known. It is not among what has to be in other
// file systems.
func EachLua(t *testing.T, test func(t *testing.T, lua Program)) {
	t.Helper()
	eachVersion(t, luas(t), test)
}

// SomeLua is EachLua of what differs little between them, but for the first: that and, see Some, another one.
func SomeLua(t *testing.T, test func(t *testing.T, lua Program)) {
	t.Helper()
	all := luas(t)
	eachVersion(t, append(all[:1:1], Some(all[1:])...), test)
}

func luas(t *testing.T) (found []versionedProgram) {
	t.Helper()
	for _, version := range []string{"5.1", "5.2", "5.3", "5.4", "5.5"} {
		for i, lua := range Programs("lua"+version, "usr/bin/lua"+version) {
			if i == 0 || Long() {
				found = append(found, versionedProgram{lua, filepath.Join(version, lua.Name())})
			}
		}
	}
	if len(found) == 0 {
		Lacks(t, "no Lua of a version that is known here")
	}
	return found
}

// EachBash runs a test with each bash that there is, of those of other releases with one, see Some.
func EachBash(t *testing.T, test func(t *testing.T, bash Program)) {
	t.Helper()
	var found []versionedProgram
	for _, bash := range Programs("bash", "usr/bin/bash") {
		if version, err := bash.ask("-c", "echo ${BASH_VERSION%.*}"); err == nil {
			found = append(found, versionedProgram{bash, filepath.Join(strings.TrimSpace(version), bash.Name())})
		}
	}
	if len(found) == 0 {
		Lacks(t, "no bash here")
		return
	}
	eachVersion(t, append(found[:1:1], Some(found[1:])...), test)
}

// EachR runs a test with each R that there is.
func EachR(t *testing.T, test func(t *testing.T, rscript Program)) {
	t.Helper()
	all := Programs("Rscript", "usr/bin/Rscript")
	for _, rscript := range all {
		t.Run(rscript.Name(), func(t *testing.T) { test(t, rscript) })
	}
	if len(all) == 0 {
		Lacks(t, "no R here")
	}
}

// EachNode runs a test with each version of Node: those that SWBPF_NODES lists, as PATH does directories, and the
// machine's.
func EachNode(t *testing.T, test func(t *testing.T, node string)) {
	t.Helper()
	for _, node := range nodes(t) {
		t.Run(node.version, func(t *testing.T) { test(t, node.Path) })
	}
}

// SomeNode is EachNode of what differs little between them: see Some.
func SomeNode(t *testing.T, test func(t *testing.T, node string)) {
	t.Helper()
	for _, node := range Some(nodes(t)) {
		t.Run(node.version, func(t *testing.T) { test(t, node.Path) })
	}
}

// StrippedNode makes a Node without symbols, as Debian's is, of another one.
func StrippedNode(t *testing.T, node string) string {
	t.Helper()
	Needs(t, "strip")
	stripped := filepath.Join(t.TempDir(), "app") // applications of one file have Node in them
	Run(t, exec.Command("strip", "-o", stripped, node))
	return stripped
}

func nodes(t *testing.T) (found []versionedProgram) {
	t.Helper()
	paths := filepath.SplitList(os.Getenv("SWBPF_NODES"))
	if path, err := exec.LookPath("node"); err == nil {
		paths = append(paths, path)
	}
	seen := map[string]bool{}
	for _, node := range paths {
		out, err := Program{Path: node}.ask("--version")
		if err != nil {
			t.Errorf("%s: %v", node, err)
		}
		version := strings.TrimSpace(out)
		major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
		if !slices.Contains([]string{"18", "20", "22", "24", "25", "26"}, major) || seen[version] {
			continue
		}
		seen[version] = true
		found = append(found, versionedProgram{Program{Path: node}, version})
	}
	if len(found) == 0 {
		t.Skip("no Node of a version that is known here")
	}
	return found
}

// EachDeno runs a test with each Deno that SWBPF_DENO lists, as PATH does directories.
func EachDeno(t *testing.T, test func(t *testing.T, deno string)) {
	t.Helper()
	denos := filepath.SplitList(os.Getenv("SWBPF_DENO"))
	if len(denos) == 0 {
		t.Skip("no Deno: SWBPF_DENO names none")
	}
	t.Setenv("DENO_NO_UPDATE_CHECK", "1")
	for _, deno := range denos {
		out, err := Program{Path: deno}.ask("--version")
		if err != nil {
			t.Errorf("%s: %v", deno, err)
			continue
		}
		version, _, _ := strings.Cut(out, " (")
		t.Run(version, func(t *testing.T) { test(t, deno) })
	}
}

// PHP is a PHP of a version that is known.
type PHP struct {
	Program
	Version int // as PHP has it in PHP_VERSION_ID: 80200 is 8.2
	flags   []string
}

// Command is PHP with arguments, and with no settings but those that these have.
func (p PHP) Command(args ...string) []string {
	return p.Program.Command(append(slices.Clone(p.flags), args...)...)
}

// EachPHP runs a test with each PHP that there is of a version that is known.
func EachPHP(t *testing.T, test func(t *testing.T, php PHP)) {
	t.Helper()
	for _, php := range phps(t) {
		t.Run(php.name(), func(t *testing.T) { test(t, php) })
	}
}

// SomePHP is EachPHP of what differs little between them: see Some.
func SomePHP(t *testing.T, test func(t *testing.T, php PHP)) {
	t.Helper()
	for _, php := range Some(phps(t)) {
		t.Run(php.name(), func(t *testing.T) { test(t, php) })
	}
}

func (p PHP) name() string { return fmt.Sprintf("%d.%d", p.Version/10000, p.Version/100%100) }

func phps(t *testing.T) (found []PHP) {
	t.Helper()
	programs := Programs("php", "usr/bin/php[78].[0-9]")
	wantElsewhere(t, programs)
	seen := map[int]bool{}
	for _, program := range programs {
		php := PHP{Program: program}
		for _, flags := range [][]string{
			nil, {"-d", "zend_extension=opcache"}, {"-d", "zend_extension=opcache", "-d", "extension=json"},
		} {
			php.flags = append([]string{"-n", "-d", "display_errors=stderr"}, flags...)
			out, _ := php.ask(append(php.flags, "-r", `echo function_exists("json_encode") && function_exists("opcache_get_status") ? PHP_VERSION_ID : 0;`)...)
			if php.Version, _ = strconv.Atoi(out); php.Version != 0 {
				break
			}
		}
		if minor := php.Version / 100; minor < 704 || minor > 805 || seen[minor] {
			continue
		}
		seen[php.Version/100] = true
		found = append(found, php)
	}
	if len(found) == 0 {
		t.Skip("no PHP of a version that is known here")
	}
	return found
}

// Modes are settings with which PHP interprets, with the passes of opcache and without, and with
// which it compiles what is run often, and all, from 8.0 on.
func (p PHP) Modes() map[string][]string {
	opcache := []string{"-d", "opcache.enable_cli=1", "-d", "opcache.file_update_protection=0", "-d"}
	modes := map[string][]string{
		"interpreted": {"-d", "opcache.enable_cli=0"},
		"optimised":   append(slices.Clone(opcache), "opcache.jit=off"),
	}
	if p.Version >= 80000 {
		compiles := append(opcache, "opcache.jit_buffer_size=32M", "-d")
		modes["function"] = append(slices.Clone(compiles), "opcache.jit=function")
		modes["tracing"] = append(slices.Clone(compiles), "opcache.jit=tracing", "-d", "opcache.jit_hot_func=2", "-d", "opcache.jit_hot_loop=2")
	}
	return modes
}
