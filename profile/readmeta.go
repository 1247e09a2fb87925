package profile

import (
	"strconv"
	"strings"
)

// What Profile.describe writes. The other facts have fields in pprof.
var (
	describedFirst   = pattern(`^(.*): (\S+?)(?: at (\d+) Hz|, one sample in (\d+))?(?: for [\d.]+ (?:ms|s|min|h)(?: \d+ (?:s|min))?)?(?: on (\d+) CPUs?)?(?:, by ((?:swbpf|perf) .*))?$`)
	describedSamples = pattern(`^\d+ samples, .* with complete stacks$`)
	describedEvent   = pattern(`^(\S+?)(?: at (\d+) Hz|, one sample in (\d+))?$`)
	describedTally   = pattern(`^(\S+) (\d+)$`)
)

// describedAlso begins the line about a further event.
const describedAlso = "also "

// parseDescription takes facts from the comments of a profile that swbpf
// wrote, the reverse of describe, and reports whether it is one.
func parseDescription(m *Meta, comments []string) bool {
	if len(comments) == 0 {
		return false
	}
	f := describedFirst().FindStringSubmatch(comments[0])
	if f == nil || f[5] == "" && f[6] == "" {
		return false
	}
	m.Target, m.Event, m.Tool = f[1], f[2], f[6]
	m.FrequencyHz, _ = strconv.Atoi(f[3])
	m.CPUs, _ = strconv.Atoi(f[5])
	for _, text := range comments[1:] {
		if rest, ok := strings.CutPrefix(text, "kernel "); ok {
			m.Kernel = rest
		} else if rest, ok := strings.CutPrefix(text, describedAlso); ok {
			if f := describedEvent().FindStringSubmatch(rest); f != nil {
				also := Event{Name: f[1]}
				also.FrequencyHz, _ = strconv.Atoi(f[2])
				also.Period, _ = strconv.ParseInt(f[3], 10, 64)
				m.Also = append(m.Also, also)
			}
		} else if rest, ok := strings.CutPrefix(text, "lost: "); ok {
			for part := range strings.SplitSeq(rest, ", ") {
				if t := describedTally().FindStringSubmatch(part); t != nil {
					n, _ := strconv.ParseInt(t[2], 10, 64)
					m.Lost = append(m.Lost, Tally{t[1], n})
				}
			}
		} else if !describedSamples().MatchString(text) && !strings.HasPrefix(text, "truncated: ") {
			m.Notes = append(m.Notes, text)
		}
	}
	return true
}
