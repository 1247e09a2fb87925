package loader

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"github.com/swbpf/swbpf/gen"
)

// DefaultHeapPeriod is how many bytes of what allocators hand out there are to a sample of Heap, unless a Config
// has another number: as heap profilers of Go, jemalloc and tcmalloc have it.
const DefaultHeapPeriod = 512 << 10

// Blocks that are sampled and may be held at a time, at most: all of them, or where they are one of many.
const (
	maxBlocks   = 1 << 20
	maxBlocksOf = 1 << 17
	manyBytes   = 64 << 10 // from this period on they are
)

// heapPrograms are the programs of the kernel side for Heap.
func heapPrograms() (names []string) {
	for _, a := range allocators {
		names = append(names, string(a))
	}
	slices.Sort(names)
	return append(slices.Compact(names), gen.SamplerProgOnAllocated)
}

// Heap is the event of blocks of memory that allocators hand out: malloc and its like, of the C library, jemalloc,
// tcmalloc and others, operator new of C++ where it is an allocator's own. A sample is taken where one in so many
// bytes is handed out (Sampling.Period, DefaultHeapPeriod); its Weight is the bytes that it stands for, its stack
// that of who called the allocator. Session.Blocks tells which blocks have not been given back. ParseEvent knows it by
// its name; HeapOf returns it for processes and programs. Where one of the blocks is given back there is a sample,
// too, that tells so (Sample.Freed).
//
// What programs of 32 bits, and runtimes that do not use C's allocators, as Go's and Java's, have in their heaps is
// not seen.
var Heap = Event{Name: "heap", Unit: UnitBytes, heap: true} // read only

// IsHeap reports whether the event is Heap.
func (e Event) IsHeap() bool { return e.heap }

// HeapOf returns Heap for the allocators of some processes, by their IDs, or of all that run, and of programs that
// are to be started, by names as a shell has them. Of those that come later the machine's usual libraries are seen, and
// what Processes.FindAllocators finds; where that can be, none needs to be there of a program or at the beginning.
func HeapOf(pids []int, programs ...string) (Event, error) {
	e := Heap
	typ, onReturn, err := probeConfig("uprobe", true)
	if err != nil {
		return Event{}, fmt.Errorf("event %s: %w", e.Name, err)
	}
	e.typ = typ
	var failed error
	for _, path := range allocatorFiles(pids, programs) {
		places, err := e.placesIn(path, findAllocator)
		if err != nil {
			if failed == nil {
				failed = err
			}
			continue
		}
		for _, p := range places {
			if p.program == gen.SamplerProgOnAllocated {
				p.config = onReturn
			}
			e.places = append(e.places, p)
		}
	}
	if len(e.places) == 0 && (len(pids) > 0 || !canAttachMany([]int{-1})) {
		for _, pid := range pids {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); errors.Is(err, os.ErrNotExist) {
				return Event{}, fmt.Errorf("process %d: no such process", pid)
			}
		}
		if failed == nil {
			failed = errNoAllocator
		}
		return Event{}, fmt.Errorf("event %s: no allocator is found: %w", e.Name, failed)
	}
	return e, nil
}

// canAttachMany reports whether the kernel puts probes in many places at once (Linux 6.6), and does that
// for some processes alone, with all their threads, if these are asked for (6.11). Probes one by one take a tenth of
// a second each to be taken away.
func canAttachMany(pids []int) bool {
	minor := 11
	if slices.Equal(pids, []int{-1}) {
		minor = 6
	}
	return kernelSince(6, minor) && features.HaveBPFLinkUprobeMulti() == nil
}

// attachMany has the programs of Heap run in some places.
func (s *source) attachMany(places []place) error {
	type hook struct{ file, program string }
	offsets := map[hook][]uint64{}
	for _, p := range places {
		h := hook{p.file, p.program}
		offsets[h] = append(offsets[h], p.offset)
	}
	// Returns come first: a call of which only the beginning is seen hides others.
	order := func(h hook) int {
		if h.program == gen.SamplerProgOnAllocated {
			return 0
		}
		return 1
	}
	for _, h := range slices.SortedFunc(maps.Keys(offsets), func(a, b hook) int { return order(a) - order(b) }) {
		ex, err := link.OpenExecutable(h.file)
		if err != nil {
			return fmt.Errorf("attach to %s: %w", h.file, err)
		}
		attach := ex.UprobeMulti
		if h.program == gen.SamplerProgOnAllocated {
			attach = ex.UretprobeMulti
		}
		for _, pid := range s.many {
			l, err := attach(nil, s.heap[h.program], &link.UprobeMultiOptions{Addresses: offsets[h], PID: uint32(max(0, pid))})
			if errors.Is(err, os.ErrNotExist) {
				continue // it has ended
			}
			if err != nil {
				return diagnose(err, "attach to "+h.file)
			}
			s.links = append(s.links, l)
		}
	}
	return nil
}

// closeLinks closes links all at once, as the kernel waits for each.
func closeLinks(links []link.Link) error {
	errs := make([]error, len(links))
	var closed sync.WaitGroup
	for i, l := range links {
		closed.Go(func() { errs[i] = l.Close() })
	}
	closed.Wait()
	return errors.Join(errs...)
}

// distances are those from one byte that is sampled to the next, each as likely as the others, for one in so many
// bytes on average: quantiles of the exponential distribution, so that each byte has nearly the same chance. They are 0
// where every block is sampled.
func distances(period uint64) []uint64 {
	all := make([]uint64, gen.SamplerHeapLimitsDISTANCES)
	for i := range all {
		if period > 1 {
			all[i] = uint64(math.Ceil(-math.Log((float64(i)+0.5)/float64(len(all))) * float64(period)))
		}
	}
	return all
}

// standsFor is how many bytes the sample of a block stands for that has so many, by the chance that one of them is
// sampled.
func standsFor(bytes, period uint64) uint64 {
	if period <= 1 || bytes == 0 {
		return bytes
	}
	return uint64(math.Round(float64(bytes) / -math.Expm1(-float64(bytes)/float64(period))))
}

// prepareBlocks gives the tables of blocks their sizes, and the programs what they draw.
func (s *Session) prepareBlocks(spec *ebpf.CollectionSpec) error {
	blocks := spec.Maps[gen.SamplerMapBlocks]
	switch first := s.first(); {
	case !first.Event.IsHeap():
		spec.Maps[gen.SamplerMapBlockRequests].MaxEntries = 1
	case first.Period < manyBytes:
		blocks.MaxEntries = maxBlocks
	default:
		blocks.MaxEntries = maxBlocksOf
	}
	return spec.Variables[gen.SamplerVarBlockDistances].Set(distances(s.first().Period))
}

// BlockID tells of which sample a block of memory is, by what that has.
type BlockID struct {
	TID  int32  // Sample.TID
	Time uint64 // Sample.Time
}

type blockEnd = gen.SamplerBlockEnd

// emitFreed calls fn for a block that is given back.
func (s *Session) emitFreed(rec []byte, fn func(*Sample) error) error {
	end := (*blockEnd)(unsafe.Pointer(unsafe.SliceData(rec)))
	s.sample = Sample{Time: end.Time, Freed: BlockID{int32(end.Tid), end.Start}, Regions: s.sample.Regions[:0], kernelStack: s.sample.kernelStack}
	return fn(&s.sample)
}

// Blocks calls fn for the blocks of samples of Heap that have not been given back, in no order, as of when the Session
// stopped, if it has; those of processes that have ended are among them. It knows of those, too, of which there was no
// room to tell that they were given back (Stats.MissedFrees).
func (s *Session) Blocks(fn func(BlockID)) error {
	return s.eachBlock(func(_ gen.SamplerBlockKey, id BlockID) { fn(id) })
}

// ForgetBlocks forgets those of Blocks that are not wanted any more, to make room: as of processes that have ended.
func (s *Session) ForgetBlocks(unwanted func(BlockID) bool) error {
	var keys []gen.SamplerBlockKey
	err := s.eachBlock(func(key gen.SamplerBlockKey, id BlockID) {
		if unwanted(id) {
			keys = append(keys, key)
		}
	})
	for _, key := range keys {
		if e := s.maps.Blocks.Delete(key); e != nil && !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, fmt.Errorf("forget blocks of memory: %w", e))
		}
	}
	return err
}

// eachBlock calls fn for the blocks that the kernel side knows of.
func (s *Session) eachBlock(fn func(gen.SamplerBlockKey, BlockID)) error {
	if s.maps.Blocks == nil || !s.Event().IsHeap() {
		return errNotOpen
	}
	const batch = 1 << 12
	keys, values := make([]gen.SamplerBlockKey, batch), make([]gen.SamplerBlock, batch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := s.maps.Blocks.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read blocks of memory: %w", err)
		}
		for i := range n {
			fn(keys[i], BlockID{int32(values[i].Tid), values[i].Time})
		}
		if err != nil {
			return nil
		}
	}
}
