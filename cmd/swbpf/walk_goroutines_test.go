package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// startGoroutines starts a Go program with goroutines of all sorts, and 100 more
// that wait for a mutex.
func startGoroutines(t *testing.T) (pid string) {
	t.Helper()
	cmd := exec.Command(build(t, "parked", "env", "CGO_ENABLED=0", "go", "build", "-o", "OUT", walkSource("goroutines")), "100")
	startReady(t, cmd)
	return strconv.Itoa(cmd.Process.Pid)
}

func TestWalkGoroutinesText(t *testing.T) {
	t.Parallel()
	pid := startGoroutines(t)
	out, stderr, code := runWalk(t, pid)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{
		`^process \d+  \S+  \(amd64, \d+ threads, 1\d\d goroutines, stopped for `,
		`\nthread \d+ "parked" (running|sleeping)( in .*)?, goroutine \d+: complete\n`,
		`\n\d+ threads [-\d, ]+ "parked" sleeping( in .*)?, goroutines [-\d, ]+: complete\n|\nthread \d+ "parked" sleeping( in .*)?, goroutine 1: complete\n`,
		`\n100 goroutines [-\d, ]+( and \d+ more)? \[sync\.Mutex\.Lock(, [^]]*)?\]: complete\n  #0 .* runtime\.gopark\+0x(.*\n)* +#\d+ .* main\.deep\+0x.*main\.go:\d+  \[go\]\n(  #.*\n)*  created by main\.main\+0x[0-9a-f]+ in goroutine 1  parked  \S+main\.go:\d+\n`,
		`\ngoroutine \d+ \[chan receive(, \d+s)?, locked to thread\]: complete\n`,
		`\ngoroutine \d+ \[chan receive(, \d+s)?\]: complete\n(  #.*\n)*.* main\.\(\*pair\[\.\.\.\]\)\.wait\+0x`,
		`\ngoroutine \d+ \[select \(no cases\)(, \d+s)?\]: complete\n`,
		`\n\d+ goroutines of the runtime [-\d, ]+, see --goroutines=all\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(out, "runtime.forcegchelper") || strings.Contains(out, "incomplete") {
		t.Error("what is not to be there")
	}
	if t.Failed() {
		t.Log(out)
	}
	out, _, _ = runWalk(t, "--goroutines=all", pid)
	if !strings.Contains(out, "runtime.forcegchelper+0x") || !strings.Contains(out, " [force gc (idle)") || strings.Contains(out, "goroutines of the runtime") {
		t.Errorf("--goroutines=all:\n%s", out)
	}
	for _, args := range [][]string{{"--goroutines=no"}, {"--tid", pid}} {
		out, _, code = runWalk(t, append(args, pid)...)
		if code != exitOK || strings.Contains(out, "goroutine ") || strings.Contains(out, "goroutines ") {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
	out, _, _ = runWalk(t, "--no-group", pid)
	if n := len(regexp.MustCompile(`\ngoroutine \d+ \[sync\.Mutex\.Lock`).FindAllString(out, -1)); n != 102 {
		t.Errorf("--no-group: %d goroutines at a mutex:\n%s", n, out)
	}
	out, stderr, code = runWalk(t, "--args", pid)
	if code != exitOK || !regexp.MustCompile(`\ngoroutine \d+ \[chan receive[^]]*\]: complete\n(  #.*\n)*.* main\.\(\*pair\[\.\.\.\]\)\.wait\(p=0x[0-9a-f]+, c=`).MatchString(out) {
		t.Errorf("--args: exit %d, %s\n%s", code, stderr, out)
	}
	if _, stderr, code := runWalk(t, "--goroutines=some", pid); code != exitCannot || !strings.Contains(stderr, "yes, all or no") {
		t.Errorf("--goroutines=some: exit %d, %s", code, stderr)
	}
}

func TestWalkGoroutinesJSON(t *testing.T) {
	t.Parallel()
	pid := startGoroutines(t)
	out, stderr, code := runWalk(t, "--json", pid)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	checkGoroutinesJSON(t, out, true)
	out, _, _ = runWalk(t, "--json", "--no-group", pid)
	checkGoroutinesJSON(t, out, false)

	testenv.Needs(t, "gdb")
	core := filepath.Join(t.TempDir(), "core")
	testenv.Run(t, exec.Command("gdb", "-nx", "-batch", "-readnever", "-p", pid, "-ex", "generate-core-file "+core))
	if out, stderr, code = runWalk(t, "--json", "--core", core); code != exitOK {
		t.Fatalf("core: exit %d: %s", code, stderr)
	}
	checkGoroutinesJSON(t, out, true)
}

func checkGoroutinesJSON(t *testing.T, out string, grouped bool) {
	t.Helper()
	var raw struct {
		Goroutines []json.RawMessage `json:"goroutines"`
	}
	var p jsonProcess
	if err := json.Unmarshal([]byte(out), &raw); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	seen := make(map[uint64]bool)
	for _, th := range p.Threads {
		if th.Goroutine != 0 {
			seen[th.Goroutine] = true
		}
	}
	if !seen[1] {
		t.Error("no thread has goroutine 1")
	}
	locks, system := 0, 0
	for i := range p.Goroutines {
		g := &p.Goroutines[i]
		if want := strings.Fields("ids parents waiting_ns state locked system created_by complete reason frames"); !slices.Equal(keysOf(t, raw.Goroutines[i]), want) {
			t.Errorf("goroutines have keys %v, want %v", keysOf(t, raw.Goroutines[i]), want)
		}
		if len(g.Parents) != len(g.IDs) || len(g.WaitingNs) != len(g.IDs) || !grouped && len(g.IDs) != 1 {
			t.Errorf("%d goroutines, %d parents, %d times", len(g.IDs), len(g.Parents), len(g.WaitingNs))
		}
		for _, id := range g.IDs {
			if seen[id] {
				t.Errorf("goroutine %d is there twice", id)
			}
			seen[id] = true
		}
		if !g.Complete || g.Reason != "" || len(g.Frames) < 2 || g.Frames[len(g.Frames)-1].Function != "runtime.goexit" {
			t.Errorf("goroutines %v: %+v", g.IDs, g)
			continue
		}
		if g.System {
			system++
		}
		if g.State == "sync.Mutex.Lock" && slices.ContainsFunc(g.Frames, func(f jsonFrame) bool { return f.Function == "main.deep" }) {
			locks += len(g.IDs)
			if grouped && len(g.IDs) != 100 {
				t.Errorf("%d goroutines in a group", len(g.IDs))
			}
			if c := g.CreatedBy; c.Function != "main.main" || !strings.HasSuffix(c.File, "main.go") || c.Line == 0 || g.Parents[0] != 1 {
				t.Errorf("created by %+v, parent %d", c, g.Parents[0])
			}
		}
	}
	// For each CPU the runtime has one that collects garbage.
	if locks != 100 || system < 5 || len(seen) < 132+min(2, runtime.GOMAXPROCS(0)) {
		t.Errorf("%d goroutines at the mutex, %d groups of the runtime, %d in all", locks, system, len(seen))
	}
}

func TestWalkGoroutinesWatch(t *testing.T) {
	pid := startGoroutines(t)
	cmd := exec.Command(swbpf(t), "walk", "--watch", "50ms", pid)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^  100 x \[sync\.Mutex\.Lock\] goroutines: runtime\.gopark < .* < main\.deep x4 < main\.main\.gowrap\d+ < runtime\.goexit  \[same for `)
	var s string
	found := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		s += lines.Text() + "\n"
		if !found && want.MatchString(lines.Text()) {
			found = true
			cmd.Process.Signal(os.Interrupt)
		}
		if !found && strings.Count(s, "goroutines, stopped for") > 200 {
			cmd.Process.Signal(os.Interrupt)
		}
	}
	if err := cmd.Wait(); err != nil || !found {
		t.Errorf("%v, output:\n%s", err, s)
	}
}
