package oracle

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// Sections that tell how to unwind, and those that name functions.
var (
	UnwindSections = []string{".eh_frame", ".eh_frame_hdr", ".debug_frame"}
	SymbolSections = []string{".symtab", ".dynsym", ".gnu_debugdata", ".gnu_debuglink", ".gopclntab"}
)

// hiddenReader is a file with some of its bytes overlaid.
type hiddenReader struct {
	io.ReaderAt
	patches []patch // sorted, not overlapping
}

type patch struct {
	off int64
	b   []byte
}

// ReadAt implements io.ReaderAt.
func (h *hiddenReader) ReadAt(b []byte, off int64) (int, error) {
	n, err := h.ReaderAt.ReadAt(b, off)
	for _, p := range h.patches {
		from, to := max(p.off, off), min(p.off+int64(len(p.b)), off+int64(n))
		if from < to {
			copy(b[from-off:to-off], p.b[from-p.off:])
		}
	}
	return n, err
}

// hide makes an Image of a 64-bit file that does not have the named sections:
// their headers are void, and with .eh_frame_hdr the program header that
// leads to it is too.
func hide(im *procstate.Image, names []string) (*procstate.Image, error) {
	var ehdr [64]byte
	if _, err := im.ReadAt(ehdr[:], 0); err != nil {
		return nil, fmt.Errorf("%s: %w", im.Path, err)
	}
	le := binary.LittleEndian
	h := &hiddenReader{ReaderAt: im}
	shoff := int64(le.Uint64(ehdr[40:]))
	for i, s := range im.Sections() {
		if slices.Contains(names, s.Name) {
			h.patches = append(h.patches, patch{shoff + int64(i)*64, make([]byte, 64)})
		}
	}
	if slices.Contains(names, ".eh_frame_hdr") {
		phoff := int64(le.Uint64(ehdr[32:]))
		for i := range int64(le.Uint16(ehdr[56:])) {
			var typ [4]byte
			if _, err := im.ReadAt(typ[:], phoff+i*56); err == nil && elf.ProgType(le.Uint32(typ[:])) == elf.PT_GNU_EH_FRAME {
				h.patches = append(h.patches, patch{phoff + i*56, make([]byte, 4)})
			}
		}
	}
	return procstate.NewImage(h, im.Size(), im.Path)
}
