package swbpf_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestLua compares what Lua runs with what it has written of it.
func TestLua(t *testing.T) {
	canTrace(t)
	testenv.EachLua(t, testLua)
}

// Lua has its functions in a program that is linked statically and stripped, too.
func TestLuaEmbedded(t *testing.T) {
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
			testLua(t, testenv.Program{Path: program})
		})
	}
	if !found {
		testenv.Lacks(t, "no library of Lua here")
	}
}

// Functions of Lua are called as what has them, where they are made or later.
func TestLuaNames(t *testing.T) {
	canTrace(t)
	testenv.EachLua(t, func(t *testing.T, lua testenv.Program) {
		cmd, want := startWaiting[[]string](t, 1, lua.Command(waitingLua(t, lua, "names.lua")...)...)
		walkBothWays(t, cmd.Process.Pid, want, func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
			t.Helper()
			got := luaNames(w, frames)
			if !slices.Equal(got, want[tid]) {
				t.Errorf("functions\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want[tid], "\n"))
			}
		})
	})
}

// Functions whose call is over before it was read have names by what has them, and only functions that call each other do.
func TestLuaOver(t *testing.T) {
	canTrace(t)
	calls := map[string][]string{"<file module.lua>": {"run"}, "run": {"area", "side"}, "side": {"area"}, "area": {"helper"}}
	testenv.EachLua(t, func(t *testing.T, lua testenv.Program) {
		command := lua.Command(lua.Script(t, filepath.Join("testdata", "walk", "module.lua")))
		cmd := exec.Command(command[0], command[1:]...)
		_, out := testenv.Start(t, cmd)
		if _, err := out.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		deep := 0
		for range 30 {
			ps, err := swbpf.WalkProcess(cmd.Process.Pid, swbpf.WalkOptions{})
			if err != nil {
				t.Fatal(err)
			}
			names := luaNames(ps.Stacks[0].Walker, ps.Stacks[0].Frames) // innermost first
			for i, name := range names {
				if i+1 < len(names) && !slices.Contains(calls[names[i+1]], name) {
					t.Errorf("%q: %s does not call %s", names, names[i+1], name)
				}
			}
			if len(names) > 0 && names[0] == "helper" {
				deep++
			}
			time.Sleep(time.Millisecond)
		}
		if deep < 20 {
			t.Errorf("%d of 30 walks are in helper", deep)
		}
	})
}

// luaNames returns the names of the functions of Lua of a stack.
func luaNames(w *unwind.Walker, frames []unwind.Frame) (names []string) {
	for i := range frames {
		for code := frames[i].Code; code != 0; code = w.Codes().Outer(code) {
			for _, l := range w.Codes().Lines(code) {
				names = append(names, l.Name)
			}
		}
	}
	return names
}

func testLua(t *testing.T, lua testenv.Program) {
	cmd, want := startWaiting[[]string](t, 1, lua.Command(waitingLua(t, lua, "waits.lua")...)...)
	walkBothWays(t, cmd.Process.Pid, want, checkLua(t, want))
}

// waitingLua makes what a script of testdata/walk waits for, and returns that with its arguments.
func waitingLua(t *testing.T, lua testenv.Program, script string) (args []string) {
	t.Helper()
	dir, seen := lua.TempDir(t)
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{lua.Script(t, filepath.Join("testdata", "walk", script)), filepath.Join(seen, "fifo")}
}

// checkLua makes what compares the stack of waits.lua with what that has written of it.
func checkLua(t *testing.T, want map[procstate.ThreadID][]string) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	return func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
		t.Helper()
		got := luaCalls(w, frames)
		if !slices.Equal(got, want[tid]) {
			t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want[tid], "\n"))
		}
	}
}

// luaCalls returns the functions of Lua of a stack: where each is defined, and the line that runs.
func luaCalls(w *unwind.Walker, frames []unwind.Frame) (calls []string) {
	for i := range frames {
		for code := frames[i].Code; code != 0; code = w.Codes().Outer(code) {
			for _, l := range w.Codes().Lines(code) {
				file := l.File
				if file == "" {
					file = l.Name
				}
				calls = append(calls, fmt.Sprintf("%s:%d:%d", file, l.StartLine, l.Line))
			}
		}
	}
	return calls
}

// The interpreter in Redis, which is linked into it, keeps less of a call in its frame than Lua's own programs.
func TestLuaInRedis(t *testing.T) {
	canTrace(t)
	testenv.Needs(t, "redis-server", "redis-cli")
	socket := filepath.Join(t.TempDir(), "socket")
	server := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	for range 100 {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	client := exec.Command("redis-cli", "-s", socket, "--eval", filepath.Join("testdata", "walk", "redis.lua"))
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Process.Kill(); _ = client.Wait() })
	const inner, outer = "[user_script:2:4 user_script:8:10 user_script:0:14]", "[user_script:8:10 user_script:0:14]"
	seen := map[string]int{}
	for deadline := time.Now().Add(20 * time.Second); seen[inner] < 30 && time.Now().Before(deadline); {
		ps, err := swbpf.WalkProcess(server.Process.Pid, swbpf.WalkOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seen[fmt.Sprint(luaCalls(ps.Stacks[0].Walker, ps.Stacks[0].Frames))]++
	}
	if n := seen[inner]; n < 30 || n < 10*seen[outer] {
		t.Errorf("calls of the script: %v", seen)
	}
	delete(seen, "[]") // it did not run yet
	delete(seen, inner)
	delete(seen, outer)
	if len(seen) > 0 {
		t.Errorf("not calls of the script: %v", seen)
	}
}
