package procstate

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"

	"golang.org/x/sys/unix"
)

// Core is the ProcessState of an ELF core file, as the kernel and gcore write
// them: threads, registers, and the memory that was dumped; code comes from
// the files that were mapped, where these are still what they were. It may be
// used by one goroutine at a time.
type Core struct {
	Signal int    // that ended the process; 0 for a core of a live one
	Lacks  uint64 // bytes at its end, of which its headers tell: it was cut short
	Name   string // the process's name (comm), at most 15 bytes

	// CommandLine are the arguments of the process, with spaces between them, at most 79 bytes.
	CommandLine string

	// Damaged are the program headers, counted from 0, whose numbers no segment can
	// have. Those segments are left out.
	Damaged []int

	path    string
	file    *os.File
	size    int64
	arch    *Arch
	pid     int
	exe     string
	loads   []coreLoad // by address
	threads []coreThread
	byTID   map[ThreadID]*coreThread
	files   []coreFile
	starts  map[string][]*coreFile // by path, those that map the start of a file
	auxv    map[uint64]uint64
	notes   uint64 // bytes of notes that were read
	space   AddressSpace
	mem     pageCache
	images  []io.Closer
	opened  int // files, those included that are of no use
}

// coreLoad is a PT_LOAD segment: memory at run-time addresses [start, end),
// of which the first dumped bytes are in the file at off.
type coreLoad struct {
	start, end uint64
	off        uint64
	dumped     uint64
	exec, read bool
}

// isUprobes reports whether a segment is the page of uprobes, which the notes
// do not name: one that can be executed and not read. The old page of system
// calls is like that, but at the top of all addresses.
func (l *coreLoad) isUprobes() bool {
	return l.exec && !l.read && l.end-l.start == pageSize && l.start>>63 == 0
}

type coreThread struct {
	tid    ThreadID
	regs   Regs
	floats []byte // block of the registers for floating point
	gs     uint16 // selector of the thread pointer's segment, of 386
}

// coreFile is an entry of the NT_FILE note.
type coreFile struct {
	start, end uint64 // run-time addresses
	off        uint64 // in the file
	path       string
}

// ErrNotCore is returned for a file that is not an ELF core.
var ErrNotCore = errors.New("not an ELF core file")

// ErrFileChanged is the ImageErr of a mapping whose file is another now than
// when the core was written.
var ErrFileChanged = errors.New("the file has another build ID than the one that was mapped")

// Limits on what a core file may make us allocate.
const (
	maxCoreSegments = 1 << 20
	maxCoreBytes    = 1 << 48   // of the file: more than the addresses of nearly all processes
	maxCoreNotes    = 256 << 20 // bytes of all notes
	maxCoreThreads  = 1 << 20
	maxCoreFiles    = 1 << 20 // mappings of files
	maxCoreImages   = 1 << 12 // files that are opened
	maxCoreAuxv     = 1 << 8
)

// OpenCore opens a core file, which may be compressed by zstd or gzip: it is unpacked to a
// file without a name in $TMPDIR, or /var/tmp. exe names the program that it is of, "" for the
// one it says it is of; a program of another build ID is refused. Close frees
// what it holds.
func OpenCore(path, exe string) (*Core, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	if f, err = unpackCore(f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	c := &Core{path: path, file: f, auxv: make(map[uint64]uint64)}
	if err := c.read(exe); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// openRegular opens a regular file, and does not wait for any other.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

func (c *Core) read(exe string) error {
	st, err := c.file.Stat()
	if err != nil {
		return err
	}
	c.size = st.Size()
	if err := c.readHeaders(); err != nil {
		return err
	}
	if len(c.threads) == 0 && c.Lacks > 0 {
		return fmt.Errorf("%w: it is cut short, and lacks what it tells of threads", ErrNotCore)
	}
	if len(c.threads) == 0 && len(c.Damaged) > 0 {
		return fmt.Errorf("%w: it has no threads, and damaged program headers", ErrNotCore)
	}
	if len(c.threads) == 0 {
		return fmt.Errorf("%w: it has no threads", ErrNotCore)
	}
	c.index()
	c.mem = pageCache{source: c, width: c.arch.AddressWidth, active: true}
	if c.exe = c.programPath(); exe != "" {
		if err := c.checkProgram(exe); err != nil {
			return err
		}
	}
	c.mapCode(exe)
	return nil
}

// index makes what threads and files are found by. Of threads with one number it is the
// first.
func (c *Core) index() {
	c.byTID = make(map[ThreadID]*coreThread, len(c.threads))
	for i := range c.threads {
		if t := &c.threads[i]; c.byTID[t.tid] == nil {
			c.byTID[t.tid] = t
		}
	}
	c.starts = make(map[string][]*coreFile)
	for i := range c.files {
		if f := &c.files[i]; f.off == 0 {
			c.starts[f.path] = append(c.starts[f.path], f)
		}
	}
}

// Close closes the core and the files that were opened for it. Calling it again
// does nothing.
func (c *Core) Close() error {
	for _, im := range c.images {
		im.Close()
	}
	c.images = nil
	if err := c.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// programPath finds the program by its entry point, and by name when the core
// does not tell that.
func (c *Core) programPath() string {
	const atEntry = 9 // AT_ENTRY
	if f := c.fileAt(c.auxv[atEntry]); f != nil {
		return f.path
	}
	return ""
}

// fileAt returns the mapped file at a run-time address.
func (c *Core) fileAt(addr uint64) *coreFile {
	i := sort.Search(len(c.files), func(i int) bool { return c.files[i].end > addr })
	if i < len(c.files) && c.files[i].start <= addr {
		return &c.files[i]
	}
	return nil
}

// mapCode builds the address space of the executable segments.
func (c *Core) mapCode(exe string) {
	code := c.mappedCode(exe)
	slices.SortStableFunc(code, func(a, b *Mapping) int { return cmp.Compare(a.Start, b.Start) })
	end := uint64(0)
	for _, m := range code {
		if m.Start >= end { // a kernel's do not overlap
			c.space.Insert(m)
			end = m.End
		}
	}
}

// mappedCode returns the mappings of the executable segments.
func (c *Core) mappedCode(exe string) (code []*Mapping) {
	files := mappedFiles{core: c, exe: exe, known: make(map[string]mappedFile)}
	for _, l := range c.loads {
		if !l.exec {
			continue
		}
		m := &Mapping{Start: l.start, End: l.end}
		if f := c.fileAt(l.start); f != nil {
			m.Path, m.Offset = f.path, f.off+(l.start-f.start)
			m.Image, m.ImageErr = files.open(f.path)
		} else if c.auxv[atSysinfoEhdr] == l.start {
			m.Path = "[vdso]"
			m.Image, m.ImageErr = c.vdso(l)
		} else if l.isUprobes() {
			m.Path = UprobesMapping
		}
		code = append(code, m)
	}
	// gcore leaves out the segments of which it dumps nothing, code as a
	// rule. The files say where their code is.
	for i := range c.files {
		f := &c.files[i]
		if c.loadAt(f.start) != nil {
			continue
		}
		im, err := files.open(f.path)
		var format *FormatError
		if err != nil && !errors.As(err, &format) { // it may have been code
			code = append(code, &Mapping{Start: f.start, End: f.end, Offset: f.off, Path: f.path, ImageErr: err})
		}
		if err != nil {
			continue
		}
		for _, s := range im.Segments() {
			if s.Flags&elf.PF_X != 0 && s.Off < f.off+(f.end-f.start) && f.off < s.Off+s.Filesz {
				code = append(code, &Mapping{Start: f.start, End: f.end, Offset: f.off, Path: f.path, Image: im})
				break
			}
		}
	}
	return code
}

// mappedFiles opens each mapped file once.
type mappedFiles struct {
	core  *Core
	exe   string // stands in for the program; "" for none
	known map[string]mappedFile
}

type mappedFile struct {
	image *Image
	err   error
}

func (fs *mappedFiles) open(path string) (*Image, error) {
	f, ok := fs.known[path]
	if !ok {
		name := path
		if fs.exe != "" && path == fs.core.exe {
			name = fs.exe
		}
		f.image, f.err = fs.core.openMapped(name, path)
		fs.known[path] = f
	}
	return f.image, f.err
}

const atSysinfoEhdr = 33 // AT_SYSINFO_EHDR: where the vdso is

// vdso makes an Image of the vdso, which cores contain whole.
func (c *Core) vdso(l coreLoad) (*Image, error) {
	b := make([]byte, min(l.dumped, maxVDSO))
	if n := c.readAt(l.start, b); n < len(b) {
		return nil, ErrUnreadable
	}
	return NewImageBytes(b, "[vdso]")
}

// openMapped opens a file that was mapped, and checks that it is still the
// one, as far as the core tells: its first page, with the build ID, is
// dumped by default.
func (c *Core) openMapped(name, mapped string) (*Image, error) {
	if c.opened >= maxCoreImages {
		return nil, fmt.Errorf("%s: more than %d files: %w", name, maxCoreImages, ErrNotSupported)
	}
	// The name is the core's word: it may be that of a pipe.
	f, st, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	c.opened++
	im, err := NewImage(f, st.Size(), name)
	if err == nil && im.Arch() != c.arch {
		err = ErrFileChanged
	}
	if err == nil {
		if id := c.mappedBuildID(mapped); id != "" && id != im.BuildID() {
			err = ErrFileChanged
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.images = append(c.images, f)
	return im, nil
}

// checkProgram refuses a program file that cannot be the core's.
func (c *Core) checkProgram(exe string) error {
	im, err := c.openMapped(exe, c.exe)
	if err != nil {
		return err
	}
	if t := im.Type(); t != elf.ET_EXEC && t != elf.ET_DYN {
		return fmt.Errorf("%s is not a program", exe)
	}
	return nil
}

// mappedBuildID returns the build ID of a file as it was mapped, "" when the
// core does not hold it.
func (c *Core) mappedBuildID(path string) string {
	for _, f := range c.starts[path] {
		// The headers and the note are in the first page of nearly all files.
		page := make([]byte, min(f.end-f.start, cachePage))
		page = page[:c.readAt(f.start, page)]
		if im, err := NewImageBytes(page, path); err == nil {
			return im.BuildID()
		}
	}
	return ""
}

// readAt implements memorySource: dumped memory, then that of mapped code.
func (c *Core) readAt(addr uint64, buf []byte) int {
	done := 0
	for done < len(buf) {
		n := c.readDumped(addr+uint64(done), buf[done:])
		if n == 0 {
			break
		}
		done += n
	}
	return done
}

// loadAt returns the segment that holds addr.
func (c *Core) loadAt(addr uint64) *coreLoad {
	i := sort.Search(len(c.loads), func(i int) bool { return c.loads[i].end > addr })
	if i == len(c.loads) || c.loads[i].start > addr {
		return nil
	}
	return &c.loads[i]
}

// readDumped reads bytes of one segment.
func (c *Core) readDumped(addr uint64, buf []byte) int {
	l := c.loadAt(addr)
	if l == nil || addr-l.start >= l.dumped {
		return 0
	}
	at := addr - l.start
	n, _ := c.file.ReadAt(buf[:min(uint64(len(buf)), l.dumped-at)], int64(l.off+at))
	return n
}

// Arch implements ProcessState.
func (c *Core) Arch() *Arch { return c.arch }

// PID implements ProcessState: the ID that the process had.
func (c *Core) PID() int { return c.pid }

// ExecutablePath implements ProcessState.
func (c *Core) ExecutablePath() string { return c.exe }

// Threads implements ProcessState. The first is the one that the core was
// written for: the one that got the signal.
func (c *Core) Threads() ([]ThreadID, error) {
	tids := make([]ThreadID, 0, len(c.threads))
	for i := range c.threads {
		tids = append(tids, c.threads[i].tid)
	}
	return tids, nil
}

// Registers implements ProcessState.
func (c *Core) Registers(tid ThreadID, regs *Regs) error {
	t := c.find(tid)
	if t == nil {
		return fmt.Errorf("%s: thread %d: %w", c.path, tid, ErrNoThread)
	}
	*regs = t.regs
	return nil
}

// find returns a thread, or nil.
func (c *Core) find(tid ThreadID) *coreThread {
	if tid == DefaultThread && len(c.threads) > 0 {
		return &c.threads[0]
	}
	return c.byTID[tid]
}

// Libraries implements ProcessState.
func (c *Core) Libraries() LibraryState { return &c.space }

// BeforeWalk implements ProcessState.
func (c *Core) BeforeWalk(ThreadID) error { return nil }

// AfterWalk implements ProcessState.
func (c *Core) AfterWalk(ThreadID) error { return nil }

// ReadMemory implements Memory.
func (c *Core) ReadMemory(addr uint64, buf []byte) (int, error) {
	n, err := c.mem.ReadMemory(addr, buf)
	if err == nil {
		return n, nil
	}
	// Code and read-only data of files are not dumped.
	if readFiles(&c.space, addr+uint64(n), buf[n:]) == nil {
		return len(buf), nil
	}
	return n, fmt.Errorf("%s: %w", c.path, err)
}

// ReadWord implements Memory.
func (c *Core) ReadWord(addr uint64) (uint64, bool) {
	if v, ok := c.mem.ReadWord(addr); ok {
		return v, true
	}
	var b [8]byte
	if c.arch == nil || readFiles(&c.space, addr, b[:c.arch.AddressWidth]) != nil {
		return 0, false
	}
	var v uint64
	for _, x := range slices.Backward(b[:]) {
		v = v<<8 | uint64(x)
	}
	return v, true
}
