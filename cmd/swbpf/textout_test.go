package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// TestHostileNames: whoever names a program, a function or a line of a profile
// cannot command the terminal of those who look at it.
func TestHostileNames(t *testing.T) {
	testenv.Needs(t, "gcc")
	const escape, shown = "\x1b[31mred\x07", "?[31mred?"
	dir := filepath.Join(t.TempDir(), "d"+escape)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(dir, "p.c")
	program := filepath.Join(dir, "p"+escape)
	if err := os.WriteFile(source, []byte(`#include <unistd.h>
void f(void) __asm__("\"wait\033[31mred\007\"");
__attribute__((noinline)) void f(void) { for (;;) pause(); }
int main(void) { f(); return 0; }
`), 0o644); err != nil {
		t.Fatal(err)
	}
	testenv.Run(t, exec.Command("gcc", "-g", "-O1", "-o", program, source))
	cmd := exec.Command(program)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	var out, msg string
	waitFor(t, "the function to be called", func() bool {
		out, msg, _ = runWalk(t, strconv.Itoa(cmd.Process.Pid))
		return strings.Contains(out, "wait"+shown)
	})
	if strings.Contains(out+msg, "\x1b") || strings.Contains(out+msg, "\x07") || !strings.Contains(out, "/p"+shown) || !strings.Contains(out, "/d"+shown+"/p.c:3") {
		t.Errorf("%q %q", out, msg)
	}

	const red = "f\x1b[31mred"
	for name, text := range map[string]string{"before": "p;main;" + red + " 900\np;main;g 100\n", "after": "p;main;" + red + " 100\np;main;g 900\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, msg, status := runSwbpf(t, dir, "diff", "before", "after")
	if status != exitOK || strings.Contains(out+msg, "\x1b") || !strings.Contains(out, "f?[31mred") {
		t.Errorf("diff: %d %q %q", status, out, msg)
	}
	_, msg, status = runSwbpf(t, dir, "view", filepath.Join(dir, "p"+escape))
	if status != exitFailure || strings.Contains(msg, "\x1b") || !strings.Contains(msg, "p"+shown) {
		t.Errorf("an error: %d %q", status, msg)
	}
}
