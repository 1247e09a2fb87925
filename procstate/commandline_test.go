package procstate

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCommandLine: arguments are those of the process, of very many the first, and none of one that has ended.
func TestCommandLine(t *testing.T) {
	if got := CommandLine(os.Getpid()); !slices.Equal(got, os.Args) {
		t.Errorf("of this process %q, want %q", got, os.Args)
	}
	for _, args := range [][]string{
		{"sleep", "60"},
		{"some: other name", "60", "0"},
		slices.Concat([]string{"sleep", "60"}, slices.Repeat([]string{strings.Repeat("0", 100)}, 5000)),
	} {
		cmd := exec.Command("sleep")
		cmd.Args = args
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		got := CommandLine(cmd.Process.Pid)
		for begun := time.Now(); len(got) == 0 && time.Since(begun) < 10*time.Second; { // the program is being executed
			time.Sleep(time.Millisecond)
			got = CommandLine(cmd.Process.Pid)
		}
		if n := len(got); n == 0 || n != len(args) && n < 1000 || !slices.Equal(got[:n-1], args[:n-1]) || !strings.HasPrefix(args[n-1], got[n-1]) {
			t.Errorf("%d arguments %.100q, want %d: %.100q", n, got, len(args), args)
		}
		cmd.Process.Kill()
		cmd.Wait()
		if got := CommandLine(cmd.Process.Pid); got != nil {
			t.Errorf("of a process that has ended %.100q", got)
		}
	}
}

// What servers write over their arguments has the rest of the room behind it.
func TestSplitCommandLine(t *testing.T) {
	for line, want := range map[string][]string{
		"":                                nil,
		"\x00\x00":                        nil,
		"cat\x00a b\x00\x00c\x00":         {"cat", "a b", "", "c"},
		"postgres: shop idle\x00\x00\x00": {"postgres: shop idle"},
		"nginx: worker process     ":      {"nginx: worker process"},
	} {
		if got := splitCommandLine([]byte(line)); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestCoreCommandLine: a core has arguments of 79 bytes at most, or none.
func TestCoreCommandLine(t *testing.T) {
	info := func(args string) []byte {
		d := make([]byte, 136)
		copy(d[coreLayout64.psName:], "prog")
		copy(d[coreLayout64.psName+16:], args)
		return d
	}
	long := strings.Repeat("a", 80)
	for _, tc := range []struct {
		note []byte
		want string
	}{
		{info("/bin/prog -a b "), "/bin/prog -a b"},
		{info(""), ""},
		{info(long), long}, // no kernel writes that
		{info("/bin/prog -a b")[:coreLayout64.psName+16], ""},
		{info("/bin/prog -a b")[:coreLayout64.psName+20], "/bin"},
	} {
		c, err := openCoreBytes(t, coreOf(bytes.Join([][]byte{prstatus(1, 0, 0x401000, 0x1008), note(ntPRPSInfo, tc.note)}, nil), elf.ET_CORE))
		if err != nil {
			t.Fatal(err)
		}
		if c.Name != "prog" || c.CommandLine != tc.want {
			t.Errorf("%q, %q, want %q", c.Name, c.CommandLine, tc.want)
		}
		c.Close()
	}
}
