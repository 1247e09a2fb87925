package variables_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	swbpf "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// buildDir holds the programs built by this run, and built where, by command and sources.
var (
	buildDir string
	built    = map[string]string{}
)

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "swbpf-variables"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(code)
}

// compile builds a program of testdata/walk with a compiler command, once; more are
// other sources of it. Each test has split files of its own, which it may change.
func compile(t testing.TB, source, command string, more ...string) string {
	t.Helper()
	key := fmt.Sprint(command, more, source)
	if strings.Contains(command, "-gsplit-dwarf") {
		return compileInto(t, t.TempDir(), source, command, more)
	}
	if built[key] == "" {
		dir, err := os.MkdirTemp(buildDir, "")
		if err != nil {
			t.Fatal(err)
		}
		built[key] = compileInto(t, dir, source, command, more)
	}
	return built[key]
}

func compileInto(t testing.TB, dir, source, command string, more []string) string {
	t.Helper()
	args := strings.Fields(command)
	testenv.Needs(t, args[0])
	out := filepath.Join(dir, "target")
	args = append(args, "-o", out)
	for _, s := range append(more, source) {
		src, err := filepath.Abs(filepath.Join("..", "testdata", "walk", s))
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, src)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = filepath.Dir(out)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	testenv.Run(t, cmd)
	return out
}

// start runs a program until it stands still, having said "ready".
func start(t testing.TB, path string) (pid int, said []string) {
	t.Helper()
	cmd := exec.Command(path)
	_, out := testenv.Start(t, cmd)
	for s := bufio.NewScanner(out); s.Scan(); {
		if s.Text() == "ready" {
			waitBlocked(t, cmd.Process.Pid)
			return cmd.Process.Pid, said
		}
		said = append(said, s.Text())
	}
	t.Fatalf("%s ended", path)
	return 0, nil
}

// waitBlocked waits until a thread of a program reads its input.
func waitBlocked(t testing.TB, pid int) {
	t.Helper()
	for range 120000 {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		if err != nil || len(tasks) == 0 {
			t.Fatalf("no threads: %v", err)
		}
		for _, task := range tasks {
			b, err := os.ReadFile(task)
			if os.IsPermission(err) {
				testenv.Lacks(t, "%v", err)
			}
			if s := string(b); strings.HasPrefix(s, "0 0x0 ") || strings.HasPrefix(s, "3 0x0 ") || strings.HasPrefix(s, "63 0x0 ") { // read(0, ...
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("the program does not come to a stand")
}

// walkBlocked runs look on the walk of the initial thread of a program where it
// waits for input, as gdb will see it: after a stop, a thread is at its system
// call again before it is in it.
func walkBlocked(t testing.TB, pid int, look func(s *swbpf.ThreadStack)) {
	t.Helper()
	for there := false; !there; {
		waitBlocked(t, pid)
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(b))
		_, err = swbpf.WalkStopped(pid, swbpf.WalkOptions{}, func(ps *swbpf.ProcessStacks) {
			s := &ps.Stacks[0]
			if s.Err != nil || len(s.Frames) == 0 {
				t.Fatalf("%d frames, %v", len(s.Frames), s.Err)
			}
			if there = fields[len(fields)-1] == fmt.Sprintf("%#x", s.Frames[0].PC()); there {
				look(s)
			}
		})
		if err != nil {
			testenv.Lacks(t, "%v", err)
		}
	}
	waitBlocked(t, pid)
}

// gdbFrame is a frame as gdb shows it.
type gdbFrame struct {
	function     string
	args, locals []string // "name = value"
}

// gdbShow is Python for gdb: show() writes all variables of all frames, as "bt
// full" does.
const gdbShow = `
import gdb
for c in ("set width 0", "set height 0", "set pagination off", "set print repeats unlimited", "set print elements 200", "set print static-members off",
          "set print max-depth unlimited", "set print entry-values no", "disable pretty-printer", "set print frame-arguments all", "set print object off", "set backtrace past-main on", "set host-charset UTF-8"):
    gdb.execute(c)
def show():
    f = gdb.newest_frame()
    while f is not None:
        if f.type() != gdb.TAILCALL_FRAME:
            f.select()
            print("F\t" + str(f.name()))
            for kind in ("args", "locals"):
                try:
                    for line in gdb.execute("info " + kind, to_string=True).splitlines():
                        print(kind + "\t" + line)
                except gdb.error as e:
                    print("error\t" + str(e))
            # Constants of some forms are known, but not listed.
            try:
                b = f.block()
            except RuntimeError:
                b = None
            while b is not None:
                for s in b:
                    if s.addr_class == gdb.SYMBOL_LOC_CONST_BYTES:
                        print("locals\t" + s.name + " = " + gdb.execute("output " + s.name, to_string=True))
                if b.function is not None:
                    break
                b = b.superblock
        f = f.older()
`

// runGDB runs gdb with a script in Python after show() is defined, and returns
// what it prints.
func runGDB(t testing.TB, script string, args ...string) (out string) {
	t.Helper()
	testenv.Needs(t, "gdb")
	path := filepath.Join(t.TempDir(), "show.py")
	if err := os.WriteFile(path, []byte(gdbShow+script), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("gdb", append([]string{"-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load no",
		"-iex", "set index-cache directory " + filepath.Join(buildDir, "index"), "-iex", "set index-cache enabled on"}, append(args, "-x", path)...)...)
	cmd.Dir = filepath.Dir(path)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "HOME="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("gdb: %v\n%s", err, stderr.String())
	}
	if stdout.Len() == 0 {
		t.Fatalf("gdb shows nothing:\n%s", stderr.String())
	}
	return stdout.String()
}

// gdbFrames has gdb show the frames of a process or core file.
func gdbFrames(t testing.TB, args ...string) []gdbFrame {
	t.Helper()
	return parseFrames(t, runGDB(t, "show()\n", args...))
}

// parseFrames reads what show() writes.
func parseFrames(t testing.TB, out string) (frames []gdbFrame) {
	t.Helper()
	for _, line := range strings.Split(out, "\n") {
		kind, rest, ok := strings.Cut(line, "\t")
		switch {
		case !ok:
		case kind == "F":
			frames = append(frames, gdbFrame{function: rest})
		case kind == "error":
			t.Errorf("gdb: %s", rest)
		case rest == "No locals." || rest == "No arguments." || strings.HasPrefix(rest, "No symbol table"):
		case kind == "args":
			f := &frames[len(frames)-1]
			f.args = append(f.args, rest)
		case kind == "locals":
			f := &frames[len(frames)-1]
			f.locals = append(f.locals, rest)
		}
	}
	if len(frames) == 0 {
		t.Fatalf("gdb shows no frames:\n%s", out)
	}
	return frames
}

// ourFrames reads the same by the library.
func ourFrames(t testing.TB, w *unwind.Walker, walk []unwind.Frame) (frames []gdbFrame) {
	t.Helper()
	return ourFramesAs(t, w, walk, variables.Format{Elements: 200, Depth: 50, Repeats: -1, Raw: true})
}

// symbolText makes what writes an address as gdb does.
func symbolText(at func(addr uint64) (procstate.Symbol, bool)) func(addr uint64) string {
	return func(addr uint64) string {
		s, ok := at(addr)
		switch {
		case !ok:
			return ""
		case s.Offset == 0:
			return s.Name
		}
		return fmt.Sprintf("%s+%d", s.Name, s.Offset)
	}
}

func ourFramesAs(t testing.TB, w *unwind.Walker, walk []unwind.Frame, format variables.Format) (frames []gdbFrame) {
	t.Helper()
	r := swbpf.Variables(w)
	format.Code = symbolText(w.SymbolLookup().SymbolAt)
	format.Data = symbolText(w.SymbolLookup().(*symbols.Lookup).ObjectAt)
	for i := range walk {
		fns, err := r.Functions(&walk[i])
		if err != nil {
			s, _ := w.Name(&walk[i])
			frames = append(frames, gdbFrame{function: s.Name})
			continue
		}
		for _, fn := range fns {
			f := gdbFrame{function: fn.Name}
			for _, v := range fn.Variables {
				text := ""
				if value, err := r.Value(walk, i, v); err != nil {
					text = variables.Unknown(err)
				} else {
					text = value.Format(format)
				}
				line := v.Name + " = " + text
				if v.Parameter {
					f.args = append(f.args, line)
				} else {
					f.locals = append(f.locals, line)
				}
			}
			frames = append(frames, f)
		}
	}
	return frames
}

var (
	params = regexp.MustCompile(`<(\w+)\([^)>]*\)>`)
	method = regexp.MustCompile(`\([^()=]* \([^()=]*::\*\)\([^()=]*\)( const)?\) 0x`)
	// gdb writes names of types anew, with const after what is constant.
	typeName = regexp.MustCompile(`\bconst | const\b| ([*&])`)
	number   = regexp.MustCompile(`-?(inf|nan\([^)]*\)|[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?)`)
)

// same reports whether two texts mean the same value: gdb writes floating
// point numbers with more digits than it takes, and some of the zero bytes
// after a string.
func same(gdb, ours string) bool {
	gdb = params.ReplaceAllString(gdb, "<$1>")
	gdb = method.ReplaceAllString(gdb, "0x")
	gdb, ours = typeName.ReplaceAllString(gdb, "$1"), typeName.ReplaceAllString(ours, "$1")
	if gdb == ours || sameButCut(gdb, ours) {
		return true
	}
	a, b := number.FindAllString(gdb, -1), number.FindAllString(ours, -1)
	if len(a) != len(b) || number.ReplaceAllString(gdb, "#") != number.ReplaceAllString(ours, "#") {
		return false
	}
	for i := range a {
		if a[i] != b[i] && !sameNumber(a[i], b[i]) {
			return false
		}
	}
	return true
}

// sameButCut allows for what gdb leaves out: the character before one that the
// end of an array cuts.
func sameButCut(gdb, ours string) bool {
	const mark = `", <incomplete sequence `
	parts := strings.Split(gdb, mark)
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	pattern := strings.Join(parts, `(\\[0-7]{3}|\\.|[^\\])?`+mark)
	return len(parts) > 1 && regexp.MustCompile("^"+pattern+"$").MatchString(ours)
}

func sameNumber(gdb, ours string) bool {
	if !strings.ContainsAny(gdb, ".e") {
		return false // an integer
	}
	x, err := strconv.ParseFloat(gdb, 64)
	y, err2 := strconv.ParseFloat(ours, 64)
	return err == nil && err2 == nil && (x == y || float32(x) == float32(y) && len(gdb) < 15)
}

// explained are the differences from gdb 13 that are not ours.
var explained = []struct{ command, variable, gdb, ours, why string }{
	{"", "", "^<error reading variable", "", "what gdb cannot read"},
	{"clang", "", "", "<not saved>", "gdb shows the register of another frame: a call has overwritten it since"},
	{"clang", "", "<synthetic pointer>|^\"t\\\\000", "<optimized out>", "the pieces end before the variable does"},
	{"clang", "rest", "^4$", "^3$", "gdb shows the last of equal names for all of them"},
	{"dwp", "", "^<synthetic pointer>: {", "^<synthetic pointer>: <.*: bad DWARF>$", "g++ does not say in a split file which variable is pointed to"},
	{"++", "null", "<incomplete type>", "^nullptr$", "gdb does not know the size of nullptr_t"},
}

// compare compares the frames with those of gdb and returns how many variables
// are the same.
func compare(t *testing.T, gdb, ours []gdbFrame) (equal int) {
	t.Helper()
	if len(gdb) != len(ours) {
		t.Errorf("%d frames, gdb has %d", len(ours), len(gdb))
	}
	for i := range min(len(gdb), len(ours)) {
		g, o := &gdb[i], &ours[i]
		equal += compareLists(t, fmt.Sprintf("frame %d %s arguments", i, g.function), g.args, o.args)
		equal += compareLists(t, fmt.Sprintf("frame %d %s locals", i, g.function), g.locals, o.locals)
	}
	return equal
}

func compareLists(t *testing.T, where string, gdb, ours []string) (equal int) {
	t.Helper()
	if len(gdb) > len(ours) {
		gdb = withoutRepeats(gdb)
	}
	if len(gdb) != len(ours) {
		t.Errorf("%s: %d, gdb has %d\n gdb  %s\n ours %s", where, len(ours), len(gdb), strings.Join(gdb, "\n      "), strings.Join(ours, "\n      "))
		return 0
	}
	// gdb has the variables of some blocks in the order of a hash table.
	slices.Sort(gdb)
	slices.Sort(ours)
	for i := range gdb {
		if same(gdb[i], ours[i]) {
			equal++
		} else if !isExplained(t.Name(), gdb[i], ours[i]) {
			t.Errorf("%s:\n gdb  %s\n ours %s", where, gdb[i], ours[i])
		}
	}
	return equal
}

// withoutRepeats leaves out what gdb shows a second time, without a value: the
// variables of a block that does not say which one it stems from.
func withoutRepeats(lines []string) (out []string) {
	for i, line := range lines {
		name, unknown := strings.CutSuffix(line, " = <optimized out>")
		repeated := func(o string) bool { return strings.HasPrefix(o, name+" = ") }
		if unknown && (slices.ContainsFunc(out, repeated) || slices.ContainsFunc(lines[i+1:], repeated)) {
			continue
		}
		out = append(out, line)
	}
	return out
}

func isExplained(test, gdb, ours string) bool {
	name, g, _ := strings.Cut(gdb, " = ")
	_, o, _ := strings.Cut(ours, " = ")
	for _, e := range explained {
		if strings.Contains(test, e.command) && (e.variable == "" || e.variable == name) &&
			regexp.MustCompile(e.gdb).MatchString(g) && regexp.MustCompile(e.ours).MatchString(o) {
			return true
		}
	}
	return false
}

// TestGDB compares every variable of every frame of programs in C and C++,
// from several compilers, with what gdb says of the same stopped process.
func TestGDB(t *testing.T) {
	type program struct{ source, command string }
	programs := []program{
		{"vars.c", "gcc -g -O0"},
		{"vars.c", "gcc -gdwarf-4 -O2"},
		{"vars.c", "gcc -gdwarf-5 -gsplit-dwarf -O2"},
		{"vars.c", "gcc -g -O2 -m32"},
		{"vars.c", "gcc -g -O2 -gz"},
		{"vars.c", "clang-19 -gdwarf-5 -O2"},
		{"vars.cc", "g++ -g -O0"},
		{"vars.cc", "g++ -gdwarf-5 -O1 -fdebug-types-section"},
		{"vars.cc", "g++ -gdwarf-4 -O2 -fdebug-types-section -gsplit-dwarf"},
		{"vars.cc", "clang++-19 -gdwarf-5 -O2"},
	}
	if testenv.Long() {
		programs = append(programs, []program{
			{"vars.c", "gcc -gdwarf-5 -O2"},
			{"vars.c", "gcc -gdwarf-4 -gsplit-dwarf -O2"},
			{"vars.c", "clang-19 -gdwarf-5 -O0"},
			{"vars.cc", "g++ -gdwarf-5 -O2"},
			{"vars.cc", "g++ -gdwarf-4 -O1 -fdebug-types-section"},
		}...)
	}
	for _, c := range programs {
		t.Run(strings.ReplaceAll(c.source+" "+c.command, " ", "_"), func(t *testing.T) {
			if strings.Contains(c.command, "-m32") {
				testenv.Needs32Bit(t)
			}
			pid, _ := start(t, compile(t, c.source, c.command))
			var ours []gdbFrame
			walkBlocked(t, pid, func(s *swbpf.ThreadStack) { ours = ourFrames(t, s.Walker, s.Frames) })
			if equal := compare(t, gdbFrames(t, "-p", strconv.Itoa(pid)), ours); equal < 55 {
				t.Errorf("only %d variables are the same", equal)
			}
		})
	}
}

// TestPackages compares the variables of split units, and of type units, that
// are together in one file, with what gdb says of the same code with its debug
// information whole: gdb 13 does not survive packages of DWARF 5.
func TestPackages(t *testing.T) {
	for _, c := range []struct{ command, pack string }{
		{"g++ -gdwarf-4 -O2", "dwp"},
		{"g++ -gdwarf-4 -O0", "llvm-dwp-19"},
		{"g++ -gdwarf-5 -O2", "llvm-dwp-19"},
		{"clang++-19 -gdwarf-5 -O0", "llvm-dwp-19"},
	} {
		if strings.HasPrefix(c.command, "g++") && c.pack != "dwp" && !testenv.Long() {
			continue
		}
		t.Run(strings.ReplaceAll(c.command+" "+c.pack, " ", "_"), func(t *testing.T) {
			testenv.Needs(t, c.pack)
			whole := compile(t, "vars.cc", c.command)
			path := compile(t, "vars.cc", c.command+" -gsplit-dwarf -fdebug-types-section")
			cmd := exec.Command(c.pack, "-e", path, "-o", path+".dwp")
			cmd.Dir = filepath.Dir(path)
			testenv.Run(t, cmd)
			parts, err := filepath.Glob(filepath.Join(cmd.Dir, "*.dwo"))
			if err != nil || len(parts) == 0 {
				t.Fatalf("split files %v: %v", parts, err)
			}
			for _, part := range parts {
				if err := os.Remove(part); err != nil {
					t.Fatal(err)
				}
			}
			pid, _ := start(t, path)
			var ours []gdbFrame
			walkBlocked(t, pid, func(s *swbpf.ThreadStack) { ours = ourFrames(t, s.Walker, s.Frames) })
			if err := os.Remove(path + ".dwp"); err != nil { // which gdb would find
				t.Fatal(err)
			}
			if equal := compare(t, gdbFrames(t, "-iex", "set exec-file-mismatch off", whole, "-p", strconv.Itoa(pid)), ours); equal < 55 {
				t.Errorf("only %d variables are the same", equal)
			}
		})
	}
}

// TestTypesOfOtherUnits compares variables whose types are but declared in the
// unit of the function.
func TestTypesOfOtherUnits(t *testing.T) {
	commands := []string{"clang++-19 -gdwarf-4 -O0 -gz", "g++ -g -O0 -femit-struct-debug-baseonly",
		"clang++-19 -gdwarf-5 -gsplit-dwarf -O0", "g++ -gdwarf-4 -gsplit-dwarf -O0 -femit-struct-debug-baseonly"}
	if testenv.Long() {
		commands = append(commands, "clang++-19 -gdwarf-5 -O0") // with which TestDeferTypes has them
	}
	for _, command := range commands {
		t.Run(strings.ReplaceAll(command, " ", "_"), func(t *testing.T) {
			pid, _ := start(t, compile(t, "varsunits.cc", command, "varsunits_types.cc"))
			var ours []gdbFrame
			walkBlocked(t, pid, func(s *swbpf.ThreadStack) { ours = ourFrames(t, s.Walker, s.Frames) })
			if equal := compare(t, gdbFrames(t, "-p", strconv.Itoa(pid)), ours); equal < 7 {
				t.Errorf("only %d variables are the same", equal)
			}
		})
	}
}

// TestDeferTypes reads no other units while that is to be left, and all that
// was left when it is not any more.
func TestDeferTypes(t *testing.T) {
	pid, _ := start(t, compile(t, "varsunits.cc", "clang++-19 -g -O0", "varsunits_types.cc"))
	walkBlocked(t, pid, func(s *swbpf.ThreadStack) {
		lookup, ok := s.Walker.SymbolLookup().(*symbols.Lookup)
		if !ok {
			t.Fatal("no debug information")
		}
		incomplete := func() bool {
			return strings.Contains(fmt.Sprint(ourFrames(t, s.Walker, s.Frames)), "<incomplete type>")
		}
		if lookup.Symbolizer().ReadTypes() {
			t.Error("types were left before anybody asked")
		}
		lookup.Symbolizer().DeferTypes()
		if !incomplete() {
			t.Error("nothing was left")
		}
		if !lookup.Symbolizer().ReadTypes() {
			t.Error("it is not said that something was left")
		}
		if incomplete() {
			t.Error("what was left was not read")
		}
	})
}

// TestKinds compares values of every kind with gdb's, as they are written by
// default.
func TestKinds(t *testing.T) {
	commands := []string{"gcc -gdwarf-5 -O0", "gcc -gdwarf-3 -gstrict-dwarf -O0", "gcc -g -O2", "gcc -g -O0 -m32 -msse2", "clang-19 -g -O0"}
	if testenv.Long() {
		commands = append(commands, "gcc -gdwarf-4 -O0")
	}
	for _, command := range commands {
		t.Run(strings.ReplaceAll(command, " ", "_"), func(t *testing.T) {
			if strings.Contains(command, "-m32") {
				testenv.Needs32Bit(t)
			}
			pid, _ := start(t, compile(t, "varskinds.c", command))
			var ours []gdbFrame
			walkBlocked(t, pid, func(s *swbpf.ThreadStack) {
				ours = ourFramesAs(t, s.Walker, s.Frames, variables.Format{Depth: 20})
			})
			const settings = "gdb.execute('set print repeats 10')\ngdb.execute('set print max-depth 20')\nshow()\n"
			if equal := compare(t, parseFrames(t, runGDB(t, settings, "-p", strconv.Itoa(pid))), ours); equal < 65 {
				t.Errorf("only %d variables are the same", equal)
			}
		})
	}
}
