package steppers

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// buildRegistered builds a program that loads object files and registers them, and
// the object files.
func buildRegistered(t *testing.T) (args []string) {
	t.Helper()
	if hostArch := procstate.HostArch(); hostArch != procstate.AMD64 {
		t.Skip("the program's loader knows relocations of x86-64 only")
	}
	testenv.Needs(t, "gcc", "g++")
	dir := t.TempDir()
	sources, err := filepath.Abs(filepath.Join("..", "oracle", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	args = []string{filepath.Join(dir, "program")}
	build := func(cmd ...string) {
		c := exec.Command(cmd[0], cmd[1:]...)
		c.Dir = sources
		testenv.Run(t, c)
	}
	build("g++", "-O2", "-o", args[0], "gdbjit.cc")
	for _, opt := range []string{"-O2", "-O1"} {
		object := filepath.Join(dir, "part"+opt+".o")
		build("gcc", "-w", "-g", opt, "-c", "-fPIC", "-fvisibility=hidden", "-fno-builtin", "-fexceptions", "-fno-stack-protector", "-o", object, "jitpart.c")
		args = append(args, object)
	}
	return args
}

// Where generated code has pushed the address that a function is to return to, and is
// about to jump there, its frame is a word larger than its object file says.
func TestGeneratedCodePushes(t *testing.T) {
	if procstate.HostArch() != procstate.AMD64 {
		t.Skip("the program makes code of x86-64 only")
	}
	testenv.Needs(t, "gcc", "gdb")
	dir := t.TempDir()
	program, object, core := filepath.Join(dir, "program"), filepath.Join(dir, "object.o"), filepath.Join(dir, "core")
	for _, args := range [][]string{{"-O1", "-o", program, "buffer.c"}, {"-c", "-o", object, "buffer.s"}} {
		cmd := exec.Command("gcc", args...)
		cmd.Dir = filepath.Join("..", "oracle", "testdata")
		testenv.Run(t, cmd)
	}
	script := filepath.Join(dir, "script")
	steps := "break getppid\nrun\nfinish\nwhile *(unsigned short *)$pc != 0x25ff || (unsigned long)$pc < 0x700000000000\nstepi\nend\ngenerate-core-file " + core + "\nkill\n"
	if err := os.WriteFile(script, []byte(steps), 0o644); err != nil {
		t.Fatal(err)
	}
	gdb := exec.Command("gdb", "-q", "-batch", "-nx", "-iex", "set debuginfod enabled off", "-x", script, "--args", program, object, "jumps")
	testenv.Run(t, gdb)
	c, err := procstate.OpenCore(core, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	names := symbols.New(symbols.Options{})
	defer names.Close()
	w := unwind.NewWalker(c, Default(unwind.NewTables()), names.Process(c))
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil || len(frames) < 3 {
		t.Fatalf("%d frames and %v", len(frames), err)
	}
	const frameSize = 1216 // by buffer.s
	caller := &frames[1]
	if name, _ := w.Name(caller); name.Name != "main" || caller.SP() != frames[0].SP()+8+frameSize || w.Stepper(caller).Name() != "jit" {
		t.Errorf("the caller is %s, SP %#x above, by %s", name.Name, caller.SP()-frames[0].SP(), w.Stepper(caller).Name())
	}
	// Where code had another frame than is told, what is found in place of a return address is none.
	for _, above := range []uint64{0, 24, 32, 64} {
		in, out := frames[0], unwind.Frame{}
		in.SetSP(procstate.AMD64, in.SP()+above)
		v, _ := w.Step(&in, &out)
		if found := v == unwind.Success && w.Stepper(&out).Name() == "jit"; found != (above == 0) {
			t.Errorf("with SP %d bytes higher: %v, %#x", above, v, out.PC())
		}
	}
}

// What gdb says of a process that is about to throw from registered code, is what
// a core file of that moment says: addresses, functions and lines.
func TestRegisteredCode(t *testing.T) {
	testenv.Needs(t, "gdb")
	args := buildRegistered(t)
	core := filepath.Join(t.TempDir(), "core")
	gdb := exec.Command("gdb", append([]string{"-q", "-batch", "-nx", "-iex", "set debuginfod enabled off",
		"-ex", "set print address on", "-ex", "set print frame-info location-and-address", "-ex", "break raise_it", "-ex", "run", "-ex", "backtrace -frame-info location-and-address",
		"-ex", "generate-core-file " + core, "-ex", "kill", "--args"}, args...)...)
	gdb.Env = append(os.Environ(), "LC_ALL=C")
	out, err := gdb.CombinedOutput()
	if err != nil {
		t.Fatalf("gdb: %v\n%s", err, out)
	}
	type frame struct {
		function, place string
	}
	var want []frame
	for line := range strings.Lines(string(out)) {
		if m := regexp.MustCompile(`^#\d+ +0x[0-9a-f]+ in (\w+).*?(?: at .*?([\w.]+:\d+))?$`).FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			want = append(want, frame{m[1], m[2]})
		}
	}
	if n := len(want); n < 4 || want[n-1].function != "main" || !slices.ContainsFunc(want, func(f frame) bool { return strings.HasPrefix(f.place, "jitpart.c:") }) {
		t.Fatalf("no frames of gdb:\n%s", out)
	}

	c, err := procstate.OpenCore(core, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	names := symbols.New(symbols.Options{})
	defer names.Close()
	lookup := names.Process(c)
	defer lookup.Close()
	w := unwind.NewWalker(c, Default(unwind.NewTables()), lookup)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Errorf("the walk ended: %v", err)
	}
	var got []frame
	registered := 0
	for i := range frames {
		lines := lookup.Lines(nil, frames[i].LookupPC())
		for _, l := range lines {
			f := frame{function: regexp.MustCompile(`^\w+`).FindString(l.Function)}
			if l.Line != 0 && filepath.Base(l.File) == "jitpart.c" {
				f.place = "jitpart.c:" + strconv.Itoa(l.Line)
			}
			got = append(got, f)
		}
		if s := w.Stepper(&frames[i]); s != nil && s.Name() == "jit" {
			registered++
		}
	}
	if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	if registered == 0 {
		t.Error("no frame was found by registered object files")
	}
}
