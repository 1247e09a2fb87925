package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// A walk tells what threads wait for, also when it has made them wait anew, and in a container.
func TestWalkWaits(t *testing.T) {
	t.Run("here", func(t *testing.T) { testWalkWaits(t, nil) })
	t.Run("namespace", func(t *testing.T) {
		if os.Geteuid() != 0 {
			testenv.Lacks(t, "a PID namespace needs root")
		}
		testWalkWaits(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
	})
}

func testWalkWaits(t *testing.T, attr *syscall.SysProcAttr) {
	dir := t.TempDir()
	cmd := exec.Command(build(t, "walk-stuck", "gcc", "-O1", "-pthread", "-o", "OUT", walkSource("stuck.c")), dir)
	cmd.SysProcAttr = attr
	_, out := testenv.Start(t, cmd)
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the program says nothing")
	}
	port := lines.Text()
	waitFor(t, "all threads to wait", func() bool {
		states := threadStates(t, cmd.Process.Pid)
		return len(states) == 16 && !strings.ContainsAny(states, "RD")
	})
	pid := strconv.Itoa(cmd.Process.Pid)
	child := childOf(t, cmd.Process.Pid)
	holders := []string{pid + " (walk-stuck)", child + " (child)"}
	if n, err := strconv.Atoi(child); err == nil && n < cmd.Process.Pid { // PIDs have begun anew
		slices.Reverse(holders)
	}
	pipe := "3 pipe:[N] from processes " + strings.Join(holders, ", ")
	var was map[string]jsonWait
	for range 2 {
		stdout, stderr, code := runWalk(t, "--json", pid)
		var p jsonProcess
		if err := json.Unmarshal([]byte(stdout), &p); code != exitOK || err != nil {
			t.Fatalf("exit %d, %v: %s", code, err, stderr)
		}
		waits, tids := map[string]jsonWait{}, map[string]int32{}
		for _, th := range p.Threads {
			if tids[th.Name] = th.TID; th.Wait != nil {
				waits[th.Name] = *th.Wait
			}
		}
		for name, want := range map[string]jsonWait{
			filepath.Base(cmd.Path): {"futex", fmt.Sprintf("end of thread %d", tids["lock1"]), 0},
			"lock1":                 {"futex", fmt.Sprintf("lock of thread %d", tids["lock2"]), tids["lock2"]},
			"lock2":                 {"futex", fmt.Sprintf("lock of thread %d", tids["lock1"]), tids["lock1"]},
			"read":                  {"read", pipe, 0},
			"accept":                {"accept", "5 tcp 127.0.0.1:" + port, 0},
			"socket":                {"recvfrom", "6 tcp 127.0.0.1:N > 127.0.0.1:" + port, 0},
			"poll":                  {"poll", pipe + ", 6 tcp 127.0.0.1:N > 127.0.0.1:" + port, 0},
			"nap":                   {"clock_nanosleep", "", 0},
			"fifo":                  {"openat", `"fifo"`, 0},
			"lockfile":              {"flock", "N " + filepath.Join(dir, "lock"), 0},
			"child":                 {"wait4", "process " + child, 0},
			"Reader":                {"futex", fmt.Sprintf("lock of thread %d", cmd.Process.Pid), int32(cmd.Process.Pid)},
			"Writer":                {"futex", fmt.Sprintf("lock of thread %d", cmd.Process.Pid), int32(cmd.Process.Pid)},
			"items":                 {"futex", "ADDRESS", 0},
			"own":                   {"futex", "lock of its own", tids["own"]},
			"timed":                 {"futex", fmt.Sprintf("lock of thread %d", tids["own"]), tids["own"]},
		} {
			got := waits[name]
			if !regexp.MustCompile("^"+strings.NewReplacer("N", "[0-9]+", "ADDRESS", "0x[0-9a-f]+").Replace(regexp.QuoteMeta(want.On))+"$").MatchString(got.On) ||
				got.Call != want.Call || got.Holder != want.Holder {
				t.Errorf("%s waits in %+v, want %+v", name, got, want)
			}
		}
		deadlocks := [][]jsonParty{{{TID: tids["lock1"]}, {TID: tids["lock2"]}}, {{TID: tids["own"]}}}
		if !reflect.DeepEqual(p.Deadlocks, deadlocks) {
			t.Errorf("deadlocks %v, want %v", p.Deadlocks, deadlocks)
		}
		if was != nil && fmt.Sprint(was) != fmt.Sprint(waits) {
			t.Errorf("the first walk had %v, the second %v", was, waits)
		}
		was = waits
		told := fmt.Sprintf("\n\ndeadlock of 2 threads:\n  thread %[1]d \"lock1\" in futex(lock of thread %[2]d)\n  thread %[2]d \"lock2\" in futex(lock of thread %[1]d)\n\n"+
			"deadlock of a thread with itself:\n  thread %[3]d \"own\" in futex(lock of its own)\n\n", tids["lock1"], tids["lock2"], tids["own"])
		if text, _, _ := runWalk(t, pid); !strings.Contains(text, told) ||
			!strings.Contains(text, fmt.Sprintf(` "lock1" sleeping in futex(lock of thread %d): complete`, tids["lock2"])) {
			t.Errorf("no %s in\n%s", told, text)
		}
		if text, _, _ := runWalk(t, "--args", pid); !strings.Contains(text, told) || !strings.Contains(text, ` "fifo" sleeping in openat("fifo"): complete`) {
			t.Errorf("with --args:\n%s", text)
		}
	}
}

// Who waits for any child of its own waits for those that there are.
func TestWalkWaitsForAny(t *testing.T) {
	testenv.Needs(t, "bash", "sleep")
	for n, want := range map[int]string{1: "process N", 3: "any of processes N, N, N", 4: "any of 4 processes"} {
		cmd := exec.Command("bash", "-c", "for ((i = 0; i < $0; i++)); do sleep 100 & done; echo; wait", strconv.Itoa(n))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		_, out := testenv.Start(t, cmd)
		defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		of := append(strings.Fields(string(children)), make([]string, n)...)
		for i := range strings.Count(want, "N") {
			want = strings.Replace(want, "N", of[i], 1)
		}
		want = " sleeping in wait4(" + want + "): complete"
		waitFor(t, "it to wait", func() bool { return threadStates(t, cmd.Process.Pid) == "S" })
		if text, _, _ := runWalk(t, strconv.Itoa(cmd.Process.Pid)); !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// childOf returns the ID of a process's only child.
func childOf(t *testing.T, pid int) string {
	t.Helper()
	children, err := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(children))
}

// The numbers of system calls are those of the kernel's headers.
func TestWaitCalls(t *testing.T) {
	define := regexp.MustCompile(`(?m)^#define __NR(?:3264)?_(\w+)\s+(\d+)$`)
	for _, c := range []struct {
		arch    *procstate.Arch
		headers string
	}{
		{procstate.AMD64, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"},
		{procstate.I386, "/usr/include/x86_64-linux-gnu/asm/unistd_32.h"},
		{procstate.ARM64, "/usr/include/asm-generic/unistd.h"},
	} {
		b, err := os.ReadFile(c.headers)
		if err != nil {
			testenv.Lacks(t, "no headers of the kernel: %v", err)
		}
		names := map[int]string{}
		for _, m := range define.FindAllStringSubmatch(string(b), -1) {
			n, _ := strconv.Atoi(m[2])
			if names[n] == "" {
				names[n] = m[1]
			}
		}
		known := 0
		for i := range waitCalls {
			call := &waitCalls[i]
			n := call.numberOn(c.arch)
			if n < 0 {
				continue
			}
			known++
			name := strings.TrimSuffix(names[n], "_time64")
			switch name {
			case "_newselect":
				name = "select"
			case "fstatat", "fstatat64":
				name = "newfstatat"
			case "stat64", "lstat64", "fstat64", "fcntl64", "ftruncate64", "sendfile64":
				name = strings.TrimSuffix(name, "64")
			}
			if name != call.name {
				t.Errorf("%s: %d is %s, not %s", c.arch.Name, n, names[n], call.name)
			}
		}
		if known < 50 {
			t.Errorf("%s: %d calls", c.arch.Name, known)
		}
	}
}

// A word of 2 that is waited for is glibc's mutex only if the rest is, too.
func TestMutexOwner(t *testing.T) {
	for _, c := range []struct {
		arch  *procstate.Arch
		words [5]uint32
		want  uint32
	}{
		{procstate.AMD64, [5]uint32{2, 0, 4711, 1, 0}, 4711},
		{procstate.AMD64, [5]uint32{2, 3, 4711, 1, 0x101}, 4711}, // three deep, without elision
		{procstate.I386, [5]uint32{2, 0, 4711, 0, 1}, 4711},
		{procstate.AMD64, [5]uint32{2, 0, 4711, 0, 0}, 0},      // Rust's Mutex<u64>
		{procstate.AMD64, [5]uint32{2, 1, 4711, 1, 0}, 0},      // poisoned, Mutex<[u32; 3]>
		{procstate.AMD64, [5]uint32{2, 0, 4711, 1, 0x4000}, 0}, // Mutex<[u32; 3]>
	} {
		var b [mutexSize]byte
		for i, w := range c.words {
			binary.LittleEndian.PutUint32(b[4*i:], w)
		}
		if got := mutexOwner(&b, c.arch); got != c.want {
			t.Errorf("%s, %v: held by %d, want %d", c.arch.Name, c.words, got, c.want)
		}
	}
}

// lockWord is where TestLockHolder has its lock, and what is behind.
var lockWord [3]uint32

// In the word of a lock with waiters is its holder, unless that may be a count or an error's number,
// as in musl's: threads have such numbers in a container.
func TestLockHolder(t *testing.T) {
	addr := uint64(uintptr(unsafe.Pointer(&lockWord)))
	tids := []procstate.ThreadID{1, 2, 3, 4, 16, 4711}
	const futexWait, lockPI, private = 0, 6, 128
	for _, c := range []struct {
		op, word uint32
		want     procstate.ThreadID
	}{
		{futexWait | private, 4711, 4711},
		{futexWait | private, 16, 0}, // EBUSY
		{futexWait | private, 3, 0},  // three threads
		{lockPI | private, 16, 16},
		{lockPI, 3, 3},
		{futexWait, 4712, 0},
	} {
		lockWord[0] = c.word | futexWaiters
		r := waitReader{pid: os.Getpid(), tids: tids}
		w := &wait{args: [6]uint64{1: uint64(c.op), 2: uint64(lockWord[0])}}
		r.describeLock(procstate.ThreadID(os.Getpid()), w, addr)
		if w.holder != c.want {
			t.Errorf("operation %d, word %d: held by %d, want %d", c.op, c.word, w.holder, c.want)
		}
	}
}

func TestParseWait(t *testing.T) {
	w := parseWait("202 0x7f0e 0x189 0x2 0x0 0x0 0xffffffff 0x7ffd10 0x7f0e28\n")
	if w == nil || w.number != 202 || w.args != [6]uint64{0x7f0e, 0x189, 2, 0, 0, 0xffffffff} || w.sp != 0x7ffd10 {
		t.Errorf("%+v", w)
	}
	for _, line := range []string{"", "running\n", "-1 0x7ffd10 0x7f0e28\n", "x 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8", "1 0x1 0x2 0x3 0x4 0x5 0x6 y 0x8"} {
		if w := parseWait(line); w != nil {
			t.Errorf("%q: %+v", line, w)
		}
	}
}

func TestParseSocket(t *testing.T) {
	for _, c := range []struct{ kind, line, inode, ends string }{
		{"tcp", "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1061 1 0 100 0 0 10 0", "1061", "tcp 127.0.0.1:8080"},
		{"tcp6", "  1: 0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF00000200007F:0050 01 0:0 00:0 0 0 0 77 1", "77", "tcp 127.0.0.1:8080 > 127.0.0.2:80"},
		{"udp6", "  1: B80D0120000000000000000001000000:0035 00000000000000000000000000000000:0000 07 0:0 00:0 0 0 0 78 1", "78", "udp [2001:db8::1]:53"},
		{"unix", "0000000050d4bccd: 00000003 00000000 00000000 0001 03  1058 /run/x.sock", "1058", "unix /run/x.sock"},
	} {
		if inode, ends, ok := parseSocket(c.kind, c.line); !ok || inode != c.inode || ends != c.ends {
			t.Errorf("%s: %q %q %v", c.line, inode, ends, ok)
		}
	}
	for _, line := range []string{"", "sl  local_address rem_address   st tx_queue", "0: 010:1F90 00000000:0000 0A 0 0 0 0 0 1061 1", "0: 0100007F 00000000:0000 0A 0 0 0 0 0 1061 1"} {
		if _, ends, ok := parseSocket("tcp", line); ok {
			t.Errorf("%q: %s", line, ends)
		}
	}
}
