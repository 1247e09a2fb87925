package swbpf_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestLua compares what Lua runs with what it has written of it.
func TestLua(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	found := false
	for _, version := range []string{"5.1", "5.2", "5.3", "5.4"} {
		lua, err := exec.LookPath("lua" + version)
		if err != nil {
			continue
		}
		found = true
		t.Run(version, func(t *testing.T) { testLua(t, lua) })
	}
	if !found {
		testenv.Lacks(t, "no Lua of a version that is known here")
	}
}

// Lua has its functions in a program that is linked statically and stripped, too.
func TestLuaEmbedded(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	found := false
	for _, version := range []string{"5.1", "5.4"} {
		libraries, _ := filepath.Glob("/usr/lib/*/liblua" + version + ".a")
		if len(libraries) == 0 {
			continue
		}
		found = true
		t.Run(version, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "embeds")
			testenv.Run(t, exec.Command("gcc", "-static", "-s", "-w", "-I/usr/include/lua"+version, "-o", program,
				filepath.Join("testdata", "walk", "embedslua.c"), libraries[0], "-lm", "-ldl"))
			testLua(t, program)
		})
	}
	if !found {
		testenv.Lacks(t, "no library of Lua here")
	}
}

func testLua(t *testing.T, program string) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs(filepath.Join("testdata", "walk", "waits.lua"))
	if err != nil {
		t.Fatal(err)
	}
	cmd, want := startWaiting[[]string](t, 1, program, script, fifo)
	tid := procstate.ThreadID(cmd.Process.Pid)
	check := func(w *unwind.Walker, frames []unwind.Frame) {
		t.Helper()
		var got []string
		for i := range frames {
			for code := frames[i].Code; code != 0; code = w.Codes().Outer(code) {
				for _, l := range w.Codes().Lines(code) {
					file := l.File
					if file == "" {
						file = l.Name
					}
					got = append(got, fmt.Sprintf("%s:%d:%d", file, l.StartLine, l.Line))
				}
			}
		}
		if !slices.Equal(got, want[tid]) {
			t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want[tid], "\n"))
		}
	}
	ps, err := swbpf.WalkProcess(cmd.Process.Pid, swbpf.WalkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &ps.Stacks[0]
	if s.Err != nil {
		t.Error(s.Err)
	}
	check(s.Walker, s.Frames)
	// The same of a process that is stopped, whose memory is as it is.
	w, err := swbpf.ForPID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer swbpf.Detach(w)
	frames, err := w.WalkStack(nil, tid)
	if err != nil {
		t.Error(err)
	}
	check(w, frames)
}
