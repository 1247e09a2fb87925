package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// TestRecordPGO checks that a recording of a program in Go is a profile by which Go's compiler
// optimizes: that its tool finds which function calls which, by lines from where a function begins.
func TestRecordPGO(t *testing.T) {
	t.Parallel()
	needRecord(t)
	testenv.Needs(t, "go")
	gogc := build(t, "gogc", "go", "build", "-o", "OUT", "./testdata/targets/gogc")
	dir := t.TempDir()
	if _, stderr, status := runSwbpf(t, dir, "record", "-F", "997", "-o", "default.pgo", "--", gogc, "1"); status != 0 {
		t.Fatalf("record: status %d: %s", status, stderr)
	}
	edges, err := exec.Command("go", "tool", "preprofile", "-i", filepath.Join(dir, "default.pgo")).Output()
	if err != nil {
		t.Fatalf("go tool preprofile: %v", err)
	}
	// Each edge is a line with the caller, one with the callee, and one with the distance in
	// lines and the weight.
	lines := bytes.Split(edges, []byte("\n"))
	for i := 1; i+2 < len(lines); i += 3 {
		if string(lines[i]) != "main.count" || string(lines[i+1]) != "main.count" {
			continue
		}
		distance, weight, _ := bytes.Cut(lines[i+2], []byte(" "))
		if n, err := strconv.Atoi(string(weight)); string(distance) != "4" || err != nil || n < 10 {
			t.Errorf("main.count calls itself in its line %s, and does so in %s samples; want 4 and many", distance, weight)
		}
		return
	}
	t.Errorf("main.count does not call itself in\n%s", edges)
}
