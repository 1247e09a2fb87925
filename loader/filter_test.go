package loader

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// All threads of a process are sampled, with their names, those born after
// Open too; and nobody else.
func TestThreadsBornLater(t *testing.T) {
	p := startTarget(t, stackTarget(t), "threads", "6")
	startTarget(t, stackTarget(t), "fill", "64") // is skipped
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	if _, err := p.stdin.Write([]byte(".")); err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]int32)
	readUntil(t, s, func(smp *Sample) bool {
		if int(smp.PID) != p.pid {
			t.Errorf("sample of process %d, want %d only", smp.PID, p.pid)
		}
		// A thread is born with the name of its parent.
		if name := smp.CommString(); strings.HasPrefix(name, "t") {
			byName[name] = smp.TID
		}
		return len(byName) == 6 && stats(t, s).SkippedFilter > 0
	})
	for name, tid := range byName {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", p.pid, tid))
		if err != nil || strings.TrimSpace(string(b)) != name {
			t.Errorf("thread %d is called %q by /proc, %q in the sample (%v)", tid, b, name, err)
		}
	}
}

// Children of a command are sampled from their birth when asked for.
func TestChildren(t *testing.T) {
	for _, follow := range []bool{false, true} {
		t.Run(fmt.Sprintf("follow=%v", follow), func(t *testing.T) {
			const children, ms, hz = 10, 20, 997
			cmd, s := started(t, Config{Event: cpuClock, Frequency: hz, FollowChildren: follow},
				stackTarget(t), "children", fmt.Sprint(children), fmt.Sprint(ms))
			finish(t, cmd, s)
			n := make(map[int32]int)
			drain(t, s, func(p *Sample) { n[p.PID]++ })
			delete(n, int32(cmd.PID()))
			if !follow {
				if len(n) != 0 {
					t.Errorf("samples of others: %v", n)
				}
				return
			}
			if len(n) != children {
				t.Errorf("samples of %d children, want %d: %v", len(n), children, n)
			}
			for pid, samples := range n {
				if samples < ms/2 {
					t.Errorf("child %d: %d samples in %d ms of CPU at %d Hz", pid, samples, ms, hz)
				}
			}
		})
	}
}

// A number that is used again for another process does not make it one of
// those asked for.
func TestReusedPID(t *testing.T) {
	p := startTarget(t, stackTarget(t), "fill", "64")
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	// The next process gets a number that the table already holds, unless too
	// many others have come in between, or numbers begin anew.
	const window = 2000
	var fresh *target
	for next := 0; fresh == nil || fresh.pid <= next || fresh.pid >= next+window; {
		next = nextPID(t)
		for pid := next; pid < next+window; pid++ {
			if err := s.flags.set(pid, processSampled); err != nil {
				t.Fatal(err)
			}
		}
		fresh = startTarget(t, stackTarget(t), "fill", "64")
	}
	if s.flags.of(fresh.pid) != 0 {
		t.Errorf("process %d is tracked by the number it got", fresh.pid)
	}
}

// of returns the flags of a process, none where they are not mapped.
func (f *processFlags) of(pid int) byte {
	if f.pages[pid/processPage] == nil {
		return 0
	}
	word, shift := f.word(pid)
	return byte(*word >> shift)
}

// nextPID starts a process for nothing and returns its number.
func nextPID(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestPIDErrors(t *testing.T) {
	kernelTest(t)
	p := startTarget(t, stackTarget(t), "threads", "2")
	var tid int
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fmt.Sscan(e.Name(), &tid)
	}
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	defer zombie.Wait()
	state := fmt.Sprintf("/proc/%d/status", zombie.Process.Pid)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if b, _ := os.ReadFile(state); strings.Contains(string(b), "\nState:\tZ") {
			break
		}
	}
	for _, c := range []struct {
		pid  int
		want string
	}{
		{zombie.Process.Pid, "has ended and is a zombie"},
		{-1, "no such process"},
		{0, "no such process"},
		{1 << 30, "no such process"},
		{tid, fmt.Sprintf("it is a thread of process %d", p.pid)},
	} {
		s, err := Open(Config{PIDs: []int{c.pid}})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("PID %d: %v, want %q", c.pid, err, c.want)
		}
	}
}

// In a PID namespace of its own a program sees its own numbers, and what is
// outside is counted as such.
func TestPIDNamespace(t *testing.T) {
	t.Parallel()
	kernelTest(t)
	outside := startTarget(t, stackTarget(t), "fill", "64")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SWBPF_TEST_ROLE=namespace "+stackTarget(t))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		t.Errorf("inside the namespace, with process %d outside: %v", outside.pid, err)
	}
}

// sampleInNamespace is TestPIDNamespace's other half, process 1 of its
// namespace.
func sampleInNamespace(target string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	var missing *MissingError
	if s, err := Open(Config{Event: cpuClock, Frequency: 997}); err == nil {
		s.Close()
		return errors.New("processes are taken for those of the /proc outside")
	} else if !errors.As(err, &missing) || !strings.Contains(missing.What, "/proc") {
		return fmt.Errorf("with the /proc outside: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	if os.Getpid() != 1 {
		return fmt.Errorf("process %d of its namespace, want 1", os.Getpid())
	}
	inside := exec.Command(target, "threads", "4")
	stdin, err := inside.StdinPipe()
	if err != nil {
		return err
	}
	if err := inside.Start(); err != nil {
		return err
	}
	defer inside.Process.Kill()
	stdin.Write([]byte("."))
	for _, pids := range [][]int{nil, {inside.Process.Pid}, {os.Getpid()}} { // the last with its children
		if err := sampleThreads(pids, inside.Process.Pid); err != nil {
			return fmt.Errorf("PIDs %v: %w", pids, err)
		}
	}
	tids, err := threadsOf(inside.Process.Pid) // which have their names, by the samples
	if err != nil {
		return err
	}
	return sampleThread(tids["t1"])
}

// sampleThread waits for samples of a thread, and is sampled itself no more.
func sampleThread(tid int) error {
	s, err := Open(Config{Event: cpuClock, Frequency: 997, Threads: []int{tid}})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Start(); err != nil {
		return err
	}
	n := 0
	for end := time.Now().Add(patience); n < 10; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%d samples of thread %d", n, tid)
		}
		err := s.ReadSamples(monotonic(), func(p *Sample) error {
			if n++; int(p.TID) != tid {
				return fmt.Errorf("sample of thread %d, want %d", p.TID, tid)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sampleThreads waits for samples of the threads t0 to t3 of a process.
func sampleThreads(pids []int, want int) error {
	s, err := Open(Config{Event: cpuClock, Frequency: 997, PIDs: pids, FollowChildren: slices.Contains(pids, os.Getpid())})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Start(); err != nil {
		return err
	}
	byName := make(map[string]int32)
	outside := pids != nil // or what is outside was counted
	for end := time.Now().Add(patience); len(byName) < 4 || !outside; time.Sleep(5 * time.Millisecond) {
		st, err := s.Stats()
		if err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("only threads %v; %+v", byName, st)
		}
		outside = outside || st.LostForeign > 0
		err = s.ReadSamples(monotonic(), func(p *Sample) error {
			if int(p.PID) != want && p.PID != 1 {
				return fmt.Errorf("sample of process %d", p.PID)
			}
			if int(p.PID) == want && p.CommString()[0] == 't' {
				byName[p.CommString()] = p.TID
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for name, tid := range byName {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", want, tid))
		if err != nil || strings.TrimSpace(string(b)) != name {
			return fmt.Errorf("thread %d: called %q by /proc, %q in the sample (%v)", tid, b, name, err)
		}
	}
	return nil
}

// Of cgroups those processes are sampled that are in one, or below, at the time: also
// those that come later, in cgroups that are made later.
func TestFilterByCgroup(t *testing.T) {
	for _, event := range []Event{cpuClock, Wall, OffCPU} {
		t.Run(event.Name, func(t *testing.T) {
			kernelTest(t)
			root, find := testCgroups(t)
			wanted := filepath.Join(root, "wanted")
			newCgroup(t, wanted)
			newCgroup(t, root+"/other")
			target := func() *target { return startTarget(t, stackTarget(t), "fill", "64") }
			early, late, other := target(), target(), target()
			enterCgroup(t, early, wanted)
			enterCgroup(t, other, root+"/other")
			s := startSession(t, Config{Event: event, Cgroups: find(wanted)})
			newCgroup(t, wanted+"/below")
			before := monotonic() // late was in no cgroup that is asked for until then
			enterCgroup(t, late, wanted+"/below")
			seen := map[int32]bool{}
			readUntil(t, s, func(p *Sample) bool {
				if is := int(p.PID); is != early.pid && (is != late.pid || p.Time < before) {
					t.Fatalf("a sample of process %d, only %d and %d are in cgroups asked for", p.PID, early.pid, late.pid)
				}
				seen[p.PID] = true
				return len(seen) == 2 && stats(t, s).SkippedFilter > 0
			})
			drain(t, s, func(p *Sample) {
				if int(p.PID) == other.pid {
					t.Error("a sample of a process in another cgroup")
				}
			})
		})
	}
}

// testCgroups makes a cgroup for a test, and returns its directory and what finds the IDs
// of those below.
func testCgroups(t *testing.T) (root string, find func(name string) []uint64) {
	t.Helper()
	c, err := OpenCgroups()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { c.Close() })
	at := cgroupMount()
	if at == "" {
		t.Skip("no unified hierarchy is mounted")
	}
	if root, err = os.MkdirTemp(at, "swbpf-test-*"); err != nil {
		t.Skipf("cannot make cgroups: %v", err)
	}
	t.Cleanup(func() { os.Remove(root) })
	return root, func(name string) []uint64 {
		ids, err := c.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
}

// newCgroup makes a cgroup, until the test ends.
func newCgroup(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 100 { // processes are in it until they have been waited for
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// enterCgroup puts a process into a cgroup; it ends with the test.
func enterCgroup(t *testing.T, p *target, dir string) {
	t.Helper()
	if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(p.pid)), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait() })
}
