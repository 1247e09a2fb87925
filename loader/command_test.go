package loader

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"testing"
)

// startCommand starts a command that ends with the test.
func startCommand(t *testing.T, argv ...string) *Command {
	t.Helper()
	c, err := StartCommand(argv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	return c
}

func TestCommandExitCode(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want int
	}{
		{[]string{"true"}, 0},
		{[]string{"sh", "-c", "exit 3"}, 3},
		{[]string{"sh", "-c", "kill -TERM $$"}, 128 + 15},
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9},
		{[]string{"sh", "-c", "sh -c 'exit 5'; exit $?"}, 5},
	} {
		cmd := startCommand(t, c.argv...)
		cmd.Resume()
		cmd.Resume()
		ps, err := cmd.Wait()
		if err != nil {
			t.Errorf("%q: %v", c.argv, err)
			continue
		}
		if got := ExitCode(ps); got != c.want {
			t.Errorf("%q: exit code %d, want %d", c.argv, got, c.want)
		}
		<-cmd.Done()
	}
}

func TestCommandNotFound(t *testing.T) {
	if _, err := StartCommand([]string{"no-such-program-anywhere"}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("%v, want one that says so", err)
	}
	if _, err := StartCommand([]string{t.TempDir()}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v, want permission denied", err)
	}
	text := t.TempDir() + "/text"
	if err := os.WriteFile(text, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{nil, {""}, {text}} {
		if c, err := StartCommand(argv); err == nil {
			c.Kill()
			t.Errorf("%q started", argv)
		}
	}
}

// A command does nothing before Resume, and can be killed before it.
func TestCommandWaitsForResume(t *testing.T) {
	made := t.TempDir() + "/made"
	c := startCommand(t, "touch", made)
	if state := processState(t, c.PID()); state != 't' || c.Resumed() {
		t.Errorf("state %c, want stopped by a tracer; resumed: %v", state, c.Resumed())
	}
	c.Kill()
	ps, err := c.Wait()
	if err != nil || ExitCode(ps) != 128+9 {
		t.Errorf("%v, %v", ps, err)
	}
	if _, err := os.Stat(made); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the command ran: %v", err)
	}
}

// The very first system call of a command is seen, and the last one.
func TestCommandFromFirstInstruction(t *testing.T) {
	prog := build(t, "syscalls_amd64.S", "-nostdlib", "-static")
	cmd, s := started(t, Config{Event: mustParse(t, "raw_syscalls:sys_enter"), Kernel: true}, prog)
	cmd.Resume()
	ps, err := cmd.Wait()
	if err != nil || ExitCode(ps) != 7 {
		t.Fatalf("%v, %v", ps, err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	var pcs []uint64
	drain(t, s, func(p *Sample) { pcs = append(pcs, p.Regs.Raw(p.Arch.PC)) })
	// Each call is 7 bytes long, the last 12; PC is behind it.
	start := symbolValue(t, prog, "_start")
	want := []uint64{start + 7, start + 14, start + 26}
	if len(pcs) != len(want) {
		t.Fatalf("system calls at %#x, want %#x", pcs, want)
	}
	for i := range want {
		if pcs[i] != want[i] {
			t.Errorf("system call %d at %#x, want %#x", i, pcs[i], want[i])
		}
	}
}
