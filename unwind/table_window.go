package unwind

import (
	"sync/atomic"

	"github.com/swbpf/swbpf/procstate"
)

// window is the piece of a file that was read last: what is read next mostly
// lies in it. With it goes what else one needs who makes rows, and no longer. The
// zero value is ready for use.
type window struct {
	image uint32 // its Index
	off   uint64 // in the file
	data  []byte

	prog program
	made []compiledRow
}

// windowBytes are read at least. Most records are shorter.
const windowBytes = 256

// read returns n bytes of a file, valid until the next read. n must be bounded
// by the caller.
func (w *window) read(img *procstate.Image, off uint64, n int) ([]byte, bool) {
	i, size := off-w.off, uint64(n)
	if w.image != img.Index || i > uint64(len(w.data)) || size > uint64(len(w.data))-i {
		if off > uint64(img.Size()) || size > uint64(img.Size())-off {
			return nil, false
		}
		room := max(n, windowBytes)
		if cap(w.data) < room {
			w.data = make([]byte, room)
		}
		m, _ := img.ReadAt(w.data[:room], int64(off))
		w.image, w.off, w.data = img.Index, off, w.data[:max(m, 0)]
		i = 0
	}
	if size > uint64(len(w.data))-i {
		return nil, false
	}
	return w.data[i : i+size], true
}

// windows lends a window to each goroutine that reads files, and keeps one.
type windows struct{ free atomic.Pointer[window] }

// take takes a window; give gives it back.
func (p *windows) take() *window {
	if w := p.free.Swap(nil); w != nil {
		return w
	}
	return new(window)
}

func (p *windows) give(w *window) { p.free.Store(w) }
