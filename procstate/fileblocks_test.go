package procstate

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Reads through blocks are those of the files, whatever the order, of several
// files at once and by several goroutines.
func TestFileBlocks(t *testing.T) {
	images := NewImages(0)
	defer images.Close()
	var files []*Image
	var contents [][]byte
	for i, from := range []string{"/bin/true", "/bin/sh", "/bin/ls"} {
		path := copyFile(t, from, filepath.Join(t.TempDir(), "x"))
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.Write(make([]byte, i+1)) // sizes that end in the middle of a block
		f.Close()
		im, err := images.Open(refTo(t, path))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files, contents = append(files, im), append(contents, b)
	}
	var wg sync.WaitGroup
	for seed := range uint64(3) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			b := make([]byte, 3*blockBytes)
			for range 5000 {
				i := rng.IntN(len(files))
				want := contents[i]
				off := rng.IntN(len(want) + 100)
				want = want[min(off, len(want)):]
				b := b[:1+rng.IntN(len(b))]
				if rng.IntN(2) == 0 {
					b = b[:1+rng.IntN(min(len(b), 64))]
				}
				wantErr := error(nil)
				if len(want) < len(b) {
					wantErr = io.EOF
				}
				want = want[:min(len(want), len(b))]
				if n, err := files[i].ReadAt(b, int64(off)); !bytes.Equal(b[:n], want) || err != wantErr {
					t.Errorf("file %d, %d bytes at %d: %d, %v, want %d, %v", i, len(b), off, n, err, len(want), wantErr)
					return
				}
			}
		})
	}
	wg.Wait()
}
