package variables_test

import (
	"encoding/binary"
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	swbpf "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// stopped runs look on the walk of the initial thread of a program that stands
// still.
func stopped(t *testing.T, path string, look func(w *unwind.Walker, walk []unwind.Frame)) {
	t.Helper()
	pid, _ := start(t, path)
	_, err := swbpf.WalkStopped(pid, swbpf.WalkOptions{}, func(ps *swbpf.ProcessStacks) {
		look(ps.Stacks[0].Walker, ps.Stacks[0].Frames)
	})
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
}

// find returns the frame of a function and one of its variables.
func find(t *testing.T, r *variables.Reader, walk []unwind.Frame, function, name string, all bool) (int, *symbols.Variable) {
	t.Helper()
	for i := range walk {
		fns, err := r.Functions(&walk[i])
		if err != nil {
			continue
		}
		for _, fn := range fns {
			if fn.Name != function {
				continue
			}
			vars := fn.Variables
			if all {
				if vars, err = fn.AllVariables(); err != nil {
					t.Fatal(err)
				}
			}
			for _, v := range vars {
				if v.Name == name {
					return i, v
				}
			}
		}
	}
	t.Fatalf("no variable %s of %s", name, function)
	return 0, nil
}

// TestResults goes through the results that the manual has for reading a
// variable.
func TestResults(t *testing.T) {
	stopped(t, compile(t, "vars.c", "gcc -g -O0"), func(w *unwind.Walker, walk []unwind.Frame) {
		r := swbpf.Variables(w)
		i, v := find(t, r, walk, "recurse", "local", false)
		var buf [4]byte
		for depth := range 4 { // the same variable in each frame of a recursion
			value, err := r.Value(walk, i+depth, v)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := value.Read(buf[:]); n != 4 || err != nil {
				t.Errorf("depth %d: %d bytes, %v", depth, n, err)
			}
			if got := binary.LittleEndian.Uint32(buf[:]); got != uint32(100*depth) {
				t.Errorf("depth %d: local is %d", depth, got)
			}
			if _, err := value.Read(buf[:3]); !errors.Is(err, variables.ErrShortBuffer) {
				t.Errorf("a buffer of 3 bytes: %v", err)
			}
			if a, ok := value.Address(); !ok || a <= walk[i+depth].SP() || a >= walk[i+depth+1].SP() {
				t.Errorf("depth %d: at %#x, the frame is [%#x, %#x)", depth, a, walk[i+depth].SP(), walk[i+depth+1].SP())
			}
		}
		for _, c := range []struct {
			frame int
			v     *symbols.Variable
		}{{i - 1, v}, {i + 4, v}, {-1, v}, {len(walk), v}, {i, nil}} {
			if _, err := r.Value(walk, c.frame, c.v); !errors.Is(err, variables.ErrNotVariable) && !errors.Is(err, symbols.ErrNoDebugInfo) {
				t.Errorf("frame %d of another function: %v", c.frame, err)
			}
		}
		i, never := find(t, r, walk, "many", "never", true)
		if _, err := r.Value(walk, i, never); !errors.Is(err, symbols.ErrOutOfScope) {
			t.Errorf("a variable of another block: %v", err)
		}
		// A frame alone is enough: its caller is found when it is needed.
		i, v = find(t, r, walk, "many", "sum", false)
		value, err := r.Value(walk[i:i+1], 0, v)
		if err != nil {
			t.Fatal(err)
		}
		if got := value.Format(variables.Format{}); got != "36" {
			t.Errorf("sum is %s", got)
		}
		// Code without debug information.
		if _, err := r.Functions(&walk[len(walk)-1]); !errors.Is(err, symbols.ErrNoDebugInfo) {
			t.Errorf("_start: %v", err)
		}
	})
	stopped(t, compile(t, "vars.c", "gcc -g -O2"), func(w *unwind.Walker, walk []unwind.Frame) {
		r := swbpf.Variables(w)
		i, v := find(t, r, walk, "stand", "n", false)
		if _, err := r.Value(walk, i, v); !errors.Is(err, symbols.ErrOptimizedOut) {
			t.Errorf("the result of a call that has not returned: %v", err)
		}
	})
}

// TestFormatBounds: what is written of large values is bounded.
func TestFormatBounds(t *testing.T) {
	stopped(t, compile(t, "vars.c", "gcc -g -O0"), func(w *unwind.Walker, walk []unwind.Frame) {
		r := swbpf.Variables(w)
		for _, c := range []struct {
			function, name string
			format         variables.Format
			want           string
		}{
			{"aggregates", "zeros", variables.Format{}, `{0 <repeats 40 times>}`},
			{"aggregates", "zeros", variables.Format{Elements: 3, Repeats: -1}, `{0, 0, 0...}`},
			{"aggregates", "text", variables.Format{Elements: 5}, `"tab\tq"...`},
			{"aggregates", "points", variables.Format{}, `{{x = 1, y = 2}, {x = 3, y = 4}}`},
			{"aggregates", "matrix", variables.Format{}, `{{1, 2, 3}, {4, 5, 6}}`},
			{"aggregates", "anonymous", variables.Format{}, `{inner = 8, p = {...}}`},
			{"aggregates", "anonymous", variables.Format{Depth: 2}, `{inner = 8, p = {x = 9, y = 10}}`},
			{"variable_length", "vla", variables.Format{}, `{0, 1, 4}`},
			{"variable_length", "grid", variables.Format{}, `{{0, 1}, {10, 11}, {20, 21}}`},
			{"scalars", "wide", variables.Format{}, `-1234567898765432019864197523`},
			{"scalars", "f", variables.Format{}, `0.1`},
			{"scalars", "ld", variables.Format{}, `0.333333333333333333342`},
		} {
			i, v := find(t, r, walk, c.function, c.name, false)
			value, err := r.Value(walk, i, v)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			if got := value.Format(c.format); got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
		for name, want := range map[string]string{
			"fn": "apply_t", "self": "point *volatile", "text": "char[14]", "strings": "const char *[2]", "matrix": "int[2][3]",
			"cv": "volatile const int", "by_pointer": "const point *", "rec": "record_t *", "nothing": "void *",
		} {
			_, v := find(t, r, walk, "aggregates", name, false)
			if got := v.Type().String(); got != want {
				t.Errorf("type of %s: %s, want %s", name, got, want)
			}
		}
	})
}

// TestCore reads the same values from a core file as from the process.
func TestCore(t *testing.T) {
	testenv.Needs(t, "gdb")
	for _, command := range []string{"gcc -g -O0", "gcc -g -O2"} {
		path := compile(t, "vars.c", command)
		pid, _ := start(t, path)
		core := filepath.Join(t.TempDir(), "core")
		testenv.Run(t, exec.Command("gdb", "-nx", "-batch", "-readnever", "-p", strconv.Itoa(pid), "-ex", "generate-core-file "+core))
		w, err := swbpf.ForCore(core, path)
		if err != nil {
			t.Fatal(err)
		}
		walk, err := w.WalkStack(nil, procstate.DefaultThread)
		if err != nil {
			t.Error(err)
		}
		if equal := compare(t, gdbFrames(t, path, core), ourFrames(t, w, walk)); equal < 55 {
			t.Errorf("%s: only %d variables are the same", command, equal)
		}
		swbpf.Detach(w)
	}
}

// TestSplit: debug information in a file of its own says the same. (gdb 13
// does not read the location lists of Clang's.)
func TestSplit(t *testing.T) {
	var lists [2][]gdbFrame
	for i, command := range []string{"clang-19 -gdwarf-5 -O2", "clang-19 -gdwarf-5 -gsplit-dwarf -O2"} {
		stopped(t, compile(t, "vars.c", command), func(w *unwind.Walker, walk []unwind.Frame) { lists[i] = ourFrames(t, w, walk) })
	}
	address := regexp.MustCompile(`0x[0-9a-f]{6,}`)
	n := 0
	for i := range min(len(lists[0]), len(lists[1])) {
		for _, pair := range [][2][]string{{lists[0][i].args, lists[1][i].args}, {lists[0][i].locals, lists[1][i].locals}} {
			for j := range pair {
				for k := range pair[j] {
					pair[j][k] = address.ReplaceAllString(pair[j][k], "0x")
				}
			}
			// One may wait in read already, and the other be on its way there.
			if !strings.HasPrefix(lists[0][i].function, "__GI_") && !slices.Equal(pair[0], pair[1]) {
				t.Errorf("%s:\n whole %s\n split %s", lists[0][i].function, strings.Join(pair[0], "; "), strings.Join(pair[1], "; "))
			}
			n += len(pair[0])
		}
		if lists[0][i].function == "main" {
			break // what called it does not clear its variables
		}
	}
	if n < 90 || len(lists[0]) != len(lists[1]) {
		t.Errorf("%d variables in %d and %d frames", n, len(lists[0]), len(lists[1]))
	}
}

// TestCapture reads variables from a copy of the stacks, when the process has
// gone on or ended: what lay on the stack is there, and nothing else.
func TestCapture(t *testing.T) {
	pid, _ := start(t, compile(t, "vars.c", "gcc -g -O0"))
	ps, err := swbpf.WalkProcess(pid, swbpf.WalkOptions{})
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	walk := ps.Stacks[0].Frames
	r := swbpf.Variables(ps.Stacks[0].Walker)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	i, v := find(t, r, walk, "variable_length", "big", false)
	value, err := r.Value(walk, i, v)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{r = {name = "record\000\000\000\000\000\000\000\000\000", at = {...}, text = 0x`
	if got := value.Format(variables.Format{Depth: 2}); !strings.Contains(got, want) {
		t.Errorf("big is %s", got)
	}
	i, v = find(t, r, walk, "stand", "calls", false) // static, so not on the stack
	if value, err = r.Value(walk, i, v); err != nil {
		t.Fatal(err)
	}
	if _, err := value.Read(make([]byte, 4)); !errors.Is(err, procstate.ErrUnreadable) {
		t.Errorf("a static variable: %v", err)
	}
	if got := value.Format(variables.Format{}); !strings.HasPrefix(got, "<error: Cannot access memory at address 0x") {
		t.Errorf("calls is %s", got)
	}
}

// TestFloatRegisters compares the variables of the function that runs with
// what gdb says of them, in a core file and live.
func TestFloatRegisters(t *testing.T) {
	testenv.Needs(t, "gdb")
	for _, command := range []string{"gcc -g -O2", "clang-19 -g -O2", "gcc -g -O2 -m32 -msse2 -mfpmath=sse"} {
		t.Run(strings.ReplaceAll(command, " ", "_"), func(t *testing.T) {
			if strings.Contains(command, "-m32") {
				testenv.Needs32Bit(t)
			}
			path := compile(t, "varsleaf.c", command)
			core := filepath.Join(t.TempDir(), "core")
			testenv.Run(t, exec.Command("gdb", "-nx", "-batch", "-readnever", "-iex", "set debuginfod enabled off", "-ex", "run", "-ex", "generate-core-file "+core, path))
			w, err := swbpf.ForCore(core, path)
			if err != nil {
				t.Fatal(err)
			}
			defer swbpf.Detach(w)
			walk, err := w.WalkStack(nil, procstate.DefaultThread)
			if err != nil {
				t.Fatal(err)
			}
			if equal := compare(t, gdbFrames(t, path, core)[:1], ourFrames(t, w, walk)[:1]); equal < 7 {
				t.Errorf("core: only %d variables are the same", equal)
			}
			// Live, where it has got into the loop.
			cmd := exec.Command(path, "on")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cmd.Process.Kill()
			var ours []gdbFrame
			for len(ours) == 0 || ours[0].function != "leaf" {
				_, err := swbpf.WalkStopped(cmd.Process.Pid, swbpf.WalkOptions{}, func(ps *swbpf.ProcessStacks) {
					ours = ourFrames(t, ps.Stacks[0].Walker, ps.Stacks[0].Frames)
				})
				if err != nil {
					testenv.Lacks(t, "%v", err)
				}
			}
			if equal := compare(t, gdbFrames(t, "-p", strconv.Itoa(cmd.Process.Pid))[:1], ours[:1]); equal < 7 {
				t.Errorf("live: only %d variables are the same", equal)
			}
		})
	}
}
