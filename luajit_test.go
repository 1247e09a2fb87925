package swbpf_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestLuaJIT compares what LuaJIT runs with what its own debug library says, frame by frame.
func TestLuaJIT(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	testenv.Needs(t, "luajit")
	for _, command := range waysOfLuaJIT(t, "luajit") {
		t.Run(command[0], func(t *testing.T) {
			cmd, want := startWaiting[[]string](t, 1, append([]string{"luajit"}, command...)...)
			walkBothWays(t, cmd.Process.Pid, want, checkLuaJIT(t, want))
		})
	}
}

// waysOfLuaJIT returns arguments with which a LuaJIT calls in all ways there are, and waits.
func waysOfLuaJIT(t *testing.T, luajit ...string) [][]string {
	t.Helper()
	script := filepath.Join("testdata", "walk", "waitsinluajit.lua")
	out, err := exec.Command(luajit[0], append(luajit[1:], script)...).Output()
	ways := strings.Fields(string(out))
	if err != nil || len(ways) < 20 {
		t.Fatalf("ways to call %q, %v", ways, err)
	}
	slices.Sort(ways)
	large := slices.Index(ways, "large")
	return [][]string{
		append([]string{"-joff", script}, slices.Delete(slices.Clone(ways), large, large+1)...),
		{script, "large", "coroutines"},
	}
}

// checkLuaJIT compares calls with those that are told.
func checkLuaJIT(t *testing.T, want map[procstate.ThreadID][]string) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	return func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
		if len(want[tid]) < 100 {
			t.Errorf("%d calls are told", len(want[tid]))
		}
		if got := toldCalls(w, frames); !slices.Equal(got, want[tid]) {
			t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want[tid], "\n"))
		}
	}
}

// luajitTrace waits in a function of C that a trace has called, from a function that is inlined there. By the result of each
// such call the trace may be left.
const luajitTrace = `
local ffi = require "ffi"
ffi.cdef "int getpid(void); int poll(void *, unsigned long, int);"
local C, t = ffi.C, {}
for i = 1, 1000 do t[i] = i == 900 and 1000000 or 0 end
local function leaf(i) if C.poll(nil, 0, 0) ~= 0 then return 1 end if C.poll(nil, 0, t[i]) ~= 0 then return 2 end return 3 end
local function middle(i) local n = leaf(i) return n + 1 end
local function outer() local n = 0 for i = 1, 950 do n = n + middle(i) end return n end
io.write('{"TID": ', C.getpid(), ', "Calls": []}\n') io.flush()
print(outer())
`

// TestLuaJITTrace looks at the calls that a trace has inlined, and at how its frame is left.
func TestLuaJITTrace(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	testenv.Needs(t, "luajit")
	script := traceOfLuaJIT(t)
	cmd, told := startWaiting[[]string](t, 1, "luajit", script)
	walkBothWays(t, cmd.Process.Pid, told, checkLuaJITTrace(t, script))
}

// traceOfLuaJIT writes luajitTrace to a file.
func traceOfLuaJIT(t *testing.T) (script string) {
	t.Helper()
	script = filepath.Join(t.TempDir(), "trace.lua")
	if err := os.WriteFile(script, []byte(luajitTrace), 0o600); err != nil {
		t.Fatal(err)
	}
	return script
}

// checkLuaJITTrace checks the calls of luajitTrace, and that they are in a trace.
func checkLuaJITTrace(t *testing.T, script string) func(*unwind.Walker, procstate.ThreadID, []unwind.Frame) {
	want := []string{"leaf " + script + ":6", "middle " + script + ":7", "outer " + script + ":8", "<chunk trace.lua> " + script + ":10"}
	return func(w *unwind.Walker, _ procstate.ThreadID, frames []unwind.Frame) {
		if got := toldCalls(w, frames); !slices.Equal(got, want) {
			t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		for i := range frames {
			if lines := w.Codes().Lines(frames[i].Code); len(lines) > 0 && !lines[0].IsCompiled {
				t.Errorf("%s is not in a trace", lines[0].Name)
			}
		}
	}
}
