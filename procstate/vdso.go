package procstate

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxVDSO bounds the length of a vdso; real ones have two to four pages.
const maxVDSO = 1 << 20

// vdsoCache holds the kernel's vdso images: one per ABI.
type vdsoCache struct {
	own    *vdsoImage // of our own process; nil when it has none
	looked bool
	others []*vdsoImage
}

type vdsoImage struct {
	bytes []byte
	high  bool // seen above 4 GiB: of a 64-bit process
	image *Image
}

// VDSO returns the Image of the vdso that is mapped at [start, end) in a
// process. The kernel has one image per ABI: that of our own ABI is read from
// our own memory, another from the process's the first time it is seen.
func (c *Images) VDSO(pid int32, start, end uint64) (*Image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := &c.vdsos
	v.look()
	if end <= start || end-start > maxVDSO {
		return nil, fmt.Errorf("[vdso] of process %d: %w", pid, ErrUnreadable)
	}
	high := start >= 1<<32
	if v.own != nil && high == v.own.high && uint64(len(v.own.bytes)) == end-start {
		return v.own.image, nil
	}
	b, err := readProcMem(pid, start, end-start)
	for _, o := range v.others {
		if err == nil && bytes.Equal(o.bytes, b) ||
			err != nil && o.high == high && uint64(len(o.bytes)) == end-start {
			return o.image, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("[vdso] of process %d: %w", pid, err)
	}
	im, err := NewImageBytes(b, "[vdso]")
	if err != nil {
		return nil, err
	}
	// A process can put anything there; few kernels know more than three ABIs.
	if len(v.others) < 16 {
		v.others = append(v.others, &vdsoImage{b, high, im})
	}
	return im, nil
}

// OwnVDSO returns the Image of the vdso of our own process, nil when it has none.
func (c *Images) OwnVDSO() *Image {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.vdsos.look(); c.vdsos.own == nil {
		return nil
	}
	return c.vdsos.own.image
}

// look reads our own vdso, once.
func (v *vdsoCache) look() {
	if !v.looked {
		v.looked = true
		v.own = readOwnVDSO()
	}
}

func readOwnVDSO() *vdsoImage {
	entries, err := ReadMaps("/proc/self/maps", true)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.Path != "[vdso]" || e.End-e.Start > maxVDSO {
			continue
		}
		b, err := readProcMem(int32(os.Getpid()), e.Start, e.End-e.Start)
		if err != nil {
			return nil
		}
		im, err := NewImageBytes(b, "[vdso]")
		if err != nil {
			return nil
		}
		return &vdsoImage{b, e.Start >= 1<<32, im}
	}
	return nil
}

// readProcMem reads n bytes of the memory of a live process, whose first thread
// may have ended.
func readProcMem(pid int32, addr, n uint64) ([]byte, error) {
	b := make([]byte, n)
	if err := readProcMemTo(pid, addr, b); err != nil {
		return nil, err
	}
	return b, nil
}

// readProcMemTo is readProcMem into b, all of it.
func readProcMemTo(pid int32, addr uint64, b []byte) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", readableTask(int(pid))), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if m, err := unix.Pread(fd, b, int64(addr)); m < len(b) {
		if err == nil {
			err = ErrUnreadable
		}
		return err
	}
	return nil
}

// copiedTextSamples is the number of places, 64 bytes each, at which copied
// text is compared with the file.
const copiedTextSamples = 32

// findCopiedText recognises the text of a file that was copied to anonymous
// memory at its own place, as programs do that put their text on huge pages:
// m lies in the code of a neighbour's file and holds the same bytes.
func (c *Images) findCopiedText(s *AddressSpace, pid int32, m *Mapping) {
	for _, near := range s.near(m.Start, m.End) {
		if near.Image == nil {
			continue
		}
		off, ok := near.Image.codeOffset(m.Start-near.Bias, m.End-m.Start)
		if !ok || !sameText(near.Image, pid, m, near.Bias) {
			continue
		}
		m.Image, m.Offset, m.Path = near.Image, off, near.Path
		return
	}
}

// sameText compares the memory of a process with the file's bytes.
func sameText(im *Image, pid int32, m *Mapping, bias uint64) bool {
	var want [64]byte
	compared := 0
	step := max((m.End-m.Start)/copiedTextSamples, uint64(len(want))) &^ 15
	for addr := m.Start; addr < m.End && m.End-addr >= uint64(len(want)); addr += step {
		if im.ReadVaddr(want[:], addr-bias) != nil {
			// Past the end of the file's part.
			break
		}
		have, err := readProcMem(pid, addr, uint64(len(want)))
		if err != nil || !bytes.Equal(have, want[:]) {
			return false
		}
		compared++
	}
	return compared > 0
}
