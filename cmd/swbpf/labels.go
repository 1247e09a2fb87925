package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/profile"
)

// ownLabels are the keys that samples have by themselves.
var ownLabels = []string{"pid", "tid", "comm", "cpu", "cgroup", "container", "unit", "state"}

// labelsValue is the flag for labels of the whole recording: KEY=VALUE.
type labelsValue []profile.Label

func (v *labelsValue) String() string {
	var parts []string
	for _, l := range *v {
		parts = append(parts, l.Key+"="+l.Value)
	}
	return strings.Join(parts, ",")
}

func (v *labelsValue) Set(s string) error {
	key, value, ok := strings.Cut(s, "=")
	switch {
	case !ok || key == "" || strings.ContainsAny(key, " \t\n,:"):
		return errors.New("not a label such as version=1.2")
	case slices.Contains(ownLabels, key):
		return fmt.Errorf("samples have a %s of their own", key)
	case slices.ContainsFunc(*v, func(l profile.Label) bool { return l.Key == key }):
		return fmt.Errorf("there is a %s already", key)
	}
	*v = append(*v, profile.Label{Key: key, Value: value})
	return nil
}

func (v *labelsValue) Type() string { return "key=value" }

// labeller gives samples their labels, which it remembers: a set is made once.
type labeller struct {
	builder   *profile.Builder
	fixed     []profile.Label // of the whole recording
	withCPU   bool
	withState bool

	past    map[uint64]string // paths of cgroups by ID, as a recording tells; nil where those that are here now are meant
	cgroups *loader.Cgroups   // nil without
	old     bool              // there are cgroups of the first version
	byPID   map[int32]processCgroup
	paths   map[string]string // those in byPID, each once

	forgetAt int // size of byPID at which the old are forgotten

	goroutines map[string]uint32 // numbers, from 1 on, of the labels of goroutines
	lacks      bool              // there were more

	processes   uint32            // how often one has told what it is
	contexts    map[string]uint32 // numbers, from 1 on, of what threads work on
	lacksTraces bool              // there were more
	scratch     []profile.Label
	buf         []byte

	sets    map[labelKey]uint32
	last    labelKey // of the sample before
	lastSet uint32
}

// labelKey is what the labels of a sample depend on.
type labelKey struct {
	cgroup uint64
	path   string // of a cgroup of the first version
	cpu    uint32
	state  loader.Blocked

	goroutine uint32 // in goroutines; 0: it has no labels
	process   uint32 // what its process shares, by sharedContext.id; 0: nothing
	context   uint32 // in contexts; 0: the thread does not tell what it works on
	untraced  bool   // but for which trace
}

// processCgroup is what /proc said of a process.
type processCgroup struct {
	path string
	at   uint64 // CLOCK_MONOTONIC, ns
}

// cgroupCheck is how long the cgroup that /proc tells is taken for granted,
// cgroupKeep how long at least that of a process is remembered which has no more
// samples.
const (
	cgroupCheck = time.Second
	cgroupKeep  = 30 * time.Second
)

// maxCgroups is the number of processes from which on they are looked through
// for those to forget.
const maxCgroups = 1 << 10

func newLabeller(b *profile.Builder) *labeller {
	l := makeLabeller(b)
	l.cgroups, _ = loader.OpenCgroups() // doctor says why there are none
	l.old = loader.HasOldCgroups()
	return l
}

func makeLabeller(b *profile.Builder) *labeller {
	return &labeller{builder: b, byPID: map[int32]processCgroup{}, paths: map[string]string{}, forgetAt: maxCgroups, goroutines: map[string]uint32{}, contexts: map[string]uint32{}, sets: map[labelKey]uint32{}}
}

func (l *labeller) close() {
	if l.cgroups != nil {
		l.cgroups.Close()
		l.cgroups = nil
	}
}

// forget forgets the sets, which the builder has forgotten, and the cgroups that had no
// sample since the call before.
func (l *labeller) forget() {
	clear(l.sets)
	clear(l.goroutines)
	clear(l.contexts)
	l.lacks, l.lacksTraces = false, false
	clear(l.paths)
	for _, c := range l.byPID {
		l.paths[c.path] = c.path
	}
	if l.cgroups != nil {
		l.cgroups.Forget()
	}
}

// of returns the number of a sample's labels. shared is what its process shares, or nil.
func (l *labeller) of(s *loader.Sample, shared *sharedContext) uint32 {
	key := labelKey{cgroup: s.Cgroup}
	if l.withCPU && !s.Unsampled {
		key.cpu = s.CPU + 1
	}
	if l.withState {
		key.state = s.Blocked
	}
	if l.old {
		key.path = l.ofProcess(s.PID, s.Time)
	}
	if s.LabelRegions > 0 && !s.Unsampled {
		key.goroutine = l.ofGoroutine(s)
	}
	if shared != nil {
		key.process = shared.id
		if s.ContextRegions > 0 && shared.told && !s.Unsampled {
			key.context, key.untraced = l.ofContext(s, shared)
		}
	}
	if key == l.last && len(l.sets) > 0 {
		return l.lastSet
	}
	set, ok := l.sets[key]
	if !ok {
		set = l.builder.Labels(l.labels(key, s, shared)...)
		l.sets[key] = set
	}
	l.last, l.lastSet = key, set
	return set
}

// maxGoroutineLabels bounds the different labels of goroutines, each of which is a thread of its own to the profile.
const maxGoroutineLabels = 1 << 14

// ofGoroutine returns the number of the labels of a sample's goroutine.
func (l *labeller) ofGoroutine(s *loader.Sample) uint32 {
	l.buf = l.buf[:0]
	for label := range s.GoLabels() {
		l.buf = append(append(l.buf, label.Key...), 0)
		l.buf = append(append(l.buf, label.Value...), 0)
	}
	if len(l.buf) == 0 {
		return 0
	}
	n, ok := l.goroutines[string(l.buf)]
	if !ok {
		if len(l.goroutines) >= maxGoroutineLabels {
			l.lacks = true
			return 0
		}
		n = uint32(len(l.goroutines) + 1)
		l.goroutines[string(l.buf)] = n
	}
	return n
}

// maxContexts bounds the different traces, spans and attributes that threads tell of, as maxGoroutineLabels does labels.
// Beyond the first of these just attributes are told.
const (
	maxTracedContexts = 1 << 14
	maxContexts       = 2 * maxTracedContexts
)

// ofContext returns the number of what the thread of a sample works on, and whether that is without its trace.
func (l *labeller) ofContext(s *loader.Sample, shared *sharedContext) (n uint32, untraced bool) {
	record := s.ThreadContext()
	for _, withTrace := range []bool{true, false} {
		l.buf = strconv.AppendUint(l.buf[:0], uint64(shared.id), 16) // by which attributes have their names
		start := len(l.buf)
		if l.buf = shared.appendKeyOf(append(l.buf, 0), record, withTrace); len(l.buf) == start+1 {
			return 0, false
		}
		if n, ok := l.contexts[string(l.buf)]; ok {
			return n, !withTrace
		}
		limit := maxTracedContexts
		if !withTrace {
			l.lacksTraces, limit = true, maxContexts
		}
		if len(l.contexts) < limit {
			n = uint32(len(l.contexts) + 1)
			l.contexts[string(l.buf)] = n
			return n, !withTrace
		}
	}
	return 0, false
}

// notes tells what labels are missing.
func (l *labeller) notes() (notes []string) {
	if l.lacksTraces {
		notes = append(notes, fmt.Sprintf("samples lack their traces, of which there are more than %d different ones with spans", maxTracedContexts))
	}
	if !l.lacks {
		return notes
	}
	return append(notes, fmt.Sprintf("samples lack labels of their goroutines, of which there are more than %d different ones", maxGoroutineLabels))
}

// ofProcess returns the cgroup of a process by /proc, where the unified
// hierarchy does not tell. now is a sample's time.
func (l *labeller) ofProcess(pid int32, now uint64) string {
	c, ok := l.byPID[pid]
	if ok && now < c.at+uint64(cgroupCheck) {
		return c.path
	}
	if path := loader.CgroupOfProcess(int(pid)); path != "" || !ok {
		if _, known := l.paths[path]; !known {
			l.paths[path] = path
		}
		c.path = l.paths[path]
	}
	c.at = now
	if !ok && len(l.byPID) >= l.forgetAt {
		maps.DeleteFunc(l.byPID, func(_ int32, c processCgroup) bool { return now > c.at+uint64(cgroupKeep) })
		l.forgetAt = max(maxCgroups, 2*len(l.byPID))
	}
	l.byPID[pid] = c
	return c.path
}

func (l *labeller) labels(key labelKey, s *loader.Sample, shared *sharedContext) []profile.Label {
	labels := slices.Clone(l.fixed)
	add := func(key, value string) {
		if value != "" {
			labels = append(labels, profile.Label{Key: key, Value: value})
		}
	}
	if path := l.cgroupOf(key, s); path != "/" {
		add("cgroup", path)
		add("container", loader.ContainerOfCgroup(path))
		add("unit", loader.UnitOfCgroup(path))
	}
	if key.cpu > 0 {
		add("cpu", strconv.Itoa(int(key.cpu-1)))
	}
	if l.withState {
		add("state", key.state.String())
	}
	if key.goroutine != 0 {
		for label := range s.GoLabels() {
			add(l.keyOf("go", string(label.Key)), goLabelText(&label))
		}
	}
	if key.process != 0 {
		for _, label := range shared.labels {
			add(l.keyOf("otel", label.Key), label.Value)
		}
	}
	if key.context != 0 {
		l.scratch = shared.appendContext(l.scratch[:0], s.ThreadContext(), !key.untraced)
		for _, label := range l.scratch {
			add(l.keyOf("otel", label.Key), strings.ToValidUTF8(label.Value, "\ufffd"))
		}
	}
	return labels
}

// cgroupOf returns the path of a sample's cgroup, "" where that is not known.
func (l *labeller) cgroupOf(key labelKey, s *loader.Sample) string {
	if l.past != nil {
		return l.past[key.cgroup]
	}
	path := ""
	if l.cgroups != nil {
		path = l.cgroups.Path(key.cgroup)
	}
	if path == "" && !l.old { // gone, or not to be looked up
		path = loader.CgroupOfProcess(int(s.PID))
	}
	if len(path) <= 1 && key.path != "" {
		path = key.path
	}
	return path
}

// keyOf returns the key of a label that a program gives: those that samples have by themselves are told from it.
func (l *labeller) keyOf(program, key string) string {
	key = strings.ToValidUTF8(key, "\ufffd")
	if slices.Contains(ownLabels, key) || slices.ContainsFunc(l.fixed, func(l profile.Label) bool { return l.Key == key }) {
		return program + "." + key
	}
	return key
}

// goLabelText returns a value as it is shown: with dots where it was cut, perhaps in the middle of a character.
func goLabelText(label *loader.GoLabel) string {
	if label.IsCut {
		return strings.ToValidUTF8(string(label.Value), "") + "..."
	}
	return strings.ToValidUTF8(string(label.Value), "\ufffd")
}
