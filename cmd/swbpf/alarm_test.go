package main

import (
	"testing"
	"time"
)

func TestAlarm(t *testing.T) {
	a, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	wait := func(what string, want bool) {
		t.Helper()
		if hastened, err := a.wait(); hastened != want || err != nil {
			t.Errorf("%s: hastened %v, %v", what, hastened, err)
		}
	}
	const late, soon = 1000 * time.Hour, time.Nanosecond

	a.set(soon, 0)
	wait("when it was to", false)
	a.set(soon, late)
	wait("before news", false)

	a.set(late, soon)
	go a.tellNews()
	wait("by news", true)
	a.tellNews()
	a.set(late, soon)
	wait("by news that came first", true)

	a.set(late, 0)
	a.tellNews()
	go a.arm(soon)
	wait("rung, with news that do not matter", false)
	a.set(late, soon) // that news are over
	if a.hasten.Load() != int64(soon) {
		t.Error("news of before the last wait count")
	}
	go a.arm(soon)
	wait("rung", false)

	a.set(soon, late) // news make it no later
	a.tellNews()
	wait("when it was to, with news", true)

	a.set(late, 0)
	go a.ring()
	wait("at once", false)
	a.ring()
	a.set(late, 0)
	wait("at once, before it was set", false)
	a.set(late, late)
	a.ring()
	a.tellNews()
	wait("at once, before there were news", true)

	a.set(late, 0)
	go a.close()
	if _, err := a.wait(); err == nil {
		t.Error("it rang, closed")
	}
	a.arm(soon)
	a.tellNews()
}
