package profile

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// describe says in a few lines what was sampled, how, and what is missing.
func (p *Profile) describe() []string {
	m := &p.Meta
	first := m.Target
	if first == "" {
		first = "unknown target"
	}
	if how := m.how(); how != "" {
		first += ": " + how
	}
	if m.Tool != "" {
		first += ", by " + m.Tool
	}
	lines := []string{first}
	for i := range m.Also {
		also := m.ofEvent(1 + i)
		lines = append(lines, describedAlso+also.sampling())
	}
	if m.Kernel != "" {
		lines = append(lines, "kernel "+m.Kernel)
	}
	if p.tellsComplete() {
		lines = append(lines, fmt.Sprintf("%d samples, %s with complete stacks", p.Samples, share(p.Complete, p.Samples)))
	}
	if len(p.Truncated) > 0 {
		lines = append(lines, "truncated: "+tallyText(p.Truncated))
	}
	if m.LostTotal() != 0 {
		lines = append(lines, "lost: "+tallyText(m.Lost))
	}
	return append(lines, m.Notes...)
}

// how says by which event, how often and for how long was sampled.
func (m *Meta) how() string {
	if m.Event == "" && m.FrequencyHz == 0 && m.Duration == 0 {
		return ""
	}
	s := m.sampling()
	if m.Duration > 0 {
		s += " for " + durationText(m.Duration)
	}
	if m.CPUs == 1 {
		s += " on 1 CPU"
	} else if m.CPUs > 1 {
		s += fmt.Sprintf(" on %d CPUs", m.CPUs)
	}
	return s
}

// sampling says by which event and how often was sampled.
func (m *Meta) sampling() string {
	s := cmp.Or(m.Event, m.counted())
	if m.FrequencyHz > 0 {
		s += fmt.Sprintf(" at %d Hz", m.FrequencyHz)
	} else if m.Period > 1 {
		s += fmt.Sprintf(", one sample in %d", m.Period)
	}
	return s
}

// tallyText lists what is not 0: "ring-full 3, no-record 1".
func tallyText(tallies []Tally) string {
	var parts []string
	for _, t := range tallies {
		if t.N != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", t.Name, t.N))
		}
	}
	return strings.Join(parts, ", ")
}

// LostTotal returns the number of events that left no sample.
func (m *Meta) LostTotal() (n int64) {
	for _, t := range m.Lost {
		n += t.N
	}
	return n
}

// durationText prints a duration as people write it: "8.5 s", "12 min 5 s".
func durationText(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	case d < time.Minute:
		return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
	}
	d = d.Round(time.Second)
	h, m, s := int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60
	if h > 0 {
		return fmt.Sprintf("%d h %d min", h, m)
	}
	return fmt.Sprintf("%d min %d s", m, s)
}

// Amount prints a weight, in its unit if that is time or bytes: "1,234",
// "1.25 s", "3.0 MiB".
func (p *Profile) Amount(n int64) string {
	switch {
	case p.Meta.ByValue && p.Meta.Value.Unit == "nanoseconds":
		return timeText(n)
	case p.Meta.ByValue && p.Meta.Value.Unit == "bytes":
		return bytesText(n)
	}
	return thousands(n)
}

// timeText prints nanoseconds in three digits, as the page does.
func timeText(ns int64) string {
	if ns >= 1000e9 {
		return durationText(time.Duration(ns))
	}
	for _, unit := range []struct {
		name string
		size float64
	}{{"s", 1e9}, {"ms", 1e6}, {"µs", 1e3}} {
		if v := float64(ns) / unit.size; v >= 0.9995 {
			return strconv.FormatFloat(v, 'f', max(0, 2-int(math.Log10(v*1.0005))), 64) + " " + unit.name
		}
	}
	return strconv.FormatInt(ns, 10) + " ns"
}

func bytesText(n int64) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if shift := 40 - 10*i; n >= 1<<shift {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(int64(1)<<shift), unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// share prints n of total as a percentage that is 100 % only when it is.
func share(n, total int64) string {
	if total == 0 {
		return "none"
	}
	pct := 100 * float64(n) / float64(total)
	text := strconv.FormatFloat(pct, 'f', 1, 64)
	switch {
	case n == total || n == 0:
		text = strconv.FormatFloat(pct, 'f', 0, 64)
	case text == "100.0":
		text = "99.9"
	case text == "0.0":
		return "< 0.1 %"
	}
	return text + " %"
}
