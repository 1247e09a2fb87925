package swbpf_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
)

// TestWine walks a program for Windows that Wine runs, in its own code, in libraries of Windows and in calls of the system.
func TestWine(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	wine := "/usr/lib/wine/wine64"
	for _, program := range []string{wine, "x86_64-w64-mingw32-gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	program := filepath.Join(t.TempDir(), "windows.exe")
	testenv.Run(t, exec.Command("x86_64-w64-mingw32-gcc", "-O2", "-o", program, filepath.Join("testdata", "walk", "windows.c")))
	prefix := t.TempDir()
	cmd := exec.Command(wine, program)
	cmd.Env = append(os.Environ(), "WINEPREFIX="+prefix, "WINEDEBUG=-all")
	t.Cleanup(func() {
		stop := exec.Command("/usr/lib/wine/wineserver64", "-k", "-w") // which else writes to the directory that is removed
		stop.Env = cmd.Env
		_ = stop.Run()
	})
	_, out := testenv.Start(t, cmd)
	if s := bufio.NewScanner(out); !s.Scan() || strings.TrimSpace(s.Text()) != "ready" {
		t.Fatalf("Wine does not run it: %q", s.Text())
	}
	want := []string{"main", "__tmainCRTStartup", "mainCRTStartup", "BaseThreadInitThunk", "RtlUserThreadStart"}
	seen := map[string]int{}
	for range 300 {
		ps, err := swbpf.WalkProcess(cmd.Process.Pid, swbpf.WalkOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := ps.Stacks[0]
		var names []string // of what is the program's or Windows'
		system := false
		for i := range s.Frames {
			if lines := s.Walker.Codes().Lines(s.Frames[i].Code); len(lines) > 0 {
				name, _, _ := strings.Cut(lines[0].Name, ".") // without what GCC says of its parts
				names = append(names, name)
			} else {
				system = true
			}
		}
		downs := 0
		for _, n := range names {
			if n == "down" {
				downs++
			}
		}
		last := names[max(0, len(names)-len(want)):]
		if s.Err != nil || !slices.Equal(last, want) || slices.Contains(names, "leaf") && downs != 21 {
			t.Fatalf("%v, %d times down: %q", s.Err, downs, names)
		}
		for _, n := range append(names, map[bool]string{true: "the system"}[system]) {
			seen[n]++
		}
	}
	for _, n := range []string{"leaf", "qsort", "compare", "the system"} {
		if seen[n] == 0 {
			t.Errorf("never seen in %s: %v", n, seen)
		}
	}
}
