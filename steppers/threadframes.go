package steppers

import "time"

// ThreadFrames is where an interpreter keeps the frames of a thread: see loader.ThreadFrames.
type ThreadFrames struct {
	Current           uint64
	Bounds            uint64
	Low, High         int
	IsCounted, IsDown bool
	HasValues         bool
	Values, ValuesEnd int
	Bytes, Head       int
	IsFrame           bool
	First, Previous   int
	Entry, Last       int
	Before, After     int
}

// framesAsked are threads for which it was told where a runtime keeps their frames.
type framesAsked map[int]frameAsked

// frameAsked is when that was last, and whether frames that are in no stack were wanted.
type frameAsked struct {
	at      time.Time
	follows bool
}

const (
	maxFramesAsked      = 1 << 14
	framesAskedInterval = 100 * time.Millisecond
)

// ask reports whether to tell it of a thread again, of which frames are lacking, or those that are in
// no stack; follows tells that these are wanted.
func (a framesAsked) ask(tid int, lacks, lacksFrame bool) (follows, ask bool) {
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
