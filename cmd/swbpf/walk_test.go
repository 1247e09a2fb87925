package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// walkSource is a source file among the targets of the package at the root.
func walkSource(name string) string { return filepath.Join("..", "..", "testdata", "walk", name) }

// startWalkTarget builds and starts a program of testdata/walk.
func startWalkTarget(t *testing.T, source string, flags []string, args ...string) *exec.Cmd {
	t.Helper()
	name := "walk-" + strings.TrimSuffix(source, ".c")
	command := append(append([]string{"gcc"}, flags...), "-pthread", "-fno-optimize-sibling-calls", "-o", "OUT", walkSource(source))
	cmd := exec.Command(build(t, name, command...), args...)
	startReady(t, cmd)
	waitFor(t, source+" to come to rest", func() bool { return !strings.ContainsAny(threadStates(t, cmd.Process.Pid), "RD") })
	return cmd
}

// startReady starts a program that says "ready", and then waits for the end of its
// input, which is the end of the test.
func startReady(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	_, out := testenv.Start(t, cmd)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%s says %q, %v", filepath.Base(cmd.Path), line, err)
	}
}

// threadStates returns the letters of the states of a process's threads.
func threadStates(t *testing.T, pid int) (states string) {
	t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(names) == 0 {
		t.Fatalf("no threads of process %d: %v", pid, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		states += string(b[bytes.LastIndexByte(b, ')')+2])
	}
	return states
}

// runWalk runs the command and returns its output and exit code.
func runWalk(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runSwbpf(t, "", append([]string{"walk"}, args...)...)
}

// keysOf returns the keys of a JSON object, in the order they are written.
func keysOf(t *testing.T, raw json.RawMessage) (keys []string) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.Token()
	for d.More() {
		k, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k.(string))
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
	}
	return keys
}

// TestWalkAfterTracer walks a process that another tracer has: while it keeps it,
// that is said, and who it is; after one that does not for long, it is walked.
func TestWalkAfterTracer(t *testing.T) {
	t.Parallel()
	cmd := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "5", "7", "quiet")
	pid := strconv.Itoa(cmd.Process.Pid)
	trace := func() (end func()) {
		seized, ending, ended := make(chan error), make(chan struct{}), make(chan error)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			seized <- unix.PtraceSeize(cmd.Process.Pid)
			<-ending
			err := unix.PtraceInterrupt(cmd.Process.Pid)
			if err == nil {
				_, err = unix.Wait4(cmd.Process.Pid, nil, unix.WALL, nil)
			}
			if err == nil {
				err = unix.PtraceDetach(cmd.Process.Pid)
			}
			ended <- err
		}()
		if err := <-seized; err != nil {
			t.Fatal(err)
		}
		return sync.OnceFunc(func() {
			close(ending)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	end := trace()
	defer end()
	for _, args := range [][]string{{pid}, {"--locals", pid}, {"--tid", pid, pid}} {
		_, stderr, code := runWalk(t, args...)
		if want := fmt.Sprintf("by process %d (", os.Getpid()); code != exitTraced || !strings.Contains(stderr, want) {
			t.Errorf("walk %v: exit %d: %s", args, code, stderr)
		}
	}
	end()
	for _, args := range [][]string{{pid}, {"--locals", pid}, {"--tid", pid, pid}} {
		end := trace()
		time.AfterFunc(300*time.Millisecond, end)
		out, stderr, code := runWalk(t, args...)
		end()
		if code != exitOK || strings.Contains(out, "traced") {
			t.Errorf("walk %v of a process that is traced for a moment: exit %d: %s%s", args, code, stderr, out)
		}
	}
}

func TestWalkJSON(t *testing.T) {
	cmd := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "5", "7", "quiet")
	out, stderr, code := runWalk(t, "--json", strconv.Itoa(cmd.Process.Pid))
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if strings.Count(out, "\n") != 1 {
		t.Errorf("%d lines, want one object on one", strings.Count(out, "\n"))
	}
	var p struct {
		jsonProcess
		Threads []json.RawMessage `json:"threads"`
	}
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	if want := strings.Fields("pid exe command arch stopped_ns walk_ns threads"); !slices.Equal(keysOf(t, json.RawMessage(out)), want) {
		t.Errorf("process has keys %v, want %v", keysOf(t, json.RawMessage(out)), want)
	}
	if p.PID != cmd.Process.Pid || p.StoppedNs <= 0 || p.WalkNs < p.StoppedNs || len(p.Threads) != 6 {
		t.Errorf("pid %d, stopped %d ns, walk %d ns, %d threads", p.PID, p.StoppedNs, p.WalkNs, len(p.Threads))
	}
	if !slices.Equal(p.Command, cmd.Args) {
		t.Errorf("command %q, want %q", p.Command, cmd.Args)
	}
	for i, raw := range p.Threads {
		if want := strings.Fields("tid name state complete reason frames wait"); !slices.Equal(keysOf(t, raw), want) {
			t.Errorf("thread has keys %v, want %v", keysOf(t, raw), want)
		}
		var th struct {
			jsonThread
			Frames []json.RawMessage `json:"frames"`
		}
		if err := json.Unmarshal(raw, &th); err != nil {
			t.Fatal(err)
		}
		if !th.Complete || th.Reason != "" || th.State != "sleeping" || th.Name != "walk-threads" {
			t.Errorf("thread %+v", th.jsonThread)
		}
		steps := 0
		var top string // PC of the top frame, which calls inlined into it share
		for j, raw := range th.Frames {
			if want := strings.Fields("index pc sp fp pc_location sp_location fp_location function offset module module_offset build_id file line inlined stepper non_call"); !slices.Equal(keysOf(t, raw), want) {
				t.Fatalf("frame has keys %v, want %v", keysOf(t, raw), want)
			}
			var f jsonFrame
			if err := json.Unmarshal(raw, &f); err != nil {
				t.Fatal(err)
			}
			if f.Index != j {
				t.Errorf("frame %d has index %d", j, f.Index)
			}
			for _, s := range []string{f.PC, f.SP, f.FP, f.Offset, f.ModuleOffset} {
				if _, err := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 64); err != nil || !strings.HasPrefix(s, "0x") {
					t.Errorf("address %q", s)
				}
			}
			if j == 0 {
				top = f.PC
			}
			if j == 0 && (f.PCLocation != jsonLocation{Kind: "register", Register: "rip"}) && (f.PCLocation != jsonLocation{Kind: "register", Register: "pc"}) {
				t.Errorf("PC of the top frame is in %+v", f.PCLocation)
			}
			if f.PC != top && !f.Inlined && (f.PCLocation.Kind != "address" || f.PCLocation.Address == "") {
				t.Errorf("frame %d: PC is in %+v", j, f.PCLocation)
			}
			if f.Function == "step" && !strings.HasSuffix(f.File, "threads.c") {
				t.Errorf("step is in %q", f.File)
			}
			if f.Function == "step" && !f.Inlined {
				steps++
			}
		}
		if want := 8; i > 0 && steps != want {
			t.Errorf("thread %d: %d frames of step, want %d", i, steps, want)
		}
	}
}

func TestWalkText(t *testing.T) {
	cmd := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "5", "7", "quiet")
	pid := strconv.Itoa(cmd.Process.Pid)
	out, stderr, code := runWalk(t, pid)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if !strings.Contains(out, "6 threads, stopped for ") || !strings.Contains(out, "\n5 threads ") || strings.Count(out, ": complete\n") != 2 {
		t.Errorf("grouped output:\n%s", out)
	}
	if strings.Count(out, " step+0x") != 8 || !strings.Contains(out, "threads.c:") {
		t.Errorf("output:\n%s", out)
	}
	if want := "\ncommand: " + cmd.Path + " 5 7 quiet\n"; !strings.Contains(out, want) {
		t.Errorf("there is no %q:\n%s", want, out)
	}
	out, _, _ = runWalk(t, "--no-group", pid)
	if strings.Count(out, ": complete\n") != 6 {
		t.Errorf("--no-group:\n%s", out)
	}
	out, _, _ = runWalk(t, "--symbols=no", pid)
	if strings.Contains(out, "step") || !strings.Contains(out, "walk-threads+0x") {
		t.Errorf("--symbols=no:\n%s", out)
	}
	out, _, _ = runWalk(t, "--symbols=functions", pid)
	if strings.Count(out, " step+0x") != 8 || strings.Contains(out, "threads.c:") {
		t.Errorf("--symbols=functions:\n%s", out)
	}
	out, _, code = runWalk(t, "--tid", pid, pid)
	if code != exitOK || strings.Count(out, ": complete\n") != 1 || !strings.Contains(out, "thread "+pid+" ") {
		t.Errorf("--tid: exit %d\n%s", code, out)
	}
	if alone, _, code := runWalk(t, "-t", pid); code != exitOK || strings.Count(alone, ": complete\n") != 1 || !strings.Contains(alone, "thread "+pid+" ") {
		t.Errorf("-t alone: exit %d\n%s", code, alone)
	}
}

// Threads of a pool, whose names differ in a number, are shown once.
func TestWalkTextPool(t *testing.T) {
	cmd := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "12", "3", "quiet", "pool-1-run-")
	pid := strconv.Itoa(cmd.Process.Pid)
	out, stderr, code := runWalk(t, pid)
	if code != exitOK || strings.Count(out, "\n12 threads ") != 1 || !strings.Contains(out, ` "pool-1-run-*" sleeping in pause: complete`) {
		t.Errorf("exit %d: %s\n%s", code, stderr, out)
	}
	out, _, _ = runWalk(t, "--no-group", pid)
	for i := range 12 {
		if want := fmt.Sprintf(` "pool-1-run-%d" sleeping in pause: complete`, i); strings.Count(out, want) != 1 {
			t.Errorf("--no-group: no %s in\n%s", want, out)
		}
	}
}

// All that an interpreter runs has the same addresses: threads are of one group where
// they run the same.
func TestWalkTextInterpreter(t *testing.T) {
	testenv.SomePython(t, func(t *testing.T, python testenv.Program) {
		command := python.Command("-c", `
import sys, threading
def one(): stop.wait()
def other(): stop.wait()
stop = threading.Event()
for f in one, other, other: threading.Thread(target=f, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
`)
		cmd := exec.Command(command[0], command[1:]...)
		startReady(t, cmd)
		waitFor(t, "python to come to rest", func() bool { return !strings.ContainsAny(threadStates(t, cmd.Process.Pid), "RD") })
		out, stderr, code := runWalk(t, strconv.Itoa(cmd.Process.Pid))
		if code != exitOK {
			t.Fatalf("exit %d: %s\n%s", code, stderr, out)
		}
		for _, stack := range strings.Split(out, "\n\n")[1:] {
			head, frames, _ := strings.Cut(stack, "\n")
			if strings.Contains(frames, " other ") != strings.HasPrefix(head, "2 threads ") {
				t.Errorf("%s\n%s", head, frames)
			}
		}
		if !strings.Contains(out, " one ") || !strings.Contains(out, " other ") {
			t.Errorf("a function is missing:\n%s", out)
		}
	})
}

func TestWalkCore(t *testing.T) {
	testenv.Needs(t, "gdb")
	cmd := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "3", "7", "quiet")
	core := filepath.Join(t.TempDir(), "core")
	testenv.Run(t, exec.Command("gdb", "-nx", "-batch", "-readnever", "-p", strconv.Itoa(cmd.Process.Pid), "-ex", "generate-core-file "+core))
	out, stderr, code := runWalk(t, "--core", core)
	if code != exitOK || !strings.Contains(out, "\n3 threads ") || strings.Count(out, ": complete\n") != 2 || strings.Count(out, " step+0x") != 8 {
		t.Errorf("exit %d, %s\n%s", code, stderr, out)
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	out, _, code = runWalk(t, "--core", core, "--exe", exe, "--json", "--tid", strconv.Itoa(cmd.Process.Pid))
	var p jsonProcess
	if err := json.Unmarshal([]byte(out), &p); err != nil || code != exitOK || len(p.Threads) != 1 || p.PID != cmd.Process.Pid || p.StoppedNs != 0 {
		t.Errorf("exit %d, %v\n%s", code, err, out)
	}
	if _, stderr, code := runWalk(t, "--core", exe); code != exitCannot || !strings.Contains(stderr, "not an ELF core file") {
		t.Errorf("a program as core: exit %d, %s", code, stderr)
	}
	damageLastHeader(t, core)
	if out, stderr, _ := runWalk(t, "--core", core); !strings.Contains(stderr, "is damaged: 1 program header (from 0: ") ||
		strings.Contains(stderr, "cut short") || !strings.Contains(out, "\n3 threads ") {
		t.Errorf("a core with a damaged header: %s\n%s", stderr, out)
	}
	st, err := os.Stat(core)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(core, st.Size()/2); err != nil {
		t.Fatal(err)
	}
	if _, stderr, _ := runWalk(t, "--core", core); !strings.Contains(stderr, "is cut short") {
		t.Errorf("half a core: %s", stderr)
	}
}

// TestWalkCoreWithoutProgram checks that a stack of a core file whose program is missing
// says so, and names the flag for it.
func TestWalkCoreWithoutProgram(t *testing.T) {
	testenv.Needs(t, "gdb")
	program := build(t, "walk-missing", "gcc", "-O1", "-g", "-pthread", "-fno-optimize-sibling-calls", "-o", "OUT", walkSource("threads.c"))
	dir := t.TempDir()
	moved, core := filepath.Join(dir, "moved"), filepath.Join(dir, "core")
	testenv.Run(t, exec.Command("cp", program, filepath.Join(dir, "missing")))
	cmd := exec.Command(filepath.Join(dir, "missing"), "3", "7", "quiet")
	startReady(t, cmd)
	waitFor(t, "the program to come to rest", func() bool { return !strings.ContainsAny(threadStates(t, cmd.Process.Pid), "RD") })
	testenv.Run(t, exec.Command("gdb", "-nx", "-batch", "-readnever", "-p", strconv.Itoa(cmd.Process.Pid), "-ex", "generate-core-file "+core))
	if err := os.Rename(filepath.Join(dir, "missing"), moved); err != nil {
		t.Fatal(err)
	}
	out, _, code := runWalk(t, "--core", core)
	if want := "  ends here: no-file: the program of the core file could not be read (open " + dir + "/missing: no such file or directory); name it, where it is now, by --exe\n"; code != exitOK || !strings.Contains(out, want) {
		t.Errorf("exit %d, without %q:\n%s", code, want, out)
	}
	if out, stderr, code := runWalk(t, "--core", core, "--exe", moved); code != exitOK || strings.Contains(out, "ends here") {
		t.Errorf("with --exe: exit %d, %s\n%s", code, stderr, out)
	}
}

// damageLastHeader gives the last program header of a core a size that none can have.
func damageLastHeader(t *testing.T, core string) {
	t.Helper()
	f, err := os.OpenFile(core, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var h [64]byte
	if _, err := f.ReadAt(h[:], 0); err != nil {
		t.Fatal(err)
	}
	last := binary.LittleEndian.Uint64(h[32:]) + 56*uint64(binary.LittleEndian.Uint16(h[56:])-1)
	if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, 0xfffffffffff00000), int64(last)+32); err != nil {
		t.Fatal(err)
	}
}

// TestWalkExit checks what the command says, and its exit code, where there is
// nothing to walk.
func TestWalkExit(t *testing.T) {
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { zombie.Wait() })
	waitFor(t, "its end", func() bool { return threadStates(t, zombie.Process.Pid) == "Z" })
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "1", "1", "quiet")
	pid := strconv.Itoa(target.Process.Pid)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitCannot, "which process?"},
		{[]string{"abc"}, exitCannot, `"abc" is not a process ID`},
		{[]string{"-p", "abc"}, exitCannot, `"abc" is not a process ID`},
		{[]string{"/dev/null"}, exitCannot, "a core file is given as --core /dev/null"},
		{[]string{"--symbols=maybe", pid}, exitCannot, "yes, functions or no"},
		{[]string{"--tid=x", pid}, exitCannot, `"x" is not a thread ID`},
		{[]string{"--exe", "x", pid}, exitCannot, "--core"},
		{[]string{"--stop-limit", "1s", pid}, exitCannot, "--stop-limit goes with --args or --locals"},
		{[]string{"--stop-limit", "1s", "--args", "--core", "x"}, exitCannot, "--stop-limit goes with a process ID"},
		{[]string{"--tid", pid, "--goroutines=all", pid}, exitCannot, "excludes --goroutines=all"},
		{[]string{"4194304"}, exitNoProcess, "no such process"},
		{[]string{"--tid", "4194304", pid}, exitNoProcess, "no such thread"},
		{[]string{"-t", "4194304"}, exitNoProcess, "thread 4194304: no such thread"},
		{[]string{"-t", pid + "," + strconv.Itoa(os.Getpid())}, exitCannot, "of several processes"},
		{[]string{"--tid", strconv.Itoa(os.Getpid()), pid}, exitNoProcess, "no such thread"},
		{[]string{strconv.Itoa(zombie.Process.Pid)}, exitZombie, "zombie"},
		{[]string{"--core", "/nonexistent"}, exitFailure, "no such file"},
	} {
		_, stderr, code := runWalk(t, c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) || !strings.HasPrefix(stderr, "swbpf: ") {
			t.Errorf("walk %v: exit %d, %q; want %d, %q", c.args, code, stderr, c.code, c.says)
		}
	}
	// Of several processes, those that can be walked are, each once.
	for _, args := range [][]string{{"4194304", pid}, {"-p", "4194304," + pid, pid}} {
		out, stderr, code := runWalk(t, args...)
		if code != exitNoProcess || strings.Count(out, "process "+pid) != 1 || !strings.Contains(stderr, "no such process") {
			t.Errorf("one of two: walk %v: exit %d, %q\n%s", args, code, stderr, out)
		}
	}
}

// TestWalkOtherUser walks a process of another user, without privileges.
func TestWalkOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "changing the user needs root")
	}
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "1", "1", "quiet")
	cmd := exec.Command(forOthers(t), "walk", strconv.Itoa(target.Process.Pid))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != exitNotPermitted || !strings.Contains(stderr.String(), "belongs to user 0") {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}

// TestWalkNamespace: the ID that a process has in its own PID namespace is
// explained.
func TestWalkNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "a PID namespace needs root")
	}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		testenv.Lacks(t, "a PID namespace: %v", err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	out, stderr, code := runWalk(t, strconv.Itoa(cmd.Process.Pid))
	if code != exitOK || !strings.Contains(out, ": complete\n") {
		t.Errorf("by its ID here: exit %d, %s\n%s", code, stderr, out)
	}
}

func TestWalkWatch(t *testing.T) {
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "4", "7", "quiet")
	cmd := exec.Command(swbpf(t), "walk", "--watch", "50ms", strconv.Itoa(target.Process.Pid))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var s string
	enough := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		s += lines.Text() + "\n"
		if !enough && strings.Count(s, "5 threads, stopped for") >= 3 && strings.Contains(s, "[same for ") {
			enough = true
			cmd.Process.Signal(os.Interrupt)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	if !strings.Contains(s, "    4 x sleeping   walk-threads in pause: ") || !strings.Contains(s, "step x8 < work < ") || !strings.Contains(s, "[same for ") {
		t.Errorf("output:\n%s", s)
	}
}

// Of each process that is not there, or is there no more, that is told once.
func TestWatchEnded(t *testing.T) {
	_, stderr, code := runWalk(t, "--watch", "20ms", "4194304", "4194303")
	if code != exitNoProcess || strings.Count(stderr, "no such process") != 2 || strings.Count(stderr, "\n") != 2 {
		t.Errorf("none is there: exit %d, %q", code, stderr)
	}
	first, second := exec.Command("sleep", "1000"), exec.Command("sleep", "1000")
	for _, target := range []*exec.Cmd{first, second} {
		if err := target.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { target.Process.Kill(); target.Wait() })
	}
	cmd := exec.Command(swbpf(t), "walk", "--watch", "20ms", strconv.Itoa(first.Process.Pid), "4194304", strconv.Itoa(second.Process.Pid))
	errOut, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }).Stop()
	lines, messages := bufio.NewScanner(out), bufio.NewScanner(errOut)
	round := func() { // at least one
		for n := 0; n < 2 && lines.Scan(); {
			if strings.Contains(lines.Text(), fmt.Sprintf("process %d ", first.Process.Pid)) {
				n++
			}
		}
	}
	told := func(pid int) {
		t.Helper()
		if messages.Scan(); !strings.Contains(messages.Text(), strconv.Itoa(pid)) {
			t.Errorf("of %d: %q", pid, messages.Text())
		}
	}
	round()
	told(4194304)
	round()
	second.Process.Kill()
	second.Wait()
	told(second.Process.Pid)
	round()
	first.Process.Kill()
	first.Wait()
	told(first.Process.Pid)
	for lines.Scan() {
	}
	for messages.Scan() {
		t.Errorf("told once more: %s", messages.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A process that another tracer has for a while is watched on afterwards.
func TestWatchTraced(t *testing.T) {
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "1", "1", "quiet")
	cmd := exec.Command(swbpf(t), "walk", "--watch", "20ms", strconv.Itoa(target.Process.Pid))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errOut, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := target.Process.Pid
	lines, messages := bufio.NewScanner(out), bufio.NewScanner(errOut)
	lines.Scan()
	step := make(chan error)
	go func() { // a tracer is a thread
		runtime.LockOSThread()
		err := unix.PtraceSeize(pid)
		for errors.Is(err, unix.EPERM) { // the command has it just now
			err = unix.PtraceSeize(pid)
		}
		step <- err
		<-step
		err = unix.Kill(pid, unix.SIGSTOP)
		if err == nil {
			_, err = unix.Wait4(pid, nil, unix.WALL, nil)
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, uintptr(unix.SIGSTOP), 0, 0); errno != 0 {
			err = errors.Join(err, errno)
		}
		step <- err
	}()
	if err := <-step; err != nil {
		t.Fatal(err)
	}
	if messages.Scan(); !strings.Contains(messages.Text(), "is being traced already") {
		t.Errorf("while it is traced: %q", messages.Text())
	}
	step <- nil
	if err := <-step; err != nil {
		t.Fatal(err)
	}
	// It is stopped, which shows in what is written from now on.
	for !strings.Contains(lines.Text(), " x stopped ") {
		if !lines.Scan() {
			t.Error("it ended with the first tracer")
			break
		}
	}
	cmd.Process.Signal(os.Interrupt)
	for lines.Scan() {
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestWalkVariables: parameters in the line of a frame, variables below it, in
// text and JSON, of a process and of its core.
func TestWalkVariables(t *testing.T) {
	cmd := startWalkTarget(t, "vars.c", []string{"-O0", "-g"})
	pid := strconv.Itoa(cmd.Process.Pid)
	out, stderr, code := runWalk(t, "--locals", pid)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{
		`  stand(why=0x`, ` "scalars", depth=-1)`, `  scalars(i=-1, u=2, l=3, uc=200 '\310', sc=-100 '\234', s=-5, d=2.5, f=0.1)`, "\n        wide = -1234567898765432019864197523\n",
		", by_value=..., by_pointer=0x", "\n        by_value = {", "\n        vla = {0, 1, 4}\n", "inlined  inlined(outer_arg=1)", "\n        mine = 3\n", "recurse(depth=3, name=0x",
		"\n        anonymous = {inner = 8, p = {...}}\n", "\n        fn = 0x",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
	out, _, code = runWalk(t, "--args", pid)
	if code != exitOK || !strings.Contains(out, "scalars(i=-1, u=2,") || strings.Contains(out, "wide =") {
		t.Errorf("--args: exit %d\n%s", code, out)
	}
	out, stderr, code = runWalk(t, "--locals", "--json", pid)
	var p struct {
		Threads []struct{ Frames []json.RawMessage }
	}
	if err := json.Unmarshal([]byte(out), &p); err != nil || code != exitOK {
		t.Fatalf("exit %d, %v, %s", code, err, stderr)
	}
	found := make(map[string]jsonVariable)
	for _, raw := range p.Threads[0].Frames {
		keys := keysOf(t, raw)
		if keys[len(keys)-1] != "variables" || keys[len(keys)-2] != "non_call" {
			t.Errorf("frame has keys %v", keys)
		}
		var f jsonFrame
		if err := json.Unmarshal(raw, &f); err != nil {
			t.Fatal(err)
		}
		for _, v := range *f.Variables {
			if f.Function == "scalars" || f.Function == "variable_length" {
				found[v.Name] = v
			}
		}
	}
	for _, want := range []jsonVariable{
		{Name: "us", Type: "short unsigned int", Line: 77, Status: "ok", Value: "65535"},
		{Name: "n", Type: "int", Parameter: true, Line: 120, Status: "ok", Value: "3"},
		{Name: "grid", Type: "short int[][]", Line: 122, Status: "ok", Value: "{{0, 1}, {10, 11}, {20, 21}}"},
	} {
		got := found[want.Name]
		if !strings.HasPrefix(got.Address, "0x7f") {
			t.Errorf("%s is at %q", want.Name, got.Address)
		}
		if got.Address = ""; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	testenv.Needs(t, "gdb")
	core := filepath.Join(t.TempDir(), "core")
	testenv.Run(t, exec.Command("gdb", "-nx", "-batch", "-readnever", "-p", pid, "-ex", "generate-core-file "+core))
	if out, stderr, code = runWalk(t, "--locals", "--core", core); code != exitOK || !strings.Contains(out, "\n        vla = {0, 1, 4}\n") {
		t.Errorf("core: exit %d, %s\n%s", code, stderr, out)
	}
	for _, args := range [][]string{{"--locals", "--watch", "1s", pid}, {"--args", "--symbols=no", pid}, {"--locals", "--symbols=functions", pid}} {
		if _, stderr, code := runWalk(t, args...); code != exitCannot || !strings.Contains(stderr, "do not go with") {
			t.Errorf("%v: exit %d, %s", args, code, stderr)
		}
	}
}

// TestWalkVariablesStandard: strings and vectors of C++ in the line of a frame, and
// in JSON.
func TestWalkVariablesStandard(t *testing.T) {
	t.Parallel()
	testenv.Needs(t, "g++")
	cmd := exec.Command(build(t, "walk-varsstd", "g++", "-std=c++17", "-g", "-o", "OUT", walkSource("varsstd.cc")))
	startReady(t, cmd)
	pid := strconv.Itoa(cmd.Process.Pid)
	const line = `stand(ref="ref", names=std::vector of length 2, capacity 2 = {...}, order=..., view="view")`
	out, stderr, code := runWalk(t, "--args", pid)
	if code != exitOK || !strings.Contains(out, line) || strings.Contains(out, "names = ") {
		t.Errorf("--args: exit %d: %s\n%s", code, stderr, out)
	}
	out, stderr, code = runWalk(t, "--locals", pid)
	for _, want := range []string{line, "\n        names = std::vector of length 2, capacity 2 = {\"x\", \"y\"}\n        order = {name = \"o\", ", "\n        s32 = U\"thirty-two\"\n"} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("--locals: exit %d: no %q: %s\n%s", code, want, stderr, out)
		}
	}
	out, _, _ = runWalk(t, "--args", "--json", pid)
	if !strings.Contains(out, `"value":"std::vector of length 2, capacity 2 = {\"x\", \"y\"}"`) {
		t.Errorf("JSON:\n%s", out)
	}
}

// TestWalkVariablesInterpreter: functions of Python have no variables; those of the
// interpreter's own function, which runs them, are not theirs.
func TestWalkVariablesInterpreter(t *testing.T) {
	t.Parallel()
	testenv.SomePython(t, func(t *testing.T, python testenv.Program) {
		command := python.Command("-c", `
import sys
def inner():
    print("ready", flush=True)
    sorted([1], key=lambda x: sys.stdin.read())
def outer(): inner()
outer()
`)
		cmd := exec.Command(command[0], command[1:]...)
		startReady(t, cmd)
		waitFor(t, "python to come to rest", func() bool { return !strings.ContainsAny(threadStates(t, cmd.Process.Pid), "RD") })
		pid := strconv.Itoa(cmd.Process.Pid)
		out, stderr, code := runWalk(t, "--locals", pid)
		if code != exitOK {
			t.Fatalf("exit %d: %s\n%s", code, stderr, out)
		}
		for _, line := range strings.Split(out, "\n") {
			if strings.Contains(line, "  <string>:") && strings.Contains(line, "=") {
				t.Errorf("a function of Python has parameters: %s", line)
			}
		}
		out, stderr, code = runWalk(t, "--locals", "--json", pid)
		var p struct {
			Threads []struct{ Frames []jsonFrame }
		}
		if err := json.Unmarshal([]byte(out), &p); err != nil || code != exitOK {
			t.Fatalf("exit %d, %v, %s", code, err, stderr)
		}
		functions, known := 0, false
		for _, f := range p.Threads[0].Frames {
			if !strings.HasPrefix(f.File, "<string>") {
				known = known || strings.Contains(f.Function, "Py") && len(*f.Variables) > 0
				continue
			}
			if functions++; len(*f.Variables) > 0 {
				t.Errorf("%s has variables %+v", f.Function, *f.Variables)
			}
		}
		if functions != 4 {
			t.Errorf("%d functions of Python", functions)
		}
		if !known {
			t.Log("the interpreter has no debug information")
		}
	})
}
