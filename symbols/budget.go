package symbols

import (
	"errors"
	"sync"
)

// DefaultMemory is what debug information may take, in bytes.
const DefaultMemory = 256 << 20

// ErrMemory is what debug information that needs more than Options.Memory is
// reported as.
var ErrMemory = errors.New("more than the memory for symbols allows")

// budget bounds the memory of what is read from debug information and can be
// read again: compiled units and decompressed sections. When they take more
// than the limit, those not used since the last round are dropped.
type budget struct {
	mu    sync.Mutex
	limit int
	total int
	items []budgetItem
	hand  int // where the next round goes on
}

type budgetItem struct {
	evictable
	size int
}

// evictable is something that can be dropped.
type evictable interface {
	// inUse reports whether it was used since the last call.
	inUse() bool
	// drop gives the memory back. It must not wait for who may add.
	drop()
}

// add accounts for something new, which stays this time.
func (b *budget) add(e evictable, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for tries := 2 * len(b.items); b.total+size > b.limit && len(b.items) > 0 && tries > 0; tries-- {
		if b.hand >= len(b.items) {
			b.hand = 0
		}
		v := b.items[b.hand]
		if v.inUse() {
			b.hand++
			continue
		}
		v.drop()
		b.total -= v.size
		last := len(b.items) - 1
		b.items[b.hand] = b.items[last]
		b.items[last] = budgetItem{}
		b.items = b.items[:last]
	}
	b.items = append(b.items, budgetItem{e, size})
	b.total += size
}
