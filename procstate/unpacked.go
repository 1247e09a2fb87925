package procstate

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// Packers of programs, as UPX, have the kernel run a stub that puts the program itself into anonymous memory, at
// its own place: its headers are there as its linker made them, and all of its file that is loaded.

const (
	// unpackedHeader is how much of a program is taken for its headers, in bytes, and tells it from others.
	unpackedHeader = 4 << 10
	// maxUnpackedSize bounds what is read of all such programs, in bytes.
	maxUnpackedSize = 256 << 20
	// maxUnpackedTries is how many anonymous mappings of code are looked at, the lowest ones: programs that make code
	// have thousands.
	maxUnpackedTries = 4
	// unpackedSuffix tells the path of a program from that of the packed file.
	unpackedSuffix = " (unpacked)"
)

// unpackedImages holds the Images of unpacked programs by their first bytes: the processes of a program share one.
type unpackedImages struct {
	byHeader map[string]*Image
	size     uint64 // of all, in bytes
}

// findUnpacked recognises a program that was unpacked into anonymous memory by m, its code, as the maps file of a process
// has it. Its headers are where that begins, or where the anonymous memory below does. A program that is still being
// unpacked is none.
func (c *Images) findUnpacked(ref *FileRef, below uint64, m *Mapping) {
	at := m.Start
	header, err := readProcMem(ref.PID, at, unpackedHeader)
	if (err != nil || string(header[:len(elf.ELFMAG)]) != elf.ELFMAG) && below != 0 {
		at = below
		header, err = readProcMem(ref.PID, at, unpackedHeader)
	}
	if err != nil || string(header[:len(elf.ELFMAG)]) != elf.ELFMAG {
		return
	}
	key := string(header)
	c.mu.Lock()
	im, size := c.unpacked.byHeader[key], c.unpacked.size
	c.mu.Unlock()
	var off, bias uint64
	ok := false
	if im != nil {
		if off, bias, ok = im.unpackedAt(at, m.Start); ok {
			im.r.(*unpackedProgram).isOf(ref.PID, bias)
			ok = sameText(im, ref.PID, m, bias)
		}
	}
	if !ok { // or it is another program with the same first bytes
		if im = newUnpacked(ref, at, header); im == nil || size+uint64(im.size) > maxUnpackedSize {
			return
		}
		if off, bias, ok = im.unpackedAt(at, m.Start); !ok {
			return
		}
		im.r.(*unpackedProgram).isOf(ref.PID, bias)
		c.mu.Lock()
		if c.unpacked.byHeader == nil {
			c.unpacked.byHeader = map[string]*Image{}
		}
		c.unpacked.byHeader[key] = im
		c.unpacked.size += uint64(im.size)
		c.mu.Unlock()
	}
	named := *ref
	named.Path = im.Path
	*m = *NewFileMapping(&named, off, im, nil)
}

// unpackedAt returns the offset in the file of the code that begins at an address, and the bias, where the first page of
// the file is at first; ok is false where they do not fit together.
func (im *Image) unpackedAt(first, code uint64) (off, bias uint64, ok bool) {
	bias, ok = im.biasOf(first)
	if !ok {
		return 0, 0, false
	}
	for _, s := range im.segs {
		if from, _ := s.pages(pageSize); s.Flags&elf.PF_X != 0 && s.Vaddr-(s.Off-from)+bias == code {
			return from, bias, true
		}
	}
	return 0, 0, false
}

// biasOf returns the bias of a program whose first page is at an address.
func (im *Image) biasOf(first uint64) (bias uint64, ok bool) {
	for _, s := range im.segs {
		if s.Off == 0 && s.Filesz > 0 {
			bias = first - s.Vaddr
			return bias, bias == 0 || im.typ == elf.ET_DYN
		}
	}
	return 0, false
}

// newUnpacked makes an Image of what a process has at an address, nil where that is no program, or none yet: packers
// make its segments what they shall be when they are complete.
func newUnpacked(ref *FileRef, at uint64, header []byte) *Image {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", ref.PID))
	if err != nil {
		return nil
	}
	p := &unpackedProgram{header: header}
	im, err := NewImage(p, int64(len(header)), strings.TrimSuffix(path, " (deleted)")+unpackedSuffix)
	if err != nil {
		return nil
	}
	bias, ok := im.biasOf(at)
	if !ok {
		return nil
	}
	entries, err := ReadMaps(fmt.Sprintf("/proc/%d/maps", readableTask(int(ref.PID))), false)
	if err != nil {
		return nil
	}
	p.size = uint64(len(header))
	for _, s := range im.segs {
		if p.size = max(p.size, s.Off+s.Filesz); p.size > maxUnpackedSize {
			return nil
		}
		if s.Flags&elf.PF_W != 0 {
			continue
		}
		for _, e := range entries {
			if s.Vaddr+bias-e.Start < e.End-e.Start && e.Prot&ProtWrite != 0 {
				return nil
			}
		}
	}
	p.segments, im.size = im.segs, int64(p.size)
	return im
}

// unpackedProgram reads the file that a program was, as far as that is loaded, from the memory of a process, all at
// once when more than the headers is asked for.
type unpackedProgram struct {
	header   []byte
	segments []Segment // nil before they are known
	size     uint64

	mu   sync.Mutex
	pid  int32
	bias uint64
	file []byte // nil until it is read
	err  error  // why it could not be
}

// isOf says that another process runs the program, too, from which it is read where the one before is gone.
func (p *unpackedProgram) isOf(pid int32, bias uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid != 0 {
		p.load()
	}
	if p.pid == 0 || p.err != nil {
		p.pid, p.bias, p.err = pid, bias, nil
	}
}

// ReadAt implements io.ReaderAt.
func (p *unpackedProgram) ReadAt(b []byte, off int64) (int, error) {
	file := p.header
	if off > int64(len(file)-len(b)) {
		p.mu.Lock()
		p.load()
		var err error
		file, err = p.file, p.err
		p.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
	if off < 0 || off >= int64(len(file)) {
		return 0, io.EOF
	}
	n := copy(b, file[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// load reads file, with the lock held.
func (p *unpackedProgram) load() {
	if p.file != nil || p.err != nil || p.segments == nil {
		return
	}
	file := make([]byte, p.size)
	for _, s := range p.segments {
		if err := readProcMemTo(p.pid, s.Vaddr+p.bias, file[s.Off:][:s.Filesz]); err != nil {
			p.err = fmt.Errorf("program that process %d has unpacked: %w", p.pid, err)
			return
		}
	}
	if n := min(len(file), len(p.header)); !bytes.Equal(file[:n], p.header[:n]) { // the process executes another since
		p.err = fmt.Errorf("program that process %d has unpacked: %w", p.pid, errFileChanged)
		return
	}
	p.file = file
}
