package loader

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

var errRingCorrupt = errors.New("ring holds an impossible record")

// rings is the reader's side of the rings of all CPUs: bpf/ring.h.
type rings struct {
	mem  []byte // the map, one cpu_ring after the other
	cpus []cpuRing

	pending []ringRecord // known and not handed out, sorted by time
	bytes   uint64       // of all records seen so far
	held    []uint64     // what of them was copied out
	spare   []uint64     // for the next time
}

// cpuRing is the ring of one CPU.
type cpuRing struct {
	tail, head, wrap *atomic.Uint64 // positions
	kernelStacks     *uint64        // enum kernel_stacks
	over             *uint64        // whether tracepoints and probes are no events any more
	pageTables       *gen.SamplerPageTables
	counters         *gen.SamplerCounters
	data             []byte
	published        ringPos // the head when it was last looked at
	scanned          ringPos // position up to which pending knows the records
	last             uint64  // the latest time of a record
}

// ringPos is a lap of a ring and an offset in its data.
type ringPos struct{ lap, at uint32 }

func unpackPos(v uint64) ringPos { return ringPos{uint32(v >> 32), uint32(v)} }

func (p ringPos) pack() uint64 { return uint64(p.lap)<<32 | uint64(p.at) }

// ringRecord is a record that waits.
type ringRecord struct {
	time uint64 // first word of the record
	data []byte // in the ring, or held
	cpu  int
	end  ringPos // where the next one begins
	held bool
}

// Every record begins with its time, its size and its CPU.
const recordMin = 16

type ringLayout = gen.SamplerCpuRing

// newRings maps the map of rings, whose records begin below bytes in each.
func newRings(m *ebpf.Map) (*rings, error) {
	mem, err := unix.Mmap(m.FD(), 0, int(m.ValueSize())*int(m.MaxEntries()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map rings: %w", err)
	}
	r := &rings{mem: mem, cpus: make([]cpuRing, m.MaxEntries())}
	for i := range r.cpus {
		r.cpus[i].lay(mem[i*int(m.ValueSize()):][:m.ValueSize()])
	}
	return r, nil
}

// lay puts the ring over its memory.
func (c *cpuRing) lay(mem []byte) {
	l := (*ringLayout)(unsafe.Pointer(unsafe.SliceData(mem)))
	c.tail = (*atomic.Uint64)(unsafe.Pointer(&l.Tail))
	c.head = (*atomic.Uint64)(unsafe.Pointer(&l.Head))
	c.wrap = (*atomic.Uint64)(unsafe.Pointer(&l.Wrap))
	c.kernelStacks = &l.KernelStacks
	c.over = &l.Over
	c.pageTables = &l.PageTables
	c.counters = &l.Counters
	c.data = mem[unsafe.Sizeof(ringLayout{}):]
	c.scanned = unpackPos(c.tail.Load())
}

// endPoints has tracepoints and probes be no events any more on some CPUs.
func (r *rings) endPoints(on func(cpu int) bool) {
	for i := range r.cpus {
		if on(i) {
			atomic.StoreUint64(r.cpus[i].over, 1)
		}
	}
}

// close unmaps the rings; records handed out are gone with it.
func (r *rings) close() error {
	r.pending, r.held, r.spare = nil, nil, nil
	return unix.Munmap(r.mem)
}

// scan takes note of all records published since the last scan.
func (r *rings) scan() error {
	for i := range r.cpus {
		r.cpus[i].published = unpackPos(r.cpus[i].head.Load())
	}
	if runtime.GOARCH != "amd64" {
		// A program's stores have no order there that others can rely on: the
		// head may be seen before the record. They are seen within less than a
		// microsecond.
		time.Sleep(20 * time.Microsecond)
	}
	sorted := true
	for i := range r.cpus {
		c := &r.cpus[i]
		for head := c.published; c.scanned != head; {
			end := head.at
			if c.scanned.lap != head.lap {
				if end = uint32(c.wrap.Load()); c.scanned.at == end {
					c.scanned = ringPos{lap: head.lap}
					continue
				}
			}
			if c.scanned.at > end || end-c.scanned.at < recordMin || uint64(end) > uint64(len(c.data)) {
				return fmt.Errorf("%w: at %d of %d", errRingCorrupt, c.scanned.at, end)
			}
			data := c.data[c.scanned.at:end]
			size := *(*uint32)(unsafe.Pointer(&data[8]))
			if size < recordMin || size%8 != 0 || uint64(size) > uint64(len(data)) {
				return fmt.Errorf("%w: %d bytes at %d of %d", errRingCorrupt, size, c.scanned.at, end)
			}
			c.scanned.at += size
			r.bytes += uint64(size)
			// The clock may go back a little when it is being adjusted.
			c.last = max(c.last, *(*uint64)(unsafe.Pointer(&data[0])))
			rec := ringRecord{time: c.last, data: data[:size:size], cpu: i, end: c.scanned}
			if n := len(r.pending); n > 0 && r.pending[n-1].time > rec.time {
				sorted = false
			}
			r.pending = append(r.pending, rec)
		}
	}
	if !sorted {
		// Those of a CPU are in order and stay so.
		slices.SortStableFunc(r.pending, func(a, b ringRecord) int {
			switch {
			case a.time < b.time:
				return -1
			case a.time > b.time:
				return 1
			}
			return 0
		})
	}
	return nil
}

// read calls fn with each record with a time of at most upTo and the number of
// its CPU, in order of time, and releases them. The data is valid until fn
// returns. An error of fn ends the read; the record at which it happened
// counts as read.
//
// Those that are newer are copied and released as well: a ring that is empty
// starts anew, and so makes do with memory that is in a cache.
func (r *rings) read(upTo uint64, fn func(cpu int, data []byte) error) error {
	err := r.scan()
	batch := max(minRelease, len(r.pending)/4)
	done := 0
	for err == nil && done < len(r.pending) && r.pending[done].time <= upTo {
		rec := &r.pending[done]
		done++
		err = fn(rec.cpu, rec.data)
		if done%batch == 0 {
			r.release(r.pending[done-batch : done])
		}
	}
	r.release(r.pending[done/batch*batch : done])
	r.pending = slices.Delete(r.pending, 0, done)
	if e := r.scan(); err == nil {
		err = e
	}
	r.hold()
	return err
}

// minRelease is the least number of records read before their room is given
// back.
const minRelease = 64

// release gives the kernel the room of records, which are in order.
func (r *rings) release(records []ringRecord) {
	for i := range records {
		if rec := &records[i]; !rec.held {
			r.cpus[rec.cpu].tail.Store(rec.end.pack())
		}
	}
}

// maxHeld bounds what is held, in words per CPU: one of the longest stacks.
const maxHeld = WholeStackBytes / 8

// hold copies the pending records out of the rings, unless they are many.
func (r *rings) hold() {
	n := 0
	for i := range r.pending {
		n += len(r.pending[i].data) / 8
	}
	if n > maxHeld*len(r.cpus) {
		return
	}
	buf := slices.Grow(r.spare[:0], n)
	for i := range r.pending {
		rec := &r.pending[i]
		from := len(buf)
		buf = append(buf, unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(rec.data))), len(rec.data)/8)...)
		rec.data = unsafe.Slice((*byte)(unsafe.Pointer(&buf[from])), len(rec.data))
	}
	r.held, r.spare = buf, r.held
	r.release(r.pending)
	for i := range r.pending {
		r.pending[i].held = true
	}
}
