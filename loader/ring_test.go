package loader

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"
)

// newFakeRing makes a ring over ordinary memory, in which put plays the
// kernel. It has no second mapping: records must not wrap.
func newFakeRing(size int) *ring {
	words := make([]uint64, 2+size/8)
	data := unsafe.Slice((*byte)(unsafe.Pointer(&words[2])), size)
	return &ring{
		consumer: (*atomic.Uint64)(unsafe.Pointer(&words[0])),
		producer: (*atomic.Uint64)(unsafe.Pointer(&words[1])),
		data:     data, mask: uint64(size) - 1,
	}
}

// put writes a record with a first word of time, and flags in its header.
func (r *ring) put(time uint64, bytes int, flags uint32) {
	pos := r.producer.Load()
	at := pos & r.mask
	binary.LittleEndian.PutUint32(r.data[at:], uint32(bytes)|flags)
	if bytes >= 8 {
		binary.LittleEndian.PutUint64(r.data[at+8:], time)
	}
	r.producer.Store(pos + uint64(8+(bytes+7)&^7))
}

// times reads what there is up to a cutoff.
func (r *ring) times(t *testing.T, upTo uint64) (times []uint64) {
	t.Helper()
	err := r.read(upTo, func(data []byte) error {
		times = append(times, binary.LittleEndian.Uint64(data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return times
}

func TestRingSortsAndRetains(t *testing.T) {
	r := newFakeRing(4096)
	for _, time := range []uint64{10, 30, 20, 50, 40} {
		r.put(time, 16, 0)
	}
	if got, want := r.times(t, 35), []uint64{10, 20, 30}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	// The records of 50 and 40 stay in the ring, and nothing before them.
	if got := r.consumer.Load(); got != 3*24 {
		t.Errorf("released up to %d, want %d", got, 3*24)
	}
	r.put(45, 16, 0)
	if got, want := r.times(t, 45), []uint64{40, 45}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	if got := r.consumer.Load(); got != 3*24 {
		t.Errorf("released up to %d although the record there is unread", got)
	}
	if got, want := r.times(t, 100), []uint64{50}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	if got := r.consumer.Load(); got != r.producer.Load() {
		t.Errorf("released up to %d of %d", got, r.producer.Load())
	}
}

func TestRingBusyAndDiscarded(t *testing.T) {
	r := newFakeRing(4096)
	r.put(1, 16, 0)
	r.put(2, 16, ringDiscardBit)
	r.put(3, 16, 0)
	r.put(4, 16, ringBusyBit)
	r.put(5, 16, 0)
	if got, want := r.times(t, 100), []uint64{1, 3}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	binary.LittleEndian.PutUint32(r.data[3*24:], 16) // committed
	if got, want := r.times(t, 100), []uint64{4, 5}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

func TestRingManyRecords(t *testing.T) {
	r := newFakeRing(1 << 16)
	const n = 2000
	var want []uint64
	for i := range uint64(n) {
		want = append(want, i+1)
		r.put(i^1+1, 8, 0) // pairs exchanged
	}
	if got := r.times(t, n); !slices.Equal(got, want) {
		t.Errorf("%d records read, or not in order", len(got))
	}
	if r.consumer.Load() != r.producer.Load() {
		t.Error("records read and not released")
	}
}

func TestRingCallbackError(t *testing.T) {
	r := newFakeRing(4096)
	for time := range uint64(4) {
		r.put(time+1, 16, 0)
	}
	stop := errors.New("stop")
	err := r.read(100, func(data []byte) error {
		if binary.LittleEndian.Uint64(data) == 2 {
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
	r := newFakeRing(4096)
	r.put(1, 16, 0)
	r.put(2, 16, 0)
	binary.LittleEndian.PutUint32(r.data[24:], 1<<20)
	var n int
	err := r.read(100, func([]byte) error { n++; return nil })
	if !errors.Is(err, errRingCorrupt) {
		t.Errorf("%d records, error %v", n, err)
	}
}

// Reading costs no allocation, neither per record nor per poll.
func TestReadAllocations(t *testing.T) {
	s := &Session{ring: newFakeRing(1 << 20)}
	rec := testRecord(3, testRegion{0x1000, 100}, testRegion{0x2000, 64})
	var seen, bytes int
	got := testing.AllocsPerRun(100, func() {
		pos := s.ring.producer.Load()
		for i := range uint64(50) {
			at := pos & s.ring.mask
			if at+uint64(len(rec))+8 > uint64(len(s.ring.data)) {
				pos = (pos + s.ring.mask) &^ s.ring.mask
				s.ring.scanned, at = pos, 0
			}
			copy(s.ring.data[at+8:], rec)
			binary.LittleEndian.PutUint64(s.ring.data[at+8:], i)
			binary.LittleEndian.PutUint32(s.ring.data[at:], uint32(len(rec)))
			pos += uint64(8 + len(rec))
			s.ring.producer.Store(pos)
			err := s.ReadSamples(^uint64(0), func(p *Sample) error {
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
	if seen != 101*50 || bytes != seen*103 {
		t.Errorf("%d samples, %d bytes", seen, bytes)
	}
}
