package main

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/profile"
)

// startShell runs a script, until it says something. All that it has started ends with the test.
func startShell(t *testing.T, uid uint32, script string) (pid string, in interface{ Close() error }) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid}, Setpgid: true}
	in, out := testenv.Start(t, cmd)
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(cmd.Process.Pid), in
}

// With a command, what is named besides is recorded for as long as that runs; its status is passed on.
func TestRecordWhile(t *testing.T) {
	t.Parallel()
	needRecord(t)
	testenv.Needs(t, "taskset")
	const user = 54321
	busy, _ := startShell(t, user, "echo on; while :; do :; done")
	const ( // what has samples
		other = 1 << iota
		command
		more
	)
	type want struct {
		target  string
		samples int
	}
	cases := map[string]want{
		"-p " + busy: {"pid " + busy, other}, "-p " + busy + " --children": {"pid " + busy + " and children", other}, "-t " + busy: {"thread " + busy, other},
		"-u " + fmt.Sprint(user): {"user 54321", other}, "-a": {wholeMachine, other | command}, "": {"taskset", command}, "-C 0": {"taskset on CPU 0", command}, "-a -C 0": {"CPU 0", command},
	}
	if cgroup, err := os.MkdirTemp(unifiedCgroups(t), "swbpf-test-*"); err == nil {
		move := func(to string) { _ = os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(busy), 0) }
		move(cgroup)
		t.Cleanup(func() { move(filepath.Dir(cgroup)); os.Remove(cgroup) })
		cases["--cgroup /"+filepath.Base(cgroup)] = want{"cgroup /" + filepath.Base(cgroup), other}
	}
	at := regexp.MustCompile(`(?m)^\S.* +(\d+)/\d+ +\d+\.\d+: `)
	for args, want := range cases {
		dir := t.TempDir()
		all := append([]string{"record", "-F", "499", "-o", "p.pb.gz", "-o", "p.perf.txt"}, strings.Fields(args)...)
		_, said, status := runSwbpf(t, dir, append(all, "--", "taskset", "1", "sh", "-c", "echo $$ > pid; i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done; exit 7")...)
		own, _ := os.ReadFile(filepath.Join(dir, "pid"))
		text, _ := os.ReadFile(filepath.Join(dir, "p.perf.txt"))
		got := 0
		for _, m := range at.FindAllSubmatch(text, -1) {
			switch string(m[1]) {
			case busy:
				got |= other
			case strings.TrimSpace(string(own)):
				got |= command
			default:
				got |= more
			}
		}
		switch args { // whatever else runs, if anything does
		case "-a":
			got &^= more
		case "-a -C 0":
			got &= command
		}
		p, err := readProfile(filepath.Join(dir, "p.pb.gz"), profile.ReadOptions{}, codeOptions{})
		if err != nil || p.Meta.Target != want.target || got != want.samples || status != 7 {
			t.Errorf("%s: %v, status %d, target %q, samples of %b, want %+v\n%s", args, err, status, p.Meta.Target, got, want, said)
		}
	}
}

// A recording ends with the last of the processes or threads that it is of, whatever the command does,
// which is waited for.
func TestRecordWhileTargetEnds(t *testing.T) {
	needRecord(t)
	for _, flag := range []string{"-p", "-t"} {
		pid, end := startShell(t, 0, "echo on; read line")
		dir := t.TempDir()
		cmd := exec.Command(swbpf(t), "record", flag, pid, "-o", "p.pb.gz", "--", "sh", "-c", "echo run > ran; exec sleep 1000 2>&-")
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		waitFor(t, "the command to run", func() bool { return exists(filepath.Join(dir, "ran")) })
		end.Close()
		said := bufio.NewScanner(stderr)
		for said.Scan() && !strings.HasPrefix(said.Text(), "waiting for the end of sh (process ") {
		}
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		if cmd.ProcessState.ExitCode() != exitInterrupted {
			t.Errorf("%s: after a signal: %v", flag, cmd.ProcessState)
		}
		readPprof(t, filepath.Join(dir, "p.pb.gz"))
	}
}

// kinScript has a child that runs a program again and again, while one of another family runs another.
const kinScript = `(while :; do (%s; true); done) & echo on; wait`

// What descends from a process is recorded, what ran before included, as the kernel's own trace has it.
func TestRecordChildren(t *testing.T) {
	needRecord(t)
	trace := traceExecs(t)
	dir := t.TempDir()
	for _, name := range []string{"kin", "stranger"} {
		testenv.Run(t, exec.Command("cp", "/bin/true", filepath.Join(dir, name)))
	}
	root, _ := startShell(t, 0, fmt.Sprintf(kinScript, filepath.Join(dir, "kin")))
	startShell(t, 0, fmt.Sprintf(kinScript, filepath.Join(dir, "stranger")))
	_, said, status := runSwbpf(t, dir, "record", "-e", "sched:sched_process_exec", "-p", root, "--children", "-o", "p.perf.txt", "--", "sleep", "1")
	if status != 0 {
		t.Fatalf("status %d\n%s", status, said)
	}
	text, err := os.ReadFile(filepath.Join(dir, "p.perf.txt"))
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := map[string]float64{}, map[string]float64{} // s at which a process has become this program
	for _, m := range regexp.MustCompile(`(?m)^(\S+) +(\d+)/\d+ +(\d+\.\d+): `).FindAllSubmatch(text, -1) {
		if mine[string(m[2])], _ = strconv.ParseFloat(string(m[3]), 64); string(m[1]) != "kin" {
			t.Errorf("a sample of process %s, %s", m[2], m[1])
		}
	}
	for _, m := range regexp.MustCompile(`(?m) (\d+\.\d+): sched_process_exec: filename=\S*/kin pid=(\d+) `).FindAllSubmatch(trace(), -1) {
		theirs[string(m[2])], _ = strconv.ParseFloat(string(m[1]), 64)
	}
	times := slices.Sorted(maps.Values(mine))
	if len(times) < 3 {
		t.Fatalf("%d processes\n%s", len(times), said)
	}
	var missing, more []string
	for pid, at := range theirs {
		if _, has := mine[pid]; !has && at > times[0] && at < times[len(times)-1] {
			missing = append(missing, pid)
		}
	}
	for pid := range mine {
		if _, has := theirs[pid]; !has {
			more = append(more, pid)
		}
	}
	if len(missing)+len(more) > 0 {
		t.Errorf("%d processes; without %v, and %v the kernel does not know\n%s", len(mine), missing, more, said)
	}
}

// traceExecs has the kernel trace new programs, until the function is called that returns its text.
func traceExecs(t *testing.T) (end func() []byte) {
	t.Helper()
	at := "/sys/kernel/tracing/instances/swbpf-test"
	if err := os.Mkdir(at, 0o700); err != nil {
		testenv.Lacks(t, "the kernel's trace: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(at) })
	enable := filepath.Join(at, "events/sched/sched_process_exec/enable")
	for path, text := range map[string]string{filepath.Join(at, "trace_clock"): "mono", enable: "1"} {
		if err := os.WriteFile(path, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	return func() []byte {
		_ = os.WriteFile(enable, []byte("0"), 0)
		text, err := os.ReadFile(filepath.Join(at, "trace"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
}

// A recording with --children ends when all that descends from the process has ended, too.
func TestRecordChildrenEnd(t *testing.T) {
	needRecord(t)
	alive, aliveEnd, err := os.Pipe() // of the child
	if err != nil {
		t.Fatal(err)
	}
	root := exec.Command("sh", "-c", "cat <&3 >/dev/null & echo on; read line")
	root.ExtraFiles = []*os.File{alive}
	in, out := testenv.Start(t, root)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	alive.Close()
	cmd := exec.Command(swbpf(t), "record", "-p", fmt.Sprint(root.Process.Pid), "--children", "-e", "page-faults", "-o", "p.pb.gz")
	cmd.Dir = t.TempDir()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	watched := func(of int) func() bool {
		return func() bool {
			infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", cmd.Process.Pid))
			return slices.ContainsFunc(infos, func(path string) bool {
				b, _ := os.ReadFile(path)
				return strings.Contains(string(b), fmt.Sprintf("\nPid:\t%d\n", of)) // of a pidfd
			})
		}
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", root.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	child, _ := strconv.Atoi(strings.TrimSpace(string(children)))
	waitFor(t, "the process to be watched", watched(root.Process.Pid))
	in.Close() // ends the process
	waitFor(t, "its child to be watched", watched(child))
	select {
	case err := <-ended:
		t.Fatalf("the recording has ended before the child: %v\n%s", err, &stderr)
	default:
	}
	aliveEnd.Close()
	select {
	case err = <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the recording goes on after the end of the child")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	readPprof(t, filepath.Join(cmd.Dir, "p.pb.gz"))
}

// Sampling begins after --delay, from when on -d counts.
func TestRecordDelay(t *testing.T) {
	t.Parallel()
	needRecord(t)
	at := regexp.MustCompile(`(?m)^\S.* +\d+/\d+ +(\d+\.\d+): `)
	for _, kind := range []string{"-F 499", "-e cpu-clock,sched:sched_switch", "--off-cpu", "--wall"} {
		dir := t.TempDir()
		args := append([]string{"record", "--delay", "600ms", "-d", "1", "-o", "p.perf.txt", "--stats", "stats.json"}, strings.Fields(kind)...)
		_, said, status := runSwbpf(t, dir, append(args, "--", "sh", "-c", "read up idle < /proc/uptime; echo $up > began; i=0; while [ $i -lt 200 ]; do sleep 0.01; i=$((i+1)); done")...)
		if status != 0 {
			t.Fatalf("%s: status %d\n%s", kind, status, said)
		}
		var began, first, last float64
		b, _ := os.ReadFile(filepath.Join(dir, "began"))
		_, _ = fmt.Sscan(string(b), &began)
		files, _ := filepath.Glob(filepath.Join(dir, "p*.perf.txt"))
		for _, f := range files {
			text, _ := os.ReadFile(f)
			n := 0
			for _, m := range at.FindAllSubmatch(text, -1) {
				s, _ := strconv.ParseFloat(string(m[1]), 64)
				if n++; first == 0 || s < first {
					first = s
				}
				last = max(last, s)
			}
			if n < 5 {
				t.Errorf("%s: %d samples in %s\n%s", kind, n, f, said)
			}
		}
		if began == 0 || first < began+0.6-0.2 || last > first+1.5 || last < first+0.5 {
			t.Errorf("%s: begun at %.3f, samples from %.3f to %.3f s\n%s", kind, began, first, last, said)
		}
		if !regexp.MustCompile(` in 1\.[0-4] s, `).MatchString(said) {
			t.Errorf("%s: not one second\n%s", kind, said)
		}
	}
	// A thread that sleeps since before counts from then on.
	r := runRecord(t, "--wall", "--delay", "300ms", "-d", "1", "--", "sleep", "2")
	if _, ns := valuesOf(r.profile, "wall", ""); ns < 99e7 || float64(ns) > r.stats.DurationSeconds*1.01e9 {
		t.Errorf("%d ns of a thread in %.3f s\n%s", ns, r.stats.DurationSeconds, r.stderr)
	}
	r = runRecord(t, "--delay", "1m", "--", "sh", "-c", "exit 3")
	if r.exit != 3 || r.stats.Samples != 0 || !strings.Contains(r.stderr, "ended within --delay") {
		t.Errorf("a command that ends within the delay: status %d, %d samples\n%s", r.exit, r.stats.Samples, r.stderr)
	}
	dir := t.TempDir()
	if _, said, status := runSwbpf(t, dir, "record", "--delay", "1.2s", "--every", "1s", "-d", "1.5s", "-o", "p.folded"); status != 0 || !strings.Contains(said, "2 profiles written") {
		t.Errorf("in parts: status %d\n%s", status, said)
	}
	if _, said, status := runSwbpf(t, dir, "record", "--delay", "1m", "--every", "1s", "-o", "q.folded", "--", "true"); status != 0 || !strings.Contains(said, "1 profile written") {
		t.Errorf("a part that ends within the delay: status %d\n%s", status, said)
	}
}
