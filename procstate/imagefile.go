package procstate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errFileChanged is returned by reads of a file that was written after its
// headers were read: its parts would not fit together.
var errFileChanged = errors.New("file was changed while in use")

// imageFile reads an open file for an Image. It never maps the file, so that
// one cut short under us costs an error and no signal.
type imageFile struct {
	cache *Images
	ref   FileRef
	size  int64
	mtime unix.StatxTimestamp
	used  atomic.Uint64 // value of Images.clock at the last use

	checked atomic.Uint64 // CLOCK_MONOTONIC ns before the file was last found to be what it was

	mu sync.RWMutex
	fd int // -1 when closed
}

func newImageFile(c *Images, ref *FileRef, fd int, st *fileStat) *imageFile {
	f := &imageFile{cache: c, ref: *ref, size: st.Size, mtime: st.Mtime, fd: fd}
	f.touch()
	return f
}

func (f *imageFile) touch() { f.used.Store(f.cache.clock.Add(1)) }

// ReadAt implements io.ReaderAt. It fails when the file is not what it was, but
// for what is still at hand.
func (f *imageFile) ReadAt(b []byte, off int64) (int, error) {
	f.touch()
	if len(b) <= blockBytes && off >= 0 {
		return f.cache.blocks.read(f, b, off)
	}
	return f.read(b, off)
}

func (f *imageFile) read(b []byte, off int64) (int, error) {
	f.mu.RLock()
	if f.fd >= 0 {
		n, err := f.readOpen(f.fd, b, off)
		f.mu.RUnlock()
		return n, err
	}
	f.mu.RUnlock()
	if f.cache.closed.Load() {
		return 0, fmt.Errorf("%s: %w", f.ref.Path, os.ErrClosed)
	}
	// Evicted: the file is opened for this one read.
	fd, st, err := findFile(&f.ref, nil)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if st.Size != f.size || st.Mtime != f.mtime {
		return 0, fmt.Errorf("%s: %w", f.ref.Path, errFileChanged)
	}
	return f.readOpen(fd, b, off)
}

func (f *imageFile) readOpen(fd int, b []byte, off int64) (n int, err error) {
	for n < len(b) {
		m, err := unix.Pread(fd, b[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, fmt.Errorf("%s: %w", f.ref.Path, err)
		}
		if m == 0 {
			break
		}
		n += m
	}
	if !f.sameLately(fd) {
		return 0, fmt.Errorf("%s: %w", f.ref.Path, errFileChanged)
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// sameFor is how long a file is taken for what it was after it was found to be so,
// in ns: those who read do so many times in a row.
const sameFor = 1e6

// sameLately is sameAs of now, or a moment ago.
func (f *imageFile) sameLately(fd int) bool {
	return Monotonic()-f.checked.Load() < sameFor || f.sameAs(fd)
}

// sameAs reports whether the file of fd has the size and time of change that
// it had when it was opened first.
func (f *imageFile) sameAs(fd int) bool {
	var st unix.Stat_t
	now := Monotonic()
	if unix.Fstat(fd, &st) != nil || st.Size != f.size ||
		st.Mtim.Sec != f.mtime.Sec || uint32(st.Mtim.Nsec) != f.mtime.Nsec {
		return false
	}
	f.checked.Store(now)
	return true
}

// unchanged reports whether the file is still what it was when opened, or was so
// after a moment of CLOCK_MONOTONIC that is not 0: its processes come in groups.
func (f *imageFile) unchanged(since uint64) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.fd < 0 {
		return false
	}
	if since != 0 && since < f.checked.Load() {
		return true
	}
	return f.sameAs(f.fd)
}

// close gives the descriptor back; reads open the file again. It reports
// whether there was one.
func (f *imageFile) close() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd < 0 {
		return false
	}
	unix.Close(f.fd)
	f.fd = -1
	return true
}

// fileStat is what is kept of statx(2).
type fileStat struct {
	Size       int64
	Dev, Inode uint64
	Mtime      unix.StatxTimestamp
	Btime      unix.StatxTimestamp // zero when the file system has none
	root       string              // that led to it, where neither the process nor ours did
}

// findFile opens the file that ref names, by any path that leads to it: through
// the process, from our root, and from others, which the process may have had.
func findFile(ref *FileRef, roots imageRoots) (fd int, st *fileStat, err error) {
	var tried error
	try := func(path string, own bool) bool {
		fd, st, err = openIdentified(path, ref, own)
		if err != nil && (tried == nil || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
			tried = err
		}
		return err == nil
	}
	if ref.PID > 0 {
		proc := fmt.Sprintf("/proc/%d", ref.PID)
		mapped := fmt.Sprintf("/map_files/%x-%x", ref.Start, ref.End)
		thread, ofThread := proc, false
		if ref.TID > 0 && ref.TID != ref.PID {
			thread, ofThread = fmt.Sprintf("%s/task/%d", proc, ref.TID), true
		}
		// A process whose first thread has ended says nothing, and a thread has
		// map_files by its own number alone.
		if try(thread+"/root"+ref.Path, false) || try(proc+mapped, false) ||
			ofThread && try(fmt.Sprintf("/proc/%d%s", ref.TID, mapped), false) || try(thread+"/exe", false) {
			return fd, st, nil
		}
	}
	if try(ref.Path, true) {
		return fd, st, nil
	}
	for _, root := range roots {
		if try(rootPath(root)+ref.Path, true) {
			st.root = rootPath(root)
			return fd, st, nil
		}
	}
	return -1, nil, fmt.Errorf("%s: %w: %w", ref.Path, ErrFileGone, tried)
}

// OpenMapped opens the file of a mapping, by whatever path leads to it: one of another identity is never opened. Errors
// wrap ErrFileGone. An Image may be of another file with the same contents.
func OpenMapped(ref *FileRef) (*os.File, error) {
	fd, _, err := findFile(ref, nil)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), ref.Path), nil
}

var errOtherFile = errors.New("another file has that path")

// openIdentified opens path when it is the file that ref names. Files of
// other kinds than regular ones are not opened at all: opening a device or a
// FIFO can have effects. With own, the process may be gone and the file may
// have been written since.
func openIdentified(path string, ref *FileRef, own bool) (int, *fileStat, error) {
	handle, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(handle)
	var sx unix.Statx_t
	err = unix.Statx(handle, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &sx)
	if err != nil {
		return -1, nil, fmt.Errorf("%s: %w", path, err)
	}
	if sx.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, nil, fmt.Errorf("%s: %w", path, errOtherFile)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", handle), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, nil, fmt.Errorf("%s: %w", path, err)
	}
	st := &fileStat{Size: int64(sx.Size), Mtime: sx.Mtime, Dev: unix.Mkdev(sx.Dev_major, sx.Dev_minor), Inode: sx.Ino}
	if sx.Mask&unix.STATX_BTIME != 0 {
		st.Btime = sx.Btime
	}
	if !identical(fd, st, ref) || (own && st.changedAfter(ref.Mapped)) {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("%s: %w", path, errOtherFile)
	}
	return fd, st, nil
}

// identical reports whether an open file is the one that ref names.
func identical(fd int, st *fileStat, ref *FileRef) bool {
	if st.Dev != ref.Dev || st.Inode != ref.Inode {
		// Overlayfs and btrfs tell stat another device, or inode, than they
		// show in maps.
		if dev, inode, ok := mappedIdentity(fd); !ok || dev != ref.Dev || inode != ref.Inode {
			return false
		}
	}
	if !ref.HasGen {
		return true
	}
	if gen, ok := generation(fd); ok {
		// The ioctl has 32 bits on all file systems that know it.
		return uint32(gen) == uint32(ref.Gen)
	}
	return !after(st.Btime, ref.Mapped)
}

// changedAfter reports whether the contents changed after a moment of
// CLOCK_MONOTONIC.
func (st *fileStat) changedAfter(mono uint64) bool { return after(st.Mtime, mono) }

// after compares a file's time with a moment of CLOCK_MONOTONIC, 0 standing
// for an unknown one. File times lag behind by a tick of the kernel.
func after(t unix.StatxTimestamp, mono uint64) bool {
	if mono == 0 || t.Sec == 0 {
		return false
	}
	then := time.Now().Add(-time.Duration(Monotonic() - mono))
	return time.Unix(t.Sec, int64(t.Nsec)).After(then)
}

// fsIOCGetVersion is FS_IOC_GETVERSION of <linux/fs.h>: _IOR('v', 1, long).
const fsIOCGetVersion = 2<<30 | unsafe.Sizeof(uintptr(0))<<16 | 'v'<<8 | 1

// generation returns the generation number of an open file's inode, where
// its file system tells.
func generation(fd int) (uint64, bool) {
	var v [2]uint32 // file systems store an int, the number is of a long
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIOCGetVersion, uintptr(unsafe.Pointer(&v)))
	return uint64(v[0]), errno == 0
}

// mappedIdentity returns device and inode of an open file as the kernel shows
// them of mappings, by mapping it. The memory is never touched.
func mappedIdentity(fd int) (dev, inode uint64, ok bool) {
	b, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return 0, 0, false
	}
	defer unix.Munmap(b)
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	entries, err := ReadMaps("/proc/thread-self/maps", false)
	if err != nil {
		return 0, 0, false
	}
	for i := range entries {
		if e := &entries[i]; addr >= e.Start && addr < e.End {
			return unix.Mkdev(e.Major, e.Minor), e.Inode, true
		}
	}
	return 0, 0, false
}
