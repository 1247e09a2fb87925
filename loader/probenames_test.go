package loader

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Events of probes are listed by what begins them, functions of a file alone that have code in it.
func TestProbeNames(t *testing.T) {
	testenv.Needs(t, "gcc")
	prog := t.TempDir() + "/p"
	cmd := exec.Command("gcc", "-x", "c", "-o", prog, "-")
	cmd.Stdin = strings.NewReader("#include <stdio.h>\nint put_a, put_b[9];\nvoid put_one(void) { puts(\"\"); }\nvoid put_two(void) {}\nint main(void) { put_one(); put_two(); }\n")
	testenv.Run(t, cmd)
	for begun, want := range map[string][]string{
		"uprobe:" + prog + ":put":    {"uprobe:" + prog + ":put_one", "uprobe:" + prog + ":put_two"},
		"uretprobe:" + prog + ":mai": {"uretprobe:" + prog + ":main"},
		"usdt:" + prog + ":":         nil,
		"uprobe:" + prog:             nil,
		"uprobe::put":                nil,
		"uprobe:/no/such/file:put":   nil,
		"kprobe:":                    nil,
		"kprobe: no such function":   nil,
		"sched:sched_":               nil,
		"":                           nil,
	} {
		if got := ProbeNames(begun); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", begun, got, want)
		}
	}
}
