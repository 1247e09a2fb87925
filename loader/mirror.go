package loader

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// See bpf/record.h.
const (
	mirrorBlock = int(gen.SamplerLimitsBLOCK)
	mirrorPiece = int(gen.SamplerLimitsPIECE)
	mirrorGroup = int(gen.SamplerLimitsGROUP)
	noMirror    = uint32(gen.SamplerLimitsNO_MIRROR)
)

// allMirrors bounds the mirrors of all CPUs; each has at most maxMirror.
const (
	allMirrors = 32 << 20
	maxMirror  = 1 << 20
)

// mirror is our side of a CPU's mirror: bpf/mirror.h.
type mirror struct {
	bytes   []byte
	changes uint32 // number of the record whose regions were put in last
	saved   []byte // bytes of its regions that another was laid over

	last      laid   // the region of that record, if it has one alone
	changedTo uint64 // where the words end that its last region has changed
}

// laid tells where a region ends and where it begins to be in a mirror.
type laid struct {
	end  uint64 // address of its first byte behind
	from uint64 // address of the mirror's first byte, were it all of one region
}

// mirrorBytes is the size of each mirror, a power of two.
func mirrorBytes(cpus int) int {
	return 1 << (bits.Len(uint(min(maxMirror, allMirrors/cpus))) - 1)
}

// newMirrors makes a mirror for each CPU, empty like the kernel's.
func newMirrors(cpus, stackBytes int) []mirror {
	m := make([]mirror, cpus)
	for i := range m {
		// The last piece of a region begins below mirrorBytes + stackBytes.
		m[i].bytes = make([]byte, mirrorBytes(cpus)+stackBytes+mirrorPiece)
	}
	return m
}

// begin starts a record with mirrored regions. Should one be missing, or come
// twice, that is an error: the mirror is not the kernel's any more.
func (m *mirror) begin(changes uint32) error {
	if m == nil || changes != m.changes+1 {
		return fmt.Errorf("%w: number %d of those with changes is out of turn", errBadRecord, changes)
	}
	m.changes = changes
	m.saved = m.saved[:0]
	return nil
}

// apply puts what is sent of a region into the mirror. It returns the region's
// bytes, valid until the next record of the CPU, and how many bytes of rest it
// has used. Bytes of the record's earlier regions are saved from being
// overwritten.
func (m *mirror) apply(r *regionHeader, rest []byte, earlier []procstate.Region) ([]byte, int, error) {
	before := int(r.Addr % uint64(mirrorBlock))
	size := (before + int(r.Len) + mirrorBlock - 1) &^ (mirrorBlock - 1)
	if int(r.Mirror)+size > len(m.bytes) {
		return nil, 0, fmt.Errorf("%w: region of %d bytes at %d of the mirror", errBadRecord, r.Len, r.Mirror)
	}
	blocks := m.bytes[r.Mirror:][:size]
	for i := range earlier {
		if overlap(earlier[i].Data, blocks) {
			from := len(m.saved)
			m.saved = append(m.saved, earlier[i].Data...)
			earlier[i].Data = m.saved[from:]
		}
	}
	used, changed := 0, 0
	for at := 0; at < len(blocks); at += mirrorGroup {
		n, end, err := applyGroup(blocks[at:min(at+mirrorGroup, len(blocks))], rest[used:])
		if err != nil {
			return nil, 0, err
		}
		used += n
		if end > 0 {
			changed = at + end
		}
	}
	m.changedTo = r.Addr - uint64(before) + uint64(changed)
	return blocks[before:][:r.Len:r.Len], used, nil
}

// applyGroup puts what is sent of a group into its bytes and returns how many
// bytes of sent that was, and where the last of the words ends.
func applyGroup(group, sent []byte) (used, end int, err error) {
	if len(sent) < 8 {
		return 0, 0, fmt.Errorf("%w: group in %d bytes", errBadRecord, len(sent))
	}
	mask := binary.NativeEndian.Uint64(sent)
	used = 8
	for ; mask != 0; mask &= mask - 1 {
		at := bits.TrailingZeros64(mask) * mirrorPiece
		if at >= len(group) {
			return 0, 0, fmt.Errorf("%w: piece at %d of %d", errBadRecord, at, len(group))
		}
		words, err := applyPiece(group[at:], sent[used:])
		if err != nil {
			return 0, 0, err
		}
		used += 8 + 8*bits.OnesCount64(words)
		end = at + 8*bits.Len64(words)
	}
	return used, end, nil
}

// applyPiece does so for the piece at the beginning of a part of a group. It
// returns a mask of its words that were sent.
func applyPiece(piece, sent []byte) (uint64, error) {
	if len(sent) < 8 {
		return 0, fmt.Errorf("%w: piece in %d bytes", errBadRecord, len(sent))
	}
	words := binary.NativeEndian.Uint64(sent)
	if 8*bits.Len64(words) > len(piece) || 8+8*bits.OnesCount64(words) > len(sent) {
		return 0, fmt.Errorf("%w: words %x of a piece of %d bytes in %d", errBadRecord, words, len(piece), len(sent))
	}
	to, from := unsafe.Pointer(unsafe.SliceData(piece)), unsafe.Pointer(unsafe.SliceData(sent))
	for left := words; left != 0; left &= left - 1 {
		from = unsafe.Add(from, 8)
		*(*uint64)(unsafe.Add(to, 8*bits.TrailingZeros64(left))) = *(*uint64)(from)
	}
	return words, nil
}

// follow tells from which address on the only region of the record is as it was
// in the one before, the largest there is when that is not known.
func (m *mirror) follow(r *regionHeader) (sameFrom uint64) {
	is := laid{r.Addr + uint64(r.Len), r.Addr - r.Addr%uint64(mirrorBlock) - uint64(r.Mirror)}
	sameFrom = ^uint64(0)
	if is == m.last {
		sameFrom = m.changedTo
	}
	m.last = is
	return sameFrom
}

// overlap reports whether two slices share memory.
func overlap(a, b []byte) bool {
	pa, pb := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return pa < pb+uintptr(len(b)) && pb < pa+uintptr(len(a))
}
