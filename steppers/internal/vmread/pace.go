package vmread

import "time"

// Pace bounds the time that it takes to read what a process says of itself, which can be made to lead
// from one thing to the next without an end. The zero value has all of it.
type Pace struct {
	left int       // microseconds, about
	from time.Time // since when there is no more
}

const (
	maxReading      = 4 << 20 // microseconds that a process has at first, and when it was left alone for long,
	readingPart     = 4       // and one in so many of those that pass
	readingInterval = 100 * time.Millisecond
	readingBytes    = 512 // that take a microsecond, to read and to take apart
)

// May reports whether so many bytes may be read, or looked at.
func (p *Pace) May(n int) bool {
	cost := 1 + n/readingBytes
	if p.left >= cost {
		p.left -= cost
		return true
	}
	now := time.Now()
	passed := now.Sub(p.from)
	if passed < readingInterval {
		return false
	}
	p.left, p.from = int(min(passed.Microseconds()/readingPart, maxReading)), now
	if p.left < cost {
		return false
	}
	p.left -= cost
	return true
}
