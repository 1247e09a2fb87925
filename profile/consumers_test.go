package profile

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/chromium"
)

// consumer returns the path of a file of the programs that the formats are
// for, which SWBPF_CONSUMERS has a directory of, as npm installs it; a "*" is
// for what differs between versions. Without it, the test is skipped.
func consumer(t *testing.T, pattern string) string {
	t.Helper()
	dir := os.Getenv("SWBPF_CONSUMERS")
	if dir == "" {
		t.Skip("SWBPF_CONSUMERS names no directory with the programs that the formats are for")
	}
	found, err := filepath.Glob(filepath.Join(dir, "node_modules", pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("there is no %s in %s: %v", pattern, dir, err)
	}
	return found[0]
}

// firefoxProfiler is the Firefox Profiler itself, in its version for the
// command line, with a profile loaded. It is asked by its socket.
type firefoxProfiler struct {
	t      *testing.T
	socket string
	dead   chan struct{} // closed when it has ended
}

func startFirefoxProfiler(t *testing.T, data []byte) *firefoxProfiler {
	t.Helper()
	node := consumer(t, "node-linux-*/bin/node")
	script := consumer(t, "@firefox-devtools/profiler-cli/dist/profiler-cli.js")
	dir, err := os.MkdirTemp("", "ffp") // a path that fits in the address of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "profile.json")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(node, script, "--daemon", file, "--session", "s")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir,
		"PROFILER_CLI_SESSION_DIR=" + dir, "PROFILER_CLI_NO_SYMBOLICATE=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f := &firefoxProfiler{t: t, socket: filepath.Join(dir, "s.sock"), dead: make(chan struct{})}
	go func() {
		cmd.Wait()
		close(f.dead)
	}()
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-f.dead
		if t.Failed() {
			t.Logf("it said:\n%s", out.Bytes())
		}
	})
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		switch kind, _, err := f.message(map[string]any{"type": "status"}); {
		case err == nil && kind == "ready":
			return f
		case err != nil && strings.Contains(err.Error(), "load failed"):
			t.Fatal(err)
		case time.Now().After(deadline):
			t.Fatalf("it is not ready: %s %v", kind, err)
		}
		select {
		case <-f.dead:
			t.Fatalf("it has ended: %s", out.Bytes())
		default:
		}
	}
}

// message sends a message and returns the type of the answer, and its result.
func (f *firefoxProfiler) message(m map[string]any) (string, json.RawMessage, error) {
	conn, err := net.Dial("unix", f.socket)
	if err != nil {
		return "", nil, err
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(m); err != nil {
		return "", nil, err
	}
	var answer struct {
		Type, Error string
		Result      json.RawMessage
	}
	if err := json.NewDecoder(bufio.NewReader(conn)).Decode(&answer); err != nil {
		return "", nil, err
	}
	if answer.Type == "error" {
		err = fmt.Errorf("the Firefox Profiler: %s", answer.Error)
	}
	return answer.Type, answer.Result, err
}

func (f *firefoxProfiler) ask(result any, command, sub string, more map[string]any) {
	f.t.Helper()
	m := map[string]any{"command": command, "subcommand": sub}
	for k, v := range more {
		m[k] = v
	}
	_, data, err := f.message(map[string]any{"type": "command", "command": m})
	if err == nil && result != nil {
		err = json.Unmarshal(data, result)
	}
	if err != nil {
		f.t.Fatalf("%s %s %v: %v in %s", command, sub, more, err, data)
	}
}

// firefoxTree is a node of a call tree as the Firefox Profiler tells it.
type firefoxTree struct {
	Name         string
	SelfSamples  float64 // samples, milliseconds or bytes
	TotalSamples float64
	Children     []firefoxTree
}

func (n *firefoxTree) fold(stacks map[string]int64, above string, unit float64) {
	if n.SelfSamples > 0 {
		stacks[above] += int64(math.Round(n.SelfSamples * unit))
	}
	for i := range n.Children {
		n.Children[i].fold(stacks, above+";"+n.Children[i].Name, unit)
	}
}

type firefoxThreads struct {
	Processes []struct {
		PID, Name string
		Threads   []struct {
			ThreadHandle, Name, TID string
			CPUMs                   float64
		}
	}
}

// stacks asks for all threads, and returns the stacks with their weights times
// unit, under the name of the thread, and a line for each thread.
func (f *firefoxProfiler) stacks(unit float64) (stacks map[string]int64, threads []string) {
	f.t.Helper()
	var info firefoxThreads
	f.ask(&info, "profile", "info", map[string]any{"all": true})
	stacks = map[string]int64{}
	for _, process := range info.Processes {
		for _, th := range process.Threads {
			threads = append(threads, fmt.Sprintf("%s %s: %s %s %.3f ms", process.PID, process.Name, th.TID, th.Name, th.CPUMs))
			f.tree(th.ThreadHandle).fold(stacks, strings.ReplaceAll(th.Name, " ", "_"), unit)
		}
	}
	return stacks, threads
}

func (f *firefoxProfiler) tree(thread string) *firefoxTree {
	f.t.Helper()
	var top struct{ RegularCallTree firefoxTree }
	f.ask(&top, "thread", "samples-top-down", map[string]any{
		"thread": thread, "includeIdle": true, "callTreeOptions": map[string]any{"maxNodes": 1_000_000}})
	return &top.RegularCallTree
}

// waited is a recording on and off the CPU of a process that had another name,
// with times.
func waited() *Profile {
	b := NewBuilder()
	b.KeepTimes()
	m := b.Module(Module{Path: "/bin/a", Kind: Native})
	labels := func(state string) uint32 { return b.Labels(Label{"state", state}) }
	const ms = 1_000_000
	thread := func(tid int32, comm, state string) Thread {
		return Thread{PID: 1, TID: tid, Comm: Comm(comm), Labels: labels(state)}
	}
	add := func(at int64, t Thread, count, value int64, stack ...Loc) {
		b.SetTime(100*ms + at)
		b.Add(t, stack, "", count, value)
	}
	sleep, runnable := b.Marker("[sleep]"), b.Marker("[runnable]")
	add(2*ms, thread(1, "sh", "running"), 1, 2*ms, Loc{m, 1})
	// It runs until 3, sleeps until 13, waits for a CPU until 14, runs until 16.
	add(14*ms, thread(1, "a", "sleep"), 1, 10*ms, sleep, Loc{m, 2})
	add(14*ms, thread(1, "a", "runnable"), 0, 1*ms, runnable, Loc{m, 2})
	add(16*ms, thread(1, "a", "running"), 1, 2*ms, Loc{m, 3})
	// A sample that stands for another, and time without one.
	add(5*ms, thread(2, "b", "sleep"), 1, 4*ms, sleep, Loc{m, 4})
	add(7*ms, thread(2, "b", "running"), 1, 1*ms, Loc{m, 5})
	add(10*ms, thread(2, "b", "sleep"), 1, 6*ms, sleep, Loc{m, 4})
	add(11*ms, thread(2, "b", "sleep"), 0, 3*ms, sleep, b.Marker(notSampled))
	syms := symbols{}
	for i, name := range []string{"start", "nap", "work", "wait", "step"} {
		syms[Loc{m, uint64(i + 1)}] = []Line{{Function: name}}
	}
	return b.Finish(Meta{Target: "waited", Tool: "swbpf test", Event: "wall", Value: ValueType{"wall", "nanoseconds"},
		Wall: true, ByValue: true, Clock: 100 * ms}, syms)
}

// The Firefox Profiler itself has the same threads, stacks and weights.
func TestFirefoxProfilerReads(t *testing.T) {
	for _, test := range []struct {
		name    string
		p       *Profile
		unit    float64 // of weights
		threads string
	}{
		{"counted", fixture(), 1, `100 app: 100 app 0.000 ms
100 app: 101 app worker 0.000 ms
200 gosrv: 203 gosrv 0.000 ms`},
		// The time on the CPU up to the first sample of a thread does not count there.
		{"timed", timed(), 1, `1 a: 1 a 2.000 ms
1 a: 2 b c 0.000 ms`},
		{"waited", waited(), 1e6, `1 a: 1 a 2.000 ms
1 a: 2 b 1.000 ms
1 a: 1.1 sh 0.000 ms`},
		{"without samples", NewBuilder().Finish(Meta{Target: "nothing"}, nil), 1, `0 nothing: 0 nothing 0.000 ms`},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := startFirefoxProfiler(t, written(t, test.p.WriteFirefox))
			stacks, threads := f.stacks(test.unit)
			plain := strings.NewReplacer("_[k]", "", "_[i]", "", "_[j]", "", "String:::", "String;::")
			want := foldedOf(t, test.p, plain)
			wantStacks(t, "the Firefox Profiler", stacks, want)
			if got := strings.Join(threads, "\n"); got != test.threads {
				t.Errorf("threads\n%s\nwant\n%s", got, test.threads)
			}
		})
	}
}

// Samples are where they belong on the time line of the Firefox Profiler: it
// finds them, and nothing else, in a part of it.
func TestFirefoxProfilerTimes(t *testing.T) {
	f := startFirefoxProfiler(t, written(t, waited().WriteFirefox))
	var info firefoxThreads
	f.ask(&info, "profile", "info", map[string]any{"all": true})
	handle := map[string]string{}
	for _, th := range info.Processes[0].Threads {
		handle[th.Name] = th.ThreadHandle
	}
	for _, test := range []struct {
		thread, part, want string // seconds since the first sample, of thread b, at 1 ms
	}{
		{"sh", "0,0.0015", "map[sh;start:2000000]"},
		{"a", "0,0.0115", "map[]"},
		{"a", "0.0115,0.0125", "map[a;nap;[sleep]:10000000]"},
		{"a", "0.0125,0.0135", "map[a;nap;[runnable]:1000000]"},
		{"a", "0.0135,0.0145", "map[]"},
		{"a", "0.0145,0.0155", "map[a;work:2000000]"},
		{"b", "0.0035,0.0045", "map[b;wait;[sleep]:4000000]"},
	} {
		f.ask(nil, "zoom", "push", map[string]any{"range": test.part})
		stacks := map[string]int64{}
		f.tree(handle[test.thread]).fold(stacks, test.thread, 1e6)
		if got := fmt.Sprint(stacks); got != test.want {
			t.Errorf("%s in %s: %s, want %s", test.thread, test.part, got, test.want)
		}
		f.ask(nil, "zoom", "pop", nil)
	}
}

// speedscope itself shows the functions with the weights that they have, also
// from the text of perf script and from folded stacks.
func TestSpeedscopeReads(t *testing.T) {
	index := consumer(t, "speedscope/dist/release/index.html")
	p := fixture()
	weights := regexp.MustCompile(`[\d.]+(ms|ns|s|) \(<?[\d.]+%\) `)
	for _, test := range []struct {
		name  string
		write func(io.Writer) error
		want  string // total and self weight and name of functions
	}{
		{"all.speedscope.json", p.WriteSpeedscope, "626.26ms (63%) 626.26ms (63%) std::vector<int>::push_back(int const&) " +
			"202.02ms (20%) 202.02ms (20%) vfs_read 121.21ms (12%) 121.21ms (12%) main.handle " +
			"40.40ms (4.0%) 40.40ms (4.0%) Ljava/lang/String;::hashCode 10.10ms (1.0%) 10.10ms (1.0%) [unknown]+0x7fff00001234 " +
			"40.40ms (4.0%) 0.00ns (<0.01%) [jit]+0x7f0000002000 161.62ms (16%) 0.00ns (<0.01%) runtime.goexit " +
			"161.62ms (16%) 0.00ns (<0.01%) gosrv 10.10ms (1.0%) 0.00ns (<0.01%) [truncated: no-mapping] " +
			"50.51ms (5.1%) 0.00ns (<0.01%) app+0x2345 50.51ms (5.1%) 0.00ns (<0.01%) [truncated: stack-cut] " +
			"202.02ms (20%) 0.00ns (<0.01%) do_syscall_64 202.02ms (20%) 0.00ns (<0.01%) read 626.26ms (63%) 0.00ns (<0.01%) fill(int) " +
			"777.78ms (78%) 0.00ns (<0.01%) main 777.78ms (78%) 0.00ns (<0.01%) __libc_start_main 838.38ms (84%) 0.00ns (<0.01%) app"},
		{"all.folded", p.WriteFolded, "62 (63%) 62 (63%) std::vector<int>::push_back(int const&)_[i] " +
			"20 (20%) 20 (20%) vfs_read_[k] 12 (12%) 12 (12%) main.handle 4 (4.0%) 4 (4.0%) Ljava/lang/String:::hashCode_[j] " +
			"1 (1.0%) 1 (1.0%) [unknown]+0x7fff00001234 4 (4.0%) 0 (<0.01%) [jit]+0x7f0000002000_[j] 16 (16%) 0 (<0.01%) runtime.goexit " +
			"16 (16%) 0 (<0.01%) gosrv 5 (5.1%) 0 (<0.01%) app+0x2345 5 (5.1%) 0 (<0.01%) [truncated: stack-cut] " +
			"1 (1.0%) 0 (<0.01%) [truncated: no-mapping] 13 (13%) 0 (<0.01%) app_worker 20 (20%) 0 (<0.01%) do_syscall_64_[k] " +
			"20 (20%) 0 (<0.01%) read 62 (63%) 0 (<0.01%) fill(int) 77 (78%) 0 (<0.01%) main 77 (78%) 0 (<0.01%) __libc_start_main " +
			"70 (71%) 0 (<0.01%) app"},
		// Weights are its own there, by the distances in time of a thread's samples.
		{"last.perf.txt", p.WritePerfScript, "main.handle Ljava/lang/String;::hashCode ??? ([jit]) runtime.goexit"},
	} {
		t.Run(test.name, func(t *testing.T) {
			data := written(t, test.write)
			script := filepath.Join(t.TempDir(), "profile.js")
			text := fmt.Sprintf("speedscope.loadFileFromBase64(%q, %q)\n", test.name, base64.StdEncoding.EncodeToString(data))
			if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			b := chromium.New(t, 1200, 800)
			b.Visit("file://" + index + "#view=sandwich&localProfilePath=" + script)
			// It draws the rows after the head of their table.
			got := ""
			for deadline := time.Now().Add(4 * time.Minute); got != test.want && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
				_, got, _ = strings.Cut(strings.Join(strings.Fields(b.Text("document.body.innerText")), " "), "Symbol Name ")
				if strings.HasSuffix(test.name, ".perf.txt") {
					got = weights.ReplaceAllString(got, "")
				}
			}
			if got != test.want {
				t.Errorf("it shows %q, want %q", got, test.want)
			}
			b.Screenshot("speedscope-" + test.name)
			b.NoErrors()
		})
	}
}
