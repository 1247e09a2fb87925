package profile

import (
	"cmp"
	"slices"
)

// moment is when a sample was added. Its tally is numbered as those of the
// Builder or of the Profile are.
type moment struct {
	time int64 // nanoseconds by SetTime's clock
	tally
}

// KeepTimes makes the Builder note the time of each sample from now on, for
// the formats with a time line. Its memory then grows with time: by 32 bytes
// a sample.
func (b *Builder) KeepTimes() { b.keepTimes = true }

// SetTime says when the samples were taken that are added from now on, in
// nanoseconds by any clock.
func (b *Builder) SetTime(ns int64) { b.now = ns }

// orderTimes sorts the moments by time, those of one time as they were added.
// nodes and threads are new numbers by old ones.
func (b *Builder) orderTimes(nodes, threads []uint32) []moment {
	times := make([]moment, b.times.count)
	for i, m := range b.times.all() {
		times[i] = *m
		times[i].node, times[i].thread = nodes[m.node], threads[m.thread]
	}
	slices.SortStableFunc(times, func(x, y moment) int { return cmp.Compare(x.time, y.time) })
	return times
}
