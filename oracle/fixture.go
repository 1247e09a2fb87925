package oracle

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Fixture is a stopped thread in a file: what is needed to walk its stack
// again without a kernel, and how the walk should go. Of the files that the
// process maps it holds the headers and the code around each frame; the rest
// reads as zero.
type Fixture struct {
	Note   string // where it was taken
	Config string // for which steppers

	Registers     map[string]uint64 // by name
	ThreadPointer uint64
	StackAddr     uint64
	Stack         []byte
	Mappings      []FixtureMapping
	Files         []FixtureFile

	// Frames are the callers, the nearest first, as the processor knows them.
	Frames []FixtureFrame
}

// FixtureMapping is an executable mapping.
type FixtureMapping struct {
	Start, End, Offset uint64
	Path               string
	File               int // index in Files, -1 for none
}

// FixtureFile is a part of a file.
type FixtureFile struct {
	Path  string
	Size  int64
	Parts []FixturePart
}

// FixturePart is a run of bytes of a file.
type FixturePart struct {
	Off  int64
	Data []byte
}

// FixtureFrame is a frame: a return address, and SP after the return.
type FixtureFrame struct{ PC, SP uint64 }

// How much of stack and code a fixture holds.
const (
	fixtureStack  = 16 << 10
	fixtureCode   = 6 << 10 // on both sides of a frame's PC
	fixtureFrames = 8
)

// newFixture takes a fixture of the stopped target.
func newFixture(v *view, s *Shadow, config, note string) (*Fixture, error) {
	f := &Fixture{Note: note, Config: config, Registers: map[string]uint64{}, ThreadPointer: v.regs.ThreadPointer,
		StackAddr: v.stackAddr, Stack: v.stack[:min(len(v.stack), fixtureStack)]}
	for r := range procstate.Reg(v.arch.NumRegs) {
		if x, ok := v.regs.Value(r); ok {
			f.Registers[v.arch.RegName(r)] = x
		}
	}
	pcs := []uint64{v.regs.Raw(v.arch.PC)}
	for i := len(s.recs) - 1; i >= 0 && len(f.Frames) < fixtureFrames; i-- {
		f.Frames = append(f.Frames, FixtureFrame{s.recs[i].pc, s.recs[i].sp})
		pcs = append(pcs, s.recs[i].pc)
	}
	files := map[*procstate.Image]int{}
	for _, m := range v.space.Mappings() {
		fm := FixtureMapping{Start: m.Start, End: m.End, Offset: m.Offset, Path: filepath.Base(m.Path), File: -1}
		for _, pc := range pcs {
			if !m.Contains(pc) || m.Image == nil {
				continue
			}
			i, ok := files[m.Image]
			if !ok {
				i = len(f.Files)
				files[m.Image] = i
				ff, err := newFixtureFile(m.Image)
				if err != nil {
					return nil, err
				}
				f.Files = append(f.Files, ff)
			}
			fm.File = i
			off := int64(pc - m.Start + m.Offset)
			if err := f.Files[i].add(m.Image, off-fixtureCode, 2*fixtureCode); err != nil {
				return nil, err
			}
		}
		f.Mappings = append(f.Mappings, fm)
	}
	return f, nil
}

// newFixtureFile takes the headers of a file.
func newFixtureFile(im *procstate.Image) (FixtureFile, error) {
	f := FixtureFile{Path: filepath.Base(im.Path), Size: im.Size()}
	if err := f.add(im, 0, 1024); err != nil {
		return f, err
	}
	var ehdr [64]byte
	if _, err := im.ReadAt(ehdr[:], 0); err != nil {
		return f, err
	}
	shoff := int64(0)
	for i := 7; i >= 0; i-- {
		shoff = shoff<<8 | int64(ehdr[40+i])
	}
	if err := f.add(im, shoff, int64(len(im.Sections()))*64); err != nil {
		return f, err
	}
	if s, ok := im.Section(".shstrtab"); ok {
		return f, f.add(im, int64(s.Off), int64(s.Size))
	}
	return f, nil
}

// add takes n bytes of the file from off on, as far as it has them.
func (f *FixtureFile) add(r io.ReaderAt, off, n int64) error {
	if off < 0 {
		off, n = 0, n+off
	}
	if n = min(n, f.Size-off); n <= 0 {
		return nil
	}
	b := make([]byte, n)
	if k, err := r.ReadAt(b, off); int64(k) < n {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	f.Parts = append(f.Parts, FixturePart{off, b})
	return nil
}

// ReadAt implements io.ReaderAt.
func (f *FixtureFile) ReadAt(b []byte, off int64) (int, error) {
	n := max(min(int64(len(b)), f.Size-off), 0)
	clear(b[:n])
	for _, p := range f.Parts {
		from, to := max(p.Off, off), min(p.Off+int64(len(p.Data)), off+n)
		if from < to {
			copy(b[from-off:to-off], p.Data[from-p.Off:])
		}
	}
	if n < int64(len(b)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// Save writes the fixture to a file.
func (f *Fixture) Save(path string) error {
	w, err := os.Create(path)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(w)
	if err := json.NewEncoder(z).Encode(f); err != nil {
		w.Close()
		return err
	}
	if err := z.Close(); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}

// LoadFixture reads a fixture from a file.
func LoadFixture(path string) (*Fixture, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f := &Fixture{}
	if err := json.NewDecoder(z).Decode(f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Replay walks the fixture's stack with the steppers of its configuration and
// reports how many of its frames are right, and whether a wrong one was found.
func (f *Fixture) Replay() (right int, wrong bool, err error) {
	w, _, err := f.walker()
	if err != nil {
		return 0, false, err
	}
	// Where the walk ends is not part of the fixture.
	frames, _ := w.WalkStack(nil, procstate.DefaultThread)
	for i, want := range f.Frames {
		if i+1 >= len(frames) {
			return i, false, nil
		}
		if frames[i+1].PC() != want.PC || frames[i+1].SP() != want.SP {
			return i, true, nil
		}
	}
	return len(f.Frames), false, nil
}

// walker makes a Walker of the fixture's thread.
func (f *Fixture) walker() (*unwind.Walker, *procstate.Regs, error) {
	config, err := ConfigByName(f.Config)
	if err != nil {
		return nil, nil, err
	}
	space := &procstate.AddressSpace{}
	images := make([]*procstate.Image, len(f.Files))
	for i := range f.Files {
		im, err := procstate.NewImage(&f.Files[i], f.Files[i].Size, f.Files[i].Path)
		if err != nil {
			return nil, nil, err
		}
		if images[i], err = hide(im, config.Hide); err != nil {
			return nil, nil, err
		}
	}
	for _, m := range f.Mappings {
		pm := &procstate.Mapping{Start: m.Start, End: m.End, Offset: m.Offset, Path: m.Path}
		if m.File >= 0 && m.File < len(images) {
			pm.Image = images[m.File]
		}
		space.Insert(pm)
	}
	arch := procstate.AMD64
	var regs procstate.Regs
	for name, v := range f.Registers {
		regs.Set(arch.RegByName(name), v)
	}
	regs.ThreadPointer = f.ThreadPointer
	snap := procstate.NewSnapshot(arch, 1, "", space)
	snap.Reset(1, &regs, []procstate.Region{{Addr: f.StackAddr, Data: f.Stack}})
	return unwind.NewWalker(snap, config.group(), nil), &regs, nil
}
