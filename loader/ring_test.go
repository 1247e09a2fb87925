package loader

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"unsafe"
)

// newFakeRing makes the ring of one CPU over ordinary memory, in which put
// plays the kernel.
func newFakeRing(size int) *rings {
	mem := make([]uint64, (int(unsafe.Sizeof(ringLayout{}))+size)/8)
	r := &rings{cpus: make([]cpuRing, 1)}
	r.cpus[0].lay(unsafe.Slice((*byte)(unsafe.Pointer(&mem[0])), len(mem)*8))
	return r
}

// put publishes a record of a time and a size of at least recordMin.
func (r *rings) put(time uint64, bytes int) {
	c := &r.cpus[0]
	head := unpackPos(c.head.Load())
	if head.at > 0 && head == unpackPos(c.tail.Load()) {
		c.wrap.Store(uint64(head.at))
		head = ringPos{lap: head.lap + 1}
	}
	rec := c.data[head.at:][:bytes]
	binary.NativeEndian.PutUint64(rec, time)
	binary.NativeEndian.PutUint32(rec[8:], uint32(bytes))
	head.at += uint32(bytes)
	c.head.Store(head.pack())
}

// isEmpty reports whether all of a ring has been given back.
func (r *rings) isEmpty(cpu int) bool {
	return r.cpus[cpu].tail.Load() == r.cpus[cpu].head.Load()
}

// times reads what there is up to a cutoff.
func (r *rings) times(t *testing.T, upTo uint64) (times []uint64) {
	t.Helper()
	err := r.read(upTo, func(cpu int, data []byte) error {
		times = append(times, binary.NativeEndian.Uint64(data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return times
}

// Records of all CPUs come in order of time, those that are too new at a later
// read; the room of all is given back.
func TestRingSortsAndHolds(t *testing.T) {
	r := newFakeRing(4096)
	r.cpus = append(r.cpus, newFakeRing(4096).cpus...)
	other := &rings{cpus: r.cpus[1:]}
	for _, time := range []uint64{10, 30, 50} {
		r.put(time, 16)
	}
	for _, time := range []uint64{20, 40, 40} {
		other.put(time, 24)
	}
	if got, want := r.times(t, 35), []uint64{10, 20, 30}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	if !r.isEmpty(0) || !r.isEmpty(1) {
		t.Error("room not given back")
	}
	// What is written there now does not touch the records that are held.
	r.put(60, 16)
	other.put(45, 16)
	if got, want := r.times(t, 45), []uint64{40, 40, 45}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	if got, want := r.times(t, 100), []uint64{50, 60}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

// A clock that goes back a little does not change the order of a CPU.
func TestRingKeepsOrderOfCPU(t *testing.T) {
	r := newFakeRing(4096)
	for _, time := range []uint64{10, 30, 20, 50} {
		r.put(time, 16)
	}
	if got, want := r.times(t, 30), []uint64{10, 30, 20}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

// Many records that have to wait stay in the ring.
func TestRingManyRecords(t *testing.T) {
	const n, size = 2000, 2048
	r := newFakeRing(n * size)
	var want []uint64
	for i := range uint64(n) {
		want = append(want, i+1)
		r.put(i+1, size)
	}
	if got := r.times(t, 0); len(got) != 0 || unpackPos(r.cpus[0].tail.Load()).at != 0 {
		t.Errorf("read %v, released up to %#x", got, r.cpus[0].tail.Load())
	}
	if got := r.times(t, n/2); !slices.Equal(got, want[:n/2]) {
		t.Errorf("%d records read, or not in order", len(got))
	}
	if got := r.times(t, n); !slices.Equal(got, want[n/2:]) || !r.isEmpty(0) {
		t.Errorf("then %d records read, or not in order; empty %v", len(got), r.isEmpty(0))
	}
}

// The next lap begins where the producer says that the last one has ended.
func TestRingLaps(t *testing.T) {
	r := newFakeRing(4096)
	c := &r.cpus[0]
	r.put(1, 512)
	r.put(2, 512)
	c.wrap.Store(1024)
	binary.NativeEndian.PutUint64(c.data, 3) // as if there were room
	binary.NativeEndian.PutUint32(c.data[8:], 256)
	c.head.Store(ringPos{lap: 1, at: 256}.pack())
	binary.NativeEndian.PutUint64(c.data[512:], 2)
	c.scanned = ringPos{at: 512}
	if got, want := r.times(t, 10), []uint64{2, 3}; !slices.Equal(got, want) || !r.isEmpty(0) {
		t.Errorf("read %v, want %v; empty %v", got, want, r.isEmpty(0))
	}
}

func TestRingCallbackError(t *testing.T) {
	r := newFakeRing(4096)
	for time := range uint64(4) {
		r.put(time+1, 16)
	}
	stop := errors.New("stop")
	err := r.read(100, func(cpu int, data []byte) error {
		if binary.NativeEndian.Uint64(data) == 2 {
			return stop
		}
		return nil
	})
	if err != stop {
		t.Errorf("error %v", err)
	}
	if got, want := r.times(t, 100), []uint64{3, 4}; !slices.Equal(got, want) {
		t.Errorf("then read %v, want %v", got, want)
	}
}

// A length that leads past what was written is an error, not a crash.
func TestRingImpossibleRecord(t *testing.T) {
	for name, damage := range map[string]func(c *cpuRing){
		"size past the head": func(c *cpuRing) { binary.NativeEndian.PutUint32(c.data[24:], 1<<20) },
		"size of nothing":    func(c *cpuRing) { binary.NativeEndian.PutUint32(c.data[24:], 0) },
		"odd size":           func(c *cpuRing) { binary.NativeEndian.PutUint32(c.data[8:], 17) },
		"head past the ring": func(c *cpuRing) { c.head.Store(ringPos{at: 1 << 30}.pack()) },
		"head back":          func(c *cpuRing) { c.scanned.at = 64 },
		"wrap past the ring": func(c *cpuRing) { c.wrap.Store(1 << 30); c.head.Store(ringPos{lap: 1}.pack()) },
	} {
		r := newFakeRing(4096)
		r.put(1, 16)
		r.put(2, 16)
		damage(&r.cpus[0])
		if err := r.read(100, func(int, []byte) error { return nil }); !errors.Is(err, errRingCorrupt) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Reading costs no allocation, neither per record nor per poll.
func TestReadAllocations(t *testing.T) {
	s := &Session{rings: newFakeRing(1 << 20)}
	rec := testRecord(3, testRegion{0x1000, 100}, testRegion{0x2000, 64})
	var seen, bytes int
	time := uint64(0)
	got := testing.AllocsPerRun(100, func() {
		for range 50 {
			time++
			s.rings.put(time, len(rec))
			end := unpackPos(s.rings.cpus[0].head.Load()).at
			copy(s.rings.cpus[0].data[int(end)-len(rec)+16:], rec[16:])
			// The latest one has to wait.
			err := s.ReadSamples(time-1, func(p *Sample) error {
				seen++
				bytes += len(p.Regions[0].Data) + len(p.Kernel)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	if got != 0 {
		t.Errorf("%v allocations for 50 samples", got)
	}
	if seen != 101*50-1 || bytes != seen*103 {
		t.Errorf("%d samples, %d bytes", seen, bytes)
	}
}
