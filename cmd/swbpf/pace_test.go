package main

import (
	"testing"
	"time"
)

// Waits grow while little is sampled, and are short while rings fill or what may
// soon be gone is sampled.
func TestPace(t *testing.T) {
	for _, tc := range []struct{ hz, cpus, ring, stack, enough int }{
		{99, 2, 4 << 20, 64 << 10, 1 << 20},
		{99, 256, 256 * 512 << 10, 64 << 10, 16 << 20},
		{997, 2, 16 << 20, 64 << 10, 2 << 20},
		{4999, 2, 16 << 20, 64 << 10, 2 << 20},
		{99, 2, 16 << 20, 1 << 20, 2 << 20},
		{1, 1, 256 << 10, 4 << 10, 64 << 10},
	} {
		p := paceOf(tc.hz, tc.cpus, tc.ring, tc.stack)
		least := p.wait
		if least < minPoll || least > soonPoll || p.hasten() != 0 {
			t.Errorf("%+v: begins with %v", tc, least)
		}
		if come := least.Seconds() * float64(tc.hz*tc.cpus*tc.stack); least > minPoll && come > float64(tc.ring)/8*1.001 {
			t.Errorf("%+v: begins with %v, in which %.0f bytes may come", tc, least, come)
		}
		for last := least; p.wait < maxPoll; last = p.wait {
			if p.polled(0, false, false, false, false); p.wait <= last && (p.wait != newPoll || p.calm >= calmPolls) {
				t.Fatalf("%+v: from %v to %v", tc, last, p.wait)
			}
		}
		if p.wait != maxPoll || p.hasten() != codePoll {
			t.Errorf("%+v: rests for %v, with news for %v", tc, p.wait, p.hasten())
		}
		if p.polled(1, true, false, false, false); p.wait != newPoll {
			t.Errorf("%+v: waits %v with a new process", tc, p.wait)
		}
		rate := float64(tc.enough) * 4 // bytes a second
		for range 20 {
			p.polled(uint64(rate*p.wait.Seconds()), false, false, false, false)
		}
		if off := p.wait - 250*time.Millisecond; off.Abs() > time.Millisecond {
			t.Errorf("%+v: waits %v while enough comes within 250 ms", tc, p.wait)
		}
		if p.polled(1, false, false, true, false); p.wait != soonPoll || p.hasten() != 0 {
			t.Errorf("%+v: waits %v for what may soon be gone", tc, p.wait)
		}
		for range 20 {
			p.polled(uint64(tc.enough), false, false, false, false)
			p.polled(uint64(tc.ring)/2, false, false, false, false)
		}
		if p.wait != least {
			t.Errorf("%+v: %v while rings fill, want %v", tc, p.wait, least)
		}
	}
}

// Where code is given up before it is looked at, polls follow soon for a while; not for ever
// where it cannot be walked at all.
func TestPaceLostCode(t *testing.T) {
	p := paceOf(997, 2, 16<<20, 64<<10)
	for range 20 {
		p.polled(1, false, false, true, false)
	}
	for i := range codePolls {
		if p.polled(1, false, false, true, i == 0); p.wait != codePoll {
			t.Fatalf("waits %v %d polls after code was lost", p.wait, i)
		}
	}
	if p.polled(1, false, false, true, false); p.wait <= codePoll {
		t.Errorf("waits %v long after", p.wait)
	}
	for range 3 * codePolls {
		p.polled(1, false, false, true, true)
	}
	if p.wait != soonPoll {
		t.Errorf("waits %v where code is lost all the time", p.wait)
	}
}

// After one that came sooner for news, polls follow soon for a while.
func TestPaceHastened(t *testing.T) {
	p := paceOf(99, 2, 4<<20, 64<<10)
	for range 20 {
		p.polled(1, false, false, false, false)
	}
	for i := range hastenedPolls {
		if p.polled(1, false, i == 0, false, false); p.wait != codePoll || p.hasten() != 0 {
			t.Fatalf("waits %v %d polls after the news, with others for %v", p.wait, i, p.hasten())
		}
	}
	if p.polled(1, false, false, false, false); p.wait <= codePoll {
		t.Errorf("waits %v long after", p.wait)
	}
}

// Rings that may be full before a thread gets its turn are emptied with precedence.
func TestPaceTight(t *testing.T) {
	for _, tc := range []struct {
		hz, cpus, ring, stack int
		tight                 bool
	}{
		{99, 2, 4 << 20, 64 << 10, false},
		{997, 2, 16 << 20, 64 << 10, false},
		{4999, 2, 16 << 20, 64 << 10, true},
		{997, 64, 64 << 20, 64 << 10, true},
		{997, 2, 16 << 20, 1 << 20, true},
	} {
		if p := paceOf(tc.hz, tc.cpus, tc.ring, tc.stack); p.isTight != tc.tight {
			t.Errorf("%+v: tight is %v", tc, p.isTight)
		}
	}
}
