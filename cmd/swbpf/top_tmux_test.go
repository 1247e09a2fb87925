package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
)

// tmux is a terminal to look at: a server of its own, with one window that
// runs a shell.
type tmux struct {
	t      *testing.T
	socket string
	dir    string

	commands int // that the shell ran
}

func newTmux(t *testing.T) *tmux {
	t.Helper()
	needRecord(t)
	testenv.Needs(t, "tmux")
	m := &tmux{t: t, dir: t.TempDir()}
	m.socket = filepath.Join(m.dir, "s")
	m.run("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "env", "-u", "NO_COLOR", "PS1=ready$ ", "TERM=screen", "bash", "--norc", "--noprofile")
	t.Cleanup(func() { exec.Command("tmux", "-S", m.socket, "kill-server").Run() })
	m.wait("ready$")
	return m
}

func (m *tmux) run(args ...string) string {
	m.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", m.socket}, args...)...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (m *tmux) keys(keys ...string) { m.t.Helper(); m.run(append([]string{"send-keys"}, keys...)...) }

// screen is what is to be seen; styled, with its escape sequences.
func (m *tmux) screen() string { m.t.Helper(); return m.run("capture-pane", "-p") }
func (m *tmux) styled() string { m.t.Helper(); return m.run("capture-pane", "-p", "-e") }

// wait waits until the screen has all texts, and returns it.
func (m *tmux) wait(texts ...string) string {
	m.t.Helper()
	return m.waitUntil(fmt.Sprintf("%q", texts), func(screen string) bool {
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				return false
			}
		}
		return true
	})
}

func (m *tmux) waitUntil(what string, ok func(screen string) bool) string {
	m.t.Helper()
	var screen string
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
		if screen = m.screen(); ok(screen) {
			return screen
		}
	}
	m.t.Fatalf("waited in vain for %s; the screen is\n%s", what, screen)
	return ""
}

// shell runs a command in the shell, with the $? that there is, and returns what
// it writes.
func (m *tmux) shell(command string) string {
	m.t.Helper()
	m.commands++
	m.keys(fmt.Sprintf("status=$?; clear; (exit $status); %s; echo end of '%d'", command, m.commands), "Enter")
	end := fmt.Sprintf("end of %d", m.commands)
	out, _, _ := strings.Cut(m.wait(end), end)
	return strings.TrimSpace(out)
}

// modes are the settings of the terminal, but for its size.
func (m *tmux) modes() string { m.t.Helper(); return m.shell("stty -g") }

// pid is the process ID of the swbpf that the shell runs.
func (m *tmux) pid() string {
	m.t.Helper()
	shell := strings.TrimSpace(m.run("display-message", "-p", "#{pane_pid}"))
	out, err := exec.Command("pgrep", "-P", shell, "-x", "swbpf").Output()
	if err != nil {
		m.t.Fatalf("no swbpf under the shell: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// left waits until the shell runs no swbpf any more.
func (m *tmux) left(how string) {
	m.t.Helper()
	shell := strings.TrimSpace(m.run("display-message", "-p", "#{pane_pid}"))
	m.waitUntil(how+": the shell", func(s string) bool {
		return exec.Command("pgrep", "-P", shell, "-x", "swbpf").Run() != nil && !strings.Contains(s, "Functions")
	})
}

// fault ends top by a signal that it cannot answer, and waits for the process
// that restores the terminal then.
func (m *tmux) fault(signal, pid string) {
	m.t.Helper()
	out, err := exec.Command("pgrep", "-P", pid, "-x", "swbpf").Output()
	if err != nil {
		m.t.Fatalf("swbpf has no process that restores the terminal: %v", err)
	}
	exec.Command("kill", signal, pid).Run()
	stat := "/proc/" + strings.TrimSpace(string(out)) + "/stat"
	m.waitUntil(signal+": the end of the process that restores the terminal", func(string) bool {
		text, err := os.ReadFile(stat)
		return err != nil || strings.Contains(string(text), ") Z ")
	})
}

// startTop starts top on a program, which is killed when the test ends.
func (m *tmux) startTop(target *exec.Cmd) (pid string) {
	m.t.Helper()
	if err := target.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { target.Process.Kill(); target.Wait() })
	pid = fmt.Sprint(target.Process.Pid)
	m.keys("clear; "+swbpf(m.t)+" top -F 499 -p "+pid, "Enter")
	return pid
}

// TestTopScreen drives top by its keys and looks at the screen.
func TestTopScreen(t *testing.T) {
	t.Parallel()
	m := newTmux(t)
	// It keeps a CPU busy in known functions.
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	pid := m.startTop(exec.Command(target, "600"))
	m.wait("[1 Functions]", "pid "+pid, "SELF%", "chain::level", "depth30", "q quit")
	if screen := m.screen(); strings.Count(screen, "\n") != 24 {
		t.Errorf("%d lines:\n%s", strings.Count(screen, "\n"), screen)
	}
	m.keys("Tab")
	m.wait("[2 Processes]", pid, "depth30", "100.00")
	m.keys("Enter")
	m.wait("ROOTS", "stacks of process "+pid+" depth30: /", "100.0")
	m.keys("Escape")
	m.wait("[2 Processes]", "COMMAND")
	m.keys("3")
	m.wait("[3 Threads]", pid)
	m.keys("Enter")
	screen := m.wait("ROOTS", "_start", "main", "100.0")
	if strings.Index(screen, "_start") > strings.Index(screen, "main  ") {
		t.Errorf("the root is not first:\n%s", screen)
	}
	m.keys("c")
	m.wait("LEAVES")
	m.keys("Escape")
	m.wait("[3 Threads]", "COMMAND")

	m.keys("1", "/", "dynamic")
	m.wait("/dynamic", "__dynamic_cast")
	m.waitUntil("the filter to hold", func(s string) bool { return !strings.Contains(s, "chain::level") })
	m.keys("Enter")
	m.wait("filter: dynamic")
	m.keys("c")
	m.wait("CALLERS", "100.0", "chain::level")
	m.keys("Escape", "Escape")
	m.waitUntil("the filter to go", func(s string) bool { return strings.Contains(s, "chain::level") && !strings.Contains(s, "filter:") })

	m.keys("s")
	m.wait("by total")
	m.keys("?")
	m.wait("HELP", "hold the screen")
	m.keys("x")
	m.wait("by total")

	// What is held does not change.
	m.keys("Space")
	held := m.wait("PAUSED")
	m.waitUntil("the screen to be held", func(s string) bool { // the last change may still be on its way
		same := s == held
		held = s
		time.Sleep(2 * topRefresh)
		return same && m.screen() == held
	})
	m.keys("Space")
	m.waitUntil("samples to go on", func(s string) bool { return !strings.Contains(s, "PAUSED") })

	for _, size := range [][2]int{{132, 40}, {40, 8}, {20, 4}, {80, 24}} {
		m.run("resize-window", "-x", fmt.Sprint(size[0]), "-y", fmt.Sprint(size[1]))
		keys := "Tab list"
		m.waitUntil(fmt.Sprintf("%v", size), func(s string) bool {
			lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
			return len(lines) == size[1] && strings.HasPrefix(lines[0], "swbpf ") && strings.HasPrefix(lines[len(lines)-1], keys)
		})
	}
	m.keys("q")
	m.left("q")
}

// TestTopWall looks at threads that wait and work.
func TestTopWall(t *testing.T) {
	t.Parallel()
	m := newTmux(t)
	target := exec.Command(build(t, "spend", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/spend.c"), "120000")
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { target.Process.Kill(); target.Wait() })
	m.keys(fmt.Sprintf("clear; %s top --wall -p %d", swbpf(t), target.Process.Pid), "Enter")
	m.wait("[1 Functions]", "wall 99 Hz", "spend_computing", "clock_nanosleep", "futex_wait")
	m.keys("3")
	m.wait("[3 Threads]", "TIME%", "spend_computing", "clock_nanosleep")
	// A thread that sleeps from nap to nap is asleep nearly all of the time.
	m.keys("/", "clock", "Enter")
	m.wait("nothing matches") // threads are filtered by names and numbers
	m.keys("Escape", "1", "/", "spend_asleep", "Enter", "Enter")
	m.wait("CALLEES", "[sleep]", "__schedule")
	m.keys("q")
	m.left("q")
	if out := m.shell("echo status $?"); !strings.Contains(out, "status 0") {
		t.Error(out)
	}
}

// TestTopWakers looks at what a thread waits for in read, which another one ends with write.
func TestTopWakers(t *testing.T) {
	t.Parallel()
	m := newTmux(t)
	target := exec.Command(buildWakers(t), "100000000")
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { target.Process.Kill(); target.Wait() })
	m.keys(fmt.Sprintf("clear; %s top --off-cpu --wakers -p %d", swbpf(t), target.Process.Pid), "Enter")
	m.wait("[1 Functions]", "off-cpu", "clock_nanosleep")
	m.keys("/", "write_byte") // it spends nothing itself, so it may be below what is to be seen
	m.waitUntil("write_byte in the list", func(s string) bool { return strings.Count(s, "write_byte") == 2 })
	m.keys("Escape", "/", "read_byte", "Enter", "Enter")
	m.wait("CALLEES", "read_byte", "[sleep]", "[woken by maker]")
	m.keys("q")
	m.left("q")
}

// Top shows a thread, a process with its children, a user, and what runs on a CPU, and nothing else.
func TestTopOf(t *testing.T) {
	t.Parallel()
	m := newTmux(t)
	pid, tids, _ := startThreads(t)
	tree, _ := startShell(t, 54323, "(while :; do :; done) & echo on; while :; do sleep 0.01; done")
	for args, want := range map[string]struct{ target, has, not string }{
		"-t " + tids["busy"]:         {"thread " + tids["busy"], tids["busy"], tids["lasting"]},
		"-p " + tree + " --children": {"pid " + tree + " and children", "sh ", "some-threads"},
		"-u 54323":                   {"user 54323", "sh ", "some-threads"},
		"-C 0 -p " + pid:             {"pid " + pid + " on CPU 0", tids["lasting"], tree},
	} {
		rate, runs := "-F 499", exec.Command("true")
		if strings.HasPrefix(args, "-C") { // each time that they sleep, wherever they are
			rate, runs = "-e sched:sched_switch", exec.Command("taskset", "-a", "-p", "1", pid)
		}
		testenv.Run(t, runs)
		m.keys(fmt.Sprintf("clear; %s top %s %s", swbpf(t), rate, args), "Enter")
		m.wait("[1 Functions]", want.target)
		m.keys("3")
		if screen := m.wait("[3 Threads]", want.has); strings.Contains(screen[strings.Index(screen, "[3 Threads]"):], want.not+" ") {
			t.Errorf("%s: %s is shown:\n%s", args, want.not, screen)
		}
		m.keys("q")
		m.left("q")
	}
}

// TestTopTerminal checks that the terminal is as it was, however top ends.
func TestTopTerminal(t *testing.T) {
	t.Parallel()
	m := newTmux(t)
	before := m.modes()
	m.keys("echo here was a shell", "Enter")
	for _, end := range []struct {
		name   string
		end    func(pid string)
		status string // 0 if empty
	}{
		{name: "q", end: func(string) { m.keys("q") }},
		{name: "Ctrl-C", end: func(string) { m.keys("C-c") }},
		{name: "Ctrl-\\", end: func(string) { m.keys("C-\\") }},
		{name: "SIGTERM", end: func(pid string) { exec.Command("kill", "-TERM", pid).Run() }},
		{name: "SIGHUP", end: func(pid string) { exec.Command("kill", "-HUP", pid).Run() }},
		{name: "Ctrl-Z, fg, q", end: func(string) {
			m.keys("C-z")
			m.wait("Stopped", "ready$")
			if now := m.modes(); now != before {
				t.Errorf("stopped: the terminal's modes are %s, were %s", now, before)
			}
			m.keys("fg", "Enter")
			m.wait("[1 Functions]")
			m.keys("Down", "q")
		}},
		// It can do nothing about these itself.
		{"SIGKILL", func(pid string) { m.fault("-KILL", pid) }, "137"},
		{"SIGABRT", func(pid string) { m.fault("-ABRT", pid) }, "134"},
	} {
		m.startTop(exec.Command("sleep", "600"))
		m.wait("[1 Functions]", "q quit")
		end.end(m.pid())
		m.left(end.name)
		if out := m.shell("echo status $?"); !strings.Contains(out, "status "+cmp.Or(end.status, "0")) {
			t.Errorf("%s: %s", end.name, out)
		}
		if now := m.modes(); now != before {
			t.Errorf("%s: the terminal's modes are %s, were %s", end.name, now, before)
		}
		if flags := m.run("display-message", "-p", "#{alternate_on} #{cursor_flag} #{wrap_flag}"); strings.TrimSpace(flags) != "0 1 1" {
			t.Errorf("%s: other screen, cursor, wrapping: %s", end.name, flags)
		}
	}
}

// TestTopColours checks that kinds of functions have colours, unless NO_COLOR
// forbids it.
func TestTopColours(t *testing.T) {
	t.Parallel()
	m := newTmux(t)
	colour := regexp.MustCompile(`\x1b\[([0-9]+;)*3[0-7][;m]`)
	kernel := "\x1b[" + string(colourKernel) + "m"
	// What it looks at is in the kernel nearly always.
	reader := exec.Command("dd", "if=/dev/zero", "of=/dev/null", "bs=4k")
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { reader.Process.Kill(); reader.Wait() }()
	top := fmt.Sprintf("%s top -F 499 -p %d", swbpf(t), reader.Process.Pid)
	m.keys(top, "Enter")
	m.waitUntil("a colour of the kernel", func(string) bool { return strings.Contains(m.styled(), kernel) })
	m.keys("q")
	m.left("q")
	m.keys("clear; NO_COLOR=1 "+top, "Enter")
	m.waitUntil("a function of the kernel", func(s string) bool { return strings.Count(s, "[kernel.kallsyms]") > 2 })
	if s := m.styled(); colour.MatchString(s) {
		t.Errorf("colours in spite of NO_COLOR:\n%q", s)
	}
	m.keys("q")
	m.left("q")
}

// TestTopRefuses checks what top says where it cannot run.
func TestTopRefuses(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"top"}, "needs a terminal"},
		{[]string{"top", "extra"}, "extra"},
		{[]string{"top", "--window", "0.5"}, "--window"},
		{[]string{"top", "--window", "11m"}, "--window"},
		{[]string{"top", "-p", "0"}, "process ID"},
		{[]string{"top", "-t", "1", "-p", "1"}, "exclude"},
		{[]string{"top", "--children"}, "--children goes with -p"},
		{[]string{"top", "--wall", "-C", "0"}, "-C excludes"},
	} {
		_, msg, status := runSwbpf(t, t.TempDir(), tc.args...)
		if status != exitCannot || !strings.Contains(msg, tc.want) {
			t.Errorf("%v: status %d: %s", tc.args, status, msg)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	m := newTmux(t)
	m.keys("clear; TERM=dumb "+swbpf(t)+" top; echo status $?", "Enter")
	m.wait("TERM is \"dumb\"", "status 2")
	m.keys("clear; "+swbpf(t)+" top | cat; echo status ${PIPESTATUS[0]}", "Enter")
	m.wait("needs a terminal", "status 2")
}
