package variables_test

import (
	"debug/elf"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	swbpf "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

var stopCount = flag.Int("stops", 12, "random instructions of each program at which gdb is asked")

// stopScript has gdb stop at random instructions of functions, show the
// variables, and write a core file of each stop.
const stopScript = `
import random
random.seed(%d)
gdb.execute("set charset ASCII")
gdb.execute("break main")
gdb.execute("run")
bias = int(gdb.parse_and_eval("(unsigned long)&main")) - %#x
arch = gdb.selected_frame().architecture()
places = []
for start, size in %s:
    places += [i["addr"] for i in arch.disassemble(bias + start, bias + start + size - 1)]
random.shuffle(places)
gdb.execute("delete")
class Stop(gdb.Breakpoint):
    pass
left = %d
for p in places[:4 * left]:
    Stop("*%%d" %% p).ignore_count = random.randrange(6)
at = {}
def stopped(event):
    if isinstance(event, gdb.BreakpointEvent):
        for b in event.breakpoints:
            at[b.number] = b
gdb.events.stop.connect(stopped)
n = 0
while n < left:
    gdb.execute("continue", to_string=True)
    if not at:
        break
    for b in at.values():
        b.delete()
    at.clear()
    print("S\t%%d" %% n)
    show()
    gdb.execute("generate-core-file core.%%d" %% n, to_string=True)
    n += 1
`

// functionsOf returns the functions in the text of a program, as a list in
// Python, and the address of main.
func functionsOf(t *testing.T, path string) (list string, main uint64) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0 {
			continue
		}
		if s.Name == "main" {
			main = s.Value
		}
		list += fmt.Sprintf("(%d, %d), ", s.Value, s.Size)
	}
	return "[" + list + "]", main
}

// tally counts how variables compare with gdb's.
type tally struct{ same, less, more, wrong int }

// isUnknown reports whether a value was not found, or a part of it.
func isUnknown(text string) bool {
	return strings.Contains(text, "<optimized out>") || strings.Contains(text, "<not saved>") || strings.Contains(text, "<synthetic pointer>") ||
		strings.Contains(text, "not supported>")
}

func (n *tally) compare(t *testing.T, where string, gdb, ours []string) {
	// What is not known at all is listed by gdb also where it is out of scope,
	// and not where its block has no code left.
	gdb, ours = withoutUnlisted(gdb, ours), withoutUnlisted(ours, gdb)
	slices.Sort(gdb)
	slices.Sort(ours)
	if len(gdb) != len(ours) {
		n.wrong++
		t.Errorf("%s: %d, gdb has %d\n gdb  %s\n ours %s", where, len(ours), len(gdb), strings.Join(gdb, "\n      "), strings.Join(ours, "\n      "))
		return
	}
	for i := range gdb {
		switch {
		case same(gdb[i], ours[i]):
			n.same++
		case strings.Contains(gdb[i], "<error reading variable"), strings.Contains(gdb[i], "<synthetic pointer>: {"): // gdb does not look whether it is known
			n.more++
		case slices.ContainsFunc(ours, func(o string) bool { return same(gdb[i], o) }):
			n.more++ // gdb shows one of equal names for all of them
		case isUnknown(ours[i]):
			n.less++
			t.Logf("less: %s\n gdb  %s\n ours %s", where, gdb[i], ours[i])
		case isUnknown(gdb[i]):
			n.more++
			t.Logf("more: %s\n gdb  %s\n ours %s", where, gdb[i], ours[i])
		default:
			n.wrong++
			g, o := difference(gdb[i], ours[i])
			t.Errorf("wrong: %s:\n gdb  %s\n ours %s", where, g, o)
		}
	}
}

var cutCharacter = regexp.MustCompile(`"?(, )?<incomplete sequence ([^>]*)>`)

// asASCII writes values as gdb does where that is all that can be printed: how
// it writes bytes that are no text depends on the C library.
func asASCII(lines []string) {
	for i, line := range lines {
		var b strings.Builder
		for _, c := range []byte(cutCharacter.ReplaceAllString(line, `$2"`)) {
			if c < 0x80 {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		}
		lines[i] = b.String()
	}
}

// withoutUnlisted leaves out lines without a value for what has no line in
// another list, or fewer.
func withoutUnlisted(lines, other []string) (out []string) {
	count := map[string]int{}
	for _, l := range other {
		name, _, _ := strings.Cut(l, " = ")
		count[name]++
	}
	surplus := func(name string) (n int) {
		for _, l := range lines {
			if strings.HasPrefix(l, name+" = ") {
				n++
			}
		}
		return n - count[name]
	}
	dropped := map[string]int{}
	for _, l := range lines {
		if name, unknown := strings.CutSuffix(l, " = <optimized out>"); unknown && dropped[name] < surplus(name) {
			dropped[name]++
			continue
		}
		out = append(out, l)
	}
	return out
}

// difference returns the two texts from a little before they differ on, with
// the name of the variable.
func difference(a, b string) (string, string) {
	name, _, _ := strings.Cut(a, " = ")
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	cut := func(s string) string { return name + ": ..." + s[max(i-40, 0):min(i+140, len(s))] }
	return cut(a), cut(b)
}

// TestStops compares the variables at random instructions of optimised code
// with what gdb says of them there: none may be another.
func TestStops(t *testing.T) {
	commands := []string{"g++ -gdwarf-5 -O2 -std=c++17", "g++ -g -O2 -m32 -std=c++17", "clang++-19 -gdwarf-5 -O2 -std=c++17 -Wno-vla-cxx-extension"}
	if testenv.Long() {
		commands = append(commands, "g++ -gdwarf-4 -O1 -std=c++17")
	}
	for i, command := range commands {
		t.Run(strings.ReplaceAll(command, " ", "_"), func(t *testing.T) {
			if strings.Contains(command, "-m32") {
				testenv.Needs32Bit(t)
			}
			path := compile(t, "varsmix.cc", command)
			list, main := functionsOf(t, path)
			dir := t.TempDir()
			script := fmt.Sprintf("import os\nos.chdir(%q)\n", dir) + fmt.Sprintf(stopScript, i, main, list, *stopCount)
			var n tally
			stops := 0
			for _, stop := range strings.Split(runGDB(t, script, path), "\nS\t")[1:] {
				core := filepath.Join(dir, fmt.Sprintf("core.%d", stops))
				w, err := swbpf.ForCore(core, path)
				if err != nil {
					t.Fatal(err)
				}
				walk, err := w.WalkStack(nil, procstate.DefaultThread)
				if err != nil {
					t.Errorf("stop %d: %v", stops, err)
				}
				_, stop, _ = strings.Cut(stop, "\n")
				gdb, ours := parseFrames(t, stop), ourFrames(t, w, walk)
				for i := range ours {
					asASCII(ours[i].args)
					asASCII(ours[i].locals)
				}
				if len(gdb) != len(ours) {
					t.Errorf("stop %d: %d frames, gdb has %d", stops, len(ours), len(gdb))
				}
				for i := range min(len(gdb), len(ours)) {
					g, o := &gdb[i], &ours[i]
					where := fmt.Sprintf("stop %d at %#x, frame %d %s", stops, walk[0].PC(), i, g.function)
					n.compare(t, where+" arguments", g.args, o.args)
					n.compare(t, where+" locals", g.locals, o.locals)
				}
				swbpf.Detach(w)
				os.Remove(core)
				stops++
			}
			t.Logf("%d stops: %d variables the same, %d where gdb knows more, %d where we do, %d wrong", stops, n.same, n.less, n.more, n.wrong)
			if stops < *stopCount || n.same < 10*stops || n.wrong > 0 {
				t.Fail()
			}
		})
	}
}
