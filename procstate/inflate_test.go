package procstate

import (
	"bytes"
	"compress/zlib"
	"io"
	"math/rand/v2"
	"os"
	"testing"
)

// zlibOf compresses as the standard library does.
func zlibOf(t testing.TB, b []byte, level int) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := zlib.NewWriterLevel(&buf, level)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(b)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// inflateInputs are bytes of many kinds.
func inflateInputs(t testing.TB) map[string][]byte {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 200_000)
	few := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for i := range few {
		few[i] = byte(r.ExpFloat64() * 5) // rare bytes have long codes
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"nothing": {}, "a byte": {7}, "zeros": make([]byte, 1<<20), "noise": noise, "few values": few,
		"a program": self[:min(len(self), 3<<20)], "far copies": bytes.Repeat(noise[:32768], 4),
	}
}

func TestInflate(t *testing.T) {
	for name, want := range inflateInputs(t) {
		for _, level := range []int{zlib.NoCompression, zlib.BestSpeed, zlib.DefaultCompression, zlib.BestCompression, zlib.HuffmanOnly} {
			packed := zlibOf(t, want, level)
			got, err := inflate(packed, uint64(len(want)))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s, level %d: %d bytes of %d, %v", name, level, len(got), len(want), err)
			}
			for _, wrong := range []uint64{uint64(len(want)) + 1, uint64(len(want)) - 1, 1 << 40} {
				if _, err := inflate(packed, wrong); err == nil {
					t.Errorf("%s, level %d: accepted as %d bytes", name, level, wrong)
				}
			}
			for cut := 1; cut < len(packed); cut *= 2 {
				if _, err := inflate(packed[:len(packed)-cut], uint64(len(want))); err == nil {
					t.Errorf("%s, level %d: accepted without the last %d bytes", name, level, cut)
				}
			}
		}
	}
}

// FuzzInflate compares with the standard library.
func FuzzInflate(f *testing.F) {
	for _, level := range []int{zlib.NoCompression, zlib.DefaultCompression, zlib.HuffmanOnly} {
		f.Add(zlibOf(f, []byte("to be, or not to be, that is the question"), level))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 20
		var want []byte
		r, err := zlib.NewReader(bytes.NewReader(b))
		if err == nil {
			want, err = io.ReadAll(io.LimitReader(r, limit))
		}
		if len(want) == limit {
			return
		}
		got, err2 := inflate(b, uint64(len(want)))
		if (err == nil) != (err2 == nil) || err == nil && !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v; the standard library has %d, %v", len(got), err2, len(want), err)
		}
	})
}

func BenchmarkInflate(b *testing.B) {
	want := inflateInputs(b)["a program"]
	packed := zlibOf(b, want, zlib.DefaultCompression)
	b.SetBytes(int64(len(want)))
	for b.Loop() {
		if _, err := inflate(packed, uint64(len(want))); err != nil {
			b.Fatal(err)
		}
	}
}
