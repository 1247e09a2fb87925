package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/loader"
)

// runSwbpf runs the command and returns what it printed and its status.
func runSwbpf(t *testing.T, dir string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.Command(swbpf(t), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errOut
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// needRecord skips where nothing can be recorded.
func needRecord(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "recording needs root")
	}
}

// TestRecordRefuses checks that what cannot work is refused before anything
// is recorded, with status 2, a message that helps, and nothing left behind.
func TestRecordRefuses(t *testing.T) {
	needRecord(t)
	dir := t.TempDir()
	for _, tc := range []struct {
		args string
		want []string // in the message
	}{
		{"-e cpu-clok", []string{"cpu-clok", "cpu-clock"}},
		{"-e sched:sched_swich", []string{"sched:sched_switch"}},
		{"-e nonsense-event", []string{"nonsense-event"}},
		{"-p 0", []string{"process ID"}},
		{"-p 4194305", []string{"4194305"}},
		{"-a -p 1", []string{"exclude"}},
		{"-t 1 -p 1", []string{"-t", "exclude"}},
		{"-t 1 -a", []string{"-t", "exclude"}},
		{"-t 0", []string{"thread ID"}},
		{"-t 4194305", []string{"thread 4194305: no such thread"}},
		{"-C 4095", []string{"CPU 4095 is not online", "online: 0"}},
		{"-C 1-", []string{"malformed"}},
		{"-C 0 --wall", []string{"-C excludes"}},
		{"-a --cgroup / -- true", []string{"exclude"}},
		{"-u root -p 1", []string{"-u", "exclude"}},
		{"-u nosuchuser", []string{"no such user"}},
		{"-u 4294967295", []string{"no such user"}},
		{"--children", []string{"--children goes with -p"}},
		{"--children -- true", []string{"--children goes with -p"}},
		{"--delay 500", []string{"500ms or 500s"}},
		{"-D -1", []string{"duration"}},
		{"-D 1s -p 4194305 -- true", []string{"4194305"}},
		{"true", []string{"after --"}},
		{"-d 1 --", []string{"no command after --"}},
		{"-- /nonexistent/program", []string{"start /nonexistent/program: no such file"}},
		{"-F 99999999", []string{"perf_event_max_sample_rate"}},
		{"-F -1", []string{"from 1 to", "perf_event_max_sample_rate"}},
		{"-F 0", []string{"from 1 to", "perf_event_max_sample_rate"}},
		{"-c 0", []string{"from 1"}},
		{"--stack-bytes 2M", []string{"--stack-bytes"}},
		{"--stack-bytes many", []string{"64K"}},
		{"-d 0", []string{"duration"}},
		{"-o profile.txt", []string{".pb.gz", ".folded", ".html"}},
		{"-o sub.html", []string{"directory"}},
		{"-o /nonexistent/p.html", []string{"/nonexistent/p.html"}},
		{"-o p.html --stats p.html", []string{"p.html is given twice"}},
		{"-o p.html --stats sub.html/../p.html", []string{"outputs p.html and sub.html/../p.html are one file"}},
		{"-e page-faults -e nonsense-event", []string{"nonsense-event"}},
		{"-e cycles,page-faults --off-cpu", []string{"--off-cpu excludes -e"}},
		{"--weight ret:bytes -e page-faults -e syscalls:sys_exit_read", []string{"--weight is for one event"}},
		{"-e a,b,c,d,e -e f,g,h,i", []string{"8 events at most"}},
		{"-e page-faults -F 9 -c 9 -e cycles", []string{"-F and -c exclude each other"}},
		{"-e page-faults -e cpu-clock -o p.html -o p.cpu-clock.html", []string{"p.cpu-clock.html is given twice"}},
		{"-e cycles:uz", []string{"modifiers may be u"}},
		{"-e nosuch/event=1/", []string{"this machine has no nosuch"}},
		{"-e ,", []string{"no event is named"}},
		{"-c 1 -e cpu-clock", []string{"each 1 ns", "perf_event_max_sample_rate"}},
		{"--stats-detail", []string{"--stats-detail goes with --stats"}},
		{"--stats -", []string{"--stats is written to a file"}},
		{"--keep 3", []string{"--keep goes with --every"}},
		{"--every 10ms", []string{"10ms is less than 1s"}},
		{"--every 5 -o -", []string{"standard output", "once"}},
		{"--every 5 --format pprof -o /dev/null", []string{"/dev/null"}},
		{"--every 5 -o /nonexistent/p.html", []string{"/nonexistent/p-"}},
		{"--no-such-flag", []string{"no-such-flag", "--help"}},
	} {
		if err := os.MkdirAll(filepath.Join(dir, "sub.html"), 0o755); err != nil {
			t.Fatal(err)
		}
		args := append([]string{"record"}, strings.Fields(tc.args)...)
		_, msg, status := runSwbpf(t, dir, args...)
		if status != exitCannot {
			t.Errorf("%s: exit status %d\n%s", tc.args, status, msg)
		}
		for _, w := range tc.want {
			if !strings.Contains(msg, w) {
				t.Errorf("%s: the message does not contain %q: %s", tc.args, w, msg)
			}
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%s: left behind %v", tc.args, left)
		}
	}
}

// TestRecordUnprivileged checks what a user without rights is told.
func TestRecordUnprivileged(t *testing.T) {
	needRecord(t)
	cmd := exec.Command(forOthers(t), "record", "-d", "0.1")
	cmd.Dir = filepath.Dir(cmd.Path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != exitCannot || !bytes.Contains(out, []byte("CAP_BPF")) || !bytes.Contains(out, []byte("root")) {
		t.Errorf("%v, status %d: %s", err, cmd.ProcessState.ExitCode(), out)
	}
}

// TestRecordStatus checks that the status of a command is passed on.
func TestRecordStatus(t *testing.T) {
	needRecord(t)
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137} {
		_, msg, status := runSwbpf(t, t.TempDir(), "record", "--", "sh", "-c", script)
		if status != want {
			t.Errorf("%s: status %d, want %d\n%s", script, status, want, msg)
		}
	}
}

// A command that goes on after the recording is waited for, which is said.
func TestRecordWaits(t *testing.T) {
	needRecord(t)
	cmd := exec.Command(swbpf(t), "record", "-d", "0.1", "-o", "p.folded", "--", "sh", "-c", "read line; exit 3")
	cmd.Dir = t.TempDir()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	said := ""
	for lines := bufio.NewScanner(stderr); !strings.HasPrefix(said, "waiting for the end of sh (process "); said = lines.Text() {
		if !lines.Scan() {
			t.Fatal("it does not say that it waits")
		}
	}
	stdin.Close() // which ends the command
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("%v", cmd.ProcessState)
	}
}

// TestRecordInterrupted checks that the first signal ends a recording cleanly
// and a second one at once.
func TestRecordInterrupted(t *testing.T) {
	needRecord(t)
	m := newTmux(t)
	m.keys("clear; cd "+m.dir+"; "+swbpf(t)+" record -o p.pb.gz", "Enter")
	m.wait("whole machine: ", " samples") // what a terminal shows meanwhile
	m.keys("C-c")
	m.wait("lost: ", "go tool pprof p.pb.gz") // of one sample, or many
	if out := m.shell("echo status $?"); !strings.Contains(out, "status 0") {
		t.Errorf("after the first signal: %s", out)
	}
	if st, err := os.Stat(filepath.Join(m.dir, "p.pb.gz")); err != nil || st.Size() == 0 {
		t.Errorf("no profile after Ctrl-C: %v", err)
	}

	// A command that ignores the signal is waited for; the second one does
	// not wait. Those that come too soon after the first are the same.
	dir := t.TempDir()
	cmd := exec.Command(swbpf(t), "record", "-o", "q.pb.gz", "--", "sh", "-c", "trap '' INT; echo on; sleep 1000")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatalf("the command did not run: %v", err)
	}
	done := make(chan *os.ProcessState, 1)
	go func() {
		state, _ := cmd.Process.Wait()
		done <- state
	}()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		cmd.Process.Signal(os.Interrupt)
		select {
		case state := <-done:
			if state.ExitCode() != exitInterrupted {
				t.Errorf("after the second signal: %v", state)
			}
			if got := entries(t, dir); got != "" && got != "q.pb.gz" { // saved after the first, or not
				t.Errorf("left behind %s", got)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Error("the second signal did not end the recording")
}

// TestRecordSignals checks that signals right after the first are the same, and leave
// the profile, and that a later one ends the recording without, and says so. A pipe
// that nobody reads yet keeps it from ending.
func TestRecordSignals(t *testing.T) {
	t.Parallel()
	needRecord(t)
	for _, test := range []struct {
		between time.Duration
		status  int
	}{{20 * time.Millisecond, 0}, {sameSignal + 200*time.Millisecond, exitInterrupted}} {
		pipe := filepath.Join(t.TempDir(), "p.pb.gz")
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd := exec.Command(swbpf(t), "record", "-o", pipe, "--", "sh", "-c", "trap '' INT; echo on; exec sleep 0.2")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Process.Kill()
		if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
			t.Fatalf("the command did not run: %v: %s", err, &stderr)
		}
		cmd.Process.Signal(os.Interrupt)
		time.Sleep(test.between)
		cmd.Process.Signal(os.Interrupt)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(sameSignal): // it waits for the pipe to be read
			readPprof(t, pipe)
			<-ended
		}
		said := strings.Contains(stderr.String(), "a signal ended it at once: what was recorded is not written")
		if status := cmd.ProcessState.ExitCode(); status != test.status || said != (status != 0) {
			t.Errorf("after two signals with %s between: %v: %s", test.between, cmd.ProcessState, &stderr)
		}
	}
}

// TestRecordAwaitsReader checks that a pipe which nobody reads is told of, and that one
// signal ends the wait for that.
func TestRecordAwaitsReader(t *testing.T) {
	t.Parallel()
	needRecord(t)
	pipe := filepath.Join(t.TempDir(), "p.pb.gz")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(swbpf(t), "record", "-o", pipe, "--", "true")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
	defer limit.Stop()
	said := bufio.NewScanner(stderr)
	for said.Scan() && !strings.Contains(said.Text(), "waiting for a program to read "+pipe) {
	}
	cmd.Process.Signal(os.Interrupt)
	rest, _ := io.ReadAll(stderr)
	cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != exitInterrupted {
		t.Errorf("%v after a signal: %s", cmd.ProcessState, rest)
	}
}

// TestRecordLateSignal checks that one signal ends the wait for a command after a recording
// that has ended by itself, as it says.
func TestRecordLateSignal(t *testing.T) {
	needRecord(t)
	path := filepath.Join(t.TempDir(), "p.pb.gz")
	cmd := exec.Command(swbpf(t), "record", "-d", "0.2", "-o", path, "--", "sh", "-c", "exec sleep 1000 2>&-")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	limit := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
	defer limit.Stop()
	said := bufio.NewScanner(stderr)
	for said.Scan() && !strings.Contains(said.Text(), "Ctrl-C waits no longer") {
	}
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	if cmd.ProcessState.ExitCode() != exitInterrupted {
		t.Errorf("after a signal: %v", cmd.ProcessState)
	}
	readPprof(t, path)
}

// TestStatsKeys pins the keys of --stats, which scripts rely on.
func TestStatsKeys(t *testing.T) {
	t.Parallel()
	needRecord(t)
	want := strings.Fields(`duration_seconds event frequency_hz samples user_samples kernel_only_samples
		complete truncated truncated_by_reason lost lost_by_reason frames bytes_copied bytes_sent
		bpf_run_ns bpf_runs unwind_ns
		cpu_user_seconds cpu_system_seconds max_rss_bytes processes modules`)
	slices.Sort(want)
	for _, kind := range []string{"--off-cpu=false", "--off-cpu", "--wall"} {
		dir := t.TempDir()
		if _, msg, status := runSwbpf(t, dir, "record", kind, "--stats", "s.json", "--", "sleep", "0.1"); status != 0 {
			t.Fatalf("%s: status %d: %s", kind, status, msg)
		}
		b, err := os.ReadFile(filepath.Join(dir, "s.json"))
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(m)); !slices.Equal(got, want) {
			t.Errorf("%s: keys %v\nwant %v", kind, got, want)
		}
	}
}

// TestRecordPprof lets pprof itself read a recording.
func TestRecordPprof(t *testing.T) {
	t.Parallel()
	needRecord(t)
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	if _, msg, status := runSwbpf(t, t.TempDir(), "record", "-F", "997", "-o", file, "--", target, "0.5"); status != 0 {
		t.Fatalf("status %d: %s", status, msg)
	}
	for arg, want := range map[string][]string{
		"-top":    {"Type: cpu", "__dynamic_cast"},
		"-traces": {"_start", "__libc_start_main", "main", "chain::level", "comm:", "pid:"},
		"-raw":    {"samples/count cpu/nanoseconds", "libstdc++", "PeriodType: cpu nanoseconds"},
	} {
		out, err := exec.Command(testenv.Pprof(t), "-symbolize=none", arg, file).CombinedOutput()
		if err != nil {
			t.Fatalf("pprof %s: %v\n%s", arg, err, out)
		}
		for _, w := range want {
			if !bytes.Contains(out, []byte(w)) {
				t.Errorf("pprof %s: no %q in\n%.3000s", arg, w, out)
			}
		}
	}
}

// TestRecordThreads checks that threads born after the start are recorded.
func TestRecordThreads(t *testing.T) {
	t.Parallel()
	needRecord(t)
	target := build(t, "threads", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/threads.c")
	cmd := exec.Command(target, "10000", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	var r *recording
	for seconds := 3; seconds < 100; seconds *= 3 { // a busy machine gives little of each
		r = runRecord(t, "-F", "997", "-d", fmt.Sprint(seconds), "-p", fmt.Sprint(cmd.Process.Pid))
		if r.stats.Samples >= 600 {
			break
		}
	}
	tids := map[int64]bool{}
	for _, s := range r.profile.Sample {
		for _, tid := range s.NumLabel["tid"] {
			tids[tid] = true
		}
	}
	// One thread after the other, each of 100 ms of CPU time: of any 200 samples
	// in a row some are of a thread born later.
	if want := int(r.stats.Samples) / 200; len(tids) < want || want == 0 {
		t.Errorf("%d samples are of %d threads", r.stats.Samples, len(tids))
	}
	wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99)
}

// A recording of processes ends with the last of them.
func TestRecordProcessesEnd(t *testing.T) {
	needRecord(t)
	var pids []string
	var end []func()
	for range 2 {
		cat := exec.Command("cat")
		in, err := cat.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cat.Start(); err != nil {
			t.Fatal(err)
		}
		end = append(end, sync.OnceFunc(func() { in.Close(); cat.Wait() }))
		defer end[len(end)-1]()
		pids = append(pids, strconv.Itoa(cat.Process.Pid))
	}
	cmd := exec.Command(swbpf(t), "record", "-p", strings.Join(pids, ","), "-o", "p.pb.gz")
	cmd.Dir = t.TempDir()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	watches := func(n int) func() bool {
		fds := fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid)
		return func() bool {
			files, _ := os.ReadDir(fds)
			files = slices.DeleteFunc(files, func(f os.DirEntry) bool {
				link, _ := os.Readlink(filepath.Join(fds, f.Name()))
				return !strings.Contains(link, "pidfd")
			})
			return len(files) == n
		}
	}
	waitFor(t, "both processes to be watched", watches(2))
	end[0]()
	waitFor(t, "the first to have been seen to end", watches(1))
	end[1]()
	var err error
	waitFor(t, "the recording to end", func() bool {
		select {
		case err = <-ended:
			return true
		default:
			return false
		}
	})
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	readPprof(t, filepath.Join(cmd.Dir, "p.pb.gz"))
}

// A command that was not let go when its recording ends, as sampling could not be
// started, is killed, and one that runs is left alone.
func TestRecorderCloseCommand(t *testing.T) {
	for _, runs := range []bool{false, true} {
		c, err := loader.StartCommand([]string{"sleep", "0.2"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Kill()
		r := &recorder{signals: make(chan os.Signal), session: new(loader.Session), command: c, began: time.Now()}
		if runs {
			c.Resume()
		} else if err := r.session.Start(); err == nil {
			t.Fatal("a session that is not open starts")
		}
		r.close()
		want := map[bool]int{false: 128 + int(unix.SIGKILL), true: 0}[runs]
		select {
		case <-c.Done():
		case <-time.After(10 * time.Second):
			t.Fatalf("let go: %v: the command is still there", runs)
		}
		if state, err := c.Wait(); err != nil || loader.ExitCode(state) != want {
			t.Errorf("let go: %v: %v, %v, want exit code %d", runs, state, err, want)
		}
	}
}

// Where the kernel does not tell of the end of some process, none is watched.
func TestProcessesDoneUnknown(t *testing.T) {
	watched := func() (n int) {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if link, _ := os.Readlink(filepath.Join("/proc/self/fd", f.Name())); strings.Contains(link, "pidfd") {
				n++
			}
		}
		return n
	}
	before := watched()
	if done := loader.ProcessesDone([]int{os.Getpid(), 1 << 22, -1}); done != nil { // ESRCH, EINVAL
		t.Error("the end of what is no process can be waited for")
	}
	if n := watched() - before; n != 0 {
		t.Errorf("%d descriptors left open", n)
	}
}

// A signal while the recording starts ends it, with a file.
func TestRecordInterruptedAtStart(t *testing.T) {
	needRecord(t)
	dir := t.TempDir()
	cmd := exec.Command(swbpf(t), "record", "-o", "p.pb.gz")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	// It heeds signals from before it opens the file and its events.
	fds := fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid)
	waitFor(t, "the file under way", func() bool {
		files, _ := os.ReadDir(fds)
		return slices.ContainsFunc(files, func(f os.DirEntry) bool {
			link, _ := os.Readlink(filepath.Join(fds, f.Name()))
			return strings.HasPrefix(link, dir) || strings.Contains(link, "perf_event")
		})
	})
	cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	readPprof(t, filepath.Join(dir, "p.pb.gz"))
}
