package vmread

import (
	"testing"
	"time"
)

// What a process may have read of it comes to an end, and there is some again when time has passed.
func TestReadPace(t *testing.T) {
	var p Pace
	until := func() (n int) {
		for n < 2*maxReading && p.May(readingBytes-1) {
			n++
		}
		return n
	}
	if n := until(); n != maxReading {
		t.Errorf("at first there are %d reads", n)
	}
	p.left, p.from = 0, time.Now().Add(time.Hour) // that did not come yet
	if p.May(0) {
		t.Error("there are more at once")
	}
	p.from = time.Now().Add(-time.Second)
	if !p.May(0) || p.left < 1e6/readingPart-1 || p.left > maxReading/2 {
		t.Errorf("after a second there are %d", p.left)
	}
	p.left = 10
	if p.May(10*readingBytes) || !p.May(9*readingBytes) {
		t.Error("what is read has no length")
	}
}
