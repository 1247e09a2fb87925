package procstate

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/adler32"
	"sort"
	"sync"
)

// Sizes of the parts that a compressed section is decompressed in.
const (
	partSize = 128 << 10
	maxParts = 64 // a larger section has larger parts

	historySize  = 32 << 10                        // how far back deflate copies from
	packedWindow = 32 << 10                        // what is read of the file at a time
	maxScratch   = 2 << 20                         // kept for the next part
	scratchSize  = historySize + partSize + 96<<10 // of a part whose last block is of usual size

	// maxBlock bounds what a block of deflate makes, as parts end where blocks
	// do. zlib's make 4 MB at most.
	maxBlock = 16 << 20
)

// Packed is a compressed section of a file, of which any part can be had while
// the others are in no memory. It remembers where parts begin, with what came
// before: at most 2 MB. It is not safe for concurrent use.
type Packed struct {
	im       *Image
	section  Section
	off, end uint64 // of the compressed bytes, in the file
	size     uint64
	zstd     bool

	points []packedPoint // where the parts that were reached begin, in order
	known  uint64        // up to here, the start of the last of them
	sum    hash.Hash32   // of all up to there
	err    error         // what was met there
}

var packedBuffers = sync.Pool{New: func() any { return new([packedWindow]byte) }}

// packedPoint is where decompression can go on.
type packedPoint struct {
	at      uint64 // in the section
	bit     uint64 // in the file, from its start
	history []byte
}

// Packed returns the section as one of which parts can be had, nil when it is
// not compressed.
func (im *Image) Packed(s Section) (*Packed, error) {
	bad := func(what string) (*Packed, error) {
		return nil, fmt.Errorf("%s: section %s: %w", im.Path, s.Name, &FormatError{int64(s.Off), what})
	}
	if s.Flags&elf.SHF_COMPRESSED == 0 && (len(s.Name) < 8 || s.Name[:8] != ".zdebug_") {
		return nil, nil
	}
	if s.Off > uint64(im.size) || s.Size > uint64(im.size)-s.Off {
		return bad("past the end of the file")
	}
	var b [24]byte
	if n, _ := im.ReadAt(b[:min(s.Size, uint64(len(b)))], int64(s.Off)); n < 12 || n < 24 && s.Size >= 24 {
		return bad("header is cut short")
	}
	p := &Packed{im: im, section: s, end: s.Off + s.Size}
	typ, header := elf.COMPRESS_ZLIB, uint64(12)
	le := binary.LittleEndian
	switch {
	case s.Flags&elf.SHF_COMPRESSED == 0: // "ZLIB" and a big-endian number
		p.size = binary.BigEndian.Uint64(b[4:])
	case im.Arch().AddressWidth == 8:
		typ, p.size, header = elf.CompressionType(le.Uint32(b[:])), le.Uint64(b[8:]), 24
	default:
		typ, p.size = elf.CompressionType(le.Uint32(b[:])), uint64(le.Uint32(b[4:]))
	}
	if s.Size < header {
		return bad("header is cut short")
	}
	p.off = s.Off + header
	switch typ {
	case elf.COMPRESS_ZSTD:
		p.zstd = true
		return p, nil
	case elf.COMPRESS_ZLIB:
	default:
		return bad("unknown compression")
	}
	if n, _ := im.ReadAt(b[:2], int64(p.off)); p.end-p.off < 6 || n < 2 || !isZlib(b[:]) {
		return bad(errZlib.Error())
	}
	p.end -= 4
	if p.size > maxExpansion*(p.end-p.off) {
		return bad(errZlibSize.Error())
	}
	p.points = []packedPoint{{bit: 8 * (p.off + 2)}}
	p.sum = adler32.New()
	return p, nil
}

// Size is the size of the section before compression, in bytes.
func (p *Packed) Size() uint64 { return p.size }

// PartSize is about what a part takes, in bytes: the whole section where it
// can be decompressed at once only.
func (p *Packed) PartSize() uint64 {
	if p.zstd {
		return p.size
	}
	return min(max(partSize, p.size/maxParts), p.size)
}

// Part decompresses the part of the section that holds an offset, and returns
// where it starts. The caller owns it.
func (p *Packed) Part(off uint64) (start uint64, b []byte, err error) {
	if off >= p.size {
		return 0, nil, p.failed("past its end")
	}
	if p.zstd {
		b, err := p.im.SectionBytes(p.section, p.size)
		return 0, b, err
	}
	z := inflaters.Get().(*inflater)
	defer inflaters.Put(z)
	buf := packedBuffers.Get().(*[packedWindow]byte)
	in := packedInput{p: p, buf: buf[:]}
	defer func() {
		packedBuffers.Put(buf)
		z.src, z.more = nil, nil
		if z.dst = z.dst[:cap(z.dst)]; len(z.dst) > maxScratch {
			z.dst = nil
		}
	}()
	if off < p.known {
		i := sort.Search(len(p.points), func(i int) bool { return p.points[i].at > off }) - 1
		at := p.points[i]
		b, _, err := in.part(z, at)
		if err == nil && off-at.at >= uint64(len(b)) {
			err = errZlib // the file has changed
		}
		if err != nil {
			return 0, nil, p.failed(err.Error())
		}
		return at.at, append([]byte(nil), b...), nil
	}
	for p.err == nil {
		at := p.points[len(p.points)-1]
		b, last, err := in.part(z, at)
		if err == nil {
			err = p.reached(z, &in, at.at, b, last)
		}
		if err != nil {
			p.err = p.failed(err.Error())
			break
		}
		if off < p.known {
			return at.at, append([]byte(nil), b...), nil
		}
	}
	return 0, nil, p.err
}

func (p *Packed) failed(what string) error {
	if p.im == nil {
		return ErrNoSection
	}
	return fmt.Errorf("%s: section %s: %w", p.im.Path, p.section.Name, &FormatError{int64(p.section.Off), what})
}

// reached notes the end of a part that was not known before.
func (p *Packed) reached(z *inflater, in *packedInput, start uint64, b []byte, last bool) error {
	p.sum.Write(b)
	p.known = start + uint64(len(b))
	if !last {
		p.points = append(p.points, packedPoint{p.known, in.bit(z), append([]byte(nil), z.dst[max(0, z.done-historySize):z.done]...)})
		return nil
	}
	if p.known != p.size {
		return errZlibSize
	}
	// What was read ahead is given back: the checksum follows the last byte
	// that was used.
	var sum [4]byte
	if n, _ := p.im.ReadAt(sum[:], int64((in.bit(z)+7)/8)); n < 4 || p.sum.Sum32() != binary.BigEndian.Uint32(sum[:]) {
		return errZlib
	}
	return nil
}

// packedInput reads the compressed bytes of a section.
type packedInput struct {
	p    *Packed
	buf  []byte
	next uint64 // in the file, of what follows buf
}

// part decompresses the part that begins at a point; the result is that of z.
func (in *packedInput) part(z *inflater, at packedPoint) (b []byte, last bool, err error) {
	in.next = at.bit / 8
	z.more = in.more
	z.src, z.pos, z.bits, z.n = nil, 0, 0, 0
	if len(z.dst) < scratchSize {
		z.dst = make([]byte, scratchSize)
	}
	have := copy(z.dst, at.history)
	z.done = have
	z.limit = have + int(min(in.p.size-at.at, in.p.PartSize()+maxBlock))
	z.dst = z.dst[:min(cap(z.dst), z.limit)]
	z.fill()
	z.take(int(at.bit % 8))
	// Blocks without contents may follow the last byte.
	for n := uint64(0); !last && (n < in.p.PartSize() || at.at+n == in.p.size); n = uint64(z.done - have) {
		if last, err = z.oneBlock(); err != nil {
			return nil, false, err
		}
	}
	if z.n < 0 {
		return nil, false, errZlib
	}
	return z.dst[have:z.done], last, nil
}

// more implements inflater.more.
func (in *packedInput) more(rest []byte) []byte {
	n := copy(in.buf, rest)
	want := min(uint64(len(in.buf)-n), in.p.end-in.next)
	m, _ := in.p.im.ReadAt(in.buf[n:n+int(want)], int64(in.next))
	in.next += uint64(m)
	return in.buf[:n+m]
}

// bit returns where z is in the file.
func (in *packedInput) bit(z *inflater) uint64 {
	return 8*(in.next-uint64(len(z.src)-z.pos)) - uint64(z.n)
}
