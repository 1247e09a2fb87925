package procstate

import (
	"sync"
	"sync/atomic"
)

// rareCode remembers of each page of a file whether it may hold rare code.
type rareCode struct {
	pages atomic.Pointer[[]atomic.Uint64] // two bits for each page: 0 when it was not looked at
	mu    sync.Mutex
	buf   []byte
}

const (
	plainPage = 1
	rarePage  = 2

	rarePageBytes = 4096
	rareMargin    = 128

	maxRareOffset = 4 << 30 // what lies beyond in a file may always be rare
)

// HasRareCode reports whether rare may find something in the 128 bytes on either
// side of a link-time address: it does in that page of the file, or the page ends
// within them. The file is read once; rare must be the same in all calls for an
// Image. It is true where the file cannot be read.
func (im *Image) HasRareCode(vaddr uint64, rare func(a *Arch, code []byte) bool) bool {
	off, ok := im.OffsetOfVaddr(vaddr, 1)
	if !ok || off >= min(uint64(im.size), maxRareOffset) {
		return true
	}
	page, at := off/rarePageBytes, off%rarePageBytes
	if at < rareMargin || at >= rarePageBytes-rareMargin {
		return true
	}
	if p := im.rare.pages.Load(); p != nil {
		if is := (*p)[page/32].Load() >> (page % 32 * 2) & 3; is != 0 {
			return is == rarePage
		}
	}
	return im.lookForRareCode(page, rare)
}

func (im *Image) lookForRareCode(page uint64, rare func(a *Arch, code []byte) bool) bool {
	k, size := &im.rare, uint64(im.size)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.buf == nil {
		pages := make([]atomic.Uint64, min(size, maxRareOffset)/rarePageBytes/32+1)
		k.pages.Store(&pages)
		k.buf = make([]byte, rarePageBytes)
	}
	from := page * rarePageBytes
	b := k.buf[:min(rarePageBytes, size-from)]
	is := uint64(rarePage)
	if n, _ := im.r.ReadAt(b, int64(from)); n == len(b) && !rare(im.arch, b) {
		is = plainPage
	}
	(*k.pages.Load())[page/32].Or(is << (page % 32 * 2))
	return is == rarePage
}
