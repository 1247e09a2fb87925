package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// Weight is a number that an event of a tracepoint or uprobe carries, by which
// its samples count. Make one with ParseWeight; the zero Weight is 1.
type Weight struct {
	Name string // of the field or argument
	Unit string // "nanoseconds", "bytes" or "count"

	offset, size int // in the context of the program
	signed       bool
}

func (w Weight) isZero() bool { return w.size == 0 }

// ownWeights are those by which perf counts tracepoints, as the kernel declares
// (__perf_count in include/trace/events/sched.h).
var ownWeights = map[string]string{
	"sched:sched_stat_runtime": "runtime",
	"sched:sched_stat_wait":    "delay",
	"sched:sched_stat_sleep":   "delay",
	"sched:sched_stat_iowait":  "delay",
	"sched:sched_stat_blocked": "delay",
}

// ParseWeight looks up the weight of an event by its name: a field of a
// tracepoint, or of a uprobe an argument of the function, arg1 to arg6 and of a
// uretprobe what it returns, ret: whole numbers in registers. A unit may follow
// a colon; without, it is guessed by the name. An empty name is the weight that
// perf gives the event: nearly always none, which is 1. What is negative counts
// nothing.
func ParseWeight(e Event, name string) (Weight, error) {
	name, unit, hasUnit := strings.Cut(name, ":")
	if name == "" {
		name = ownWeights[e.Name]
	}
	if name == "" {
		return Weight{}, nil
	}
	var w Weight
	var err error
	switch {
	case e.IsTracepoint():
		w, err = fieldOf(e, name)
	case e.IsUprobe():
		w, err = argumentOf(e, name)
	default:
		err = fmt.Errorf("event %s: only tracepoints and uprobes have a weight", e.Name)
	}
	if err != nil {
		return Weight{}, err
	}
	w.Unit = unitOf(name)
	if hasUnit {
		w.Unit = unit
	}
	return w, nil
}

// unitOf guesses what a field counts. The kernel's names are what they are.
func unitOf(name string) string {
	switch {
	case name == "runtime" || name == "delay" || strings.HasSuffix(name, "_ns"):
		return "nanoseconds"
	case strings.Contains(name, "bytes") || name == "len" || name == "size" || name == "length" || name == "count":
		return "bytes"
	}
	return "count"
}

var fieldLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\s*field:(.*);\s*offset:(\d+);\s*size:(\d+);\s*signed:([01]);`)
})

// formatOf returns how the kernel describes the record of a tracepoint.
func formatOf(e Event) (string, error) {
	read, done, err := openTracefs()
	if err != nil {
		return "", fmt.Errorf("event %s: %w", e.Name, err)
	}
	defer done()
	sys, tp, _ := strings.Cut(e.Name, ":")
	b, err := read("events/" + sys + "/" + tp + "/format")
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("event %s: %w", e.Name, &MissingError{What: "permission to read tracefs", Remedy: "run as root"})
	}
	if err != nil {
		return "", fmt.Errorf("event %s: %w", e.Name, err)
	}
	return string(b), nil
}

// fieldOf looks up a field in the format of a tracepoint.
func fieldOf(e Event, name string) (Weight, error) {
	format, err := formatOf(e)
	if err != nil {
		return Weight{}, err
	}
	var numbers []string
	for line := range strings.Lines(format) {
		w, ok := parseField(line)
		if !ok {
			continue
		}
		if w.Name == name {
			return w, nil
		}
		numbers = append(numbers, w.Name)
	}
	return Weight{}, fmt.Errorf("event %s: no number %q; it has %s", e.Name, name, orNone(numbers))
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// parseField reads a line of a format that declares a number other than those
// of all tracepoints.
func parseField(line string) (w Weight, ok bool) {
	m := fieldLine().FindStringSubmatch(line)
	if m == nil {
		return w, false
	}
	words := strings.Fields(m[1])
	w.Name = words[len(words)-1]
	w.offset, _ = strconv.Atoi(m[2])
	w.size, _ = strconv.Atoi(m[3])
	w.signed = m[4] == "1"
	if size, signed, ok := argumentType(strings.TrimPrefix(strings.Join(words[:len(words)-1], " "), "const ")); ok && w.size == 8 {
		w.size, w.signed = size, signed // a register, of which a system call has used as much
	}
	switch {
	case strings.HasPrefix(w.Name, "common_") || strings.ContainsAny(m[1], "[]*") || strings.Contains(m[1], "__data_loc"):
		return w, false
	case w.size != 1 && w.size != 2 && w.size != 4 && w.size != 8:
		return w, false
	}
	return w, true
}

// argumentType tells of arguments of system calls that do not fill a register how large they are.
func argumentType(ctype string) (size int, signed, ok bool) {
	switch ctype {
	case "int", "pid_t", "key_t", "key_serial_t", "clockid_t", "timer_t", "mqd_t", "rwf_t", "__s32":
		return 4, true, true
	case "unsigned int", "unsigned", "uid_t", "gid_t", "qid_t", "u32", "__u32", "uint32_t":
		return 4, false, true
	case "umode_t":
		return 2, false, true
	}
	return 0, false, false
}

// Where functions find their arguments and leave their result, as offsets in
// struct pt_regs: the System V ABI's and the AAPCS64's registers for integers.
var argumentOffsets = map[string]map[string]int{
	"amd64": {"arg1": 112, "arg2": 104, "arg3": 96, "arg4": 88, "arg5": 72, "arg6": 64, "ret": 80},
	"arm64": {"arg1": 0, "arg2": 8, "arg3": 16, "arg4": 24, "arg5": 32, "arg6": 40, "ret": 0},
}

// argumentOf is the register of an argument or of the result.
func argumentOf(e Event, name string) (Weight, error) {
	offset, ok := argumentOffsets[runtime.GOARCH][name]
	switch {
	case !ok:
		return Weight{}, fmt.Errorf("event %s: no argument %q; there are arg1 to arg6, and of a uretprobe ret", e.Name, name)
	case name == "ret" != strings.HasPrefix(e.Name, "uretprobe:"):
		return Weight{}, fmt.Errorf("event %s: arguments are there when a function is entered (uprobe), its result when it returns (uretprobe)", e.Name)
	}
	return Weight{Name: name, offset: offset, size: 8, signed: true}, nil
}
