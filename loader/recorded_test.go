package loader

import (
	"errors"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// mapAnon adds memory without a file to a process of a recording.
func mapAnon(r *Recorded, pid int32, start uint64) {
	r.Map(&procstate.FileRef{PID: pid, Start: start, End: start + 0x1000, Path: "//anon"}, 0, nil, nil)
}

// The table of a recording has the processes that its events tell of, and asks nobody else.
func TestRecorded(t *testing.T) {
	r := NewRecorded(procstate.ARM64)
	if r.Process(1) != nil || r.Refresh(nil) {
		t.Error("an empty table has process 1")
	}
	r.Apply(&SidebandEvent{Kind: SidebandComm, PID: 10, TID: 10, Comm: "a"})
	mapAnon(r, 10, 0x1000)
	r.Apply(&SidebandEvent{Kind: SidebandFork, PID: 11, TID: 11, PPID: 10})
	r.Apply(&SidebandEvent{Kind: SidebandFork, PID: 12, TID: 12})
	r.Apply(&SidebandEvent{Kind: SidebandFork, PID: 10, TID: 13, PPID: 10}) // a thread
	mapAnon(r, 11, 0x9000)
	for pid, want := range map[int32]int{10: 1, 11: 2, 12: 0} {
		p := r.Process(pid)
		if p == nil || p.Space.Len() != want || p.Arch != procstate.ARM64 {
			t.Errorf("process %d: %+v, want %d mappings", pid, p, want)
		}
	}
	if r.Process(13) != nil {
		t.Error("a thread is a process")
	}
	r.Process(11).Data = "of the program before"
	r.Apply(&SidebandEvent{Kind: SidebandExec, PID: 11, TID: 11, Comm: "b"})
	if p := r.Process(11); p.Space.Len() != 0 || p.Comm != "b" || p.Data != nil || p.Arch != procstate.ARM64 {
		t.Errorf("after an exec: %+v", p)
	}
	gone := errors.New("gone")
	r.Map(&procstate.FileRef{PID: 11, Start: 0x5000, End: 0x6000, Path: "/bin/b"}, 0x5000, nil, gone)
	if m := r.Process(11).Space.MappingAt(0x5000); m == nil || m.ImageErr != gone || m.Offset != 0x5000 || r.Process(11).Exe != "/bin/b" {
		t.Errorf("mapping %+v of %q", m, r.Process(11).Exe)
	}
}

// Processes that have ended stay for a while, and their number goes to others meanwhile.
func TestRecordedEnded(t *testing.T) {
	r := NewRecorded(procstate.AMD64)
	for pid := int32(1); pid <= 3*maxRecordedEnded; pid++ {
		r.Apply(&SidebandEvent{Kind: SidebandFork, PID: pid, TID: pid})
		r.Apply(&SidebandEvent{Kind: SidebandExit, PID: pid, TID: pid + 1}) // another thread
		r.Apply(&SidebandEvent{Kind: SidebandExit, PID: pid, TID: pid})
		if r.Process(pid) == nil {
			t.Fatalf("process %d is gone with its end", pid)
		}
	}
	r.Apply(&SidebandEvent{Kind: SidebandFork, PID: 2 * maxRecordedEnded, TID: 2 * maxRecordedEnded})
	for pid := int32(1); pid <= 2*maxRecordedEnded; pid++ {
		r.Apply(&SidebandEvent{Kind: SidebandFork, PID: 1 << 20, TID: 1 << 20})
		r.Apply(&SidebandEvent{Kind: SidebandExit, PID: 1 << 20, TID: 1 << 20})
	}
	if len(r.procs) != 2 || r.Process(2*maxRecordedEnded) == nil || len(r.ended) > maxRecordedEnded {
		t.Errorf("%d processes, %d ended", len(r.procs), len(r.ended))
	}
}

// A process that maps without end is no harm.
func TestRecordedManyMappings(t *testing.T) {
	r := NewRecorded(procstate.AMD64)
	for i := range uint64(3 * maxMappings) {
		mapAnon(r, 1, i*0x2000)
	}
	if n := r.Process(1).Space.Len(); n > 2*maxMappings || n < maxMappings {
		t.Errorf("%d mappings", n)
	}
}
