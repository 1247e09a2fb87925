package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/unwind"
)

// meta describes the recording for whoever opens the profile.
func (r *recorder) meta() profile.Meta {
	event := r.session.Event()
	m := profile.Meta{
		Tool:     "swbpf " + version(),
		Target:   r.opt.target(),
		Start:    r.part.began,
		Clock:    int64(r.part.clock),
		Duration: r.partDuration(),
		CPUs:     cmp.Or(len(r.opt.cpus), loader.CPUs()),
		Kernel:   kernelRelease(),
		Help:     maps.Clone(loader.LostHelp),
	}
	samplings := r.samplings()
	first := describeEvent(&samplings[0])
	m.Event, m.FrequencyHz, m.Value, m.Period, m.ByValue = first.Name, first.FrequencyHz, first.Value, first.Period, first.ByValue
	m.Wall = event.IsWall()
	for i := range samplings[1:] {
		m.Also = append(m.Also, describeEvent(&samplings[1+i]))
	}
	for reason, n := range r.stats.LostByReason {
		if n -= r.part.lost[reason]; n > 0 {
			m.Lost = append(m.Lost, profile.Tally{Name: reason, N: int64(n)})
		}
	}
	for reason := range unwind.NumReasons {
		m.Help[reason.String()] = reason.Help()
	}
	return m
}

// describeEvent says how an event was sampled, and what the samples count.
func describeEvent(s *loader.Sampling) profile.Event {
	e := profile.Event{Name: s.Event.Name, FrequencyHz: s.Frequency}
	switch {
	case s.Event.IsOffCPU():
		e.Value = profile.ValueType{Type: "off-cpu", Unit: "nanoseconds"}
		e.ByValue = true
	case s.Event.IsWall():
		e.Value = profile.ValueType{Type: "wall", Unit: "nanoseconds"}
		e.ByValue = true
	case s.Event.IsHeap():
		e.Value = profile.ValueType{Type: s.Event.Name, Unit: "bytes"}
		e.ByValue = true
	case s.Weight.Name != "":
		e.Value = profile.ValueType{Type: s.Weight.Name, Unit: s.Weight.Unit}
		e.ByValue = true
	case s.Event.Unit == loader.UnitNanoseconds:
		e.Value = profile.ValueType{Type: "cpu", Unit: "nanoseconds"}
		e.Period = int64(s.Period)
		if s.Frequency > 0 {
			e.Period = int64(time.Second) / int64(s.Frequency)
		}
	case s.Event.Unit == loader.UnitCycles:
		e.Value = profile.ValueType{Type: "cycles", Unit: "count"}
	default:
		e.Value = profile.ValueType{Type: s.Event.Name, Unit: "count"}
		e.Period = int64(s.Period)
	}
	return e
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

// printSummary says at the end what was recorded and how to see it.
func printSummary(w io.Writer, r *recorder, p *profile.Profile, outs []*output) {
	s := &r.stats
	samplings := r.samplings()
	took := fmt.Sprintf("in %.1f s, %s", s.DurationSeconds, plural(s.Processes, "process"))
	switch {
	case r.heap != nil:
		fmt.Fprintf(w, "%s of %s %s\n", plural(s.Samples, "sample"), s.Event, took)
		samplings = nil
	case len(samplings) > 1:
		fmt.Fprintf(w, "%s %s\n", plural(s.Samples, "sample"), took)
	}
	for i, m := range samplings {
		rate, asked := "", r.opt.eventNames()[i]
		if m.Frequency > 0 {
			rate = fmt.Sprintf(" at %d Hz", m.Frequency)
		}
		if len(samplings) > 1 {
			fmt.Fprintf(w, "  %s of %s%s\n", thousands(int(s.samplesOf[i])), m.Event.Name, rate)
		} else {
			fmt.Fprintf(w, "%s of %s%s %s\n", plural(s.Samples, "sample"), m.Event.Name, rate, took)
		}
		if m.Event.Name != asked {
			asked, _, _ := strings.Cut(asked, ":")
			fmt.Fprintf(w, "  (%s: this machine counts no %s)\n", m.Event.Name, asked)
		}
	}
	if slices.ContainsFunc(r.opt.allEvents(), func(e eventOptions) bool { return e.filter != "" }) {
		fmt.Fprintf(w, "  (--filter leaves out %s)\n", plural(s.LeftOut, "other"))
	}
	switch e := r.session.Event(); {
	case s.Samples > 0 || s.Lost > 0:
	case !r.hasBegun():
		fmt.Fprintln(w, "  (the recording ended within --delay)")
	case r.heap != nil:
		fmt.Fprintln(w, "  (nothing was allocated, or by no allocator that is known, or too little for a sample: -c 1 takes every block)")
	case s.FrequencyHz > 0:
		fmt.Fprintln(w, "  (nothing ran at the moments of sampling: -F makes more of them, --wall records waiting too)")
	case e.IsUprobe() && s.LeftOut == 0:
		fmt.Fprintf(w, "  (%s)\n", neverHit(e, r.opt.recordsCommand()))
	}
	if s.UserSamples > 0 {
		fmt.Fprintf(w, "user stacks: %d complete (%.2f %%)%s\n", s.Complete, percent(s.Complete, s.UserSamples), reasons(", truncated", s.TruncatedByReason))
		for reason := range unwind.NumReasons {
			if n := s.TruncatedByReason[reason.String()]; percent(n, s.UserSamples) >= 1 {
				fmt.Fprintf(w, "  (%s: %s)\n", reason, reason.Help())
			}
		}
	}
	if s.Lost > 0 {
		printLosses(w, &s.figures)
	} else {
		fmt.Fprintln(w, "lost: none")
	}
	if r.heap != nil {
		printHeap(w, r.heap, uint64(r.part.clock), r.session.Period())
		if s.FreesMissed > 0 {
			fmt.Fprintf(w, "  (of %s it is not known when they were given back, for want of room: the most may be less)\n", plural(s.FreesMissed, "block"))
		}
		if s.AllocatorsMissed > 0 {
			fmt.Fprintf(w, "  (allocators of %s started or loaded meanwhile are not seen)\n", plural(s.AllocatorsMissed, "file"))
		}
	}
	for i, one := range p.Events() {
		printTop(w, r, i, &r.samplings()[i], one)
	}
	printNotes(w, p.Meta.Notes)
	if r.parts != nil {
		fmt.Fprintf(w, "%s written\n", plural(r.parts.written, "profile"))
	}
	for _, o := range outs {
		o.see(w)
	}
}

// printTop lists the functions with most of an event, by its number, of which m and p tell.
func printTop(w io.Writer, r *recorder, number int, m *loader.Sampling, p *profile.Profile) {
	whole, top, title, what := uint64(p.Samples), p.Top, "top functions", "(self, with callees)"
	if p.Meta.ByValue {
		whole = uint64(p.Value)
	}
	event, byTime := m.Event, m.Event.IsOffCPU() || m.Event.IsWall()
	if byTime || event.IsTracepoint() || event.IsKprobe() {
		// In the kernel all are at the same place.
		top, title, what = p.TopUser, "top functions of user space", "(with the kernel, with callees)"
	}
	value := r.value[number]
	if event.IsHeap() {
		printHeapStacks(w, r.heap, number, p)
		return
	}
	if byTime {
		printStates(w, value, &r.stats, event.IsWall())
	} else if m.Weight.Name != "" {
		fmt.Fprintf(w, "%s: %s\n", m.Weight.Name, amount(value, m.Weight.Unit))
	}
	list := top(5)
	if len(list) == 0 || whole == 0 {
		return
	}
	if len(r.samplings()) > 1 {
		title += ", " + event.Name
	}
	if r.parts != nil {
		title += " of the last part"
	}
	fmt.Fprintf(w, "%s %s:\n", title, what)
	shared := sharedNames(list, func(e *profile.TopEntry) string { return e.Function })
	for _, e := range list {
		fmt.Fprintf(w, "  %5.1f %% %5.1f %%  %s\n", percent(uint64(e.Self), whole), percent(uint64(e.Total), whole), shared.text(e.Function, e.Module))
	}
}

// printNotes says what was left out, and what is missing in the names.
func printNotes(w io.Writer, notes []string) {
	for _, note := range notes {
		fmt.Fprintln(w, "note:", printable(note))
	}
}

// printLosses says what was lost and, where it is more than a little, why.
func printLosses(w io.Writer, s *figures) {
	fmt.Fprintf(w, "lost: %s%s\n", plural(s.Lost, "sample"), reasons(" by", s.LostByReason))
	for _, reason := range slices.Sorted(maps.Keys(s.LostByReason)) {
		if percent(s.LostByReason[reason], s.Samples+s.Lost) >= 1 {
			fmt.Fprintf(w, "  (%s: %s)\n", reason, loader.LostHelp[reason])
			if reason == "ring_full" && s.RealTimeRefused != "" {
				fmt.Fprintf(w, "  (real-time priority was refused: %s; without, this program waits for its turn on busy CPUs: it takes CAP_SYS_NICE and, in a cpu control group of version 1, cpu.rt_runtime_us)\n", s.RealTimeRefused)
			}
		}
	}
}

// nameSet has the names of functions, true for those that several have.
type nameSet map[string]bool

// sharedNames finds the names that several functions of a list have, as programs
// all have a main.
func sharedNames[E any](list []E, name func(*E) string) nameSet {
	shared := nameSet{}
	for i := range list {
		_, again := shared[name(&list[i])]
		shared[name(&list[i])] = again
	}
	return shared
}

// text is a function's name, and its file where others share the name.
func (shared nameSet) text(function, module string) string {
	if !shared[function] || module == "" {
		return printable(function)
	}
	return printable(function + "  " + module)
}

// printStates says how much time threads spent in which state, of a total in ns. Where
// it is recorded too, what is not off the CPU is on it.
func printStates(w io.Writer, total int64, s *recordStats, running bool) {
	off := uint64(0)
	for _, ns := range s.OffCPUNSByState {
		off += ns
	}
	var parts []string
	if running {
		parts = append(parts, "running "+amount(total-int64(off), "nanoseconds"))
	}
	for _, state := range byTime(s.OffCPUNSByState) {
		parts = append(parts, state+" "+amount(int64(s.OffCPUNSByState[state]), "nanoseconds"))
	}
	if len(parts) > 0 {
		fmt.Fprintf(w, "time of threads: %s\n", strings.Join(parts, ", "))
	}
	printWakers(w, s)
	if s.OffCPUUnsampled > 0 {
		fmt.Fprintf(w, "sampled: %d switches of the busiest threads have no stack of their own; others like them stand for their %s",
			s.OffCPUUnsampled, amount(int64(s.OffCPUUnsampledNS), "nanoseconds"))
		if s.UnsampledNS > 0 {
			fmt.Fprintf(w, ", without %s [not sampled]", amount(int64(s.UnsampledNS), "nanoseconds"))
		}
		fmt.Fprintln(w)
	}
}

// byTime returns the keys of times, the longest first.
func byTime(ns map[string]uint64) []string {
	return slices.SortedFunc(maps.Keys(ns), func(a, b string) int {
		return cmp.Or(cmp.Compare(ns[b], ns[a]), strings.Compare(a, b))
	})
}

// shownWakers is how many of those that ended most of the time waited are listed.
const shownWakers = 5

// printWakers lists what has ended most of the time that threads waited.
func printWakers(w io.Writer, s *recordStats) {
	var parts []string
	var others uint64
	for _, who := range byTime(s.OffCPUNSByWaker) {
		ns := s.OffCPUNSByWaker[who]
		switch {
		case who == "": // comes last
		case len(parts) < shownWakers:
			parts = append(parts, printable(who)+" "+amount(int64(ns), "nanoseconds"))
		default:
			others += ns
		}
	}
	if others > 0 {
		parts = append(parts, "others "+amount(int64(others), "nanoseconds"))
	}
	if ns := s.OffCPUNSByWaker[""]; ns > 0 {
		parts = append(parts, "not known "+amount(int64(ns), "nanoseconds"))
	}
	if ns := s.OffCPUOngoingNS; ns > 0 {
		parts = append(parts, "still waiting "+amount(int64(ns), "nanoseconds"))
	}
	if len(parts) > 0 {
		fmt.Fprintf(w, "woken by: %s\n", strings.Join(parts, ", "))
	}
	if s.WakersLost > 0 {
		fmt.Fprintf(w, "  (of %s it is not known, for want of room)\n", plural(s.WakersLost, "time"))
	}
}

// amount is a number of units as people write it.
func amount(n int64, unit string) string {
	switch {
	case unit == "nanoseconds" && n < int64(time.Second):
		return fmt.Sprintf("%.3g ms", float64(n)/1e6)
	case unit == "nanoseconds":
		return fmt.Sprintf("%.2f s", float64(n)/1e9)
	case unit == "bytes" && n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case unit == "bytes" && n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case unit == "bytes" && n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case unit == "bytes" || unit == "count":
		return strings.TrimSuffix(fmt.Sprintf("%d %s", n, unit), " count")
	}
	return fmt.Sprintf("%d %s", n, unit)
}

func percent(part, whole uint64) float64 { return 100 * float64(part) / float64(whole) }

// reasons lists counts by reason, most first: ", truncated: stack-cut 3".
func reasons(label string, counts map[string]uint64) string {
	if len(counts) == 0 {
		return ""
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if counts[a] != counts[b] {
			return int(counts[b]) - int(counts[a])
		}
		return strings.Compare(a, b)
	})
	for i, n := range names {
		names[i] = fmt.Sprintf("%s %d", n, counts[n])
	}
	return label + ": " + strings.Join(names, ", ")
}

// shellQuote quotes a path for pasting where it needs that.
func shellQuote(path string) string {
	if strings.IndexFunc(path, func(c rune) bool {
		return !strings.ContainsRune("/._-+,@%:=", c) && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	}) < 0 {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// progress is the line that a terminal shows while recording.
type progress struct {
	w     *os.File
	r     *recorder
	shown bool
	next  time.Time
}

// progressEvery is how often the line is written anew.
const progressEvery = time.Second

// newProgress writes to w when that is a terminal, and else nothing.
func newProgress(w *os.File, r *recorder) *progress {
	if _, err := unix.IoctlGetTermios(int(w.Fd()), unix.TCGETS); err != nil || r.command != nil {
		return &progress{r: r} // a command may use the terminal itself
	}
	return &progress{w: w, r: r}
}

func (p *progress) update() {
	now := time.Now()
	if p.w == nil || now.Before(p.next) {
		return
	}
	p.next = now.Add(progressEvery)
	p.shown = true
	if !p.r.hasBegun() {
		fmt.Fprintf(p.w, "\r\x1b[K%s: sampling begins in %.0f s; Ctrl-C ends it", p.r.opt.target(), p.r.began.Sub(now).Seconds())
		return
	}
	var lost uint64
	if st, err := p.r.session.Stats(); err == nil {
		lost = st.Lost()
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s: %.0f s, %s, %d lost, %s; Ctrl-C ends it",
		p.r.opt.target(), now.Sub(p.r.began).Seconds(), plural(p.r.stats.Samples, "sample"), lost, plural(p.r.sampled.n, "process"))
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// umask returns the file mode creation mask. There is no way to read it but
// to set it.
func umask() os.FileMode {
	m := unix.Umask(0o077)
	unix.Umask(m)
	return os.FileMode(m)
}
