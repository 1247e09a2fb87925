package loader

import (
	"errors"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// By the distances that are drawn each byte is sampled as often as is asked for, and samples of blocks
// of any size come to what was allocated.
func TestDistances(t *testing.T) {
	for _, period := range []uint64{2, 100, 20000, DefaultHeapPeriod} {
		all := distances(period)
		sum := 0.0
		for _, d := range all {
			sum += float64(d)
		}
		want := -1 / math.Expm1(-1/float64(period)) // of the geometric distribution
		if mean := sum / float64(len(all)); math.Abs(mean-want) > 0.002*want {
			t.Errorf("one in %d: %f on average, want %f", period, mean, want)
		}
		// A block is sampled where a distance that begins with its first byte ends in it.
		for _, bytes := range []uint64{period / 10, period / 2, period, 3 * period} {
			sampled := 0
			for _, d := range all {
				if d <= bytes {
					sampled++
				}
			}
			got := float64(sampled) / float64(len(all)) * float64(standsFor(bytes, period))
			if period >= 100 && math.Abs(got-float64(bytes)) > 0.02*float64(bytes) {
				t.Errorf("one in %d: blocks of %d bytes come to %f", period, bytes, got)
			}
		}
	}
	for _, d := range distances(1) {
		if d != 0 {
			t.Fatalf("every block is sampled, but for %d bytes", d)
		}
	}
	for _, c := range []struct{ bytes, period, want uint64 }{{0, 1, 0}, {0, 1000, 0}, {7, 1, 7}, {1, 1000, 1001}, {1 << 40, 1000, 1 << 40}, {1, DefaultHeapPeriod, DefaultHeapPeriod + 1}} {
		if got := standsFor(c.bytes, c.period); got != c.want {
			t.Errorf("a block of %d bytes, one in %d sampled, stands for %d, want %d", c.bytes, c.period, got, c.want)
		}
	}
}

func TestHeapConfig(t *testing.T) {
	for _, c := range []Config{
		{Event: Heap, CPUs: []int{0}},
		{Event: Heap, Frequency: 99},
		{Event: Heap, Also: []Sampling{{Event: cpuClock}}},
		{Event: cpuClock, Also: []Sampling{{Event: Heap}}},
	} {
		if _, err := Open(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if err := new(Session).Blocks(func(BlockID) { t.Error("a block") }); err == nil {
		t.Error("a Session that is not open has blocks")
	}
	if _, err := HeapOf([]int{1 << 22}); err == nil || err.Error() != "process 4194304: no such process" {
		t.Errorf("of a process that cannot be: %v", err)
	}
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "uprobes need root")
	}
	e, err := ParseEvent(Heap.Name)
	if err != nil || !e.IsHeap() || e.IsUprobe() || len(e.places) == 0 {
		t.Errorf("%+v, %v", e, err)
	}
	if !canAttachMany([]int{-1}) {
		return
	}
	e.places = nil // none is found, but may come
	s := startSession(t, Config{Event: e, PIDs: []int{os.Getpid()}, FollowChildren: true})
	if got := s.Event(); len(got.places) > 0 || !got.IsHeap() {
		t.Errorf("allocators in %d places have come", len(got.places))
	}
}

// A Session tells of blocks that are handed out and of those that are given back, and knows which are left until
// these are not wanted any more.
func TestBlocks(t *testing.T) {
	s, pid := sampleHeap(t, "100", 0)
	held, freed, bytes := map[BlockID]bool{}, 0, uint64(0)
	err := s.ReadSamples(math.MaxUint64, func(p *Sample) error {
		if p.Freed != (BlockID{}) {
			if !held[p.Freed] || p.HasUser() || p.Time < p.Freed.Time {
				t.Errorf("%+v is given back", p)
			}
			delete(held, p.Freed)
			freed++
			return nil
		}
		if !p.HasUser() || p.PID != pid || p.Weight != p.Bytes {
			t.Errorf("%+v is handed out", p)
		}
		held[BlockID{p.TID, p.Time}] = true
		bytes += p.Bytes
		return nil
	})
	// 352 are kept, and one that the C library takes to read; 648 are not.
	if err != nil || len(held) < 352 || len(held) > 354 || freed != 648 || bytes < 2425000 || bytes > 2455000 {
		t.Errorf("%d blocks are held, %d were given back, %d bytes in all; %v", len(held), freed, bytes, err)
	}
	blocks := func() map[BlockID]bool {
		all := map[BlockID]bool{}
		if err := s.Blocks(func(id BlockID) { all[id] = true }); err != nil {
			t.Error(err)
		}
		return all
	}
	if got := blocks(); !maps.Equal(got, held) {
		t.Errorf("%d blocks, want %d", len(got), len(held))
	}
	var kept BlockID
	for kept = range held {
		break
	}
	if err := s.ForgetBlocks(func(id BlockID) bool { return id != kept }); err != nil {
		t.Error(err)
	}
	if got := blocks(); !maps.Equal(got, map[BlockID]bool{kept: true}) {
		t.Errorf("after all but %v were forgotten: %v", kept, got)
	}
	if st, err := s.Stats(); err != nil || st.Lost() != 0 || st.MissedFrees != 0 || int(st.Samples) != len(held)+freed {
		t.Errorf("%+v, %v", st, err)
	}
}

// sampleHeap has a Session sample each block that testdata/targets/heap.c gets, so many times over, and stops it before any
// sample is read.
func sampleHeap(t *testing.T, times string, ringBytes int) (s *Session, pid int32) {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "uprobes need root")
	}
	testenv.Needs(t, "gcc")
	program := filepath.Join(t.TempDir(), "heap")
	testenv.Run(t, exec.Command("gcc", "-O1", "-fno-builtin", "-pthread", "-o", program, "../cmd/swbpf/testdata/targets/heap.c"))
	target := exec.Command(program, times, "wait")
	in, err1 := target.StdinPipe()
	out, err2 := target.StdoutPipe()
	if err := errors.Join(err1, err2, target.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = target.Process.Kill()
		_ = target.Wait()
	})
	if _, err := out.Read(make([]byte, 5)); err != nil { // it waits
		t.Fatal(err)
	}
	s, err := Open(Config{Event: Heap, Period: 1, PIDs: []int{target.Process.Pid}, RingBytes: ringBytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil { // it has all
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	return s, int32(target.Process.Pid)
}

// Where the rings are full, blocks are lost and counted, and so are those given back of which nothing is told: what
// is left is right all the same.
func TestBlocksOfFullRing(t *testing.T) {
	s, _ := sampleHeap(t, "3000", 1<<20)
	held := map[BlockID]bool{}
	err := s.ReadSamples(math.MaxUint64, func(p *Sample) error {
		if p.Freed != (BlockID{}) {
			delete(held, p.Freed)
		} else {
			held[BlockID{p.TID, p.Time}] = true
		}
		return nil
	})
	left := 0
	err = errors.Join(err, s.Blocks(func(id BlockID) {
		if left++; !held[id] {
			t.Errorf("%v is left, of which there is no sample", id)
		}
	}))
	st, serr := s.Stats()
	if err != nil || serr != nil || st.LostRingFull == 0 || st.MissedFrees == 0 || left == 0 || len(held) != left+int(st.MissedFrees) {
		t.Errorf("%d are left of %d that are not told of as given back, %+v; %v, %v", left, len(held), st, err, serr)
	}
}
