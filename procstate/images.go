package procstate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// FileRef names the file behind a mapping as the kernel reports it in
// /proc/PID/maps or a perf mmap record.
type FileRef struct {
	PID, TID   int32  // a thread that maps the file; 0 when there is none
	Path       string // as that process sees it
	Start, End uint64 // the mapping's run-time addresses
	Dev, Inode uint64 // of the file; Dev of its superblock, as unix.Mkdev makes it
	Gen        uint64 // the inode's generation
	HasGen     bool   // whether Gen is known
	Mapped     uint64 // CLOCK_MONOTONIC ns at which it was mapped; 0: still mapped
}

// ErrFileGone is wrapped by the error for a file that no path leads to
// any more: deleted, replaced by a namesake, or in the mount namespace of a
// process that has exited.
var ErrFileGone = errors.New("mapped file cannot be reached")

// Images opens ELF files and shares them by identity, so that one file is
// opened once however many processes map it. An open file keeps a descriptor,
// which also keeps its inode number from being reused, and its file system
// from being unmounted. Past a limit the least
// recently used are closed and forgotten; an Image that is still in use opens
// its file again when it is read, if that can still be found.
//
// All methods may be called by any goroutine. The zero value is as NewImages(0)
// makes it.
type Images struct {
	limit int

	mu       sync.Mutex
	files    map[fileKey]*imageEntry
	builds   map[string][]*imageEntry // by build ID
	vdsos    vdsoCache
	unpacked unpackedImages
	roots    imageRoots
	stats    ImagesStats
	idle     uint64 // the clock at the last CloseIdle

	blocks fileBlocks    // of all files
	clock  atomic.Uint64 // counts uses, for the order of eviction
	closed atomic.Bool
}

// ImagesStats counts what an Images has done.
type ImagesStats struct {
	Hits        uint64 // files found open
	Opened      uint64 // files opened
	Shared      uint64 // files opened whose contents were known from another inode
	Failed      uint64 // files that could not be opened or are not ELF
	FailedAgain uint64 // failures answered from memory
	Evicted     uint64 // files closed to stay below the limit, or idle
	OpenNow     int    // descriptors held
}

type fileKey struct{ dev, inode uint64 }

// imageEntry is what is known of one file: an Image, or why there is none.
type imageEntry struct {
	file   *imageFile // holds the inode; nil with err
	image  *Image
	source *imageFile // what image reads: file, or another of equal contents
	gen    uint64
	hasGen bool
	err    error
	of     fileUse   // that met err
	until  time.Time // when err is to be tried again
}

// fileUse is who maps a file, by which name. That it cannot be opened says nothing of others, who may see it
// elsewhere, nor of another file that was given the number of an inode which is gone.
type fileUse struct {
	pid  int32
	path string
}

// retryAfter is how long a failure to open a file is remembered: programs
// that toggle the protection of a mapping report it thousands of times.
const retryAfter = time.Second

// maxCompare is the largest file that is compared with another of the same
// build ID, to share the Image.
const maxCompare = 32 << 20

// NewImages makes an empty cache that holds at most limit descriptors; 0
// stands for half of what the process may open, and at most 8192. It raises
// the soft RLIMIT_NOFILE to the hard one.
func NewImages(limit int) *Images {
	c := new(Images)
	c.init(limit)
	return c
}

func (c *Images) init(limit int) {
	if limit <= 0 {
		limit = 512
		var rl unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &rl) == nil {
			if rl.Cur < rl.Max {
				raised := unix.Rlimit{Cur: rl.Max, Max: rl.Max}
				if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
					rl = raised
				}
			}
			limit = int(min(rl.Cur/2, 8192))
		}
	}
	c.limit = max(limit, 1)
	c.files = make(map[fileKey]*imageEntry)
	c.builds = make(map[string][]*imageEntry)
	c.roots = make(imageRoots)
}

// Stats returns the counters.
func (c *Images) Stats() ImagesStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// IsOpen reports whether a file is held open: no other gets its inode's number.
func (c *Images) IsOpen(dev, inode uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.files[fileKey{dev, inode}]
	return e != nil && e.err == nil
}

// Held returns the Index of the Image of each file that is held open.
func (c *Images) Held() map[uint32]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := make(map[uint32]bool, len(c.files))
	for _, e := range c.files {
		if e.err == nil {
			held[e.image.Index] = true
		}
	}
	return held
}

// Open returns the Image of a mapped file. It is one that is known already
// when the identity fits and the file has not been written since; else the
// file is looked for through the process that maps it and, last, by its path
// in our own mount namespace and in those of files that are open. A file of
// another identity is never used.
// Errors wrap ErrFileGone, or tell that the file is not ELF.
func (c *Images) Open(ref *FileRef) (*Image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		c.init(0)
	}
	key := fileKey{ref.Dev, ref.Inode}
	known := c.files[key]
	if known != nil && known.fits(ref) {
		switch {
		case known.err != nil && known.of == fileUse{ref.PID, ref.Path} && time.Now().Before(known.until):
			c.stats.FailedAgain++
			return nil, known.err
		case known.err == nil && known.file.unchanged(ref.Mapped):
			c.stats.Hits++
			known.file.touch()
			known.source.touch()
			return known.image, nil
		}
	}
	e := c.openFile(ref)
	if e.err != nil {
		c.stats.Failed++
		if known == nil || known.err != nil {
			c.files[key] = e
			c.sweep()
		}
		return nil, e.err
	}
	c.forget(key)
	c.files[key] = e
	return e.image, nil
}

// fits reports whether ref can be the entry's file. The inode number of a
// file that is held open is not given to another.
func (e *imageEntry) fits(ref *FileRef) bool {
	return !ref.HasGen || !e.hasGen || ref.Gen == e.gen
}

// openFile finds, opens and parses a file.
func (c *Images) openFile(ref *FileRef) *imageEntry {
	e := &imageEntry{gen: ref.Gen, hasGen: ref.HasGen, of: fileUse{ref.PID, ref.Path}, until: time.Now().Add(retryAfter)}
	fd, st, err := findFile(ref, c.roots)
	if errors.Is(err, unix.EMFILE) && c.stats.OpenNow > 0 {
		c.limit = max(c.stats.OpenNow/2, 1) // the rest is for others, and for reads of what is evicted
		c.evict(nil)
		fd, st, err = findFile(ref, c.roots)
	}
	if err != nil {
		e.err = err
		return e
	}
	f := newImageFile(c, ref, fd, st)
	im, err := NewImage(f, st.Size, ref.Path)
	if err != nil {
		unix.Close(fd)
		e.err = err
		return e
	}
	if !e.hasGen {
		e.gen, e.hasGen = generation(fd)
	}
	im.ID.Dev, im.ID.Inode, im.ID.Generation = ref.Dev, ref.Inode, e.gen
	if im.Root = st.root; im.Root == "" {
		im.Root = c.roots.of(ref.PID, ref.TID)
	}
	e.file, e.image, e.source = f, im, f
	c.stats.Opened++
	c.stats.OpenNow++
	if id := im.ID.BuildID; id != "" {
		for _, known := range c.builds[id] {
			if known.file.unchanged(0) && sameContents(known.file, f) {
				e.image, e.source = known.image, known.source
				c.stats.Shared++
				break
			}
		}
		if e.image == im {
			c.builds[id] = append(c.builds[id], e)
		}
	}
	if c.stats.OpenNow > c.limit {
		c.evict(e)
	}
	return e
}

// forget drops an entry from the cache. Its file stays readable for those
// that hold the Image, through a new descriptor.
func (c *Images) forget(key fileKey) {
	e := c.files[key]
	if e == nil {
		return
	}
	delete(c.files, key)
	if e.err != nil {
		return
	}
	id := e.image.ID.BuildID
	list := c.builds[id]
	for i := range list {
		if list[i] == e {
			c.builds[id] = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(c.builds[id]) == 0 {
		delete(c.builds, id)
	}
	if e.file.close() {
		c.stats.OpenNow--
	}
}

// evict closes the least recently used quarter of the files, but not keep.
func (c *Images) evict(keep *imageEntry) {
	oldest := make([]uint64, 0, len(c.files))
	for _, e := range c.files {
		if e.err == nil && e != keep {
			oldest = append(oldest, e.file.used.Load())
		}
	}
	bound := nth(oldest, len(oldest)/4)
	for key, e := range c.files {
		if e.err == nil && e != keep && e.file.used.Load() <= bound {
			c.forget(key)
			c.stats.Evicted++
		}
	}
}

// CloseIdle closes the files that have not been used since the call before,
// but for those of Images that keep wants. So a file that was deleted gives its
// room back when all processes that had it mapped are gone.
func (c *Images) CloseIdle(keep func(*Image) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.files {
		if e.err == nil && e.file.used.Load() <= c.idle && !keep(e.image) {
			c.forget(key)
			c.stats.Evicted++
		}
	}
	c.idle = c.clock.Load()
	wanted := map[string]bool{}
	for _, e := range c.files {
		if e.err == nil {
			wanted[e.image.Root] = true
		}
	}
	c.roots.keepOnly(wanted)
}

// ForgetBlocks lets go of the parts of files that are kept because they may be
// read again soon: of 4 MB at most.
func (c *Images) ForgetBlocks() { c.blocks.forget() }

// sweep bounds the number of remembered failures.
func (c *Images) sweep() {
	if len(c.files) < 2*c.limit+1024 {
		return
	}
	now := time.Now()
	for key, e := range c.files {
		if e.err != nil && now.After(e.until) {
			delete(c.files, key)
		}
	}
}

// Close closes all files. Images that are still held cannot be read any more.
func (c *Images) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed.Store(true)
	c.blocks.forget()
	for key := range c.files {
		c.forget(key)
	}
	c.roots.keepOnly(nil)
	return nil
}

// sameContents compares two files of equal build ID whole. Equal build IDs
// alone do not make equal files: tools that move segments keep them.
func sameContents(a, b *imageFile) bool {
	if a.size != b.size || a.size > maxCompare {
		return false
	}
	var ba, bb [64 << 10]byte
	for off := int64(0); off < a.size; off += int64(len(ba)) {
		n := min(int64(len(ba)), a.size-off)
		if na, _ := a.read(ba[:n], off); int64(na) < n {
			return false
		}
		if nb, _ := b.read(bb[:n], off); int64(nb) < n {
			return false
		}
		if !bytes.Equal(ba[:n], bb[:n]) {
			return false
		}
	}
	return true
}

// HasFile reports whether the path of a mapping stands for a file, and not
// for anonymous memory or an area of the kernel's.
func HasFile(path string) bool {
	for _, p := range []string{"", "//anon", "/dev/zero", "/anon_hugepage", "/SYSV"} {
		if path == p || (p != "" && strings.TrimSuffix(path, " (deleted)") == p) {
			return false
		}
	}
	return strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "/SYSV")
}

// MaxLoaded bounds the mappings of an address space that is read: programs and their
// libraries lie at its ends, and what a program maps itself between them.
const MaxLoaded = 8192

// LoadAddressSpace reads the executable mappings of a process from /proc and
// opens their files. It returns a possibly empty AddressSpace and an error
// when the process has exited or may not be read. Mappings whose file cannot
// be opened carry ImageErr. Of more than MaxLoaded mappings it holds those of
// the lowest and those of the highest addresses.
func (c *Images) LoadAddressSpace(pid int32) (*AddressSpace, error) {
	dir := filepath.Join("/proc", fmt.Sprint(pid))
	entries, below, err := readMaps(filepath.Join(dir, "maps"), true)
	if err != nil {
		return new(AddressSpace), err
	}
	tid := pid
	if len(entries) == 0 {
		// The initial thread may be gone before the others.
		tasks, _ := os.ReadDir(filepath.Join(dir, "task"))
		for _, task := range tasks {
			entries, below, _ = readMaps(filepath.Join(dir, "task", task.Name(), "maps"), true)
			if len(entries) > 0 {
				fmt.Sscan(task.Name(), &tid)
				break
			}
		}
	}
	if len(entries) > MaxLoaded {
		n := len(entries) - MaxLoaded/2
		entries, below = slices.Delete(entries, MaxLoaded/2, n), slices.Delete(below, MaxLoaded/2, n)
	}
	s := new(AddressSpace)
	tries := 0
	for i := range entries {
		e := &entries[i]
		ref := FileRef{PID: pid, TID: tid, Path: e.Path, Start: e.Start, End: e.End,
			Dev: unix.Mkdev(e.Major, e.Minor), Inode: e.Inode}
		s.Insert(c.mappingOfMaps(s, &ref, e.Offset, below[i], &tries))
	}
	return s, nil
}

// NewMapping makes the Mapping that ref describes, with the Image behind it:
// of a file, of the vdso, or of the file whose text was copied to anonymous
// memory in place (for huge pages), which s tells. It is not yet inserted.
func (c *Images) NewMapping(s *AddressSpace, ref *FileRef, off uint64) *Mapping {
	switch {
	case ref.Path == "[vdso]":
		im, err := c.VDSO(ref.PID, ref.Start, ref.End)
		return NewFileMapping(ref, 0, im, err)
	case HasFile(ref.Path):
		im, err := c.Open(ref)
		return NewFileMapping(ref, off, im, err)
	}
	m := &Mapping{Start: ref.Start, End: ref.End, Path: ref.Path}
	c.findCopiedText(s, ref.PID, m)
	return m
}

// mappingOfMaps is NewMapping of an entry of a maps file, below which anonymous memory begins: it is read when the program
// runs, which may have been unpacked. tries counts where that was looked for.
func (c *Images) mappingOfMaps(s *AddressSpace, ref *FileRef, off, below uint64, tries *int) *Mapping {
	m := c.NewMapping(s, ref, off)
	if m.Image == nil && ref.Path == "" && *tries < maxUnpackedTries {
		*tries++
		c.findUnpacked(ref, below, m)
	}
	return m
}

// NewFileMapping makes the Mapping that ref describes, given the Image behind
// it or the reason why there is none.
func NewFileMapping(ref *FileRef, off uint64, im *Image, err error) *Mapping {
	m := &Mapping{Start: ref.Start, End: ref.End, Offset: off, Path: ref.Path, Image: im, ImageErr: err}
	m.clip()
	return m
}

// nth returns the value of rank n of a list, which it reorders.
func nth(list []uint64, n int) uint64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[min(n, len(list)-1)]
}
