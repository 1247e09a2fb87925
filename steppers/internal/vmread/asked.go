package vmread

import "time"

// FramesAsked are threads for which it was told where a runtime keeps their frames.
type FramesAsked map[int]frameAsked

// frameAsked is when that was last, and whether frames that are in no stack were wanted.
type frameAsked struct {
	at      time.Time
	follows bool
}

const (
	maxFramesAsked      = 1 << 14
	framesAskedInterval = 100 * time.Millisecond
)

// Ask reports whether to tell it of a thread again, of which frames are lacking, or those that are in
// no stack; follows tells that these are wanted.
func (a FramesAsked) Ask(tid int, lacks, lacksFrame bool) (follows, ask bool) {
	asked, again := a[tid]
	switch {
	case again && time.Since(asked.at) < framesAskedInterval, again && !lacks && asked.follows:
		return asked.follows, false
	case len(a) >= maxFramesAsked:
		clear(a)
	}
	asked.at, asked.follows = time.Now(), asked.follows || lacksFrame
	a[tid] = asked
	return asked.follows, true
}
