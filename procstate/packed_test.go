package procstate

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// packedOf makes a section of zlib data that claims to hold size bytes, at an
// odd place of a file.
func packedOf(stream []byte, size uint64) (*Packed, error) {
	file := append(binary.BigEndian.AppendUint64([]byte("odd"+"ZLIB"), size), stream...)
	im := &Image{r: bytes.NewReader(file), size: int64(len(file)), arch: AMD64}
	return im.Packed(Section{Name: ".zdebug_info", Off: 3, Size: uint64(len(file) - 3)})
}

// readPacked reads all parts of a section, from the offsets that come first.
func readPacked(p *Packed, first ...uint64) ([]byte, error) {
	out := make([]byte, p.Size())
	for _, off := range first {
		start, b, err := p.Part(off)
		if err != nil {
			return nil, err
		}
		copy(out[start:], b)
	}
	for off := uint64(0); off < p.Size(); {
		start, b, err := p.Part(off)
		if err != nil {
			return nil, err
		}
		copy(out[start:], b)
		off = start + uint64(len(b))
	}
	return out, nil
}

func TestPacked(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	inputs := inflateInputs(t)
	program := inputs["a program"][:1200<<10]
	inputs = map[string][]byte{
		"a byte": inputs["a byte"], "few values": inputs["few values"], "far copies": inputs["far copies"],
		"many parts": slices.Concat(program, inputs["few values"], inputs["zeros"]),
	}
	for name, want := range inputs {
		for _, level := range []int{zlib.NoCompression, zlib.BestSpeed, zlib.DefaultCompression, zlib.HuffmanOnly} {
			stream := zlibOf(t, want, level)
			p, err := packedOf(stream, uint64(len(want)))
			if err != nil {
				t.Fatalf("%s, level %d: %v", name, level, err)
			}
			var first []uint64
			for range 3 {
				first = append(first, r.Uint64N(uint64(len(want))))
			}
			if got, err := readPacked(p, first...); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s, level %d, first %d: not the same, %v", name, level, first, err)
			}
			for _, wrong := range []uint64{uint64(len(want)) + 1, uint64(len(want)) - 1} {
				if p, err := packedOf(stream, wrong); err == nil && wrong > 0 {
					if _, err := readPacked(p); err == nil {
						t.Errorf("%s, level %d: accepted as %d bytes", name, level, wrong)
					}
				}
			}
			damaged := bytes.Clone(stream)
			damaged[len(damaged)-1]++ // of the checksum
			if p, err := packedOf(damaged, uint64(len(want))); err == nil {
				if _, err := readPacked(p); err == nil {
					t.Errorf("%s, level %d: accepted with a wrong checksum", name, level)
				}
			}
		}
	}
}

// FuzzPacked compares with decompression in one go.
func FuzzPacked(f *testing.F) {
	for _, level := range []int{zlib.NoCompression, zlib.DefaultCompression, zlib.HuffmanOnly} {
		f.Add(zlibOf(f, []byte("to be, or not to be, that is the question"), level), uint16(41), uint16(7))
	}
	f.Fuzz(func(t *testing.T, stream []byte, size, first uint16) {
		if size == 0 {
			return
		}
		want, err := inflate(stream, uint64(size))
		p, err2 := packedOf(stream, uint64(size))
		var got []byte
		if err2 == nil {
			got, err2 = readPacked(p, uint64(first%size))
		}
		if (err == nil) != (err2 == nil) || err == nil && !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v; in one go %d, %v", len(got), err2, len(want), err)
		}
	})
}
