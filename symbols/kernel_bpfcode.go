package symbols

import (
	"slices"
	"sort"
	"strings"
)

// BPFCode knows the BPF programs and trampolines that come and go while it is
// told of them, so that what was sampled in them has a name when they have
// gone. Memory of the kernel holds one after the other: code that came is given
// places of its own instead of addresses, and a program that comes again has
// the places that it had. A BPFCode belongs to one goroutine at a time.
type BPFCode struct {
	at      []bpfRange // where code came or went, in order
	earlier []bpfRange // where code was that came before all this and went, in order

	programs []bpfProgram // those that came, in order of place
	ids      map[bpfKey]uint32
	gone     []string // names of earlier
}

// bpfRange is code at kernel addresses [start, end).
type bpfRange struct {
	start, end uint64
	id         uint32 // in programs, or in gone; unknownBPF when none is known
}

// bpfProgram is code that came, at places [place, place+size).
type bpfProgram struct {
	bpfKey
	place uint64
}

type bpfKey struct {
	name string
	size uint64
}

const unknownBPF = none

// Limits on what is kept of code that comes and goes.
const (
	maxBPFRanges   = 1 << 13
	maxBPFPrograms = 1 << 13
)

// bpfPlaces is what places are aligned to, in bytes.
const bpfPlaces = 64

// noBPFPlace is set in the place of what is not known. Addresses of the kernel
// have it.
const noBPFPlace = 1 << 63

// Came tells of code that is there from now on.
func (c *BPFCode) Came(start, size uint64, name string) {
	if size > 0 && start+size > start {
		c.put(c.reach(bpfRange{start, start + size, c.program(bpfKey{name, size})}, name))
	}
}

// reach ends the range of code where others begin, if that is not told: of a
// trampoline the kernel always says that it has a page, though since Linux 6.9
// it shares that with others (bpf_image_ksym_add).
func (c *BPFCode) reach(r bpfRange, name string) bpfRange {
	if !isTrampoline(name) {
		return r
	}
	for i := overlap(c.at, r); i < len(c.at) && c.at[i].start < r.end; i++ {
		if n := &c.at[i]; n.start > r.start && n.id != unknownBPF {
			r.end = n.start
			break
		}
	}
	return r
}

// isTrampoline reports whether code is what the kernel calls an image:
// bpf_trampoline_*, bpf_dispatcher_*, or that of a struct_ops, bpf__*.
func isTrampoline(name string) bool { return !strings.HasPrefix(name, "bpf_prog_") }

// Went tells of code that is not there any more.
func (c *BPFCode) Went(start, size uint64, name string) {
	if size == 0 || start+size < start {
		return
	}
	r := c.reach(bpfRange{start, start + size, unknownBPF}, name)
	if i := overlap(c.at, r); i == len(c.at) || c.at[i].start >= r.end {
		c.wentFirst(r, name)
	}
	c.put(r)
}

// At returns the place of the code that is at a kernel address now. ok is false
// when none came or went there: it is what it was before.
func (c *BPFCode) At(addr uint64) (place uint64, ok bool) {
	n := len(c.at)
	if n == 0 || addr < c.at[0].start || addr >= c.at[n-1].end {
		return 0, false
	}
	r, ok := rangeAt(c.at, addr)
	if !ok || r.id == unknownBPF {
		return addr | noBPFPlace, ok
	}
	return c.programs[r.id].place + addr - r.start, true
}

// Name names a place.
func (c *BPFCode) Name(place uint64) (s KernelSymbol, ok bool) {
	i := sort.Search(len(c.programs), func(i int) bool { return c.programs[i].place > place }) - 1
	if i < 0 || place-c.programs[i].place >= c.programs[i].size {
		return s, false
	}
	p := &c.programs[i]
	return KernelSymbol{Name: p.name, Module: "bpf", Offset: place - p.place}, true
}

// Earlier names what was at a kernel address before any code came or went
// there. decided is false when nothing did: what is there now was there before.
// Without a name it is not known.
func (c *BPFCode) Earlier(addr uint64) (s KernelSymbol, decided bool) {
	if r, ok := rangeAt(c.earlier, addr); ok {
		return KernelSymbol{Name: c.gone[r.id], Module: "bpf", Offset: addr - r.start}, true
	}
	_, decided = rangeAt(c.at, addr)
	return s, decided
}

// program numbers code.
func (c *BPFCode) program(k bpfKey) uint32 {
	if id, ok := c.ids[k]; ok {
		return id
	}
	if len(c.programs) >= maxBPFPrograms {
		return unknownBPF
	}
	if c.ids == nil {
		c.ids = map[bpfKey]uint32{}
	}
	id, place := uint32(len(c.programs)), uint64(bpfPlaces)
	if id > 0 {
		last := &c.programs[id-1]
		place = (last.place + last.size + bpfPlaces) &^ (bpfPlaces - 1)
	}
	c.programs = append(c.programs, bpfProgram{k, place})
	c.ids[k] = id
	return id
}

// wentFirst notes the name of code that was there before all others.
func (c *BPFCode) wentFirst(r bpfRange, name string) {
	if len(c.earlier) >= maxBPFRanges {
		return
	}
	r.id = uint32(len(c.gone))
	c.gone = append(c.gone, name)
	c.earlier = slices.Insert(c.earlier, overlap(c.earlier, r), r)
}

// put notes what is at a range. What is left of others there is not known.
func (c *BPFCode) put(r bpfRange) {
	i := overlap(c.at, r)
	j := i
	for j < len(c.at) && c.at[j].start < r.end {
		j++
	}
	var now []bpfRange
	if i < j && c.at[i].start < r.start {
		left := bpfRange{c.at[i].start, r.start, unknownBPF}
		if id := c.at[i].id; id != unknownBPF && isTrampoline(c.programs[id].name) {
			left.id = id
		}
		now = append(now, left)
	}
	now = append(now, r)
	if i < j && c.at[j-1].end > r.end {
		now = append(now, bpfRange{r.end, c.at[j-1].end, unknownBPF})
	}
	c.at = slices.Replace(c.at, i, j, now...)
	if n := len(c.at); n > maxBPFRanges {
		c.at = []bpfRange{{c.at[0].start, c.at[n-1].end, unknownBPF}}
	}
}

// overlap returns the index of the first of sorted ranges that ends behind the
// start of r.
func overlap(ranges []bpfRange, r bpfRange) int {
	return sort.Search(len(ranges), func(i int) bool { return ranges[i].end > r.start })
}

// rangeAt returns the one of sorted ranges that holds an address.
func rangeAt(ranges []bpfRange, addr uint64) (bpfRange, bool) {
	i := overlap(ranges, bpfRange{start: addr})
	if i == len(ranges) || ranges[i].start > addr {
		return bpfRange{}, false
	}
	return ranges[i], true
}
