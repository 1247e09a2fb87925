package vmread

import (
	"testing"
	"time"

	"github.com/swbpf/swbpf/procstate"
)

// What an address had holds for samples between two times that the same was read, and for others as long as nothing else
// has been there.
func TestValid(t *testing.T) {
	sample := procstate.NewSnapshot(nil, 1, "", nil)
	m := &Memory{Mem: sample}
	at := func(taken uint64) *Memory {
		sample.SetTime(taken)
		return m
	}
	wait := func() uint64 {
		time.Sleep(2 * time.Duration(leastTrust))
		return procstate.Monotonic()
	}
	var v Valid
	if !v.IsDue(at(wait())) || v.Holds(m) {
		t.Error("an address of which nothing was read is known")
	}
	early := wait()
	if wait(); !v.Read(at(early), false) || v.IsDue(m) || !v.Holds(m) {
		t.Error("what is read for the first time does not count")
	}
	within := wait()
	if late := wait(); !v.IsDue(at(late)) || !v.Read(m, true) || v.IsDue(at(within)) || v.IsDue(at(early)) {
		t.Error("what stays is not trusted")
	}
	between := wait()
	wait()
	if v.Read(at(between), false) || v.Holds(m) || !v.IsDue(m) {
		t.Error("one of two is taken for the other")
	}
	within = wait()
	if !v.IsDue(at(within)) || !v.Read(m, true) || !v.Holds(m) || v.IsDue(m) {
		t.Error("what was the same before and after is not known")
	}
	for _, taken := range []uint64{early, between, wait()} {
		if v.Holds(at(taken)) || !v.IsDue(m) {
			t.Errorf("another may have been there at %d", taken)
		}
	}
	if !v.IsDue(at(0)) || !v.Read(m, true) {
		t.Error("what stands still is as it is now")
	}
}
