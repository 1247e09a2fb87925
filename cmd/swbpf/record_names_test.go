package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/swbpf/swbpf/internal/testenv"
)

// namesProgram spins in a thread and a function whose names are commands to terminals.
const namesProgram = `
#include <sys/prctl.h>
#include <time.h>

__attribute__((noinline)) void spin(void) __asm__("\"spin\\033[2J\"");

void spin(void)
{
	for (clock_t end = clock() + CLOCKS_PER_SEC / 2; clock() < end;)
		;
}

int main(void)
{
	prctl(PR_SET_NAME, "\x1b[31m<b>\n]0;x\x07");
	spin();
	__asm__ volatile("");
	return 0;
}
`

// TestRecordHostileNames checks that view reads what record has written of a program
// whose thread, function and file have control characters in their names, and that
// those do not come through in text.
func TestRecordHostileNames(t *testing.T) {
	t.Parallel()
	needRecord(t)
	testenv.Needs(t, "gcc")
	dir := t.TempDir()
	target := filepath.Join(dir, "file\x1b]0;y\x07")
	built := build(t, "names", "sh", "-c", "printf '%s' \"$1\" | gcc -O1 -g -xc -o OUT -", "sh", namesProgram)
	if err := os.Link(built, target); err != nil {
		if out, err := exec.Command("cp", built, target).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	names := []string{"p.pb.gz", "p.html", "p.folded", "p.speedscope.json", "p.firefox.json", "p.perf.txt"}
	args := []string{"record", "-F", "499"}
	for _, name := range names {
		args = append(args, "-o", name)
	}
	if _, stderr, status := runSwbpf(t, dir, append(args, "--", target)...); status != 0 {
		t.Fatalf("record: status %d: %s", status, stderr)
	}
	for _, name := range names {
		stdout, stderr, status := runSwbpf(t, dir, "view", "-o", "-", "--format", "folded", name)
		if status != 0 {
			t.Errorf("view %s: status %d: %s", name, status, stderr)
		}
		if i := strings.IndexFunc(stdout+stderr, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }); i >= 0 {
			t.Errorf("view %s: a control character in %q", name, stdout+stderr)
		}
		if !strings.Contains(stdout, "spin") || !strings.Contains(stdout, "[31m<b>_]0:x?") && !strings.Contains(name, "speedscope") {
			t.Errorf("view %s: the names are not in %q", name, stdout)
		}
	}
	for _, name := range []string{"p.folded", "p.perf.txt"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if i := strings.IndexFunc(string(text), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }); i >= 0 || err != nil {
			t.Errorf("%s: a control character in %q, %v", name, text, err)
		}
	}
}

// TestRecordWithoutName checks that a thread that has taken its name away has that of its
// program.
func TestRecordWithoutName(t *testing.T) {
	t.Parallel()
	needRecord(t)
	testenv.Needs(t, "gcc")
	program := strings.Replace(namesProgram, `"\x1b[31m<b>\n]0;x\x07"`, `""`, 1)
	target := build(t, "nameless", "sh", "-c", "printf '%s' \"$1\" | gcc -O1 -g -xc -o OUT -", "sh", program)
	stdout, stderr, status := runSwbpf(t, t.TempDir(), "record", "-F", "499", "-o", "-", "--format", "folded", "--", target)
	if want := filepath.Base(target) + ";_start;"; status != 0 || !strings.Contains(stdout, want) {
		t.Errorf("status %d, %q is not in %q; %s", status, want, stdout, stderr)
	}
	if strings.Contains(stdout, "[unknown];") {
		t.Errorf("a thread has no name in %q", stdout)
	}
}
