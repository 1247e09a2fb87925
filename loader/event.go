package loader

import (
	"fmt"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// Unit says what an event counts.
type Unit uint8

// Units of events.
const (
	UnitCount       Unit = iota // occurrences
	UnitNanoseconds             // of CPU time, or of time off the CPU
	UnitCycles                  // of the processor
	UnitBytes                   // of memory
)

// Event is something that can be sampled. Make one with ParseEvent; the zero
// Event is no event.
type Event struct {
	Name string // as perf has it
	Unit Unit   // of Sample.Weight

	typ                      uint32 // PERF_TYPE_*, or the type of uprobes or another source
	config, config1, config2 uint64 // PERF_COUNT_*, or the tracepoint's number; of other sources what they understand
	bits                     uint64 // of struct perf_event_attr, from modifiers
	pmu                      bool   // it is of a source that sysfs lists
	mostPrecise              bool   // as the machine can
	heap                     bool   // it is Heap

	arch     *procstate.Arch // of the code of a uprobe or kprobe
	places   []place         // of a uprobe or Heap: where it is; of a kprobe: one, in the function
	function string          // of a kprobe; empty for all others
}

// IsTracepoint reports whether the event is a tracepoint of the kernel.
func (e Event) IsTracepoint() bool { return e.typ == unix.PERF_TYPE_TRACEPOINT }

// IsUprobe reports whether the event is a place in a program or library: the
// execution of an instruction, or the return of a function; or all places of a
// static probe (USDT).
func (e Event) IsUprobe() bool { return len(e.places) > 0 && !e.IsKprobe() && !e.heap }

// IsReturn reports whether samples are of where a function of a program or library has returned to.
func (e Event) IsReturn() bool {
	return e.heap || e.IsUprobe() && strings.HasPrefix(e.Name, "uretprobe:")
}

// isStaticProbe reports whether the event is a static probe (USDT).
func (e Event) isStaticProbe() bool { return e.IsUprobe() && strings.HasPrefix(e.Name, "usdt:") }

// IsKprobe reports whether the event is a place in the kernel: the execution of an instruction, or the
// return of a function.
func (e Event) IsKprobe() bool { return e.function != "" }

// hasNumbers reports whether the event carries numbers, which Weight and Filter name.
func (e Event) hasNumbers() bool { return e.IsTracepoint() || e.IsUprobe() || e.IsKprobe() }

// isPoint reports whether a program is attached to the event that runs each
// time it occurs, and itself counts to the period.
func (e Event) isPoint() bool { return e.hasNumbers() || e.IsOffCPU() || e.heap }

// IsTimer reports whether the event measures CPU time, so that a frequency is
// a number of samples per second of it.
func (e Event) IsTimer() bool { return e.Unit == UnitNanoseconds && !e.IsOffCPU() }

// HasDefaultFrequency reports whether the event is sampled at DefaultFrequency when
// nothing else is asked for; all others are each time.
func (e Event) HasDefaultFrequency() bool { return e.IsTimer() || e.isCounter() }

// isZero reports whether e is no event.
func (e Event) isZero() bool { return e.Name == "" }

// knownEvents are perf's names for the general events.
var knownEvents = []Event{
	{Name: "cycles", Unit: UnitCycles, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_CPU_CYCLES},
	{Name: "cpu-cycles", Unit: UnitCycles, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_CPU_CYCLES},
	{Name: "instructions", Unit: UnitCount, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_INSTRUCTIONS},
	{Name: "cache-references", Unit: UnitCount, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_CACHE_REFERENCES},
	{Name: "cache-misses", Unit: UnitCount, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_CACHE_MISSES},
	{Name: "branches", Unit: UnitCount, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_BRANCH_INSTRUCTIONS},
	{Name: "branch-instructions", Unit: UnitCount, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_BRANCH_INSTRUCTIONS},
	{Name: "branch-misses", Unit: UnitCount, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_BRANCH_MISSES},
	{Name: "bus-cycles", Unit: UnitCycles, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_BUS_CYCLES},
	{Name: "ref-cycles", Unit: UnitCycles, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_REF_CPU_CYCLES},
	{Name: "stalled-cycles-frontend", Unit: UnitCycles, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_STALLED_CYCLES_FRONTEND},
	{Name: "idle-cycles-frontend", Unit: UnitCycles, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_STALLED_CYCLES_FRONTEND},
	{Name: "idle-cycles-backend", Unit: UnitCycles, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_STALLED_CYCLES_BACKEND},
	{Name: "stalled-cycles-backend", Unit: UnitCycles, typ: unix.PERF_TYPE_HARDWARE, config: unix.PERF_COUNT_HW_STALLED_CYCLES_BACKEND},
	{Name: "cpu-clock", Unit: UnitNanoseconds, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_CPU_CLOCK},
	{Name: "task-clock", Unit: UnitNanoseconds, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_TASK_CLOCK},
	{Name: "page-faults", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_PAGE_FAULTS},
	{Name: "faults", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_PAGE_FAULTS},
	{Name: "minor-faults", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_PAGE_FAULTS_MIN},
	{Name: "major-faults", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_PAGE_FAULTS_MAJ},
	{Name: "context-switches", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_CONTEXT_SWITCHES},
	{Name: "cs", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_CONTEXT_SWITCHES},
	{Name: "cpu-migrations", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_CPU_MIGRATIONS},
	{Name: "migrations", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_CPU_MIGRATIONS},
	{Name: "cgroup-switches", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: 11}, // PERF_COUNT_SW_CGROUP_SWITCHES, since Linux 5.13
	{Name: "alignment-faults", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_ALIGNMENT_FAULTS},
	{Name: "emulation-faults", Unit: UnitCount, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_EMULATION_FAULTS},
}

// cpuClock stands in for cycles where the hardware cannot count them.
var cpuClock = Event{Name: "cpu-clock", Unit: UnitNanoseconds, typ: unix.PERF_TYPE_SOFTWARE, config: unix.PERF_COUNT_SW_CPU_CLOCK}

// UnknownEventError reports an event name that the system does not have.
type UnknownEventError struct {
	Name string
	Why  string   // of an event in a file, what the file lacks; else empty
	Near []string // names that are much like it, nearest first; at most five
}

// Error implements error.
func (e *UnknownEventError) Error() string {
	msg := fmt.Sprintf("unknown event %q", e.Name)
	if e.Why != "" {
		msg = "event " + e.Name + ": " + e.Why
	}
	switch {
	case e.Why == "" && strings.Contains(e.Name, ","):
		return msg + "; it is to be the name of one event"
	case len(e.Near) == 0 && e.Why != "":
		return msg
	case len(e.Near) == 0:
		return msg + "; names are those of perf, like cpu-clock, page-faults or sched:sched_switch"
	}
	return msg + "; did you mean " + strings.Join(e.Near, ", ") + "?"
}

// ParseEvent returns the event of a name: one of perf's general events, one of the
// processor's counters as r01c2 or cpu/event=0xc2/, off-cpu,
// wall, heap, a tracepoint as subsystem:name, or a function of a program or library as
// uprobe:FILE:FUNCTION or, when it returns, uretprobe:FILE:FUNCTION, or a static
// probe (SystemTap's <sys/sdt.h>) as usdt:FILE:PROVIDER:NAME, or a function of the kernel as kprobe:FUNCTION,
// kprobe:FUNCTION+BYTES or kretprobe:FUNCTION. FILE is
// a path, or the name of a library or program as they are looked for;
// in place of FUNCTION there may be FUNCTION+BYTES or an offset in the file,
// 0xBYTES; PROVIDER may be left out where only one has such a probe. Events other than those of a place
// may have perf's modifiers u, k, p and P behind a colon. Errors
// wrap *UnknownEventError, and *MissingError where events cannot be looked up.
func ParseEvent(name string) (Event, error) { return ParseEventOf(name, nil) }

// ParseEventOf is ParseEvent for some processes, by their IDs: FILE is a path as they see it, in containers
// too, or the name of a library or program that they have mapped. Where they have several such files it is all of them;
// where they have none, it is what FILE means otherwise.
func ParseEventOf(name string, pids []int) (Event, error) {
	sys, place, hasPlace := strings.Cut(name, ":")
	if hasPlace {
		switch sys {
		case "uprobe", "uretprobe":
			return parseUprobe(name, sys == "uretprobe", place, pids)
		case "usdt":
			return parseUSDT(name, place, pids)
		case "kprobe", "kretprobe":
			return parseKprobe(name, sys == "kretprobe", place)
		}
	}
	if e, ok, err := generalEvent(name); ok {
		return e, err
	}
	for _, e := range []Event{OffCPU, Wall} {
		if e.Name == name {
			return e, nil
		}
	}
	if name == Heap.Name {
		return HeapOf(pids)
	}
	if i := max(strings.LastIndexByte(name, ':'), strings.LastIndexByte(name, '/')); i > 0 {
		base := strings.TrimSuffix(name[:i+1], ":")
		if e, ok, err := generalEvent(base); ok && err == nil {
			if e, ok = e.modified(name[i+1:]); !ok {
				return Event{}, &UnknownEventError{Name: name, Why: "its modifiers may be u, for user space alone, k, for the kernel alone, p to ppp, for precise, and P, for as precise as can be"}
			}
			e.Name = name
			return e, nil
		} else if ok {
			return Event{}, err
		}
	}
	if hasPlace {
		return parseTracepoint(name, sys, place)
	}
	// Half-remembered tracepoints lack their subsystem; without tracefs the
	// general names must do.
	return Event{}, &UnknownEventError{Name: name, Near: nearNames(name, EventNames())}
}

// generalEvent returns the event of a name without modifiers that is of no place and no tracepoint. ok is
// false where there is none.
func generalEvent(name string) (e Event, ok bool, err error) {
	for _, events := range [][]Event{knownEvents, cacheEvents} {
		for _, e := range events {
			if e.Name == name {
				return e, true, nil
			}
		}
	}
	return counterEvent(pmuDir, name)
}

// EventNames lists names that ParseEvent knows: off-cpu, wall, heap, the general
// events, those of caches, and the tracepoints where they can be looked up.
func EventNames() []string {
	names := []string{OffCPU.Name, Wall.Name, Heap.Name}
	for _, events := range [][]Event{knownEvents, cacheEvents} {
		for _, e := range events {
			names = append(names, e.Name)
		}
	}
	if all, err := tracepointNames(); err == nil {
		names = append(names, all...)
	}
	return names
}

// maxNear bounds what is suggested.
const maxNear = 5

// nearNames returns the names most like name, by edit distance; a tracepoint
// may also be found by the part after its colon.
func nearNames(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	worst := len(name)/3 + 1
	for _, n := range names {
		d := editDistance(name, n, worst)
		if _, tp, ok := strings.Cut(n, ":"); ok && !strings.Contains(name, ":") {
			d = min(d, editDistance(name, tp, worst))
		}
		if d <= worst {
			found = append(found, candidate{n, d})
		}
	}
	sort.SliceStable(found, func(i, j int) bool { return found[i].distance < found[j].distance })
	var near []string
	for _, c := range found[:min(len(found), maxNear)] {
		near = append(near, c.name)
	}
	return near
}

// editDistance is the number of bytes to insert, delete, replace or swap with
// a neighbour to make b of a; limit+1 when it is more than limit.
func editDistance(a, b string, limit int) int {
	if d := len(a) - len(b); d > limit || -d > limit {
		return limit + 1
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		best := i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
			best = min(best, row[j])
		}
		if best > limit {
			return limit + 1
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
