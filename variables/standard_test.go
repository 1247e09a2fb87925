package variables_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	swbpf "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/variables"
)

// standardTexts are the variables of varsstd.cc as they are to be written, but for
// addresses; of those that end in an ellipsis it is the beginning.
var standardTexts = map[string]string{
	"ref": `"ref"`, "names": `std::vector of length 2, capacity 2 = {"x", "y"}`, "view": `"view"`,
	"order": `{name = "o", prices = std::vector of length 2, capacity 2 = {1, 2}, at = std::shared_ptr<Point> (empty) = {get() = 0x}}`,
	"text":  `"a \"string\"\n"`, "empty": `""`, "heap": `"a string that is too long for the buffer in it"`, "many": `'x' <repeats 200 times>...`,
	"cut": `"` + strings.Repeat("éж.", 40) + `"...`, "wide": `L"wide é"`, "s16": `u"sixteen"`, "s32": `U"thirty-two"`,
	"ints": "std::vector of length 3, capacity 3 = {1, 2, 3}", "none": "std::vector of length 0, capacity 0",
	"bits": "std::vector<bool> of length 3, capacity 64 = {true, false, true}", "points": "std::vector of length 2, capacity 2 = {{x = 1, y = 2}, {x = 3, y = 4}}",
	"nested": "std::vector of length 2, capacity 2 = {std::vector of length 1, capacity 1 = {1}, std::vector of length 2, capacity 2 = {2, 3}}",
	"few":    "{7, 8, 9}", "owner": "std::unique_ptr<Point> = {get() = 0x}", "nobody": "std::unique_ptr<Point> = {get() = 0x}",
	"shared": "std::shared_ptr<Point> (use count 2, weak count 1) = {get() = 0x}", "same": "std::shared_ptr<Point> (use count 2, weak count 1) = {get() = 0x}",
	"null": "std::shared_ptr<Point> (empty) = {get() = 0x}", "weak": "std::weak_ptr<Point> (use count 2, weak count 1) = {get() = 0x}",
	"expired": "std::weak_ptr<Point> (expired, weak count 1) = {get() = 0x}",
	"some":    "std::optional<int> = {[contained value] = 42}", "nothing": "std::optional<int> [no contained value]",
	"inside": `std::optional<std::string> = {[contained value] = "inside"}`, "both": `{first = 1, second = "one"}`,
	"three": `std::tuple containing = {[1] = 1, [2] = 2.5, [3] = "three"}`,
	"words": `std::map with 3 elements = {["one"] = 1, ["three"] = 3, ["two"] = 2}`, "nowords": "std::map with 0 elements",
	"wider": "std::map with 1 element = {[1] = 0.5}", "pairs": "std::multimap with 2 elements = {[1] = {x = 1, y = 2}, [1] = {x = 3, y = 4}}",
	"squares": "std::map with 1000 elements = {[0] = 0, [1] = 1, [2] = 4, [3] = 9, ...", "numbers": "std::set with 3 elements = {[0] = 1, [1] = 2, [2] = 3}",
	"prices": `std::unordered_map with 1 element = {["tea"] = 1.5}`, "wide_hash": "std::unordered_map with 1 element = {[1] = 0.5}",
	"hashed": "std::unordered_set with 1 element = {[0] = 10}", "list": "std::list with 3 elements = {[0] = 1, [1] = 2, [2] = 3}",
	"nolist": "std::list with 0 elements", "texts": `std::list with 2 elements = {[0] = "a", [1] = "b"}`,
	"forward": "std::forward_list = {[0] = 1, [1] = 2}", "queue": "std::deque with 150 elements = {150, 151, 152, ...", "noqueue": "std::deque with 0 elements",
	"counter": "std::atomic<int> = { 7 }", "flag": "std::atomic<bool> = { true }", "pointer": "std::atomic<Point *> = { 0x }",
	"variant": `std::variant<int, std::string> [index 1] = {"held"}`, "number": "std::variant<int, double> [index 0] = {3}",
}

// brokenTexts are those of what is not as the library makes it: it is not taken
// for what it is not, and a loop ends.
var brokenTexts = map[string]string{
	"wild": "{value = {...}, words = ...", "endless": "{value = {...}, words = ...", "backwards": "{value = {...}, words = ...",
	"huge": "{value = {...}, words = ...", "nowhere": "{value = {...}, words = ...", "loop": "{value = std::map with 1099511627776 elements = {[1] = 2, [1] = 2, ...",
}

// compareTexts compares the variables of a function with what they should be.
func compareTexts(t *testing.T, frames []gdbFrame, function string, want map[string]string) {
	t.Helper()
	found := 0
	for _, f := range frames {
		if !strings.HasPrefix(f.function, function+"(") && f.function != function {
			continue
		}
		for _, line := range append(f.args, f.locals...) {
			name, got, _ := strings.Cut(line, " = ")
			text, known := want[name]
			if !known {
				continue
			}
			found++
			got = address.ReplaceAllString(got, "0x")
			begin, cut := strings.CutSuffix(text, "...")
			if cut = cut && !strings.HasSuffix(begin, "times>") && !strings.HasSuffix(begin, `"`); got != text && !(cut && strings.HasPrefix(got, begin)) {
				t.Errorf("%s is\n  %s, want\n  %s", name, got, text)
			}
		}
	}
	if found != len(want) {
		t.Errorf("%d variables of %s, want %d", found, function, len(want))
	}
}

// TestStandardTypes compares values of types of C++'s libraries with the source.
func TestStandardTypes(t *testing.T) {
	commands := []string{"g++ -std=c++17 -gdwarf-4 -fdebug-types-section -O0", "clang++-19 -std=c++17 -g -O0 -stdlib=libc++ -fstandalone-debug"}
	if testenv.Long() {
		commands = append(commands, "g++ -std=c++17 -g -O0", "clang++-19 -std=c++17 -g -O0", "clang++-19 -std=c++17 -g -O0 -fstandalone-debug")
	}
	for _, command := range commands {
		t.Run(strings.ReplaceAll(command, " ", "_"), func(t *testing.T) {
			want := standardTexts
			if strings.Contains(command, "libc++") {
				needsLibcxx(t)
				want = make(map[string]string)
				for name, text := range standardTexts {
					want[name] = text
				}
				want["queue"], want["forward"] = "std::deque with 150 elements", "..."
			}
			pid, _ := start(t, compile(t, "varsstd.cc", command))
			walkBlocked(t, pid, func(s *swbpf.ThreadStack) {
				frames := ourFramesAs(t, s.Walker, s.Frames, variables.Format{})
				compareTexts(t, frames, "stand", want)
				if strings.Contains(command, "libc++") { // to which some of it is as it should be
					compareTexts(t, frames, "broken", map[string]string{"loop": brokenTexts["loop"]})
				} else {
					compareTexts(t, frames, "broken", brokenTexts)
					inner := ourFramesAs(t, s.Walker, s.Frames, variables.Format{Depth: 3})
					compareTexts(t, inner, "broken", map[string]string{
						"wild": "{value = {_M_...", "endless": "{value = {_M_...", "backwards": "{value = {<std::_Vector_base...", "huge": "{value = {<std::_Vector_base...",
						"nowhere": "{value = {<std::_Vector_base...",
					})
				}
			})
		})
	}
}

// needsLibcxx ends a test where clang has no libc++.
func needsLibcxx(t *testing.T) {
	t.Helper()
	testenv.Needs(t, "clang++-19")
	cmd := exec.Command("clang++-19", "-stdlib=libc++", "-xc++", "-fsyntax-only", "-include", "string", "/dev/null")
	if cmd.Run() != nil {
		testenv.Lacks(t, "libc++ is not installed")
	}
}

// TestStandardGDB compares values of types of libstdc++ with gdb's by the
// pretty-printers of the library.
func TestStandardGDB(t *testing.T) {
	const printers = "/usr/share/gcc/python"
	if _, err := os.Stat(filepath.Join(printers, "libstdcxx")); err != nil {
		testenv.Lacks(t, "%v", err)
	}
	pid, _ := start(t, compile(t, "varsstd.cc", "g++ -std=c++17 -g -O0"))
	var ours []gdbFrame
	walkBlocked(t, pid, func(s *swbpf.ThreadStack) {
		ours = ourFramesAs(t, s.Walker, s.Frames, variables.Format{Depth: 20})
	})
	gdb := parseFrames(t, runGDB(t, `
import sys
sys.path.insert(0, "`+printers+`")
from libstdcxx.v6 import register_libstdcxx_printers
register_libstdcxx_printers(None)
gdb.execute("enable pretty-printer")
gdb.execute("set print repeats 10")
show()
`, "-p", strconv.Itoa(pid)))
	// What gdb has not got, or writes without the number of elements, or as far as
	// half of the limit, or up to the middle of a character.
	other := map[string]bool{"few": true, "squares": true, "list": true, "nolist": true, "texts": true, "cut": true, "n": true}
	equal := 0
	for i, g := range gdb {
		if g.function != "stand" || i >= len(ours) {
			continue
		}
		byName := make(map[string]string)
		for _, line := range append(ours[i].args, ours[i].locals...) {
			name, _, _ := strings.Cut(line, " = ")
			byName[name] = line
		}
		for _, line := range append(g.args, g.locals...) {
			name, _, _ := strings.Cut(line, " = ")
			if same(line, byName[name]) {
				equal++
			} else if !other[name] {
				t.Errorf("gdb  %s\nours %s", line, byName[name])
			}
		}
	}
	if equal < 45 {
		t.Errorf("only %d variables are the same", equal)
	}
}
