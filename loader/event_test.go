package loader

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

func TestParseEvent(t *testing.T) {
	for _, c := range []struct {
		name  string
		unit  Unit
		timer bool
	}{
		{"cycles", UnitCycles, false},
		{"cpu-clock", UnitNanoseconds, true},
		{"task-clock", UnitNanoseconds, true},
		{"page-faults", UnitCount, false},
		{"faults", UnitCount, false},
		{"context-switches", UnitCount, false},
		{"cs", UnitCount, false},
	} {
		e, err := ParseEvent(c.name)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if e.Name != c.name || e.Unit != c.unit || e.IsTimer() != c.timer || e.IsTracepoint() || e.isZero() {
			t.Errorf("%s: %+v", c.name, e)
		}
	}
}

func TestUnknownEvents(t *testing.T) {
	kernelTest(t) // tracepoints must be readable
	for _, c := range []struct{ name, near string }{
		{"cycels", "cycles"},
		{"cpu-clok", "cpu-clock"},
		{"pagefaults", "page-faults"},
		{"page-fault", "page-faults"},
		{"sched_switch", "sched:sched_switch"},
		{"sched:sched_swich", "sched:sched_switch"},
		{"sched/sched_switch", "sched:sched_switch"},
		{"shed:sched_switch", "sched:sched_switch"},
		{"", ""},
		{"completely-different-from-all", ""},
		{"../../../etc:passwd", ""},
		{"sched:../sched_switch", "sched:sched_switch"},
		{":", ""},
		{"sched:", ""},
		{"off-cp", "off-cpu"},
	} {
		_, err := ParseEvent(c.name)
		var unknown *UnknownEventError
		if !errors.As(err, &unknown) {
			t.Errorf("%q: error %v", c.name, err)
			continue
		}
		if len(unknown.Near) > maxNear {
			t.Errorf("%q: %d suggestions", c.name, len(unknown.Near))
		}
		if c.near != "" && (!slices.Contains(unknown.Near, c.near) || !strings.Contains(err.Error(), c.near)) {
			t.Errorf("%q: suggestions %q without %q", c.name, unknown.Near, c.near)
		}
	}
}

func TestUnknownEventOfSubsystem(t *testing.T) {
	kernelTest(t) // tracepoints must be readable
	_, err := ParseEvent("sched:nothing-of-the-kind")
	if !strings.Contains(fmt.Sprint(err), "did you mean sched:") {
		t.Errorf("%v", err)
	}
}

// An event that is not counted here is reported as missing, with what to do.
func TestUncountedEvent(t *testing.T) {
	kernelTest(t)
	none := Event{Name: "none", typ: unix.PERF_TYPE_SOFTWARE, config: 1 << 40}
	_, err := Open(Config{Event: none})
	var missing *MissingError
	if !errors.As(err, &missing) || missing.What != "a counter of none on this machine" {
		t.Errorf("%v", err)
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b        string
		limit, want int
	}{
		{"", "", 3, 0},
		{"abc", "abc", 3, 0},
		{"abc", "", 3, 3},
		{"", "abcd", 3, 4}, // over the limit
		{"abc", "acb", 3, 1},
		{"kitten", "sitting", 5, 3},
		{"abcdef", "uvwxyz", 2, 3}, // over the limit
		{"cycles", "cycels", 3, 1},
	} {
		if got := editDistance(c.a, c.b, c.limit); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
		if got := editDistance(c.b, c.a, c.limit); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.b, c.a, got, c.want)
		}
	}
}

// The general names are those that perf itself lists.
func TestEventNamesArePerfs(t *testing.T) {
	perf, err := exec.LookPath("perf")
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	out, err := exec.Command(perf, "list", "--no-desc", "sw").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, e := range knownEvents {
		if e.typ == 1 && !strings.Contains(string(out), e.Name) {
			t.Errorf("perf lists no software event %s", e.Name)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	clock, faults := cpuClock, Event{Name: "page-faults", typ: 1, config: 2}
	tracepoint := Event{Name: "a:b", typ: 2}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Frequency: -1}, "must be positive"},
		{Config{Frequency: 99, Period: 5}, "exclude each other"},
		{Config{Event: tracepoint, Frequency: 99}, "by period"},
		{Config{Event: OffCPU, Period: 2}, "no period"},
		{Config{MinOffCPU: -1}, "must be positive"},
		{Config{StackBytes: -1}, "stack bytes"},
		{Config{StackBytes: MaxStackBytes + 1}, "at most 1048576"},
		{Config{RingBytes: -1}, "ring bytes"},
		{Config{PIDs: []int{1, -5}}, "no such process"},
	} {
		if err := c.cfg.complete(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	for _, c := range []struct {
		cfg    Config
		freq   int
		period uint64
	}{
		{Config{}, 99, 0},
		{Config{Event: clock}, 99, 0},
		{Config{Event: clock, Period: 1000}, 0, 1000},
		{Config{Event: faults}, 0, 1},
		{Config{Event: faults, Frequency: 100}, 100, 0},
		{Config{Event: tracepoint}, 0, 1},
	} {
		if err := c.cfg.complete(); err != nil || c.cfg.Frequency != c.freq || c.cfg.Period != c.period {
			t.Errorf("completed to %+v, %v; want %d Hz, period %d", c.cfg, err, c.freq, c.period)
		}
	}
}

func TestRingBytes(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		cpus int
		want int
	}{
		{Config{RingBytes: 1}, 1, 4096},
		{Config{RingBytes: 1}, 2, 4096},
		{Config{RingBytes: 4096}, 1, 4096},
		{Config{RingBytes: 5000}, 1, 8192},
		{Config{RingBytes: 16384}, 2, 8192},
		{Config{Frequency: 10, StackBytes: 4 << 10}, 1, 256 << 10},
		{Config{Frequency: 64, StackBytes: 64 << 10}, 1, 512 << 10},
		{Config{Frequency: 997, StackBytes: 64 << 10}, 2, 997 * 8 << 10},
		{Config{Frequency: 4999, StackBytes: 64 << 10}, 2, 8 << 20},
		{Config{Period: 1, StackBytes: 64 << 10}, 2, 8000 << 10},
		{Config{Frequency: 997, StackBytes: 64 << 10}, 8, 2 << 20},
		{Config{Frequency: 997, StackBytes: 1 << 20}, 256, 512 << 10},
		{Config{Frequency: 99, StackBytes: 64 << 10}, 2, 99 * 8 << 10},
		{Config{Frequency: 10, StackBytes: 64 << 10, whole: WholeStackBytes}, 2, 2 << 20}, // some whole stacks
		{Config{Frequency: 99, StackBytes: 64 << 10, whole: WholeStackBytes}, 2, 2 << 20},
		{Config{Frequency: 99, StackBytes: 64 << 10, whole: WholeStackBytes}, 256, 512 << 10}, // 128 MB in all
		{Config{Frequency: 99, StackBytes: 64 << 10}, 8192, 256 << 10},
	} {
		if got := c.cfg.ringBytes(c.cpus); got != c.want {
			t.Errorf("%+v on %d CPUs: %d, want %d", c.cfg, c.cpus, got, c.want)
		}
	}
}
