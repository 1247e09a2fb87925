package procstate

import "sync"

// rareCode remembers of each page of a file whether it holds rare code.
type rareCode struct {
	mu     sync.Mutex
	looked []uint64 // a bit for each page
	rare   []uint64 // likewise
	buf    []byte
}

const (
	rarePage   = 4096
	rareMargin = 128
)

// HasRareCode reports whether rare finds something in the page of the file that
// holds the code at a link-time address, or in the 128 bytes on either side of
// that page. The file is read once; rare must be the same in all calls for an
// Image. It is true where the file cannot be read.
func (im *Image) HasRareCode(vaddr uint64, rare func(a *Arch, code []byte) bool) bool {
	off, ok := im.OffsetOfVaddr(vaddr, 1)
	if !ok {
		return true
	}
	k, page := &im.rare, off/rarePage
	word, bit := page/64, uint64(1)<<(page%64)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.looked == nil {
		n := (uint64(im.size)/rarePage + 64) / 64
		k.looked, k.rare = make([]uint64, n), make([]uint64, n)
	}
	if word >= uint64(len(k.looked)) {
		return true
	}
	if k.looked[word]&bit == 0 {
		from := page*rarePage - min(page*rarePage, rareMargin)
		n := min((page+1)*rarePage+rareMargin, uint64(im.size)) - from
		if k.buf == nil {
			k.buf = make([]byte, rarePage+2*rareMargin)
		}
		if m, _ := im.r.ReadAt(k.buf[:n], int64(from)); uint64(m) < n {
			return true
		}
		if rare(im.arch, k.buf[:n]) {
			k.rare[word] |= bit
		}
		k.looked[word] |= bit
	}
	return k.rare[word]&bit != 0
}
