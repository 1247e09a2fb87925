package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	stackwalk "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/python"
	"github.com/swbpf/swbpf/unwind"
)

// startTasks starts tasks.py, and waits until its tasks wait.
func startTasks(t *testing.T, py testenv.Program) (pid string) {
	t.Helper()
	command := py.Command(py.Script(t, walkSource("tasks.py")))
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
	testenv.SomePython(t, func(t *testing.T, py testenv.Program) {
		pid := startTasks(t, py)
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

// What a socket is connected to is told where it is the same as before the walk.
func TestTaskSockets(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	file, err := conn.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd := int(file.Fd())
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		t.Fatal(err)
	}
	for before, want := range map[string]string{
		link: fmt.Sprintf("%d tcp %s > %s", fd, conn.LocalAddr(), conn.RemoteAddr()), "socket:[1]": "", "": "",
	} {
		list := []stackwalk.PythonTask{{Task: python.Task{Socket: fd}}, {Task: python.Task{Socket: -1}}}
		ts := taskWalks{before: map[int]string{fd: before}}
		ts.describeSockets(&waitReader{pid: os.Getpid()}, list)
		if got := ts.sockets[&list[0]]; got != want || len(ts.sockets) > 1 {
			t.Errorf("of %s, before it was %s: %q, want %q", link, before, got, want)
		}
	}
}

func TestCompareNumbered(t *testing.T) {
	sorted := []string{"", "a", "a1", "a2", "a2b", "a10", "a10b9", "a10b10", "b", "b1"}
	for i, a := range sorted {
		for j, b := range sorted {
			if got := compareNumbered(a, b); got != cmp.Compare(i, j) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
}

// Greenlets are told apart from tasks, and those that run the same are together.
func TestWalkGreenlets(t *testing.T) {
	fn := &unwind.CodeFunction{Name: "wait", File: "app.py"}
	green := func(name string, state python.TaskState, line int) stackwalk.PythonTask {
		task := stackwalk.PythonTask{Task: python.Task{Name: name, IsGreenlet: true, State: state, Socket: -1}}
		if line > 0 {
			task.Stack = []unwind.CodeLine{{CodeFunction: fn, Line: line}}
		}
		return task
	}
	list := []stackwalk.PythonTask{
		green("Greenlet", python.TaskSuspended, 3), green("Greenlet", python.TaskCreated, 0), green("Greenlet", python.TaskSuspended, 3),
		{Task: python.Task{Name: "Greenlet", Socket: -1}},
	}
	for i := range list {
		list[i].Addr = uint64(i + 1)
	}
	p := &processWalk{arch: procstate.AMD64}
	p.takeTasks(&stackwalk.PythonTaskList{List: list}, &walkOptions{})
	var out strings.Builder
	p.writeTasks(&out)
	for _, want := range []string{"\n2 greenlets \"Greenlet\" [suspended]: complete\n  #0   wait  app.py:3\n", "\ngreenlet \"Greenlet\" [not begun]", "\ntask \"Greenlet\" [ready]"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if got, want := p.tasks.text(), ", 1 task, 3 greenlets"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var j jsonProcess
	p.jsonTasks(&j)
	if len(j.Tasks) != 3 || j.Tasks[0].Kind != "greenlet" || len(j.Tasks[0].IDs) != 2 {
		t.Errorf("%+v", j.Tasks)
	}
}
