package main

import (
	"testing"
	"time"
)

// Waits grow while next to nothing is sampled or samples are small, and never so
// far that full stacks on all CPUs would fill more than three quarters of the rings.
func TestPace(t *testing.T) {
	for _, tc := range []struct{ hz, cpus, ring, stack int }{
		{99, 2, 6 << 20, 64 << 10},
		{99, 256, 256 * 512 << 10, 64 << 10},
		{997, 2, 16 << 20, 64 << 10},
		{4999, 2, 16 << 20, 64 << 10},
		{99, 2, 16 << 20, 1 << 20},
		{1, 1, 256 << 10, 4 << 10},
	} {
		p := paceOf(tc.hz, tc.cpus, tc.ring, tc.stack)
		busy := p.wait
		if busy < minPoll || busy > maxPoll || p.isCalm() {
			t.Errorf("%+v: begins with %v", tc, busy)
		}
		for last := busy; ; last = p.wait {
			if p.polled(0, 0); p.wait < last {
				t.Fatalf("%+v: from %v to %v", tc, last, p.wait)
			}
			if p.wait == last {
				break
			}
		}
		if come := p.wait.Seconds() * float64(tc.hz*tc.cpus*tc.stack); p.wait > calmPoll || p.isCalm() && come > float64(tc.ring)*3/4 {
			t.Errorf("%+v: waits %v, in which %.0f bytes may come", tc, p.wait, come)
		}
		many := func() uint64 { return uint64(p.few*p.wait.Seconds()) + 1 }
		if p.polled(many(), uint64(tc.ring)); p.wait != busy && p.wait >= calmPoll/4 {
			t.Errorf("%+v: %v after rings that were full", tc, p.wait)
		}
		for range 20 {
			p.polled(many(), 1)
		}
		if come := p.wait.Seconds() * float64(tc.hz*tc.cpus*tc.stack); p.isCalm() || p.wait > maxPoll || p.wait > busy && come > float64(tc.ring)*3/4 {
			t.Errorf("%+v: waits %v between small samples, in which %.0f bytes may come", tc, p.wait, come)
		}
		for range 20 {
			p.polled(many(), uint64(tc.ring)/8)
			p.polled(many(), uint64(tc.ring)/2)
		}
		if p.wait != busy {
			t.Errorf("%+v: %v while rings fill, want %v", tc, p.wait, busy)
		}
		p.polled(0, 0)
		if p.hurry(); p.wait != busy {
			t.Errorf("%+v: %v after news, want %v", tc, p.wait, busy)
		}
	}
	if p := paceOf(99, 2, 6<<20, 64<<10); p.calm < 200*time.Millisecond {
		t.Errorf("polls a machine that idles every %v", p.calm)
	}
}
