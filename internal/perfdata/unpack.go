package perfdata

import (
	"errors"
	"io"
	"iter"

	"github.com/klauspost/compress/zstd"
)

// unpacker decompresses what compressed records hold: parts of one endless zstd stream, of which each
// can be decompressed when it has come. Records in it may begin in one part and end in the next.
//
// The decoder wants to read where we have something to give: it runs as a coroutine, and gives way
// when it has no more to read.
type unpacker struct {
	cut    cutter
	in     []byte // not read yet
	out    int    // bytes that came of what was fed last
	take   func(rec []byte, b *block)
	waits  func(struct{}) bool
	resume func() (struct{}, bool)
	stop   func()
	window int // bytes
	err    error
}

// Bounds of the decoder: the highest level has a window of 128 MB, the usual ones of at most 8, and a
// record is made of what was in one ring, of 512 KB mostly.
const (
	maxWindow   = 128 << 20
	minWindow   = 8 << 20
	maxUnpacked = 64 << 20 // bytes of one record
)

var (
	errUnpacked = errors.New("it holds too much")
	errClosed   = errors.New("closed")
)

// newUnpacker makes one that hands records to take. window is the longest that the decoder may have.
func newUnpacker(blocks *blockList, take func(rec []byte, b *block), window int) *unpacker {
	u := &unpacker{cut: cutter{blocks: blocks}, take: take, window: window}
	u.resume, u.stop = iter.Pull(u.run)
	u.resume() // until it wants to read
	return u
}

// run decompresses until it is closed.
func (u *unpacker) run(waits func(struct{}) bool) {
	u.waits = waits
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(uint64(u.window)))
	if err == nil {
		defer z.Close()
		if err = z.Reset(u); err == nil {
			_, err = z.WriteTo(writer{u})
		}
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	u.err = err
}

// feed decompresses a part of the stream, and has taken its records then.
func (u *unpacker) feed(part []byte) error {
	u.in, u.out = part, 0
	if u.err == nil && len(part) > 0 {
		u.resume()
	}
	return u.err
}

func (u *unpacker) close() { u.stop() }

// Read implements io.Reader for the decoder.
func (u *unpacker) Read(b []byte) (int, error) {
	for len(u.in) == 0 {
		if !u.waits(struct{}{}) {
			return 0, errClosed
		}
	}
	n := copy(b, u.in)
	u.in = u.in[n:]
	return n, nil
}

// writer takes what the decoder has decompressed.
type writer struct{ *unpacker }

func (w writer) Write(b []byte) (int, error) {
	if w.out += len(b); w.out > maxUnpacked {
		return 0, errUnpacked
	}
	for left := b; len(left) > 0; {
		left = left[w.cut.put(left):]
		for {
			rec, in, err := w.cut.next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return 0, err
			}
			w.take(rec, in)
		}
	}
	return len(b), nil
}
