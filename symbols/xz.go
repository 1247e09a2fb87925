package symbols

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

var errXZ = errors.New("bad xz data")

// Limits on what a compressed section may make us allocate.
const (
	maxXZDict  = 64 << 20
	maxXZDicts = 256 << 20 // of all blocks, which may be empty
	maxXZSize  = 64 << 20
)

// unxz decompresses an .xz stream. The container is read here, and only LZMA2
// by the library, because the library allocates whatever dictionary a block
// asks for. Source: The .xz File Format 1.2.
func unxz(b []byte) ([]byte, error) {
	if len(b) < 12 || string(b[:6]) != "\xfd7zXZ\x00" {
		return nil, fmt.Errorf("stream header: %w", errXZ)
	}
	checkSize := [16]int{0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64}[b[7]&15]
	var out bytes.Buffer
	b, dicts := b[12:], 0
	for len(b) > 0 && b[0] != 0 { // 0 begins the index
		headerSize := (int(b[0]) + 1) * 4
		if headerSize > len(b) {
			return nil, fmt.Errorf("block header: %w", errXZ)
		}
		dict, err := xzBlockDict(b[:headerSize])
		if err != nil {
			return nil, err
		}
		if dicts += dict; dicts > maxXZDicts {
			return nil, fmt.Errorf("dictionaries of more than %d bytes: %w", maxXZDicts, errXZ)
		}
		src := bytes.NewReader(b[headerSize:])
		r, err := lzma.Reader2Config{DictCap: dict}.NewReader2(src)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errXZ, err)
		}
		if _, err := io.Copy(&out, io.LimitReader(r, int64(maxXZSize+1-out.Len()))); err != nil {
			return nil, fmt.Errorf("%w: %w", errXZ, err)
		}
		if out.Len() > maxXZSize {
			return nil, fmt.Errorf("more than %d bytes: %w", maxXZSize, errXZ)
		}
		used := len(b) - headerSize - src.Len()
		skip := headerSize + (used+3)&^3 + checkSize
		if skip > len(b) {
			return nil, fmt.Errorf("block: %w", errXZ)
		}
		b = b[skip:]
	}
	return out.Bytes(), nil
}

// xzBlockDict returns the dictionary size of a block with the LZMA2 filter
// alone.
func xzBlockDict(h []byte) (int, error) {
	bad := fmt.Errorf("block header: %w", errXZ)
	n := len(h) - 4
	if n < 4 || crc32.ChecksumIEEE(h[:n]) != binary.LittleEndian.Uint32(h[n:]) {
		return 0, bad
	}
	flags, p := h[1], h[2:n]
	if flags&3 != 0 {
		return 0, fmt.Errorf("filter chain: %w", errXZ)
	}
	for range int(flags>>6&1) + int(flags>>7) { // compressed, uncompressed size
		_, m := binary.Uvarint(p)
		if m <= 0 {
			return 0, bad
		}
		p = p[m:]
	}
	if len(p) < 3 || p[0] != 0x21 || p[1] != 1 || p[2] > 40 {
		return 0, bad
	}
	bits := uint(p[2])
	size := uint64(2|bits&1) << (bits/2 + 11)
	if size > maxXZDict {
		return 0, fmt.Errorf("dictionary of %d bytes: %w", size, errXZ)
	}
	return max(int(size), lzma.MinDictCap), nil
}
