package procstate

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// goroutineCopy copies, while a process stands still, what ReadGoroutines and
// walks of goroutines without a thread read of it: the list of goroutines, the
// head of each g, and each stack from where the goroutine goes on. What can be
// done before is done before the process stands: where the g are is known, as
// the list only grows, and the memory to copy into has been touched.
type goroutineCopy struct {
	rt      *GoRuntime
	allgs   uint64   // run-time address of runtime.allgs
	reasons []uint64 // run-time addresses, see goLists

	known  []uint64 // addresses of g, in order
	listed int      // how many were in the list then

	stackLimit uint64 // bytes of one stack

	labels map[uint64]bool // addresses of labels

	arena  *arena
	batch  vmBatch
	stacks []area    // to be copied
	out    rawThread // its regions are what was copied
}

// Limits of what is copied of goroutines.
const (
	goroutineBudget = captureBudget // bytes of all their stacks
	minGoShare      = 8 << 10       // of each stack, when all do not fit
	gGap            = 256           // between two g that are read as one piece
	maxGPiece       = 64 << 10
	reasonBytes     = 256 * goStringSize

	// goroutineFailures is how many pieces may be unreadable: a runtime that lies
	// must not have the process stand still for long.
	goroutineFailures = 64
)

// newGoroutineCopy prepares to copy the goroutines of a process; nil when none
// of its code is in Go, or they cannot be found.
func newGoroutineCopy(pid int, space *AddressSpace, stackBytes int) *goroutineCopy {
	lib, rt, err := goProgramOfLive(pid, space, GoRuntimeOf)
	if err != nil {
		return nil
	}
	lists, err := goListsOf(lib.Image)
	if err != nil {
		return nil
	}
	c := &goroutineCopy{rt: rt, labels: map[uint64]bool{}, allgs: lib.Bias + lists.allgs, stackLimit: uint64(cmp.Or(stackBytes, goroutineBudget))}
	for _, at := range lists.reasons {
		c.reasons = append(c.reasons, lib.Bias+at)
	}
	task := readableTask(pid)
	mem := pageCache{source: liveProcess(task), width: lib.Image.Arch().AddressWidth}
	c.known, _, _ = readAllgs(&mem, c.allgs, 0)
	c.listed = len(c.known)
	slices.Sort(c.known)

	// A rehearsal tells how much that is going to be.
	c.batch = vmBatch{task: task, patience: goroutineFailures}
	c.arena = &arena{}
	c.heads(c.known)
	size := 0
	for i := range c.out.regions {
		size += len(c.out.regions[i].Data)
	}
	_, stacks := c.room()
	size += int(stacks)
	size += len(c.labels) * (goSliceHead + 4*goLabelBytes) // and some strings
	c.batch.reset()
	clear(c.labels)
	c.stacks, c.out.regions = c.stacks[:0], slices.Grow(c.out.regions[:0], len(c.out.regions)+len(c.stacks))
	c.arena = newArena(size + size/8 + 16*c.listed + 64<<10)
	return c
}

// take copies what there is, through a thread of the process, which stands.
func (c *goroutineCopy) take(task ThreadID, width int) []Region {
	c.batch.task = task
	mem := pageCache{source: liveProcess(task), width: width, active: true}
	array, _ := mem.ReadWord(c.allgs)
	n, _ := mem.ReadWord(c.allgs + 8)
	c.add(c.allgs, c.allgs+16)
	if size := 8 * min(n, maxGoroutines); array+size > array {
		c.add(array, array+size)
	}
	for _, at := range c.reasons {
		c.add(at, at+reasonBytes)
	}
	c.heads(c.known)
	if younger, _, err := readAllgs(&mem, c.allgs, c.listed); err == nil {
		slices.Sort(younger)
		c.heads(younger)
	}
	c.copyStacks()
	c.copyLabels()
	return c.out.regions
}

func (c *goroutineCopy) add(start, end uint64) { c.batch.add(&c.out, start, end, c.arena) }

// heads copies the heads of some g, in order of address, those that lie close to
// each other in one piece, and whatever else was asked for. Then it adds the
// stacks of those that are on no thread to those to be copied.
func (c *goroutineCopy) heads(gs []uint64) {
	size, first := c.rt.gHeadSize(), len(c.out.regions)
	for i := 0; i < len(gs); {
		start := gs[i]
		end := start + size
		for i++; i < len(gs) && gs[i] < end+gGap && gs[i]-start < maxGPiece; i++ {
			end = gs[i] + size
		}
		c.add(start, end)
	}
	c.batch.run()
	c.batch.reset()
	pieces := c.out.regions[first:]
	for _, g := range gs {
		for len(pieces) > 1 && pieces[1].Addr <= g {
			pieces = pieces[1:]
		}
		if len(pieces) == 0 || g < pieces[0].Addr || g-pieces[0].Addr+size > uint64(len(pieces[0].Data)) {
			continue // it could not be read
		}
		head := pieces[0].Data[g-pieces[0].Addr:]
		if s, ok := c.rt.parkedStack(head); ok {
			c.stacks = append(c.stacks, s)
		}
		if at := c.rt.labelsOf(head); at != 0 && len(c.labels) < maxLabelled {
			c.labels[at] = true
		}
	}
}

// labelsOf returns where the labels of a goroutine are, given the head of its g; 0 when it has none.
func (rt *GoRuntime) labelsOf(g []byte) uint64 {
	switch GoStatus(binary.LittleEndian.Uint32(g[rt.Status:]) &^ goScan) {
	case GoIdle, GoDead, GoDeadExtra:
		return 0
	}
	if rt.Labels == 0 {
		return 0
	}
	return binary.LittleEndian.Uint64(g[rt.Labels:])
}

// parkedStack returns what is in use of a goroutine's stack, given the head of
// its g; ok is false when it is on a thread, or has none.
func (rt *GoRuntime) parkedStack(g []byte) (s area, ok bool) {
	word := func(field uint32) uint64 { return binary.LittleEndian.Uint64(g[field:]) }
	switch GoStatus(binary.LittleEndian.Uint32(g[rt.Status:]) &^ goScan) {
	case GoRunnable, GoWaiting, GoPreempted, GoLeaked:
		s = area{word(rt.SchedSP), word(rt.StackHi)}
		return s, s.start >= word(rt.StackLo) && s.start < s.end
	}
	return s, false
}

// room returns how many bytes of each of the stacks to be copied fit, and of all
// together: of each no more than its limit, and no more than leaves as much to the
// others where that would be too much. What the target says of its stacks may be
// anything.
func (c *goroutineCopy) room() (each, all uint64) {
	each = c.stackLimit
	for _, s := range c.stacks {
		all += min(s.end-s.start, each)
	}
	if all <= goroutineBudget {
		return each, all
	}
	sizes := make([]uint64, len(c.stacks))
	for i, s := range c.stacks {
		sizes[i] = min(s.end-s.start, each)
	}
	slices.Sort(sizes)
	left := uint64(goroutineBudget)
	for i, size := range sizes {
		share := left / uint64(len(sizes)-i)
		if size > share {
			return min(each, max(share, minGoShare)), goroutineBudget
		}
		left -= size
	}
	return each, goroutineBudget
}

// copyStacks copies the stacks to be copied, as much as fits.
func (c *goroutineCopy) copyStacks() {
	limit, left := c.room()
	for _, s := range c.stacks {
		n := min(s.end-s.start, limit)
		if n > left {
			break
		}
		left -= n
		c.add(s.start, s.start+n)
	}
	c.batch.run()
}
