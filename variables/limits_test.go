package variables_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	swbpf "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// counted counts what is read of a process.
type counted struct {
	*procstate.ProcDebug
	reads, bytes int
}

func (c *counted) ReadMemory(addr uint64, b []byte) (int, error) {
	c.reads++
	c.bytes += len(b)
	return c.ProcDebug.ReadMemory(addr, b)
}

// TestLargeValues: what is read of a large variable is bounded, and is read in
// few pieces, as the process stands meanwhile.
func TestLargeValues(t *testing.T) {
	pid, _ := start(t, compile(t, "varslarge.c", "gcc -g -O0"))
	p, err := procstate.Attach(pid)
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	defer p.Detach()
	if err := p.Pause(procstate.DefaultThread); err != nil {
		t.Fatal(err)
	}
	state := &counted{ProcDebug: p}
	w := swbpf.With(state, nil, nil)
	walk, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Fatal(err)
	}
	r := swbpf.Variables(w)
	for name, want := range map[string]string{
		"conns": `{{fd = 0, name = '\000' <repeats 31 times>, next = 0x0, weight = 0}, {fd = 0, name = '\000' <repeats 31 times>, next = 0x0, weight = 0}, ` +
			`{fd = 0, name = '\000' <repeats 31 times>, next = 0x0, weight = 0}, {fd = 7, name = '\000' <repeats 31 times>, next = 0x0, weight = 0}, ` +
			`{fd = 0, name = '\000' <repeats 31 times>, next = 0x0, weight = 0} <repeats 18721 times>...}`,
		"zeros":   "{0 <repeats 262145 times>...}",
		"numbers": "{0, 1, 2, 3, 4, 5, 6,",
		"text":    `"hello", '\000' <repeats 1048570 times>`,
		"spaces":  `' ' <repeats 1048576 times>...`,
		"grid":    "{{0 <repeats 1000 times>} <repeats 263 times>...}",
		"pages":   `{'\000' <repeats 65535 times>, '\000' <repeats 65535 times>, '\000' <repeats 65535 times>}`,
	} {
		i, v := find(t, r, walk, "main", name, false)
		value, err := r.Value(walk, i, v)
		if err != nil {
			t.Fatal(err)
		}
		state.reads, state.bytes = 0, 0
		if got := value.Format(variables.Format{}); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %.300s", name, got)
		}
		t.Logf("%s: %d reads, %d bytes", name, state.reads, state.bytes)
		if state.reads > 64 || state.bytes > 5<<18 {
			t.Errorf("%s: %d reads of %d bytes", name, state.reads, state.bytes)
		}
	}
}

// TestUntil: nothing is read when the time is over.
func TestUntil(t *testing.T) {
	stopped(t, compile(t, "vars.c", "gcc -g -O0"), func(w *unwind.Walker, walk []unwind.Frame) {
		r := swbpf.Variables(w)
		i, v := find(t, r, walk, "scalars", "i", false)
		value, err := r.Value(walk, i, v)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		r.Until(ctx)
		if got := value.Format(variables.Format{}); got != "-1" {
			t.Errorf("in time: i is %s", got)
		}
		cancel()
		if got := value.Format(variables.Format{}); got != "<not read in time>" {
			t.Errorf("too late: i is %s", got)
		}
		if _, err := value.Read(make([]byte, 4)); !errors.Is(err, variables.ErrLate) {
			t.Errorf("too late: Read: %v", err)
		}
		if _, err := r.Value(walk, i, v); !errors.Is(err, variables.ErrLate) {
			t.Errorf("too late: Value: %v", err)
		}
		if _, err := r.Functions(&walk[i]); !errors.Is(err, variables.ErrLate) {
			t.Errorf("too late: Functions: %v", err)
		}
	})
}
