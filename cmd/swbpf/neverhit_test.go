package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// A recording of a probe that was never met says why, as far as that can be seen.
func TestNeverHit(t *testing.T) {
	needRecord(t)
	testenv.Needs(t, "gcc")
	dir := t.TempDir()
	source, prog := filepath.Join(dir, "p.c"), filepath.Join(dir, "p")
	if err := os.WriteFile(source, []byte("#include <unistd.h>\nint seldom(void) { return 1; }\nint main(int n, char **v) { return n > 1 ? pause() : 0; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	testenv.Run(t, exec.Command("gcc", "-O1", "-o", prog, source))
	for _, test := range []struct {
		running bool
		args    []string
		want    string
	}{
		{false, []string{"-d", "0.1"}, "(no process runs code of this file now;"},
		{true, []string{"-d", "0.1"}, "(one process runs code of this file now, and has not come to it; calls that"},
		{false, []string{"--", prog}, "(the command has not come to it; calls that"},
	} {
		if test.running {
			cmd := exec.Command(prog, "x")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		}
		_, stderr, status := runSwbpf(t, dir, append([]string{"record", "-e", "uprobe:" + prog + ":seldom", "-o", "x.folded"}, test.args...)...)
		if status != 0 || !strings.Contains(stderr, test.want) {
			t.Errorf("%v: status %d, want %q:\n%s", test.args, status, test.want, stderr)
		}
	}
}
