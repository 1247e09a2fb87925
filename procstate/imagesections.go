package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The bytes of sections, also of those that are compressed.

// SectionBytes reads a section whole, decompressed where it is compressed
// (SHF_COMPRESSED with zlib or zstd, or a .zdebug_ name), and at most limit
// bytes of it (0: 2 GiB). The caller owns the result.
func (im *Image) SectionBytes(s Section, limit uint64) ([]byte, error) {
	if limit == 0 || limit > maxSectionData {
		limit = maxSectionData
	}
	if s.Type == elf.SHT_NOBITS {
		return nil, fmt.Errorf("%s: section %s: %w", im.Path, s.Name, ErrNoSection)
	}
	if s.Size > limit || s.Size > uint64(im.size) {
		return nil, fmt.Errorf("%s: section %s: %w", im.Path, s.Name, &FormatError{int64(s.Off), "section too large"})
	}
	raw, err := im.readNew(s.Off, s.Size)
	if err != nil {
		return nil, fmt.Errorf("%s: section %s: %w", im.Path, s.Name, err)
	}
	out, err := decompress(s, raw, limit, im.Arch().AddressWidth == 8)
	if err != nil {
		return nil, fmt.Errorf("%s: section %s: %w", im.Path, s.Name, err)
	}
	return out, nil
}

// sectionPart is how many bytes of a section are read at a time: whole entries of
// any table.
const sectionPart = 48 << 10

var sectionBuffers = sync.Pool{New: func() any { return new([sectionPart]byte) }}

// SectionParts calls visit for the bytes of a section in order, 48 KiB at a time or
// what is left, valid until it returns: with whole entries of tables whose entries
// have 8, 16 or 24 bytes. A section that is compressed is read whole, as by
// SectionBytes. An error may come after some of the bytes.
func (im *Image) SectionParts(s Section, limit uint64, visit func(part []byte)) error {
	if limit == 0 || limit > maxSectionData {
		limit = maxSectionData
	}
	if s.Flags&elf.SHF_COMPRESSED != 0 || strings.HasPrefix(s.Name, ".zdebug_") || s.Type == elf.SHT_NOBITS || s.Size > min(limit, uint64(im.size)) {
		b, err := im.SectionBytes(s, limit)
		if err == nil {
			visit(b)
		}
		return err
	}
	buf := sectionBuffers.Get().(*[sectionPart]byte)
	defer sectionBuffers.Put(buf)
	for at := uint64(0); at < s.Size; at += sectionPart {
		part := buf[:min(s.Size-at, sectionPart)]
		if err := im.readFull(part, s.Off+at); err != nil {
			return fmt.Errorf("%s: section %s: %w", im.Path, s.Name, err)
		}
		visit(part)
	}
	return nil
}

func decompress(s Section, raw []byte, limit uint64, is64 bool) ([]byte, error) {
	le := binary.LittleEndian
	var size uint64
	var typ elf.CompressionType
	switch {
	case s.Flags&elf.SHF_COMPRESSED != 0 && is64 && len(raw) >= 24:
		typ, size = elf.CompressionType(le.Uint32(raw)), le.Uint64(raw[8:])
		raw = raw[24:]
	case s.Flags&elf.SHF_COMPRESSED != 0 && !is64 && len(raw) >= 12:
		typ, size = elf.CompressionType(le.Uint32(raw)), uint64(le.Uint32(raw[4:]))
		raw = raw[12:]
	case s.Flags&elf.SHF_COMPRESSED != 0:
		return nil, &FormatError{int64(s.Off), "compressed section too short"}
	case len(s.Name) > 8 && s.Name[:8] == ".zdebug_" && len(raw) >= 12 && string(raw[:4]) == "ZLIB":
		typ, size = elf.COMPRESS_ZLIB, binary.BigEndian.Uint64(raw[4:])
		raw = raw[12:]
	default:
		return raw, nil
	}
	if size > limit {
		return nil, &FormatError{int64(s.Off), "decompressed section too large"}
	}
	switch typ {
	case elf.COMPRESS_ZLIB:
		b, err := inflate(raw, size)
		if err != nil {
			return nil, &FormatError{int64(s.Off), err.Error()}
		}
		return b, nil
	case elf.COMPRESS_ZSTD:
		b, err := unzstd(raw, size)
		if err != nil {
			return nil, &FormatError{int64(s.Off), err.Error()}
		}
		return b, nil
	}
	return nil, &FormatError{int64(s.Off), "unknown compression"}
}

// unzstd decompresses a zstd stream that holds size bytes. Its window, which is
// allocated before anything comes, need not be longer than that.
func unzstd(raw []byte, size uint64) ([]byte, error) {
	r, err := zstd.NewReader(bytes.NewReader(raw), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(min(maxZstdWindow, max(minZstdWindow, uint64(1)<<bits.Len64(size)))))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The size is the file's word: let the buffer grow with what really comes.
	// A read that finds the end needs room too.
	var buf bytes.Buffer
	buf.Grow(int(min(size+bytes.MinRead, 8*uint64(len(raw)))))
	if _, err := io.Copy(&buf, io.LimitReader(r, int64(size))); err != nil {
		return nil, err
	}
	if uint64(buf.Len()) != size {
		return nil, errors.New("compressed section is short")
	}
	return buf.Bytes(), nil
}
