package loader

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// How many events pass a filter is what the program did, and the others are counted.
func TestFilter(t *testing.T) {
	kernelTest(t)
	for _, c := range []struct {
		event, filter string
		pass          uint64 // of getpriority(10, -1) to (19, -1) and (10, 1) to (19, 1), which are refused
	}{
		{"syscalls:sys_enter_getpriority", "who == -1", 10},
		{"syscalls:sys_enter_getpriority", "who != -1", 10},
		{"syscalls:sys_enter_getpriority", "who < 0", 10},
		{"syscalls:sys_enter_getpriority", "who>0&&which<13", 3},
		{"syscalls:sys_enter_getpriority", "which<=13", 8},
		{"syscalls:sys_enter_getpriority", "which > 17", 4},
		{"syscalls:sys_enter_getpriority", "which >= 0x11 && who >= 1", 3},
		{"syscalls:sys_enter_getpriority", "which & 5", 14}, // not 10, 16 and 18
		{"syscalls:sys_enter_getpriority", "which & 5 && which != 13 && which < 18", 10},
		{"syscalls:sys_exit_getpriority", "ret == -EINVAL", 20},
		{"syscalls:sys_exit_getpriority", "ret == -EPERM", 0},
		{"syscalls:sys_exit_getpriority", "ret < 0", 20},
		{"uprobe:libc:getpriority", "arg1 == 7", 0}, // this program does not call it
	} {
		e := mustParse(t, c.event)
		f, err := ParseFilter(e, c.filter)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{Event: e, Filter: f, PIDs: []int{unix.Getpid()}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		for which := 10; which < 20; which++ {
			unix.Getpriority(which, -1)
			unix.Getpriority(which, 1)
		}
		st := stats(t, s)
		if left := st.SkippedNumbers; st.Samples != c.pass || left != 20-c.pass && !e.IsUprobe() {
			t.Errorf("%s: %d samples and %d left out, want %d", c.filter, st.Samples, left, c.pass)
		}
		s.Close()
	}
}

// Numbers are compared as the event has them, with a sign or without.
func TestFilterFits(t *testing.T) {
	for _, c := range []struct {
		o     operand
		v     uint64
		order bool
		want  uint64
		err   string
	}{
		{operand{size: 4, signed: true}, 1<<32 - 1, false, 1<<64 - 1, ""},
		{operand{size: 4, signed: true}, 1<<64 - 1, true, 1<<64 - 1, ""},
		{operand{size: 4, signed: true}, 1<<31 - 1, true, 1<<31 - 1, ""},
		{operand{size: 4, signed: true}, 1 << 32, false, 0, "32 bits alone"},
		{operand{size: 4}, 1<<64 - 1, false, 1<<32 - 1, ""},
		{operand{size: 4}, 1<<64 - 1, true, 0, "never negative"},
		{operand{size: 4}, 1<<32 - 1, true, 1<<32 - 1, ""},
		{operand{size: 1}, 256, true, 0, "8 bits alone"},
		{operand{size: 2, signed: true}, 1 << 15, false, 1<<64 - 1<<15, ""},
		{operand{size: 8}, 1<<64 - 1, true, 1<<64 - 1, ""},
		{operand{size: 8, signed: true}, 1 << 63, true, 1 << 63, ""},
		{operand{constant: 5}, 1<<64 - 1, true, 1<<64 - 1, ""},
	} {
		got, err := c.o.fit(c.v, c.order)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%#x in %+v: %#x, %v; want %#x, %q", c.v, c.o, got, err, c.want, c.err)
		}
	}
}

// Text of a tracepoint is compared up to its end.
func TestFilterOfText(t *testing.T) {
	kernelTest(t)
	for filter, passes := range map[string]bool{
		`comm == "a name"`: true, "comm == 'a name'": true, "comm == a name": true, "comm == a nam": false, "comm == a names": false,
		"comm != a name": false, "comm != another": true, "comm == 0123456789abcde": false,
	} {
		e := mustParse(t, "sched:sched_process_exit")
		f, err := ParseFilter(e, filter)
		if err != nil {
			t.Fatal(err)
		}
		cmd, s := started(t, Config{Event: e, Filter: f}, "sh", "-c", "printf 'a name' > /proc/$$/comm")
		finish(t, cmd, s)
		if st := stats(t, s); st.Samples > 0 != passes || st.SkippedNumbers > 0 == passes {
			t.Errorf("%s: %d samples and %d left out", filter, st.Samples, st.SkippedNumbers)
		}
	}
}

// Of arguments, results and numbers the registers of a uprobe are compared.
func TestFilterOfUprobe(t *testing.T) {
	for filter, want := range map[string]string{
		"arg1 > 4096":                 "the first argument is at most, negated",
		"ret == 1":                    "its result when it returns",
		"arg7 == 1":                   "no argument",
		"arg1 == text":                `"text" is no number`,
		"arg1 == -":                   `"-" is no number`,
		"arg1 == ":                    `"" is no number`,
		"arg1 = 1":                    "should be NAME OPERATOR VALUE",
		"arg1":                        "should be NAME OPERATOR VALUE",
		"arg1 > 1 &&":                 "should be NAME OPERATOR VALUE",
		"arg1 > 1 || arg2>":           "only behind &&",
		"arg1 == 0x1ffffffffffffffff": "is no number of 64 bits",
		strings.Repeat("arg1 > 1 && ", 8) + "arg1 > 1": "more than 8 numbers",
		"arg2 == -EAGAIN && arg3 & 0x80":               "",
	} {
		f, err := ParseFilter(Event{Name: "uprobe:a:b", places: make([]place, 1), arch: procstate.AMD64}, filter)
		switch filter {
		case "arg1 > 4096":
			c := f.conditions[0].condition
			n := f.conditions[0].operands[0].number()
			if err != nil || c.Value != 4096 || c.Comparison != uint8(gen.SamplerComparisonKindCOMPARE_AT_MOST) || !c.IsNegated || !n.IsSigned || n.Size != 8 || n.UnusedBits != 0 {
				t.Errorf("%+v, %v", c, err)
			}
		case "arg2 == -EAGAIN && arg3 & 0x80":
			if c := f.conditions; err != nil || len(c) != 2 || int64(c[0].condition.Value) != -int64(unix.EAGAIN) || c[1].condition.Mask != 0x80 || c[1].condition.Value != 0 || !c[1].condition.IsNegated {
				t.Errorf("%+v, %v", c, err)
			}
		default:
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s: %v, want %q", filter, err, want)
			}
		}
	}
	if _, err := ParseFilter(cpuClock, "arg1 == 1"); !strings.Contains(fmt.Sprint(err), "only tracepoints and probes") {
		t.Errorf("a timer: %v", err)
	}
	f, err := ParseFilter(Event{Name: "uprobe:a:b", places: make([]place, 1), arch: procstate.AMD64}, "arg1 == 1")
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Config{Event: cpuClock, Filter: f}).complete(); !strings.Contains(fmt.Sprint(err), "its filter is of event uprobe:a:b") {
		t.Errorf("another event: %v", err)
	}
}
