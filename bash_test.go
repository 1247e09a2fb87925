package swbpf_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestBash compares what scripts run, each in another way, with what they have written of it.
func TestBash(t *testing.T) {
	canTrace(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("it is known of amd64 alone")
	}
	script, err := os.ReadFile(filepath.Join("testdata", "walk", "waits.sh"))
	if err != nil {
		t.Fatal(err)
	}
	ways := regexp.MustCompile(`(?m)^way_(\w+)\(`).FindAllSubmatch(script, -1)
	testenv.EachBash(t, func(t *testing.T, bash testenv.Program) {
		dir, seen := bash.TempDir(t)
		for _, file := range []string{"waits.sh", "waitslib.sh"} {
			b, err := os.ReadFile(filepath.Join("testdata", "walk", file))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, way := range ways {
			testBash(t, string(way[1]), bash.Command(filepath.Join(seen, "waits.sh"), string(way[1]), filepath.Join(seen, "fifo"))...)
		}
		library := filepath.Join(seen, "waitslib.sh")
		text := `waits() { printf '{"TID":%d,"Calls":["waits","of_text","%s","<commands>"]}\n' $$ "$told"; read x <` + seen + `/fifo; }
of_text() { waits; }; source ` + library + `; `
		testBash(t, "text", bash.Command("-c", text+`told='from_library `+library+` 6' from_library of_text`)...)
		testBash(t, "environment", bash.Command("-c", text+`export -f waits of_text from_library; told=from_library exec "$BASH" -c 'from_library of_text; :'`)...)
	})
}

// bashKnown are the ways to run a function in which bash does not know, or has forgotten, in which line that is.
var bashKnown = map[string]bool{"trap": true, "exit": true, "error": true}

func testBash(t *testing.T, way string, command ...string) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() }()
	var told struct {
		TID   procstate.ThreadID
		Calls []string
	}
	limit := time.AfterFunc(30*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer limit.Stop()
	if err := json.NewDecoder(out).Decode(&told); err != nil {
		t.Errorf("%s: %v", way, err)
		return
	}
	eventually(t, "it waits", func() bool {
		infos, err := procstate.ProcessThreads(int(told.TID))
		return err == nil && len(infos) == 1 && infos[0].State == procstate.StateSleeping
	})
	var want []string
	for _, call := range told.Calls {
		name, place, _ := strings.Cut(call, " ")
		file, _, _ := strings.Cut(place, " ")
		switch {
		case name == "main" || name == "source":
			name = "<file " + filepath.Base(file) + ">"
		case name == "way_exit": // its frame is gone, but FUNCNAME has it still
			continue
		}
		want = append(want, strings.TrimSuffix(name+" "+place, " "))
	}
	check := func(w *unwind.Walker, _ procstate.ThreadID, frames []unwind.Frame) {
		t.Helper()
		got := bashCalls(w, frames)
		if bashKnown[way] {
			got, want = withoutLines(got), withoutLines(want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: calls\n%s\nwant\n%s", way, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if way == "recursion" {
		walkBothWays(t, int(told.TID), map[procstate.ThreadID][]string{told.TID: nil}, check)
		return
	}
	ps, err := swbpf.WalkProcess(int(told.TID), swbpf.WalkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range ps.Stacks {
		check(s.Walker, s.TID, s.Frames)
	}
}

// bashCalls returns the functions of a script of a stack, with file and line.
func bashCalls(w *unwind.Walker, frames []unwind.Frame) (calls []string) {
	for i := range frames {
		for _, l := range w.Codes().Lines(frames[i].Code) {
			call := l.Name
			if l.File != "" {
				call = fmt.Sprintf("%s %s %d", l.Name, l.File, l.Line)
			}
			calls = append(calls, call)
		}
	}
	return calls
}

func withoutLines(calls []string) (names []string) {
	for _, call := range calls {
		i := strings.LastIndexByte(call, ' ')
		if _, err := strconv.Atoi(call[i+1:]); err != nil {
			i = len(call)
		}
		names = append(names, call[:i])
	}
	return names
}
