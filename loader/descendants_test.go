package loader

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// childrenOf returns the children of a process of one thread, as the kernel lists them.
func childrenOf(t *testing.T, pid int) (pids []int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range strings.Fields(string(b)) {
		n, _ := strconv.Atoi(f)
		pids = append(pids, n)
	}
	return pids
}

// startTree starts a process with a child and n grandchildren, which run.
func startTree(t *testing.T, n int) (root *target, child int, grandchildren []int) {
	t.Helper()
	root = startTarget(t, stackTarget(t), "tree")
	child = childrenOf(t, root.pid)[0]
	return root, child, root.grow(t, child, n)
}

// grow has the child of the root have n children, which it returns.
func (p *target) grow(t *testing.T, child, n int) (pids []int) {
	t.Helper()
	if more := n - len(childrenOf(t, child)); more > 0 {
		if _, err := p.stdin.Write(bytes.Repeat([]byte("."), more)); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(patience); len(pids) < n; time.Sleep(time.Millisecond) {
		if pids = childrenOf(t, child); time.Now().After(end) {
			t.Fatalf("%d children of %d", len(pids), n)
		}
	}
	return pids
}

// All that descends from a process is sampled, what ran before Open and what is born
// later, by all sorts of events, and nobody else.
func TestDescendants(t *testing.T) {
	switches := mustParse(t, "sched:sched_switch")
	for _, cfg := range []Config{{Event: cpuClock, Frequency: 997}, {Event: switches}, {Event: OffCPU}, {Event: Wall, Frequency: 997}} {
		t.Run(cfg.Event.Name, func(t *testing.T) {
			kernelTest(t)
			root, child, _ := startTree(t, 2)
			startTree(t, 1) // is not asked for
			cfg.PIDs, cfg.FollowChildren = []int{root.pid}, true
			s := startSession(t, cfg)
			grandchildren := root.grow(t, child, 4)
			all := append([]int{root.pid, child}, grandchildren...)
			seen := map[int32]bool{}
			readUntil(t, s, func(p *Sample) bool {
				if !slices.Contains(all, int(p.PID)) {
					t.Errorf("sample of process %d, which is none of %v", p.PID, all)
				}
				seen[p.PID] = true
				for _, pid := range grandchildren {
					if !seen[int32(pid)] {
						return false
					}
				}
				return stats(t, s).SkippedFilter > 0
			})
			if !cfg.Event.hasOffCPU() {
				return
			}
			// Those that only wait since before the session are in it as well.
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			drain(t, s, func(p *Sample) { seen[p.PID] = true })
			if !seen[int32(root.pid)] || !seen[int32(child)] {
				t.Errorf("samples of processes %v, not of %d and %d, which wait", seen, root.pid, child)
			}
		})
	}
}

// What a descendant forks before it is entered itself descends from the process all the
// same. What does not is not sampled.
func TestDescendantsBornMeanwhile(t *testing.T) {
	root, child, _ := startTree(t, 1)
	other, otherChild, _ := startTree(t, 1)
	s := startSession(t, Config{Frequency: 99, PIDs: []int{root.pid}, FollowChildren: true})
	if s.flags.of(noProcess) != 0 {
		t.Error("what descends is said to be entered still")
	}
	s.flags.clear(child, processSampled) // as it is until it is entered
	for i, entering := range []bool{false, true} {
		if entering {
			if err := s.flags.set(noProcess, processSampled); err != nil {
				t.Fatal(err)
			}
		}
		for _, pid := range root.grow(t, child, 3+2*i)[1+2*i:] {
			if sampled := s.flags.of(pid)&processSampled != 0; sampled != entering {
				t.Errorf("grandchild %d is sampled: %v, while what descends is entered: %v", pid, sampled, entering)
			}
		}
		for _, pid := range other.grow(t, otherChild, 3+2*i)[1:] {
			if s.flags.of(pid) != 0 {
				t.Errorf("process %d of another family is sampled", pid)
			}
		}
	}
}

// A session with descendants is over when the last of them has ended.
func TestDescendantsDone(t *testing.T) {
	kernelTest(t)
	for _, follow := range []bool{false, true} {
		// Its child outlives it, and has one that begins late and outlives both.
		cmd := exec.Command("sh", "-c", "(sleep 0.3; sleep 0.6 & sleep 0.2) & read line")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{Frequency: 1, PIDs: []int{cmd.Process.Pid}, FollowChildren: follow})
		if err != nil {
			t.Fatal(err)
		}
		done := s.ProcessesDone()
		began := time.Now()
		stdin.Close()
		_ = cmd.Wait()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("their end is not told")
		}
		if took := time.Since(began); follow != (took > 600*time.Millisecond) {
			t.Errorf("children followed: %v: told after %v", follow, took)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A process that is held until the session has started has waited for nothing.
func TestHeld(t *testing.T) {
	for _, held := range []bool{false, true} {
		c, err := StartCommand([]string{"true"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Kill)
		cfg := Config{Event: OffCPU, PIDs: []int{c.PID()}, FollowChildren: true}
		if held {
			cfg.Held = c.PID()
		}
		s := startSession(t, cfg)
		finish(t, c, s)
		stopped := false
		drain(t, s, func(p *Sample) { stopped = stopped || p.Blocked == BlockedStopped })
		if stopped == held {
			t.Errorf("held until the session has started: %v, with a sample of that: %v", held, stopped)
		}
	}
}

// What acts by the rights of a user is sampled, and nothing else, whoever its real user is.
func TestUser(t *testing.T) {
	kernelTest(t)
	const user, other = 54321, 54322
	as := func(real, effective int) *target {
		return startTarget(t, stackTarget(t), "user", fmt.Sprint(real), fmt.Sprint(effective))
	}
	mine, by := as(user, user), as(other, user)
	as(user, other)
	for _, event := range []Event{cpuClock, mustParse(t, "sched:sched_switch"), OffCPU} {
		u := uint32(user)
		s := startSession(t, Config{Event: event, User: &u})
		seen := map[int]bool{}
		readUntil(t, s, func(p *Sample) bool {
			if seen[int(p.PID)] = true; int(p.PID) != mine.pid && int(p.PID) != by.pid {
				t.Errorf("%s: sample of process %d", event.Name, p.PID)
			}
			return len(seen) == 2 && stats(t, s).SkippedFilter > 0
		})
	}
}
