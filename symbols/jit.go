package symbols

import (
	"cmp"
	"slices"
	"sort"
)

// Limits on what one process may tell of its generated code.
const (
	maxJITEntries = 4 << 20
	maxJITNames   = 256 << 20 // bytes
	maxAllLines   = 16 << 20  // of all functions
	maxJITOverlap = 4096      // entries that are looked through for one address
)

// jitTable holds the code that a process generated, as it told of it. Code is
// moved and memory reused, so entries may overlap: at a moment an address
// belongs to the entry that was the last to become valid by then.
type jitTable struct {
	entries []jitEntry
	maxEnd  []uint64 // largest end of entries[:i+1]; shorter when not up to date
	blob    []byte   // names, each ended by NUL
	lines   []jitLine
	sorted  bool
	seq     uint32
	latest  map[uint64]jitInfo // by start, of the entry that came last; nil until code is moved
}

type jitEntry struct {
	start, end uint64 // run-time addresses
	since      uint64 // when it became valid, in ns of CLOCK_MONOTONIC; 0 before all samples
	jitInfo
}

// jitInfo is what is known of a piece of code besides where it is.
type jitInfo struct {
	name  uint32 // in blob
	seq   uint32 // order of arrival
	line0 uint32 // lines[line0:line1], by address
	line1 uint32
}

// jitLine is a source position from an address on.
type jitLine struct {
	addr uint64
	file uint32 // in blob
	line uint32
}

// add appends an entry.
func (t *jitTable) add(start, size, since uint64, name []byte, lines []jitLine) {
	if !t.takes(start, size) || len(name) == 0 {
		return
	}
	at, ok := t.intern(name)
	if !ok {
		return
	}
	first := len(t.lines)
	if first+len(lines) <= maxAllLines {
		t.lines = append(t.lines, lines...)
	}
	t.insert(start, size, since, at, first)
}

// takes reports whether there can be an entry of some addresses, and is room for it.
func (t *jitTable) takes(start, size uint64) bool {
	return size > 0 && start+size >= start && len(t.entries) < maxJITEntries
}

// insert makes an entry with a name, and the lines from the first on.
func (t *jitTable) insert(start, size, since uint64, name uint32, first int) {
	code := jitInfo{name, t.seq, uint32(first), uint32(len(t.lines))}
	t.seq++
	t.entries = append(t.entries, jitEntry{start, start + size, since, code})
	t.sorted = false
	if t.latest != nil {
		t.latest[start] = code
	}
}

// move appends an entry for the code that was the last at an address, and is at another
// one from then on. There may be as many moves as there are entries.
func (t *jitTable) move(from, to, size, since uint64) {
	if t.latest == nil {
		t.latest = make(map[uint64]jitInfo, len(t.entries))
		for i := range t.entries {
			e := &t.entries[i]
			if was, ok := t.latest[e.start]; !ok || was.seq < e.seq {
				t.latest[e.start] = e.jitInfo
			}
		}
	}
	code, ok := t.latest[from]
	if !ok || !t.takes(to, size) {
		return
	}
	first := len(t.lines)
	if lines := t.lines[code.line0:code.line1]; first+len(lines) <= maxAllLines {
		for _, l := range lines {
			l.addr += to - from
			t.lines = append(t.lines, l)
		}
	}
	t.insert(to, size, since, code.name, first)
}

// intern stores a string.
func (t *jitTable) intern(s []byte) (at uint32, ok bool) {
	if len(t.blob)+len(s)+1 > maxJITNames {
		return 0, false
	}
	at = uint32(len(t.blob))
	t.blob = append(append(t.blob, s...), 0)
	return at, true
}

func (t *jitTable) str(at uint32) string { return string(nulTerminated(t.blob[at:])) }

// find returns the entry that owned a run-time address at a moment, given in
// ns of CLOCK_MONOTONIC; 0 is the latest. Where all entries are younger than
// that the oldest one is it: a process tells of code after it has begun to
// run it.
func (t *jitTable) find(addr, when uint64) *jitEntry {
	t.sort()
	if when == 0 {
		when = ^uint64(0)
	}
	i := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].start > addr }) - 1
	var best *jitEntry
	for n := 0; i >= 0 && t.maxEnd[i] > addr && n < maxJITOverlap; i, n = i-1, n+1 {
		e := &t.entries[i]
		if addr >= e.end {
			continue
		}
		if best == nil || e.preferred(best, when) {
			best = e
		}
	}
	return best
}

// preferred reports whether e rather than f owns an address at a moment.
func (e *jitEntry) preferred(f *jitEntry, when uint64) bool {
	ve, vf := e.since <= when, f.since <= when
	if ve != vf {
		return ve
	}
	if ve {
		return e.seq > f.seq
	}
	return e.seq < f.seq
}

// sort puts the entries in order of address.
func (t *jitTable) sort() {
	if t.sorted {
		return
	}
	t.sorted = true
	slices.SortFunc(t.entries, func(a, b jitEntry) int {
		if a.start != b.start {
			return cmp.Compare(a.start, b.start)
		}
		return cmp.Compare(a.seq, b.seq)
	})
	t.maxEnd = slices.Grow(t.maxEnd[:0], len(t.entries))
	var end uint64
	for i := range t.entries {
		end = max(end, t.entries[i].end)
		t.maxEnd = append(t.maxEnd, end)
	}
}

// line returns the frame of an address in an entry.
func (t *jitTable) line(e *jitEntry, addr uint64, mode DemangleMode) Line {
	name := t.str(e.name)
	l := Line{Function: Demangle(name, mode), SystemName: name, FunctionStart: e.start}
	lines := t.lines[e.line0:e.line1]
	if i := sort.Search(len(lines), func(i int) bool { return lines[i].addr > addr }) - 1; i >= 0 {
		l.File, l.Line = t.str(lines[i].file), int(lines[i].line)
	}
	return l
}
