package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sort"
	"sync"
	"time"
)

// Limits on what a process tells of the code that it has made.
const (
	maxJITEntries = 1 << 16   // entries of all lists
	maxJITBytes   = 128 << 20 // of all object files
	maxJITFrames  = 32 << 20  // bytes kept of them for walks
	maxJITLinked  = 16 << 20  // bytes kept of those whose names nobody has asked for yet
	maxJITGone    = 32        // object files kept when they are no longer registered
)

// How often a process that runs is asked.
const (
	jitTrusted = 10 * time.Millisecond // what was seen to be so is believed for so long
	jitShare   = 20                    // its lists are read for one part in so many of the time, if that takes long
	jitShort   = 100 * time.Microsecond
	jitLately  = 100 * time.Millisecond // so long before code ran that is no more it was seen to be there
)

// JITObjects are the object files that a process has registered with debuggers, and
// the call frame information that it has registered with libgcc alone (see
// frameRoots). With debuggers it does by GDB's JIT interface (GDB manual, "JIT
// Compilation Interface"), as QEMU and the compilers of LLVM do it. A file of the
// process has a variable, the descriptor, that leads to a list of entries:
//
//	__jit_debug_descriptor   version and action, four bytes each; the entry that
//	                         the action is about; the first entry
//	entry                    the next one; the one before; address and size of
//	                         an object file in memory
//
// Nobody else is asked whether the list has changed: entries are where they were
// only as long as those before them lead to them, and object files what they
// were only as long as their bytes are the same. A list may be anything, and may
// change while it is read.
//
// A JITObjects belongs to the goroutine of its ProcessState.
type JITObjects struct {
	ps   ProcessState
	live LiveMemory // nil where memory is what it was when the process was stopped

	unnamed     jitSearch
	looked      uint64 // the epoch in which descriptors were looked for,
	generation  uint32 // and that of the mappings then
	descriptors []jitDescriptor

	objects map[uint64]*JITObject // by address of their entry
	links   map[uint64]jitLink    // the same
	code    jitCode
	gone    []*JITObject // no longer registered, the last first
	trees   jitTrees

	walks    uint64 // see Begin
	same     uint64 // of the walks, the last in which the lists were what they had been
	empty    uint64 // the last epoch in which they were
	seen     uint64 // ns of CLOCK_MONOTONIC before that was read; 0 where memory does not change
	epoch    uint64 // in which what was seen to be so is believed
	began    time.Time
	read     time.Time     // when the lists were read last,
	took     time.Duration // and how long that was
	names    bool          // are wanted
	linked   []*Image      // whose names have not been asked for yet
	linkSize int64
	word     [48]byte
}

// jitLayout tells how lists are laid out, in bytes.
type jitLayout struct {
	head  int // where a descriptor has the first entry, its last word
	next  int // where an entry has the next one,
	what  int // what a jitEntry is,
	size  int // and its end
	frame bool
}

// Of GDB's JIT interface, and of libgcc.
var (
	jitOfGDB    = jitLayout{head: 16, next: 0, what: 16, size: 32}
	jitOfLibgcc = jitLayout{head: 0, next: 40, what: 24, size: 48, frame: true}
)

// jitDescriptor is a descriptor, and what it said when its list was read.
type jitDescriptor struct {
	addr   uint64
	said   [24]byte
	layout *jitLayout
	arch   *Arch
}

// told is the part of said that there is.
func (d *jitDescriptor) told() []byte { return d.said[:d.layout.head+8] }

// jitEntry is what an entry of a list says of its object file: of libgcc's lists the
// second word is flags.
type jitEntry struct{ symfile, size uint64 }

// entryOf returns what the bytes of an entry say.
func (l *jitLayout) entryOf(b []byte) jitEntry {
	le := binary.LittleEndian
	return jitEntry{le.Uint64(b[l.what:]), le.Uint64(b[l.what+8:])}
}

// jitLink tells where the address of an entry is, and when that and the object file
// were looked at last.
type jitLink struct {
	at     uint64
	epoch  uint64
	layout *jitLayout
}

// jitState is implemented by a ProcessState that keeps the JITObjects of its process.
type jitState interface{ JITObjects() *JITObjects }

// JITObjectsOf returns the object files that the process of a ProcessState has
// registered: those that it keeps, or else new ones.
func JITObjectsOf(ps ProcessState) *JITObjects {
	if s, ok := ps.(jitState); ok {
		if j := s.JITObjects(); j != nil {
			return j
		}
	}
	return newJITObjects(ps)
}

func newJITObjects(ps ProcessState) *JITObjects {
	j := &JITObjects{ps: ps, walks: 1, epoch: 1}
	j.live, _ = ps.(LiveMemory)
	return j
}

// Begin tells that the process may have changed, as it is for another walk: what it
// said is looked at again when it is needed. Of a process that runs, object files
// that were there are so after a moment only.
func (j *JITObjects) Begin() {
	j.walks++
	if j.live != nil {
		now := time.Now()
		if now.Sub(j.began) < jitTrusted {
			return
		}
		j.began = now
	}
	j.epoch++
}

// At returns the object file of the code at a run-time address, nil when none is
// registered.
func (j *JITObjects) At(addr uint64) *JITObject {
	o := j.foundAt(addr)
	if o == nil && j.search() {
		o = j.foundAt(addr)
	}
	return o
}

// foundAt is At by the descriptors and trees that are known.
func (j *JITObjects) foundAt(addr uint64) *JITObject {
	if !j.find() {
		return nil
	}
	if o := j.listedAt(addr); o != nil {
		return o
	}
	if o := j.inTrees(addr); o != nil {
		return o
	}
	return j.wasAt(addr)
}

// listedAt returns the object file of the code at a run-time address that is in a list,
// nil when there is none.
func (j *JITObjects) listedAt(addr uint64) *JITObject {
	if len(j.descriptors) == 0 {
		return nil
	}
	o := j.code.at(addr)
	if o != nil && j.stands(o) {
		return o
	}
	if o == nil && !j.changed() || !j.update() {
		return nil
	}
	if o = j.code.at(addr); o == nil || !j.stands(o) {
		return nil
	}
	return o
}

// wasAt returns the object file of code that is no more, nor anything else in its place:
// who asks has seen it run a moment ago. Where there may be something else, of which nobody
// tells, it has to have been there nearly until then.
func (j *JITObjects) wasAt(addr uint64) *JITObject {
	if j.live == nil {
		return nil
	}
	i := slices.IndexFunc(j.gone, func(o *JITObject) bool { return o.Holds(addr) })
	if i < 0 {
		return nil
	}
	o := j.gone[i]
	if s, ok := j.ps.(*Snapshot); ok && s.taken != 0 && s.taken < o.there+uint64(jitLately) || !j.readMemory(addr, j.word[:1]) {
		return o
	}
	return nil
}

// isThere takes note that an object file is registered now.
func (j *JITObjects) isThere(o *JITObject) {
	if j.live != nil && o != nil {
		o.there = Monotonic()
	}
}

// leave takes note that an object file is not registered any more.
func (j *JITObjects) leave(o *JITObject) {
	for ; o != nil && j.live != nil; o = o.more {
		if len(o.code) > 0 {
			j.gone = slices.Insert(j.gone[:min(len(j.gone), maxJITGone-1)], 0, o)
		}
	}
}

// Above returns where the first code above an address begins, of that which At has
// found, if that is within so many bytes.
func (j *JITObjects) Above(addr, within uint64) (start uint64, ok bool) {
	i := sort.Search(len(j.code), func(i int) bool { return j.code[i].start > addr })
	if i == len(j.code) || j.code[i].start-addr > within {
		return 0, false
	}
	return j.code[i].start, true
}

// Linked returns the object files that were read since the last call, whole, as
// Images whose link-time addresses are run-time addresses, the older first.
// Before the first call none are kept. Some of those that a process has registered
// for a short time only will be missing.
func (j *JITObjects) Linked() []*Image {
	j.search()
	if !j.names {
		j.names, j.objects, j.took = true, nil, 0 // of those there are the names are not known
		if j.find() && len(j.descriptors) > 0 {
			j.update()
		}
	} else if j.find() && len(j.descriptors) > 0 && j.changed() {
		j.update()
	}
	l := j.linked
	j.linked, j.linkSize = nil, 0
	return l
}

// readMemory reads memory of the process as it is now.
func (j *JITObjects) readMemory(addr uint64, buf []byte) bool {
	if addr+uint64(len(buf)) < addr {
		return false
	}
	if j.live != nil {
		return j.live.ReadLive(addr, buf) == len(buf)
	}
	n, err := j.ps.ReadMemory(addr, buf)
	return err == nil && n == len(buf)
}

// find looks for descriptors and trees, once for each state of the mappings, and reports
// whether there are any.
func (j *JITObjects) find() bool {
	if j.ps == nil {
		return false
	}
	libs := j.ps.Libraries()
	if libs == nil {
		return false
	}
	if s, ok := libs.(*AddressSpace); j.looked == j.epoch || ok && j.looked != 0 && j.generation == s.Generation() {
		return len(j.descriptors) > 0 || len(j.trees.all) > 0
	} else if ok {
		j.generation = s.Generation()
	}
	j.looked = j.epoch
	before := j.descriptors
	j.descriptors, j.trees.all = nil, nil
	for _, lib := range libs.Libraries() {
		if lib.Image == nil || lib.Image.Arch().AddressWidth != 8 {
			continue
		}
		if vaddr := lib.Image.jitDescriptor(); vaddr != 0 {
			j.descriptors = append(j.descriptors, jitDescriptor{addr: vaddr + lib.Bias, layout: &jitOfGDB})
		}
		roots := lib.Image.frameRoots()
		for _, vaddr := range roots.lists {
			j.descriptors = append(j.descriptors, jitDescriptor{addr: vaddr + lib.Bias, layout: &jitOfLibgcc, arch: lib.Image.Arch()})
		}
		if roots.tree != 0 {
			j.trees.all = append(j.trees.all, jitTree{addr: roots.tree + lib.Bias, arch: lib.Image.Arch()})
		}
	}
	for _, addr := range j.unnamed.found {
		j.descriptors = append(j.descriptors, jitDescriptor{addr: addr, layout: &jitOfGDB})
	}
	for n := range j.descriptors {
		if i := slices.IndexFunc(before, func(b jitDescriptor) bool { return b.addr == j.descriptors[n].addr }); i >= 0 {
			j.descriptors[n] = before[i]
		}
	}
	// Debuggers are told more than libgcc.
	slices.SortStableFunc(j.descriptors, func(a, b jitDescriptor) int { return a.layout.next - b.layout.next })
	return len(j.descriptors) > 0 || len(j.trees.all) > 0
}

// changed reports whether a list may be other than when it was read.
func (j *JITObjects) changed() bool {
	if j.same == j.walks {
		return false
	}
	now := uint64(0)
	if s, ok := j.ps.(*Snapshot); ok && j.live != nil {
		if s.taken != 0 && s.taken < j.seen {
			return false // what was read after it was taken tells no less
		}
		now = Monotonic()
	}
	if j.descriptors[0].layout.frame && len(j.code) == 0 && j.empty == j.epoch {
		return false // most programs have libgcc and tell it nothing
	}
	for i := range j.descriptors {
		d := &j.descriptors[i]
		told := j.word[:len(d.told())]
		if !j.readMemory(d.addr, told) {
			continue // it is not there yet, or no more
		}
		if !bytes.Equal(told, d.told()) {
			return true
		}
		// Its entry may be that of another object file, at the same place.
		first := binary.LittleEndian.Uint64(told[d.layout.head:])
		if o := j.objects[first]; o != nil && !j.stands(o) {
			return true
		}
	}
	j.same, j.empty, j.seen = j.walks, j.epoch, now
	return false
}

// stands reports whether an object file is still registered, and the same; one that
// is another now is forgotten. Where nothing can be read any more, all is as it was.
func (j *JITObjects) stands(o *JITObject) bool {
	link, ok := j.links[o.at]
	if !ok {
		return false
	}
	if link.epoch == j.epoch {
		return true
	}
	if j.live != nil && !slices.ContainsFunc(j.descriptors, func(d jitDescriptor) bool { return j.readMemory(d.addr, j.word[:len(d.told())]) }) {
		return true
	}
	if !j.readMemory(link.at, j.word[:8]) || binary.LittleEndian.Uint64(j.word[:]) != o.at ||
		!j.readMemory(o.at, j.word[:link.layout.size]) || link.layout.entryOf(j.word[:]) != o.entry {
		return false
	}
	if !o.same(j.readMemory) {
		delete(j.objects, o.at)
		j.leave(o)
		return false
	}
	link.epoch = j.epoch
	j.links[o.at] = link
	j.isThere(o)
	return true
}

// update reads the lists. It reports false when it is too early for that.
func (j *JITObjects) update() bool {
	began := time.Now()
	if j.live != nil && j.took > jitShort && began.Sub(j.read) < jitShare*j.took {
		return false
	}
	le := binary.LittleEndian
	objects, links := map[uint64]*JITObject{}, map[uint64]jitLink{}
	left, kept, known := uint64(maxJITBytes), 0, len(j.linked)
	j.code = nil
	for i := range j.descriptors {
		d := &j.descriptors[i]
		if !j.readMemory(d.addr, d.told()) {
			continue
		}
		from := d.addr + uint64(d.layout.head)
		for at := le.Uint64(d.said[d.layout.head:]); at != 0 && len(links) < maxJITEntries; {
			if _, cycle := links[at]; cycle || !j.readMemory(at, j.word[:d.layout.size]) {
				break
			}
			next, e := le.Uint64(j.word[d.layout.next:]), d.layout.entryOf(j.word[:])
			o := j.objects[at]
			links[at] = jitLink{at: from, layout: d.layout}
			if n := min(e.size, maxJITObject); !d.layout.frame && n > left {
				break
			} else if !d.layout.frame {
				left -= n
			}
			if o == nil || o.entry != e {
				o = j.open(d, at, e, &left)
			}
			if kept += o.sizes(); kept > maxJITFrames {
				break
			}
			objects[at] = o
			for ; o != nil; o = o.more {
				j.isThere(o)
				for _, c := range o.code {
					c.order = len(links)
					j.code = append(j.code, c)
				}
			}
			from, at = at+uint64(d.layout.next), next
		}
	}
	for at, o := range j.objects {
		if objects[at] != o {
			j.leave(o)
		}
	}
	j.objects, j.links = objects, links
	j.code = withoutOverlaps(j.code)
	slices.Reverse(j.linked[known:])
	j.read = time.Now()
	j.took = j.read.Sub(began)
	return true
}

// open reads the object file of the entry at an address, in the list of d. One that is
// of no use has no code. Of libgcc's it takes from left the bytes that it reads.
func (j *JITObjects) open(d *jitDescriptor, at uint64, e jitEntry, left *uint64) *JITObject {
	var o *JITObject
	var linked *Image
	var err error
	if d.layout.frame {
		o, err = j.readJITFrames(d.arch, e, left)
	} else {
		o, linked, err = readJITObject(e, j.readMemory)
	}
	if err != nil {
		return &JITObject{at: at, entry: e, sum: maphash.Bytes(jitSeed, nil), size: jitObjectBytes}
	}
	for x := o; x != nil; x = x.more {
		x.at = at
	}
	if linked != nil && j.names && j.linkSize+linked.size <= maxJITLinked {
		j.linked = append(j.linked, linked)
		j.linkSize += linked.size
	}
	return o
}

// jitCode are ranges in order of address, without overlaps.
type jitCode []jitRange

// at returns the object file of the code at an address, nil when there is none.
func (c jitCode) at(addr uint64) *JITObject {
	i := sort.Search(len(c), func(i int) bool { return c[i].start > addr }) - 1
	if i < 0 || addr >= c[i].end {
		return nil
	}
	return c[i].object
}

// withoutOverlaps puts ranges in order of address. Of those that overlap the newest
// is left: the older ones are of code that is no more.
func withoutOverlaps(code []jitRange) []jitRange {
	slices.SortFunc(code, func(a, b jitRange) int {
		if a.start != b.start {
			if a.start < b.start {
				return -1
			}
			return 1
		}
		return a.order - b.order
	})
	out := code[:0]
	for _, r := range code {
		for n := len(out); n > 0 && out[n-1].end > r.start && out[n-1].order > r.order; n-- {
			out = out[:n-1]
		}
		if n := len(out); n == 0 || out[n-1].end <= r.start {
			out = append(out, r)
		}
	}
	return out
}

// jitCache is where the descriptor of a file is, and what libgcc keeps.
type jitCache struct {
	once      sync.Once
	vaddr     uint64
	rootsOnce sync.Once
	roots     frameRoots
}

// jitDescriptor returns the link-time address of the file's descriptor, 0 when it
// has none.
func (im *Image) jitDescriptor() uint64 {
	im.jit.once.Do(func() {
		im.jit.vaddr, _ = im.symbolNamed("__jit_debug_descriptor", elf.STT_OBJECT, ".dynsym", ".symtab")
	})
	return im.jit.vaddr
}
