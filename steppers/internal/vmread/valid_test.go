package vmread

import (
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// What an address had holds for samples between two times that the same was read, and for others as long as nothing else
// has been there.
func TestValid(t *testing.T) {
	const ms = leastTrust / 2
	var v Valid
	if at := (Times{100 * ms, 101 * ms}); !v.IsDue(at) || v.Holds(at) {
		t.Error("an address of which nothing was read is known")
	}
	if at := (Times{100 * ms, 101 * ms}); !v.Read(at, false) || v.IsDue(at) || !v.Holds(at) {
		t.Error("what is read for the first time does not count")
	}
	if v.IsDue(Times{102 * ms, 102 * ms}) || !v.IsDue(Times{103 * ms, 103 * ms}) {
		t.Error("it is trusted for less, or for more, than the least time")
	}
	if at := (Times{104 * ms, 201 * ms}); !v.Read(at, true) || v.IsDue(at) || v.IsDue(Times{250 * ms, 250 * ms}) || !v.IsDue(Times{251 * ms, 251 * ms}) {
		t.Error("what stays is not trusted for half of the time that it is known for")
	}
	if at := (Times{260 * ms, 301 * ms}); v.Read(at, false) || v.Holds(at) || !v.IsDue(at) {
		t.Error("one of two is taken for the other")
	}
	if at := (Times{302 * ms, 401 * ms}); !v.IsDue(at) || !v.Read(at, true) || !v.Holds(at) || v.IsDue(at) {
		t.Error("what was the same before and after is not known")
	}
	for _, taken := range []uint64{100 * ms, 260 * ms, 402 * ms} {
		if at := (Times{taken, 403 * ms}); v.Holds(at) || !v.IsDue(at) {
			t.Errorf("another may have been there at %d", taken)
		}
	}
	if at := (Times{500 * ms, 500 * ms}); !v.Read(at, true) {
		t.Error("what stands still is as it is now")
	}
	v = Valid{}
	v.Differs(Times{600 * ms, 601 * ms})
	if at := (Times{602 * ms, 701 * ms}); !v.IsDue(at) || v.Read(at, false) || v.Holds(at) {
		t.Error("what came after another was there all the time")
	}
	if at := (Times{702 * ms, 801 * ms}); !v.IsDue(at) || !v.Read(at, true) || v.IsDue(at) {
		t.Error("what came after another is not known")
	}
	v = Valid{first: 1, last: 1 + 10*mostTrust}
	if now := v.last + mostTrust; !v.IsDue(Times{now, now}) || v.IsDue(Times{now - 1, now - 1}) {
		t.Error("it is trusted for less, or for more, than the most")
	}
}

// Both times are the same where nobody knows when memory was captured.
func TestTimes(t *testing.T) {
	sample := procstate.NewSnapshot(nil, 1, "", nil)
	m := Memory{Mem: sample}
	if at := m.Times(); at.Taken != at.Now || at.Now == 0 {
		t.Error(at)
	}
	sample.SetTime(1)
	if at := m.Times(); at.Taken != 1 || at.Now == 1 {
		t.Error(at)
	}
}
