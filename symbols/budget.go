package symbols

import (
	"errors"
	"sync"
	"sync/atomic"
)

// DefaultMemory is what debug information may take, in bytes.
const DefaultMemory = 256 << 20

// ErrMemory is what debug information that needs more than Options.Memory is
// reported as.
var ErrMemory = errors.New("more than the memory for symbols allows")

// budget bounds the memory of what is read from files. Compiled units,
// decompressed sections and names can be read again: when all takes more than
// the limit, those not used since the last round are dropped.
type budget struct {
	mu     sync.Mutex
	limit  int
	total  int
	spared int // of total, what mayCharge accepted
	items  []budgetItem
	hand   int // where the next round goes on

	longNames atomic.Int64 // bytes of names of more than usualName that were given out
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

// reset forgets all that was accounted for.
func (b *budget) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total, b.spared, b.items, b.hand = 0, 0, nil, 0
	b.longNames.Store(0)
}

// boundName returns a name, cut where it is too long. Names may share their bytes in the file, but
// those who ask keep each: when long ones have taken a quarter of the limit, they are cut short.
func (b *budget) boundName(name string) string {
	if len(name) <= usualName {
		return name
	}
	if b.longNames.Add(int64(len(name))) > int64(b.limit/4) {
		return name[:usualName] + cutMark
	}
	if len(name) >= maxNameLength {
		return name[:maxNameLength] + cutMark
	}
	return name
}

// add accounts for something new, which stays this time.
func (b *budget) add(e evictable, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.makeRoom(size)
	b.items = append(b.items, budgetItem{e, size})
	b.total += size
}

// charge accounts for what stays as long as the Symbolizer.
func (b *budget) charge(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.makeRoom(size)
	b.total += size
}

// mayCharge accounts for something that stays and that could be done without:
// it refuses when that leaves less than half of the limit to the rest.
func (b *budget) mayCharge(size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spared+size > b.limit/2 {
		return false
	}
	b.makeRoom(size)
	b.spared += size
	b.total += size
	return true
}

// makeRoom drops what it may until there is room for size bytes.
func (b *budget) makeRoom(size int) {
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
}

// cachePortion is in how many bytes the memory of a cache is counted.
const cachePortion = 256 << 10

// cacheShare counts the memory of a cache of small things, which are all
// dropped when the memory for some of them is wanted.
type cacheShare struct {
	mark  *cacheMark
	bytes int // not counted yet
}

// begin reports whether the cache must be emptied before it is used.
func (c *cacheShare) begin() bool {
	if c.mark != nil && !c.mark.dropped.Load() {
		c.mark.used.Store(true)
		return false
	}
	*c = cacheShare{mark: &cacheMark{}}
	return true
}

// grow accounts for something new in the cache.
func (c *cacheShare) grow(b *budget, size int) {
	if c.bytes += size; c.bytes >= cachePortion {
		b.add(c.mark, c.bytes)
		c.bytes = 0
	}
}

// cacheMark stands for what a cache holds.
type cacheMark struct{ used, dropped atomic.Bool }

// inUse implements evictable.
func (m *cacheMark) inUse() bool { return m.used.Swap(false) }

// drop implements evictable.
func (m *cacheMark) drop() { m.dropped.Store(true) }
