package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// A walk tells who has the lock of Python's interpreter, who waits for it, and that it is part of a deadlock with a
// mutex of C.
func TestWalkPythonLocks(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("not all versions are known elsewhere")
	}
	testenv.EachPython(t, func(t *testing.T, python testenv.Program) {
		script := python.Script(t, walkSource("gil.py"))
		start := func(args ...string) (pid string, threads func() []jsonThread) {
			command := python.Command(append([]string{script}, args...)...)
			cmd := exec.Command(command[0], command[1:]...)
			cmd.Env = append(os.Environ(), "PYTHON_GIL=1") // where it is built without, too
			_, out := testenv.Start(t, cmd)
			if lines := bufio.NewScanner(out); !lines.Scan() {
				t.Skip("this Python does not run it")
			}
			pid = strconv.Itoa(cmd.Process.Pid)
			return pid, func() []jsonThread {
				out, stderr, code := runWalk(t, "--json", pid)
				var p jsonProcess
				if err := json.Unmarshal([]byte(out), &p); code != exitOK || err != nil {
					t.Fatalf("exit %d, %v: %s", code, err, stderr)
				}
				return p.Threads
			}
		}
		_, threads := start()
		seen := 0
		waitFor(t, "threads that have the lock, and want it", func() bool {
			var holders, waiters []int32
			for _, th := range threads() {
				if th.GIL {
					holders = append(holders, th.TID)
				}
				if th.Wait == nil || th.Wait.Call != "futex" || th.Wait.Holder == 0 {
					continue
				}
				if waiters = append(waiters, th.Wait.Holder); th.GIL {
					t.Errorf("%d has the lock and waits for it", th.TID)
				}
			}
			if len(holders) > 1 {
				t.Errorf("%d threads have the lock", len(holders))
			}
			for _, holder := range waiters {
				if !slices.Contains(holders, holder) {
					t.Errorf("some wait for %d, and %d have the lock", holder, holders)
				}
			}
			if len(waiters) > 0 {
				seen++
			}
			return seen == 5 || t.Failed()
		})
		pid, _ := start("deadlock")
		want := regexp.MustCompile(`\n\ndeadlock of 2 threads:\n  thread (\d+) "[^"]+" in futex\(GIL of thread (\d+)\)\n  thread (\d+) "[^"]+" in futex\(lock of thread (\d+)\)\n\n(.*\n)*thread (\d+) "[^"]+" sleeping in futex\(lock of thread (\d+)\), with the GIL: complete\n`)
		var text string
		waitFor(t, "a deadlock", func() bool {
			text, _, _ = runWalk(t, pid)
			m := want.FindStringSubmatch(text)
			return m != nil && m[1] == m[4] && m[2] == m[3] && m[6] == m[3] && m[7] == m[1]
		})
		if t.Failed() {
			t.Log(text)
		}
	})
}
