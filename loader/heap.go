package loader

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
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

// allocator is a function of an allocator, by what it does with its arguments: a program of the kernel side.
type allocator string

// allocators are the functions by which programs get and give back memory, by their names.
var allocators = map[string]allocator{
	"malloc": gen.SamplerProgOnMalloc, "valloc": gen.SamplerProgOnMalloc, "pvalloc": gen.SamplerProgOnMalloc,
	"calloc": gen.SamplerProgOnCalloc, "realloc": gen.SamplerProgOnRealloc, // which reallocarray calls
	"memalign": gen.SamplerProgOnMemalign, "aligned_alloc": gen.SamplerProgOnMemalign, "posix_memalign": gen.SamplerProgOnPosixMemalign,
	"free": gen.SamplerProgOnFree, "cfree": gen.SamplerProgOnFree,
	// jemalloc's own, as Rust's programs call them
	"mallocx": gen.SamplerProgOnMalloc, "rallocx": gen.SamplerProgOnRealloc, "dallocx": gen.SamplerProgOnFree, "sdallocx": gen.SamplerProgOnFree,
}

// allocatorPrefixes are put before these names by who links jemalloc into a program.
var allocatorPrefixes = [][]byte{[]byte("je_"), []byte("_rjem_")}

// Mangled names of C++'s operators new and delete begin so, of 64 bits.
var (
	newOperators    = [][]byte{[]byte("_Znwm"), []byte("_Znam")}
	deleteOperators = [][]byte{[]byte("_ZdlPv"), []byte("_ZdaPv")}
)

// allocatorOf returns what a function is by its name, "" if it is no allocator's.
func allocatorOf(name []byte) allocator {
	begins := func(prefix []byte) bool { return bytes.HasPrefix(name, prefix) }
	switch {
	case slices.ContainsFunc(newOperators, begins):
		return gen.SamplerProgOnMalloc
	case slices.ContainsFunc(deleteOperators, begins):
		return gen.SamplerProgOnFree
	}
	for _, prefix := range allocatorPrefixes {
		name = bytes.TrimPrefix(name, prefix)
	}
	return allocators[string(name)]
}

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

// maxAllocatorFunctions is how many functions an allocator has, at most, by its names; a file can claim any number.
const maxAllocatorFunctions = 1 << 8

var errNoAllocator = errors.New("no file that is run defines malloc and free")

// findAllocator finds the functions of the allocator in a file: where they are entered, and those that return.
func findAllocator(im *procstate.Image, places []place) ([]place, error) {
	at := map[uint64]string{}
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		program := allocatorOf(s.Name)
		if s.Type != elf.STT_FUNC || s.Value == 0 || program == "" {
			return true
		}
		if offset, ok := im.OffsetOfVaddr(s.Value, 1); ok && isCode(im, offset) {
			at[offset] = string(program)
		}
		return len(at) <= maxAllocatorFunctions
	})
	var hasMalloc, hasFree bool
	for _, program := range at {
		hasMalloc = hasMalloc || program == gen.SamplerProgOnMalloc
		hasFree = hasFree || program == gen.SamplerProgOnFree
	}
	if !hasMalloc || !hasFree || len(at) > maxAllocatorFunctions || im.Arch().AddressWidth != 8 {
		return nil, errNoAllocator
	}
	for offset, program := range at {
		places = append(places, place{offset: cheapPlace(im, offset, program), program: program})
		if program != gen.SamplerProgOnFree {
			places = append(places, place{offset: offset, program: gen.SamplerProgOnAllocated})
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.program, b.program))
	})
	return places, nil
}

// allocatorLibraries are libraries that programs may load, by the names of files without what follows ".so".
var allocatorLibraries = []string{"libc", "libjemalloc", "libtcmalloc", "libtcmalloc_minimal", "libmimalloc"}

// isAllocatorLibrary reports whether the file of a library may have an allocator, by its name.
func isAllocatorLibrary(file string) bool {
	named := func(name string) bool { return strings.HasPrefix(file, name) }
	return isCalled(file, "libc") || slices.ContainsFunc([]string{
		"ld-musl-", "libc.musl-", "libasan.so", "liblsan.so", "libtsan.so", "libclang_rt.", "libhoard.so", "libscudo",
	}, named) || strings.Contains(file, "malloc") && strings.Contains(file, ".so")
}

// allocatorFiles returns the files, each once, that may have the allocators of some processes, or of all, and of
// programs.
func allocatorFiles(pids []int, programs []string) (paths []string) {
	if len(pids) == 0 {
		for _, name := range allocatorLibraries {
			if path, err := resolveBinary(name); err == nil {
				paths = append(paths, path)
			}
		}
		for _, name := range programs {
			if path, err := exec.LookPath(name); err == nil {
				paths = append(append(paths, path), loadedAllocators(path)...)
			}
		}
	}
	if len(pids) == 0 && len(programs) == 0 {
		pids = runningProcesses()
	}
	seen := map[string]bool{} // by what identifies the file of a mapping
	for _, pid := range pids {
		paths = append(paths, mappedAllocators(pid, seen)...)
	}
	var files []os.FileInfo
	return slices.DeleteFunc(paths, func(path string) bool {
		fi, err := os.Stat(path)
		if err != nil || !fi.Mode().IsRegular() || slices.ContainsFunc(files, func(other os.FileInfo) bool { return os.SameFile(fi, other) }) {
			return true
		}
		files = append(files, fi)
		return false
	})
}

// loadedAllocators returns the files that may have the allocator of a program that is to be started here, of those that
// its loader will load for it and of those that the environment names.
func loadedAllocators(program string) (paths []string) {
	for _, name := range strings.FieldsFunc(os.Getenv("LD_PRELOAD"), func(r rune) bool { return r == ' ' || r == ':' }) {
		if path, err := resolveBinary(name); err == nil {
			paths = append(paths, path)
		}
	}
	f, err := elf.Open(program)
	if err != nil {
		return paths
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < 1<<12 { // musl's is its C library
			if name, err := io.ReadAll(p.Open()); err == nil {
				paths = append(paths, string(bytes.TrimRight(name, "\x00")))
			}
		}
	}
	dirs := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		of, _ := f.DynString(tag)
		for _, list := range of {
			dirs = append(dirs, filepath.SplitList(strings.NewReplacer("$ORIGIN", filepath.Dir(program), "${ORIGIN}", filepath.Dir(program)).Replace(list))...)
		}
	}
	needed, _ := f.ImportedLibraries()
	for _, name := range needed {
		switch {
		case !isAllocatorLibrary(filepath.Base(name)):
		case strings.Contains(name, "/"):
			paths = append(paths, name)
		default:
			for _, dir := range dirs {
				paths = append(paths, filepath.Join(dir, name))
			}
		}
	}
	return paths
}

// runningProcesses returns the IDs of all processes.
func runningProcesses() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), "%d", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// mappedAllocators returns the files, by paths of ours, that a process has mapped and that may have its allocator: its
// program and libraries. Files that were seen before are left out.
func mappedAllocators(pid int, seen map[string]bool) (paths []string) {
	proc := fmt.Sprintf("/proc/%d", pid)
	mapped, err := procstate.ReadMaps(proc+"/maps", true)
	if err != nil {
		return nil
	}
	program, _ := os.Readlink(proc + "/exe")
	root := rootOf(proc)
	for _, m := range mapped {
		path := strings.TrimSuffix(m.Path, " (deleted)")
		file := fmt.Sprint(m.Major, m.Minor, m.Inode, path)
		if !filepath.IsAbs(path) || m.Path != program && !isAllocatorLibrary(filepath.Base(path)) || seen[file] {
			continue
		}
		seen[file] = true
		paths = append(paths, mappedFile(proc, root, m.Start, m.End, path))
	}
	return paths
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
