package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/swbpf/swbpf/procstate"
)

// Weight is a number that an event of a tracepoint or probe carries, by which
// its samples count. Make one with ParseWeight; the zero Weight is 1.
type Weight struct {
	Name string // of the field or argument
	Unit string // "nanoseconds", "bytes" or "count"

	event string // whose it is, by its name
	numbers
}

func (w *Weight) isZero() bool { return len(w.operands) == 0 }

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
// uretprobe what it returns, ret: whole numbers in registers. Of a static probe it is
// an argument of this, arg1 to arg12, which is a whole number wherever it is. A unit may follow
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
	if !e.hasNumbers() {
		return Weight{}, fmt.Errorf("event %s: only tracepoints and probes have a weight", e.Name)
	}
	n, err := findNumber(e, name)
	if err != nil {
		return Weight{}, err
	}
	w := Weight{Name: name, Unit: unitOf(name), event: e.Name, numbers: n}
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

var fieldLine = lazy(`^\s*field:(.*);\s*offset:(\d+);\s*size:(\d+);\s*signed:([01]);`)

// lazy compiles a regular expression when it is first wanted.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

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
func fieldOf(e Event, name string) (numbers, error) {
	format, err := formatOf(e)
	if err != nil {
		return numbers{}, err
	}
	var names []string
	for line := range strings.Lines(format) {
		field, o, ok := parseField(line)
		if !ok {
			continue
		}
		if field == name {
			return everywhere(o), nil
		}
		names = append(names, field)
	}
	return numbers{}, fmt.Errorf("event %s: no number %q; it has %s", e.Name, name, orNone(names))
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// parseField reads a line of a format that declares a number other than those
// of all tracepoints.
func parseField(line string) (name string, o operand, ok bool) {
	m := fieldLine().FindStringSubmatch(line)
	if m == nil {
		return "", o, false
	}
	words := strings.Fields(m[1])
	name = words[len(words)-1]
	o.offset, _ = strconv.Atoi(m[2])
	o.size, _ = strconv.Atoi(m[3])
	o.signed = m[4] == "1"
	if size, signed, ok := argumentType(strings.TrimPrefix(strings.Join(words[:len(words)-1], " "), "const ")); ok && o.size == 8 {
		o.size, o.signed = size, signed // a register, of which a system call has used as much
	}
	switch {
	case strings.HasPrefix(name, "common_") || strings.ContainsAny(m[1], "[]*") || strings.Contains(m[1], "__data_loc"):
		return "", o, false
	case o.size != 1 && o.size != 2 && o.size != 4 && o.size != 8:
		return "", o, false
	}
	return name, o, true
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
// struct pt_regs: the System V ABI's and the AAPCS64's registers for integers. Functions
// of 32 bits have their arguments on the stack.
var argumentOffsets = map[string]map[string]int{
	"amd64": {"arg1": 112, "arg2": 104, "arg3": 96, "arg4": 88, "arg5": 72, "arg6": 64, "ret": 80},
	"386":   {"ret": 80},
	"arm64": {"arg1": 0, "arg2": 8, "arg3": 16, "arg4": 24, "arg5": 32, "arg6": 40, "ret": 0},
}

// argumentOf is the register of an argument or of the result.
func argumentOf(e Event, name string) (numbers, error) {
	offset, ok := argumentOffsets[e.arch.Name][name]
	switch {
	case !ok && e.arch.AddressWidth == 4:
		return numbers{}, fmt.Errorf("event %s: no argument %q; of functions of 32 bits there is only ret, of a uretprobe", e.Name, name)
	case !ok:
		return numbers{}, fmt.Errorf("event %s: no argument %q; there are arg1 to arg6, and of a uretprobe or kretprobe ret", e.Name, name)
	case name == "ret" != (strings.HasPrefix(e.Name, "uretprobe:") || strings.HasPrefix(e.Name, "kretprobe:")):
		return numbers{}, fmt.Errorf("event %s: arguments are there when a function is entered (uprobe, kprobe), its result when it returns (uretprobe, kretprobe)", e.Name)
	}
	return everywhere(operand{offset: offset, size: e.arch.AddressWidth, signed: true}), nil
}

// probeArgumentOf is where an argument of a static probe is at each of its locations.
func probeArgumentOf(e Event, name string) (found numbers, err error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(name, "arg"), 10, 8)
	if err != nil || !strings.HasPrefix(name, "arg") || n == 0 {
		return numbers{}, fmt.Errorf("event %s: no argument %q; they are called arg1, arg2 and so on", e.Name, name)
	}
	for rest := e.places; len(rest) > 0 && err == nil; {
		file := rest[0].file
		err = withImage(e.Name, file, func(im *procstate.Image) error {
			for ; len(rest) > 0 && rest[0].file == file; rest = rest[1:] {
				p := &rest[0]
				arguments := splitArguments(p.arguments)
				if uint64(len(arguments)) < n {
					return fmt.Errorf("event %s: no argument %q; it has %s", e.Name, name, namesOf(len(arguments)))
				}
				o, err := parseArgument(im, p.pc, arguments[n-1])
				if err != nil {
					return fmt.Errorf("event %s: %s is %q at %#x: %w", e.Name, name, arguments[n-1], p.pc, err)
				}
				found.add(o)
			}
			return nil
		})
	}
	return found, err
}

// namesOf names as many arguments.
func namesOf(arguments int) string {
	switch arguments {
	case 0:
		return "none"
	case 1:
		return "arg1"
	}
	return fmt.Sprintf("arg1 to arg%d", arguments)
}
