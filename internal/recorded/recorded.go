// Package recorded keeps stacks of real programs in files of modest size, for
// tests and benchmarks that shall be the same on every machine: registers, the
// bytes of the stacks, the mappings, and of the files mapped those pages that
// a walk reads.
//
// Make one with internal/recorded/record.
package recorded

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/swbpf/swbpf/procstate"
)

const (
	pageSize = 4096
	margin   = 256 // bytes on both sides of what is read that are kept as well
)

// File is the contents of a file of recorded stacks. All stacks are of one
// process.
type File struct {
	Arch     string // procstate.Arch.Name
	Images   []Image
	Mappings []Mapping
	Stacks   []Stack
}

// Image is a mapped file, as much as is known of it.
type Image struct {
	Path  string
	Size  int64
	Pages map[int64][]byte // by offset; the last one may be shorter

	mu sync.Mutex
}

// Mapping is an executable mapping. Image is an index, -1 for none.
type Mapping struct {
	Start, End, Offset uint64
	Path               string
	Image              int
}

// Stack is one thread at one moment. Known has a bit for each register that
// is.
type Stack struct {
	Regs          [procstate.MaxRegs]uint64
	Known         uint64
	ThreadPointer uint64
	Regions       []procstate.Region
}

// Load reads a file.
func Load(path string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	z, err := zstd.NewReader(in)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	f := new(File)
	if err := gob.NewDecoder(z).Decode(f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Save writes a file.
func (f *File) Save(path string) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	z, err := zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(8<<20))
	if err != nil {
		return err
	}
	if err := gob.NewEncoder(z).Encode(f); err != nil {
		return err
	}
	return errors.Join(z.Close(), out.Close())
}

// Space makes an address space of the mappings, with new Images.
func (f *File) Space() (*procstate.AddressSpace, error) {
	images := make([]*procstate.Image, len(f.Images))
	for i := range f.Images {
		im, err := procstate.NewImage(&f.Images[i], f.Images[i].Size, f.Images[i].Path)
		if err != nil {
			return nil, err
		}
		images[i] = im
	}
	space := new(procstate.AddressSpace)
	for _, m := range f.Mappings {
		pm := &procstate.Mapping{Start: m.Start, End: m.End, Offset: m.Offset, Path: m.Path}
		if m.Image >= 0 {
			pm.Image = images[m.Image]
		}
		space.Insert(pm)
	}
	return space, nil
}

// Snapshot makes a Snapshot, which holds no stack yet, over a new Space.
func (f *File) Snapshot() (*procstate.Snapshot, error) {
	space, err := f.Space()
	if err != nil {
		return nil, err
	}
	for _, a := range []*procstate.Arch{procstate.AMD64, procstate.ARM64, procstate.I386} {
		if a.Name == f.Arch {
			return procstate.NewSnapshot(a, 1, "", space), nil
		}
	}
	return nil, fmt.Errorf("architecture %q is not known", f.Arch)
}

// Registers returns the registers of a stack.
func (s *Stack) Registers() (r procstate.Regs) {
	r.ThreadPointer = s.ThreadPointer
	for i, v := range s.Regs {
		if s.Known>>i&1 != 0 {
			r.Set(procstate.Reg(i), v)
		}
	}
	return r
}

// ErrNotRecorded is returned for bytes of a file that no walk had read when the
// stacks were recorded: they must be recorded again.
var ErrNotRecorded = errors.New("these bytes of the file were not recorded")

// ReadAt implements io.ReaderAt.
func (im *Image) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		at := off + int64(n)
		if at >= im.Size {
			return n, io.EOF
		}
		page, ok := im.Pages[at/pageSize*pageSize]
		if i := int(at % pageSize); ok && i < len(page) {
			n += copy(b[n:], page[i:])
			continue
		}
		return n, fmt.Errorf("%s at %#x: %w", im.Path, at, ErrNotRecorded)
	}
	return n, nil
}

// Recorder makes a File of a process: it notes which pages are read.
type Recorder struct {
	File  *File
	Space *procstate.AddressSpace
}

// recordingReader reads a file for an Image, and keeps what it has read.
type recordingReader struct {
	of   *procstate.Image
	into *Image
}

func (r *recordingReader) ReadAt(b []byte, off int64) (int, error) {
	r.into.mu.Lock()
	defer r.into.mu.Unlock()
	for at := max(0, off-margin) / pageSize * pageSize; at < off+int64(len(b))+margin && at < r.into.Size; at += pageSize {
		if _, ok := r.into.Pages[at]; ok {
			continue
		}
		page := make([]byte, min(pageSize, r.into.Size-at))
		if _, err := r.of.ReadAt(page, at); err != nil {
			return 0, err
		}
		r.into.Pages[at] = page
	}
	return r.into.ReadAt(b, off)
}

// NewRecorder makes a Recorder for a process that has the given mappings.
func NewRecorder(arch *procstate.Arch, mappings []*procstate.Mapping) (*Recorder, error) {
	rec := &Recorder{File: &File{Arch: arch.Name}, Space: new(procstate.AddressSpace)}
	index := map[*procstate.Image]int{}
	var paths []*procstate.Image
	for _, m := range mappings {
		if _, ok := index[m.Image]; m.Image != nil && !ok {
			index[m.Image] = len(paths)
			paths = append(paths, m.Image)
		}
	}
	rec.File.Images = make([]Image, len(paths))
	images := make([]*procstate.Image, len(paths))
	for i, im := range paths {
		into := &rec.File.Images[i]
		into.Path, into.Size, into.Pages = im.Path, im.Size(), map[int64][]byte{}
		var err error
		if images[i], err = procstate.NewImage(&recordingReader{im, into}, im.Size(), im.Path); err != nil {
			return nil, err
		}
	}
	for _, m := range mappings {
		rm := Mapping{Start: m.Start, End: m.End, Offset: m.Offset, Path: m.Path, Image: -1}
		pm := &procstate.Mapping{Start: m.Start, End: m.End, Offset: m.Offset, Path: m.Path}
		if m.Image != nil {
			rm.Image = index[m.Image]
			pm.Image = images[rm.Image]
		}
		rec.File.Mappings = append(rec.File.Mappings, rm)
		rec.Space.Insert(pm)
	}
	return rec, nil
}

// Add adds a stack.
func (r *Recorder) Add(regs *procstate.Regs, regions []procstate.Region) {
	s := Stack{Known: regs.Known(), ThreadPointer: regs.ThreadPointer}
	for i := range s.Regs {
		s.Regs[i] = regs.Raw(procstate.Reg(i))
	}
	s.Regions = regions
	r.File.Stacks = append(r.File.Stacks, s)
}
