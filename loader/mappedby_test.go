package loader

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Processes are counted that run the file of a probe, whatever they call it.
func TestMappedBy(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a sleeper")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, link); err != nil {
		t.Fatal(err)
	}
	e := Event{places: []place{{file: path}, {file: path}}}
	if n := e.MappedBy(); n != 0 {
		t.Errorf("%d processes before there is one", n)
	}
	for i, name := range []string{path, link} {
		cmd := exec.Command(name, "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		n := 0
		for end := time.Now().Add(5 * time.Second); n != i+1 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			n = e.MappedBy()
		}
		if n != i+1 {
			t.Errorf("%d processes, want %d", n, i+1)
		}
	}
	for _, e := range []Event{{}, {places: []place{{file: "/no/such/file"}}}} {
		if n := e.MappedBy(); n != 0 {
			t.Errorf("%d processes run no file", n)
		}
	}
}
