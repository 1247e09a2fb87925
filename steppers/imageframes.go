package steppers

import (
	"math"
	"sort"

	"github.com/swbpf/swbpf/procstate"
)

// imageFrames is what is known of the functions of a file. Their starts and which are
// parts is looked up in the file for the first addresses, and known of all from then on.
type imageFrames struct {
	img   *procstate.Image
	looks int  // into the file
	whole bool // all functions have symbols
	nops  bool // dataflow.NopsBehindCalls
	rare  bool // framesAreRare

	starts  []uint32              // sorted, from the first one on; nil before they are known
	first   uint64                // that one
	windows map[uint64]startsNear // until then, by vaddr / windowBytes
	cold    map[uint64]uint64     // see coldParts; nil before they are known
	funcs   map[uint64]*funcFrames
	behind  map[uint64]foundLayout // what layoutBehind found

	fragments fragments

	kept int // bytes, about
}

// fewLooks is how often a table of a file is looked through for one address: to know all
// functions of a large one takes about as long, and megabytes, and of most files few
// functions are asked for, those without an unwind table.
const fewLooks = 24

// partLooks is how many looks it takes to find out about a part.
const partLooks = 5

// maxLooked bounds the bytes of tables that are looked through so often.
const maxLooked = 64 << 20

// tableBytes is what the symbol tables of a file and their names take.
func tableBytes(img *procstate.Image) uint64 {
	symtab, names, _ := symbolTable(img)
	dynsym, _ := img.Section(".dynsym")
	return min(symtab.Size, maxSymtab) + min(names.Size, maxSymtab) + min(dynsym.Size, maxSymtab)
}

// look reports whether the file is to be looked into once more.
func (im *imageFrames) look() bool {
	im.looks++
	return im.looks <= fewLooks
}

// setStarts keeps where functions begin. What lies 4 GiB and more behind the first one
// is left out.
func (im *imageFrames) setStarts(starts []uint64) {
	im.starts = make([]uint32, 0, len(starts))
	if len(starts) > 0 {
		im.first = starts[0]
	}
	for _, start := range starts {
		if start-im.first > math.MaxUint32 {
			im.whole = false
			break
		}
		im.starts = append(im.starts, uint32(start-im.first))
	}
	im.kept += 4 * len(im.starts)
}

// startsNear are starts near a link-time address.
type startsNear struct {
	first  uint64   // they are from there on
	starts []uint32 // sorted
}

// windowBytes is around what addresses one look finds the functions: most that are asked
// for are near each other, and often one is asked for again.
const windowBytes = 256 << 10

// bounds returns the last known start of a function before vaddr, 0 when
// there is none near, and the next one behind, or a limit.
func (im *imageFrames) bounds(vaddr uint64) (start, end uint64) {
	if im.starts == nil {
		near, ok := im.windows[vaddr/windowBytes]
		if !ok && im.look() {
			near, ok = im.window(vaddr/windowBytes), true
		}
		if ok {
			return near.bounds(vaddr)
		}
		im.setStarts(im.img.FuncStarts())
		im.windows = nil
	}
	return startsNear{im.first, im.starts}.bounds(vaddr)
}

// window looks for the starts of functions that bounds needs in a window.
func (im *imageFrames) window(n uint64) startsNear {
	lo, hi := n*windowBytes, (n+1)*windowBytes
	near := startsNear{first: lo - min(lo, maxFuncCode)}
	for _, start := range im.img.FuncStartsIn(near.first, max(hi, hi+maxFuncCode)) {
		near.starts = append(near.starts, uint32(start-near.first))
	}
	if im.windows == nil {
		im.windows = map[uint64]startsNear{}
	}
	im.windows[n] = near
	im.kept += 4*len(near.starts) + 64
	return near
}

// bounds is that of imageFrames.
func (s startsNear) bounds(vaddr uint64) (start, end uint64) {
	i := sort.Search(len(s.starts), func(i int) bool { return s.first+uint64(s.starts[i]) > vaddr })
	end = vaddr + maxFuncCode
	if i < len(s.starts) {
		end = min(end, s.first+uint64(s.starts[i]))
	}
	if i > 0 {
		if at := s.first + uint64(s.starts[i-1]); vaddr-at < maxFuncCode {
			start = at
		}
	}
	return start, end
}

// part reports whether a part of a function begins at a link-time address, and of which, 0
// when that is not known.
func (im *imageFrames) part(vaddr uint64) (function uint64, isPart bool) {
	if im.cold == nil {
		if im.look() {
			function, isPart, known := coldPart(im.img, vaddr)
			if isPart {
				im.looks += partLooks - 1
			}
			if known {
				return function, isPart
			}
		}
		if im.cold = coldParts(im.img); im.cold == nil {
			im.cold = map[uint64]uint64{}
		}
		im.kept += 32 * len(im.cold)
	}
	function, isPart = im.cold[vaddr]
	return function, isPart
}

// keep remembers the analysis of a function.
func (im *imageFrames) keep(start uint64, f *funcFrames) {
	const perRun, perExit = 6, 64 // bytes
	im.funcs[start] = f
	im.kept += perRun*len(f.offs) + perExit*len(f.exits) + 192
}
