package loader

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Record header of a BPF ring buffer (Documentation/bpf/ringbuf.rst): length
// with two flag bits, and a page offset that is the kernel's own business.
const (
	ringHeaderBytes = 8
	ringBusyBit     = 1 << 31 // reserved, not yet committed
	ringDiscardBit  = 1 << 30 // committed as void
)

var errRingCorrupt = errors.New("ring buffer holds an impossible record")

// ring is the consumer's side of a BPF_MAP_TYPE_RINGBUF. The kernel maps the
// data twice in a row, so that every record is contiguous in memory.
type ring struct {
	consumerPage []byte         // written by us
	producerPage []byte         // written by the kernel; data follows
	consumer     *atomic.Uint64 // position up to which records are released
	producer     *atomic.Uint64 // position up to which records are reserved
	data         []byte         // twice the ring's size
	mask         uint64

	scanned uint64       // position up to which pending knows the records
	pending []ringRecord // known and not released, sorted by time
}

// ringRecord is a committed record that waits in the ring.
type ringRecord struct {
	time  uint64 // first word of the record
	pos   uint64 // of its header
	bytes uint32 // of its data; 0 for a discarded one
}

// newRing maps a ring buffer map of the given size.
func newRing(m *ebpf.Map) (*ring, error) {
	page, size := os.Getpagesize(), int(m.MaxEntries())
	consumer, err := unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map ring: %w", err)
	}
	producer, err := unix.Mmap(m.FD(), int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		unix.Munmap(consumer)
		return nil, fmt.Errorf("map ring: %w", err)
	}
	r := &ring{
		consumerPage: consumer, producerPage: producer,
		consumer: (*atomic.Uint64)(unsafe.Pointer(&consumer[0])),
		producer: (*atomic.Uint64)(unsafe.Pointer(&producer[0])),
		data:     producer[page:], mask: uint64(size) - 1,
	}
	r.scanned = r.consumer.Load()
	return r, nil
}

// close unmaps the ring; records handed out are gone with it.
func (r *ring) close() error {
	return errors.Join(unix.Munmap(r.consumerPage), unix.Munmap(r.producerPage))
}

// scan takes note of all records committed since the last scan. One that is
// still being written ends it: those behind have to wait.
func (r *ring) scan() error {
	from := len(r.pending)
	sorted := true
	for end := r.producer.Load(); r.scanned < end; {
		at := r.scanned & r.mask
		word := (*atomic.Uint32)(unsafe.Pointer(&r.data[at])).Load()
		if word&ringBusyBit != 0 {
			break
		}
		n := word &^ ringDiscardBit
		step := (uint64(n) + ringHeaderBytes + 7) &^ 7
		if step > end-r.scanned {
			return fmt.Errorf("%w: %d bytes at %d, end %d", errRingCorrupt, n, r.scanned, end)
		}
		rec := ringRecord{pos: r.scanned}
		if word&ringDiscardBit == 0 && n >= 8 {
			rec.bytes = n
			rec.time = *(*uint64)(unsafe.Pointer(&r.data[at+ringHeaderBytes]))
		}
		if k := len(r.pending); k > 0 && r.pending[k-1].time > rec.time {
			sorted = false
		}
		r.pending = append(r.pending, rec)
		r.scanned += step
	}
	if !sorted {
		sortByTime(r.pending, from)
	}
	return nil
}

// sortByTime sorts records of which those before from are in order already
// and the others nearly so.
func sortByTime(recs []ringRecord, from int) {
	for i := max(from, 1); i < len(recs); i++ {
		rec := recs[i]
		j := i
		for ; j > 0 && recs[j-1].time > rec.time; j-- {
			recs[j] = recs[j-1]
		}
		recs[j] = rec
	}
}

// read calls fn with the data of each committed record whose first word is at
// most upTo, in ascending order of that word, and releases them. The data is
// in the ring itself: it is valid until fn returns. An error of fn ends the
// read; the record at which it happened counts as read.
func (r *ring) read(upTo uint64, fn func(data []byte) error) error {
	err := r.scan()
	// The kernel gets room back now and then, not just at the end.
	batch := max(minRelease, len(r.pending)/4)
	done := 0
	for err == nil && done < len(r.pending) && r.pending[done].time <= upTo {
		rec := r.pending[done]
		done++
		if rec.bytes > 0 {
			at := rec.pos&r.mask + ringHeaderBytes
			err = fn(r.data[at : at+uint64(rec.bytes) : at+uint64(rec.bytes)])
		}
		if done == batch {
			r.release(done)
			done = 0
		}
	}
	r.release(done)
	return err
}

// minRelease is the least number of records read before their room is given
// back.
const minRelease = 64

// release forgets the first n pending records and gives the kernel the room
// in front of the oldest one that remains.
func (r *ring) release(n int) {
	r.pending = slices.Delete(r.pending, 0, n)
	oldest := r.scanned
	for i := range r.pending {
		oldest = min(oldest, r.pending[i].pos)
	}
	r.consumer.Store(oldest)
}
