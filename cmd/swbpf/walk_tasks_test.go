package main

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// startTasks starts tasks.py, and waits until its tasks wait.
func startTasks(t *testing.T, python testenv.Program) (pid string) {
	t.Helper()
	command := python.Command(python.Script(t, walkSource("tasks.py")))
	cmd := exec.Command(command[0], command[1:]...)
	_, stdout := testenv.Start(t, cmd)
	out := bufio.NewReader(stdout)
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "null\n" {
			return strconv.Itoa(cmd.Process.Pid)
		}
	}
}

func TestWalkTasks(t *testing.T) {
	t.Parallel()
	testenv.SomePython(t, func(t *testing.T, python testenv.Program) {
		pid := startTasks(t, python)
		out, stderr, code := runWalk(t, pid)
		if code != exitOK {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		wants := []string{
			`^process \d+  \S+  \(amd64, 2 threads, \d\d tasks, stopped for `,
			`\ntask( "never run")? \[ready\]: complete\n  #0   never_run  \S*/tasks\.py:\d+\n`,
		}
		if strings.Contains(out, `"sleeper`) { // from 3.8 on they have names
			wants = append(wants,
				`\nthread \d+ "[^"]+" sleeping in \S+, task "runs"(, with the GIL)?: complete\n`,
				`\n3 tasks "sleeper-\*" \[waiting for Future\]: complete\n  #0   sleep    \S*/asyncio/tasks\.py:\d+\n  #1   sleeper  \S*/tasks\.py:\d+\n\n`,
				`\ntask "parent" \[waiting for task "child"\]: complete\n  #0   waits_for  \S*/tasks\.py:\d+\n\n`,
				`\ntask "whole" \[waiting for 3 tasks "part-\*"\]: complete\n  #0   gathers  `,
				`\ntask "client" \[waiting for \d+ tcp 127\.0\.0\.1:\d+ > 127\.0\.0\.1:\d+\]: complete\n  #0   StreamReader\._wait_for_data  |\ntask "client" .*: complete\n  #0   _wait_for_data  `,
				`\ntask "deep" \[waiting for Future\]: complete\n  #0   deep  \S+\n  #1   deep  \S+\n  \.\.\. 99 more of frame #1\n`,
			)
		}
		for _, want := range wants {
			if !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("no %s", want)
			}
		}
		if t.Failed() {
			t.Log(out)
		}
		testWalkTasksJSON(t, pid)
		if out, _, code := runWalk(t, "--tasks=no", pid); code != exitOK || regexp.MustCompile(`task "|\d tasks|\ntask `).MatchString(out) {
			t.Errorf("--tasks=no: exit %d\n%s", code, out)
		}
		if _, stderr, code := runWalk(t, "--tasks=some", pid); code != exitCannot || !strings.Contains(stderr, "yes or no") {
			t.Errorf("--tasks=some: exit %d, %s", code, stderr)
		}
	})
}

func testWalkTasksJSON(t *testing.T, pid string) {
	t.Helper()
	out, stderr, code := runWalk(t, "--json", "--no-group", "--args", pid)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var p jsonProcess
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	var running []string
	for _, th := range p.Threads {
		running = append(running, th.Tasks...)
	}
	if len(running) != 1 || len(p.Tasks) < 23 || p.TasksUnread != 0 || p.TasksCut {
		t.Errorf("%d tasks run and %d do not; %d not read, cut: %v", len(running), len(p.Tasks), p.TasksUnread, p.TasksCut)
	}
	known := map[string]bool{}
	for _, task := range p.Tasks {
		if len(task.IDs) != 1 || len(task.Names) != 1 || known[task.IDs[0]] || !task.Complete || len(task.Frames) == 0 || task.Frames[0].Function == "" {
			t.Errorf("a task %+v", task)
			continue
		}
		known[task.IDs[0]] = true
	}
	whole := 0
	for _, task := range p.Tasks {
		if task.Frames[0].Function == "gathers" {
			whole = len(task.WaitsFor)
		}
		for _, id := range task.WaitsFor {
			if !known[id] {
				t.Errorf("%q waits for %s, which there is not", task.Names, id)
			}
		}
	}
	if whole != 3 {
		t.Errorf("a gather of three waits for %d", whole)
	}
}
