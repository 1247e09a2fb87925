package loader

import (
	"fmt"
	"math"
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
		{"syscalls:sys_enter_getpriority", "which == 10 || which == 12", 4},
		{"syscalls:sys_enter_getpriority", "which == 10 && who == 1 || which == 12||who < 0&&which > 17", 1 + 2 + 2},
		{"syscalls:sys_enter_getpriority", "who == 5 || which == 30", 0},
		{"syscalls:sys_enter_getpriority", "who == 5 && which > 3 || which < 30", 20},
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
		"comm != a name": false, "comm != another": true, "comm == 0123456789abcde": false, "comm != 0123456789abcde": true,
		"comm == 'a && || b' || comm == 'a name'": true, "comm == another || comm == a names": false,
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

// Text in memory is compared where an argument of a system call points to, up to its end.
func TestFilterOfPointedText(t *testing.T) {
	kernelTest(t)
	const long = "/proc/self/no-such-name-of-some-length"
	for filter, want := range map[string]uint64{
		`filename == "` + long + `"`: 3, "filename == " + long[:len(long)-1]: 0, `filename == "` + long + `s"`: 0,
		"filename != '" + long + "' && flags & 0x400": 2, "filename == /dev/full": 2, "filename == /dev/full || filename == '" + long + "'": 5,
		"filename != /dev/full && flags & 0x400 && filename != '" + long + "'": 0, "filename != /dev/full && filename != /dev/zeroes && flags & 0x400": 3,
		"filename == /dev/full && dfd == 1 || filename == /dev/full && dfd != 1": 2,
	} {
		e := mustParse(t, "syscalls:sys_enter_openat")
		f, err := ParseFilter(e, filter)
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
		for range 3 {
			_, _ = unix.Openat(unix.AT_FDCWD, long, unix.O_APPEND, 0) // which other tests do not ask for
		}
		for range 2 {
			fd, _ := unix.Openat(unix.AT_FDCWD, "/dev/full", unix.O_APPEND, 0)
			unix.Close(fd)
		}
		n := uint64(0)
		if err := s.ReadSamples(math.MaxUint64, func(*Sample) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		if n != want {
			t.Errorf("%s: %d samples, want %d", filter, n, want)
		}
		s.Close()
	}
	e := mustParse(t, "syscalls:sys_enter_openat")
	if _, err := ParseFilter(e, "filename > 3"); !strings.Contains(fmt.Sprint(err), "compared by == and !=") {
		t.Error(err)
	}
}

// Of arguments, results and numbers the registers of a uprobe are compared.
func TestFilterOfUprobe(t *testing.T) {
	for filter, want := range map[string]string{
		"arg1 > 4096":       "the first argument is at most, negated",
		"ret == 1":          "its result when it returns",
		"arg7 == 1":         "no argument",
		"arg1 == text":      `"text" is no number`,
		"arg1 == -":         `"-" is no number`,
		"arg1 == ":          `"" is no number`,
		"arg1 = 1":          "should be NAME OPERATOR VALUE",
		"arg1":              "should be NAME OPERATOR VALUE",
		"arg1 > 1 &&":       "should be NAME OPERATOR VALUE",
		"arg1 > 1 || arg2":  "these behind && or ||",
		"arg1 > 1 || arg2>": `"" is no number`,
		"arg1 < 'text'":     "compared by == and !=",
		`arg1 == "` + strings.Repeat("x", 64) + `"`:    "more than 8 numbers, or eight characters of text",
		"arg1 == 0x1ffffffffffffffff":                  "is no number of 64 bits",
		strings.Repeat("arg1 > 1 && ", 8) + "arg1 > 1": "more than 8 numbers",
		strings.Repeat("arg1 > 1 || ", 8) + "arg1 > 1": "more than 8 numbers",
		"arg2 == -EAGAIN && arg3 & 0x80":               "",
		"arg2 == '/tmp/a b'":                           "",
	} {
		f, err := ParseFilter(Event{Name: "uprobe:a:b", places: make([]place, 1), arch: procstate.AMD64}, filter)
		switch filter {
		case "arg1 > 4096":
			c := f.conditions[0].condition
			n := f.conditions[0].operands[0].number()
			if err != nil || c.Value != 4096 || c.Comparison != uint8(gen.SamplerComparisonKindCOMPARE_AT_MOST) || !c.IsNegated || !n.IsSigned || n.Size != 8 || n.UnusedBits != 0 {
				t.Errorf("%+v, %v", c, err)
			}
		case "arg2 == '/tmp/a b'":
			c := f.conditions
			if err != nil || len(c) != 2 || c[0].condition.IfHolds != 1 || c[1].condition.IfHolds != uint8(filterPasses) || c[0].condition.IfNot != uint8(filterFails) || c[1].condition.IfNot != uint8(filterFails) {
				t.Fatalf("%+v, %v", c, err)
			}
			first, last := c[0].operands[0].number(), c[1].operands[0].number()
			if !first.InMemory || first.Base != uint32(argumentOffsets["amd64"]["arg2"]) || first.Displacement != 0 || first.Size != 8 || last.Displacement != 8 || last.Size != 1 || first.Address32 {
				t.Errorf("%+v, %+v", first, last)
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
