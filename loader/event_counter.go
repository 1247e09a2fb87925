package loader

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Events of the processor's counters that go by perf's notation, and modifiers:
//
//	L1-dcache-load-misses     what caches do, of all processors
//	r01c2                     a number, as the processor's manual has it
//	cpu/event=0xc2,umask=1/   the same by the fields that the kernel lists in sysfs,
//	cpu/mem-loads/            or by a name that it has there
//	cycles:u                  of user space alone; k: of the kernel alone; p to ppp: precise; P: as precise as can be

// isCounter reports whether the event is one that the processor counts.
func (e Event) isCounter() bool {
	return e.pmu || e.typ == unix.PERF_TYPE_HARDWARE || e.typ == unix.PERF_TYPE_HW_CACHE || e.typ == unix.PERF_TYPE_RAW
}

// attr returns how the kernel is asked for the event, disabled.
func (e Event) attr() unix.PerfEventAttr {
	a := unix.PerfEventAttr{
		Type: e.typ, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: e.config, Ext1: e.config1, Ext2: e.config2, Bits: unix.PerfBitDisabled | e.bits,
	}
	if e.isPrecise() {
		a.Sample_type = unix.PERF_SAMPLE_CALLCHAIN // or else no program for it may ask for the kernel's stack
	}
	return a
}

// modified returns the event with perf's modifiers, which are letters. ok is false where they are none of those
// that are known, or the event has none.
func (e Event) modified(letters string) (modified Event, ok bool) {
	precise := strings.Count(letters, "p")
	e.mostPrecise = strings.Contains(letters, "P")
	if letters == "" || e.isPoint() || e.IsWall() || precise > 3 || e.mostPrecise && precise > 0 || strings.Trim(letters, "ukpP") != "" {
		return e, false
	}
	user, kernel := strings.Contains(letters, "u"), strings.Contains(letters, "k")
	if user || kernel {
		e.bits |= unix.PerfBitExcludeHv
	}
	if user && !kernel {
		e.bits |= unix.PerfBitExcludeKernel
	}
	if kernel && !user {
		e.bits |= unix.PerfBitExcludeUser
	}
	return e.precise(precise), true
}

// precise returns the event with a degree of precision, of 0 to 3.
func (e Event) precise(degree int) Event {
	if degree&1 != 0 {
		e.bits |= unix.PerfBitPreciseIPBit1
	}
	if degree&2 != 0 {
		e.bits |= unix.PerfBitPreciseIPBit2
	}
	return e
}

// isPrecise reports whether the event has to be counted where it happens, not some instructions later.
func (e Event) isPrecise() bool {
	return e.bits&(unix.PerfBitPreciseIPBit1|unix.PerfBitPreciseIPBit2) != 0
}

// byClock returns cpu-clock with the modifiers of e, for which it stands in.
func (e Event) byClock() Event {
	clock := cpuClock
	clock.bits = e.bits
	if _, letters, ok := strings.Cut(e.Name, ":"); ok {
		clock.Name += ":" + letters
	}
	return clock
}

// cacheEvents are the events of PERF_TYPE_HW_CACHE: what is done to a cache, and how often that missed. perf_event.h
// has the numbers; those of branches are of the cache of their targets.
var cacheEvents = func() (events []Event) {
	const load, store, prefetch = 1 << 0, 1 << 1, 1 << 2
	operations := []struct{ all, misses string }{{"loads", "load-misses"}, {"stores", "store-misses"}, {"prefetches", "prefetch-misses"}}
	for cache, c := range []struct {
		name string
		has  int
	}{
		{"L1-dcache", load | store | prefetch},
		{"L1-icache", load | prefetch},
		{"LLC", load | store | prefetch},
		{"dTLB", load | store | prefetch},
		{"iTLB", load},
		{"branch", load},
		{"node", load | store | prefetch},
	} {
		for op, names := range operations {
			if c.has>>op&1 != 0 {
				e := Event{Name: c.name + "-" + names.all, typ: unix.PERF_TYPE_HW_CACHE, config: uint64(cache | op<<8)}
				events = append(events, e)
				e.Name, e.config = c.name+"-"+names.misses, e.config|1<<16
				events = append(events, e)
			}
		}
	}
	return events
}()

var (
	rawEvent = lazy(`^r([0-9a-fA-F]{1,16})$`)
	pmuEvent = lazy(`^([\w.-]+)/([^/]*)/$`)
)

// counterEvent returns the event of a name without modifiers, of those that the processor counts by number or that
// sysfs lists. ok is false where name is of another kind.
func counterEvent(pmus, name string) (e Event, ok bool, err error) {
	if m := rawEvent().FindStringSubmatch(name); m != nil {
		e = Event{Name: name, typ: unix.PERF_TYPE_RAW}
		e.config, err = strconv.ParseUint(m[1], 16, 64)
		return e, true, err
	}
	m := pmuEvent().FindStringSubmatch(name)
	if m == nil {
		return Event{}, false, nil
	}
	e = Event{Name: name, pmu: true}
	if err := e.setPMU(pmus, m[1], m[2]); err != nil {
		return Event{}, true, err
	}
	return e, true, nil
}

// pmuDir has a directory for each source of events.
const pmuDir = "/sys/bus/event_source/devices"

// setPMU makes e an event of a source in a directory of them, with perf's terms.
func (e *Event) setPMU(pmus, pmu, terms string) error {
	dir := filepath.Join(pmus, pmu)
	typ, ok := readInt(filepath.Join(dir, "type"))
	if !ok {
		return &UnknownEventError{Name: e.Name, Why: "this machine has no " + pmu, Near: nearNames(pmu, namesIn(pmus))}
	}
	switch pmu {
	case "software", "tracepoint", "breakpoint", "kprobe", "uprobe":
		return fmt.Errorf("event %s: those of %s go by other names", e.Name, pmu)
	}
	e.typ = uint32(typ)
	for _, term := range strings.FieldsFunc(terms, isComma) {
		if alias, err := os.ReadFile(filepath.Join(dir, "events", filepath.Base(term))); err == nil {
			for _, t := range strings.FieldsFunc(strings.TrimSpace(string(alias)), isComma) {
				if err := e.setTerm(dir, t); err != nil {
					return err
				}
			}
		} else if err := e.setTerm(dir, term); err != nil {
			return err
		}
	}
	return nil
}

func isComma(r rune) bool { return r == ',' }

// setTerm sets what a term says, which is FIELD=NUMBER or FIELD alone, which is 1.
func (e *Event) setTerm(dir, term string) error {
	field, number, has := strings.Cut(term, "=")
	n := uint64(1)
	if has {
		var err error
		if n, err = strconv.ParseUint(number, 0, 64); err != nil {
			return fmt.Errorf("event %s: %q is not a number", e.Name, number)
		}
	}
	words := map[string]*uint64{"config": &e.config, "config1": &e.config1, "config2": &e.config2}
	if w := words[field]; w != nil {
		*w = n
		return nil
	}
	format, err := os.ReadFile(filepath.Join(dir, "format", filepath.Base(field)))
	if err != nil {
		return &UnknownEventError{Name: e.Name, Why: fmt.Sprintf("%s has no event and no field %q", filepath.Base(dir), field), Near: nearNames(field, namesIn(filepath.Join(dir, "format"), filepath.Join(dir, "events")))}
	}
	// Such as config1:0-7,32-35: the lowest bits come first.
	word, ranges, _ := strings.Cut(strings.TrimSpace(string(format)), ":")
	w := words[word]
	if w == nil {
		return fmt.Errorf("event %s: field %s is in %s, which is not known", e.Name, field, word)
	}
	for _, r := range strings.Split(ranges, ",") {
		from, to, isRange := strings.Cut(r, "-")
		if !isRange {
			to = from
		}
		low, err1 := strconv.ParseUint(from, 10, 6)
		high, err2 := strconv.ParseUint(to, 10, 6)
		if err1 != nil || err2 != nil || low > high {
			return fmt.Errorf("event %s: the bits of field %s are not known: %q", e.Name, field, ranges)
		}
		width := high - low + 1
		mask := uint64(1)<<width - 1
		*w = *w&^(mask<<low) | n&mask<<low
		n >>= width
	}
	if n != 0 {
		return fmt.Errorf("event %s: %s is too large for field %s", e.Name, number, field)
	}
	return nil
}

// namesIn lists what is in directories.
func namesIn(dirs ...string) (names []string) {
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // without it there is nothing to choose from
		}
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
	}
	return names
}
